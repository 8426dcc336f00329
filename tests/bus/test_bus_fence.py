"""The fencing epoch."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from rlctl.bus.fence import Fence
from rlctl.bus.server import NatsServer
from rlctl.core.errors import FencedError
from support.groups import Connect

pytestmark = pytest.mark.anyio


async def test_each_trainer_gets_the_next_epoch(connect: Connect) -> None:
    one, two = Fence(await connect()), Fence(await connect())
    assert [await one.acquire(), await two.acquire(), await one.acquire()] == [1, 2, 3]


async def test_of_trainers_that_race_each_has_its_own_epoch(connect: Connect) -> None:
    fences = [Fence(await connect()) for _ in range(6)]
    epochs = await asyncio.gather(*(fence.acquire() for fence in fences))
    assert sorted(epochs) == [1, 2, 3, 4, 5, 6]
    newest = fences[epochs.index(6)]
    await newest.check(6)
    for fence, epoch in zip(fences, epochs, strict=True):
        if epoch < 6:
            with pytest.raises(FencedError, match=f"epoch 6; this one has {epoch}"):
                await fence.check(epoch)


async def test_an_epoch_is_above_that_of_the_checkpoint_when_the_store_was_lost(connect: Connect) -> None:
    fence = Fence(await connect())
    assert await fence.acquire(above=7) == 8
    assert await fence.acquire(above=7) == 9
    with pytest.raises(FencedError, match="NATS store was lost"):
        await fence.check(12)


async def test_the_epoch_survives_the_brokers_death(server: NatsServer, connect: Connect) -> None:
    fence = Fence(await connect())
    assert await fence.acquire() == 1
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    acquiring = asyncio.create_task(fence.acquire())
    await asyncio.to_thread(server.start)
    epoch = await acquiring
    assert epoch >= 2
    await fence.check(epoch)
