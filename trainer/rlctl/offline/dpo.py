"""Direct preference optimisation. P pairs of a micro-batch, B sequences, T response tokens."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from rlctl.algorithms.masking import masked
from rlctl.algorithms.preference import dpo_loss, ipo_loss, sequence_logprobs
from rlctl.data.preference import Pair
from rlctl.learner.learner import Learner
from rlctl.learner.loss import Batch, LossOutput, Totals
from rlctl.learner.sequence import Sequence
from rlctl.offline.config import DPOConfig
from rlctl.offline.objective import Item, Objective, sides
from rlctl.offline.reference import REFERENCE, Reference


class DPOObjective(Objective):
    """The mean over the pairs of the optimizer step, and the cross-entropy of their better responses."""

    group = 2

    def __init__(self, learner: Learner, config: DPOConfig, reference: Reference) -> None:
        super().__init__(learner)
        self._config = config
        self._reference = reference
        self._chosen_tokens = 1

    def prepare(self, items: Seq[Item], held_out: Seq[Item]) -> None:
        self._reference.precompute([*(items if self._reference.precomputes else ()), *held_out])

    def share(self, items: Seq[Item]) -> list[Sequence]:
        self._chosen_tokens = sum(int(item[0].mask.sum()) for item in items)
        return self._reference.add(super().share(items))

    def loss(self, batch: Batch, totals: Totals) -> LossOutput:
        config = self._config
        mean = config.length_normalized
        tokens_B = batch.mask_BT.sum(-1)
        policy_B = sequence_logprobs(batch.logprobs_BT, batch.mask_BT, mean=mean)
        reference_B = batch.scalars[REFERENCE] / (tokens_B if mean else 1)
        pairs = [*sides(policy_B, batch), *sides(reference_B, batch)]
        if config.loss == "ipo":
            found = ipo_loss(*pairs, beta=config.beta)
        else:
            found = dpo_loss(*pairs, beta=config.beta, label_smoothing=config.label_smoothing)
        loss = found.loss_P.sum() / max(totals.sequences / 2, 1)
        metrics = _metrics(found.chosen_rewards_P, found.rejected_rewards_P)
        nll_P, _ = sides(-masked(batch.logprobs_BT, batch.mask_BT).sum(-1), batch)
        chosen_P, _ = sides(tokens_B, batch)
        metrics["nll"] = (nll_P.detach().sum(), chosen_P.sum())
        if config.nll_coef:
            loss = loss + config.nll_coef * nll_P.sum() / self._chosen_tokens
        return LossOutput(loss, metrics)

    def measured(self, batch: Batch, totals: Totals) -> LossOutput:
        return self.loss(batch, totals)


def _metrics(chosen_P: Tensor, rejected_P: Tensor) -> dict[str, tuple[Tensor | float, Tensor | float]]:
    pairs = len(chosen_P)
    right = (chosen_P > rejected_P).sum() + 0.5 * (chosen_P == rejected_P).sum()
    return {
        "accuracy": (right, pairs),
        "margin": ((chosen_P - rejected_P).sum(), pairs),
        "reward_chosen": (chosen_P.sum(), pairs),
        "reward_rejected": (rejected_P.sum(), pairs),
    }


def to_item(pair: Pair) -> Item:
    return [response(pair.prompt_ids, ids) for ids in (pair.chosen_ids, pair.rejected_ids)]


def response(prompt_ids: list[int], response_ids: list[int]) -> Sequence:
    """A prompt and a response of which every token counts."""
    return Sequence(
        prompt_ids=torch.tensor(prompt_ids, dtype=torch.int64),
        response_ids=torch.tensor(response_ids, dtype=torch.int64),
        mask=torch.ones(len(response_ids), dtype=torch.bool),
    )
