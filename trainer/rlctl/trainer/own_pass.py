"""Old log-probs without a forward pass of their own.

A step with one pass over one minibatch takes its update under the very weights that old log-probs are of: they are
those that the update's forward pass gives, held fixed, and the ratio is 1 with a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from rlctl.algorithms.offpolicy import correction_weights
from rlctl.learner.learner import Learner
from rlctl.learner.loss import Batch
from rlctl.learner.sequence import Sequence
from rlctl.trainer.config import TrainingSettings

ROW = "row"
"""The scalar of a sequence by which its log-probs are found again."""


def is_enough(settings: TrainingSettings, actor: Learner) -> bool:
    """Whether nothing needs the old log-probs before the update: no other update, no KL in the reward, no dropout."""
    once = settings.train.passes == 1 and settings.train.minibatches == 1
    in_reward = settings.needs_reference and not settings.kl.as_loss
    return once and not in_reward and not actor.draws


class OwnPass:
    """Takes the log-probs out of the update's forward passes."""

    def __init__(self, settings: TrainingSettings, sequences: Seq[Sequence]) -> None:
        """Numbers the sequences of the step, by the scalar `ROW`."""
        self._correction = settings.off_policy
        self._seen: dict[int, Tensor] = {}
        for row, sequence in enumerate(sequences):
            sequence.scalars[ROW] = float(row)

    def fields(self, batch: Batch) -> dict[str, Tensor]:
        """The fields `old_logprobs` and, with an off-policy correction, `weights` of a micro-batch, `[B, T]`."""
        old_BT = batch.logprobs_BT.detach()
        for row, length, old_T in zip(batch.scalars[ROW].tolist(), batch.lengths_B.tolist(), old_BT.cpu(), strict=True):
            self._seen[int(row)] = old_T[:length].clone()
        chosen = self._correction
        if chosen.kind == "none":
            return {"old_logprobs": old_BT}
        weights_BT = correction_weights(
            chosen.kind,
            old_BT,
            batch.fields["rollout_logprobs"],
            batch.mask_BT,
            low=chosen.low,
            high=chosen.high,
            seq_band=chosen.seq_band,
        )
        return {"old_logprobs": old_BT, "weights": weights_BT}

    def of(self, sequence: Sequence) -> Tensor:
        """What was seen of a sequence, float32 `[T]`; 0 where nothing is trained."""
        found = self._seen.get(int(sequence.scalars[ROW]))
        return torch.zeros(len(sequence.response_ids)) if found is None else found
