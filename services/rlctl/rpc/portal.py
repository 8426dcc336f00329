"""An event loop in a background thread, for synchronous programs that call asynchronous code."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

from rlctl.core.errors import DeadlineError, UnavailableError

T = TypeVar("T")


class Portal:
    """Runs coroutines on its own loop; usable from any thread but its own.

    The thread starts with the object and ends with `close()`, which cancels what still runs.
    """

    def __init__(self, name: str = "rlctl-portal") -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(
        self, function: Callable[..., Awaitable[T]], *args: Any, timeout_s: float | None = None, **kwargs: Any
    ) -> T:
        """Awaits `function(*args, **kwargs)` on the loop and gives its result or raises its error.

        Raises DeadlineError when it takes longer than `timeout_s` seconds (none: the function has its own
        deadline); the coroutine is then cancelled, as it is when the caller is interrupted.
        """
        future = self.spawn(function, *args, **kwargs)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            if future.done():
                raise
            name = getattr(function, "__qualname__", repr(function))
            raise DeadlineError(f"{name} was not done within {timeout_s:g} s") from None
        finally:
            future.cancel()

    def spawn(self, function: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> concurrent.futures.Future[T]:
        """Starts `function(*args, **kwargs)` on the loop and answers at once."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("a portal cannot wait for itself; await the coroutine instead")
        if self._loop.is_closed() or not self._thread.is_alive():
            raise UnavailableError("the portal is closed", reason="PORTAL_CLOSED")
        return asyncio.run_coroutine_threadsafe(_await(function, args, kwargs), self._loop)

    def close(self) -> None:
        """Cancels what still runs and ends the thread; closing again does nothing."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def __enter__(self) -> Portal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()


def _await(
    function: Callable[..., Awaitable[T]], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Coroutine[Any, Any, T]:
    async def run() -> T:
        return await function(*args, **kwargs)

    return run()
