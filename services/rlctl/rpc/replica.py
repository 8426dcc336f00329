"""One replica of a service as its callers see it: where it is, whether it serves, how much it has to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING

from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from rlctl.core.errors import DeadlineError, RlctlError
from rlctl.rpc.channel import Channel
from rlctl.rpc.config import ChannelConfig

if TYPE_CHECKING:
    from rlctl.bus.registry import Instance

#: A health stream is opened anew so often, seconds; one that then says nothing is of a server that hangs.
_WATCH_S = 10.0
_SHORTEST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


class Replica:
    """Follows the health of one address from `start()` to `close()`."""

    def __init__(self, instance: Instance, config: ChannelConfig, changed: Callable[[], None]) -> None:
        """`changed` is called when `serving` or `status` has changed, and when an unlisted one ends a call."""
        self.instance = instance
        self.channel = Channel(instance.service, instance.address, config)
        self.serving = False
        self.status = "not asked yet"
        """Its health, or why that is not known, in words."""
        self.in_flight = 0
        self.calls = 0
        self.listed = True
        """Whether the registry (or the settings) name it."""
        self._changed = changed
        self._task = asyncio.create_task(self._watch())

    @contextmanager
    def busy(self) -> Iterator[Channel]:
        """Around a call."""
        self.in_flight += 1
        self.calls += 1
        try:
            yield self.channel
        finally:
            self.in_flight -= 1
            if not self.listed:
                self._changed()

    async def close(self) -> None:
        """Stops watching and closes the connection, cancelling the calls on it."""
        self._task.cancel()
        await asyncio.wait({self._task})
        await self.channel.close()

    async def _watch(self) -> None:
        pause = _SHORTEST_PAUSE_S
        request = health_pb2.HealthCheckRequest()
        while True:
            answered = False
            try:
                async with aclosing(self.channel.stream(HealthStub, "Watch", request, timeout_s=_WATCH_S)) as answers:
                    async for answer in answers:
                        answered, pause = True, _SHORTEST_PAUSE_S
                        name = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
                        self._set(answer.status == health_pb2.HealthCheckResponse.SERVING, name)
            except DeadlineError as error:
                if answered:
                    continue
                self._set(False, error.message)
            except RlctlError as error:
                self._set(False, error.message)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _set(self, serving: bool, status: str) -> None:
        if (serving, status) != (self.serving, self.status):
            self.serving, self.status = serving, status
            self._changed()
