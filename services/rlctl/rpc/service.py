"""How every service runs: bind, load, serve, drain.

start: bind ─► NOT_SERVING, announced ─► load() ─► SERVING ─► SIGTERM ─► NOT_SERVING, withdrawn ─► drain ─► close()
"""

from __future__ import annotations

from typing import Protocol

import grpc.aio

from rlctl.rpc.config import ServerConfig


class Health:
    """Whether a service serves: its gRPC health and what the registry says of it."""

    serving: bool

    async def set_serving(self, serving: bool, **extra: str) -> None:
        """Sets the health of the server and of every service on it; `extra` goes to the registry."""
        raise NotImplementedError


class Hosted(Protocol):
    """What a service gives to be run."""

    def register(self, server: grpc.aio.Server) -> list[str]:
        """Adds its servicers; returns their full names, for health and reflection."""
        ...

    async def load(self, health: Health) -> None:
        """The slow part. When it returns the service is SERVING, unless it called `set_serving` itself."""
        ...

    async def close(self) -> None:
        """Frees what `load` took."""
        ...


class RunningService:
    """A service that was started in this process."""

    address: str
    metrics_address: str
    health: Health

    async def stop(self) -> None:
        """Drains the calls in flight and closes."""
        raise NotImplementedError


async def start(name: str, config: ServerConfig, hosted: Hosted) -> RunningService:
    """Binds, loads and serves; returns when it is loaded."""
    raise NotImplementedError


def run(name: str, config: ServerConfig, hosted: Hosted) -> int:
    """Serves until SIGTERM or SIGINT, drains, and returns the process's exit code."""
    raise NotImplementedError
