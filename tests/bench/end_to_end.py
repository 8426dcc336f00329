"""Samples a second, end to end, against TRL: GRPO on SmolLM2-135M-Instruct, 4 prompts x 8 samples x 64 tokens, bf16.

Both train on the same prompts with the same reward, one after the other on this machine. Prints one JSON line; in it
`not_model_compute` is the share of our steps in which no model computes: sync, waiting for the queue, and the rest.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rlctl.models.source import resolve

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
PROMPTS, SAMPLES, TOKENS, STEPS, WARMUP = 4, 8, 64, 6, 2
BIN = Path(sys.executable).parent
REWARD = """
import re

def reward_func(queries, prompts, labels):
    found = [re.search(r"-?\\d+", query[len(prompt):]) for query, prompt in zip(queries, prompts)]
    return [float(m is not None and m.group() == label) for m, label in zip(found, labels)]
"""


def write_prompts(path: Path) -> None:
    rows = [
        {"prompt": f"What is {a} + {b}? Answer with a number.", "label": str(a + b)} for a in range(20) for b in (3, 8)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def ours(folder: Path, prompts: Path) -> tuple[float, float]:
    """Median seconds of a step after the warm-up, and the share of it in which no model computes."""
    reward = folder / "reward_func.py"
    reward.write_text(REWARD)
    settings = [
        "name=bench", f"runs_dir={folder}", f"data.path={prompts}", "data.task=none", "data.apply_chat_template=false",
        "data.system_prompt=none", "eval.data=none",
        f"train.steps={STEPS}", f"sampling.prompts_per_step={PROMPTS}", f"sampling.n={SAMPLES}",
        f"sampling.max_new_tokens={TOKENS}", "sampling.ignore_eos=true", "actor.optimizer.lr=1e-6",
        "kl.coef=0.04", "checkpoint.steps=0", f'reward.scorers=[{{kind="function", path="{reward}"}}]',
    ]  # fmt: skip
    subprocess.run([BIN / "rlctl", "launch", "ppo", "smollm2", *settings], check=True, stdout=sys.stderr)
    rows = [json.loads(line) for line in (folder / "bench" / "metrics.jsonl").read_text().splitlines()]
    print(json.dumps(rows[-1], indent=1), file=sys.stderr)
    idle = [sum(row[f"time/{phase}"] for phase in ("sync", "wait", "other")) for row in rows[WARMUP:]]
    steps = [row["time/step"] for row in rows[WARMUP:]]
    return statistics.median(steps), statistics.median(i / s for i, s in zip(idle, steps, strict=True))


def peer(prompts: Path) -> float:
    script = Path(__file__).parent / "peers" / "trl_grpo.py"
    command = [
        sys.executable, script, "--model", resolve(MODEL), "--prompts", prompts, "--steps", str(STEPS),
        "--warmup", str(WARMUP), "--prompts-per-step", str(PROMPTS), "--n", str(SAMPLES), "--new-tokens", str(TOKENS),
    ]  # fmt: skip
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])["step_seconds"]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        prompts = Path(folder) / "prompts.jsonl"
        write_prompts(prompts)
        (mine, idle), theirs = ours(Path(folder), prompts), peer(prompts)
    print(
        json.dumps(
            {
                "bench": "end_to_end",
                "ratio": round(theirs / mine, 3),
                "target": 1.5,
                "not_model_compute": round(idle, 4),
                "rlctl_samples_per_s": round(PROMPTS * SAMPLES / mine, 3),
                "trl_samples_per_s": round(PROMPTS * SAMPLES / theirs, 3),
            }
        )
    )


if __name__ == "__main__":
    main()
