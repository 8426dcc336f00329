"""The folder of a chain.

runs/<name>/sft  rm  ppo  dpo   a run each
            report/             responses to the held-out prompts, their rewards and distances
            summary.json        what the chain came to
            report.md  report.png
"""

from __future__ import annotations

from pathlib import Path

from rlctl.core.config import StrictConfig, load
from rlctl.core.errors import ConfigError, NotFoundError
from rlctl.launch.chain_recipe import ChainRecipe, Stage, Trained
from rlctl.launch.recipe import Recipe
from rlctl.launch.run_folder import BINDING, CHANGEABLE, RunFolder, differences

MODEL = "model"
#: Settings of a stage that do not decide what came of it.
_OPERATION = (
    "name", "runs_dir", "cluster", "checkpoint", "log", "journal", "nats_url", "nats_port", "bus", "server", "channel",
    "rollout", "weights", "stall_timeout_s",
)  # fmt: skip
#: Settings of the report, once it was begun.
_REPORT = ("reward_model", "samples", "generation.engine", "generation.dtype")


#: What a stage is made from.
_MADE_FROM: dict[Stage, tuple[Stage, ...]] = {"sft": (), "rm": ("sft",), "ppo": ("sft", "rm"), "dpo": ("sft",)}


class ChainFolder:
    """As the launcher of the chain sees it, whether it exists or not."""

    def __init__(self, path: Path) -> None:
        self.run = RunFolder(path)
        self.path = path

    @property
    def trained(self) -> Trained:
        """Where later stages find their models."""
        return Trained(str(self.path / "sft" / MODEL), str(self.path / "rm" / MODEL))

    @property
    def report(self) -> Path:
        return self.path / "report"

    def stage(self, stage: Stage) -> RunFolder:
        return RunFolder(self.path / stage)

    def done(self, stage: Stage) -> bool:
        """Whether it is not to be run again."""
        run = self.stage(stage)
        return run.summary().get("status") == "done" and (run.path / MODEL).is_dir()

    def recipe(self) -> ChainRecipe:
        """What it was started with. Raises NotFoundError."""
        if self.run.job != "chain":
            raise NotFoundError(f"run {self.path.name!r} is no chain")
        return load(ChainRecipe, self.path / "recipe.toml")

    def refuse_other(self, recipe: ChainRecipe) -> None:
        """Raises ConfigError when the chain cannot go on with these settings."""
        if not self.run.exists:
            return
        if self.run.job != "chain":
            self.run.refuse([f"job: {self.run.job!r} -> 'chain'"])
        changed = []
        for stage, wanted in recipe.stages(self.trained).items():
            if self.stage(stage).exists:
                changed += [f"{stage}.{line}" for line in self._changed(stage, wanted)]
        if self.report.is_dir():
            changed += differences(self.recipe(), recipe, _REPORT)
        self.run.refuse(changed)

    def refuse_gaps(self, recipe: ChainRecipe) -> None:
        """Raises ConfigError where a stage or the report was made from one that is no longer there."""
        gone: dict[Stage, None] = {}
        left = []
        for stage, before in _MADE_FROM.items():
            missing = [one for one in before if not self.done(one)]
            if missing and self.stage(stage).exists and not (stage == "rm" and recipe.rm.get("model")):
                gone |= dict.fromkeys(missing)
                left.append(self.path / stage)
        if self.report.is_dir() and (missing := [stage for stage in _MADE_FROM if not self.done(stage)]):
            gone |= dict.fromkeys(missing)
            left.append(self.report)
        if left:
            raise ConfigError(
                f"chain {self.path.name!r}: the models of {', '.join(gone)} are gone or not whole, and what was made "
                "from them is still there:\n"
                + "\n".join(f"  {path}" for path in left)
                + "\nMove it away too, or start anew with --fresh (the old chain is kept beside it)."
            )

    def _changed(self, stage: Stage, wanted: StrictConfig) -> list[str]:
        """Settings with which a stage that was begun cannot go on; of one that is done, all that decided what it is."""
        run = self.stage(stage)
        before = run.recipe() if isinstance(wanted, Recipe) else run.training_recipe()
        if not self.done(stage) and isinstance(wanted, Recipe):
            return list(differences(before, wanted, BINDING))
        free = _OPERATION if self.done(stage) else CHANGEABLE
        lines = differences(before, wanted, tuple(type(wanted).model_fields))
        return [line for line in lines if not line.startswith(free)]
