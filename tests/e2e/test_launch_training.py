"""`rlctl launch` of the trainers without rollouts: killed, interrupted, gone on with, and what the CLI says of them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w

from rlctl.core.config import validate
from rlctl.offline.config import ProcessConfig
from rlctl.offline.run import train
from support.launched import LaunchedRun
from support.offline import settings
from support.tiny import tiny_llama

pytestmark = pytest.mark.timeout(900)
STEPS = 150


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("model"), hidden=32)


def recipe(model: Path, folder: Path, **changes) -> dict:
    return settings("rm", model, model, folder, name="run", steps=STEPS, eval_steps=50, **changes)


def rlctl(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "rlctl.cli.main", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_killed_interrupted_and_gone_on_with_it_ends_as_an_unbroken_one(model, tmp_path):
    whole = recipe(model, tmp_path / "whole")
    train(validate(ProcessConfig, {"run": whole}).run)
    parts = recipe(model, tmp_path / "parts")
    path = tmp_path / "parts" / "recipe.toml"
    path.write_text(tomli_w.dumps(parts))
    runs_dir = parts["runs_dir"]
    run = LaunchedRun(path, "rm")
    try:
        run.start()
        run.until_step(5)
        run.service("trainer-0", "rlctl.offline").send_signal(signal.SIGKILL)
        run.until(lambda: "going on from the checkpoint" in run.log("trainer-0"), 120, "restart")
        first = run.step()
        run.until_step(first + 3)
        assert "up" in rlctl("status", "--runs-dir", runs_dir)
        assert "stopped" in rlctl("stop", "run", "--runs-dir", runs_dir)
        assert run.wait() == 130
        assert 5 < run.step() < STEPS
        assert "goes on from step" in run.output.read_text()
        run.start()
        assert run.wait() == 0
        assert run.left_over() == []
    finally:
        run.end()
    said = run.output.read_text()
    assert "trainer-0 ended by SIGKILL: going on from the last checkpoint" in said
    assert f"{STEPS} of {STEPS}" in said
    one, other = (Path(tree["runs_dir"]) / "run" / "model" / "model.safetensors" for tree in (whole, parts))
    assert one.read_bytes() == other.read_bytes()
    assert [row["step"] for row in run.rows()] == list(range(STEPS))
    listed = rlctl("status", "--runs-dir", runs_dir)
    assert f"{STEPS} of {STEPS}" in listed
    assert "done" in listed
    assert "held-out accuracy" in rlctl("status", "run", "--runs-dir", runs_dir)
    assert "step 150 of 150" in rlctl("logs", "run", "--runs-dir", runs_dir)
    assert json.loads((run.path / "summary.json").read_text())["eval"]["n"] == 5


def test_two_ranks_train_together(model, tmp_path):
    tree = recipe(model, tmp_path) | {"steps": 6, "eval_steps": 3}
    tree["learner"] = tree["learner"] | {"ranks": 2, "zero_stage": 2}
    path = tmp_path / "recipe.toml"
    path.write_text(tomli_w.dumps(tree))
    run = LaunchedRun(path, "rm")
    try:
        run.start()
        assert run.wait() == 0
    finally:
        run.end()
    assert [row["step"] for row in run.rows()] == list(range(6))
    assert (run.path / "model" / "model.safetensors").is_file()
