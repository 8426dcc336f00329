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


def token_logprobs(
    hidden_ND: Tensor,
    head_weight_VD: Tensor,
    targets_N: Tensor,
    temperature: float = 1.0,
    chunk: int | None = None,
    bias: Tensor | None = None,
    with_entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """`log softmax((hidden @ weight.T + bias) / temperature)[target]` a token, and the entropy if asked.

    `hidden_ND` holds the state at the position *before* each target. The product runs in the inputs'
    type (the wider of the two; at least fp32 on a CPU), everything after it in fp32 (fp64 for fp64
    inputs). Both results have a gradient to hidden, weight and bias; the backward pass recomputes the
    logits chunk by chunk, and the weight's gradient is summed in fp32. The weight must therefore be whole
    (not partitioned) in the backward pass too.

    `chunk` is the number of tokens a chunk holds; by default as many as keep a chunk at 64 MiB.
    Returns `(logprobs_N, entropy_N or None)` in fp32. Raises ValueError on a temperature that is not above 0.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, not {temperature}")
    rows = chunk if chunk is not None else max(1, CHUNK_ELEMENTS // max(1, head_weight_VD.shape[0]))
    if rows < 1:
        raise ValueError(f"chunk must be at least 1 token, not {rows}")
    result = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden_ND, head_weight_VD, bias, targets_N, temperature, rows, with_entropy
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
    ) -> tuple[Tensor, Tensor | None]:
        ctx.set_materialize_grads(False)
        common = torch.promote_types(hidden.dtype, weight.dtype)
        wide = torch.promote_types(common, torch.float32)
        if hidden.device.type == "cpu":
            common = wide  # CPU kernels of half types are some 30 times slower than fp32
        count = hidden.shape[0]
        logprobs = torch.empty(count, dtype=wide, device=hidden.device)
        normaliser = torch.empty_like(logprobs)
        entropy = torch.empty_like(logprobs) if with_entropy else None
        head = weight.to(common)
        for start in range(0, count, rows):
            part = slice(start, start + rows)
            logits = _logits(hidden[part].to(common), head, bias, temperature)
            normaliser[part] = torch.logsumexp(logits, dim=-1)
            logprobs[part] = logits.gather(-1, targets[part].unsqueeze(-1)).squeeze(-1) - normaliser[part]
            if entropy is not None:
                logp = _log_softmax(logits, normaliser[part])
                entropy[part] = -(logp.exp() * logp).sum(-1)
        ctx.save_for_backward(hidden, weight, bias, targets, normaliser, entropy)
        ctx.temperature, ctx.rows, ctx.common, ctx.wide = temperature, rows, common, wide
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs: Tensor | None, grad_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, normaliser, entropy = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        if grad_logprobs is None and grad_entropy is None:
            return (None,) * 7
        grad_hidden = torch.empty_like(hidden) if needs_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=ctx.wide) if needs_weight else None
        grad_bias = torch.zeros_like(bias, dtype=ctx.wide) if needs_bias else None
        head = weight.to(ctx.common)
        for start in range(0, hidden.shape[0], ctx.rows):
            part = slice(start, start + ctx.rows)
            states = hidden[part].to(ctx.common)
            logp = _log_softmax(_logits(states, head, bias, ctx.temperature), normaliser[part])
            # d logprob / d logits = onehot - p;  d entropy / d logits = -p (log p + entropy)
            if grad_entropy is None:
                assert grad_logprobs is not None
                grad = logp.exp_().mul_(-grad_logprobs[part].unsqueeze(-1))
            else:
                slope = (logp + entropy[part].unsqueeze(-1)).mul_(grad_entropy[part].unsqueeze(-1))
                if grad_logprobs is not None:
                    slope += grad_logprobs[part].unsqueeze(-1)
                grad = logp.exp_().mul_(-slope)
            if grad_logprobs is not None:
                grad.scatter_add_(-1, targets[part].unsqueeze(-1), grad_logprobs[part].unsqueeze(-1).to(grad.dtype))
            grad = grad if ctx.temperature == 1.0 else grad.div_(ctx.temperature)
            if grad_bias is not None:
                grad_bias += grad.sum(0)
            grad = grad.to(ctx.common)
            if grad_hidden is not None:
                grad_hidden[part] = grad @ head
            if grad_weight is not None:
                if ctx.common == ctx.wide:
                    grad_weight.addmm_(grad.T, states)
                else:
                    grad_weight += grad.T @ states
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(bias.dtype),
            None,
            None,
            None,
            None,
        )


def _log_softmax(logits: Tensor, normaliser: Tensor) -> Tensor:
    """In place; a forbidden token (logit -inf) gets a finite value, so that `p * log p` is 0 and not NaN."""
    return logits.sub_(normaliser.unsqueeze(-1)).clamp_(min=-1e4)
