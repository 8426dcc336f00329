"""What a person sees of an offline training: the plan, a line of progress, and what it came to."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rlctl.launch import memory
from rlctl.launch.monitor import Pace, Rows
from rlctl.launch.spec import Plan
from rlctl.launch.training_recipe import TrainingRecipe, models_of
from rlctl.offline.config import KDConfig

#: Seconds between lines where there is no terminal.
LINE_S = 10.0
#: Held-out measures that every job has come first; these are shown behind them.
MEASURES = ("margin", "kl", "nll", "teacher_ce", "token_accuracy", "reward_mean", "reward_std")


class TrainingView:
    """One line that moves on a terminal, a line now and then elsewhere. Use as a context; feed it with `update`."""

    def __init__(self, console: Console, folder: Path) -> None:
        self._console = console
        self._metrics = Rows(folder / "metrics.jsonl")
        self._evaluations = Rows(folder / "evaluations.jsonl")
        self._metrics.refresh()
        self._evaluations.refresh()
        self._pace = Pace()
        self._said = time.monotonic()
        self._live = Live(console=console, refresh_per_second=2, transient=True) if console.is_terminal else None

    def __enter__(self) -> TrainingView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def update(self) -> None:
        self._metrics.refresh()
        for evaluation in self._evaluations.refresh():
            self.say(f"after {evaluation['step']} steps: {held_out(evaluation)}")
        if not self._metrics.rows:
            return
        row = self._metrics.rows[-1]
        self._pace.mark(int(row["step"]) + 1)
        line = self._line(row)
        if self._live is not None:
            self._live.update(Text(line))
        elif time.monotonic() - self._said > LINE_S:
            self._said = time.monotonic()
            self.say(line)

    def _line(self, row: dict[str, Any]) -> str:
        left = self._pace.left(int(row["step"]) + 1, _total(row))
        return progress(row) + (f", {int(left) // 60}:{int(left) % 60:02d} left" if left is not None else "")


def progress(row: dict[str, Any]) -> str:
    """Where a row of metrics was written, in words."""
    parts = [
        f"step {int(row['step']) + 1} of {_total(row)}", f"epoch {row['epoch']:.2f}", f"loss {row['loss']:.4g}",
        f"{row['tokens_per_second']:.0f} tokens/s",
    ]  # fmt: skip
    if "accuracy" in row:
        parts.insert(3, f"accuracy {row['accuracy']:.3f}")
    return ", ".join(parts)


def _total(row: dict[str, Any]) -> int:
    return round((row["step"] + 1) / row["progress"])


def held_out(row: dict[str, Any]) -> str:
    """The measures of an evaluation, in words."""
    parts = [f"held-out loss {row['loss']:.4g}", f"accuracy {row['accuracy']:.3f} of {int(row['n'])}"]
    parts += [f"{name.replace('_', ' ')} {row[name]:.4g}" for name in MEASURES if name in row]
    return ", ".join(parts)


def print_training_plan(console: Console, recipe: TrainingRecipe, plan: Plan) -> None:
    learner, first = recipe.learner, plan.processes[0]
    steps = f"{recipe.steps} steps" if recipe.steps else f"{recipe.epochs:g} epochs"
    adapters = "" if learner.lora is None else ", QLoRA" if learner.lora.quantize_4bit else ", LoRA"
    lines = {
        f"run {recipe.name}": f"{recipe.job}, {steps} of {recipe.batch_size} examples a step",
        "ranks": f"{learner.ranks} ({'GPU' if first.gpus else 'CPU'}, {learner.dtype}, ZeRO-{learner.zero_stage}"
        f"{adapters}), {first.memory_mb / 1024:.1f} GiB each"
        + (f" and {first.gpu_memory_gb:.0f} GB of its GPU" if first.gpus else ""),
    }
    for name, model in models_of(recipe).items():
        if model:
            size = memory.model_size(model)
            lines[name] = f"{model} ({size.billions if size else 'size not known'})"
    if isinstance(recipe, KDConfig) and recipe.teacher_service is not None:
        service = recipe.teacher_service
        told = f"its {service.top_k} likeliest tokens" if service.top_k else "all tokens"
        lines["teacher"] = f"served at {', '.join(service.addresses)}, {told} ({service.dtype})"
    for data in recipe.data:
        lines["data"] = ", ".join([*([lines["data"]] if "data" in lines else []), _source(data)])
    if recipe.eval_data is not None:
        lines["held out"] = _source(recipe.eval_data)
    lines["run folder"] = str(recipe.run_dir.resolve())
    for note in plan.notes:
        lines["note"] = note
    for name, text in lines.items():
        console.print(f"{name:<17}{text}", markup=False, highlight=False, soft_wrap=True)


def _source(data: Any) -> str:
    return f"reasoning-gym {data.task.name} ({data.split})" if data.task is not None else f"{data.path} ({data.split})"


def print_training(console: Console, run: str, folder: Path, summary: dict[str, Any]) -> None:
    """How the held-out measures moved, and where the model lies."""
    table = Table(title=f"run {run}: {summary['status']}", title_justify="left", title_style="bold", show_header=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row("steps", f"{summary['steps']} of {summary['total_steps']} in {summary['seconds']:.0f} s")
    loss = summary.get("loss")
    if loss:
        table.add_row("loss", f"{loss['first']:.4g} (first) -> {loss['last']:.4g} (last)")
    evaluation = summary.get("eval")
    if evaluation:
        before, after = evaluation["before"], evaluation["after"]
        for name in ("loss", "accuracy"):
            table.add_row(f"held-out {name}", f"{before[name]:.4g} -> {after[name]:.4g} ({evaluation['n']} examples)")
    if summary.get("model"):
        table.add_row("model", str(summary["model"]))
    table.add_row("logs, metrics", f"{folder}/logs, {folder}/metrics.jsonl")
    console.print(table)
