"""Sequences split over the ranks of a group: each holds a stretch of every row of tokens.

All but attention works on one token at a time. Attention exchanges (Jacobs et al., 2023, "Ulysses"): from a stretch
of the tokens with all heads to all tokens with some heads, and back after the kernel, which thus sees whole
sequences and needs no other mask, packed or padded. It runs on any backend with all-to-all, gloo included.

Shapes: R rows, L columns of the whole pass, S = L / k columns of one rank, H heads, D head size; k ranks of a group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlctl.core.errors import ConfigError


@dataclass(frozen=True)
class SequenceGroup:
    """The ranks that share sequences, and which of them this is."""

    rank: int
    size: int
    handle: Any
    """The torch.distributed group."""

    def to_heads(self, x: Tensor) -> Tensor:
        """`[R, S, H, D]` -> `[R, L, H/k, D]`; H is a multiple of k."""
        rows, columns, heads, size = x.shape
        parts = x.view(rows, columns, self.size, heads // self.size, size).permute(2, 0, 1, 3, 4)
        stretches = _Exchange.apply(parts.contiguous(), self.handle)
        return stretches.transpose(0, 1).reshape(rows, self.size * columns, heads // self.size, size)

    def to_columns(self, x: Tensor) -> Tensor:
        """The way back: `[R, L, H/k, D]` -> `[R, S, H, D]`."""
        rows, length, heads, size = x.shape
        parts = x.reshape(rows, self.size, length // self.size, heads, size).transpose(0, 1)
        chunks = _Exchange.apply(parts.contiguous(), self.handle)
        return chunks.permute(1, 2, 0, 3, 4).reshape(rows, length // self.size, self.size * heads, size)

    def gather(self, x: Tensor) -> Tensor:
        """Equally shaped tensors of all ranks, stacked: `[k, ...]`.

        Every rank goes on to compute the *same* loss from it, so the gradient of its own part is what it has; it is
        not summed over the ranks.
        """
        return _Gather.apply(x.contiguous(), self.rank, self.size, self.handle)

    def summed(self, x: Tensor) -> Tensor:
        """The sum over the ranks, under the same condition."""
        return self.gather(x).sum(0)


def spread_heads(heads: int, query_heads: int, ranks: int) -> int:
    """How often key-value heads are repeated so that every rank gets equally many.

    Raises ConfigError when the query heads cannot be shared out.
    """
    if query_heads % ranks:
        raise ConfigError(
            f"sequence_parallel = {ranks} does not divide the {query_heads} attention heads: choose a divisor",
            reason="SEQUENCE_PARALLEL_HEADS",
        )
    repeat = 1
    while heads * repeat % ranks or query_heads % (heads * repeat):
        repeat += 1
    return repeat


class _Exchange(torch.autograd.Function):
    """Part j of rank i becomes part i of rank j, its own transpose."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, handle: Any) -> Tensor:
        ctx.handle = handle
        out = torch.empty_like(parts)
        dist.all_to_all_single(out, parts, group=handle)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        out = torch.empty_like(grad, memory_format=torch.contiguous_format)
        dist.all_to_all_single(out, grad.contiguous(), group=ctx.handle)
        return out, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rank: int, size: int, handle: Any) -> Tensor:
        ctx.rank = rank
        parts = [torch.empty_like(x) for _ in range(size)]
        dist.all_gather(parts, x, group=handle)
        return torch.stack(parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return grad[ctx.rank], None, None, None
