"""Where training stands in its data: the same order on every machine, resumable at any prompt."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from rlctl.core.errors import FailedPreconditionError


@dataclass(frozen=True)
class Position:
    """A prompt in the order of training: the `position`-th of its epoch is the `index`-th of the data set."""

    epoch: int
    position: int
    index: int


class PromptCursor:
    """Walks over `size` prompts, epoch after epoch, each once an epoch.

    The order of an epoch is a function of (seed, epoch) alone, by sha256, so that it does not depend on a
    library's generator, on restarts, or on the number of ranks.
    """

    def __init__(self, size: int, shuffle: bool, seed: int) -> None:
        assert size > 0
        self._size, self._shuffle, self._seed = size, shuffle, seed
        self._epoch = 0
        self._position = 0
        self._order = self._order_of(0)

    def take(self, n: int) -> list[Position]:
        """The next `n` prompts, across the ends of epochs."""
        taken = []
        for _ in range(n):
            if self._position == self._size:
                self._epoch, self._position = self._epoch + 1, 0
                self._order = self._order_of(self._epoch)
            taken.append(Position(self._epoch, self._position, self._order[self._position]))
            self._position += 1
        return taken

    def index(self, epoch: int, position: int) -> int:
        """The data set's row at a position of any epoch, without moving."""
        order = self._order if epoch == self._epoch else self._order_of(epoch)
        return order[position]

    def state(self) -> dict[str, Any]:
        """What `restore` needs; plain JSON."""
        return {
            "epoch": self._epoch, "position": self._position,
            "size": self._size, "shuffle": self._shuffle, "seed": self._seed,
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was taken; FailedPreconditionError when the data or the order is another."""
        now = {"size": self._size, "shuffle": self._shuffle, "seed": self._seed}
        for name, value in now.items():
            if state[name] != value:
                raise FailedPreconditionError(
                    f"the checkpoint was made with data {name} {state[name]}, now it is {value}: "
                    "resume with the same data settings, or start a new run"
                )
        self._epoch, self._position = state["epoch"], state["position"]
        self._order = self._order_of(self._epoch)

    def _order_of(self, epoch: int) -> list[int]:
        indices = range(self._size)
        if not self._shuffle:
            return list(indices)
        return sorted(indices, key=lambda index: hashlib.sha256(f"{self._seed}/{epoch}/{index}".encode()).digest())
