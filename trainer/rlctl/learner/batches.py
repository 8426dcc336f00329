"""How one learner makes micro-batches of sequences."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from rlctl.learner.batch import MicroBatch, collate, empty, plan
from rlctl.learner.config import LearnerConfig
from rlctl.learner.loss import Part
from rlctl.learner.sequence import Sequence
from rlctl.learner.share import Share, split_up
from rlctl.learner.spread import spread
from rlctl.models.sequence_parallel import SequenceGroup


class Batches:
    """Micro-batches by the settings of a learner, on its device; of a sequence-parallel group this rank's stretch."""

    def __init__(
        self, config: LearnerConfig, group: SequenceGroup | None, device: torch.device, shares_prompts: bool
    ) -> None:
        self._config = config
        self._group = group
        self._device = device
        self._shared = shares_prompts

    def plan(self, sequences: Seq[Sequence]) -> list[list[int]]:
        """Micro-batches by index, see `batch.plan`."""
        return plan(sequences, self._config.micro_batch_tokens, self._config.packing, shared=self._shared)

    def split_up(self, part: Part) -> Share:
        """What this rank or group works on of a part, see `share.split_up`; all ranks call it together."""
        return split_up(part, self._config, self._group, self._shared)

    def collate(self, sequences: Seq[Sequence], *, trained_only: bool) -> MicroBatch:
        """The tensors of one micro-batch."""
        return self._mine(
            collate(
                sequences,
                packing=self._config.packing,
                trained_only=trained_only,
                device=self._device,
                shared=self._shared,
            )
        )

    def empty(self) -> MicroBatch:
        """A micro-batch without a trained token."""
        return self._mine(empty(self._device, self._config.packing))

    def _mine(self, batch: MicroBatch) -> MicroBatch:
        return batch if self._group is None else spread(batch, self._group)
