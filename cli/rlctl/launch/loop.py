"""`rlctl launch iterative-dpo|rejection-sampling`: round after round, from a recipe to a model.

policy ─► responses (held-out prompts, prompts of the round) ─► rewards ─► chosen ─► training ─► next policy
            generation service, then gone                        reward service, then gone    `launch_training`

Each arrow ends in a file that appears whole or grows answer by answer, so the same command goes on wherever it
was killed.
"""

from __future__ import annotations

import json
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from rlctl.clients.answers import Row
from rlctl.core.durable import fsync_tree, write_atomic
from rlctl.core.errors import FailedPreconditionError
from rlctl.launch.interruption import interruptible, own_environment
from rlctl.launch.launcher import DONE, STOPPED, local_gpus
from rlctl.launch.loop_checks import check_loop
from rlctl.launch.loop_recipe import IterativeDPORecipe, Loop, RejectionSamplingRecipe
from rlctl.launch.loop_view import print_loop, print_loop_plan, round_line
from rlctl.launch.prepare import prepare_model
from rlctl.launch.run_folder import RunFolder
from rlctl.launch.training import launch_training
from rlctl.rpc.portal import Portal

if TYPE_CHECKING:
    from rlctl.launch.loop_stages import Stages
    from rlctl.offline.choosing import Chosen

MODEL = "model"


def dry_run_loop(recipe: Loop, console: Console) -> None:
    """Checks a recipe and prints its plan; starts and fetches nothing. Raises ConfigError."""
    folder = RunFolder(recipe.run_dir)
    if folder.exists:
        folder.refuse_other_loop(recipe)
    plan = check_loop(recipe, here=False, gpus=None)
    print_loop_plan(console, recipe, plan)
    if plan.processes[0].gpus and not local_gpus():
        console.print(
            "note       this machine has no GPU: the plan is valid, but cannot be launched here", style="yellow"
        )


def launch_loop(recipe: Loop, console: Console, *, fresh: bool) -> int:
    """Runs a recipe to its end, or goes on with it; 0 when done, 130 when stopped. Raises RlctlError."""
    folder = RunFolder(recipe.run_dir.resolve())
    plan = check_loop(recipe, here=True, gpus=None if recipe.cluster.ray_address else local_gpus())
    folder.take()
    try:
        if fresh and folder.exists:
            console.print(f"the earlier run is kept in {folder.begin_anew()}", markup=False, highlight=False)
        if folder.exists:
            folder.refuse_other_loop(recipe)
        print_loop_plan(console, recipe, plan)
        folder.write_recipe(recipe)
        folder.write_launch(secrets.token_hex(8), "", 0)
        with interruptible():
            try:
                code = _Rounds(recipe, folder, console).run()
            except KeyboardInterrupt:
                code = STOPPED
        if code == STOPPED:
            how = f"stopped; the same command (rlctl launch {recipe.job} ...) goes on from here"
            console.print(how, markup=False, highlight=False)
        return code
    finally:
        folder.release()


@dataclass(frozen=True)
class _Round:
    """Files of a round."""

    number: int
    folder: Path

    @property
    def chosen(self) -> Path:
        return self.folder / "chosen.jsonl"

    @property
    def counts(self) -> Path:
        return self.folder / "counts.json"

    @property
    def model(self) -> Path:
        return self.folder / "train" / MODEL

    @property
    def trained(self) -> bool:
        training = RunFolder(self.folder / "train")
        return training.summary().get("status") == "done" and self.model.is_dir()


class _Rounds:
    """One launch of a loop."""

    def __init__(self, recipe: Loop, folder: RunFolder, console: Console) -> None:
        self._recipe = recipe
        self._folder = folder
        self._console = console
        self._began = time.monotonic()
        self._seconds_before: float = folder.summary().get("seconds", 0.0)

    def run(self) -> int:
        from rlctl.launch.loop_stages import Stages

        recipe = self._recipe
        first = str(prepare_model(recipe.model, recipe.seed, self._say))
        # One event loop for all stages: gRPC has events left for those that are closed.
        with Portal("rlctl-loop") as portal:
            return self._rounds(Stages(recipe, self._folder.path, first, portal, self._say), first)

    def _rounds(self, stages: Stages, first: str) -> int:
        recipe = self._recipe
        policy, evaluations, told = first, [], []
        for done in range(recipe.rounds + 1):
            tasks = {}
            if recipe.eval_prompts is not None:
                tasks["held-out"] = stages.held_out(done)
            if done < recipe.rounds:
                tasks["round"] = stages.round(done + 1)
            scored = stages.run(policy, tasks)
            if "held-out" in scored:
                evaluations.append(_evaluation(done, scored["held-out"]))
                self._write("evaluations.jsonl", evaluations)
                self._say(f"after {done} rounds: held-out reward {evaluations[-1]['reward']:.4g}")
            if done == recipe.rounds:
                break
            this = _Round(done + 1, tasks["round"].folder)
            chosen = self._choose(this, scored["round"])
            rewards = _rewards(scored["round"])
            told.append({"step": this.number, "reward/mean": sum(rewards) / len(rewards), **chosen})
            self._write("metrics.jsonl", told)
            self._say(round_line(told[-1], recipe.rounds))
            if not this.trained and self._train(this, policy, first) != DONE:
                self._summarize("stopped", done, evaluations, told)
                return STOPPED
            shutil.rmtree(this.folder / "train" / "checkpoints", ignore_errors=True)
            policy = str(this.model)
            self._summarize("stopped", done + 1, evaluations, told)
        self._keep(policy)
        summary = self._summarize("done", recipe.rounds, evaluations, told)
        print_loop(self._console, recipe.name, self._folder.path, summary)
        return DONE

    def _choose(self, this: _Round, scored: list[Row]) -> dict[str, int]:
        """What the round learns from, as a file; how many there are of each kind."""
        if not this.counts.is_file():
            chosen = choose(self._recipe, scored)
            write_atomic(
                this.chosen, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in chosen.rows).encode()
            )
            write_atomic(this.counts, json.dumps(chosen.counts).encode())
        counts: dict[str, int] = json.loads(this.counts.read_text(encoding="utf-8"))
        if not counts["chosen"]:
            raise FailedPreconditionError(
                f"round {this.number} has nothing to learn from: {_nothing(self._recipe)} "
                f"({', '.join(f'{name} {count}' for name, count in counts.items())})",
                reason="NOTHING_CHOSEN",
            )
        return counts

    def _train(self, this: _Round, policy: str, first: str) -> int:
        recipe = self._recipe.training(this.number, policy, first, this.folder, this.chosen)
        with own_environment():
            return launch_training(recipe, self._console, fresh=False)

    def _keep(self, policy: str) -> None:
        """The last policy as the run's model, written aside and renamed."""
        final = self._folder.path / MODEL
        aside = final.with_name(MODEL + ".tmp")
        shutil.rmtree(aside, ignore_errors=True)
        shutil.copytree(policy, aside)
        fsync_tree(aside)
        shutil.rmtree(final, ignore_errors=True)
        aside.rename(final)

    def _summarize(self, status: str, done: int, evaluations: list[Row], told: list[Row]) -> dict[str, Any]:
        """Writes summary.json after so many rounds; `stopped` until the last is over, for it may be killed."""
        recipe = self._recipe
        summary: dict[str, Any] = {
            "job": recipe.job, "run": recipe.name, "status": status, "steps": done, "total_steps": recipe.rounds,
            "seconds": round(self._seconds_before + time.monotonic() - self._began, 3), "seed": recipe.seed,
            "model": str(self._folder.path / MODEL) if status == "done" else None, "rounds": told,
        }  # fmt: skip
        if evaluations:
            summary["eval"] = {"before": evaluations[0], "after": evaluations[-1], "n": evaluations[-1]["n"]}
        write_atomic(self._folder.path / "summary.json", json.dumps(summary, indent=2).encode())
        return summary

    def _write(self, name: str, rows: list[Row]) -> None:
        write_atomic(self._folder.path / name, "".join(json.dumps(row) + "\n" for row in rows).encode())

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def choose(recipe: Loop, scored: list[Row]) -> Chosen:
    """What a round learns from its scored responses."""
    from rlctl.offline.choosing import best_responses, conditioned_responses, preference_pairs

    if isinstance(recipe, IterativeDPORecipe):
        return preference_pairs(scored)
    assert isinstance(recipe, RejectionSamplingRecipe)
    return (
        conditioned_responses(scored) if recipe.select == "conditional" else best_responses(scored, recipe.min_reward)
    )


def _nothing(recipe: Loop) -> str:
    if isinstance(recipe, IterativeDPORecipe):
        return (
            "no prompt has two whole responses with unequal rewards; start anew with a higher sampling.n, "
            "sampling.temperature or sampling.max_new_tokens, or with other prompts"
        )
    return (
        "no whole response was good enough; start anew with a higher sampling.n or sampling.max_new_tokens, or a lower "
        "min_reward"
    )


def _evaluation(done: int, scored: list[Row]) -> Row:
    rewards = _rewards(scored)
    return {"step": done, "reward": sum(rewards) / len(rewards), "n": len(rewards)}


def _rewards(scored: list[Row]) -> list[float]:
    """Of the responses that have one: a stage without any is an error."""
    return [row["reward"] for row in scored if row["reward"] is not None]
