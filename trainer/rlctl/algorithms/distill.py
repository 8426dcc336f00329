"""Distillation: a student learns a teacher's distribution over each next token.

Shapes: N tokens (label positions only), V vocabulary, D and E the hidden sizes of student and teacher.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlctl.algorithms.logprobs import CHUNK_ELEMENTS


def soft_cross_entropy(
    hidden_ND: Tensor,
    head_weight_VD: Tensor,
    teacher_hidden_NE: Tensor,
    teacher_weight_VE: Tensor,
    chunk: int | None = None,
) -> Tensor:
    """`-sum over v of p_teacher(v) * log p_student(v)` at each position, `[N]` in fp32.

    Neither `[N, V]` table exists whole: both are made chunk by chunk (`chunk` tokens; by default 64 MiB), again in
    the backward pass. Gradients flow to the student's hidden states and head only. Raises ValueError when
    the vocabularies differ in size.
    """
    if head_weight_VD.shape[0] != teacher_weight_VE.shape[0]:
        raise ValueError(
            f"teacher and student must share a vocabulary: {teacher_weight_VE.shape[0]} and "
            f"{head_weight_VD.shape[0]} tokens"
        )
    rows = chunk if chunk is not None else max(1, CHUNK_ELEMENTS // head_weight_VD.shape[0])
    result = _SoftCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden_ND, head_weight_VD, teacher_hidden_NE, teacher_weight_VE, rows
    )
    return cast(Tensor, result)


def distillation_loss(logprobs_N: Tensor, soft_N: Tensor, alpha: float) -> Tensor:
    """`(1 - alpha) * CE(label) + alpha * soft cross-entropy` (Hinton et al., arXiv:1503.02531), per position."""
    return -(1.0 - alpha) * logprobs_N + alpha * soft_N


class _SoftCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, teacher_hidden: Tensor, teacher_weight: Tensor, rows: int
    ) -> Tensor:
        wide = torch.promote_types(torch.promote_types(hidden.dtype, weight.dtype), torch.float32)
        loss = torch.empty(hidden.shape[0], dtype=wide, device=hidden.device)
        for start in range(0, hidden.shape[0], rows):
            part = slice(start, start + rows)
            student = _log_softmax(hidden[part], weight, wide)
            teacher = _log_softmax(teacher_hidden[part], teacher_weight, wide).exp_()
            loss[part] = -(teacher * student).sum(-1)
        ctx.save_for_backward(hidden, weight, teacher_hidden, teacher_weight)
        ctx.rows, ctx.wide = rows, wide
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, teacher_hidden, teacher_weight = ctx.saved_tensors
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        grad_hidden = torch.empty_like(hidden) if needs_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=ctx.wide) if needs_weight else None
        for start in range(0, hidden.shape[0], ctx.rows):
            part = slice(start, start + ctx.rows)
            # d loss / d logits = p_student - p_teacher
            grad = _log_softmax(hidden[part], weight, ctx.wide).exp_()
            grad -= _log_softmax(teacher_hidden[part], teacher_weight, ctx.wide).exp_()
            grad *= grad_loss[part].unsqueeze(-1)
            if grad_hidden is not None:
                grad_hidden[part] = (grad @ weight.to(ctx.wide)).to(hidden.dtype)
            if grad_weight is not None:
                grad_weight.addmm_(grad.T, hidden[part].to(ctx.wide))
        return grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype), None, None, None


def _log_softmax(hidden: Tensor, weight: Tensor, wide: torch.dtype) -> Tensor:
    """In fp32 throughout: distributions are compared over the whole vocabulary, tails included."""
    return torch.log_softmax(hidden.to(wide) @ weight.to(wide).T, dim=-1)
