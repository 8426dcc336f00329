"""A rollout worker as a process: its connections, its health, its end."""

from __future__ import annotations

import asyncio
import logging
import os
import socket

import grpc.aio

from rlctl.bus.bus import Bus
from rlctl.bus.consumer import Consumer
from rlctl.bus.registry import Registry
from rlctl.core.errors import NotFoundError, UnavailableError
from rlctl.rollout.config import RolloutConfig
from rlctl.rollout.worker import Worker
from rlctl.rpc.config import ServerConfig
from rlctl.rpc.health import Health
from rlctl.rpc.pool import Pool
from rlctl.v1.rollout_pb2 import PromptTask

log = logging.getLogger("rlctl.rollout")

_RETRY_S = 1.0
_SAY_EVERY = 10


class HostedWorker:
    """The worker behind a server of its own, which has no calls but health."""

    def __init__(self, config: RolloutConfig) -> None:
        self._config = config
        self._bus: Bus | None = None
        self._pools: dict[str, Pool] = {}
        self._work: asyncio.Task[None] | None = None

    def register(self, server: grpc.aio.Server) -> list[str]:
        return []

    async def load(self, health: Health) -> None:
        """Connects and begins to take prompts. Raises UnavailableError, AuthenticationError, ConfigError."""
        bus = self._bus = await Bus.connect(self._config.bus, "rollout")
        registry = Registry(bus)
        channels = {
            "generation": self._config.generation,
            "reward": self._config.reward,
            "reference": self._config.reference,
        }
        self._pools = {service: Pool(service, channel, registry) for service, channel in channels.items()}
        consumer = await self._consumer(bus)
        worker = Worker(self._config, bus, self._pools, f"{socket.gethostname()}:{os.getpid()}")
        self._work = asyncio.create_task(worker.run(consumer))

    async def _consumer(self, bus: Bus) -> Consumer[PromptTask]:
        """The trainer creates the streams, and may start after us."""
        tries = 0
        while True:
            try:
                return await bus.prompt_consumer()
            except NotFoundError as error:
                if tries % _SAY_EVERY == 0:
                    log.info("waiting for the run's trainer: %s", error.message)
                tries += 1
                await asyncio.sleep(_RETRY_S)

    async def watch(self) -> None:
        """Raises what ends the worker: an error that waiting does not mend, or a bus that is closed for good."""
        assert self._bus is not None
        assert self._work is not None
        lost = asyncio.create_task(self._bus.closed.wait())
        try:
            await asyncio.wait({lost, self._work}, return_when=asyncio.FIRST_COMPLETED)
            if self._work.done():
                self._work.result()
            raise UnavailableError("the connection to NATS is closed for good; start the worker again")
        finally:
            lost.cancel()

    async def close(self) -> None:
        """Gives the prompts in work back."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
        for pool in self._pools.values():
            await pool.close()
        if self._bus is not None:
            await self._bus.close()


def server_config(config: RolloutConfig) -> ServerConfig:
    """Where the worker listens and is announced."""
    return config.server.model_copy(update={"registry": config.server.registry or config.bus})
