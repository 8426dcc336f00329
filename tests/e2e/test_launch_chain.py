"""`rlctl launch chain`: every stage and service real, killed between and within stages, and what the report says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from support.chains import launched_chain, lines

pytestmark = pytest.mark.timeout(900)


def rlctl(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "rlctl.cli.main", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refusal(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "rlctl.cli.main", *arguments], capture_output=True, text=True)
    assert done.returncode, done.stdout
    return done.stderr


def test_a_stopped_and_killed_chain_goes_on_and_compares_what_its_stages_made(tmp_path):
    run = launched_chain(tmp_path)
    rewarded_by = str(run.path / "rm" / "model")
    try:
        run.start()
        run.until(lambda: (run.path / "sft/run.json").is_file(), 200, "the first stage")
        assert "not begun" in rlctl("status", "run", "--runs-dir", str(tmp_path / "runs"))
        assert "goes on from where it stood" in rlctl("stop", "run", "--runs-dir", str(tmp_path / "runs"))
        assert run.wait() == 130
        assert "the same command (rlctl launch chain ...) goes on from here" in run.output.read_text()
        run.start()
        run.until(lambda: (run.path / "rm/checkpoints").is_dir(), 200, "a checkpoint of the reward model")
        assert run.process is not None
        children = psutil.Process(run.process.pid).children(recursive=True)
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait(30)
        psutil.wait_procs(children, 30)
        first = (run.path / "sft/run.json").read_text()
        assert not (run.path / "report.md").exists()
        run.start()
        assert run.wait(600) == 0
    finally:
        run.end()
    assert run.left_over() == []
    assert (run.path / "sft/run.json").read_text() == first, "a stage that was done was run again"
    said = run.output.read_text()
    assert "stage 1 of 4, sft: done before" in said

    ppo = json.loads((run.path / "ppo/config/reward-0.json").read_text())
    assert [(one["kind"], one["model"], one["normalize"]) for one in ppo["scorers"]] == [("model", rewarded_by, True)]
    dpo = json.loads((run.path / "dpo/config/trainer-0.json").read_text())["run"]
    rm = json.loads((run.path / "rm/config/trainer-0.json").read_text())["run"]
    sft = str(run.path / "sft/model")
    assert (rm["model"], dpo["model"]) == (sft, sft)
    assert [each["path"] for each in dpo["data"]] == [each["path"] for each in rm["data"]]

    summary = run.folder.summary()
    assert (summary["status"], summary["steps"], summary["total_steps"]) == ("done", 5, 5)
    policies = {one["policy"]: one for one in summary["policies"]}
    assert list(policies) == ["base", "sft", "ppo", "dpo"]
    assert policies["sft"]["kl"] == pytest.approx(0, abs=1e-4)
    assert all(one["prompts"] == 5 for one in policies.values())
    for name, one in policies.items():
        greedy = lines(run.path / "report" / name / "greedy" / "scored.jsonl")
        assert len(greedy) == 5
        assert one["reward"] == pytest.approx(sum(row["components"]["model"] for row in greedy) / 5)
        assert one["accuracy"] == sum(row["components"]["grader"] for row in greedy) / 5
        sampled = lines(run.path / "report" / name / "sampled" / "distance.jsonl")
        assert one["kl"] == pytest.approx(sum(row["log_ratio"] for row in sampled) / 10)
    report = (run.path / "report.md").read_text()
    assert "| 5 held-out prompts | base | SFT | PPO | DPO |" in report
    assert (run.path / "report.png").read_bytes().startswith(b"\x89PNG")

    runs = ("--runs-dir", str(tmp_path / "runs"))
    assert "right answers, greedy" in rlctl("status", "run", *runs)
    assert "5 of 5" in rlctl("status", *runs)
    assert "is a chain: name one of its stages" in refusal("chat", "run", *runs)
    assert "is a chain: name one of its stages" in refusal("logs", "run", *runs)
    assert "ppo.train.steps: 2 -> 3" in refusal("launch", "chain", str(run.recipe), "ppo.train.steps=3")
    assert "trainer" in rlctl("logs", str(run.path / "ppo"))
    plan = rlctl("launch", "chain", str(run.recipe), "--dry-run")
    assert "stage 3 of 4: ppo" in plan
