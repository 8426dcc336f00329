"""How every service runs: bind, load, serve, drain.

bind ─► NOT_SERVING, announced ─► load() ─► SERVING ─► SIGTERM ─► NOT_SERVING, withdrawn ─► drain ─► close()
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import uuid
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import grpc.aio
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from rlctl.core import log
from rlctl.core.errors import RlctlError, UnavailableError
from rlctl.core.shutdown import Shutdown
from rlctl.rpc import auth
from rlctl.rpc.config import ServerConfig
from rlctl.rpc.gate import Gate
from rlctl.rpc.health import Health
from rlctl.rpc.interceptors import HEALTH
from rlctl.rpc.metrics import MetricsPage, serve_metrics
from rlctl.rpc.server import bind, build_server

if TYPE_CHECKING:
    from rlctl.bus.bus import Bus
    from rlctl.bus.registry import Announcement

__all__ = ["Health", "Hosted", "RunningService", "Watched", "run", "start"]

_log = logging.getLogger("rlctl.rpc")

#: Seconds that the registry gets to be told that a service ends; its entry expires anyway.
_WITHDRAW_S = 3.0
#: Seconds that cancelled calls get to end before what they use is closed.
_CANCEL_S = 5.0


class Hosted(Protocol):
    """What a service gives to be run."""

    def register(self, server: grpc.aio.Server) -> list[str]:
        """Adds its servicers; returns their full names, for health and reflection."""
        ...

    async def load(self, health: Health) -> None:
        """The slow part. When it returns the service is SERVING, unless it called `set_serving` itself."""
        ...

    async def close(self) -> None:
        """Frees what `load` took; called once, also after a `load` that failed or was cut short."""
        ...


@runtime_checkable
class Watched(Protocol):
    """A hosted service that can fail while it serves."""

    async def watch(self) -> None:
        """Runs while it serves; what it raises ends the process, with the message in the log and code 1."""
        ...


class RunningService:
    """A service in this process: `bind`, then `load`, and `stop` in any case."""

    def __init__(self, name: str, config: ServerConfig, hosted: Hosted) -> None:
        self.name = name
        self.address = ""
        """`host:port` of the gRPC server, once bound."""
        self.metrics_address = ""
        """`host:port` of the metrics page, once bound; empty for none."""
        self._config = config
        self._hosted = hosted
        self._gate = Gate(name, config.max_concurrency)
        self.health = Health(self._gate)
        self._server: grpc.aio.Server | None = None
        self._page: MetricsPage | None = None
        self._bus: Bus | None = None
        self._announcement: Announcement | None = None
        self._stopped = False

    async def bind(self) -> None:
        """Listens, NOT_SERVING, and announces itself. Raises ConfigError, UnavailableError."""
        server = build_server(self._config, self._gate)
        services = self._hosted.register(server)
        health_pb2_grpc.add_HealthServicer_to_server(self.health.servicer, server)
        reflection.enable_server_reflection([*services, HEALTH, reflection.SERVICE_NAME], server)
        await self.health.cover(services)
        self.address = bind(server, self._config)
        if self._config.metrics_listen is not None:
            token = auth.read_token(self._config.token_file)
            self._page = serve_metrics(self._config.metrics_listen, self._config.tls, token)
            self.metrics_address = self._page.address
        self._server = server
        await server.start()
        _log.info("%s listens on %s (metrics on %s)", self.name, self.address, self.metrics_address or "none")
        if self._config.registry is not None:
            await self._announce()

    async def load(self) -> None:
        """Loads the service and lets calls in."""
        await self._hosted.load(self.health)
        if not self.health.decided:
            await self.health.set_serving(True)
        _log.info("%s is loaded%s", self.name, "" if self.health.serving else ", not serving yet")

    async def lost(self) -> None:
        """Returns when the connection to the registry is lost for good, raises what a watched service raises."""
        tasks = [asyncio.create_task(_never() if self._bus is None else _closed(self._bus))]
        if isinstance(self._hosted, Watched):
            tasks.append(asyncio.create_task(self._hosted.watch()))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()

    async def stop(self) -> None:
        """Refuses new calls, gives those in flight `drain_s` seconds, then closes everything."""
        if self._stopped:
            return
        self._stopped = True
        self._gate.drain()
        self.health.announce_to(None)
        await self.health.end()
        await self._withdraw()
        try:
            async with asyncio.timeout(self._config.drain_s):
                await self._gate.wait_idle()
        except TimeoutError:
            _log.warning("%d calls were cut off after %g s", self._gate.in_flight, self._config.drain_s)
        if self._server is not None:
            await self._server.stop(None)
            await self._cancelled()
        await self._hosted.close()
        if self._page is not None:
            self._page.close()
        if self._bus is not None:
            await self._bus.close()

    async def _announce(self) -> None:
        from rlctl.bus.bus import Bus
        from rlctl.bus.registry import Instance, Registry

        assert self._config.registry is not None
        self._bus = await Bus.connect(self._config.registry, self.name)
        instance = Instance(
            service=self.name,
            instance_id=f"{self.name}-{uuid.uuid4().hex[:12]}",
            address=self.address,
            pid=os.getpid(),
            serving=False,
            metrics=self.metrics_address,
            extra=dict(self.health.extra),
        )
        self._announcement = await Registry(self._bus).announce(instance)
        self.health.announce_to(self._announcement)

    async def _cancelled(self) -> None:
        """Waits until the calls that the server's end cancelled have cleaned up after themselves."""
        try:
            async with asyncio.timeout(_CANCEL_S):
                await self.health.servicer.unwatched.wait()
                await self._gate.wait_idle()
        except TimeoutError:
            _log.warning("%d calls do not end though they were cancelled", self._gate.in_flight)

    async def _withdraw(self) -> None:
        if self._announcement is None:
            return
        try:
            await asyncio.wait_for(self._announcement.withdraw(), _WITHDRAW_S)
        except (RlctlError, TimeoutError) as error:
            _log.warning("%s could not be withdrawn from the registry: %s", self.name, error or "no answer")


async def start(name: str, config: ServerConfig, hosted: Hosted) -> RunningService:
    """Binds, loads and serves; returns when it is loaded, and leaves nothing behind when that fails."""
    service = RunningService(name, config, hosted)
    try:
        await service.bind()
        await service.load()
    except BaseException:
        await service.stop()
        raise
    return service


def run(name: str, config: ServerConfig, hosted: Hosted) -> int:
    """Serves until SIGTERM or SIGINT, drains, and returns the process's exit code.

    0 after a signal; the error's own, with its message in the log, when it cannot bind or load, or loses the registry
    for good.
    """
    log.setup(name)
    shutdown = Shutdown().install()
    return asyncio.run(_serve(RunningService(name, config, hosted), shutdown.requested))


async def _serve(service: RunningService, requested: threading.Event) -> int:
    asked = asyncio.create_task(_wait(requested))
    work = asyncio.create_task(_bind_and_load(service))
    code = 0
    try:
        await asyncio.wait({asked, work}, return_when=asyncio.FIRST_COMPLETED)
        cut_short = not work.done()
        if not cut_short:
            await work
            lost = asyncio.create_task(service.lost())
            await asyncio.wait({asked, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                lost.result()
                raise UnavailableError("the connection to NATS is lost for good; start the service again")
            lost.cancel()
        _log.info("%s was asked to end", service.name)
    except RlctlError as error:
        _log.error("%s", error.message)
        code = error.exit_code
    except Exception:
        _log.exception("%s failed", service.name)
        code = 1
    asked.cancel()
    work.cancel()
    await asyncio.wait({asked, work})
    await service.stop()
    if cut_short:
        # A load that runs in a thread cannot be cancelled, and the interpreter would wait for it.
        logging.shutdown()
        os._exit(code)
    return code


async def _bind_and_load(service: RunningService) -> None:
    await service.bind()
    await service.load()


async def _never() -> None:
    await asyncio.Event().wait()


async def _closed(bus: Bus) -> None:
    await bus.closed.wait()


async def _wait(event: threading.Event) -> None:
    """A signal handler sets the event between two steps of the loop, so the loop looks."""
    while not event.is_set():
        await asyncio.sleep(0.1)
