"""Loss of the critic. B sequences, T response tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from rlctl.algorithms.masking import masked


def value_loss(
    values_BT: Tensor,
    old_values_BT: Tensor,
    returns_BT: Tensor,
    mask_BT: Tensor,
    clip: float | None = 0.2,
) -> Tensor:
    """`0.5 * max((clip(v, v_old - clip, v_old + clip) - R)^2, (v - R)^2)` of each token, 0 where masked.

    The clip (PPO's reference implementation) holds the values near those before the step; None: plain squares.
    """
    error_BT = masked(values_BT - returns_BT, mask_BT)
    squared_BT = error_BT.square()
    if clip is not None:
        moved_BT = masked(values_BT - old_values_BT, mask_BT).clamp(-clip, clip)
        held_BT = moved_BT + masked(old_values_BT - returns_BT, mask_BT)
        squared_BT = torch.maximum(squared_BT, held_BT.square())
    return 0.5 * squared_BT
