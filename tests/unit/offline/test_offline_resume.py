"""A training that is stopped or killed and gone on with ends with the weights of an unbroken one, bit for bit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rlctl.core.config import validate
from rlctl.core.errors import FailedPreconditionError
from rlctl.offline.config import JOBS, ProcessConfig
from rlctl.offline.run import train
from support.offline import settings
from support.ranks import rank_environments
from support.tiny import tiny_llama

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return tiny_llama(folder / "policy", hidden=32), tiny_llama(folder / "teacher", hidden=32, seed=5)


def run(tree: dict[str, Any], **more):
    return train(validate(ProcessConfig, {"run": tree}).run, **more)


def weights(tree: dict[str, Any]) -> bytes:
    return (Path(tree["runs_dir"]) / tree["name"] / "model" / "model.safetensors").read_bytes()


def rows(tree: dict[str, Any], name: str) -> list[dict[str, float]]:
    lines = (Path(tree["runs_dir"]) / tree["name"] / f"{name}.jsonl").read_text().splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if k not in ("time/step", "tokens_per_second")} for line in lines
    ]


def stop_before(step: int):
    """Asked before each step: true before the step that follows `step` steps."""
    asked = iter(range(100))
    return lambda: next(asked) == step


@pytest.mark.parametrize("job", JOBS)
def test_stopped_and_gone_on_with(models, tmp_path, job):
    whole = settings(job, *models, tmp_path / "whole")
    parts = settings(job, *models, tmp_path / "parts", log={"tensorboard": False, "steps": 2})
    whole["log"] = parts["log"]
    assert run(whole).step == 7
    first = run(parts, stop=stop_before(3))
    assert (first.step, first.stopped) == (3, True)
    assert not (tmp_path / "parts" / "runs" / job / "model").exists()
    assert json.loads((tmp_path / "parts" / "runs" / job / "summary.json").read_text())["status"] == "stopped"
    end = run(parts)
    assert (end.step, end.stopped) == (7, False)
    assert weights(parts) == weights(whole)
    assert rows(parts, "metrics") == rows(whole, "metrics")
    assert rows(parts, "evaluations") == rows(whole, "evaluations")
    assert [row["step"] for row in rows(parts, "evaluations")] == [0, 3, 6, 7]


def test_what_was_measured_before_the_first_step_stands_there_once(models, tmp_path):
    stopped, crashed = (settings("sft", *models, tmp_path / name) for name in ("stopped", "crashed"))
    assert run(stopped, stop=stop_before(0)).step == 0
    run(stopped)
    (tmp_path / "crashed" / "runs" / "sft").mkdir(parents=True)
    (tmp_path / "crashed" / "runs" / "sft" / "evaluations.jsonl").write_text('{"step": 0, "loss": 9}\n')
    run(crashed)
    for tree in (stopped, crashed):
        assert [row["step"] for row in rows(tree, "evaluations")] == [0, 3, 6, 7]
    assert rows(crashed, "evaluations") == rows(stopped, "evaluations")


def test_more_steps_go_on_from_the_end(models, tmp_path):
    """With a constant learning rate a run of 7 steps made longer is a run of 10."""
    longer, whole = (settings("sft", *models, tmp_path / name) for name in ("longer", "whole"))
    run(longer)
    run(longer | {"steps": 10})
    run(whole | {"steps": 10})
    assert weights(longer) == weights(whole)


def test_other_data_is_refused(models, tmp_path):
    tree = settings("sft", *models, tmp_path)
    run(tree, stop=stop_before(2))
    with pytest.raises(FailedPreconditionError, match="data size 12, now it is 9"):
        run(tree | {"data": [tree["data"][0] | {"max_samples": 9}]})


def start(tree: dict[str, Any], folder: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    path = folder / "process.json"
    path.write_text(json.dumps({"run": tree}))
    command = [sys.executable, "-m", "rlctl.offline", "--config", str(path)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def wait_for_rows(tree: dict[str, Any], count: int, process: subprocess.Popen[str]) -> None:
    path = Path(tree["runs_dir"]) / tree["name"] / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not path.exists() or path.read_text().count("\n") < count:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("how", ["kill", "interrupt"])
def test_a_process_that_is_killed_or_interrupted(models, tmp_path, how):
    """Many steps, so that it is caught in the middle of them."""
    (environment,) = rank_environments(1)
    whole = settings("dpo", *models, tmp_path / "whole", steps=60, eval_steps=0)
    parts = settings("dpo", *models, tmp_path / "parts", steps=60, eval_steps=0)
    run(whole)
    process = start(parts, tmp_path, environment)
    wait_for_rows(parts, 9, process)
    process.send_signal(signal.SIGKILL if how == "kill" else signal.SIGINT)
    _, said = process.communicate(timeout=120)
    if how == "kill":
        assert process.returncode == -signal.SIGKILL
    else:
        assert process.returncode == 0
        assert "the same command goes on from there" in said
    assert len(rows(parts, "metrics")) < 60
    again = start(parts, tmp_path, environment)
    _, said = again.communicate(timeout=240)
    assert again.returncode == 0, said
    assert "going on from the checkpoint of step" in said
    assert weights(parts) == weights(whole)


def test_two_ranks_stop_together_and_go_on(models, tmp_path):
    whole, parts = (settings("rm", *models, tmp_path / name, steps=30, eval_steps=10) for name in ("whole", "parts"))
    for tree in (whole, parts):
        tree["learner"] = tree["learner"] | {"zero_stage": 1, "ranks": 2}

    def both(tree: dict[str, Any], interrupt: bool) -> None:
        processes = [start(tree, tmp_path, environment) for environment in rank_environments(2)]
        try:
            if interrupt:
                wait_for_rows(tree, 5, processes[0])
                for process in processes:
                    process.send_signal(signal.SIGINT)
            for process in processes:
                _, said = process.communicate(timeout=240)
                assert process.returncode == 0, said
        finally:
            for process in processes:
                process.kill()

    both(whole, interrupt=False)
    both(parts, interrupt=True)
    assert len(rows(parts, "metrics")) < 30
    both(parts, interrupt=False)
    assert weights(parts) == weights(whole)
    assert rows(parts, "evaluations") == rows(whole, "evaluations")


def test_wrong_settings_end_with_code_2(models, tmp_path):
    tree = settings("rm", *models, tmp_path)
    tree["data"][0]["chosen_key"] = "better"
    (environment,) = rank_environments(1)
    process = start(tree, tmp_path, environment)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "train.jsonl:1" in said
    assert "'better'" in said
