"""The trainer's ranks act together: rank 0 decides, and tells the others what to do next.

A command is a short name and a payload of bytes, broadcast from rank 0. While rank 0 waits for
something it sends `idle` now and then, so that the others know it lives: a rank that hears nothing for
the time-out of the process group ends, and so do all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlctl.learner.distributed import broadcast_bytes

Handler = Callable[[bytes], Any]

END = "end"
IDLE = "idle"


class Ranks:
    """Runs the same handler on every rank. With one rank nothing is sent."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self._handlers: dict[str, Handler] = {IDLE: lambda _payload: None}

    def register(self, name: str, handler: Handler) -> None:
        self._handlers[name] = handler

    def run(self, name: str, payload: bytes = b"") -> Any:
        """On rank 0: has every rank run a handler; returns this rank's result."""
        assert self.rank == 0
        if self.world_size > 1:
            broadcast_bytes(name.encode())
            broadcast_bytes(payload)
        return self._handlers[name](payload)

    def idle(self) -> None:
        self.run(IDLE)

    def end(self) -> None:
        """On rank 0: lets the others return from `follow`."""
        if self.world_size > 1:
            broadcast_bytes(END.encode())
            broadcast_bytes(b"")

    def follow(self) -> None:
        """On the other ranks: does what rank 0 says until it says `end`."""
        while True:
            name = broadcast_bytes(None).decode()
            payload = broadcast_bytes(None)
            if name == END:
                return
            self._handlers[name](payload)
