"""The policy loss that the settings describe, as the learner calls it."""

from __future__ import annotations

from torch import Tensor

from rlctl.algorithms.aggregate import Aggregation, aggregate
from rlctl.algorithms.kl import kl_per_token
from rlctl.algorithms.masking import masked
from rlctl.algorithms.policy_loss import PolicyLoss, cispo_loss, gspo_loss, ppo_loss, reinforce_loss
from rlctl.algorithms.supervised import sft_loss
from rlctl.learner.loss import Batch, LossFn, LossOutput, Totals
from rlctl.trainer.config import TrainingSettings
from rlctl.trainer.own_pass import OwnPass


def aggregation(settings: TrainingSettings) -> Aggregation:
    """What `loss.agg = "auto"` stands for: sequence for gspo, constant for dr_grpo, token otherwise."""
    if settings.loss.agg != "auto":
        return settings.loss.agg
    if settings.loss.kind == "gspo":
        return "sequence"
    return "constant" if settings.advantage.estimator == "dr_grpo" else "token"


def policy_objective(settings: TrainingSettings, beta: float, own: OwnPass | None = None) -> LossFn:
    """Loss over a micro-batch: policy term, KL to the reference (`kl.as_loss`), entropy bonus.

    Reads the fields `advantages`, `old_logprobs`, `weights` where there is an off-policy correction, and
    `ref_logprobs` where there is a reference; with `own`, old log-probs and weights are those of this very pass.
    """
    mode = aggregation(settings)

    def loss(batch: Batch, totals: Totals) -> LossOutput:
        def mean(values_BT: Tensor) -> Tensor:
            return aggregate(
                values_BT,
                batch.mask_BT,
                mode,
                total_tokens=totals.tokens,
                total_sequences=totals.sequences,
                max_len=settings.sampling.max_new_tokens,
            )

        tokens = batch.mask_BT.sum()
        fields = batch.fields if own is None else batch.fields | own.fields(batch)
        term = _policy_term(settings, batch, fields)
        metrics: dict[str, tuple[Tensor | float, Tensor | float]] = {**term.metrics}
        total = mean(term.loss_BT)
        if settings.kl.as_loss and settings.needs_reference:
            kl_BT = kl_per_token(batch.logprobs_BT, batch.fields["ref_logprobs"], batch.mask_BT, settings.kl.estimator)
            total = total + beta * mean(kl_BT)
            metrics["kl/loss"] = (kl_BT.detach().sum(), tokens)
        if batch.entropy_BT is not None:
            entropy_BT = masked(batch.entropy_BT, batch.mask_BT)
            total = total - settings.loss.entropy_coef * mean(entropy_BT)
            metrics["policy/entropy"] = (entropy_BT.detach().sum(), tokens)
        return LossOutput(total, metrics)

    return loss


def ptx_objective(coef: float) -> LossFn:
    """`coef` times the cross-entropy of given examples, the mean over their trained tokens of the optimizer step."""

    def loss(batch: Batch, totals: Totals) -> LossOutput:
        loss_BT = sft_loss(batch.logprobs_BT, batch.mask_BT)
        mean = aggregate(
            loss_BT,
            batch.mask_BT,
            "token",
            total_tokens=totals.tokens,
            total_sequences=totals.sequences,
            max_len=1,
        )
        return LossOutput(coef * mean, {"ptx/loss": (loss_BT.detach().sum(), batch.mask_BT.sum())})

    return loss


def _policy_term(settings: TrainingSettings, batch: Batch, fields: dict[str, Tensor]) -> PolicyLoss:
    logprobs_BT, mask_BT = batch.logprobs_BT, batch.mask_BT
    old_BT, advantages_BT = fields["old_logprobs"], fields["advantages"]
    weights_BT = fields.get("weights")
    kind, low, high = settings.loss.kind, settings.loss.clip_low, settings.loss.clip_high
    if kind == "ppo":
        return ppo_loss(
            logprobs_BT,
            old_BT,
            advantages_BT,
            mask_BT,
            clip_low=low or 0.2,
            clip_high=high or 0.2,
            dual_clip=settings.loss.dual_clip,
            weights_BT=weights_BT,
        )
    if kind == "gspo":
        return gspo_loss(
            logprobs_BT,
            old_BT,
            advantages_BT,
            mask_BT,
            clip_low=low or 3e-4,
            clip_high=high or 4e-4,
            weights_BT=weights_BT,
        )
    if kind == "cispo":
        return cispo_loss(logprobs_BT, old_BT, advantages_BT, mask_BT, clip_high=high or 0.2, weights_BT=weights_BT)
    return reinforce_loss(logprobs_BT, old_BT, advantages_BT, mask_BT, weights_BT=weights_BT)
