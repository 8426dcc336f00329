"""What each offline trainer's CPU recipe comes to on several seeds: the table in docs/offline.md.

    PYTHONPATH=tests .venv/bin/python tests/bench/offline.py [JOB ...] [--seeds 1,2,3] [--set KEY=VALUE ...]

Each is one process on one core, as `rlctl launch JOB` starts it. Before and after are measured on held-out examples.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rlctl.cli.launch import read_training_recipe
from rlctl.launch.prepare import prepare_model
from rlctl.launch.training_plan import plan_training
from rlctl.launch.training_recipe import models_of

JOBS = ("sft", "rm", "dpo", "kto", "kd", "prm")
#: What must come out: of the loss a share that is gone, of the accuracy at most before and at least after.
LOSS_GONE = {"sft": 0.3, "kd": 0.3}
ACCURACY = {"rm": (0.6, 0.8), "dpo": (0.6, 0.8), "kto": (0.6, 0.8), "prm": (1.0, 0.85)}
WHAT = {"sft": "sums right", "kd": "sums right", "rm": "pairs right", "dpo": "pairs right", "kto": "win rate",
        "prm": "steps right"}  # fmt: skip


def run(job: str, seed: int, folder: Path, changes: list[str]) -> dict[str, Any]:
    """The summary of one training, with the seconds of its whole process."""
    name = f"{job}-{seed}"
    recipe = read_training_recipe(job, [f"seed={seed}", f"name={name}", f"runs_dir={folder}", *changes])
    models = {key: str(prepare_model(model, seed)) if model else "" for key, model in models_of(recipe).items()}
    (spec,) = plan_training(recipe, models, gpu=False).processes
    config = folder / f"{name}.json"
    config.write_text(json.dumps(spec.config))
    began = time.monotonic()
    with (folder / f"{name}.log").open("w") as log:
        code = subprocess.run(
            [sys.executable, "-m", spec.module, "--config", str(config)], env=os.environ | spec.env, stderr=log
        ).returncode
    if code:
        sys.exit(f"{name} ended with code {code}:\n{(folder / f'{name}.log').read_text()[-2000:]}")
    summary: dict[str, Any] = json.loads((folder / name / "summary.json").read_text())
    return summary | {"process_seconds": time.monotonic() - began}


def met(job: str, before: dict[str, float], after: dict[str, float]) -> bool:
    if job in LOSS_GONE:
        return after["loss"] <= (1 - LOSS_GONE[job]) * before["loss"]
    most, least = ACCURACY[job]
    return before["accuracy"] <= most and after["accuracy"] >= least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", default=JOBS)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings that win over the recipes")
    given = parser.parse_args()
    print("| trainer | seed | held-out loss | held-out measure | | steps | seconds |\n|---|---|---|---|---|---|---|")
    failed = False
    for job in given.jobs:
        for seed in map(int, given.seeds.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                summary = run(job, seed, Path(folder), given.set)
            before, after = summary["eval"]["before"], summary["eval"]["after"]
            good = met(job, before, after)
            failed |= not good
            print(
                f"| {job} | {seed} | {before['loss']:.3f} → {after['loss']:.3f} | {WHAT[job]} "
                f"{before['accuracy']:.3f} → {after['accuracy']:.3f} of {summary['eval']['n']} | "
                f"{'met' if good else 'MISSED'} | {summary['steps']} | {summary['process_seconds']:.0f} |",
                flush=True,
            )
    sys.exit(failed)


if __name__ == "__main__":
    main()
