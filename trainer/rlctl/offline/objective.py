"""What one kind of training adds to the loop: its loss, and how a held-out set is measured."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from rlctl.learner import distributed
from rlctl.learner.batch import share_out
from rlctl.learner.learner import Learner
from rlctl.learner.loss import Batch, LossOutput, Totals
from rlctl.learner.sequence import Sequence

#: One example: a sequence, or the two sides of a pair (the better one first).
Item = list[Sequence]

#: Scalar of a sequence: its place in the order of items and sides, which a micro-batch does not keep.
PLACE = "place"


class Objective:
    """The base of all: one sequence an item, and one pass."""

    #: Sequences of an item, which stay in one micro-batch.
    group = 1

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    def loss(self, batch: Batch, totals: Totals) -> LossOutput:
        """This micro-batch's share of the step's loss."""
        raise NotImplementedError

    def measured(self, batch: Batch, totals: Totals) -> LossOutput:
        """The loss again, with the metrics of a held-out set."""
        raise NotImplementedError

    def prepare(self, items: Seq[Item], held_out: Seq[Item]) -> None:
        """Called once, before the first step, with all items."""

    def step(self, items: Seq[Item]) -> dict[str, float]:
        """One optimizer step over the items of all ranks, which call it together."""
        return self.learner.step(self.share(items), self.loss, group=self.group)

    def measure(self, items: Seq[Item]) -> dict[str, float]:
        """The held-out measures, the same on every rank. `loss` and `accuracy` are always among them."""
        return self.learner.measure(self.share(items), self.measured, group=self.group)

    def finish(self, folder: Path, tokenizer: Any, measured: dict[str, float]) -> None:
        """Called on rank 0 with the saved model's folder and the last held-out measures."""

    def close(self) -> None:
        """Called at the end of the run, however it came."""

    def share(self, items: Seq[Item]) -> list[Sequence]:
        """This rank's sequences, each with its place."""
        mine = share_out(list(map(size, items)), distributed.world_size())[distributed.rank()]
        return [
            replace(s, scalars=s.scalars | {PLACE: float(index * len(items[index]) + side)})
            for index in mine
            for side, s in enumerate(items[index])
        ]


def size(item: Item) -> int:
    """Tokens of an item."""
    return sum(len(sequence) for sequence in item)


def in_order(values_B: Tensor, batch: Batch) -> Tensor:
    """Values of a micro-batch's sequences in the order of their places."""
    return values_B[batch.scalars[PLACE].argsort()]


def sides(values_B: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Values of the better and the worse side of each pair, `[P]` each, pairs in the order of their places."""
    ordered = in_order(values_B, batch)
    return ordered[0::2], ordered[1::2]
