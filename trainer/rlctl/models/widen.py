"""bfloat16 products on CPUs without bfloat16 units: the inputs are widened to float32, the result is rounded back.

The arithmetic is that of a bfloat16 unit (exact products, float32 sums, one rounding), several times faster than
the scalar conversion such CPUs otherwise fall back to.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rlctl.algorithms.products import float_product, slow_bfloat16


def needs_widening(x: Tensor) -> bool:
    """Whether products of `x` are better done in float32: bfloat16 on a CPU that lacks it."""
    return x.dtype is torch.bfloat16 and x.device.type == "cpu" and slow_bfloat16()


class _WideLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        out = x.float() @ weight.float().T
        return (out if bias is None else out.add_(bias.float())).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        wide = grad.float()
        flat = wide.flatten(0, -2)
        grad_x = (wide @ weight.float()).to(x.dtype) if ctx.needs_input_grad[0] else None
        grad_weight = (flat.T @ x.float().flatten(0, -2)).to(weight.dtype) if ctx.needs_input_grad[1] else None
        grad_bias = flat.sum(0).to(weight.dtype) if ctx.has_bias and ctx.needs_input_grad[2] else None
        return grad_x, grad_weight, grad_bias


def _forward(self: nn.Linear, input: Tensor) -> Tensor:
    return _WideLinear.apply(input, self.weight, self.bias)


def widen_linears(model: nn.Module) -> None:
    """Gives every bfloat16 `nn.Linear` on a CPU without bfloat16 units the widened product; else does nothing."""
    for module in model.modules():
        if type(module) is nn.Linear and needs_widening(module.weight):
            module.forward = MethodType(_forward, module)  # type: ignore[method-assign]


def _float_logits(self: nn.Linear, input: Tensor) -> Tensor:
    logits = float_product(input.flatten(0, -2), self.weight).unflatten(0, input.shape[:-1])
    return logits if self.bias is None else logits.add_(self.bias)


def widen_head(model: Any) -> None:
    """Gives a causal model float32 logits, whatever type it computes in; for inference."""
    head = model.get_output_embeddings()
    if type(head) is nn.Linear and head.weight.dtype is not torch.float32:
        head.forward = MethodType(_float_logits, head)  # type: ignore[method-assign]
