"""What a person sees of a loop: its plan, a line a round, and what it came to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rlctl.data.config import SourceConfig
from rlctl.launch import memory
from rlctl.launch.loop_recipe import IterativeDPORecipe, Loop
from rlctl.launch.spec import Plan


def print_loop_plan(console: Console, recipe: Loop, training: Plan) -> None:
    sampling, generation, first = recipe.sampling, recipe.generation, training.processes[0]
    size = memory.model_size(recipe.model)
    many = f"{recipe.prompts_per_round} prompts" if recipe.prompts_per_round else "all prompts"
    scorers = ", ".join(scorer.label for scorer in recipe.reward.scorers)
    learner = recipe.learner
    lines = {
        f"run {recipe.name}": f"{recipe.job}, {recipe.rounds} rounds of {many}, {sampling.n} responses each",
        "model": f"{recipe.model} ({size.billions if size else 'size not known'})",
        "prompts": _source(recipe.prompts),
        "held out": _source(recipe.eval_prompts) if recipe.eval_prompts is not None else "none",
        "generation": f"{generation.replicas} x {generation.engine} ({generation.dtype}), for the time it is needed",
        "reward": f"at {', '.join(recipe.reward.addresses)}" if recipe.reward.addresses else f"{scorers}, likewise",
        "training": f"{_training(recipe)}, {recipe.epochs:g} epochs, {recipe.batch_size} examples a step",
        "ranks": f"{learner.ranks} ({'GPU' if first.gpus else 'CPU'}, {learner.dtype}, ZeRO-{learner.zero_stage}), "
        f"{first.memory_mb / 1024:.1f} GiB each"
        + (f" and {first.gpu_memory_gb:.0f} GB of its GPU" if first.gpus else ""),
        "run folder": str(recipe.run_dir.resolve()),
    }  # fmt: skip
    for name, text in lines.items():
        console.print(f"{name:<20} {text}", markup=False, highlight=False, soft_wrap=True)


def _training(recipe: Loop) -> str:
    if isinstance(recipe, IterativeDPORecipe):
        return f"DPO on best and worst, close to the {recipe.reference} model"
    return "SFT on the best" if recipe.select == "best" else "SFT on all, with their rewards in the prompts"


def _source(data: SourceConfig) -> str:
    return f"reasoning-gym {data.task.name} ({data.split})" if data.task is not None else f"{data.path} ({data.split})"


def round_line(row: dict[str, Any], rounds: int) -> str:
    """What a round chose, in words."""
    parts = [f"round {row['step']} of {rounds}: mean reward {row['reward/mean']:.4g}"]
    parts.append(f"{row['chosen']} chosen of {row['responses']} responses to {row['prompts']} prompts")
    parts += [f"{name.replace('_', ' ')} {row[name]}" for name in ("left_out", "cut", "unscored") if row[name]]
    return ", ".join(parts)


def print_loop(console: Console, run: str, folder: Path, summary: dict[str, Any]) -> None:
    """How the held-out reward moved, what each round chose, and where the model lies."""
    table = Table(title=f"run {run}: {summary['status']}", title_justify="left", title_style="bold", show_header=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row("rounds", f"{summary['steps']} of {summary['total_steps']} in {summary['seconds']:.0f} s")
    for row in summary["rounds"]:
        table.add_row("", round_line(row, summary["total_steps"]))
    evaluation = summary.get("eval")
    if evaluation:
        before, after = evaluation["before"]["reward"], evaluation["after"]["reward"]
        table.add_row("held-out reward", f"{before:.4g} -> {after:.4g} ({evaluation['n']} prompts)")
    if summary["model"]:
        table.add_row("model", str(summary["model"]))
    table.add_row("logs, rounds", f"{folder}/logs, {folder}/round-01 ...")
    console.print(table)
