"""Where training stands in its data: the same order on every machine, resumable at any prompt."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
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
        for name, value in self.state().items():
            if name not in ("epoch", "position") and state.get(name) != value:
                raise FailedPreconditionError(
                    f"the checkpoint was made with data {name} {state.get(name)}, now it is {value}: "
                    "resume with the same data settings, or start a new run"
                )
        self._epoch, self._position = state["epoch"], state["position"]
        self._order = self._order_of(self._epoch)

    def _order_of(self, epoch: int) -> list[int]:
        return shuffled(self._size, self._seed, epoch) if self._shuffle else list(range(self._size))


class MixedCursor(PromptCursor):
    """Walks over several data sets at once, drawing from each by its probability.

    An epoch has as many draws as there are rows altogether, and they are spread evenly: after any number of draws
    a data set has had its share to within half the number of data sets. Each data set is walked through whole, in
    an order of its own, before any of its rows comes again; where one ends within an epoch of the mixture it begins
    anew, and where an epoch of the mixture ends it goes on where it stood. An index counts over the data sets, put
    one behind the other.
    """

    def __init__(self, sizes: Sequence[int], probabilities: Sequence[float], shuffle: bool, seed: int) -> None:
        assert len(sizes) == len(probabilities) and min(sizes) > 0
        self._sizes, self._probabilities = list(sizes), list(probabilities)
        self._offsets = [sum(sizes[:place]) for place in range(len(sizes))]
        super().__init__(sum(sizes), shuffle, seed)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "sizes": self._sizes, "probabilities": self._probabilities}

    def _order_of(self, epoch: int) -> list[int]:
        passes: dict[tuple[int, int], list[int]] = {}
        order = []
        for draw in range(epoch * self._size, (epoch + 1) * self._size):
            source, drawn = _draw(draw, self._probabilities)
            size = self._sizes[source]
            number, place = divmod(drawn, size)
            if (source, number) not in passes:
                # A seed of its own for each data set: two of one size do not go in step.
                seed = f"{self._seed}/{source}"
                passes[source, number] = shuffled(size, seed, number) if self._shuffle else list(range(size))
            order.append(self._offsets[source] + passes[source, number][place])
        return order


def shuffled(size: int, seed: int | str, epoch: int) -> list[int]:
    """The numbers below `size` in an order that seed and epoch alone decide."""
    return sorted(range(size), key=lambda index: hashlib.sha256(f"{seed}/{epoch}/{index}".encode()).digest())


def _draw(draw: int, probabilities: Sequence[float]) -> tuple[int, int]:
    """Which data set a draw is from, and how often that one was drawn before.

    The first data set has had round(p n) of the first n draws; the others share the rest in the same way.
    """
    for source, probability in enumerate(probabilities[:-1]):
        share = probability / sum(probabilities[source:])
        before, after = int(share * draw + 0.5), int(share * (draw + 1) + 0.5)
        if after > before:
            return source, before
        draw -= before
    return len(probabilities) - 1, draw
