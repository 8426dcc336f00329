"""Settings of the reward service."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from rlctl.core.config import StrictConfig
from rlctl.rpc.config import ServerConfig


class ScorerConfig(StrictConfig):
    """One source of rewards."""

    kind: Literal["model", "function", "http", "task", "grader"]
    """`model`: a Hugging Face sequence classifier; `function`: `reward_func` in a Python file; `http`: a remote
    reward; `task`: a reasoning-gym task's own verifier; `grader`: rlctl.grading compares with the label."""
    name: str = ""
    """Name in the components; default: the kind."""
    weight: float = 1.0
    """Weight in the sum."""
    model: str = ""
    """Folder or hub name of the reward model (kind `model`)."""
    path: Path | None = None
    """Python file with `reward_func(queries, prompts, labels)` (kind `function`)."""
    url: str = ""
    """Address that takes `{"query", "prompts", "labels"}` and answers `{"rewards"}` (kind `http`)."""
    task: str = ""
    """Name of the reasoning-gym task (kind `task`); empty: taken from each item's metadata."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the reward model."""
    normalize: bool = False
    """Standardise with the mean and std saved in the reward model's config; an error when they are absent."""
    max_length: int = Field(4096, ge=8)
    """Longest prompt and response for the reward model, tokens; longer ones lose the prompt's beginning."""
    batch_tokens: int = Field(16384, ge=64)
    """Tokens of one forward of the reward model."""
    timeout_s: float = Field(30.0, gt=0)
    """A call that takes longer is ended, seconds; code in a process of its own (kinds `function` and `task`) then gets
    its items one by one, within as long again."""
    memory_mb: int = Field(4096, ge=64)
    """Memory limit of the process that a user's function or a task's verifier runs in, MiB."""

    @property
    def label(self) -> str:
        """Name in the components."""
        return self.name or self.kind

    @model_validator(mode="after")
    def _complete(self) -> ScorerConfig:
        needed = {"model": "model", "function": "path", "http": "url"}.get(self.kind)
        if needed and not getattr(self, needed):
            raise ValueError(f"a scorer of kind {self.kind!r} needs {needed!r}")
        if self.kind == "http" and not self.url.startswith(("http://", "https://")):
            raise ValueError("url must begin with http:// or https://")
        return self


class RewardSettings(StrictConfig):
    """Where rewards come from."""

    scorers: list[ScorerConfig] = Field([ScorerConfig(kind="grader")], min_length=1)
    """Sources of rewards; the reward is their weighted sum."""
    threads: int = Field(1, ge=1)
    """CPU threads of reward models."""
    trust_remote_code: bool = False
    """Run Python code that comes with a model."""

    @model_validator(mode="after")
    def _names(self) -> RewardSettings:
        labels = [scorer.label for scorer in self.scorers]
        for label in labels:
            if labels.count(label) > 1:
                raise ValueError(f"two scorers are named {label!r}: give each a name of its own")
        return self


class RewardConfig(RewardSettings):
    """A reward replica as a process."""

    server: ServerConfig = ServerConfig()
