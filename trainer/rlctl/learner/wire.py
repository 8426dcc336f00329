"""Protobuf messages to sequences and back; every check of what came over the wire."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from rlctl.core.errors import InvalidArgumentError
from rlctl.learner.sequence import Sequence
from rlctl.v1 import critic_pb2, tensor_pb2


@dataclass(frozen=True)
class Limits:
    """What a model can take."""

    vocabulary: int
    """Token ids are below it."""
    length: int
    """Most tokens of prompt and response together."""


def sequence(tokens: tensor_pb2.TokenSequence, limits: Limits, field: str) -> Sequence:
    """A sequence of which every response token counts. Raises InvalidArgumentError naming `field`."""
    prompt = _ids(tokens.prompt_ids, limits, f"{field}.prompt_ids")
    response = _ids(tokens.response_ids, limits, f"{field}.response_ids")
    length = prompt.numel() + response.numel()
    if length > limits.length:
        raise InvalidArgumentError(
            f"{field} has {length} tokens; the model takes {limits.length} at most", field=field, limit=limits.length
        )
    return Sequence(prompt, response, torch.ones(response.numel(), dtype=torch.bool))


def train_sequence(message: critic_pb2.TrainSequence, limits: Limits, field: str) -> Sequence:
    """A sequence with mask, old values and returns. Raises InvalidArgumentError naming the field."""
    plain = sequence(message.tokens, limits, f"{field}.tokens")
    count = plain.response_ids.numel()
    mask = torch.tensor(list(message.mask), dtype=torch.int64)
    _same_length(mask, count, f"{field}.mask")
    if mask.numel() and int(mask.max()) > 1:
        raise InvalidArgumentError(f"{field}.mask holds 0 and 1 only", field=f"{field}.mask")
    fields = {
        "old_values": _floats(message.old_values, count, f"{field}.old_values"),
        "returns": _floats(message.returns, count, f"{field}.returns"),
    }
    return Sequence(plain.prompt_ids, plain.response_ids, mask.bool(), fields)


def token_floats(parts: Iterable[Tensor]) -> list[tensor_pb2.TokenFloats]:
    """One message a tensor `[T]`."""
    return [tensor_pb2.TokenFloats(values=part.tolist()) for part in parts]


def temperature(value: float) -> float:
    """Raises InvalidArgumentError unless it is above 0 and finite."""
    if not (value > 0 and math.isfinite(value)):
        raise InvalidArgumentError(f"temperature must be above 0, not {value:g}", field="temperature")
    return value


def _ids(ids: Iterable[int], limits: Limits, field: str) -> Tensor:
    tensor = torch.tensor(list(ids), dtype=torch.int64)
    if not tensor.numel():
        raise InvalidArgumentError(f"{field} is empty; at least one token is needed", field=field)
    if int(tensor.max()) >= limits.vocabulary:
        raise InvalidArgumentError(
            f"{field} holds token {int(tensor.max())}; the model knows ids below {limits.vocabulary}", field=field
        )
    return tensor


def _floats(values: Iterable[float], count: int, field: str) -> Tensor:
    tensor = torch.tensor(list(values), dtype=torch.float32)
    _same_length(tensor, count, field)
    if not bool(torch.isfinite(tensor).all()):
        raise InvalidArgumentError(f"{field} holds a number that is not finite", field=field)
    return tensor


def _same_length(tensor: Tensor, count: int, field: str) -> None:
    if tensor.numel() != count:
        raise InvalidArgumentError(f"{field} has {tensor.numel()} entries for {count} response tokens", field=field)
