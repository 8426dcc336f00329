"""The live picture of a run: a table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rlctl.launch.monitor import Pace, Rows, Snapshot
from rlctl.launch.spec import Plan

PHASES = ("generate", "score", "train", "sync", "wait", "other")
SERVICES = ("nats", "generation", "reward", "reference", "critic", "rollout", "trainer")
EVENTS_SHOWN = 4


class View:
    """Use as a context; feed it with `update`, tell it events with `say`."""

    def __init__(self, console: Console, plan: Plan, run_dir: Path, total_steps: int) -> None:
        self._console = console
        self._plan = plan
        self._total = total_steps
        self._metrics = Rows(run_dir / "metrics.jsonl")
        self._evaluations = Rows(run_dir / "evaluations.jsonl")
        self._metrics.refresh()
        self._evaluations.refresh()
        self._pace = Pace()
        self._began = time.monotonic()
        self._events: list[str] = []
        self._last = ("", "")
        self.restarts = 0
        self._live = Live(console=console, refresh_per_second=2, transient=True) if console.is_terminal else None

    def __enter__(self) -> View:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """An event: a restart, a phase."""
        self._events.append(f"{_clock(time.monotonic() - self._began)}  {text}")
        if self._live is None:
            self._print(text)

    def update(self, snapshot: Snapshot, alive: dict[str, bool]) -> None:
        new = self._metrics.refresh()
        evaluations = self._evaluations.refresh()
        row = self._metrics.rows[-1] if self._metrics.rows else {}
        done = int(row.get("step", -1)) + 1
        self._pace.mark(done)
        if self._live is not None:
            self._live.update(self._picture(snapshot, alive, row, done))
            return
        for step in new:
            self._print(self._line(step))
        for evaluation in evaluations:
            self.say(_evaluation(evaluation))
        if snapshot.state != "running":
            self._tell_state(snapshot)

    def _tell_state(self, snapshot: Snapshot) -> None:
        """A new state, or a new wait; not the end of a wait."""
        state, waiting = snapshot.state, snapshot.waiting_for
        if waiting and waiting != self._last[1]:
            self.say(f"{state}, waiting for {waiting}")
        elif state != self._last[0]:
            self.say(state)
        self._last = (state, waiting)

    def _print(self, text: str) -> None:
        at = f"[{_clock(time.monotonic() - self._began)}] "
        self._console.print(at + text, markup=False, highlight=False, soft_wrap=True)

    def _line(self, row: dict[str, Any]) -> str:
        done = int(row["step"]) + 1
        left = self._pace.left(done, self._total)
        phases = " ".join(f"{name} {row[f'time/{name}']:.2f}" for name in PHASES if f"time/{name}" in row)
        parts = [
            f"step {done}/{self._total}", *_measures(row),
            f"{row.get('time/step', 0.0):.2f} s ({phases})", f"left {_clock(left)}",
        ]  # fmt: skip
        return "  ".join(parts)

    def _picture(self, snapshot: Snapshot, alive: dict[str, bool], row: dict[str, Any], done: int) -> Panel:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold")
        table.add_column()
        state = snapshot.state + (f", waiting for {snapshot.waiting_for}" if snapshot.waiting_for else "")
        left = self._pace.left(done, self._total)
        table.add_row("state", Text(state))
        table.add_row(
            "step", f"{done} / {self._total}   {_clock(time.monotonic() - self._began)} gone, {_clock(left)} left"
        )
        table.add_row("", ProgressBar(total=self._total, completed=done, width=50))
        if row:
            table.add_row("policy", Text("   ".join(_measures(row))))
            shown = [f"{name} {row[f'time/{name}']:.2f}" for name in PHASES if f"time/{name}" in row]
            table.add_row("seconds", Text(f"{row.get('time/step', 0.0):.2f} a step: " + "  ".join(shown)))
        ledger = snapshot.ledger
        if ledger:
            table.add_row("ledger", Text("  ".join(f"{name} {count}" for name, count in ledger.items())))
        table.add_row("processes", self._processes(snapshot, alive))
        for evaluation in self._evaluations.rows[-2:]:
            table.add_row("held out", Text(_evaluation(evaluation)))
        events = [Text(event, style="dim") for event in self._events[-EVENTS_SHOWN:]]
        return Panel(Group(table, *events), title=f"rlctl: {self._plan.run}", border_style="cyan", expand=False)

    def _processes(self, snapshot: Snapshot, alive: dict[str, bool]) -> Text:
        text = Text()
        for service in SERVICES:
            names = [spec.name for spec in self._plan.processes if spec.service == service]
            if not names:
                continue
            up = sum(alive.get(name, False) for name in names)
            serving = snapshot.serving(service)
            announced = any(one.service == service for one in snapshot.instances)
            well = up == len(names) and (not announced or serving > 0)
            text.append(f"{service} {up}/{len(names)}  ", style="green" if well else "yellow")
        text.append(f"restarts {self.restarts}", style="red" if self.restarts else "")
        return text


def _measures(row: dict[str, Any]) -> list[str]:
    """What a person looks at, as far as this run measures it."""
    shown = []
    for name, label, form in (
        ("reward/mean", "reward", ".3f"),
        ("kl/mean", "KL", ".4f"),
        ("length/mean", "length", ".1f"),
        ("mismatch/abs_diff_mean", "mismatch", ".1e"),
        ("tokens_per_second", "tokens/s", ".0f"),
    ):
        if name in row:
            shown.append(f"{label} {row[name]:{form}}")
    if row.get("ledger/dropped"):
        shown.append(f"dropped {row['ledger/dropped']:.0f}")
    return shown


def _evaluation(row: dict[str, Any]) -> str:
    return f"accuracy {row['accuracy']:.3f} of {int(row['n'])} held-out prompts after {row['step']} steps"


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return "--:--"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
