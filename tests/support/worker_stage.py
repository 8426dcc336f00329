"""A stage for the rollout worker: a trainer's bus, real gRPC servers, and as many workers as a test starts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from rlctl.bus.bus import Bus
from rlctl.bus.consumer import Consumer
from rlctl.rollout.config import RolloutConfig
from rlctl.rollout.process import HostedWorker
from rlctl.rpc.config import ServerConfig
from rlctl.rpc.gate import Gate
from rlctl.rpc.health import Health
from rlctl.rpc.service import RunningService, start
from rlctl.v1.rollout_pb2 import PromptTask, RolloutGroup
from support.rollout_services import Generation, Reference, Reward


class Stage:
    """A trainer's bus, three services and as many workers as a test starts."""

    def __init__(self, bus: Bus, stack: AsyncExitStack) -> None:
        self.bus = bus
        self.generation, self.reward, self.reference = Generation(), Reward(), Reference()
        self.running: dict[str, RunningService] = {}
        self._stack = stack
        self._rollouts: Consumer[RolloutGroup] | None = None

    async def serve(self, name: str, address: str = "127.0.0.1:0") -> None:
        config = ServerConfig(listen=address, metrics_listen=None, drain_s=0.0)
        self.running[name] = await start(name, config, getattr(self, name))
        self._stack.push_async_callback(self.running[name].stop)

    async def work(self, **settings: Any) -> HostedWorker:
        channel = {name: {"addresses": [one.address]} for name, one in self.running.items()}
        config = RolloutConfig.model_validate({"bus": self.bus.config, **channel, **settings})
        worker = HostedWorker(config)
        self._stack.push_async_callback(worker.close)
        await worker.load(Health(Gate("rollout", 1)))
        return worker

    async def ask(self, *tasks: PromptTask) -> None:
        for one in tasks:
            assert await self.bus.publish_prompt(one)

    async def groups(self, count: int, timeout_s: float = 15.0) -> list[RolloutGroup]:
        """The next groups, by prompt."""
        if self._rollouts is None:
            self._rollouts = await self.bus.rollout_consumer(1, 256)
        found: list[RolloutGroup] = []
        async with asyncio.timeout(timeout_s):
            while len(found) < count:
                for delivery in await self._rollouts.fetch(count - len(found), 1.0):
                    found.append(delivery.message)
                    await delivery.ack_sync()
        return sorted(found, key=lambda group: group.task.id.prompt)


async def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


def failing(times: int, error: Exception) -> Callable[[Any], Awaitable[None]]:
    """Raises `error` on the first calls."""
    left = iter([error] * times)

    async def before(request: Any) -> None:
        for one in left:
            raise one

    return before
