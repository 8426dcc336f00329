"""Log-probs of sampled tokens, without ever holding the whole `[N, V]` table.

Shapes: N tokens (flat, response positions only), V vocabulary, D hidden size.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

#: Elements of one fp32 logits chunk when the caller leaves the chunk open (64 MiB).
CHUNK_ELEMENTS = 1 << 24
#: The log-prob of a forbidden token (logit -inf) in sums over tokens, so that `p * log p` is 0 and not NaN.
_LEAST = -1e4


def token_logprobs(
    hidden_ND: Tensor,
    head_weight_VD: Tensor,
    targets_N: Tensor,
    temperature: float = 1.0,
    chunk: int | None = None,
    bias: Tensor | None = None,
    with_entropy: bool = False,
    grad_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`log softmax((hidden @ weight.T + bias) / temperature)[target]` a token, and the entropy if asked.

    `hidden_ND` holds the state at the position *before* each target. The product runs in the inputs'
    type (the wider of the two; at least fp32 on a CPU), everything after it in fp32 (fp64 for fp64
    inputs). Both results have a gradient to hidden, weight and bias; the backward pass recomputes the
    logits chunk by chunk, and the weight's gradient is summed in fp32. The weight must therefore be whole
    (not partitioned) in the backward pass too.

    `grad_dtype` is the type of the backward pass's two products, by default that of the forward one's; the
    probabilities in them are exact to fp32 before they are rounded to it.
    `chunk` is the number of tokens a chunk holds; by default as many as keep a chunk at 64 MiB.
    Returns `(logprobs_N, entropy_N or None)` in fp32. Raises ValueError on a temperature that is not above 0.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, not {temperature}")
    rows = chunk if chunk is not None else max(1, CHUNK_ELEMENTS // max(1, head_weight_VD.shape[0]))
    if rows < 1:
        raise ValueError(f"chunk must be at least 1 token, not {rows}")
    result = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden_ND, head_weight_VD, bias, targets_N, temperature, rows, with_entropy, grad_dtype
    )
    return cast(tuple[Tensor, Tensor | None], result)


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    """Scaled logits of one chunk, at least fp32."""
    logits = hidden @ weight.T
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if bias is not None:
        logits = logits + bias
    return logits if temperature == 1.0 else logits.div_(temperature)


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
    ) -> tuple[Tensor, Tensor | None]:
        ctx.set_materialize_grads(False)
        common = torch.promote_types(hidden.dtype, weight.dtype)
        wide = torch.promote_types(common, torch.float32)
        if hidden.device.type == "cpu":
            common = wide  # No CPU kernel multiplies half types into fp32 logits.
        count = hidden.shape[0]
        logprobs = torch.empty(count, dtype=wide, device=hidden.device)
        entropy = torch.empty_like(logprobs) if with_entropy else None
        head = weight.to(common)
        for start in range(0, count, rows):
            part = slice(start, start + rows)
            logits = _logits(hidden[part].to(common), head, bias, temperature)
            # On a CPU several times faster than logsumexp.
            logp = torch.log_softmax(logits, dim=-1)
            logprobs[part] = logp.gather(-1, targets[part].unsqueeze(-1)).squeeze(-1)
            if entropy is not None:
                logp.clamp_(min=_LEAST)
                entropy[part] = -(logp.exp() * logp).sum(-1)
        ctx.save_for_backward(hidden, weight, bias, targets, entropy)
        ctx.temperature, ctx.rows, ctx.common, ctx.wide = temperature, rows, common, wide
        ctx.narrow = common if grad_dtype is None else grad_dtype
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs: Tensor | None, grad_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, entropy = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        if grad_logprobs is None and grad_entropy is None:
            return (None,) * 8
        grad_hidden = torch.empty_like(hidden) if needs_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=ctx.wide) if needs_weight else None
        grad_bias = torch.zeros_like(bias, dtype=ctx.wide) if needs_bias else None
        head, narrow_head = weight.to(ctx.common), weight.to(ctx.narrow)
        for start in range(0, hidden.shape[0], ctx.rows):
            part = slice(start, start + ctx.rows)
            states = hidden[part].to(ctx.common)
            logits = _logits(states, head, bias, ctx.temperature)
            part_logprobs = None if grad_logprobs is None else grad_logprobs[part].unsqueeze(-1) / ctx.temperature
            if grad_entropy is None:
                assert part_logprobs is not None
                grad = _logprob_slope(logits, targets[part].unsqueeze(-1), part_logprobs, ctx.narrow)
            else:
                slope = grad_entropy[part].unsqueeze(-1) / ctx.temperature
                grad = _entropy_slope(logits, entropy[part].unsqueeze(-1), slope)
                if part_logprobs is not None:
                    grad += _logprob_slope(logits, targets[part].unsqueeze(-1), part_logprobs, ctx.wide)
                grad = grad.to(ctx.narrow)
            if grad_bias is not None:
                grad_bias += grad.sum(0, dtype=ctx.wide)
            if grad_hidden is not None:
                grad_hidden[part] = grad @ narrow_head
            if grad_weight is not None:
                if ctx.narrow == ctx.wide:
                    grad_weight.addmm_(grad.T, states)
                else:
                    grad_weight += grad.T @ states.to(ctx.narrow)
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(bias.dtype),
            *(None,) * 5,
        )


def _logprob_slope(logits: Tensor, targets: Tensor, grad: Tensor, dtype: torch.dtype) -> Tensor:
    """`grad` times d logprob / d logits = onehot - p, rounded to `dtype` once."""
    probs = torch.softmax(logits, dim=-1)
    at_target = (grad * (1 - probs.gather(-1, targets))).to(dtype)
    slope = torch.mul(probs, -grad, out=probs if dtype == probs.dtype else torch.empty_like(probs, dtype=dtype))
    return slope.scatter_(-1, targets, at_target)


def _entropy_slope(logits: Tensor, entropy: Tensor, grad: Tensor) -> Tensor:
    """`grad` times d entropy / d logits = -p (log p + entropy)."""
    logp = torch.log_softmax(logits, dim=-1).clamp_(min=_LEAST)
    return logp.exp().mul_(logp.add_(entropy)).mul_(-grad)
