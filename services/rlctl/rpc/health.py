"""Whether a service serves: its gRPC health, and what the registry says of it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio as health_aio

from rlctl.core.errors import RlctlError
from rlctl.rpc.gate import Gate

if TYPE_CHECKING:
    from rlctl.bus.registry import Announcement

_log = logging.getLogger("rlctl.rpc")

#: Seconds that telling the registry may hold up a change of health.
_TELL_S = 3.0


class _Servicer(health_aio.HealthServicer):  # type: ignore[misc]  # grpc_health has no types
    """The standard servicer; it also knows whether somebody watches."""

    def __init__(self) -> None:
        super().__init__()
        self._watchers = 0
        self.unwatched = asyncio.Event()
        self.unwatched.set()

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> None:
        """Tells the health now and whenever it changes."""
        self._watchers += 1
        self.unwatched.clear()
        try:
            await super().Watch(request, context)
        finally:
            self._watchers -= 1
            if self._watchers == 0:
                self.unwatched.set()


class Health:
    """Told by the service, read by clients, probes and the registry; NOT_SERVING at first."""

    def __init__(self, gate: Gate) -> None:
        self.servicer = _Servicer()
        self.extra: dict[str, str] = {}
        """What the registry tells of the service beside its address."""
        self.decided = False
        """Whether `set_serving` was ever called."""
        self._gate = gate
        self._serving = False
        self._ended = False
        self._services = [""]
        self._announcement: Announcement | None = None

    @property
    def serving(self) -> bool:
        """Whether the service says that it serves."""
        return self._serving

    async def cover(self, services: list[str]) -> None:
        """Names the services that the health is for; they start as NOT_SERVING."""
        self._services = ["", *services]
        await self._publish()

    def announce_to(self, announcement: Announcement | None) -> None:
        """Where changes are told, besides gRPC."""
        self._announcement = announcement

    async def set_serving(self, serving: bool, **extra: str) -> None:
        """Sets the health of the server and of every service on it; `extra` goes to the registry.

        The first time also lets calls in: a service that is loaded but not SERVING can still be given weights.
        """
        if self._ended:
            return
        self.decided = True
        self._gate.open()
        self._serving = serving
        self.extra.update(extra)
        await self._publish()

    async def end(self) -> None:
        """NOT_SERVING, for good."""
        self._ended = True
        self._serving = False
        await self._publish()

    async def _publish(self) -> None:
        known = health_pb2.HealthCheckResponse
        status = known.SERVING if self._serving else known.NOT_SERVING
        for service in self._services:
            await self.servicer.set(service, status)
        if self._announcement is None:
            return
        try:
            async with asyncio.timeout(_TELL_S):
                await self._announcement.update(serving=self._serving, extra=dict(self.extra))
        except (RlctlError, TimeoutError) as error:
            _log.warning("the registry hears of a change with the next heartbeat only: %s", error or "no answer")
