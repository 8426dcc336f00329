"""The process and those it starts: how they end, and what it says when it cannot begin.

The replica that is killed first shows that a model whose head is not tied takes a sync: each start costs half a minute.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rlctl.rpc.portal import Portal
from support.generation import Deployment, Replica, TrainerProcess
from support.tiny import tiny_llama


@pytest.fixture(scope="module")
def replicas(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Replica]]:
    """Two to be killed; they start at once."""
    logs = tmp_path_factory.mktemp("killed")
    started = [Replica(models["untied"], "vllm", logs / f"{index}.log") for index in range(2)]
    yield started
    for one in started:
        one.stop()


def test_a_head_that_is_not_tied_is_synced(replicas: list[Replica], portal: Portal, trainer: TrainerProcess) -> None:
    deployment = Deployment(replicas[0].wait(), portal, trainer)
    prompt = [1, 7, 8, 9, 20]
    for seed in (1, 2):
        assert deployment.publish(seed)["ok"] == ["it"]
        sample = deployment.caller.tokens(prompt, max_tokens=30, temperature=0.7, ignore_eos=True).samples[0]
        expected = deployment.logprobs(prompt, list(sample.token_ids), 0.7)
        assert sample.logprobs == pytest.approx(expected.tolist(), abs=2e-4)


def _gone(processes: list[psutil.Process], timeout_s: float) -> bool:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in processes):
            return True
        time.sleep(0.05)
    return False


def test_a_killed_front_takes_its_engine_with_it(replicas: list[Replica]) -> None:
    replica = replicas[0].wait()
    children = psutil.Process(replica.process.pid).children(recursive=True)
    assert len(children) >= 2
    replica.process.kill()
    replica.process.wait(10)
    assert _gone(children, 10)


def test_a_dead_engine_ends_the_process_loudly(replicas: list[Replica]) -> None:
    replica = replicas[1].wait()
    engine = psutil.Process(replica.process.pid).children(recursive=True)
    os.kill(engine[-1].pid, signal.SIGKILL)
    assert replica.process.wait(30) == 1
    assert "the generation engine is dead" in replica.log.read_text()
    assert _gone(engine, 10)


def _words(*arguments: str) -> str:
    """What the process says when it ends at once."""
    run = subprocess.run(
        [sys.executable, "-m", "rlctl.generation", "server.listen=127.0.0.1:0", *arguments],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert run.returncode in (1, 2)
    return run.stderr


def test_a_missing_model_is_named() -> None:
    assert "/no/such/folder" in _words("model=/no/such/folder", "engine=transformers")


def test_a_misspelt_setting_names_the_nearest() -> None:
    assert "Did you mean 'max_num_seqs'" in _words("max_num_seq=3")


@pytest.mark.parametrize(
    ("setting", "words"),
    [("kv_cache_mb=99999999", "set a smaller one"), ("kv_cache_mb=64", "set engine = 'transformers'")],
)
def test_what_vllm_cannot_do_is_said_before_it_starts(setting: str, words: str, tmp_path: Path) -> None:
    """Heads of 16 are too small for it."""
    model = tiny_llama(tmp_path / "narrow", hidden=64)
    assert words in _words(f"model={model}", "engine=vllm", "dtype=float32", setting)
