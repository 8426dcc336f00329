"""summary.json: what a run came to, from what it measured."""

from __future__ import annotations

import json
from typing import Any

from rlctl.core.durable import write_atomic
from rlctl.offline.config import JobConfig
from rlctl.offline.loop import Reached
from rlctl.trainer.metrics import EVALUATIONS, read_rows


def write_summary(config: JobConfig, end: Reached, items: int, held_out: int) -> None:
    """Writes it to the run's folder."""
    rows = read_rows(config.run_dir / "metrics.jsonl")
    evaluations = read_rows(config.run_dir / EVALUATIONS)
    summary: dict[str, Any] = {
        "job": config.job,
        "run": config.name,
        "status": "stopped" if end.stopped else "done",
        "steps": end.step,
        "total_steps": end.steps,
        "seconds": round(end.seconds, 3),
        "seed": config.seed,
        "examples": items,
        "model": None if end.stopped else str(config.run_dir / "model"),
    }
    if evaluations:
        summary["eval"] = {"before": evaluations[0], "after": evaluations[-1], "n": held_out}
    if rows:
        summary["loss"] = {"first": rows[0]["loss"], "last": rows[-1]["loss"]}
    write_atomic(config.run_dir / "summary.json", json.dumps(summary, indent=2).encode())
