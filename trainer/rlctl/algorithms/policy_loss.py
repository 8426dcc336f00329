"""Policy losses of each token. B sequences, T response tokens.

Each takes the log-probs under the policy that is trained (with gradient), those before the step
(`old`), advantages and the mask, and returns the loss of each token, 0 where masked; `aggregate` sums
it. `weights_BT` are off-policy weights of the policy term (see `offpolicy`). Masked places may hold
anything, NaN included.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rlctl.algorithms.masking import masked, masked_mean

Metrics = dict[str, tuple[Tensor, Tensor]]


class PolicyLoss(NamedTuple):
    """`loss_BT` and metrics as (sum, count), which add up over micro-batches and ranks."""

    loss_BT: Tensor
    metrics: Metrics


def ppo_loss(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    weights_BT: Tensor | None = None,
) -> PolicyLoss:
    """`-min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)` (PPO, Schulman et al., arXiv:1707.06347).

    Unequal clips are DAPO's clip-higher (arXiv:2503.14476). `dual_clip` c > 1 bounds the objective from below
    by `c * A` where A < 0 (Ye et al., arXiv:1912.09729).
    """
    log_ratio_BT = _log_ratio(logprobs_BT, old_logprobs_BT, mask_BT)
    return _clipped(log_ratio_BT, log_ratio_BT, advantages_BT, mask_BT, clip_low, clip_high, dual_clip, weights_BT)


def gspo_loss(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
    weights_BT: Tensor | None = None,
) -> PolicyLoss:
    """As PPO with one ratio for the whole sequence, `exp(mean log-ratio)` (GSPO, Zheng et al., arXiv:2507.18071).

    To be aggregated per sequence: the mean over a sequence's tokens is then the paper's objective.
    """
    log_ratio_BT = _log_ratio(logprobs_BT, old_logprobs_BT, mask_BT)
    sequence_B = masked_mean(log_ratio_BT, mask_BT)
    whole_BT = sequence_B.unsqueeze(-1).expand(log_ratio_BT.shape)
    return _clipped(whole_BT, log_ratio_BT, advantages_BT, mask_BT, clip_low, clip_high, None, weights_BT)


def cispo_loss(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip_high: float = 0.2,
    weights_BT: Tensor | None = None,
) -> PolicyLoss:
    """`-stopgrad(min(ratio, 1 + clip_high)) * A * logprob` (CISPO, MiniMax-M1, arXiv:2506.13585).

    No token loses its gradient; only its weight is capped. The cap is `1 + clip_high`, whereas TRL's
    `epsilon_high` is the cap itself.
    """
    log_ratio_BT = _log_ratio(logprobs_BT, old_logprobs_BT, mask_BT)
    ratio_BT = log_ratio_BT.detach().exp()
    capped_BT = ratio_BT.clamp(max=1.0 + clip_high)
    loss_BT = -capped_BT * masked(advantages_BT, mask_BT) * masked(logprobs_BT, mask_BT)
    metrics = _metrics(log_ratio_BT, ratio_BT > 1.0 + clip_high, mask_BT)
    return PolicyLoss(_weigh(loss_BT, weights_BT, mask_BT), metrics)


def reinforce_loss(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    weights_BT: Tensor | None = None,
) -> PolicyLoss:
    """`-A * logprob` (Williams, 1992); the old log-probs only serve the metrics."""
    log_ratio_BT = _log_ratio(logprobs_BT, old_logprobs_BT, mask_BT)
    loss_BT = -masked(advantages_BT, mask_BT) * masked(logprobs_BT, mask_BT)
    metrics = _metrics(log_ratio_BT, torch.zeros_like(mask_BT), mask_BT)
    return PolicyLoss(_weigh(loss_BT, weights_BT, mask_BT), metrics)


def _log_ratio(logprobs_BT: Tensor, old_logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return masked(logprobs_BT - old_logprobs_BT, mask_BT).clamp(-20.0, 20.0)


def _clipped(
    log_ratio_BT: Tensor,
    token_log_ratio_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
    weights_BT: Tensor | None,
) -> PolicyLoss:
    ratio_BT = log_ratio_BT.exp()
    advantages_BT = masked(advantages_BT, mask_BT)
    free_BT = ratio_BT * advantages_BT
    held_BT = ratio_BT.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages_BT
    objective_BT = torch.minimum(free_BT, held_BT)
    metrics = _metrics(token_log_ratio_BT, held_BT < free_BT, mask_BT)
    if dual_clip is not None:
        floor_BT = dual_clip * advantages_BT
        bounded_BT = (advantages_BT < 0) & (floor_BT > objective_BT)
        objective_BT = torch.where(bounded_BT, floor_BT, objective_BT)
        metrics["policy/dual_clip_fraction"] = (bounded_BT.sum(), mask_BT.sum())
    return PolicyLoss(_weigh(-objective_BT, weights_BT, mask_BT), metrics)


def _weigh(loss_BT: Tensor, weights_BT: Tensor | None, mask_BT: Tensor) -> Tensor:
    if weights_BT is not None:
        loss_BT = loss_BT * masked(weights_BT.detach(), mask_BT)
    return masked(loss_BT, mask_BT)


def _metrics(log_ratio_BT: Tensor, clipped_BT: Tensor, mask_BT: Tensor) -> Metrics:
    """Share of clipped tokens, mean ratio, and KL(old, new) by the k3 estimator."""
    detached_BT = log_ratio_BT.detach()
    count = mask_BT.sum()
    return {
        "policy/clip_fraction": ((clipped_BT & mask_BT).sum(), count),
        "policy/ratio_mean": (masked(detached_BT.exp(), mask_BT).sum(), count),
        "policy/kl_old_new": (masked(torch.expm1(detached_BT) - detached_BT, mask_BT).sum(), count),
    }
