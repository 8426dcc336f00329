"""On rank 0: everything outside the learner that a run talks to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from rlctl.bus.bus import Bus
from rlctl.bus.fence import Fence
from rlctl.bus.registry import Registry
from rlctl.clients.critic import CriticClient
from rlctl.clients.generation import GenerationClient
from rlctl.clients.reward import RewardClient
from rlctl.core.errors import DeadlineError, UnavailableError
from rlctl.data.prompts import PromptDataset
from rlctl.rpc.pool import Pool
from rlctl.rpc.portal import Portal
from rlctl.rpc.service import RunningService, start
from rlctl.trainer.config import TrainerConfig
from rlctl.trainer.critic import CriticLink
from rlctl.trainer.journal import Journal
from rlctl.trainer.progress import Progress
from rlctl.trainer.rollouts import RolloutStage
from rlctl.trainer.servicer import HostedTrainer, TrainerServicer
from rlctl.trainer.sync import PolicySync, loaded_replicas

T = TypeVar("T")


class Services:
    """Connections of the coordinator; made on the portal's loop, used from the main thread through it."""

    stage: RolloutStage
    sync: PolicySync

    def __init__(self, config: TrainerConfig, portal: Portal, held_out: PromptDataset | None, last_fence: int) -> None:
        """`last_fence` is the epoch of the trainer before this one, as the run's storage knows it."""
        self.portal = portal
        self.held_out = held_out
        self._config = config
        self.bus = portal.call(Bus.connect, config.bus, "trainer")
        portal.call(self.bus.create_streams)
        self.fence = portal.call(Fence(self.bus).acquire, above=last_fence)
        self.registry = Registry(self.bus)
        self._pools: dict[str, Pool] = {}
        self.generation = GenerationClient(portal.call(self._pool, "generation"))
        self.reward = RewardClient(portal.call(self._pool, "reward"))
        self.critic: CriticLink | None = None
        if config.needs_critic:
            self.critic = CriticLink(portal, CriticClient(portal.call(self._pool, "critic")), self.fence)
        self._running: RunningService | None = None

    async def _pool(self, service: str) -> Pool:
        channel = {"generation": self._config.generation, "reward": self._config.reward, "critic": self._config.critic}
        self._pools[service] = Pool(service, channel[service], self.registry)
        return self._pools[service]

    def open_stage(self, journal: Journal, progress: Progress, prompts: PromptDataset) -> None:
        """Takes the run's rollouts over from any trainer before this one."""
        consumer = self.portal.call(self.bus.rollout_consumer, self.fence, 2 * self._config.sampling.prompts_per_step)
        self.stage = RolloutStage(self._config, self.bus, consumer, journal, progress, prompts)

    def serve(self, servicer: TrainerServicer) -> None:
        """Starts the trainer's own service."""
        self._running = self.portal.call(start, "trainer", self._config.server, HostedTrainer(servicer))

    def wait_for_critic(self) -> None:
        """Returns when the critic serves. Raises DeadlineError."""
        if self.critic is not None:
            self.portal.call(self._pools["critic"].ready)

    def waits(self) -> list[tuple[str, Future[None]]]:
        """Whom the first step needs, and futures that are done when they are there."""
        return [
            (
                f"{self._config.generation_replicas} loaded replica(s) of the generation service",
                self.portal.spawn(self._generation_loaded),
            ),
            ("the reward service", self.portal.spawn(self._pools["reward"].ready)),
        ]

    async def _generation_loaded(self) -> None:
        """Replicas take weights once they are loaded; they serve after the first sync."""
        wanted = self._config.generation_replicas
        try:
            async with asyncio.timeout(self._config.generation.ready_timeout_s):
                while len(await loaded_replicas(self.registry)) < wanted:
                    await asyncio.sleep(0.2)
        except TimeoutError:
            there = len(await loaded_replicas(self.registry))
            raise DeadlineError(
                f"waited {self._config.generation.ready_timeout_s:g} s for {wanted} generation replica(s); {there} "
                "came. See their logs, or raise generation.ready_timeout_s."
            ) from None

    def call(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Runs a coroutine function on the loop. Raises UnavailableError once the bus is closed for good."""
        if self.bus.closed.is_set():
            raise UnavailableError(f"the connection to NATS at {self._config.bus.url} is closed for good")
        return self.portal.call(function, *args)

    def close(self) -> None:
        self.portal.call(self._close, timeout_s=30.0)

    async def _close(self) -> None:
        if self._running is not None:
            await self._running.stop()
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))
        await self.bus.close()


class ReplayServices:
    """What a replay talks to: the critic alone, at its plain address, fresh for the purpose."""

    fence = 1

    def __init__(self, config: TrainerConfig, portal: Portal) -> None:
        self._portal = portal
        self._pool: Pool | None = None
        self.critic: CriticLink | None = None
        if config.needs_critic:
            self._pool = portal.call(self._open, config)
            self.critic = CriticLink(portal, CriticClient(self._pool), self.fence)

    async def _open(self, config: TrainerConfig) -> Pool:
        pool = Pool("critic", config.critic)
        await pool.ready()
        return pool

    def close(self) -> None:
        if self._pool is not None:
            self._portal.call(self._pool.close)
