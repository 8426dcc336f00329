"""Which instances of which services are alive: a KV bucket whose entries age away unless they are renewed.

A watcher listens to the heartbeats themselves, which every subscriber of a KV subject sees. While NATS is away
nothing is taken for dead: calls between services do not need it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from nats.aio.msg import Msg

from rlctl.bus.bus import Bus
from rlctl.bus.faults import ApiError, InterruptedCallError, NotServedError, refused
from rlctl.bus.ids import bucket_name, encode_name
from rlctl.bus.streams import put_stream
from rlctl.core.errors import RlctlError

log = logging.getLogger("rlctl.bus")


@dataclass(frozen=True)
class Instance:
    """A process that serves, or is about to."""

    service: str
    instance_id: str
    #: `host:port` of its gRPC server.
    address: str
    pid: int
    serving: bool
    #: `host:port` of its Prometheus page; empty without one.
    metrics: str = ""
    extra: dict[str, str] = field(default_factory=dict)


#: `Registry.list` hides the built-in name inside its class.
Instances = list[Instance]


class Announcement:
    """An instance that is kept alive in the registry until it is withdrawn, or its process dies."""

    def __init__(self, registry: Registry, instance: Instance) -> None:
        self._registry = registry
        self.instance = instance
        self._task: asyncio.Task[None] | None = None
        self._beat_now = asyncio.Event()
        self._ignore: Callable[[], None] | None = None

    async def start(self) -> None:
        await self._registry._put(self.instance)
        self._ignore = self._registry._connection.on_change(self._beat_now.set)
        self._task = asyncio.create_task(self._beat())

    async def update(self, *, serving: bool | None = None, extra: dict[str, str] | None = None) -> None:
        """Changes what is announced, at once; `extra` is merged. While NATS is away the next heartbeat tells it."""
        self.instance = replace(
            self.instance,
            serving=self.instance.serving if serving is None else serving,
            extra={**self.instance.extra, **(extra or {})},
        )
        if self._registry._connection.connected:
            await self._registry._put(self.instance)

    async def withdraw(self) -> None:
        """Takes the instance out, at once."""
        if self._ignore is not None:
            self._ignore()
            self._ignore = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
            if self._registry._connection.connected:
                await self._registry._delete(self.instance)

    async def _beat(self) -> None:
        complained = False
        while not self._registry._connection.closed.is_set():
            try:
                async with asyncio.timeout(self._registry.ttl_s / 3):
                    await self._beat_now.wait()
            except TimeoutError:
                pass
            self._beat_now.clear()
            if not self._registry._connection.connected:
                continue
            try:
                await self._registry._put_once(self.instance)
                complained = False
            except (InterruptedCallError, NotServedError, ApiError, RlctlError) as error:
                if not complained:
                    log.warning("heartbeat of %s was not heard: %s", self.instance.instance_id, error)
                complained = True


class Registry:
    """The registry of the bus's run."""

    def __init__(self, bus: Bus) -> None:
        self._connection = bus.connection
        self.ttl_s = bus.config.registry_ttl_s
        self._replicas = bus.config.replicas
        bucket = bucket_name(bus.config.run, "registry")
        self._stream = f"KV_{bucket}"
        self._prefix = f"$KV.{bucket}"
        self._created = False

    async def announce(self, instance: Instance) -> Announcement:
        """Enters an instance and keeps it there. Raises UnavailableError when NATS cannot be reached."""
        announcement = Announcement(self, instance)
        await announcement.start()
        return announcement

    async def list(self, service: str) -> Instances:
        """The live instances, by id."""
        await self._create()
        pattern = f"{self._prefix}.{encode_name(service)}.*"
        try:
            info = await self._connection.api(f"STREAM.INFO.{self._stream}", {"subjects_filter": pattern})
        except ApiError as error:
            raise refused(error, "list the registry") from error
        subjects = sorted(info["state"].get("subjects") or {})
        found = await asyncio.gather(*(self._get(subject) for subject in subjects))
        return [instance for instance in found if instance is not None]

    async def watch(self, service: str) -> AsyncIterator[Instances]:
        """The live instances now, and again whenever they change. End it with `aclose`, or cancel its task."""
        watcher = _Watcher(self.ttl_s)
        ignore = self._connection.on_change(watcher.on_connection)
        unsubscribe = await self._connection.subscribe(f"{self._prefix}.{encode_name(service)}.*", watcher.on_message)
        try:
            for instance in await self.list(service):
                watcher.seen(instance)
            last: Instances | None = None
            while not self._connection.closed.is_set():
                current = watcher.alive(self._connection.connected)
                if current != last:
                    last = current
                    yield current
                await watcher.changed(self.ttl_s / 8)
        finally:
            ignore()
            await unsubscribe()

    async def _create(self) -> None:
        if self._created:
            return
        config = {
            "name": self._stream,
            "subjects": [f"{self._prefix}.>"],
            "storage": "file",
            "discard": "new",
            "max_msgs_per_subject": 1,
            "max_age": int(self.ttl_s * 1e9),
            "duplicate_window": int(min(self.ttl_s, 120) * 1e9),
            "allow_rollup_hdrs": True,
            "num_replicas": self._replicas,
        }
        await put_stream(self._connection, config)
        self._created = True

    def _subject(self, instance: Instance) -> str:
        return f"{self._prefix}.{encode_name(instance.service)}.{encode_name(instance.instance_id)}"

    async def _put(self, instance: Instance) -> None:
        async def attempt() -> None:
            await self._put_once(instance)

        await self._create()
        await self._connection.persist(f"register {instance.instance_id}", attempt)

    async def _put_once(self, instance: Instance) -> None:
        reply = await self._connection.request(self._subject(instance), json.dumps(asdict(instance)).encode())
        ack: dict[str, Any] = json.loads(reply.data)
        if "error" in ack:
            raise refused(ApiError(ack["error"]), f"register {instance.instance_id}")

    async def _delete(self, instance: Instance) -> None:
        try:
            await self._connection.request(self._subject(instance), headers={"KV-Operation": "DEL"})
        except (InterruptedCallError, NotServedError) as error:
            log.debug("%s was not withdrawn and ages away: %s", instance.instance_id, error)

    async def _get(self, subject: str) -> Instance | None:
        try:
            reply = await self._connection.api(f"STREAM.MSG.GET.{self._stream}", {"last_by_subj": subject})
        except ApiError as error:
            if error.code == 404:
                return None
            raise refused(error, "read the registry") from error
        return _parse(base64.b64decode(reply["message"].get("data", "")))


class _Watcher:
    """The instances of one service as their heartbeats tell."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._instances: dict[str, tuple[Instance, float]] = {}
        self._event = asyncio.Event()

    async def on_message(self, message: Msg) -> None:
        instance = _parse(message.data)
        if instance is not None:
            self.seen(instance)
        else:
            self._instances.pop(message.subject.rsplit(".", 1)[-1], None)
        self._event.set()

    def seen(self, instance: Instance) -> None:
        self._instances[encode_name(instance.instance_id)] = (instance, time.monotonic())

    def on_connection(self) -> None:
        """Everybody gets time to be heard again after NATS was away."""
        now = time.monotonic()
        self._instances = {key: (instance, now) for key, (instance, _) in self._instances.items()}
        self._event.set()

    def alive(self, connected: bool) -> list[Instance]:
        if connected:
            oldest = time.monotonic() - self._ttl_s
            self._instances = {key: entry for key, entry in self._instances.items() if entry[1] >= oldest}
        return [self._instances[key][0] for key in sorted(self._instances)]

    async def changed(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            pass
        self._event.clear()


def _parse(data: bytes) -> Instance | None:
    """None for a deleted entry, or one that is no instance."""
    if not data:
        return None
    try:
        return Instance(**json.loads(data))
    except (ValueError, TypeError) as error:
        log.warning("an entry of the registry is unreadable: %s", error)
        return None
