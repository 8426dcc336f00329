"""What is printed before and after a run: the plan, and what it came to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rlctl.launch import memory
from rlctl.launch.checks import group_bytes
from rlctl.launch.recipe import Recipe
from rlctl.launch.spec import Plan, ProcessSpec, shares


def print_plan(console: Console, recipe: Recipe, plan: Plan, model: str) -> None:
    size = memory.model_size(model)
    sampling = recipe.sampling
    title = f"run {plan.run}: {recipe.train.steps} steps of {sampling.prompts_per_step} x {sampling.n} samples"
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in ("process", "threads", "GPUs", "memory each", "restarted with"):
        table.add_column(column, justify="right" if column in ("threads", "GPUs", "memory each") else "left")
    for service in dict.fromkeys(process.service for process in plan.processes):
        table.add_row(*_row(plan, plan.of(service)))
    console.print(table)
    known = f"{size.billions} parameters" if size else "size not known"
    console.print(f"model      {recipe.model} ({known})", markup=False, highlight=False)
    console.print(f"data       {_data(recipe)}", markup=False, highlight=False)
    console.print(f"run folder {recipe.run_dir.resolve()}", markup=False, highlight=False)
    needed = (sum(process.memory_mb for process in plan.processes) + memory.RAY_MB) / 1024
    all_gpus = sum(shares(plan.processes).values())
    console.print(
        f"needs      {needed:.1f} GiB of memory{f', {all_gpus} GPUs' if all_gpus else ''}; "
        f"rollout messages of {group_bytes(recipe) / memory.MIB:.1f} MiB at most",
        markup=False,
        highlight=False,
    )
    for note in plan.notes:
        console.print(f"note       {note}", markup=False, highlight=False, style="yellow")


def _row(plan: Plan, processes: list[ProcessSpec]) -> list[str]:
    """One service, all of whose processes are alike."""
    first = processes[0]
    with_others = [other.service for other in plan.processes if other.restart_group == first.restart_group]
    need = f"{first.memory_mb / 1024:.1f} GiB"
    if first.gpus:
        need += f" + {first.gpu_memory_gb:.0f} GB a GPU"
    last = f" .. {processes[-1].name}" if len(processes) > 1 else ""
    return [
        first.name + last,
        first.env.get("OMP_NUM_THREADS", "-"),
        f"{first.gpus}{' shared' if first.share else ''}" if first.gpus else "-",
        need,
        "alone" if len(with_others) == 1 or not first.group else ", ".join(dict.fromkeys(with_others)),
    ]


def _data(recipe: Recipe) -> str:
    data = recipe.data
    if data.task is not None:
        return f"reasoning-gym {data.task.name}, {data.split} of {data.task.size} questions"
    return f"{data.path} ({data.split})"


def print_summary(console: Console, run: str, folder: Path, summary: dict[str, Any], *, restarts: int) -> None:
    """How reward and accuracy moved, where the time went, where the model lies."""
    table = Table(title=f"run {run}: {summary['status']}", title_justify="left", title_style="bold", show_header=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row("steps", f"{summary['steps']} of {summary['total_steps']} in {summary['seconds']:.0f} s")
    reward = summary.get("reward")
    if reward:
        table.add_row("reward", f"{reward['first']:.3f} (first step) -> {reward['last']:.3f} (last step)")
    evaluation = summary.get("eval")
    if evaluation:
        before, after, prompts = evaluation["before"], evaluation["after"], f"{evaluation['n']} prompts"
        moved = f"{before['accuracy']:.3f} after {before['step']} steps"
        if after["step"] != before["step"]:
            moved += f" -> {after['accuracy']:.3f} after {after['step']}"
        table.add_row("held-out accuracy", f"{moved} ({prompts})")
    ledger = summary["ledger"]
    table.add_row("ledger", "  ".join(f"{name} {ledger[name]}" for name in ("issued", "trained", "dropped", "pending")))
    seconds = sum(summary["time"].values())
    if seconds:
        table.add_row("time", "  ".join(f"{name} {value / seconds:.0%}" for name, value in summary["time"].items()))
    if ledger["dropped"]:
        reasons = "  ".join(f"{reason} {count}" for reason, count in ledger["dropped_by_reason"].items())
        table.add_row("dropped for", reasons)
    if restarts:
        table.add_row("restarts", str(restarts))
    if summary.get("model"):
        table.add_row("model", str(summary["model"]))
    table.add_row("logs, metrics", f"{folder}/logs, {folder}/metrics.jsonl")
    console.print(table)
    if summary.get("model"):
        console.print(f"Talk to it:  rlctl chat {run}", markup=False, highlight=False)
