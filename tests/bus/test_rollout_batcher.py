"""Calls shared by groups."""

from __future__ import annotations

import asyncio
import time

import pytest

from rlctl.core.errors import InternalError, InvalidArgumentError
from rlctl.rollout.batcher import Batcher, pack

pytestmark = pytest.mark.anyio


def test_pack_keeps_order_and_both_limits() -> None:
    sizes = [(2, 10), (2, 10), (1, 10), (3, 10), (1, 35), (1, 1)]
    assert pack(sizes, max_items=4, max_bytes=30) == [range(0, 2), range(2, 4), range(4, 5), range(5, 6)]
    assert pack(sizes, max_items=100, max_bytes=30) == [range(0, 3), range(3, 4), range(4, 5), range(5, 6)]
    assert pack([], max_items=4, max_bytes=30) == []


class Doubler:
    """Doubles numbers, and remembers the calls; refuses negative ones."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    async def __call__(self, items: list[int]) -> list[int]:
        self.calls.append(items)
        if min(items) < 0:
            raise InvalidArgumentError("negative")
        return [2 * item for item in items]


def batcher(call: Doubler, *, more: bool = True, wait_s: float = 0.05, max_items: int = 6) -> Batcher[int, int]:
    return Batcher(
        call, max_items=max_items, max_bytes=1000, wait_s=wait_s, size=lambda item: 1, more_coming=lambda: more
    )


async def test_groups_that_wait_share_a_call_and_get_their_own_results() -> None:
    call = Doubler()
    shared = batcher(call)
    assert await asyncio.gather(shared.submit([1, 2]), shared.submit([3])) == [[2, 4], [6]]
    assert call.calls == [[1, 2, 3]]


async def test_a_full_batch_does_not_wait() -> None:
    call = Doubler()
    shared = batcher(call, wait_s=30.0)
    assert await asyncio.gather(shared.submit([1, 2, 3]), shared.submit([4, 5, 6])) == [[2, 4, 6], [8, 10, 12]]
    assert call.calls == [[1, 2, 3, 4, 5, 6]]


async def test_when_nobody_else_is_coming_there_is_no_wait() -> None:
    shared = batcher(Doubler(), more=False, wait_s=30.0)
    begin = time.monotonic()
    assert await shared.submit([1]) == [2]
    assert time.monotonic() - begin < 1.0


async def test_a_group_over_the_limit_is_split_and_put_together_again() -> None:
    call = Doubler()
    assert await batcher(call, max_items=2).submit([1, 2, 3, 4, 5]) == [2, 4, 6, 8, 10]
    assert sorted(call.calls) == [[1, 2], [3, 4], [5]]


async def test_a_refused_group_does_not_cost_the_others() -> None:
    call = Doubler()
    shared = batcher(call)
    results = await asyncio.gather(shared.submit([1]), shared.submit([-1]), shared.submit([2]), return_exceptions=True)
    assert results[0] == [2]
    assert isinstance(results[1], InvalidArgumentError)
    assert results[2] == [4]
    assert call.calls[0] == [1, -1, 2]


async def test_a_wrong_number_of_results_is_an_error() -> None:
    async def forgetful(items: list[int]) -> list[int]:
        return items[1:]

    broken = Batcher(forgetful, max_items=4, max_bytes=10, wait_s=0, size=lambda item: 1, more_coming=lambda: False)
    with pytest.raises(InternalError, match="2 items were sent and 1 results came back"):
        await broken.submit([1, 2])


async def test_closing_cancels_those_who_wait() -> None:
    shared = batcher(Doubler(), wait_s=30.0)
    waiting = asyncio.create_task(shared.submit([1]))
    await asyncio.sleep(0)
    await shared.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
