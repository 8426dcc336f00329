"""The replicas of a service, and calls to the one that has the fewest in flight."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from rlctl.core.errors import ConfigError, DeadlineError, RlctlError, UnavailableError
from rlctl.rpc.channel import StubClass
from rlctl.rpc.config import ChannelConfig
from rlctl.rpc.gate import REFUSED
from rlctl.rpc.replica import Replica

if TYPE_CHECKING:
    from rlctl.bus.registry import Instance, Registry

_log = logging.getLogger("rlctl.rpc")

_SHORTEST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0


class Pool:
    """Finds replicas by plain addresses or the registry, follows their health, and balances calls over those
    that serve.

    A call is tried again, on another replica where there is one, when the server refused it before it began
    (loading, draining, at its limit of calls), and when it was UNAVAILABLE and the caller said that a repeat is
    safe. Its deadline covers everything: the wait for a replica and all tries. Used inside one event loop.
    """

    def __init__(self, service: str, config: ChannelConfig, registry: Registry | None = None) -> None:
        """`service` is its name in the registry; without addresses in `config` the registry is asked."""
        if not config.addresses and registry is None:
            raise ConfigError(f"{service}: no addresses are given and no registry to find replicas in; set addresses")
        self.service = service
        self.config = config
        self._registry = registry if not config.addresses else None
        self._replicas: dict[str, Replica] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._follower: asyncio.Task[None] | None = None
        self._change: asyncio.Event | None = None
        self._closed = False

    async def ready(self, replicas: int = 1, timeout_s: float | None = None) -> None:
        """Waits until so many replicas serve (`ready_timeout_s` by default). Raises DeadlineError."""
        self._start()
        timeout = self.config.ready_timeout_s if timeout_s is None else timeout_s
        deadline = asyncio.get_running_loop().time() + timeout
        while len(self._serving()) < replicas:
            self._check_open()
            if not await self._wait(deadline):
                raise DeadlineError(
                    f"waited {timeout:g} s for {replicas} replica(s) of {self.service} to serve: {self._describe()}",
                    service=self.service,
                )

    def instances(self) -> list[Instance]:
        """All replicas known, with `serving` as their health says; `extra` is the registry's."""
        return [dataclasses.replace(one.instance, serving=one.serving) for one in self._replicas.values()]

    async def call(
        self,
        stub_class: StubClass,
        method: str,
        request: Message | Sequence[Message],
        *,
        timeout_s: float | None = None,
        retry: bool = False,
    ) -> Any:
        """A call with one answer; `request` is a sequence of messages where the method takes a stream.

        `retry` says that a repeat is safe even if the first try was carried out. Raises an RlctlError;
        cancelling cancels the call on the other side too.
        """
        tries = _Tries(self, method, timeout_s)
        while True:
            replica = await tries.pick()
            try:
                with replica.busy() as channel:
                    return await channel.call(stub_class, method, request, timeout_s=tries.remaining())
            except RlctlError as error:
                tries.failed(replica, error, retry)

    async def stream(
        self,
        stub_class: StubClass,
        method: str,
        request: Message,
        *,
        timeout_s: float | None = None,
        retry: bool = False,
    ) -> AsyncGenerator[Any, None]:
        """A call with a stream of answers; tried again only before the first answer."""
        tries = _Tries(self, method, timeout_s)
        answered = False
        while True:
            replica = await tries.pick()
            try:
                with replica.busy() as channel:
                    answers = channel.stream(stub_class, method, request, timeout_s=tries.remaining())
                    async with aclosing(answers):
                        async for answer in answers:
                            answered = True
                            yield answer
                return
            except RlctlError as error:
                if answered:
                    raise
                tries.failed(replica, error, retry)

    async def close(self) -> None:
        """Ends the calls in flight (UnavailableError) and forgets the replicas."""
        self._closed = True
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.wait({self._follower})
        replicas, self._replicas = list(self._replicas.values()), {}
        self._changed()
        await asyncio.gather(*self._closing, *(replica.close() for replica in replicas))

    async def __aenter__(self) -> Pool:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError(f"the pool of {self.service} is closed", reason="POOL_CLOSED")

    def _start(self) -> None:
        self._check_open()
        if self._change is not None:
            return
        self._change = asyncio.Event()
        if self._registry is not None:
            self._follower = asyncio.create_task(self._follow(self._registry))
            return
        from rlctl.bus.registry import Instance

        addresses = dict.fromkeys(self.config.addresses)
        self._list([Instance(self.service, address, address, 0, False) for address in addresses])

    async def _follow(self, registry: Registry) -> None:
        while True:
            try:
                async for instances in registry.watch(self.service):
                    self._list(instances)
            except RlctlError as error:
                _log.warning("the registry does not tell of %s, trying again: %s", self.service, error.message)
            await asyncio.sleep(1.0)

    def _list(self, instances: list[Instance]) -> None:
        """Takes what the registry lists; one that it no longer lists stays for as long as it serves or works."""
        listed = {instance.address: instance for instance in instances}
        for address, instance in listed.items():
            replica = self._replicas.get(address)
            if replica is None:
                self._replicas[address] = Replica(instance, self.config, self._changed)
            else:
                replica.instance = instance
        for replica in self._replicas.values():
            replica.listed = replica.instance.address in listed
        self._changed()

    def _changed(self) -> None:
        for address, replica in list(self._replicas.items()):
            if not (replica.listed or replica.serving or replica.in_flight):
                del self._replicas[address]
                task = asyncio.get_running_loop().create_task(replica.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
        if self._change is not None:
            self._change.set()
            self._change = asyncio.Event()

    async def _wait(self, deadline: float) -> bool:
        """Waits for a change; False at the deadline (a time of the loop)."""
        assert self._change is not None
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            return False
        try:
            await asyncio.wait_for(self._change.wait(), left)
        except TimeoutError:
            return False
        return True

    def _serving(self) -> list[Replica]:
        return [replica for replica in self._replicas.values() if replica.serving]

    def _describe(self) -> str:
        if not self._replicas:
            return "the registry knows none"
        serving = len(self._serving())
        others = [f"{one.instance.address}: {one.status}" for one in self._replicas.values() if not one.serving]
        return "; ".join([f"{serving} of {len(self._replicas)} serve", *others])


class _Tries:
    """The tries of one call: its deadline, and where it failed."""

    def __init__(self, pool: Pool, method: str, timeout_s: float | None) -> None:
        pool._start()
        self._pool = pool
        self._method = method
        self._timeout_s = pool.config.timeout_s if timeout_s is None else timeout_s
        self._deadline = asyncio.get_running_loop().time() + self._timeout_s
        self._tried: set[Replica] = set()
        self._pause_s = _SHORTEST_PAUSE_S
        self._last: RlctlError | None = None

    def remaining(self) -> float:
        """Seconds to the deadline, above 0."""
        return max(self._deadline - asyncio.get_running_loop().time(), 0.001)

    async def pick(self) -> Replica:
        """The replica with the fewest calls in flight that was not tried since the last pause."""
        while True:
            self._pool._check_open()
            serving = self._pool._serving()
            fresh = [replica for replica in serving if replica not in self._tried]
            if fresh:
                return min(fresh, key=lambda one: (one.in_flight, one.calls))
            if serving:
                pause = self._pause_s * random.uniform(0.5, 1.5)
                self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
                if pause >= self.remaining():
                    raise self._too_late()
                await asyncio.sleep(pause)
                self._tried.clear()
            elif not await self._pool._wait(self._deadline):
                raise self._too_late()

    def failed(self, replica: Replica, error: RlctlError, retry: bool) -> None:
        """Notes a failure, or raises it when the call must not be sent again."""
        if error.reason not in REFUSED and not (retry and isinstance(error, UnavailableError)):
            raise error
        self._tried.add(replica)
        self._last = error

    def _too_late(self) -> DeadlineError:
        service = self._pool.service
        last = f"; the last try: {self._last.message}" if self._last is not None else ""
        error = DeadlineError(
            f"{self._method}: no replica of {service} took the call within {self._timeout_s:g} s "
            f"({self._pool._describe()}){last}",
            service=service,
        )
        error.__cause__ = self._last
        return error
