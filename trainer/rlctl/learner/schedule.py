"""The learning rate of each optimizer step."""

from __future__ import annotations

import math

from rlctl.learner.config import OptimizerConfig


def learning_rate(config: OptimizerConfig, step: int, total_steps: int) -> float:
    """The rate of optimizer step `step`, counted from 0.

    It rises linearly over `warmup_steps` (the last of which has the full rate), then is constant, or falls to
    `lr * min_lr_ratio` at the last of `total_steps` steps, on a line or a half cosine; beyond it stays there.
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    if config.scheduler == "constant":
        return config.lr
    span = max(1, total_steps - 1 - config.warmup_steps)
    done = min(1.0, (step - config.warmup_steps) / span)
    shape = 1.0 - done if config.scheduler == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return config.lr * (config.min_lr_ratio + (1.0 - config.min_lr_ratio) * shape)
