"""Sequence parallelism: the columns of a micro-batch split over the ranks of a group."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlctl.models.sequence_parallel import SequenceGroup

if TYPE_CHECKING:
    from rlctl.learner.batch import MicroBatch


@dataclass(frozen=True)
class Spread:
    """Where the outputs of a micro-batch lie when its columns are split over the ranks of a group."""

    group: SequenceGroup
    width: int
    """Most outputs of one rank, at least 1."""
    order_K: Tensor
    """Where each wanted output lies on the flat `ranks * width` grid of what the ranks have."""

    def whole(self, local: Tensor) -> Tensor:
        """`[C, outputs of this rank]` -> `[C, K]` on every rank."""
        padded = torch.nn.functional.pad(local, (0, self.width - local.shape[1]))
        return self.group.gather(padded).transpose(0, 1).flatten(1).index_select(1, self.order_K)


def spread(batch: MicroBatch, group: SequenceGroup) -> MicroBatch:
    """This rank's stretch of the columns of a micro-batch that every rank of the group has whole.

    Columns of padding make them divisible. A rank without a wanted output computes one that nobody reads: ZeRO-3
    needs the output layer run on all ranks.
    """
    length = batch.input_ids.shape[1]
    columns = -(-length // group.size)
    padding = columns * group.size - length

    def mine(grid: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(grid, (0, padding))
        return padded[:, group.rank * columns : (group.rank + 1) * columns].contiguous()

    column_K = batch.states_K % length
    owner_K = column_K // columns
    counts = torch.bincount(owner_K, minlength=group.size)
    ahead_K = torch.zeros_like(owner_K)
    for rank in range(group.size):
        ahead_K[owner_K == rank] = torch.arange(int(counts[rank]), device=owner_K.device)
    width = max(1, int(counts.max()))
    own_K = owner_K == group.rank
    states_K = (batch.states_K // length * columns + column_K % columns)[own_K]
    targets_K = batch.targets_K[own_K]
    if not states_K.numel():
        states_K, targets_K = states_K.new_zeros(1), targets_K.new_zeros(1)
    cu_lengths = batch.cu_lengths
    if cu_lengths is not None and padding:
        cu_lengths = torch.nn.functional.pad(cu_lengths, (0, 1), value=length + padding)
    return replace(
        batch,
        input_ids=mine(batch.input_ids),
        position_ids=mine(batch.position_ids),
        layout=replace(batch.layout, group=group, cu_lengths=cu_lengths, max_length=max(batch.max_length, padding)),
        states_K=states_K,
        targets_K=targets_K,
        cu_lengths=cu_lengths,
        real_RL=mine(batch.real_RL),
        spread=Spread(group, width, owner_K * width + ahead_K),
    )
