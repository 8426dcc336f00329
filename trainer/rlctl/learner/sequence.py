"""What a learner computes on: a prompt, a response, and per-token numbers of the response."""

from __future__ import annotations

import json
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import torch
from safetensors.torch import load, save
from torch import Tensor


@dataclass(frozen=True)
class Sequence:
    """One prompt of P >= 1 tokens and its response of T tokens."""

    prompt_ids: Tensor
    """int64 `[P]`."""
    response_ids: Tensor
    """int64 `[T]`."""
    mask: Tensor
    """bool `[T]`: the tokens that are trained."""
    fields: dict[str, Tensor] = field(default_factory=dict)
    """float32 `[T]` each: old_logprobs, advantages, ref_logprobs, returns, old_values, rollout_logprobs, ..."""
    scalars: dict[str, float] = field(default_factory=dict)
    """Numbers of the whole sequence."""

    def __len__(self) -> int:
        """P + T."""
        return self.prompt_ids.numel() + self.response_ids.numel()


def encode(sequences: Seq[Sequence]) -> bytes:
    """Sequences as bytes for another rank (safetensors, no pickle). All have the same fields and scalars."""
    names = list(sequences[0].fields) if sequences else []
    scalars = list(sequences[0].scalars) if sequences else []
    tensors = {
        "prompt_lengths": torch.tensor([s.prompt_ids.numel() for s in sequences], dtype=torch.int64),
        "response_lengths": torch.tensor([s.response_ids.numel() for s in sequences], dtype=torch.int64),
        "prompt_ids": _cat([s.prompt_ids for s in sequences], torch.int64),
        "response_ids": _cat([s.response_ids for s in sequences], torch.int64),
        "mask": _cat([s.mask for s in sequences], torch.bool),
        "scalars": torch.tensor([[s.scalars[n] for n in scalars] for s in sequences], dtype=torch.float64),
    }
    for name in names:
        tensors[f"field.{name}"] = _cat([s.fields[name] for s in sequences], torch.float32)
    return save(tensors, metadata={"fields": json.dumps(names), "scalars": json.dumps(scalars)})


def decode(data: bytes) -> list[Sequence]:
    """The inverse of `encode`."""
    size = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + size])["__metadata__"]
    names, scalars = json.loads(metadata["fields"]), json.loads(metadata["scalars"])
    tensors = load(data)
    responses = tensors["response_lengths"].tolist()
    prompts = tensors["prompt_ids"].split(tensors["prompt_lengths"].tolist())
    ids, masks = tensors["response_ids"].split(responses), tensors["mask"].split(responses)
    columns = {name: tensors[f"field.{name}"].split(responses) for name in names}
    numbers = tensors["scalars"].tolist()
    return [
        Sequence(
            prompts[i],
            ids[i],
            masks[i],
            {name: columns[name][i] for name in names},
            dict(zip(scalars, numbers[i], strict=True)) if scalars else {},
        )
        for i in range(len(responses))
    ]


def _cat(parts: list[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.cat(parts).to(dtype) if parts else torch.empty(0, dtype=dtype)
