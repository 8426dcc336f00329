"""Settings of the PPO-family trainer (the coordinator and its DeepSpeed ranks)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from rlctl.algorithms.config import (
    GROUP_ESTIMATORS,
    AdvantageConfig,
    KLConfig,
    LossConfig,
    OffPolicyConfig,
    ShapingConfig,
)
from rlctl.bus.config import BusConfig
from rlctl.core.config import Name, StrictConfig
from rlctl.core.errors import ConfigError
from rlctl.data.config import PromptDataConfig, SupervisedDataConfig
from rlctl.data.overlap import check_apart
from rlctl.learner.config import LearnerConfig
from rlctl.rpc.config import ChannelConfig, ServerConfig
from rlctl.weights.config import WeightsConfig


class SamplingConfig(StrictConfig):
    """How rollouts are sampled."""

    prompts_per_step: int = Field(32, ge=1)
    """Prompt groups of one training step."""
    n: int = Field(8, ge=1)
    """Samples a prompt."""
    temperature: float = Field(1.0, ge=0)
    """Sampling temperature; training divides its logits by it too."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus; below 1 the samples are biased (see `allow_biased`)."""
    top_k: int = Field(0, ge=0)
    """Keep the k likeliest tokens; 0 keeps all; above 0 the samples are biased."""
    min_p: float = Field(0.0, ge=0, lt=1)
    """Keep tokens above this share of the likeliest; above 0 the samples are biased."""
    max_new_tokens: int = Field(1024, ge=1)
    """Longest response, tokens."""
    stop: list[str] = []
    """Texts that end a response."""
    ignore_eos: bool = False
    """Do not end at EOS (benchmarks: every response has max_new_tokens)."""
    allow_biased: bool = False
    """Train although the sampler's distribution is not the policy's (temperature 0, top-p, top-k, min-p)."""

    @model_validator(mode="after")
    def _unbiased(self) -> SamplingConfig:
        biased = self.temperature == 0 or self.top_p < 1 or self.top_k > 0 or self.min_p > 0
        if biased and not self.allow_biased:
            raise ValueError(
                "temperature 0, top_p < 1, top_k and min_p sample from another distribution than the one that is "
                "trained; use temperature > 0 alone, or set sampling.allow_biased = true (see docs/algorithms.md)"
            )
        if self.temperature == 0:
            raise ValueError("temperature 0 has no log-probs to train on: set it above 0")
        return self


class TrainConfig(StrictConfig):
    """Length and shape of the optimisation."""

    steps: int = Field(100, ge=1)
    """Training steps, each with `sampling.prompts_per_step` prompt groups."""
    passes: int = Field(1, ge=1)
    """Passes over a step's samples."""
    minibatches: int = Field(1, ge=1)
    """Optimizer steps of one pass."""
    freezing_actor_steps: int = Field(0, ge=0)
    """Steps in which only the critic learns."""
    max_empty_steps: int = Field(3, ge=0)
    """So many steps in a row whose prompt groups were all dropped end the run, to be gone on with; 0: never."""


class PTXConfig(StrictConfig):
    """Mixing of given examples into the policy's training."""

    coef: float = Field(0.05, gt=0)
    """Weight of their cross-entropy beside the policy's loss."""
    data: list[SupervisedDataConfig] = Field(min_length=1)
    """The examples: data sets, put together, or mixed by their `probability`."""
    batch_size: int = Field(32, ge=1)
    """Examples of an optimizer step, all ranks together."""
    shuffle: bool = True
    """New order every epoch, from the run's `seed`."""


class EvalConfig(StrictConfig):
    """Held-out evaluation."""

    data: PromptDataConfig | None = None
    """Prompts never trained on; `none` for no evaluation."""
    steps: int = Field(0, ge=0)
    """Evaluate every so many steps; 0: only before the first step and at the end."""
    temperature: float = Field(0.0, ge=0)
    """0 is greedy."""
    max_new_tokens: int | None = Field(None, ge=1)
    """Longest response; default: that of the rollouts."""
    correct_above: float = 0.5
    """A response whose reward is above it counts as right."""


class CheckpointConfig(StrictConfig):
    """Checkpoints of a run."""

    steps: int = Field(10, ge=0)
    """Commit every so many steps; 0: only at the end."""
    keep: int = Field(2, ge=2)
    """Checkpoints kept."""


class JournalConfig(StrictConfig):
    """The journal of rollouts."""

    keep: Literal["needed", "all"] = "needed"
    """`needed`: entries since the checkpoint before last; `all`: everything, for `rlctl replay` from the start."""


class LogConfig(StrictConfig):
    """Where metrics go besides metrics.jsonl and Prometheus."""

    tensorboard: bool = True
    """Write TensorBoard events below the run's folder."""
    wandb_project: str | None = None
    """Weights & Biases project; the key comes from WANDB_API_KEY."""
    rollouts: int = Field(8, ge=0)
    """Prompt groups of each step written to rollouts/*.jsonl for people to read; 0 for none."""


class TrainingSettings(StrictConfig):
    """Everything about training that a recipe sets and the trainer reads."""

    seed: int = 0
    """Seed of data order, models' new parts, sampling and training."""
    train: TrainConfig = TrainConfig()
    data: PromptDataConfig = PromptDataConfig()
    eval: EvalConfig = EvalConfig()
    sampling: SamplingConfig = SamplingConfig()
    advantage: AdvantageConfig = AdvantageConfig()
    kl: KLConfig = KLConfig()
    loss: LossConfig = LossConfig()
    ptx: PTXConfig | None = None
    off_policy: OffPolicyConfig = OffPolicyConfig()
    shaping: ShapingConfig = ShapingConfig()
    actor: LearnerConfig = LearnerConfig()
    weights: WeightsConfig = WeightsConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    journal: JournalConfig = JournalConfig()
    log: LogConfig = LogConfig()

    @property
    def needs_critic(self) -> bool:
        return self.advantage.estimator == "gae"

    @property
    def needs_reference(self) -> bool:
        return self.kl.coef > 0

    @model_validator(mode="after")
    def _held_out(self) -> TrainingSettings:
        if self.eval.data is not None:
            try:
                check_apart(self.data.parts, self.eval.data.parts)
            except ConfigError as error:
                raise ValueError(f"data and eval.data: {error.message}") from None
        return self

    @model_validator(mode="after")
    def _groups(self) -> TrainingSettings:
        if self.advantage.estimator in GROUP_ESTIMATORS and self.sampling.n < 2:
            raise ValueError(
                f"advantage.estimator {self.advantage.estimator!r} compares the samples of a prompt: "
                "set sampling.n to 2 or more"
            )
        samples = self.sampling.prompts_per_step * self.sampling.n
        if samples < self.train.minibatches:
            raise ValueError(f"train.minibatches is above the {samples} samples of a step")
        if self.train.freezing_actor_steps and not self.needs_critic:
            raise ValueError("train.freezing_actor_steps needs a critic: advantage.estimator = 'gae'")
        return self


class TrainerConfig(TrainingSettings):
    """The trainer as a process (of `actor.ranks` ranks)."""

    run: Name = "run"
    """Name of the run."""
    run_dir: Path = Path("runs/run")
    """Folder of the run."""
    model: str = ""
    """Folder or hub name of the policy's first weights."""
    replay_only: bool = False
    """Train from the journal alone, from its first entry, and start no service (`rlctl replay`)."""
    server: ServerConfig = ServerConfig()
    bus: BusConfig = BusConfig()
    generation: ChannelConfig = ChannelConfig()
    generation_replicas: int = Field(1, ge=1)
    """Replicas waited for before training starts."""
    reward: ChannelConfig = ChannelConfig()
    critic: ChannelConfig = ChannelConfig()
    stall_timeout_s: float = Field(1800.0, gt=0)
    """A step whose rollouts take longer ends the trainer with the names of the missing groups, seconds."""
