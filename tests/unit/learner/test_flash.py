"""FlashAttention and ring attention are called with what their packages take. The packages, which need GPUs, are stood
in for by plain attention with their signatures; two ranks of a ring are two calls."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from rlctl.core.errors import ConfigError
from rlctl.learner.batch import collate
from rlctl.learner.config import LearnerConfig
from rlctl.learner.sequence import Sequence
from rlctl.learner.spread import spread
from rlctl.models.attention import _causal
from rlctl.models.flash import check_ring, ring
from rlctl.models.sequence_parallel import SequenceGroup

LENGTHS = (5, 3, 1)


def naive(q: Tensor, k: Tensor, v: Tensor, scale: float, window: tuple[int, int]) -> Tensor:
    """`[Lq, H, D]` on `[Lk, K, D]`, the last query at the last key."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    distance = torch.arange(len(k) - len(q), len(k))[:, None] - torch.arange(len(k))
    hidden = (distance < 0) | (distance > window[0] if window[0] >= 0 else distance < 0)
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


def varlen(q: Tensor, k: Tensor, v: Tensor, ends_q: Tensor, ends_k: Tensor, longest_q: int, longest_k: int,
           softmax_scale: float, causal: bool, window_size: tuple[int, int], **others: Any) -> Tensor:  # fmt: skip
    assert causal and longest_q >= ends_q.diff().max() and longest_k >= ends_k.diff().max()
    assert ends_q.dtype is torch.int32
    parts = zip(q.split(ends_q.diff().tolist()), k.split(ends_k.diff().tolist()), v.split(ends_k.diff().tolist()),
                strict=True)  # fmt: skip
    return torch.cat([naive(*part, softmax_scale, window_size) for part in parts])


def rows(q: Tensor, k: Tensor, v: Tensor, softmax_scale: float, causal: bool, window_size: tuple[int, int]) -> Tensor:
    return torch.stack([naive(*row, softmax_scale, window_size) for row in zip(q, k, v, strict=True)])


@pytest.fixture
def packed() -> Any:
    ids = [torch.arange(4, 4 + length) for length in LENGTHS]
    found = [Sequence(row[:1], row[1:], torch.ones(len(row) - 1, dtype=torch.bool)) for row in ids]
    return collate(found, packing=True, trained_only=False, device=torch.device("cpu"))


@pytest.fixture
def states() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(1, 10, heads, 8, generator=generator) for heads in (4, 2, 2))  # type: ignore[return-value]


@pytest.mark.parametrize("window", [None, 2])
def test_flash_is_the_kernel_of_an_exchange(
    packed: Any, states: tuple[Tensor, Tensor, Tensor], window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = SimpleNamespace(flash_attn_varlen_func=varlen, flash_attn_func=rows)
    monkeypatch.setitem(sys.modules, "flash_attn", fake)
    layout = spread(packed, SequenceGroup(0, 2, None)).layout
    assert layout.cu_lengths is not None and layout.cu_lengths.tolist() == [0, 5, 8, 9, 10]
    given = _causal(*states, layout, 0.3, window, "flash_attention_2")
    wanted = _causal(*states, layout, 0.3, window, "sdpa")
    torch.testing.assert_close(given[:, :9], wanted[:, :9])
    grid = [x.view(2, 5, *x.shape[2:]) for x in states]
    plain = type(layout)()
    torch.testing.assert_close(_causal(*grid, plain, 0.3, window, "flash_attention_2"),
                               _causal(*grid, plain, 0.3, window, "sdpa"))  # fmt: skip


def prepare(ends: Tensor, causal: bool, rank: int, size: int) -> tuple[Tensor, Tensor, int, int, slice]:
    """For 10 tokens on two ranks in sequences that end at 5, 8, 9 and 10: no sequence lies on both."""
    assert causal and ends.tolist() == [0, 5, 8, 9, 10] and size == 2
    mine = torch.tensor([[0, 5], [0, 3, 4, 5]][rank], dtype=torch.int32)
    return mine, mine, 5, 5, slice(5 * rank, 5 * rank + 5)


def test_ring_is_called_with_this_rank_of_the_packed_row(
    packed: Any, states: tuple[Tensor, Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, *ends: Any, local_k_slice: slice, heads_k_stride: int, group: Any,
                 **options: Any) -> Tensor:  # fmt: skip
        assert group == "handle" and heads_k_stride == 1
        whole = [x[0][local_k_slice] for x in states[1:]]
        return varlen(q, *whole, *ends, **options)

    fake = SimpleNamespace(llama3_flash_attn_prepare_cu_seqlens=prepare, llama3_flash_attn_varlen_func=function)
    monkeypatch.setitem(sys.modules, "ring_flash_attn", fake)
    parts = []
    for rank in (0, 1):
        group = SequenceGroup(rank, 2, "handle")
        layout = spread(packed, group).layout
        mine = [x[:, 5 * rank : 5 * rank + 5] for x in states]
        parts.append(ring(*mine, layout.cu_lengths, group, 0.3, None))
    wanted = _causal(*states, layout, 0.3, None, "sdpa")
    torch.testing.assert_close(torch.cat(parts, 1)[:, :9], wanted[:, :9])


def test_ring_is_refused_where_it_cannot_run() -> None:
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="'all_to_all' runs everywhere"):
            check_ring()
    with pytest.raises(ValidationError, match="packing = true"):
        LearnerConfig(sequence_parallel_attention="ring", packing=False)
