"""`rlctl launch ppo` with every process real: what is up, what answers, how it is stopped, gone on with, and ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from rlctl.bus.config import BusConfig
from rlctl.bus.registry import Instance
from rlctl.clients.blocking import TrainerClient
from rlctl.launch import sweep
from rlctl.launch.monitor import SERVICES, Monitor
from rlctl.rpc.config import ChannelConfig
from support.launched import START_S, LaunchedRun, tiny_recipe

STEPS = 6
#: Of the recipe, instead of the tokenizer's own.
CHAT_TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LaunchedRun]:
    """Paused after its first step."""
    chat = {"data__apply_chat_template": True, "data__chat_template": CHAT_TEMPLATE}
    run = LaunchedRun(tiny_recipe(tmp_path_factory.mktemp("launch"), train__steps=STEPS, **chat))
    try:
        run.start()
        run.until_step(1)
        _trainer(run, lambda trainer: trainer.pause())
        yield run
    finally:
        run.end()


def _trainer(run: LaunchedRun, what: Callable[[TrainerClient], object]) -> None:
    launch = run.folder.launch()
    assert launch is not None
    with TrainerClient(ChannelConfig(), BusConfig(url=launch.nats_url, run="run")) as trainer:
        what(trainer)


def _rlctl(run: LaunchedRun, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rlctl.cli.main", *arguments, "--runs-dir", str(run.path.parent)],
        capture_output=True,
        text=True,
        timeout=120,
    )


def _instances(run: LaunchedRun) -> dict[str, Instance]:
    launch = run.folder.launch()
    assert launch is not None
    monitor = Monitor(BusConfig(url=launch.nats_url, run="run"), ChannelConfig())
    try:
        run.until(lambda: all(monitor.snapshot.serving(name) for name in SERVICES), 60, "five services that serve")
        return {one.service: one for one in monitor.snapshot.instances}
    finally:
        monitor.close()


def test_every_process_is_the_real_one(run: LaunchedRun) -> None:
    alive = [psutil.Process(pid) for pid in sweep.marked(sweep.LAUNCH, run.launch_id)]
    names = {process.name() for process in alive}
    lines = [" ".join(process.cmdline()) for process in alive]
    assert "nats-server" in names
    assert any(name.startswith("VLLM::EngineC") for name in names), names
    assert "raylet" in names
    for module in ("generation", "reward", "reference", "critic", "rollout", "trainer"):
        assert sum(f"-m rlctl.{module}" in line and "guard.py" not in line for line in lines) == 1, module


def test_every_service_answers_health_reflection_and_metrics(run: LaunchedRun) -> None:
    for service, instance in _instances(run).items():
        with grpc.insecure_channel(instance.address) as channel:
            health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
            assert health.status == health_pb2.HealthCheckResponse.SERVING
            asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
            answer = next(iter(reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(asked)))
        listed = [one.name for one in answer.list_services_response.service]
        assert f"rlctl.v1.{service.capitalize()}Service" in listed
        with urllib.request.urlopen(f"http://{instance.metrics}/metrics", timeout=10) as page:
            assert "rlctl_rpc_calls_total" in page.read().decode()


def test_a_person_asks_the_services_of_a_run(run: LaunchedRun) -> None:
    generated = _rlctl(run, "generate", "1+2=", "--run", "run")
    assert generated.returncode == 0, generated.stderr
    assert generated.stdout.strip()
    scored = _rlctl(run, "score", "1+2=", "12345678", "--run", "run")
    assert scored.returncode == 0, scored.stderr
    assert "1" in scored.stdout
    status = _rlctl(run, "status", "run")
    done = run.step()
    assert f"paused: step {done} of {STEPS}" in status.stdout
    assert f"ledger: issued {6 * done}, trained {6 * done}, dropped 0, pending 0" in status.stdout


def test_ctrl_c_ends_it_in_order_and_the_same_command_goes_on_to_the_end(run: LaunchedRun) -> None:
    _trainer(run, lambda trainer: trainer.resume())
    run.until_step(2)
    assert run.process is not None
    run.process.send_signal(signal.SIGINT)
    assert run.wait(120) == 130
    assert run.left_over() == []
    stopped = run.folder.summary()
    assert stopped["status"] == "stopped" and 2 <= stopped["steps"] < STEPS
    assert f"the same command goes on from step {stopped['steps']}" in run.output.read_text()
    run.start()
    assert run.wait(START_S) == 0, run.tail()
    assert f"going on from step {stopped['steps']}" in run.output.read_text()
    assert run.left_over() == []


def test_what_a_finished_run_leaves(run: LaunchedRun) -> None:
    """Runs after the test above."""
    summary: dict[str, Any] = run.folder.summary()
    assert (summary["status"], summary["steps"]) == ("done", STEPS)
    assert summary["ledger"] | {"dropped_by_reason": {}} == {
        "issued": 6 * STEPS, "trained": 6 * STEPS, "dropped": 0, "pending": 0, "dropped_by_reason": {},
    }  # fmt: skip
    assert summary["eval"]["n"] == summary["eval"]["after"]["n"] > 20
    assert set(summary["time"]) == {"generate", "score", "train", "sync", "wait", "other"}
    assert 0 < sum(summary["time"].values()) <= summary["seconds"] * 1.05
    rows = run.rows()
    assert [row["step"] for row in rows] == list(range(STEPS))
    for row in rows:
        assert row["mismatch/abs_diff_mean"] < 1e-3
        assert row["policy/ratio_first"] == pytest.approx(1.0, abs=0.01)
        assert row["tokens_per_second"] > 0
    assert any(row["kl/mean"] > 0 for row in rows)
    assert list((run.path / "tensorboard").glob("events*"))
    groups = [json.loads(line) for path in (run.path / "rollouts").glob("*.jsonl") for line in path.open()]
    assert len(groups) >= 2 * STEPS
    names = {"nats-0", "generation-0", "reward-0", "reference-0", "critic-0", "rollout-0", "trainer-0"}
    assert {path.stem for path in (run.path / "logs").glob("*.log")} == names
    assert list((run.path / "checkpoints").glob("step-*/actor/engine/zero_pp_rank_0_mp_rank_00_optim_states.pt"))
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoModelForCausalLM.from_pretrained(summary["model"])
    assert AutoTokenizer.from_pretrained(summary["model"]).chat_template == CHAT_TEMPLATE
    again = subprocess.run(
        [sys.executable, "-m", "rlctl.cli.main", "launch", "ppo", str(run.recipe)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert again.returncode == 0 and "This run is done" in again.stdout
