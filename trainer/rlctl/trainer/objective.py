"""The policy loss that the settings describe, as the learner calls it."""

from __future__ import annotations

import torch
from torch import Tensor

from rlctl.algorithms import offpolicy, policy_loss
from rlctl.algorithms.aggregate import aggregate
from rlctl.algorithms.kl import kl_per_token
from rlctl.learner.learner import Batch, LossFn, LossOutput, Totals
from rlctl.trainer.config import TrainingSettings


def aggregation(settings: TrainingSettings) -> str:
    """The mode behind `loss.agg = "auto"`."""
    if settings.loss.agg != "auto":
        return settings.loss.agg
    if settings.loss.kind == "gspo":
        return "sequence"
    return "constant" if settings.advantage.estimator == "dr_grpo" else "token"


def policy_objective(settings: TrainingSettings, beta: float) -> LossFn:
    """Loss over a micro-batch: policy term, KL to the reference (`kl.as_loss`), entropy bonus.

    A batch without `old_logprobs` is one whose samples are trained on once, in a single optimizer step: there
    the old log-probs are the new ones, detached.
    """
    mode = aggregation(settings)

    def mean(values_BT: Tensor, batch: Batch, totals: Totals) -> Tensor:
        return aggregate(
            values_BT,
            batch.mask_BT,
            mode,
            total_tokens=totals.tokens,
            total_sequences=totals.sequences,
            max_len=settings.sampling.max_new_tokens,
        )

    def loss(batch: Batch, totals: Totals) -> LossOutput:
        assert batch.logprobs_BT is not None
        old_BT = batch.fields.get("old_logprobs", batch.logprobs_BT.detach())
        term = _policy_term(settings, batch, old_BT)
        weights_BT, metrics = _correction(settings, batch, old_BT)
        metrics |= term.metrics
        total = mean(term.loss_BT * weights_BT, batch, totals)
        metrics["policy/loss"] = (total.detach() * totals.sequences, _share(batch, totals))
        if settings.kl.as_loss and settings.needs_reference:
            kl_BT = kl_per_token(
                batch.logprobs_BT, batch.fields["ref_logprobs"], batch.mask_BT, settings.kl.estimator
            )
            total = total + beta * mean(kl_BT, batch, totals)
        if batch.entropy_BT is not None:
            masked_BT = torch.where(batch.mask_BT, batch.entropy_BT, 0.0)
            metrics["policy/entropy"] = (masked_BT.detach().sum(), batch.mask_BT.sum())
            total = total - settings.loss.entropy_coef * mean(masked_BT, batch, totals)
        return LossOutput(total, metrics)

    return loss
