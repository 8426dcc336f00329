"""Products of bfloat16 matrices with float32 results on CPUs, where no kernel of PyTorch's gives them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor


@cache
def slow_bfloat16() -> bool:
    """Whether this CPU lacks bfloat16 units."""
    return not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def float_product(a_MD: Tensor, b_ND: Tensor, wide_ND: Tensor | None = None) -> Tensor:
    """`a @ b.T`, float32 or wider. On a CPU exact to that even where inputs are half types.

    `wide_ND` is `b_ND` in the result's type, where the caller has it already. On other devices the product is
    computed in the inputs' type (the wider of the two) and then widened.

    Not beside other products in other threads: for its duration float32 products of the process run in bfloat16
    units, which for bfloat16 values changes nothing.
    """
    common = torch.promote_types(a_MD.dtype, b_ND.dtype)
    wide = torch.promote_types(common, torch.float32)
    if a_MD.device.type != "cpu":
        return (a_MD.to(common) @ b_ND.to(common).T).to(wide)
    wide_ND = b_ND.to(wide) if wide_ND is None else wide_ND
    units = a_MD.dtype is torch.bfloat16 and b_ND.dtype is torch.bfloat16 and not slow_bfloat16()
    with _bfloat16_units() if units else nullcontext():
        return a_MD.to(wide) @ wide_ND.T


@contextmanager
def _bfloat16_units() -> Iterator[None]:
    settings = cast(Any, torch.backends.mkldnn).matmul
    before = settings.fp32_precision
    settings.fp32_precision = "bf16"
    try:
        yield
    finally:
        settings.fp32_precision = before
