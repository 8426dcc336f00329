"""Where a step's metrics go: metrics.jsonl, TensorBoard, W&B, Prometheus."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from prometheus_client import Gauge

from rlctl.core.durable import write_atomic
from rlctl.trainer.config import TrainerConfig
from rlctl.trainer.metrics_table import meaning


class MetricsLog:
    """Writes metrics by step. Rows of steps that are trained again after a crash are replaced."""

    def __init__(self, config: TrainerConfig, folder: Path, first_step: int) -> None:
        self._rows = folder / "metrics.jsonl"
        self._evaluations = folder / "evaluations.jsonl"
        keep_before(self._rows, first_step)
        keep_before(self._evaluations, first_step + 1)
        self._gauges: dict[str, Gauge] = {}
        self._board = None
        if config.log.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=first_step)
        self._wandb = _start_wandb(config, folder) if config.log.wandb_project else None

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """A training step's metrics; `step` counts from 0."""
        _append(self._rows, {"step": step} | metrics)
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
            self._gauge(name).set(value)
            if self._board is not None:
                self._board.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log(metrics, step=step)

    def _gauge(self, name: str) -> Gauge:
        if name not in self._gauges:
            plain = re.sub(r"[^a-zA-Z0-9]+", "_", name)
            self._gauges[name] = Gauge(f"rlctl_trainer_{plain}", f"{name}: {meaning(name)}")
        return self._gauges[name]


def _start_wandb(config: TrainerConfig, folder: Path) -> Any:
    import wandb

    return wandb.init(
        project=config.log.wandb_project,
        name=config.run,
        id=config.run,
        dir=str(folder),
        resume="allow",
        config=json.loads(config.model_dump_json()),
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
