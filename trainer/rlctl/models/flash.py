"""FlashAttention over ranks that share sequences; on GPUs, where the packages are. See `rlctl.models.attention`.

Shapes: R rows, L columns (of this rank, for the ring), H query heads, K key-value heads, D head size.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from torch import Tensor

from rlctl.core.errors import ConfigError


def check_ring() -> None:
    """Raises ConfigError where ring attention cannot run."""
    missing = [name for name in ("flash_attn", "ring_flash_attn") if importlib.util.find_spec(name) is None]
    if missing or not torch.cuda.is_available():
        raise ConfigError(
            "sequence_parallel_attention = 'ring' needs GPUs and the packages flash-attn and ring-flash-attn; "
            "'all_to_all' runs everywhere"
        )


def flash(
    q: Tensor, k: Tensor, v: Tensor, ends: Tensor | None, longest: int, scale: float, window: int | None
) -> Tensor:
    """Causal attention over whole rows: `[R, L, H, D]`; `ends` are the cumulative lengths of one packed row."""
    import flash_attn

    options: dict[str, Any] = {"softmax_scale": scale, "causal": True, "window_size": _window(window)}
    if ends is None:
        return flash_attn.flash_attn_func(q, k, v, **options)
    return flash_attn.flash_attn_varlen_func(q[0], k[0], v[0], ends, ends, longest, longest, **options).unsqueeze(0)


def ring(q: Tensor, k: Tensor, v: Tensor, ends: Tensor | None, group: Any, scale: float, window: int | None) -> Tensor:
    """Causal attention of this rank's stretch of one packed row: `[1, L, H, D]`; keys and values come round.

    A rank needs the keys of earlier stretches only, head by head, and the heads need not divide among the ranks.
    """
    import ring_flash_attn

    assert ends is not None, "ring attention is over a packed row"
    mine = ring_flash_attn.llama3_flash_attn_prepare_cu_seqlens(ends, True, group.rank, group.size)
    ends_q, ends_k, longest_q, longest_k, keys = mine
    out = ring_flash_attn.llama3_flash_attn_varlen_func(
        q[0],
        k[0],
        v[0],
        ends_q,
        ends_k,
        longest_q,
        longest_k,
        heads_k_stride=1,
        local_k_slice=keys,
        softmax_scale=scale,
        causal=True,
        window_size=_window(window),
        group=group.handle,
    )
    return out.unsqueeze(0)


def _window(window: int | None) -> tuple[int, int]:
    """Tokens seen to the left and right; -1 is no limit."""
    return (-1, -1) if window is None else (window - 1, 0)
