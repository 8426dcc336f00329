"""Requests that wait share one pass through the model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from rlctl.core.errors import UnavailableError

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


@dataclass(frozen=True)
class _Waiting(Generic[Item, Key, Result]):
    items: Sequence[Item]
    key: Key
    size: int
    answer: asyncio.Future[list[Result]]


class Batcher(Generic[Item, Key, Result]):
    """Calls `work(items, key)` in a thread of its own, with the items of all requests that wait with the same key.

    A batch closes when it holds `limit` units of size, or `wait_s` after its first request came to an idle model.
    """

    def __init__(self, work: Callable[[list[Item], Key], list[Result]], limit: int, wait_s: float) -> None:
        self._work = work
        self._limit = limit
        self._wait_s = wait_s
        self._queue: asyncio.Queue[_Waiting[Item, Key, Result]] = asyncio.Queue()
        self._thread = ThreadPoolExecutor(1, "batcher")
        self._task = asyncio.create_task(self._run())

    async def submit(self, items: Sequence[Item], key: Key, size: int) -> list[Result]:
        """The results of `items`, in order; a caller that is cancelled is left out of batches to come."""
        if self._task.done():
            raise UnavailableError("the service is ending")
        answer: asyncio.Future[list[Result]] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(_Waiting(items, key, size, answer))
        return await answer

    async def close(self) -> None:
        """Fails the requests that wait, and ends the thread after the pass it is in."""
        self._task.cancel()
        await asyncio.wait({self._task})
        while not self._queue.empty():
            self._fail([self._queue.get_nowait()], UnavailableError("the service is ending"))
        await asyncio.to_thread(self._thread.shutdown)

    async def _run(self) -> None:
        while True:
            batch = await self._collect()
            for key in dict.fromkeys(waiting.key for waiting in batch):
                await self._answer([w for w in batch if w.key == key and not w.answer.done()], key)

    async def _collect(self) -> list[_Waiting[Item, Key, Result]]:
        batch = [await self._queue.get()]
        deadline = asyncio.get_running_loop().time() + self._wait_s
        while sum(waiting.size for waiting in batch) < self._limit:
            left = deadline - asyncio.get_running_loop().time()
            if self._queue.empty() and left <= 0:
                break
            try:
                batch.append(await asyncio.wait_for(self._queue.get(), max(left, 0.001)))
            except TimeoutError:
                break
        return batch

    async def _answer(self, batch: list[_Waiting[Item, Key, Result]], key: Key) -> None:
        if not batch:
            return
        items = [item for waiting in batch for item in waiting.items]
        try:
            results = await asyncio.get_running_loop().run_in_executor(self._thread, self._work, items, key)
        except asyncio.CancelledError:
            self._fail(batch, UnavailableError("the service is ending"))
            raise
        except Exception as error:
            self._fail(batch, error)
            return
        start = 0
        for waiting in batch:
            end = start + len(waiting.items)
            if not waiting.answer.done():
                waiting.answer.set_result(results[start:end])
            start = end

    def _fail(self, batch: list[_Waiting[Item, Key, Result]], error: Exception) -> None:
        for waiting in batch:
            if not waiting.answer.done():
                waiting.answer.set_exception(error)
