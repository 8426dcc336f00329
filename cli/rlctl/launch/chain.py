"""`rlctl launch chain`: SFT, a reward model, PPO against it, DPO on its pairs, and a report that compares them.

model ─► SFT ─┬─► reward model ─┐
              ├─────────────────┴─► PPO ─┐
              └─► DPO (the same pairs) ──┴─► report: responses, rewards, distance from SFT

Each stage is a run of its own below the chain's folder. What is done is not run again, and a stage that was ended goes
on where it stood, so the same command goes on from anywhere.
"""

from __future__ import annotations

import json
import secrets
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console

from rlctl.core.durable import write_atomic
from rlctl.launch.chain_checks import check_chain, stand_ins
from rlctl.launch.chain_folder import MODEL, ChainFolder
from rlctl.launch.chain_recipe import STAGES, ChainRecipe, Stage
from rlctl.launch.chain_summary import chain_summary
from rlctl.launch.chain_view import CHART, markdown, print_chain, print_chain_plan
from rlctl.launch.interruption import interruptible, own_environment
from rlctl.launch.launcher import DONE, STOPPED, launch, local_gpus
from rlctl.launch.prepare import prepare_model
from rlctl.launch.recipe import Recipe
from rlctl.launch.spec import Plan
from rlctl.launch.training import launch_training
from rlctl.rpc.portal import Portal

if TYPE_CHECKING:
    from rlctl.launch.chain_numbers import Measured


def dry_run_chain(recipe: ChainRecipe, console: Console) -> None:
    """Checks a recipe and prints the plan of every stage; starts and fetches nothing. Raises ConfigError."""
    folder = ChainFolder(recipe.run_dir.resolve())
    folder.refuse_other(recipe)
    folder.refuse_gaps(recipe)
    plans = check_chain(recipe, here=False, gpus=None)
    print_chain_plan(console, recipe, recipe.stages(stand_ins(recipe)), plans)
    if _gpus(plans) and not local_gpus():
        console.print(
            "note       this machine has no GPU: the plan is valid, but cannot be launched here", style="yellow"
        )


def launch_chain(recipe: ChainRecipe, console: Console, *, fresh: bool) -> int:
    """Runs a chain to its end, or goes on with it; 0 when done, 130 when stopped. Raises RlctlError."""
    folder = ChainFolder(recipe.run_dir.resolve())
    run = folder.run
    check_chain(recipe, here=True, gpus=local_gpus())
    run.take()
    try:
        if fresh and run.exists:
            console.print(f"the earlier run is kept in {run.begin_anew()}", markup=False, highlight=False)
        folder.refuse_other(recipe)
        folder.refuse_gaps(recipe)
        run.write_recipe(recipe)
        run.write_launch(secrets.token_hex(8), "", 0)
        with interruptible():
            try:
                code = _Chain(recipe, folder, console).run()
            except KeyboardInterrupt:
                code = STOPPED
        if code == STOPPED:
            how = "stopped; the same command (rlctl launch chain ...) goes on from here"
            console.print(how, markup=False, highlight=False)
        return code
    finally:
        run.release()


def _gpus(plans: dict[Stage, Plan]) -> int:
    return sum(process.gpus for plan in plans.values() for process in plan.processes)


class _Chain:
    """One launch of a chain."""

    def __init__(self, recipe: ChainRecipe, folder: ChainFolder, console: Console) -> None:
        self._recipe = recipe
        self._folder = folder
        self._console = console
        self._began = time.monotonic()
        self._seconds_before: float = folder.run.summary().get("seconds", 0.0)

    def run(self) -> int:
        for number, stage in enumerate(STAGES, 1):
            if self._folder.done(stage):
                self._say(f"stage {number} of {len(STAGES)}, {stage}: done before")
                continue
            self._console.rule(f"stage {number} of {len(STAGES)}: {stage}", align="left")
            code = self._launch(stage)
            self._summarize()
            if code != DONE:
                return code
        self._console.rule("report", align="left")
        summary = self._summarize(self._measure())
        self._draw(summary)
        (self._folder.path / "report.md").write_text(
            markdown(summary, self._recipe.reward_model.normalize), encoding="utf-8"
        )
        print_chain(self._console, summary, self._folder.path)
        return DONE

    def _launch(self, stage: Stage) -> int:
        recipe = self._recipe.stages(self._folder.trained)[stage]
        with own_environment():
            if isinstance(recipe, Recipe):
                return launch(recipe, self._console, fresh=False)
            return launch_training(recipe, self._console, fresh=False)

    def _measure(self) -> list[Measured]:
        from rlctl.launch.chain_measures import Measures

        recipe, folder = self._recipe, self._folder
        policies = {"base": str(prepare_model(recipe.model, recipe.seed, self._say))}
        policies |= {stage: str(folder.path / stage / MODEL) for stage in ("sft", "ppo", "dpo")}
        # One event loop for all services: gRPC has events left for those that are closed.
        with Portal("rlctl-chain") as portal:
            return Measures(recipe, folder.trained, folder.report, portal, self._say).run(policies)

    def _summarize(self, measures: list[Measured] | None = None) -> dict[str, Any]:
        """Writes summary.json after a stage, and at the end with what was measured."""
        seconds = self._seconds_before + time.monotonic() - self._began
        summary = chain_summary(self._recipe, self._folder, measures, seconds)
        write_atomic(self._folder.path / "summary.json", json.dumps(summary, indent=2).encode())
        return summary

    def _draw(self, summary: dict[str, Any]) -> None:
        from rlctl.launch.chain_chart import draw

        draw(self._folder.path / CHART, summary)

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
