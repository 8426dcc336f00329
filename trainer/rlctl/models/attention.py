"""Causal attention over sequences that lie packed in one row or padded on the right, on any device.

transformers calls `attention` under the name `NAME`. A packed row is spread onto a grid a *bucket* (rows of like
length), so that no score is ever computed across two sequences; linear layers, norms and the MLP see packed
tokens only. With right padding the causal mask alone keeps pads out of real tokens, so no other mask exists.

Shapes: B rows of a bucket, T its longest row, N packed tokens, H query heads, K key-value heads, D head size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import AttentionInterface, PretrainedConfig

from rlctl.core.errors import ConfigError
from rlctl.models.flash import flash, ring
from rlctl.models.rows import Repeats, place, take
from rlctl.models.sequence_parallel import SequenceGroup, spread_heads
from rlctl.models.widen import needs_widening

NAME = "rlctl_causal"
#: CPU rows up to this length use the explicit kernel; SDPA's backward pass on CPUs is slower there.
EXPLICIT_MAX = 512


@dataclass(frozen=True)
class Bucket:
    """Rows of like length within a packed row."""

    tokens_M: Tensor
    """Position in the packed row of each token of the bucket, int64."""
    slots_M: Tensor
    """Where that token lies on the flat `rows * length` grid."""
    rows: int
    length: int
    repeats: Repeats | None = None
    """Where sequences share a prompt, whose tokens are in the packed row once, and in the rows of all of them."""
    own_P: Tensor | None = None
    """The entries of `tokens_M` whose outputs are kept; a token of several rows is kept once. None: all."""


@dataclass(frozen=True)
class Layout:
    """How the tokens of a forward pass belong to sequences; no buckets: one sequence a row, padded on the right."""

    buckets: tuple[Bucket, ...] = ()
    group: SequenceGroup | None = None
    """The columns are split over these ranks; everything else here is about the whole."""
    cu_lengths: Tensor | None = None
    """Cumulative lengths of a packed row for flash attention, int32."""
    max_length: int = 0
    """Longest sequence, tokens."""


class _Explicit(torch.autograd.Function):
    """softmax(q k' scale + mask) v with the scores held, in three batched products and no other large tensor."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
        probs = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=scale)
        probs = torch.softmax(probs, -1)
        ctx.save_for_backward(q, k, v, probs)
        ctx.scale = scale
        return probs @ v

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, probs = ctx.saved_tensors
        grad_v = probs.transpose(1, 2) @ grad
        grad_scores = torch._softmax_backward_data(grad @ v.transpose(1, 2), probs, -1, probs.dtype)
        grad_scores.mul_(ctx.scale)
        return grad_scores @ k, grad_scores.transpose(1, 2) @ q, grad_v, None, None


def causal_mask(length: int, window: int | None, like: Tensor) -> Tensor:
    """`[T, T]`, 0 where a query may look and -inf elsewhere; `window` tokens back at most (itself included)."""
    ahead = torch.arange(length, device=like.device)
    distance = ahead.unsqueeze(1) - ahead.unsqueeze(0)
    hidden = distance < 0
    if window is not None:
        hidden |= distance >= window
    return torch.zeros(length, length, dtype=like.dtype, device=like.device).masked_fill_(hidden, -math.inf)


def _explicit(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
    """Grid `[B, T, H, D]`, `[B, T, K, D]` twice -> `[B, T, H, D]`; the heads of a group share one product."""
    rows, length, heads, size = q.shape
    groups = heads // k.shape[2]
    dtype = q.dtype
    if needs_widening(q):
        q, k, v = q.float(), k.float(), v.float()
    keys = k.permute(0, 2, 1, 3).reshape(rows * k.shape[2], length, size)
    values = v.permute(0, 2, 1, 3).reshape(rows * k.shape[2], length, v.shape[3])
    queries = q.view(rows, length, k.shape[2], groups, size).permute(0, 2, 3, 1, 4)
    queries = queries.reshape(rows * k.shape[2], groups * length, size)
    mask = causal_mask(length, window, q).repeat(groups, 1).unsqueeze(0)
    out = _Explicit.apply(queries, keys, values, mask, scale)
    out = out.view(rows, k.shape[2], groups, length, v.shape[3]).permute(0, 3, 1, 2, 4)
    return out.reshape(rows, length, heads, v.shape[3]).to(dtype)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
    """The same through PyTorch's fused kernel."""
    length = q.shape[1]
    windowed = window is not None and window < length
    mask = causal_mask(length, window, q) if windowed else None
    out = nn.functional.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=mask,
        is_causal=not windowed,
        scale=scale,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return out.transpose(1, 2)


def _grid(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None, kernel: str) -> Tensor:
    if kernel == "auto":
        kernel = "eager" if q.device.type == "cpu" and q.shape[1] <= EXPLICIT_MAX else "sdpa"
    return (_explicit if kernel == "eager" else _sdpa)(q, k, v, scale, window)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    layout: Layout | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """transformers' attention hook: `query [R, H, L, D]`, `key`, `value [R, K, L, D]` -> `[R, L, H, D]`.

    Raises ConfigError for a model that wants what this kernel lacks.
    """
    unknown = [name for name in ("softcap", "s_aux", "position_bias") if others.get(name) is not None]
    if layout is None or attention_mask is not None or dropout or unknown:
        wants = "attention dropout" if dropout else ", ".join(unknown) or "an attention mask of its own"
        raise ConfigError(
            f"{type(module).__name__} wants {wants}, which packed attention does not have; "
            "use a model without it, or flash_attention_2 on a GPU",
            reason="UNSUPPORTED_MODEL",
        )
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    kernel: str = cast(PretrainedConfig, module.config).rlctl_kernel
    q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    if layout.group is None:
        return _causal(q, k, v, layout, scale, sliding_window, kernel), None
    if kernel == "ring":
        return ring(q, k, v, layout.cu_lengths, layout.group, scale, sliding_window), None
    repeat = spread_heads(k.shape[2], q.shape[2], layout.group.size)
    k, v = (x.repeat_interleave(repeat, 2) if repeat > 1 else x for x in (k, v))
    q, k, v = (layout.group.to_heads(x) for x in (q, k, v))
    return layout.group.to_columns(_causal(q, k, v, layout, scale, sliding_window, kernel)), None


def _causal(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, scale: float, sliding_window: int | None, kernel: str
) -> Tensor:
    """Whole rows, packed or padded: `[R, L, H, D]`."""
    if kernel == "flash_attention_2":
        return flash(q, k, v, layout.cu_lengths, layout.max_length, scale, sliding_window)
    if not layout.buckets:
        return _grid(q, k, v, scale, sliding_window, kernel)
    q, k, v = q[0], k[0], v[0]
    only = layout.buckets[0] if len(layout.buckets) == 1 else None
    whole = only is not None and only.repeats is None and only.tokens_M.numel() == q.shape[0]
    out: Tensor | None = None
    for bucket in layout.buckets:
        cells, shape = bucket.rows * bucket.length, (bucket.rows, bucket.length)
        parts = [x if whole else take(x, bucket.tokens_M, bucket.repeats) for x in (q, k, v)]
        gq, gk, gv = (place(x, bucket.slots_M, cells).view(*shape, *x.shape[1:]) for x in parts)
        tokens, slots = bucket.tokens_M, bucket.slots_M
        if bucket.own_P is not None:
            tokens, slots = tokens[bucket.own_P], slots[bucket.own_P]
        rows = take(_grid(gq, gk, gv, scale, sliding_window, kernel).flatten(0, 1), slots)
        if whole:
            return rows.unsqueeze(0)
        rows = place(rows, tokens, q.shape[0])
        out = rows if out is None else out + rows
    assert out is not None
    return out.unsqueeze(0)


AttentionInterface.register(NAME, attention)
