"""Choosing samples of a prompt by their score. B samples, P pairs; a missing score is NaN and never chosen."""

from __future__ import annotations

import torch
from torch import Tensor


def best_of(scores_B: Tensor, group_B: Tensor) -> Tensor:
    """Index of the best sample of each group (rejection sampling); the first wins ties.

    In the order of the groups' first appearance; a group without any score is left out.
    """
    return torch.tensor(
        [max(members, key=lambda i: float(scores_B[i])) for members in _groups(scores_B, group_B)], dtype=torch.int64
    )


def best_and_worst(scores_B: Tensor, group_B: Tensor) -> Tensor:
    """`[P, 2]`: indices of the best and the worst sample of each group (iterative DPO), the first wins ties.

    A group whose scores are all equal gives no pair.
    """
    pairs = []
    for members in _groups(scores_B, group_B):
        best = max(members, key=lambda i: float(scores_B[i]))
        worst = min(members, key=lambda i: float(scores_B[i]))
        if scores_B[best] > scores_B[worst]:
            pairs.append((best, worst))
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)


def _groups(scores_B: Tensor, group_B: Tensor) -> list[list[int]]:
    members: dict[int, list[int]] = {}
    for index, group in enumerate(group_B.tolist()):
        if not scores_B[index].isnan():
            members.setdefault(group, []).append(index)
    return list(members.values())
