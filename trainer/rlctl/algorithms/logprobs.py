"""Log-probs of sampled tokens, without ever holding the whole `[N, V]` table.

Shapes: N tokens (flat, response positions only), V vocabulary, D hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlctl.algorithms.products import float_product

#: Elements of one fp32 logits chunk when the caller leaves the chunk open (64 MiB).
CHUNK_ELEMENTS = 1 << 24
#: The log-prob of a forbidden token (logit -inf) in sums over tokens, so that `p * log p` is 0 and not NaN.
_LEAST = -1e4
#: Rows of logits that a CPU works on at once: so many elements, but no fewer rows than keep a product fast.
_CPU_ELEMENTS = 6 << 20
_CPU_ROWS = 64


def token_logprobs(
    hidden_ND: Tensor,
    head_weight_VD: Tensor,
    targets_N: Tensor,
    temperature: float = 1.0,
    chunk: int | None = None,
    bias: Tensor | None = None,
    with_entropy: bool = False,
    grad_dtype: torch.dtype | None = None,
    wide_weight_VD: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`log softmax((hidden @ weight.T + bias) / temperature)[target]` a token, and the entropy if asked.

    `hidden_ND` holds the state at the position *before* each target. The product runs in the inputs'
    type (the wider of the two; on a CPU with an fp32 result), everything after it in fp32 (fp64 for fp64
    inputs). Both results have a gradient to hidden, weight and bias; the backward pass recomputes the
    logits chunk by chunk, and the weight's gradient is summed in fp32. The weight must therefore be whole
    (not partitioned) in the backward pass too.

    `grad_dtype` is the type of the backward pass's two products, by default that of the forward one's; the
    probabilities in them are exact to fp32 before they are rounded to it.
    `wide_weight_VD` is the weight in the result's type, where the caller keeps it so.
    `chunk` is the number of tokens a chunk holds; by default as many as keep a chunk at 64 MiB.
    Returns `(logprobs_N, entropy_N or None)` in fp32. Raises ValueError on a temperature that is not above 0.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, not {temperature}")
    rows = chunk if chunk is not None else max(1, CHUNK_ELEMENTS // max(1, head_weight_VD.shape[0]))
    if rows < 1:
        raise ValueError(f"chunk must be at least 1 token, not {rows}")
    result = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden_ND, head_weight_VD, bias, targets_N, temperature, rows, with_entropy, grad_dtype, wide_weight_VD
    )
    return cast(tuple[Tensor, Tensor | None], result)


class _Head:
    """Scaled logits, block by block."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, temperature: float, wide: torch.dtype, wide_weight: Tensor | None
    ) -> None:
        self._weight, self._bias, self._temperature = weight, bias, temperature
        self._wide_weight = weight.to(wide) if wide_weight is None and weight.device.type == "cpu" else wide_weight

    def logits(self, hidden: Tensor) -> Tensor:
        """Of some rows, at least fp32."""
        logits = float_product(hidden, self._weight, self._wide_weight)
        if self._bias is not None:
            logits = logits + self._bias
        return logits if self._temperature == 1.0 else logits.div_(self._temperature)


def _blocks(part: slice, rows: int, vocabulary: int, device: torch.device) -> Iterator[slice]:
    """Rows that are worked on together: at most `rows`, and on a CPU no more than its caches hold."""
    if device.type == "cpu":
        rows = min(rows, max(_CPU_ROWS, _CPU_ELEMENTS // max(1, vocabulary)))
    for start in range(part.start, part.stop, rows):
        yield slice(start, min(start + rows, part.stop))


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        rows: int,
        with_entropy: bool,
        grad_dtype: torch.dtype | None,
        wide_weight: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        ctx.set_materialize_grads(False)
        common = torch.promote_types(hidden.dtype, weight.dtype)
        wide = torch.promote_types(common, torch.float32)
        if hidden.device.type == "cpu":
            common = wide
        count = hidden.shape[0]
        logprobs = torch.empty(count, dtype=wide, device=hidden.device)
        entropy = torch.empty_like(logprobs) if with_entropy else None
        head = _Head(weight, bias, temperature, wide, wide_weight)
        for block in _blocks(slice(0, count), rows, weight.shape[0], hidden.device):
            # On a CPU several times faster than logsumexp.
            logp = torch.log_softmax(head.logits(hidden[block]), dim=-1)
            logprobs[block] = logp.gather(-1, targets[block].unsqueeze(-1)).squeeze(-1)
            if entropy is not None:
                logp.clamp_(min=_LEAST)
                entropy[block] = -(logp.exp() * logp).sum(-1)
        ctx.save_for_backward(hidden, weight, bias, targets, entropy)
        ctx.temperature, ctx.rows, ctx.wide, ctx.wide_weight = temperature, rows, wide, wide_weight
        ctx.narrow = common if grad_dtype is None else grad_dtype
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs: Tensor | None, grad_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, entropy = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        if grad_logprobs is None and grad_entropy is None:
            return (None,) * 9
        grad_hidden = torch.empty_like(hidden) if needs_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=ctx.wide) if needs_weight else None
        grad_bias = torch.zeros_like(bias, dtype=ctx.wide) if needs_bias else None
        head = _Head(weight, bias, ctx.temperature, ctx.wide, ctx.wide_weight)
        narrow_head = weight.to(ctx.narrow)
        count, vocabulary = hidden.shape[0], weight.shape[0]
        for start in range(0, count, ctx.rows):
            part = slice(start, min(start + ctx.rows, count))
            grad = torch.empty(part.stop - start, vocabulary, dtype=ctx.narrow, device=hidden.device)
            for block in _blocks(part, ctx.rows, vocabulary, hidden.device):
                _slope(
                    head.logits(hidden[block]),
                    targets[block].unsqueeze(-1),
                    _column(entropy, block),
                    _column(grad_logprobs, block, ctx.temperature),
                    _column(grad_entropy, block, ctx.temperature),
                    out=grad[block.start - start : block.stop - start],
                )
            if grad_bias is not None:
                grad_bias += grad.sum(0, dtype=ctx.wide)
            if grad_hidden is not None:
                grad_hidden[part] = grad @ narrow_head
            if grad_weight is not None:
                if ctx.narrow == ctx.wide:
                    grad_weight.addmm_(grad.T, hidden[part].to(ctx.wide))
                else:
                    grad_weight += grad.T @ hidden[part].to(ctx.narrow)
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(bias.dtype),
            *(None,) * 6,
        )


def _column(values: Tensor | None, block: slice, divisor: float = 1.0) -> Tensor | None:
    return None if values is None else values[block].unsqueeze(-1) / divisor


def _slope(
    logits: Tensor,
    targets: Tensor,
    entropy: Tensor | None,
    of_logprobs: Tensor | None,
    of_entropy: Tensor | None,
    out: Tensor,
) -> None:
    """The gradient to the logits of a block, rounded to the type of `out` once.

    `of_logprobs` and `of_entropy` are the gradients to those, `[rows, 1]` as are `targets` and `entropy`:
    d logprob / d logits = onehot - p;  d entropy / d logits = -p (log p + entropy).
    """
    if of_entropy is None:
        assert of_logprobs is not None
        probs = torch.softmax(logits, dim=-1)
        at_target = of_logprobs * (1 - probs.gather(-1, targets))
        torch.mul(probs, -of_logprobs, out=out)
    else:
        assert entropy is not None
        logp = torch.log_softmax(logits, dim=-1).clamp_(min=_LEAST)
        probs = logp.exp()
        factor = logp.add_(entropy).mul_(of_entropy)
        if of_logprobs is not None:
            factor += of_logprobs
        slope = probs.mul_(-factor)
        at_target = slope.gather(-1, targets)
        if of_logprobs is not None:
            at_target += of_logprobs
        out.copy_(slope)
    out.scatter_(-1, targets, at_target.to(out.dtype))
