"""`python -m rlctl.rollout` as it is run: found through the registry, killed, and asked to end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
import urllib.request
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from rlctl.bus.bus import Bus
from rlctl.bus.registry import Registry
from rlctl.bus.server import NatsServer
from rlctl.rpc.channel import Channel
from rlctl.rpc.config import ChannelConfig, ServerConfig
from rlctl.rpc.service import start
from rlctl.v1.rollout_pb2 import RolloutGroup
from support.groups import RUN, Connect, group_id, task
from support.rollout_services import Generation, Reference, Reward

pytestmark = pytest.mark.anyio


class Site:
    """Services in the registry, and workers as processes."""

    def __init__(self, bus: Bus, folder: Path) -> None:
        self.bus = bus
        self.generation, self.reward = Generation(), Reward()
        self.workers: list[Process] = []
        self._config = folder / "rollout.json"
        self._config.write_text(json.dumps({"bus": bus.config.model_dump(mode="json")}))

    async def worker(self) -> Process:
        command = [sys.executable, "-m", "rlctl.rollout", "--config", str(self._config), "score_wait_ms=2"]
        self.workers.append(await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE))
        return self.workers[-1]

    async def groups(self, count: int) -> list[RolloutGroup]:
        found: list[RolloutGroup] = []
        consumer = await self.bus.rollout_consumer(1, 64)
        async with asyncio.timeout(30.0):
            while len(found) < count:
                for delivery in await consumer.fetch(count - len(found), 1.0):
                    found.append(delivery.message)
                    await delivery.ack_sync()
        await consumer.close()
        return found


@pytest.fixture
async def site(connect: Connect, tmp_path: Path) -> AsyncIterator[Site]:
    bus = await connect(ack_wait_s=2.0, registry_ttl_s=3.0)
    site = Site(bus, tmp_path)
    config = ServerConfig(registry=bus.config, metrics_listen=None, drain_s=0.0)
    async with AsyncExitStack() as stack:
        for name, hosted in (("generation", site.generation), ("reward", site.reward), ("reference", Reference())):
            stack.push_async_callback((await start(name, config, hosted)).stop)
        yield site
        for worker in site.workers:
            if worker.returncode is None:
                worker.kill()
            await worker.communicate()


async def until(condition: Any, timeout_s: float = 20.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.02)


async def test_a_worker_works_is_registered_and_ends_in_order(site: Site) -> None:
    worker = await site.worker()
    await site.bus.publish_prompt(task(1, needs_reference=True))
    [group] = await site.groups(1)
    assert group.samples[0].reward == 1.0
    registry = Registry(site.bus)
    [instance] = await registry.list("rollout")
    assert instance.pid == worker.pid
    assert instance.serving
    page = await asyncio.to_thread(urllib.request.urlopen, f"http://{instance.metrics}/metrics")
    text = page.read().decode()
    assert 'rlctl_rollout_groups_total{result="stored"} 1.0' in text
    assert "rlctl_rollout_samples_total 2.0" in text
    assert "rlctl_rollout_tokens_total 4.0" in text
    assert "rlctl_rollout_reward_errors_total 1.0" in text
    channel = Channel("rollout", instance.address, ChannelConfig())
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    health = await channel.call(health_pb2_grpc.HealthStub, "Check", health_pb2.HealthCheckRequest())
    assert health.status == health_pb2.HealthCheckResponse.SERVING
    await channel.close()

    async def forever(request: Any) -> None:
        await asyncio.sleep(60)

    site.generation.before = forever
    await site.bus.publish_prompt(task(2))
    await until(lambda: len(site.generation.calls) == 2)
    begin = time.monotonic()
    worker.send_signal(signal.SIGTERM)
    async with asyncio.timeout(10.0):
        assert await worker.wait() == 0
    assert time.monotonic() - begin < 5.0
    assert await registry.list("rollout") == []
    [delivery] = await (await site.bus.prompt_consumer()).fetch(1, 1.0)
    assert delivery.message.id == group_id(2), "given back at once, not after ack_wait"


async def test_a_killed_workers_prompts_are_answered_by_another_once(site: Site) -> None:
    async def slow(request: Any) -> None:
        await asyncio.sleep(0.5)

    site.generation.before = slow
    first = await site.worker()
    for prompt in range(6):
        await site.bus.publish_prompt(task(prompt))
    await until(lambda: len(site.generation.calls) == 6)
    first.kill()
    await first.wait()
    await site.worker()
    groups = await site.groups(6)
    assert sorted(group.task.id.prompt for group in groups) == list(range(6))
    assert not any([await site.bus.prompt_exists(group_id(prompt)) for prompt in range(6)])


async def test_no_group_that_was_stored_is_generated_again_however_workers_die(site: Site) -> None:
    """Workers are killed all the time; once a group is stored its prompt must not reach the engine any more."""
    stored: set[str] = set()
    again: list[str] = []

    async def check(request: Any) -> None:
        if request.request_id in stored:
            again.append(request.request_id)
        await asyncio.sleep(0.05)

    site.generation.before = check

    async def collect() -> list[int]:
        consumer = await site.bus.rollout_consumer(1, 64)
        prompts: list[int] = []
        while len(prompts) < 24:
            for delivery in await consumer.fetch(8, 1.0):
                prompt = delivery.message.task.id.prompt
                stored.add(f"{RUN}/0/{prompt}/0")
                prompts.append(prompt)
                await delivery.ack_sync()
        return prompts

    collecting = asyncio.create_task(collect())
    publishing = asyncio.create_task(_publish_slowly(site.bus, 24))
    for pause_s in (1.6, 1.9):
        worker = await site.worker()
        await asyncio.sleep(pause_s)
        worker.kill()
        await worker.wait()
    await site.worker()
    async with asyncio.timeout(40.0):
        await publishing
        prompts = await collecting
    assert sorted(prompts) == list(range(24))
    assert again == []


async def _publish_slowly(bus: Bus, count: int) -> None:
    for prompt in range(count):
        await bus.publish_prompt(task(prompt))
        await asyncio.sleep(0.15)


async def test_a_worker_that_finds_no_nats_says_where_it_looked(tmp_path: Path) -> None:
    worker = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "rlctl.rollout",
        "bus.url=nats://127.0.0.1:9",
        "bus.connect_timeout_s=0.5",
        stderr=asyncio.subprocess.PIPE,
    )
    _, stderr = await worker.communicate()
    assert worker.returncode == 1
    assert "no NATS server answered at nats://127.0.0.1:9" in stderr.decode()
    assert "Traceback" not in stderr.decode()


async def test_a_worker_outlives_the_brokers_death(site: Site, server: NatsServer) -> None:
    worker = await site.worker()
    await site.bus.publish_prompt(task(1))
    await site.groups(1)
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    await asyncio.sleep(0.5)
    await asyncio.to_thread(server.start)
    await site.bus.publish_prompt(task(2))
    [group] = await site.groups(1)
    assert group.task.id.prompt == 2
    assert worker.returncode is None
