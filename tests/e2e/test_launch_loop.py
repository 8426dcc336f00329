"""`rlctl launch iterative-dpo` and `rejection-sampling`: killed in each stage, gone on with, and what the CLI says.

The model is random: a tenth of its responses or more end by themselves within 64 tokens, and their rewards differ.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import tomli_w

from support.launched import LaunchedRun
from support.tiny import tiny_llama

pytestmark = pytest.mark.timeout(900)
PROMPTS, N = 24, 8
REWARD = """
import time
def reward_func(queries, prompts, labels):
    {pause}
    return [float(len(query) - len(prompt)) for query, prompt in zip(queries, prompts)]
"""


def recipe(folder: Path, job: str, *, pause: str = "", **more: Any) -> LaunchedRun:
    folder.mkdir(parents=True, exist_ok=True)
    model = tiny_llama(folder / "model", hidden=64)
    (folder / "reward.py").write_text(REWARD.replace("{pause}", pause or "pass"))
    prompts = [{"prompt": f"{a}+{b}="} for a in range(4) for b in range(PROMPTS // 4 + 1)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts[:PROMPTS]))
    (folder / "held-out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts[PROMPTS:]))
    tree = {
        "job": job, "name": "run", "runs_dir": str(folder / "runs"), "model": str(model), "seed": 3, "batch_size": 4,
        "prompts": {"path": str(folder / "prompts.jsonl"), "label_key": "", "max_prompt_len": 16},
        "eval_prompts": {"path": str(folder / "held-out.jsonl"), "label_key": "", "max_prompt_len": 16},
        "sampling": {"n": N, "max_new_tokens": 64, "at_once": 2},
        "generation": {"engine": "transformers", "dtype": "float32"},
        "reward": {"scorers": [{"kind": "function", "path": str(folder / "reward.py")}]},
        "learner": {"dtype": "float32", "zero_stage": 0, "optimizer": {"lr": 1e-3}},
        "checkpoint": {"steps": 1}, "log": {"tensorboard": False}, "cluster": {"device": "cpu"},
    }  # fmt: skip
    path = folder / "recipe.toml"
    path.write_text(tomli_w.dumps(tree | more))
    return LaunchedRun(path, job)


def rows(path: Path) -> list[dict]:
    """Whole lines."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def kill(run: LaunchedRun) -> None:
    """As a crash of the launcher; what it started must be gone soon."""
    assert run.process is not None
    children = psutil.Process(run.process.pid).children(recursive=True)
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait(30)
    deadline = time.monotonic() + 30
    while any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in children):
        assert time.monotonic() < deadline, children
        time.sleep(0.1)


def rlctl(*arguments: str, **more: Any) -> str:
    done = subprocess.run([sys.executable, "-m", "rlctl.cli.main", *arguments], capture_output=True, text=True, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_loop_killed_in_each_stage_asks_for_nothing_twice_and_ends(tmp_path):
    run = recipe(tmp_path, "iterative-dpo", pause="time.sleep(0.3)", rounds=2, prompts_per_round=16)
    first = run.path / "round-01"
    try:
        run.start()
        run.until(lambda: len(rows(first / "responses.jsonl")) >= 2 * N, 200, "responses")
        kill(run)
        generated = rows(first / "responses.jsonl")
        run.start()
        run.until(lambda: len(rows(first / "scored.jsonl")) >= 2 * N, 200, "rewards")
        kill(run)
        responses, scored = rows(first / "responses.jsonl"), rows(first / "scored.jsonl")
        assert len(responses) == 16 * N > len(scored)
        assert all(row in responses for row in generated[: len(generated) // N * N])
        run.start()
        run.until(lambda: (first / "train/checkpoints").is_dir(), 200, "a checkpoint of the training")
        kill(run)
        assert rows(first / "responses.jsonl") == responses
        pairs = (first / "chosen.jsonl").read_bytes()
        run.start()
        assert run.wait(600) == 0
    finally:
        run.end()
    assert run.left_over() == []
    assert (first / "chosen.jsonl").read_bytes() == pairs
    for pair in rows(first / "chosen.jsonl"):
        samples = [row for row in rows(first / "scored.jsonl") if row["prompt"] == pair["prompt"]]
        ended = [row["reward"] for row in samples if row["finish"] == "stop"]
        assert (pair["chosen_reward"], pair["rejected_reward"]) == (max(ended), min(ended))
        assert len(pair["chosen"]) > len(pair["rejected"])
    summary = run.folder.summary()
    assert (summary["status"], summary["steps"], len(summary["rounds"])) == ("done", 2, 2)
    assert [row["step"] for row in rows(run.path / "evaluations.jsonl")] == [0, 1, 2]
    second = json.loads((run.path / "round-02/train/config/trainer-0.json").read_text())["run"]
    assert second["model"] == str(first / "train/model")
    assert second["reference"]["model"] == str(tmp_path / "model")
    told = rlctl("status", "run", "--runs-dir", str(tmp_path / "runs"))
    assert "2 of 2" in told
    assert "held-out reward" in told
    assert "-> " in rlctl("status", "--runs-dir", str(tmp_path / "runs"))


def test_conditional_sft_is_talked_to_and_asked_in_batches(tmp_path):
    changes = {"select": "conditional", "target_score": 40.0}
    run = recipe(tmp_path, "rejection-sampling", rounds=1, **changes)
    try:
        run.start()
        run.until(lambda: len(rows(run.path / "round-01/responses.jsonl")) >= N, 200, "responses")
        assert run.process is not None
        run.process.send_signal(signal.SIGTERM)
        assert run.wait() == 130
        assert "goes on from here" in run.output.read_text()
        run.start()
        assert run.wait(600) == 0
    finally:
        run.end()
    scored = {row["response"]: row["reward"] for row in rows(run.path / "round-01/scored.jsonl")}
    chosen = rows(run.path / "round-01/chosen.jsonl")
    assert chosen
    assert all(row["prompt"].endswith(f"= <rm_score>: {scored[row['response']]:.2f}") for row in chosen)
    runs = ("--runs-dir", str(tmp_path / "runs"))
    said = rlctl("chat", "run", *runs, "--max-tokens", "4", input="2+3=\n\n")
    assert said.startswith("> ")
    output = tmp_path / "answers.jsonl"
    ask = ["generate", "--run", "run", *runs, "--input", str(tmp_path / "held-out.jsonl"), "--output", str(output)]
    ask += ["--target-score", "40", "-n", "2", "--max-tokens", "8", "--output-key", "answer"]
    assert "4 prompts, 4 of them asked now" in rlctl(*ask)
    answers = rows(output)
    assert [(row["prompt"], row["sample"]) for row in answers][:3] == [("3+3=", 0), ("3+3=", 1), ("3+4=", 0)]
    output.write_text("".join(json.dumps(row) + "\n" for row in answers[:3]))
    assert "4 prompts, 3 of them asked now" in rlctl(*ask)
    assert rows(output)[:2] == answers[:2]
