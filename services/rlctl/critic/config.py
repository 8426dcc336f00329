"""Settings of the critic service."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from rlctl.core.config import StrictConfig
from rlctl.learner.config import LearnerConfig
from rlctl.rpc.config import ServerConfig


class CriticSettings(StrictConfig):
    """The value model and how it learns."""

    model: str = ""
    """Folder or hub name of the critic's first weights; empty: the policy's."""
    learner: LearnerConfig = LearnerConfig()
    value_clip: float | None = Field(0.2, gt=0)
    """Clip of the value against the old value in the loss; `none` for no clip."""


class CriticConfig(CriticSettings):
    """The critic as a process (of `learner.ranks` ranks)."""

    server: ServerConfig = ServerConfig()
    checkpoint_dir: Path = Path("critic")
    """Where tags are written."""
    total_steps: int = Field(0, ge=0)
    """Optimizer steps of the whole run, for the learning-rate schedule (set by the launcher)."""
    seed: int = 0
    """Seed of the value head."""
