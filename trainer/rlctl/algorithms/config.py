"""Settings of the objectives. The exact meaning of each name stands in docs/algorithms.md."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rlctl.core.config import StrictConfig

GROUP_ESTIMATORS = ("reinforce_baseline", "rloo", "group_norm", "dr_grpo")


class AdvantageConfig(StrictConfig):
    """From rewards to advantages."""

    estimator: Literal["gae", "reinforce", "reinforce_baseline", "rloo", "group_norm", "dr_grpo"] = "gae"
    """gae is PPO (needs a critic), reinforce is REINFORCE++, group_norm is GRPO."""
    gamma: float = Field(1.0, ge=0, le=1)
    """Discount."""
    lam: float = Field(1.0, ge=0, le=1)
    """Lambda of GAE."""
    whiten: Literal["auto", "none", "center", "full"] = "auto"
    """Standardise over all trained tokens of a step; auto: full for gae, reinforce and reinforce_baseline."""

    @model_validator(mode="after")
    def _gamma(self) -> AdvantageConfig:
        if self.estimator in GROUP_ESTIMATORS and self.gamma != 1.0:
            raise ValueError(f"estimator {self.estimator!r} compares whole responses: set gamma = 1.0")
        return self


class KLConfig(StrictConfig):
    """Distance to the reference policy."""

    coef: float = Field(0.01, ge=0)
    """beta; 0 starts no reference service."""
    estimator: Literal["k1", "k2", "k3"] = "k1"
    """Estimator of the KL (Schulman, 2020)."""
    as_loss: bool = False
    """Add it to the loss instead of the reward."""
    target: float | None = Field(None, gt=0)
    """KL a sequence that the adaptive controller steers to; `none` keeps beta fixed."""
    horizon: int = Field(10_000, gt=0)
    """Samples over which the controller corrects."""

    @model_validator(mode="after")
    def _k1(self) -> KLConfig:
        if self.as_loss and self.estimator == "k1":
            raise ValueError("k1 has an expected gradient of zero as a loss: choose k2 or k3")
        return self


class LossConfig(StrictConfig):
    """The policy loss."""

    kind: Literal["ppo", "gspo", "cispo", "reinforce"] = "ppo"
    """Objective of the policy."""
    clip_low: float | None = Field(None, gt=0)
    """Lower clip of the ratio; default 0.2 (gspo 3e-4)."""
    clip_high: float | None = Field(None, gt=0)
    """Upper clip of the ratio; default 0.2 (gspo 4e-4, cispo 0.2)."""
    dual_clip: float | None = Field(None, gt=1)
    """Bound of the loss where the advantage is negative (ppo); `none` for no bound."""
    agg: Literal["auto", "token", "sequence", "constant"] = "auto"
    """Mean over tokens, over sequences, or over the longest possible length; auto: token (gspo sequence,
    dr_grpo constant)."""
    entropy_coef: float = Field(0.0, ge=0)
    """Weight of the entropy bonus."""


class OffPolicyConfig(StrictConfig):
    """Correction where sampler and trainer differ."""

    kind: Literal["none", "tis", "icepop", "seq_mask_tis", "decoupled"] = "none"
    """Which correction."""
    low: float = Field(0.0, ge=0)
    """Smallest weight (tis), or lower edge of the band (icepop; there 0.5 when 0)."""
    high: float = Field(2.0, gt=0)
    """Largest weight, or upper edge of the band."""
    seq_band: tuple[float, float] = (0.98, 1.02)
    """Band of a sequence's geometric mean (seq_mask_tis)."""


class ShapingConfig(StrictConfig):
    """From a raw score to the reward that is trained."""

    clip: tuple[float, float] | None = (-10.0, 10.0)
    """Bounds of the reward."""
    overlong_buffer: int = Field(0, ge=0)
    """DAPO: length of the soft zone before the longest response, tokens; 0 is off."""
    overlong_factor: float = Field(1.0, ge=0)
    """Penalty at the end of that zone."""
    stop_coef: float | None = None
    """A response cut by length gets min(score, score * coef) when coef >= 0, coef itself when below 0."""
    mask_truncated: bool = False
    """Do not train on responses cut by length."""
