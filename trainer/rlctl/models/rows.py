"""Rows of a tensor by index, with gradients that copy where they can.

Shapes: N rows of the source, M entries of an index.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass(frozen=True)
class Repeats:
    """Which entries of an index name a row that another entry names too."""

    first_F: Tensor
    """The entries that name their row first."""
    again_A: Tensor
    """The others."""
    shared_S: Tensor
    """The rows that are named more than once."""
    share_A: Tensor
    """Which of `shared_S` an entry of `again_A` names."""

    @classmethod
    def of(cls, index_M: Tensor) -> Repeats | None:
        """None for an index that names each row once."""
        order_M = index_M.argsort(stable=True)
        sorted_M = index_M[order_M]
        new_M = torch.ones_like(index_M, dtype=torch.bool)
        new_M[1:] = sorted_M[1:] != sorted_M[:-1]
        if bool(new_M.all()):
            return None
        shared_S, share_A = sorted_M[~new_M].unique_consecutive(return_inverse=True)
        return cls(order_M[new_M], order_M[~new_M], shared_S, share_A)


class _Take(torch.autograd.Function):
    """`x[index]` along dim 0; the gradient is a copy, and a sum in float32 only where the index repeats itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, repeats: Repeats | None) -> Tensor:
        ctx.save_for_backward(index)
        ctx.rows, ctx.repeats = x.shape[0], repeats
        return x.index_select(0, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (index,) = ctx.saved_tensors
        repeats: Repeats | None = ctx.repeats
        out = grad.new_zeros(ctx.rows, *grad.shape[1:])
        if repeats is None:
            return out.index_copy_(0, index, grad), None, None
        out.index_copy_(0, index[repeats.first_F], grad.index_select(0, repeats.first_F))
        wide = torch.promote_types(grad.dtype, torch.float32)
        sums = out.index_select(0, repeats.shared_S).to(wide)
        sums.index_add_(0, repeats.share_A, grad.index_select(0, repeats.again_A).to(wide))
        return out.index_copy_(0, repeats.shared_S, sums.to(grad.dtype)), None, None


class _Place(torch.autograd.Function):
    """The inverse: rows of `x` at `index` of a zero tensor with `rows` rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, rows: int) -> Tensor:
        ctx.save_for_backward(index)
        return x.new_zeros(rows, *x.shape[1:]).index_copy_(0, index, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (index,) = ctx.saved_tensors
        return grad.index_select(0, index), None, None


def take(x: Tensor, index: Tensor, repeats: Repeats | None = None) -> Tensor:
    """Rows of `x` (dim 0) at `index`; what it names more than once is told by `repeats`."""
    return _Take.apply(x, index, repeats)


def place(x: Tensor, index: Tensor, rows: int) -> Tensor:
    """A zero tensor of `rows` rows with `x` at `index`, which has no repeats."""
    return _Place.apply(x, index, rows)
