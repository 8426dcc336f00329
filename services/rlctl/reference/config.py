"""Settings of the reference service."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlctl.core.config import StrictConfig
from rlctl.rpc.config import ServerConfig


class ReferenceSettings(StrictConfig):
    """The frozen policy that the KL is measured against."""

    model: str = ""
    """Folder or hub name; empty: the policy as it was at the start of the run."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Type of weights and computation."""
    quantize_4bit: bool = False
    """Hold the weights in 4 bits as `actor.lora.quantize_4bit` does, so that the reference is the actor's base."""
    attention: Literal["auto", "eager", "sdpa", "flash_attention_2"] = "auto"
    """Attention implementation."""
    batch_tokens: int = Field(16384, ge=64)
    """Tokens of one forward; requests that wait are batched together up to it."""
    batch_wait_ms: float = Field(5.0, ge=0)
    """How long a request waits for others to share a forward with, milliseconds."""
    packing: bool = True
    """Several sequences in one row, attention kept apart."""
    threads: int = Field(1, ge=1)
    """CPU threads."""
    trust_remote_code: bool = False
    """Run Python code that comes with a model."""


class ReferenceConfig(ReferenceSettings):
    """A reference replica as a process."""

    server: ServerConfig = ServerConfig()
