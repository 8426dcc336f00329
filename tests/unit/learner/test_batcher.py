"""Requests that wait share a pass."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rlctl.core.errors import UnavailableError
from rlctl.reference.batcher import Batcher

pytestmark = pytest.mark.anyio


async def test_requests_that_wait_share_a_pass_by_key() -> None:
    passes: list[tuple[list[int], float]] = []
    gate = threading.Event()

    def work(items: list[int], key: float) -> list[float]:
        passes.append((items, key))
        gate.wait(10)
        return [item * key for item in items]

    batcher: Batcher[int, float, float] = Batcher(work, limit=100, wait_s=0.01)
    first = asyncio.create_task(batcher.submit([1], 1.0, 1))
    while not passes:
        await asyncio.sleep(0.005)
    others = [asyncio.create_task(batcher.submit([n, n + 1], key, 2)) for n, key in ((2, 1.0), (4, 2.0), (6, 1.0))]
    await asyncio.sleep(0.02)
    gate.set()
    assert [await first, *[await other for other in others]] == [[1.0], [2.0, 3.0], [8.0, 10.0], [6.0, 7.0]]
    assert passes == [([1], 1.0), ([2, 3, 6, 7], 1.0), ([4, 5], 2.0)]
    await batcher.close()


async def test_a_full_batch_does_not_wait() -> None:
    batcher: Batcher[int, float, int] = Batcher(lambda items, key: items, limit=4, wait_s=30.0)
    calls = [batcher.submit([n], 1.0, 2) for n in range(2)]
    assert await asyncio.wait_for(asyncio.gather(*calls), 5) == [[0], [1]]
    await batcher.close()


async def test_a_pass_that_fails_fails_its_requests_and_no_others() -> None:
    def work(items: list[int], key: float) -> list[int]:
        if key == 2.0:
            raise ValueError("bad")
        return items

    batcher: Batcher[int, float, int] = Batcher(work, limit=100, wait_s=0.0)
    good, bad = await asyncio.gather(batcher.submit([1], 1.0, 1), batcher.submit([2], 2.0, 1), return_exceptions=True)
    assert good == [1]
    assert isinstance(bad, ValueError)
    await batcher.close()
    with pytest.raises(UnavailableError):
        await batcher.submit([1], 1.0, 1)
