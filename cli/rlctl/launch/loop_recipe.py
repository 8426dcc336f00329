"""Recipes of the loops around the offline trainers: generate, score, choose, train, round after round."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from rlctl.core.config import Name, StrictConfig
from rlctl.data.condition import SCORE_TOKENS
from rlctl.data.config import DataConfig, PreferenceDataConfig, SupervisedDataConfig
from rlctl.generation.config import EngineConfig
from rlctl.launch.recipe import MachinesSection
from rlctl.launch.training_recipe import DPORecipe, SFTRecipe
from rlctl.learner.config import LearnerConfig
from rlctl.offline.config import OfflineLogConfig, ReferenceOptions
from rlctl.reward.config import RewardSettings
from rlctl.trainer.config import CheckpointConfig

#: Settings that the training of a round takes over as they are.
TRAINING = ("epochs", "batch_size", "checkpoint", "log", "learner", "cluster")
DPO = ("beta", "loss", "label_smoothing", "length_normalized", "nll_coef")
#: How a prompt becomes what the model sees; the data that is trained on becomes it alike.
TEMPLATES = ("input_template", "apply_chat_template", "chat_template", "system_prompt", "max_prompt_len", "too_long")
#: What was sampled may take more tokens when its text is tokenised anew.
SLACK = 2


class SamplingSection(StrictConfig):
    """Responses of a round."""

    n: int = Field(8, ge=1)
    """Responses to each prompt."""
    temperature: float = Field(1.0, ge=0.01, le=2)
    """Of sampling; held-out prompts are answered greedily."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus."""
    max_new_tokens: int = Field(1024, ge=1)
    """Longest response, tokens; one that is cut there is not learnt from."""
    timeout_s: float = Field(1800.0, gt=0)
    """Longest a prompt's responses may take, seconds."""
    at_once: int = Field(64, ge=1)
    """Prompts in work at the same time."""


class OwnGenerationSection(EngineConfig):
    """The generation service, started for the time of generation with the round's policy."""

    replicas: int = Field(1, ge=1)
    """How many; each has `tensor_parallel` GPUs of its own where there are any."""
    start_timeout_s: float = Field(600.0, gt=0)
    """How long a service may take to load its model, seconds."""

    @model_validator(mode="after")
    def _policy(self) -> OwnGenerationSection:
        if self.model:
            raise ValueError("generation.model is the policy of the round: set model instead")
        return self


class OwnRewardSection(RewardSettings):
    """The reward service, started for the time of scoring."""

    addresses: list[str] = Field([])
    """Replicas that run already; none is started then."""
    timeout_s: float = Field(600.0, gt=0)
    """Longest the rewards of a prompt's responses may take, seconds."""


class LoopRecipe(StrictConfig):
    """What both loops are told."""

    name: Name = "run"
    """Name of the run; its folder is `runs_dir/name`."""
    runs_dir: Path = Path("runs")
    """Folder of all runs; on a cluster, storage that every machine sees."""
    seed: int = Field(0, ge=0)
    """Seed of the prompts' order, of the samples and of each round's training."""
    model: str = ""
    """First policy: a folder, a hub name, or `rlctl/arithmetic-llama` (built and warmed up on the spot)."""
    rounds: int = Field(1, ge=1)
    """Rounds; each goes on with the model of the one before."""
    prompts: DataConfig
    """Prompts to answer."""
    prompts_per_round: int | None = Field(None, ge=1)
    """Prompts of a round, the next in a shuffled order; `none`: all of them, every round."""
    eval_prompts: DataConfig | None = None
    """Held-out prompts, whose mean reward (greedy) is measured before the first round and after each."""
    sampling: SamplingSection = SamplingSection()
    generation: OwnGenerationSection = OwnGenerationSection()
    reward: OwnRewardSection = OwnRewardSection()
    epochs: float = Field(1.0, gt=0)
    """Passes over what was chosen, each round."""
    batch_size: int = Field(64, ge=1)
    """Examples (pairs) of an optimizer step, all ranks together."""
    checkpoint: CheckpointConfig = CheckpointConfig(steps=100)
    log: OfflineLogConfig = OfflineLogConfig()
    learner: LearnerConfig = LearnerConfig()
    cluster: MachinesSection = MachinesSection()

    @property
    def run_dir(self) -> Path:
        return self.runs_dir / self.name

    @model_validator(mode="after")
    def _one_machine(self) -> LoopRecipe:
        if self.cluster.nodes > 1:
            raise ValueError("generation runs on the machine of the launcher: set cluster.nodes = 1")
        return self

    def _shared(self, number: int, model: str, folder: Path) -> dict[str, object]:
        """Settings of a round's training, whatever it is."""
        own = {name: getattr(self, name) for name in TRAINING}
        return own | {
            "name": "train", "runs_dir": folder, "model": model, "seed": self.seed + number, "eval_steps": 0,
        }  # fmt: skip

    def _texts(self) -> dict[str, object]:
        """How texts become tokens, and their limits."""
        limit = SLACK * self.sampling.max_new_tokens
        return {name: getattr(self.prompts, name) for name in TEMPLATES} | {"max_response_len": limit}


class IterativeDPORecipe(LoopRecipe):
    """Iterative DPO: the best and the worst response of each prompt make a pair."""

    job: Literal["iterative-dpo"] = "iterative-dpo"
    reference: Literal["first", "previous"] = "first"
    """Whom a round stays close to: the `first` model, or the `previous` round's."""
    beta: float = Field(0.1, gt=0)
    """How close: temperature of the implicit reward."""
    loss: Literal["sigmoid", "ipo"] = "sigmoid"
    """`sigmoid`: DPO; `ipo`: squared distance of the log-ratio gap to 1 / (2 beta)."""
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """Share of labels taken to be wrong (cDPO)."""
    length_normalized: bool = False
    """Mean log-prob of a response's tokens instead of their sum (usual for `ipo`)."""
    nll_coef: float = Field(0.0, ge=0)
    """Weight of the cross-entropy of the better response (mean over its tokens in the step)."""

    @model_validator(mode="after")
    def _pairs(self) -> IterativeDPORecipe:
        if self.sampling.n < 2:
            raise ValueError("sampling.n must be 2 or more: a pair needs two responses")
        return self

    def training(self, number: int, model: str, first: str, folder: Path, data: Path) -> DPORecipe:
        """Of a round, which goes on from `model`; `first` is the model before all rounds."""
        source = PreferenceDataConfig.model_validate(
            self._texts() | {"path": str(data), "prompt_key": "prompt", "chosen_key": "chosen"}
        )
        reference = ReferenceOptions(model=first if self.reference == "first" else "")
        own = {name: getattr(self, name) for name in DPO}
        return DPORecipe.model_validate(
            self._shared(number, model, folder) | own | {"data": [source], "reference": reference}
        )


class RejectionSamplingRecipe(LoopRecipe):
    """Rejection sampling: supervised fine-tuning on the best response of each prompt; or conditional SFT on all of
    them, each with its reward behind the prompt."""

    job: Literal["rejection-sampling"] = "rejection-sampling"
    select: Literal["best", "conditional"] = "best"
    """`best`: the best response of each prompt; `conditional`: every response, its reward written into the prompt
    (`<rm_score>: 1.25`)."""
    min_reward: float | None = None
    """With `best`: leave out prompts whose best response has less."""
    target_score: float | None = None
    """With `conditional`: the score that held-out prompts, and those of later rounds, ask for."""

    @model_validator(mode="after")
    def _selection(self) -> RejectionSamplingRecipe:
        if self.select == "conditional" and self.target_score is None:
            raise ValueError("select = 'conditional' needs target_score, the score to ask for")
        if self.select == "best" and self.target_score is not None:
            raise ValueError("target_score is for select = 'conditional'")
        if self.select == "conditional" and self.min_reward is not None:
            raise ValueError("min_reward is for select = 'best'")
        return self

    def training(self, number: int, model: str, first: str, folder: Path, data: Path) -> SFTRecipe:
        """Of a round, which goes on from `model`."""
        limit = self.prompts.max_prompt_len + (SCORE_TOKENS if self.select == "conditional" else 0)
        columns = {"input_key": "prompt", "output_key": "response", "label_key": ""}
        source = SupervisedDataConfig.model_validate(
            self._texts() | columns | {"path": str(data), "max_prompt_len": limit}
        )
        return SFTRecipe.model_validate(self._shared(number, model, folder) | {"data": [source]})


Loop = IterativeDPORecipe | RejectionSamplingRecipe

LOOP_RECIPES: dict[str, type[Loop]] = {
    "iterative-dpo": IterativeDPORecipe,
    "rejection-sampling": RejectionSamplingRecipe,
}
