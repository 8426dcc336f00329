"""Where a step's metrics go: metrics.jsonl, TensorBoard, W&B, Prometheus."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any, Protocol

from prometheus_client import Gauge

from rlctl.core.config import StrictConfig
from rlctl.core.durable import write_atomic
from rlctl.trainer.metrics_table import meaning

EVALUATIONS = "evaluations.jsonl"
#: Prometheus knows a name once a process.
_GAUGES: dict[str, Gauge] = {}


class Targets(Protocol):
    """Where metrics go besides the run's folder."""

    @property
    def tensorboard(self) -> bool: ...

    @property
    def wandb_project(self) -> str | None: ...


class MetricsLog:
    """Writes metrics by step. Rows of steps that are trained again after a crash are replaced."""

    def __init__(self, log: Targets, run: str, settings: StrictConfig, folder: Path, first_step: int) -> None:
        """`settings` are told to W&B."""
        self._rows = folder / "metrics.jsonl"
        self._evaluations = folder / EVALUATIONS
        keep_before(self._rows, first_step)
        keep_before(self._evaluations, first_step + 1)
        self._board = None
        if log.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=first_step)
        self._wandb = _start_wandb(log.wandb_project, run, settings, folder) if log.wandb_project else None

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """A training step's metrics; `step` counts from 0. What is not finite has no place in the row."""
        _append(self._rows, {"step": step} | {name: value for name, value in metrics.items() if math.isfinite(value)})
        self._elsewhere(step, metrics)

    def evaluation(self, step: int, result: dict[str, float]) -> None:
        """An evaluation after `step` steps."""
        _append(self._evaluations, {"step": step} | result)
        self._elsewhere(step, {f"eval/{name}": value for name, value in result.items()})

    def rows(self) -> list[dict[str, Any]]:
        return read_rows(self._rows)

    def evaluations(self) -> list[dict[str, Any]]:
        return read_rows(self._evaluations)

    def close(self) -> None:
        if self._board is not None:
            self._board.close()
        if self._wandb is not None:
            self._wandb.finish()

    def _elsewhere(self, step: int, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            _gauge(name).set(value)
            if self._board is not None:
                self._board.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log(metrics, step=step)


def _gauge(name: str) -> Gauge:
    if name not in _GAUGES:
        plain = re.sub(r"[^a-zA-Z0-9]+", "_", name)
        _GAUGES[name] = Gauge(f"rlctl_trainer_{plain}", f"{name}: {meaning(name)}")
    return _GAUGES[name]


def _start_wandb(project: str, run: str, settings: StrictConfig, folder: Path) -> Any:
    import wandb

    return wandb.init(
        project=project,
        name=run,
        id=run,
        dir=str(folder),
        resume="allow",
        config=json.loads(settings.model_dump_json()),
    )


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a jsonl file; a torn last line, as a crash leaves it, is passed over."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text().split("\n"):
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def keep_before(path: Path, step: int) -> None:
    """Rewrites a jsonl file without the rows of `step` and later."""
    if path.exists():
        kept = [row for row in read_rows(path) if row["step"] < step]
        write_atomic(path, "".join(json.dumps(row) + "\n" for row in kept).encode())


def _append(path: Path, row: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())
