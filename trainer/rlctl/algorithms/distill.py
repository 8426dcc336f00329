"""Distillation: a student learns a teacher's distribution over each next token.

Shapes: N tokens (label positions only), V vocabulary, D and E the hidden sizes of student and teacher, J the tokens
that a teacher tells at each position.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlctl.algorithms.logprobs import CHUNK_ELEMENTS


class Told(NamedTuple):
    """A teacher's distributions: of all tokens, or of the likeliest with what the others have together."""

    logprobs_NJ: Tensor
    """Of all tokens in the order of their ids (J = V), or of those in `ids_NJ`."""
    ids_NJ: Tensor | None = None
    tail_N: Tensor | None = None
    """With `ids_NJ`: log of the probability of all tokens that are not told together."""


class _Target(NamedTuple):
    """What the student should say at some positions: probabilities that sum to 1."""

    probs_NJ: Tensor
    ids_NJ: Tensor | None = None
    tail_N: Tensor | None = None
    """With `ids_NJ`: probability of the others together."""


def tell(logits_NV: Tensor, k: int) -> Told:
    """The distributions of these logits: of the `k` likeliest tokens (0, or V and above: of all), in fp32 or wider."""
    wide = torch.promote_types(logits_NV.dtype, torch.float32)
    logprobs_NV = torch.log_softmax(logits_NV, dim=-1, dtype=wide)
    if not 0 < k < logprobs_NV.shape[-1]:
        return Told(logprobs_NV)
    likeliest = logprobs_NV.topk(k, dim=-1)
    tail_N = _tail(logprobs_NV, likeliest.indices)
    return Told(likeliest.values, likeliest.indices.to(torch.int32), tail_N)


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
    _check_vocabulary(teacher_weight_VE.shape[0], head_weight_VD)

    def target(part: slice, wide: torch.dtype) -> _Target:
        return _Target(_log_softmax(teacher_hidden_NE[part], teacher_weight_VE, wide).exp_())

    return _cross_entropy(hidden_ND, head_weight_VD, target, chunk)


def told_cross_entropy(hidden_ND: Tensor, head_weight_VD: Tensor, told: Told, chunk: int | None = None) -> Tensor:
    """As `soft_cross_entropy`, to distributions that were told; they may lie on another device, and be bfloat16.

    Where the teacher told some tokens alone, all others are one more outcome, whose probability is the sum of theirs,
    for the teacher and for the student:

        -(sum over told v of p_teacher(v) * log p_student(v)) - p_teacher(others) * log p_student(others)

    It is least where the student gives every told token, and the others together, the teacher's probability. (Told
    probabilities that are scaled up to 1 would be least where the student gives the others nothing.) What rounding
    took from a distribution is made good: its sum is 1.
    """
    if told.ids_NJ is None:
        _check_vocabulary(told.logprobs_NJ.shape[-1], head_weight_VD)

    def target(part: slice, wide: torch.dtype) -> _Target:
        return _normalised(told, part, wide, hidden_ND.device)

    return _cross_entropy(hidden_ND, head_weight_VD, target, chunk)


def told_entropy(told: Told) -> Tensor:
    """Entropy of each distribution, `[N]` in fp32: the least that `told_cross_entropy` can be."""
    count, width = told.logprobs_NJ.shape
    rows = max(1, CHUNK_ELEMENTS // width)
    entropy_N = torch.empty(count, device=told.logprobs_NJ.device)
    for start in range(0, count, rows):
        part = slice(start, start + rows)
        target = _normalised(told, part, torch.float32, told.logprobs_NJ.device)
        entropy_N[part] = torch.special.entr(target.probs_NJ).sum(-1)
        if target.tail_N is not None:
            entropy_N[part] += torch.special.entr(target.tail_N)
    return entropy_N


def distillation_loss(logprobs_N: Tensor, soft_N: Tensor, alpha: float) -> Tensor:
    """`(1 - alpha) * CE(label) + alpha * soft cross-entropy` (Hinton et al., arXiv:1503.02531), per position."""
    return -(1.0 - alpha) * logprobs_N + alpha * soft_N


def _cross_entropy(
    hidden: Tensor, weight: Tensor, target: Callable[[slice, torch.dtype], _Target], chunk: int | None
) -> Tensor:
    rows = chunk if chunk is not None else max(1, CHUNK_ELEMENTS // weight.shape[0])
    result = _CrossEntropy.apply(hidden, weight, target, rows)  # type: ignore[no-untyped-call]
    return cast(Tensor, result)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, target: Callable[[slice, torch.dtype], _Target], rows: int
    ) -> Tensor:
        wide = torch.promote_types(torch.promote_types(hidden.dtype, weight.dtype), torch.float32)
        loss = torch.empty(hidden.shape[0], dtype=wide, device=hidden.device)
        for start in range(0, hidden.shape[0], rows):
            part = slice(start, start + rows)
            student = _log_softmax(hidden[part], weight, wide)
            wanted = target(part, wide)
            if wanted.ids_NJ is None or wanted.tail_N is None:
                loss[part] = -(wanted.probs_NJ * student).sum(-1)
            else:
                loss[part] = -(wanted.probs_NJ * student.gather(-1, wanted.ids_NJ)).sum(-1)
                loss[part] -= wanted.tail_N * _tail(student, wanted.ids_NJ)
        ctx.save_for_backward(hidden, weight)
        ctx.target, ctx.rows, ctx.wide = target, rows, wide
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight = ctx.saved_tensors
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        grad_hidden = torch.empty_like(hidden) if needs_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=ctx.wide) if needs_weight else None
        for start in range(0, hidden.shape[0], ctx.rows):
            part = slice(start, start + ctx.rows)
            # d loss / d logits = p_student - p_teacher; within the others the teacher's mass is as the student's.
            student, wanted = _log_softmax(hidden[part], weight, ctx.wide), ctx.target(part, ctx.wide)
            if wanted.ids_NJ is None:
                grad = student.exp_().sub_(wanted.probs_NJ)
            else:
                others = (student - _tail(student, wanted.ids_NJ).unsqueeze(-1)).exp_()
                others.mul_(wanted.tail_N.unsqueeze(-1)).scatter_(-1, wanted.ids_NJ, wanted.probs_NJ)
                grad = student.exp_().sub_(others)
            grad *= grad_loss[part].unsqueeze(-1)
            if grad_hidden is not None:
                grad_hidden[part] = (grad @ weight.to(ctx.wide)).to(hidden.dtype)
            if grad_weight is not None:
                grad_weight.addmm_(grad.T, hidden[part].to(ctx.wide))
        return grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype), None, None


def _normalised(told: Told, part: slice, wide: torch.dtype, device: torch.device) -> _Target:
    logprobs = told.logprobs_NJ[part].to(device, wide)
    if told.ids_NJ is None or told.tail_N is None:
        return _Target(logprobs.softmax(-1))
    outcomes = torch.cat((logprobs, told.tail_N[part].to(device, wide).unsqueeze(-1)), dim=-1).softmax(-1)
    return _Target(outcomes[:, :-1], told.ids_NJ[part].to(device, torch.int64), outcomes[:, -1])


def _tail(logprobs: Tensor, ids: Tensor) -> Tensor:
    """Log-mass of all tokens but `ids`. Summed, not `log(1 - sum)`: of a small rest that would leave no digit."""
    return logprobs.scatter(-1, ids, float("-inf")).logsumexp(-1)


def _log_softmax(hidden: Tensor, weight: Tensor, wide: torch.dtype) -> Tensor:
    """In fp32 throughout: distributions are compared over the whole vocabulary, tails included."""
    return torch.log_softmax(hidden.to(wide) @ weight.to(wide).T, dim=-1)


def _check_vocabulary(size: int, head_weight_VD: Tensor) -> None:
    if head_weight_VD.shape[0] != size:
        raise ValueError(f"teacher and student must share a vocabulary: {size} and {head_weight_VD.shape[0]} tokens")
