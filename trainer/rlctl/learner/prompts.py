"""Sequences of one prompt: its tokens go through the model once, whatever the number of responses to it."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from transformers import PretrainedConfig

from rlctl.learner.sequence import Sequence
from rlctl.models.attention import NAME


def can_share(model: PretrainedConfig, packing: bool) -> bool:
    """Whether the model's attention reads a packed row in which a prompt stands once; FlashAttention's does not."""
    return packing and model._attn_implementation == NAME and model.rlctl_kernel in ("auto", "eager", "sdpa")


def owners(sequences: Seq[Sequence]) -> list[int]:
    """For each sequence the first one that has the same prompt: itself, where it has not been seen before."""
    first: dict[bytes, int] = {}
    return [first.setdefault(s.prompt_ids.numpy().tobytes(), number) for number, s in enumerate(sequences)]
