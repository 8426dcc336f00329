"""summary.json: what a run came to, from what it measured."""

from __future__ import annotations

import json
from typing import Any

from rlctl.core.durable import write_atomic
from rlctl.trainer.config import TrainerConfig
from rlctl.trainer.metrics import MetricsLog
from rlctl.trainer.progress import Progress

PHASES = ("generate", "score", "train", "sync", "wait", "other")


def write_summary(config: TrainerConfig, progress: Progress, metrics: MetricsLog, *, done: bool) -> None:
    """Writes it to the run's folder."""
    rows = metrics.rows()
    evaluations = metrics.evaluations()
    summary: dict[str, Any] = {
        "run": config.run,
        "status": "done" if done else "stopped",
        "steps": progress.step,
        "total_steps": config.train.steps,
        "seconds": round(progress.seconds, 3),
        "seed": config.seed,
        "ledger": progress.ledger.counts() | {"dropped_by_reason": dict(progress.ledger.dropped)},
        "time": {name: round(sum(row.get(f"time/{name}", 0.0) for row in rows), 3) for name in PHASES},
        "model": str(config.run_dir / "model") if done else None,
    }
    if evaluations:
        before, after = evaluations[0], evaluations[-1]
        summary["eval"] = {"before": before, "after": after, "n": int(after["n"])}
    rewards = [row["reward/mean"] for row in rows if "reward/mean" in row]
    if rewards:
        summary["reward"] = {"first": rewards[0], "last": rewards[-1]}
    write_atomic(config.run_dir / "summary.json", json.dumps(summary, indent=2).encode())
