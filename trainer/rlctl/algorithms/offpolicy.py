"""Weights for samples that another policy than the trainer's has drawn. B sequences, T response tokens.

`old` are the log-probs that the trainer recomputes with its weights before the step, `rollout` those
that the sampler reported; they differ by numerics and by staleness. The weights multiply the policy
term only and carry no gradient; a token of weight 0 stays in every denominator.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rlctl.algorithms.masking import masked, masked_mean
from rlctl.algorithms.policy_loss import Metrics

Correction = Literal["none", "tis", "icepop", "seq_mask_tis", "decoupled"]


def correction_weights(
    kind: Correction,
    old_logprobs_BT: Tensor,
    rollout_logprobs_BT: Tensor,
    mask_BT: Tensor,
    *,
    low: float = 0.0,
    high: float = 2.0,
    seq_band: tuple[float, float] = (0.98, 1.02),
) -> Tensor:
    """The weight of each token, detached, 0 where masked; `w = exp(old - rollout)`.

    none: 1. tis (truncated importance sampling, Yao et al., 2025): `w` held in `[low, high]`.
    icepop (Ling team, arXiv:2510.18855): `w` inside the band `[low, high]`, 0 outside; `low = 0` means 0.5.
    seq_mask_tis: 0 for the whole sequence when the geometric mean of its `w` leaves `seq_band`, else
    `min(w, high)`. decoupled (AReaL, Fu et al., arXiv:2505.24298): `min(w, high)`, together with a ratio whose clip
    is centred on `old`.
    """
    log_w_BT = _log_weight(old_logprobs_BT, rollout_logprobs_BT, mask_BT)
    w_BT = log_w_BT.exp()
    if kind == "none":
        w_BT = torch.ones_like(w_BT)
    elif kind == "tis":
        w_BT = w_BT.clamp(low, high)
    elif kind == "icepop":
        inside_BT = (w_BT >= (low or 0.5)) & (w_BT <= high)
        w_BT = masked(w_BT, inside_BT)
    else:
        w_BT = w_BT.clamp(max=high)
        if kind == "seq_mask_tis":
            mean_B = masked_mean(log_w_BT, mask_BT).exp()
            inside_B = (mean_B >= seq_band[0]) & (mean_B <= seq_band[1])
            w_BT = masked(w_BT, inside_B.unsqueeze(-1))
    return masked(w_BT, mask_BT)


def mismatch_metrics(
    old_logprobs_BT: Tensor, rollout_logprobs_BT: Tensor, mask_BT: Tensor, weights_BT: Tensor
) -> tuple[Metrics, Tensor]:
    """How far sampler and trainer differ: (sum, count) metrics, and the largest absolute difference.

    `mismatch/kl_mean` estimates KL(sampler, trainer) by k3 on the sampler's own tokens (never negative).
    """
    log_w_BT = _log_weight(old_logprobs_BT, rollout_logprobs_BT, mask_BT)
    count = mask_BT.sum()
    metrics = {
        "mismatch/kl_mean": (masked(torch.expm1(log_w_BT) - log_w_BT, mask_BT).sum(), count),
        "mismatch/weight_mean": (masked(weights_BT, mask_BT).sum(), count),
        "mismatch/dropped_fraction": (((weights_BT == 0) & mask_BT).sum(), count),
    }
    gap_BT = masked((old_logprobs_BT - rollout_logprobs_BT).detach(), mask_BT).abs()
    largest = gap_BT.amax() if gap_BT.numel() else gap_BT.new_zeros(())
    return metrics, largest


def _log_weight(old_logprobs_BT: Tensor, rollout_logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return masked((old_logprobs_BT - rollout_logprobs_BT).detach(), mask_BT).clamp(-20.0, 20.0)
