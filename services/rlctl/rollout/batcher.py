"""Calls shared by prompt groups: what waits at the same time goes in one call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rlctl.core.errors import InternalError, RlctlError

Item = TypeVar("Item")
Result = TypeVar("Result")


def pack(sizes: Sequence[tuple[int, int]], max_items: int, max_bytes: int) -> list[range]:
    """Consecutive ranges of entries of (items, bytes), each within both limits; an entry over them stands alone."""
    ranges: list[range] = []
    begin = items = total = 0
    for index, (count, size) in enumerate(sizes):
        if index > begin and (items + count > max_items or total + size > max_bytes):
            ranges.append(range(begin, index))
            begin, items, total = index, 0, 0
        items += count
        total += size
    if begin < len(sizes):
        ranges.append(range(begin, len(sizes)))
    return ranges


@dataclass
class _Entry(Generic[Item, Result]):
    """The items of one group, their sizes in bytes, and who waits for their results."""

    items: list[Item]
    sizes: list[int]
    done: asyncio.Future[list[Result]]


class Batcher(Generic[Item, Result]):
    """Gathers items until there are `max_items`, or `wait_s` has passed, or nobody else is about to come."""

    def __init__(
        self,
        call: Callable[[list[Item]], Awaitable[list[Result]]],
        *,
        max_items: int,
        max_bytes: int,
        wait_s: float,
        size: Callable[[Item], int],
        more_coming: Callable[[], bool],
    ) -> None:
        """`call` gives one result an item, in order; `size` is what an item takes in a message, bytes."""
        self._call = call
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._wait_s = wait_s
        self._size = size
        self._more_coming = more_coming
        self._waiting: list[_Entry[Item, Result]] = []
        self._timer: asyncio.Handle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def submit(self, items: list[Item]) -> list[Result]:
        """One result an item. Raises what `call` raises for these items, whatever they shared a call with."""
        if not items:
            return []
        loop = asyncio.get_running_loop()
        entry = _Entry[Item, Result](items, [self._size(item) for item in items], loop.create_future())
        self._waiting.append(entry)
        if sum(len(other.items) for other in self._waiting) >= self._max_items:
            self._flush()
        elif not self._more_coming():
            # Those who came in the same turn of the loop as the last one are still about to submit.
            self._schedule(loop.call_soon(self._flush))
        elif self._timer is None:
            self._schedule(loop.call_later(self._wait_s, self._flush))
        return await entry.done

    def _schedule(self, timer: asyncio.Handle) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = timer

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        entries, self._waiting = self._waiting, []
        sizes = [(len(entry.items), sum(entry.sizes)) for entry in entries]
        for part in pack(sizes, self._max_items, self._max_bytes):
            task = asyncio.create_task(self._run([entries[index] for index in part]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, batch: list[_Entry[Item, Result]]) -> None:
        batch = [entry for entry in batch if not entry.done.done()]
        try:
            results = await self._answer(batch)
        except RlctlError as error:
            if len(batch) > 1:
                # One group's items must not cost another's.
                await asyncio.gather(*(self._run([entry]) for entry in batch))
            elif not batch[0].done.done():
                batch[0].done.set_exception(error)
            return
        except Exception as error:
            for entry in batch:
                if not entry.done.done():
                    entry.done.set_exception(error)
            return
        for entry in batch:
            if not entry.done.done():
                entry.done.set_result(results[: len(entry.items)])
            results = results[len(entry.items) :]

    async def _answer(self, batch: list[_Entry[Item, Result]]) -> list[Result]:
        """In one call, or in several where one group alone is over the limits."""
        items = [item for entry in batch for item in entry.items]
        sizes = [(1, size) for entry in batch for size in entry.sizes]
        parts = [items[part.start : part.stop] for part in pack(sizes, self._max_items, self._max_bytes)]
        answers = await asyncio.gather(*(self._call(part) for part in parts))
        for part, answer in zip(parts, answers, strict=True):
            if len(answer) != len(part):
                raise InternalError(f"{len(part)} items were sent and {len(answer)} results came back")
        return [result for answer in answers for result in answer]

    async def close(self) -> None:
        """Cancels the calls in flight, and those who wait for them."""
        for entry in self._waiting:
            entry.done.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
