"""Distillation from a teacher behind a reference service is that from the same teacher in memory."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlctl.core.config import validate
from rlctl.core.errors import ConfigError, DeadlineError
from rlctl.offline.config import ProcessConfig
from rlctl.offline.run import train
from rlctl.rpc.own import OwnService, own_service
from support.offline import settings
from support.tiny import tiny_llama


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A student, and a teacher that is sure of what it says."""
    folder = tmp_path_factory.mktemp("models")
    tiny_llama(folder / "teacher", hidden=32, seed=5)
    teacher = AutoModelForCausalLM.from_pretrained(folder / "teacher")
    with torch.no_grad():
        teacher.model.norm.weight *= 8
    teacher.save_pretrained(folder / "teacher")
    return tiny_llama(folder / "policy", hidden=32), folder / "teacher"


@pytest.fixture(scope="module")
def teacher(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnService]:
    folder = tmp_path_factory.mktemp("served")
    with own_service("reference", {"model": str(models[1]), "dtype": "float32"}, folder / "reference.log") as service:
        service.wait(120)
        yield service


def run(tree: dict[str, Any], **more: Any) -> Any:
    return train(validate(ProcessConfig, {"run": tree}).run, **more)


def served(models: tuple[Path, Path], folder: Path, *addresses: str, **service: Any) -> dict[str, Any]:
    tree = settings("kd", *models, folder, teacher_service={"addresses": list(addresses)} | service)
    del tree["teacher"]
    return tree


def rows(tree: dict[str, Any], name: str) -> list[dict[str, Any]]:
    text = (Path(tree["runs_dir"]) / tree["name"] / f"{name}.jsonl").read_text()
    timed = ("time/step", "tokens_per_second", "time", "unix_s")
    return [{k: v for k, v in json.loads(line).items() if k not in timed} for line in text.splitlines()]


@pytest.mark.parametrize("learner", [{}, {"packing": False, "micro_batch_tokens": 40}])
def test_with_all_tokens_it_is_the_teacher_in_memory(models, teacher, tmp_path, learner):
    """Losses, gradients' norms and held-out measures of every step, up to float32's digits."""
    local, remote = settings("kd", *models, tmp_path / "local"), served(models, tmp_path / "remote", teacher.address)
    for tree in (local, remote):
        tree["learner"] = tree["learner"] | learner
    ends = [run(tree) for tree in (local, remote)]
    assert ends[0].step == ends[1].step == 7
    for name in ("metrics", "evaluations"):
        mine, theirs = (rows(tree, name) for tree in (remote, local))
        assert len(mine) == len(theirs) > 3
        for one, other in zip(mine, theirs, strict=True):
            assert one == pytest.approx(other, rel=1e-5, abs=1e-5)
    kl = [row["kl"] for row in rows(remote, "evaluations")]
    assert kl[-1] < 0.95 * kl[0]


def test_with_few_tokens_it_learns_what_it_is_told(models, teacher, tmp_path):
    """The KL over the told tokens and the rest as one is below that over all tokens; as it shrinks, so does that."""
    whole = settings("kd", *models, tmp_path / "whole", alpha=1.0, steps=20)
    few = served(models, tmp_path / "few", teacher.address, top_k=8) | {"alpha": 1.0, "steps": 20}
    run(whole)
    run(few)
    kls = [[row["kl"] for row in rows(tree, "evaluations")] for tree in (few, whole)]
    assert 0 < kls[0][0] < kls[1][0]
    assert kls[0][-1] < 0.8 * kls[0][0]
    trained = Path(few["runs_dir"]) / "kd" / "model"
    measured: list[Any] = []
    run(settings("kd", trained, models[1], tmp_path / "again", steps=1), report=measured.append)
    assert measured[0].held_out["kl"] < 0.8 * kls[1][0]


def test_halved_numbers_give_nearly_the_same(models, teacher, tmp_path):
    ends = [run(served(models, tmp_path / dtype, teacher.address, dtype=dtype)) for dtype in ("float32", "bfloat16")]
    full, half = (end.held_out for end in ends)
    assert half == pytest.approx(full, rel=0.02, abs=0.005)
    assert half["loss"] != full["loss"]


def test_another_tokenizer_is_refused(models, teacher, tmp_path):
    other = tiny_llama(tmp_path / "other", hidden=32)
    more = AutoTokenizer.from_pretrained(other)
    more.add_tokens(["<new>"])
    more.save_pretrained(other)
    with pytest.raises(ConfigError, match=r"which .* serves, has another tokenizer than the model") as told:
        run(served((other, models[1]), tmp_path, teacher.address))
    assert str(models[1]) in told.value.message
    assert teacher.address in told.value.message


def test_a_response_too_long_for_a_message_is_told_before_the_first_step(models, teacher, tmp_path):
    """80 tokens of vocabulary * 4 bytes * 4000 response tokens are above 1 MiB."""
    tree = served(models, tmp_path, teacher.address, max_message_mb=1)
    path = Path(tree["data"][0]["path"])
    with path.open("a") as file:
        file.write(json.dumps({"prompt": "1 =", "chosen": "1" * 4000}) + "\n")
    tree["data"] = [tree["data"][0] | {"max_response_len": 5000, "max_len": 8000}]
    with pytest.raises(ConfigError, match=r"teacher_service: the longest response has 400\d tokens: .*smaller top_k"):
        run(tree)


def test_a_teacher_that_is_not_there_is_a_wrong_setting(models, tmp_path):
    begun = time.monotonic()
    with pytest.raises(ConfigError, match=r"teacher_service: waited 0\.5 s .*127\.0\.0\.1:9.*rlctl serve reference"):
        run(served(models, tmp_path, "127.0.0.1:9", ready_timeout_s=0.5))
    assert time.monotonic() - begun < 30


def test_another_service_is_no_teacher(models, tmp_path):
    with own_service("reward", {}, tmp_path / "reward.log") as service:
        with pytest.raises(ConfigError, match=r"^teacher_service: .* is it the address of another service\?") as told:
            run(served(models, tmp_path, service.address))
        assert service.address in told.value.message


def test_a_teacher_that_goes_away_ends_the_run_by_a_time_out_that_names_it(models, tmp_path):
    """It is waited for as long as a call may take; a training that is started again goes on once it is back."""
    tree = served(models, tmp_path, "127.0.0.1:9", timeout_s=2, ready_timeout_s=60) | {"eval_steps": 1}
    described = {"model": str(models[1]), "dtype": "float32"}
    with own_service("reference", described, tmp_path / "reference.log") as service:
        service.wait(120)
        tree["teacher_service"]["addresses"] = [service.address]

        def kill(reached: Any) -> None:
            if reached.step == 3:
                os.killpg(service.process.pid, signal.SIGKILL)
                service.process.wait()

        begun = time.monotonic()
        with pytest.raises(DeadlineError, match=r"^teacher_service: ComputeDistributions: .* within 2 s") as told:
            run(tree, report=kill)
        assert service.address in told.value.message
        assert time.monotonic() - begun < 60
    with own_service("reference", described, tmp_path / "again.log") as service:
        tree["teacher_service"]["addresses"] = [service.address]
        assert run(tree).step == 7
