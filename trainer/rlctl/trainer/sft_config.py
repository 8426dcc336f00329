"""Settings of supervised fine-tuning."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from rlctl.core.config import StrictConfig
from rlctl.data.config import SupervisedDataConfig
from rlctl.learner.config import LearnerConfig


class AccuracyStop(StrictConfig):
    """Ends training at a held-out accuracy instead of after all steps.

    What a small model has learnt may jump within a few dozen steps after hundreds on a plateau: from
    `watch_above` on, the accuracy is measured every `watch_steps` steps.
    """

    accuracy: float = Field(gt=0, lt=1)
    """Stop at the first measurement that reaches it."""
    watch_above: float = Field(0.15, ge=0, lt=1)
    """Accuracy above which the jump has begun."""
    watch_steps: int = Field(1, ge=1)
    """Steps between measurements from then on."""


class SFTConfig(StrictConfig):
    """Supervised fine-tuning on prompts with responses (of `learner.ranks` ranks)."""

    seed: int = 0
    """Seed of training and of the data's order."""
    model: str
    """Folder or hub name of the first weights."""
    output: Path
    """Folder that the trained model is written to."""
    steps: int = Field(1000, ge=1)
    """Optimizer steps."""
    batch_size: int = Field(64, ge=1)
    """Examples of an optimizer step, all ranks together."""
    data: list[SupervisedDataConfig] = Field(min_length=1)
    """Examples to learn: data sets, put together."""
    shuffle: bool = True
    """New order every epoch."""
    eval_data: SupervisedDataConfig | None = None
    """Held-out examples."""
    eval_steps: int = Field(50, ge=1)
    """Steps between measurements on `eval_data`."""
    stop: AccuracyStop | None = None
    """End early; `none` takes all steps."""
    learner: LearnerConfig = LearnerConfig()

    @model_validator(mode="after")
    def _measured(self) -> SFTConfig:
        if self.stop is not None and self.eval_data is None:
            raise ValueError("stop needs eval_data to measure the accuracy on")
        return self
