"""A chain on a tiny model: every stage a few steps, every service real."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tomli_w

from support.launched import LaunchedRun
from support.offline import KEYS, LEARNER, write_rows
from support.tiny import tiny_llama


def chain_recipe(folder: Path, **more: Any) -> Path:
    """Writes model, data and recipe; returns the recipe's path. `more` are settings of the chain itself."""
    folder.mkdir(parents=True, exist_ok=True)
    model = tiny_llama(folder / "model", hidden=32)
    train, held_out = write_rows(folder / "train.jsonl", 1, 12), write_rows(folder / "held-out.jsonl", 40, 5)

    def offline(job: str) -> dict[str, Any]:
        return {
            "steps": 4, "batch_size": 4, "eval_steps": 0, "learner": LEARNER, "checkpoint": {"steps": 1},
            "log": {"tensorboard": False}, "data": [{"path": str(train)} | KEYS[job]],
            "eval_data": {"path": str(held_out)} | KEYS[job], "cluster": {"device": "cpu"},
        }  # fmt: skip

    learner = {"dtype": "float32", "zero_stage": 1, "optimizer": {"lr": 1e-3}}
    prompts = {"label_key": "chosen", "max_prompt_len": 32}
    tree: dict[str, Any] = {
        "job": "chain", "name": "run", "runs_dir": str(folder / "runs"), "model": str(model), "seed": 3, "samples": 2,
        "sft": offline("sft"),
        "rm": offline("rm"),
        "dpo": {name: value for name, value in offline("dpo").items() if "data" not in name},
        "ppo": {
            "train": {"steps": 2}, "sampling": {"prompts_per_step": 4, "n": 2, "max_new_tokens": 8},
            "data": {"path": str(train)} | prompts, "eval": {"data": {"path": str(held_out)} | prompts},
            "kl": {"coef": 0.02}, "actor": learner, "critic": {"learner": learner}, "reference": {"dtype": "float32"},
            "generation": {"engine": "transformers", "dtype": "float32", "max_model_len": 64},
            "checkpoint": {"steps": 1}, "log": {"tensorboard": False, "rollouts": 2}, "cluster": {"device": "cpu"},
        },
        "generation": {"engine": "transformers", "dtype": "float32"},
    }  # fmt: skip
    path = folder / "recipe.toml"
    path.write_text(tomli_w.dumps(tree | more))
    return path


def launched_chain(folder: Path) -> LaunchedRun:
    return LaunchedRun(chain_recipe(folder), "chain")


def lines(path: Path) -> list[dict[str, Any]]:
    """Whole rows of a jsonl file."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]
