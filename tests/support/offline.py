"""Small settings for every offline job, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LEARNER = {"dtype": "float32", "zero_stage": 0, "optimizer": {"lr": 3e-3, "betas": [0.9, 0.95], "warmup_steps": 2}}
#: What the data settings of each job are called.
KEYS: dict[str, dict[str, Any]] = {
    "sft": {"label_key": "chosen"},
    "rm": {"margin_key": "margin"},
    "dpo": {},
    "kto": {"output_key": "chosen", "label_key": "good"},
    "kd": {"label_key": "chosen"},
    "prm": {"input_key": "steps", "label_key": "labels", "placeholder": "!"},
}
MORE: dict[str, dict[str, Any]] = {"dpo": {"nll_coef": 0.1}, "kto": {"reference": {"precompute": True}}}


def rows(first: int, count: int) -> list[dict[str, Any]]:
    """Of additions, with a wrong answer, a margin, a judgement, and judged steps."""
    return [
        {
            "prompt": f"{n} + {n + 2} =",
            "chosen": str(2 * n + 2),
            "rejected": str(2 * n + 1),
            "margin": 0.1 * (n % 3),
            "good": n % 2 == 0,
            "steps": f"{n} + 2 = {n + 2}! {n} + {n + 2} = {2 * n + 2 + n % 2}!",
            "labels": [True, n % 2 == 0],
        }
        for n in range(first, first + count)
    ]


def write_rows(path: Path, first: int, count: int) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(first, count)))
    return path


def settings(job: str, model: Path, teacher: Path, folder: Path, **changes: Any) -> dict[str, Any]:
    """Of `job`, as a file of settings holds them: 12 rows, steps of 4."""
    folder.mkdir(parents=True, exist_ok=True)
    train, held_out = write_rows(folder / "train.jsonl", 1, 12), write_rows(folder / "held-out.jsonl", 40, 5)
    tree = {
        "job": job, "name": job, "runs_dir": str(folder / "runs"), "model": str(model), "steps": 7, "batch_size": 4,
        "eval_steps": 3, "seed": 3, "data": [{"path": str(train)} | KEYS[job]],
        "eval_data": {"path": str(held_out)} | KEYS[job], "checkpoint": {"steps": 2},
        "log": {"tensorboard": False}, "learner": LEARNER,
    }  # fmt: skip
    if job == "kd":
        tree["teacher"] = str(teacher)
    return tree | MORE.get(job, {}) | changes
