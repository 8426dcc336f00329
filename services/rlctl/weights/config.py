"""Settings of weight transfer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlctl.core.config import StrictConfig


class WeightsConfig(StrictConfig):
    """How new weights reach the generation replicas."""

    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """Process group that carries the weights; auto: nccl on GPUs, gloo on CPUs."""
    interface: str = "127.0.0.1"
    """Address on which the trainer's rendezvous store listens: a private network, for it is not encrypted."""
    bucket_mb: int = Field(256, ge=1)
    """Size of a bucket, MiB."""
    timeout_s: float = Field(120.0, gt=0)
    """Longest wait for the group, for a bucket, and for a replica's answer, seconds."""
    canary_tolerance: float | None = Field(None, gt=0)
    """Log-prob difference allowed on the canary, as a share of the log-prob where that is above 1, on average; default
    1e-3 in float32 and 5e-2 in bfloat16."""
