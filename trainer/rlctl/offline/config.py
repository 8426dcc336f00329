"""Settings of the offline trainers: one model of settings a job, all with the same loop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from rlctl.core.config import Name, StrictConfig
from rlctl.data.config import (
    KTODataConfig,
    PreferenceDataConfig,
    ProcessDataConfig,
    SourceConfig,
    SupervisedDataConfig,
    check_probabilities,
)
from rlctl.learner.config import LearnerConfig
from rlctl.rpc.config import ChannelConfig
from rlctl.trainer.config import CheckpointConfig


class OfflineLogConfig(StrictConfig):
    """Where metrics go besides metrics.jsonl."""

    tensorboard: bool = True
    """Write TensorBoard events below the run's folder."""
    wandb_project: str | None = None
    """Weights & Biases project; the key comes from WANDB_API_KEY."""
    steps: int = Field(1, ge=1)
    """Write the metrics of every so many steps (the mean since the last row)."""


class OfflineConfig(StrictConfig):
    """What every offline trainer is told (of `learner.ranks` ranks)."""

    name: Name = "run"
    """Name of the run; its folder is `runs_dir/name`."""
    runs_dir: Path = Path("runs")
    """Folder of all runs; on a cluster, storage that every machine sees."""
    seed: int = 0
    """Seed of the data's order, of a model's new parts, and of dropout."""
    model: str = ""
    """First weights: a folder, a hub name, or a small model made on the spot (`rlctl/arithmetic-llama`)."""
    steps: int | None = Field(None, ge=1)
    """Optimizer steps; `none`: `epochs` over the data."""
    epochs: float = Field(1.0, gt=0)
    """Passes over the data, where `steps` is not set."""
    batch_size: int = Field(64, ge=1)
    """Examples (pairs of preferences) of an optimizer step, all ranks together."""
    shuffle: bool = True
    """New order every epoch."""
    eval_steps: int = Field(50, ge=0)
    """Measure on `eval_data` every so many steps, and before the first and after the last; 0: only then."""
    checkpoint: CheckpointConfig = CheckpointConfig(steps=100)
    log: OfflineLogConfig = OfflineLogConfig()
    learner: LearnerConfig = LearnerConfig()

    @property
    def run_dir(self) -> Path:
        return self.runs_dir / self.name

    @property
    def training_data(self) -> list[SourceConfig]:
        """`data`, whatever the job."""
        data: list[SourceConfig] = self.data  # type: ignore[attr-defined]
        return data

    @property
    def held_out_data(self) -> SourceConfig | None:
        """`eval_data`, whatever the job."""
        held_out: SourceConfig | None = self.eval_data  # type: ignore[attr-defined]
        return held_out

    @model_validator(mode="after")
    def _mixture(self) -> OfflineConfig:
        check_probabilities([each.probability for each in self.training_data])
        return self


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


class SFTConfig(OfflineConfig):
    """Supervised fine-tuning: cross-entropy on the responses' tokens."""

    job: Literal["sft"] = "sft"
    data: list[SupervisedDataConfig] = Field(min_length=1)
    """Examples to learn: data sets, put together or mixed by their probabilities."""
    eval_data: SupervisedDataConfig | None = None
    """Held-out examples."""
    stop: AccuracyStop | None = None
    """End early; `none` takes all steps."""

    @model_validator(mode="after")
    def _measured(self) -> SFTConfig:
        if self.stop is not None and self.eval_data is None:
            raise ValueError("stop needs eval_data to measure the accuracy on")
        if self.stop is not None and self.eval_steps == 0:
            raise ValueError("stop needs eval_steps above 0")
        return self


class RMConfig(OfflineConfig):
    """A reward model from pairs: the better response's score above the worse one's (Bradley-Terry)."""

    job: Literal["rm"] = "rm"
    data: list[PreferenceDataConfig] = Field(min_length=1)
    """Pairs to learn: data sets, put together or mixed by their probabilities."""
    eval_data: PreferenceDataConfig | None = None
    """Held-out pairs; the mean and deviation of rewards that are saved with the model are theirs (without them,
    those of the last steps of training)."""
    loss: Literal["sigmoid", "logexp"] = "sigmoid"
    """`sigmoid`: -logsigmoid(chosen - rejected - margin); `logexp`: log(1 + exp(rejected - chosen)), which knows no
    margin and is the same without one."""

    @model_validator(mode="after")
    def _margins(self) -> RMConfig:
        if self.loss == "logexp" and any(each.margin_key for each in self.data):
            raise ValueError("loss 'logexp' knows no margin: leave out margin_key, or set loss = 'sigmoid'")
        return self


class ReferenceOptions(StrictConfig):
    """The frozen model that log-probs are compared with."""

    model: str = ""
    """Folder or hub name; empty: the first weights of the run."""
    precompute: bool = True
    """Compute its log-probs of all data before the first step, and let it go; else it stays in memory and runs in
    every step."""
    batch_tokens: int = Field(16384, ge=64)
    """Tokens of one of its forward passes."""


class DPOConfig(OfflineConfig):
    """Direct preference optimisation, with label smoothing (cDPO), or identity preference optimisation (IPO)."""

    job: Literal["dpo"] = "dpo"
    data: list[PreferenceDataConfig] = Field(min_length=1)
    """Pairs to learn: data sets, put together or mixed by their probabilities."""
    eval_data: PreferenceDataConfig | None = None
    """Held-out pairs."""
    reference: ReferenceOptions = ReferenceOptions()
    beta: float = Field(0.1, gt=0)
    """How close to the reference: temperature of the implicit reward."""
    loss: Literal["sigmoid", "ipo"] = "sigmoid"
    """`sigmoid`: DPO; `ipo`: squared distance of the log-ratio gap to 1 / (2 beta)."""
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """Share of labels taken to be wrong (cDPO)."""
    length_normalized: bool = False
    """Mean log-prob of a response's tokens instead of their sum (usual for `ipo`)."""
    nll_coef: float = Field(0.0, ge=0)
    """Weight of the cross-entropy of the better response (mean over its tokens in the step)."""

    @model_validator(mode="after")
    def _smoothing(self) -> DPOConfig:
        if self.loss == "ipo" and self.label_smoothing:
            raise ValueError("label_smoothing is for loss = 'sigmoid'")
        return self


class KTOConfig(OfflineConfig):
    """Kahneman-Tversky optimisation: single responses, each judged desirable or not."""

    job: Literal["kto"] = "kto"
    data: list[KTODataConfig] = Field(min_length=1)
    """Judged responses to learn: data sets, put together or mixed by their probabilities."""
    eval_data: KTODataConfig | None = None
    """Held-out judged responses."""
    reference: ReferenceOptions = ReferenceOptions()
    beta: float = Field(0.1, gt=0)
    """How close to the reference: temperature of the implicit reward."""
    desirable_weight: float = Field(1.0, ge=0)
    """Weight of desirable responses."""
    undesirable_weight: float = Field(1.0, ge=0)
    """Weight of undesirable responses."""

    @model_validator(mode="after")
    def _mismatched(self) -> KTOConfig:
        if self.batch_size < 2:
            raise ValueError("batch_size must be 2 or more: the reference point comes from the step's other responses")
        return self


class TeacherServiceConfig(ChannelConfig):
    """A teacher behind the reference service (`rlctl serve reference`), and what it is asked for."""

    addresses: list[str] = Field(min_length=1)
    """`host:port` of each replica that serves the teacher."""
    top_k: int = Field(0, ge=0)
    """Tokens of a distribution that the teacher tells, the likeliest; all others count as one more. 0: all tokens."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type in which log-probs travel."""


class KDConfig(OfflineConfig):
    """Distillation: the student learns the teacher's distribution over every next token of given responses."""

    job: Literal["kd"] = "kd"
    data: list[SupervisedDataConfig] = Field(min_length=1)
    """Prompts and responses: data sets, put together or mixed by their probabilities."""
    eval_data: SupervisedDataConfig | None = None
    """Held-out prompts and responses."""
    teacher: str | None = None
    """Folder or hub name of the teacher, which has the student's vocabulary; every rank holds it."""
    teacher_service: TeacherServiceConfig | None = None
    """Instead of `teacher`: one that is served already, for all ranks."""
    alpha: float = Field(0.5, ge=0, le=1)
    """Weight of the teacher's distribution; the rest is cross-entropy on the given tokens."""

    @model_validator(mode="after")
    def _one_teacher(self) -> KDConfig:
        if not self.teacher and self.teacher_service is None:
            raise ValueError(
                "a teacher is missing: set teacher (a model), or teacher_service.addresses (of a reference service)"
            )
        if self.teacher and self.teacher_service is not None:
            raise ValueError("set teacher or teacher_service, not both (teacher=none clears the recipe's)")
        return self


class PRMConfig(OfflineConfig):
    """A process reward model: judges each step of reasoning at the placeholder that ends it."""

    job: Literal["prm"] = "prm"
    data: list[ProcessDataConfig] = Field(min_length=1)
    """Judged reasoning: data sets, put together or mixed by their probabilities."""
    eval_data: ProcessDataConfig | None = None
    """Held-out reasoning."""
    soft_labels: bool = False
    """Learn the given probabilities that a step is right; else right or wrong, above and below one half."""

    @model_validator(mode="after")
    def _same_tokens(self) -> PRMConfig:
        sets = [*self.data, *([self.eval_data] if self.eval_data is not None else [])]
        if len({(each.placeholder, each.positive, each.negative) for each in sets}) > 1:
            raise ValueError("placeholder, positive and negative must be the same in all data sets")
        return self


JobConfig = SFTConfig | RMConfig | DPOConfig | KTOConfig | KDConfig | PRMConfig
Job = Literal["sft", "rm", "dpo", "kto", "kd", "prm"]
JOBS: dict[Job, type[OfflineConfig]] = {
    "sft": SFTConfig, "rm": RMConfig, "dpo": DPOConfig, "kto": KTOConfig, "kd": KDConfig, "prm": PRMConfig,
}  # fmt: skip


class ProcessConfig(StrictConfig):
    """One rank of an offline trainer as a process."""

    run: Annotated[JobConfig, Field(discriminator="job")]
    """The job and its settings."""
