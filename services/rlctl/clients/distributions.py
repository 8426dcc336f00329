"""How large the answers of ComputeDistributions are, which client and service must agree on."""

from __future__ import annotations

from rlctl.core.errors import ResourceExhaustedError
from rlctl.rpc.errors import mebibytes
from rlctl.v1 import tensor_pb2

#: Bytes of a sequence's entry beside the numbers of its three tensors, at most.
_ENTRY = 160


def tokens_told(top_k: int, vocabulary: int) -> int:
    """Tokens in each distribution: `top_k`, where it is 0 or the vocabulary and above all."""
    return top_k if 0 < top_k < vocabulary else vocabulary


def answer_bytes(response_tokens: int, *, top_k: int, vocabulary: int, dtype: tensor_pb2.DType) -> int:
    """Bytes that the distributions of one response take in an answer, at most."""
    told = tokens_told(top_k, vocabulary)
    number = 2 if dtype == tensor_pb2.D_TYPE_BFLOAT16 else 4
    token = told * number if told == vocabulary else told * (number + 4) + 4
    return response_tokens * token + _ENTRY


def too_large(what: str, size: int, limit: int, *, top_k: int, vocabulary: int) -> ResourceExhaustedError:
    """Says that `what` does not fit in a message, and what to do."""
    told = tokens_told(top_k, vocabulary)
    return ResourceExhaustedError(
        f"{what}: the distributions over {told:,} tokens at each place take {mebibytes(size)}; a message holds "
        f"{mebibytes(limit)}. Set a smaller top_k{' (0 is all tokens)' if top_k == 0 else ''}, take dtype bfloat16, "
        "send shorter responses, or raise max_message_mb on both ends.",
        reason="MESSAGE_TOO_LARGE",
        limit=limit,
    )
