"""The learning rate of each optimizer step."""

from __future__ import annotations

import math

from rlctl.learner.config import OptimizerConfig


def learning_rate(config: OptimizerConfig, step: int, total_steps: int) -> float:
    """The rate of optimizer step `step`, counted from 0.

    It rises linearly over `warmup_steps` or else that share of all steps (the last of which has the full rate), then
    is constant, or falls to `lr * min_lr_ratio` at the last of `total_steps` steps, on a line or a half cosine;
    beyond it stays there.
    """
    warmup = config.warmup_steps or math.ceil(config.warmup_ratio * total_steps)
    if step < warmup:
        return config.lr * (step + 1) / warmup
    if config.scheduler == "constant":
        return config.lr
    span = max(1, total_steps - 1 - warmup)
    done = min(1.0, (step - warmup) / span)
    shape = 1.0 - done if config.scheduler == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return config.lr * (config.min_lr_ratio + (1.0 - config.min_lr_ratio) * shape)
