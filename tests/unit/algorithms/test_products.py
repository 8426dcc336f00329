"""float32 products of bfloat16 matrices, and log-probs whose backward products are rounded."""

from __future__ import annotations

import pytest
import torch

from rlctl.algorithms.logprobs import token_logprobs
from rlctl.algorithms.products import float_product


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("kept", [False, True])
def test_a_product_is_exact_to_its_result_and_leaves_no_setting(dtype: torch.dtype, kept: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(rows, 96, generator=generator).to(dtype) for rows in (33, 257))
    before = torch.backends.mkldnn.matmul.fp32_precision
    wide = torch.promote_types(dtype, torch.float32)
    product = float_product(a, b, b.to(wide) if kept else None)
    assert product.dtype is wide
    torch.testing.assert_close(product.double(), a.double() @ b.double().T, rtol=1e-6, atol=1e-4)
    assert torch.backends.mkldnn.matmul.fp32_precision == before


def test_float32_products_around_it_keep_their_precision() -> None:
    """A bfloat16 product would be off by 1e-2 here."""
    a, b = torch.randn(64, 96), torch.randn(80, 96)
    float_product(a.bfloat16(), b.bfloat16())
    torch.testing.assert_close((a @ b.T).double(), a.double() @ b.double().T, rtol=1e-5, atol=1e-4)


def test_rounded_backward_products_come_close_to_exact_ones() -> None:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(150, 32, generator=generator).bfloat16().requires_grad_()
    weight = torch.randn(90, 32, generator=generator).bfloat16().requires_grad_()
    targets = torch.randint(0, 90, (150,), generator=generator)
    factor = torch.randn(150, generator=generator)
    found = []
    for dtype in (torch.bfloat16, None):
        logprobs, _ = token_logprobs(hidden, weight, targets, 0.7, 64, grad_dtype=dtype)
        found.append([logprobs, *torch.autograd.grad((logprobs * factor).sum(), (hidden, weight))])
    assert torch.equal(found[0][0], found[1][0])
    for rounded, exact in zip(found[0][1:], found[1][1:], strict=True):
        assert float((rounded - exact).float().norm() / exact.float().norm()) < 1e-2
