"""The registry of live service instances."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from rlctl.bus.registry import Instance, Registry
from rlctl.bus.server import NatsServer
from support.groups import RUN, Connect

pytestmark = pytest.mark.anyio

GENERATION = Instance("generation", "generation-1", "127.0.0.1:1001", pid=1, serving=False)


async def next_list(watch: AsyncIterator[list[Instance]], timeout_s: float = 5.0) -> list[Instance]:
    return await asyncio.wait_for(anext(watch), timeout_s)


async def test_announced_instances_are_listed_by_service_until_withdrawn(connect: Connect) -> None:
    registry, reader = Registry(await connect()), Registry(await connect())
    assert await reader.list("generation") == []
    first = await registry.announce(GENERATION)
    await registry.announce(replace(GENERATION, instance_id="generation-2.b"))
    await registry.announce(replace(GENERATION, service="reward", instance_id="reward-1"))
    assert [instance.instance_id for instance in await reader.list("generation")] == ["generation-1", "generation-2.b"]
    assert [instance.service for instance in await reader.list("reward")] == ["reward"]
    await first.withdraw()
    assert [instance.instance_id for instance in await reader.list("generation")] == ["generation-2.b"]


async def test_updates_are_seen_at_once_and_extras_are_merged(connect: Connect) -> None:
    registry, reader = Registry(await connect()), Registry(await connect())
    announcement = await registry.announce(replace(GENERATION, extra={"model": "m"}))
    await announcement.update(serving=True, extra={"policy_version": "3"})
    [instance] = await reader.list("generation")
    assert instance.serving
    assert instance.extra == {"model": "m", "policy_version": "3"}


async def test_a_watcher_is_told_of_every_change(connect: Connect) -> None:
    registry, reader = Registry(await connect()), Registry(await connect())
    watch = reader.watch("generation")
    assert await next_list(watch) == []
    announcement = await registry.announce(GENERATION)
    assert await next_list(watch) == [GENERATION]
    await announcement.update(serving=True)
    assert await next_list(watch) == [replace(GENERATION, serving=True)]
    await registry.announce(replace(GENERATION, service="reward"))
    await announcement.withdraw()
    assert await next_list(watch) == []


async def test_heartbeats_keep_an_instance_beyond_its_time(connect: Connect) -> None:
    registry, reader = Registry(await connect(registry_ttl_s=1.8)), Registry(await connect(registry_ttl_s=1.8))
    await registry.announce(GENERATION)
    watch = reader.watch("generation")
    assert await next_list(watch) == [GENERATION]
    with pytest.raises(TimeoutError):
        await next_list(watch, timeout_s=4.0)
    assert await reader.list("generation") == [GENERATION]


PROCESS = """
import asyncio, os, sys
from rlctl.bus.bus import Bus
from rlctl.bus.config import BusConfig
from rlctl.bus.registry import Instance, Registry

async def main():
    bus = await Bus.connect(BusConfig(url=sys.argv[1], run=sys.argv[2]), "child")
    await Registry(bus).announce(Instance("generation", "child", "127.0.0.1:9", os.getpid(), True))
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_a_killed_process_vanishes_within_ten_seconds(server: NatsServer, connect: Connect) -> None:
    reader = Registry(await connect())
    watch = reader.watch("generation")
    assert await next_list(watch) == []
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", PROCESS, server.url, RUN)
    try:
        assert [instance.instance_id for instance in await next_list(watch, 20.0)] == ["child"]
    finally:
        child.kill()
        await child.wait()
    begin = time.monotonic()
    assert await next_list(watch, 12.0) == []
    assert time.monotonic() - begin < 10.0
    while await reader.list("generation"):
        await asyncio.sleep(0.1)
        assert time.monotonic() - begin < 10.0


async def test_while_nats_is_away_nobody_is_taken_for_dead(server: NatsServer, connect: Connect) -> None:
    registry, reader = Registry(await connect(registry_ttl_s=2.0)), Registry(await connect(registry_ttl_s=2.0))
    await registry.announce(GENERATION)
    watch = reader.watch("generation")
    assert await next_list(watch) == [GENERATION]
    change = asyncio.ensure_future(anext(watch))
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    await asyncio.sleep(3.0)
    await asyncio.to_thread(server.start)
    await asyncio.sleep(3.0)
    assert not change.done()
    assert await reader.list("generation") == [GENERATION], "and the heartbeats go on"
    change.cancel()
