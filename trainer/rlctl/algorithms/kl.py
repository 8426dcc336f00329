"""Distance to the reference policy. B sequences, T response tokens."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rlctl.algorithms.masking import masked

KLEstimator = Literal["k1", "k2", "k3"]


def kl_per_token(
    logprobs_BT: Tensor, ref_logprobs_BT: Tensor, mask_BT: Tensor, estimator: KLEstimator = "k1"
) -> Tensor:
    """KL(policy, reference) estimated at each sampled token (Schulman, "Approximating KL divergence", 2020).

    With `d = logprob - ref_logprob`: k1 = `d` (unbiased, may be negative), k2 = `d^2 / 2`, k3 =
    `exp(-d) - 1 + d` (unbiased, never negative). In k3 `d` is held within 10 of 0 before the exp, so that
    neither value nor gradient overflows. 0 where the mask is false.
    """
    d_BT = masked(logprobs_BT - ref_logprobs_BT, mask_BT)
    if estimator == "k1":
        return d_BT
    if estimator == "k2":
        return d_BT.square() / 2
    bounded_BT = d_BT.clamp(-10.0, 10.0)
    return torch.expm1(-bounded_BT) + bounded_BT


def adapt_beta(beta: float, kl: float, target: float, horizon: int, n: int) -> float:
    """Next KL coefficient of the adaptive controller (Ziegler et al., arXiv:1909.08593).

    `kl`: mean over the step's sequences of their summed k1; `n`: samples of the step; a KL above `target`
    raises beta, by at most a fifth in `horizon` samples.
    """
    assert target > 0
    assert horizon > 0
    error = min(max(kl / target - 1.0, -0.2), 0.2)
    return beta * (1.0 + error * n / horizon)
