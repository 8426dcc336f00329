"""Masks. B sequences, T response tokens; a mask is bool, true on the tokens that are trained."""

from __future__ import annotations

import torch
from torch import Tensor


def masked(x_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """`x` where the mask is true, exactly 0 elsewhere, whatever stands there (`NaN * 0` would be NaN)."""
    return torch.where(mask_BT, x_BT, torch.zeros((), dtype=x_BT.dtype, device=x_BT.device))


def masked_mean(x_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean of each sequence's trained tokens, `[B]`; 0 for a sequence without any."""
    return masked(x_BT, mask_BT).sum(-1) / mask_BT.sum(-1).clamp(min=1)


def last_trained(mask_BT: Tensor) -> Tensor:
    """True on the last trained token of each sequence, `[B, T]` bool."""
    counted = mask_BT.cumsum(-1)
    return mask_BT & (counted == mask_BT.sum(-1, keepdim=True))
