"""What the CPU recipes of the loops come to on several seeds, as docs/loops.md tells.

    PYTHONPATH=tests .venv/bin/python tests/bench/loops.py [RECIPE ...] [--seeds 1,2,3]

Each is one `rlctl launch`. The held-out reward is the share of held-out sums that greedy decoding gets right.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

#: Recipe, and the loop it is of.
LOOPS = {
    "rejection-sampling": "rejection-sampling",
    "iterative-dpo": "iterative-dpo",
    "conditional-sft": "rejection-sampling",
}


def run(recipe: str, seed: int, folder: Path) -> dict[str, Any]:
    """The summary of one run, with the seconds of the whole command."""
    settings = [f"seed={seed}", "name=run", f"runs_dir={folder}"]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "rlctl.cli.main", "launch", LOOPS[recipe], recipe, *settings],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{recipe}, seed {seed}, ended with code {done.returncode}:\n{done.stderr[-2000:]}")
    summary: dict[str, Any] = json.loads((folder / "run" / "summary.json").read_text())
    return summary | {"command_seconds": time.monotonic() - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=list(LOOPS))
    parser.add_argument("--seeds", default="1,2,3")
    given = parser.parse_args()
    print("| recipe | seed | held-out sums right | rounds | chosen | seconds |\n|---|---|---|---|---|---|")
    for recipe in given.recipes:
        for seed in map(int, given.seeds.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                summary = run(recipe, seed, Path(folder))
            before, after = summary["eval"]["before"]["reward"], summary["eval"]["after"]["reward"]
            chosen = ", ".join(str(row["chosen"]) for row in summary["rounds"])
            print(
                f"| {recipe} | {seed} | {before:.3f} → {after:.3f} of {summary['eval']['n']} | {summary['steps']} | "
                f"{chosen} | {summary['command_seconds']:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
