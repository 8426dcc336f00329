"""The recipe of the whole chain: SFT, a reward model, PPO against it, DPO on the reward model's pairs.

A stage is a table with the name of a recipe and settings that win over it:

    [ppo]
    recipe = "quickstart"
    train = { steps = 100 }
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, model_validator

from rlctl.core.config import Name, StrictConfig, parse, set_override, validate
from rlctl.core.errors import ConfigError
from rlctl.launch.loop_recipe import OwnGenerationSection
from rlctl.launch.recipe import Recipe, find_recipe
from rlctl.launch.training_recipe import DPORecipe, RMRecipe, SFTRecipe

Stage = Literal["sft", "rm", "ppo", "dpo"]
STAGES: tuple[Stage, ...] = ("sft", "rm", "ppo", "dpo")

#: Settings of a stage that the chain knows better, and what a person sets instead.
_EVERYWHERE = {"job": "the table's name", "name": "name", "runs_dir": "runs_dir", "seed": "seed"}
FILLED_IN: dict[Stage, dict[str, str]] = {
    "sft": _EVERYWHERE | {"model": "model"},
    "rm": _EVERYWHERE,
    "ppo": _EVERYWHERE
    | {"model": "model", "reward.scorers": "reward_model", "reward.addresses": "reward_model"},
    "dpo": _EVERYWHERE | {"model": "model", "data": "rm.data", "eval_data": "rm.eval_data"},
}  # fmt: skip

C = TypeVar("C", bound=StrictConfig)


class RewardModelSection(StrictConfig):
    """How the trained reward model scores, in PPO and in the report."""

    normalize: bool = True
    """Standardise scores with the mean and deviation of the held-out pairs' rewards."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of its weights."""
    max_length: int = Field(4096, ge=8)
    """Longest prompt and response, tokens; longer ones lose the prompt's beginning."""
    batch_tokens: int = Field(16384, ge=64)
    """Tokens of one forward."""


@dataclass(frozen=True)
class Trained:
    """Folders of the models that later stages start from."""

    sft: str
    rm: str


class ChainRecipe(StrictConfig):
    """All stages, and the report that compares what they made."""

    job: Literal["chain"] = "chain"
    name: Name = "run"
    """Name of the chain; its folder is `runs_dir/name`, and each stage is a run below it."""
    runs_dir: Path = Path("runs")
    """Folder of all runs."""
    seed: int = Field(0, ge=0)
    """Seed of every stage, and of the report's samples."""
    model: str = ""
    """Model before SFT: a folder, a hub name, or `rlctl/arithmetic-llama-untrained` (built on the spot)."""
    sft: dict[str, Any]
    """Supervised fine-tuning of `model`: `recipe` names one of `rlctl launch sft`, other keys are its settings."""
    rm: dict[str, Any]
    """The reward model: likewise of `rlctl launch rm`. It starts from the SFT model unless `rm.model` is set."""
    ppo: dict[str, Any]
    """PPO from the SFT model, rewarded by the reward model alone: likewise of `rlctl launch ppo`. Its `eval.data` are
    the prompts of the report."""
    dpo: dict[str, Any]
    """DPO from the SFT model on the reward model's pairs: likewise of `rlctl launch dpo`."""
    reward_model: RewardModelSection = RewardModelSection()
    samples: int = Field(4, ge=1)
    """Responses sampled to each prompt of the report, besides the greedy one."""
    at_once: int = Field(64, ge=1)
    """Prompts of the report in work at the same time."""
    timeout_s: float = Field(600.0, gt=0)
    """Longest a prompt of the report may take, in each service, seconds."""
    generation: OwnGenerationSection = OwnGenerationSection()
    """The generation service of the report, and the type of the reference it compares with."""

    @property
    def run_dir(self) -> Path:
        return self.runs_dir / self.name

    @model_validator(mode="after")
    def _stages(self) -> ChainRecipe:
        if not self.model:
            raise ValueError("model is not set: name the model that SFT starts from")
        stages = self.stages(Trained("sft", "rm"))
        ppo, rm = stages["ppo"], stages["rm"]
        assert isinstance(ppo, Recipe)
        assert isinstance(rm, RMRecipe)
        if self.reward_model.normalize and rm.eval_data is None:
            raise ValueError(
                "rm.eval_data is not set: reward_model.normalize takes mean and deviation from these pairs; set it, or "
                "reward_model.normalize = false"
            )
        if ppo.eval.data is None:
            raise ValueError("ppo.eval.data is not set: the report asks these prompts")
        if ppo.cluster.nodes > 1:
            raise ValueError("the report runs on the machine of the launcher: set ppo.cluster.nodes = 1")
        return self

    @property
    def sft_recipe(self) -> SFTRecipe:
        return self._stage("sft", SFTRecipe, {"model": self.model})

    def rm_recipe(self, sft: str) -> RMRecipe:
        """From the folder of the SFT model, unless it names a model of its own."""
        return self._stage("rm", RMRecipe, {} if self.rm.get("model") else {"model": sft})

    def ppo_recipe(self, trained: Trained) -> Recipe:
        """From the SFT model, with the reward model as its one scorer."""
        reward = self.ppo.get("reward", {})
        if isinstance(reward, dict):
            reward = reward | {"scorers": [self.scorer(trained)]}
        return self._stage("ppo", Recipe, {"model": trained.sft, "reward": reward})

    def dpo_recipe(self, sft: str) -> DPORecipe:
        """From the folder of the SFT model, on the pairs of the reward model."""
        pairs = {name: self.rm[name] for name in ("data", "eval_data") if name in self.rm}
        return self._stage("dpo", DPORecipe, {"model": sft} | pairs)

    def stages(self, trained: Trained) -> dict[Stage, SFTRecipe | RMRecipe | Recipe | DPORecipe]:
        """All of them. Raises ConfigError."""
        return {
            "sft": self.sft_recipe,
            "rm": self.rm_recipe(trained.sft),
            "ppo": self.ppo_recipe(trained),
            "dpo": self.dpo_recipe(trained.sft),
        }

    def scorer(self, trained: Trained) -> dict[str, Any]:
        """The trained reward model as a scorer of the reward service."""
        return {"kind": "model", "model": trained.rm} | self.reward_model.model_dump()

    def _stage(self, stage: Stage, cls: type[C], filled_in: dict[str, Any]) -> C:
        tree = copy.deepcopy(getattr(self, stage))
        own = {"name": stage, "runs_dir": self.run_dir.resolve(), "seed": self.seed}
        return _validated(stage, cls, tree | own | filled_in)


def read_chain(path: Path, overrides: Sequence[str] = ()) -> ChainRecipe:
    """The recipe in a file, each stage put together from the recipe it names and its own settings.

    Raises ConfigError and NotFoundError.
    """
    text = path.read_text(encoding="utf-8-sig")
    tree = parse(text, path)
    for override in overrides:
        set_override(tree, override)
    for stage in STAGES:
        own = tree.get(stage)
        if isinstance(own, dict):
            _refuse_filled_in(stage, own)
            tree[stage] = _put_together(stage, own)
    return validate(ChainRecipe, tree, source=path, text=text, overrides=overrides)


def _put_together(stage: Stage, own: dict[str, Any]) -> dict[str, Any]:
    """The stage's recipe with its own settings on top."""
    own = dict(own)
    name = own.pop("recipe", None)
    if name is None:
        return own
    path = find_recipe(str(name), "" if stage == "ppo" else "offline")
    base = parse(path.read_text(encoding="utf-8-sig"), path)
    if base.get("job", "ppo") != stage:
        raise ConfigError(f"{stage}.recipe: {path} is a recipe of `rlctl launch {base.get('job', 'ppo')}`")
    for filled_in in (*FILLED_IN[stage], *(("model",) if stage == "rm" else ())):
        _drop(base, filled_in)
    return _merged(base, own)


def _refuse_filled_in(stage: Stage, own: dict[str, Any]) -> None:
    for name, instead in FILLED_IN[stage].items():
        section, _, key = name.partition(".")
        given = own.get(section)
        if given is not None and (not key or (isinstance(given, dict) and key in given)):
            raise ConfigError(f"{stage}.{name} is filled in by the chain: set {instead} instead")


def _drop(tree: dict[str, Any], name: str) -> None:
    section, _, key = name.partition(".")
    if key and isinstance(tree.get(section), dict):
        tree[section].pop(key, None)
    elif not key:
        tree.pop(section, None)


def _merged(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Tables are put together, anything else of `own` takes the place of what was there."""
    merged = dict(base)
    for key, value in own.items():
        there = merged.get(key)
        merged[key] = _merged(there, value) if isinstance(there, dict) and isinstance(value, dict) else value
    return merged


def _validated(stage: Stage, cls: type[C], tree: dict[str, Any]) -> C:
    try:
        return validate(cls, tree)
    except ConfigError as error:
        lines = error.message.splitlines()
        raise ConfigError("\n".join(f"[{stage}] {line}" for line in lines)) from None
