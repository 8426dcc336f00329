"""Advantages. B sequences, T response tokens, G prompt groups.

Every function works on a whole step (or any share of it that keeps groups together) and gives the same
value whatever side the padding is on. Masked tokens (padding, tool output) are stepped over: the token
after a masked stretch is the next one of the recursion.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rlctl.algorithms.masking import masked

Estimator = Literal["gae", "reinforce", "reinforce_baseline", "rloo", "group_norm", "dr_grpo"]
Whiten = Literal["none", "center", "full"]


def gae(
    rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, gamma: float = 1.0, lam: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al., arXiv:1506.02438).

    `delta_t = r_t + gamma * V_next - V_t`, `A_t = delta_t + gamma * lam * A_next`, where *next* is the next
    trained token, and both are 0 beyond the last. `values_BT` is the value of the state before each
    token. Returns `(advantages_BT, returns_BT)`, returns = advantages + values; 0 where masked.
    """
    rewards_BT, values_BT = masked(rewards_BT, mask_BT), masked(values_BT, mask_BT)
    advantages_BT = torch.zeros_like(rewards_BT)
    next_value_B = torch.zeros_like(rewards_BT[:, 0]) if rewards_BT.shape[1] else rewards_BT.new_zeros(len(rewards_BT))
    next_advantage_B = next_value_B
    for t in reversed(range(rewards_BT.shape[1])):
        trained_B = mask_BT[:, t]
        delta_B = rewards_BT[:, t] + gamma * next_value_B - values_BT[:, t]
        advantage_B = delta_B + gamma * lam * next_advantage_B
        advantages_BT[:, t] = masked(advantage_B, trained_B)
        next_advantage_B = torch.where(trained_B, advantage_B, next_advantage_B)
        next_value_B = torch.where(trained_B, values_BT[:, t], next_value_B)
    return advantages_BT, advantages_BT + values_BT


def discounted_returns(rewards_BT: Tensor, mask_BT: Tensor, gamma: float = 1.0) -> Tensor:
    """`sum over s >= t of gamma^(s - t) * r_s`, distances counted in trained tokens; 0 where masked.

    The token advantage of REINFORCE++ (Hu, arXiv:2501.03262) and of every group estimator.
    """
    return gae(rewards_BT, torch.zeros_like(rewards_BT), mask_BT, gamma, 1.0)[0]


def group_scores(scores_B: Tensor, group_B: Tensor, estimator: Estimator) -> tuple[Tensor, Tensor]:
    """Compares the scores of one prompt's samples.

    `group_B` (int) names each sample's group; groups need not be adjacent nor of one size.
    gae, reinforce: unchanged; reinforce_baseline, dr_grpo: `r - mean`; rloo (Ahmadian et al.,
    arXiv:2402.14740): `r - mean of the others`; group_norm (GRPO, Shao et al., arXiv:2402.03300):
    `(r - mean) / (unbiased std + 1e-6)`, 0 where all scores of the group are equal within 1e-6.

    Returns `(shaped_B, keep_B)`. A group with a missing (not finite) score is not kept, nor, where the
    estimator compares, one of a single sample; their `shaped` is 0.
    """
    _, index_B, size_G = torch.unique(group_B, return_inverse=True, return_counts=True)
    missing_B = ~scores_B.isfinite()
    r_B = scores_B.double().masked_fill(missing_B, 0.0)
    broken_G = torch.zeros_like(size_G).index_add_(0, index_B, missing_B.to(size_G.dtype)) > 0
    keep_B = ~broken_G[index_B]
    shaped_B = r_B
    if estimator not in ("gae", "reinforce"):
        size_B = size_G[index_B]
        keep_B &= size_B >= 2
        sum_G = r_B.new_zeros(len(size_G)).index_add_(0, index_B, r_B)
        centred_B = r_B - (sum_G / size_G)[index_B]
        others_B = (size_B - 1).clamp(min=1)
        if estimator == "rloo":
            shaped_B = r_B - (sum_G[index_B] - r_B) / others_B
        elif estimator == "group_norm":
            square_G = torch.zeros_like(sum_G).index_add_(0, index_B, centred_B.square())
            high_G = torch.full_like(sum_G, -torch.inf).scatter_reduce(0, index_B, r_B, "amax")
            low_G = torch.full_like(sum_G, torch.inf).scatter_reduce(0, index_B, r_B, "amin")
            equal_B = ((high_G - low_G) <= 1e-6)[index_B]
            shaped_B = centred_B / ((square_G[index_B] / others_B).sqrt() + 1e-6)
            shaped_B = shaped_B.masked_fill(equal_B, 0.0)
        else:
            shaped_B = centred_B
    return shaped_B.masked_fill(~keep_B, 0.0).to(scores_B.dtype), keep_B


def whiten(advantages_BT: Tensor, mask_BT: Tensor, mode: Whiten) -> Tensor:
    """Standardises over the trained tokens of a whole step (all ranks: a share of it would shift the baseline).

    full: `(A - mean) * rsqrt(max(var, 1e-8))` with the population variance; center: `A - mean`. The sums
    are taken in fp64. 0 where masked.
    """
    if mode == "none" or not mask_BT.any():
        return masked(advantages_BT, mask_BT)
    trained_N = advantages_BT[mask_BT].double()
    centred_BT = advantages_BT - trained_N.mean()
    if mode == "full":
        centred_BT = centred_BT * trained_N.var(correction=0).clamp(min=1e-8).rsqrt()
    return masked(centred_BT.to(advantages_BT.dtype), mask_BT)
