"""Which calls a server takes on: none while it loads or drains, and only so many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from rlctl.core.errors import ResourceExhaustedError, UnavailableError

#: Reasons of calls refused before they began; sending them again is always safe.
REFUSED = frozenset({"LOADING", "DRAINING", "TOO_MANY_CALLS"})


class Gate:
    """Closed at first; `open()` when the service is loaded, `drain()` when it ends."""

    def __init__(self, name: str, max_concurrency: int) -> None:
        self._name = name
        self._max = max_concurrency
        self._loading = True
        self._draining = False
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def in_flight(self) -> int:
        """Calls in work."""
        return self._in_flight

    def open(self) -> None:
        """Takes calls from now on."""
        self._loading = False

    def drain(self) -> None:
        """Takes no more calls."""
        self._draining = True

    async def wait_idle(self) -> None:
        """Waits until no call is in work."""
        await self._idle.wait()

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Around a call. Raises UnavailableError or ResourceExhaustedError with a reason of `REFUSED`."""
        if self._draining:
            raise UnavailableError(f"{self._name} is shutting down", reason="DRAINING")
        if self._loading:
            raise UnavailableError(f"{self._name} is still loading", reason="LOADING")
        if self._in_flight >= self._max:
            raise ResourceExhaustedError(
                f"{self._name} works on {self._max} calls, its limit; try again, add replicas, or raise "
                f"max_concurrency",
                reason="TOO_MANY_CALLS",
                limit=self._max,
            )
        self._in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._in_flight -= 1
            if self._in_flight == 0:
                self._idle.set()
