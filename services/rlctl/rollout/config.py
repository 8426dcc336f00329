"""Settings of a rollout worker."""

from __future__ import annotations

from pydantic import Field

from rlctl.bus.config import BusConfig
from rlctl.core.config import StrictConfig
from rlctl.rpc.config import ChannelConfig, ServerConfig


class RolloutSettings(StrictConfig):
    """How a rollout worker works."""

    concurrency: int = Field(32, ge=1)
    """Prompt groups in work at once."""
    score_batch: int = Field(256, ge=1)
    """Samples of one Score or ComputeLogprobs call at most; groups that wait share a call."""
    score_wait_ms: float = Field(10.0, ge=0)
    """How long a finished group waits for others to share a call with, milliseconds."""
    generate_timeout_s: float = Field(600.0, gt=0)
    """Deadline of one Generate call, seconds."""
    score_timeout_s: float = Field(120.0, gt=0)
    """Deadline of one scoring call, seconds."""


class RolloutConfig(RolloutSettings):
    """A rollout worker as a process."""

    server: ServerConfig = ServerConfig()
    """Health and metrics of the worker; it is announced in the registry of `bus` unless `server.registry` is set."""
    bus: BusConfig = BusConfig()
    generation: ChannelConfig = ChannelConfig()
    reward: ChannelConfig = ChannelConfig()
    reference: ChannelConfig = ChannelConfig()
