"""Objectives over given tokens. B sequences, T tokens, N positions, R reward tokens, V vocabulary."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rlctl.algorithms.masking import masked


def sft_loss(logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Cross-entropy of each trained token, 0 elsewhere; `aggregate` makes it one number."""
    return -masked(logprobs_BT, mask_BT)


def process_reward_loss(logits_NR: Tensor, labels_N: Tensor) -> Tensor:
    """Cross-entropy of a process reward model at the placeholder positions, `[N]` (Lightman et al., arXiv:2305.20050).

    `logits_NR` are the logits at those positions over the reward tokens (positive first). Integer labels
    name the right reward token. Float labels p in [0, 1] are the probability of the first of two tokens:
    the target is `[p, 1 - p]`. Raises ValueError on float labels with another number of tokens.
    """
    logp_NR = logits_NR.float().log_softmax(-1) if logits_NR.dtype != torch.float64 else logits_NR.log_softmax(-1)
    if not labels_N.is_floating_point():
        return F.nll_loss(logp_NR, labels_N, reduction="none")
    if logits_NR.shape[-1] != 2:
        raise ValueError(f"soft labels are for two reward tokens, not {logits_NR.shape[-1]}")
    return -(labels_N * logp_NR[:, 0] + (1.0 - labels_N) * logp_NR[:, 1])
