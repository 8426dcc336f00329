"""From the losses of tokens to one number. B sequences, T response tokens."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from rlctl.algorithms.masking import masked, masked_mean

Aggregation = Literal["token", "sequence", "constant"]


def aggregate(
    loss_BT: Tensor,
    mask_BT: Tensor,
    mode: Aggregation,
    *,
    total_tokens: float,
    total_sequences: float,
    max_len: int,
) -> Tensor:
    """This micro-batch's share of the step's loss; the shares of all micro-batches and ranks add up to it.

    token: mean over the step's trained tokens; sequence: mean over each sequence's trained tokens, then
    over sequences; constant: sum divided by `max_len * total_sequences` (Dr. GRPO, Liu et al.,
    arXiv:2503.20783). The totals are those of the whole optimizer step: trained tokens, and sequences
    with at least one. A micro-batch without a trained token gives exactly 0, still with a graph.
    """
    if mode == "sequence":
        return masked_mean(loss_BT, mask_BT).sum() / max(total_sequences, 1)
    summed = masked(loss_BT, mask_BT).sum()
    if mode == "token":
        return summed / max(total_tokens, 1)
    return summed / max(max_len * total_sequences, 1)
