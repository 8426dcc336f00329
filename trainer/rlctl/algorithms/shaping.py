"""From the raw score of a response to the rewards of its tokens. B sequences, T response tokens.

Order: raw score, overlong penalty, stop penalty, clip (`shape_scores`), the group's shaping
(`advantages.group_scores`), placement on the tokens (`place_rewards`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlctl.algorithms.masking import last_trained, masked


def shape_scores(
    scores_B: Tensor,
    lengths_B: Tensor,
    truncated_B: Tensor,
    *,
    clip: tuple[float, float] | None = (-10.0, 10.0),
    overlong_buffer: int = 0,
    overlong_factor: float = 1.0,
    max_len: int,
    stop_coef: float | None = None,
) -> Tensor:
    """Penalties on long and cut responses, then the clip.

    Overlong (DAPO, Yu et al., arXiv:2503.14476): over the last `overlong_buffer` tokens before `max_len`
    the penalty grows evenly from 0 to `overlong_factor`. Stop: a response cut by length
    (`truncated_B`, bool) gets `min(score, score * stop_coef)`, or `stop_coef` itself when that is negative.
    A missing score is NaN and stays NaN. `lengths_B` counts response tokens.
    """
    shaped_B = scores_B
    if overlong_buffer > 0:
        exceed_B = lengths_B - (max_len - overlong_buffer)
        shaped_B = shaped_B - exceed_B.clamp(0, overlong_buffer) / overlong_buffer * overlong_factor
    if stop_coef is not None:
        if stop_coef >= 0:
            penalised_B = torch.minimum(shaped_B, shaped_B * stop_coef)
        else:
            penalised_B = torch.full_like(shaped_B, stop_coef).where(~shaped_B.isnan(), shaped_B)
        shaped_B = torch.where(truncated_B, penalised_B, shaped_B)
    return shaped_B if clip is None else shaped_B.clamp(*clip)


def place_rewards(scores_B: Tensor, kl_BT: Tensor | None, beta: float, mask_BT: Tensor) -> Tensor:
    """Rewards of the tokens: `-beta * kl` on every trained token, the score added on the last one.

    `kl_BT` is None when the KL stands in the loss or there is no reference. A sequence without a trained
    token gets no reward anywhere.
    """
    rewards_BT = masked(scores_B.unsqueeze(-1).expand(mask_BT.shape), last_trained(mask_BT))
    if kl_BT is not None:
        rewards_BT = rewards_BT - beta * masked(kl_BT, mask_BT)
    return rewards_BT
