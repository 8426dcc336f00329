"""What one rank, or one sequence-parallel group of ranks, works on in an optimizer step."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from rlctl.core.errors import InvalidArgumentError
from rlctl.learner import distributed
from rlctl.learner.batch import plan
from rlctl.learner.config import LearnerConfig
from rlctl.learner.loss import Part, Totals
from rlctl.learner.sequence import Sequence, decode, encode
from rlctl.models.sequence_parallel import SequenceGroup


@dataclass(frozen=True)
class Share:
    """A part of a step's loss, in micro-batches."""

    part: Part
    trained: list[Sequence]
    """The sequences with trained tokens."""
    batches: list[list[int]]
    """The micro-batches, by index in `trained`."""
    totals: Totals
    length: int
    """Tokens of all ranks' trained sequences, prompts included."""
    passes: int
    """Micro-batches of the rank that has most."""


def pool(sequences: Seq[Sequence], group: SequenceGroup | None) -> tuple[Seq[Sequence], int]:
    """The sequences of all ranks of a sequence-parallel group, and where among them this rank's begin.

    All ranks of all groups call it together.
    """
    if group is None:
        return sequences, 0
    begin = distributed.rank() - group.rank
    shares = [decode(data) for data in distributed.gather_bytes(encode(sequences))[begin : begin + group.size]]
    return [s for share in shares for s in share], sum(len(share) for share in shares[: group.rank])


def split_up(part: Part, config: LearnerConfig, group: SequenceGroup | None, shared: bool = False) -> Share:
    """Plans the micro-batches of a part, `shared` as `plan` takes it; all ranks call it together.

    Raises InvalidArgumentError when no rank has a trained token.
    """
    sequences, size = pool(part.sequences, group)[0], part.group
    neighbours = (sequences[first : first + size] for first in range(0, len(sequences), size))
    trained = [s for each in neighbours if all(bool(s.mask.any()) for s in each) for s in each]
    lengths = [len(s) for s in trained]
    batches = plan(trained, config.micro_batch_tokens, config.packing, size, shared)
    counted = 1.0 if group is None or group.rank == 0 else 0.0
    mine = [counted * sum(int(s.mask.sum()) for s in trained), counted * len(trained), counted * sum(lengths)]
    everyone = distributed.all_gather_floats([*mine, float(len(batches))])
    tokens, count, length = (int(sum(row[column] for row in everyone)) for column in range(3))
    if tokens == 0:
        raise InvalidArgumentError("no sequence of this step has a trained token", reason="NOTHING_TO_TRAIN")
    return Share(part, trained, batches, Totals(tokens, count), length, int(max(row[3] for row in everyone)))
