"""Objectives over preferences. P pairs, B sequences, T tokens; every loss is per pair or per sample.

The caller divides the sum by the whole step's number of pairs, so that the value does not depend on
micro-batches.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rlctl.algorithms.masking import masked, masked_mean


def sequence_logprobs(logprobs_BT: Tensor, mask_BT: Tensor, *, mean: bool = False) -> Tensor:
    """Log-prob of each response, `[B]`: summed over its tokens, or their mean (length-normalised)."""
    return masked_mean(logprobs_BT, mask_BT) if mean else masked(logprobs_BT, mask_BT).sum(-1)


def pairwise_loss(chosen_P: Tensor, rejected_P: Tensor, margin_P: Tensor | None = None) -> Tensor:
    """Loss of a reward model: `-logsigmoid(chosen - rejected - margin)` (Bradley-Terry; margin: Llama 2).

    At margin 0 this is OpenRLHF's `logexp`, `log(1 + exp(rejected - chosen))`.
    """
    difference_P = chosen_P - rejected_P
    return -F.logsigmoid(difference_P if margin_P is None else difference_P - margin_P)


class PreferenceLoss(NamedTuple):
    """Loss and the implicit rewards `beta * (policy - reference)`, detached, for metrics."""

    loss_P: Tensor
    chosen_rewards_P: Tensor
    rejected_rewards_P: Tensor


def dpo_loss(
    chosen_P: Tensor,
    rejected_P: Tensor,
    ref_chosen_P: Tensor,
    ref_rejected_P: Tensor,
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
) -> PreferenceLoss:
    """Direct preference optimisation (Rafailov et al., arXiv:2305.18290) over summed log-probs.

    With `z = (chosen - rejected) - (ref_chosen - ref_rejected)`: `-(1-s) logsigmoid(beta z) - s logsigmoid(-beta z)`;
    `label_smoothing` s is the share of labels taken to be wrong (cDPO, Mitchell, 2023).
    """
    z_P = (chosen_P - rejected_P) - (ref_chosen_P - ref_rejected_P)
    loss_P = -(1.0 - label_smoothing) * F.logsigmoid(beta * z_P) - label_smoothing * F.logsigmoid(-beta * z_P)
    return PreferenceLoss(loss_P, *_rewards(beta, chosen_P, ref_chosen_P, rejected_P, ref_rejected_P))


def ipo_loss(
    chosen_P: Tensor, rejected_P: Tensor, ref_chosen_P: Tensor, ref_rejected_P: Tensor, *, beta: float = 0.1
) -> PreferenceLoss:
    """`(z - 1 / (2 beta))^2` (IPO, Azar et al., arXiv:2310.12036).

    Over summed log-probs, or over their means where responses differ much in length
    (`sequence_logprobs(..., mean=True)` on all four sides).
    """
    z_P = (chosen_P - rejected_P) - (ref_chosen_P - ref_rejected_P)
    loss_P = (z_P - 1.0 / (2.0 * beta)).square()
    return PreferenceLoss(loss_P, *_rewards(beta, chosen_P, ref_chosen_P, rejected_P, ref_rejected_P))


def _rewards(
    beta: float, chosen_P: Tensor, ref_chosen_P: Tensor, rejected_P: Tensor, ref_rejected_P: Tensor
) -> tuple[Tensor, Tensor]:
    return beta * (chosen_P - ref_chosen_P).detach(), beta * (rejected_P - ref_rejected_P).detach()


def kto_kl(log_ratio_sum: float, samples: float) -> float:
    """Reference point of KTO: `max(mean log-ratio of mismatched pairs, 0)`.

    `log_ratio_sum` sums `policy - reference` over (prompt, another prompt's response) for the `samples` of the
    *whole* optimizer step and all ranks, from a pass without gradient.
    """
    return max(log_ratio_sum / max(samples, 1.0), 0.0)


def kto_loss(
    policy_B: Tensor,
    ref_B: Tensor,
    desirable_B: Tensor,
    kl: float,
    *,
    beta: float = 0.1,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Tensor:
    """Kahneman-Tversky optimisation (Ethayarajh et al., arXiv:2402.01306), per sample.

    With `D = policy - reference` (summed log-probs): desirable `w_d (1 - sigmoid(beta (D - kl)))`, undesirable
    `w_u (1 - sigmoid(beta (kl - D)))`. `desirable_B` is bool; `kl` comes from `kto_kl`.
    """
    gap_B = policy_B - ref_B - kl
    sign_B = torch.where(desirable_B, 1.0, -1.0).to(gap_B.dtype)
    weight_B = torch.where(desirable_B, desirable_weight, undesirable_weight).to(gap_B.dtype)
    return weight_B * torch.sigmoid(-beta * sign_B * gap_B)
