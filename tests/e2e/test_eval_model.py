"""`rlctl eval --model`: prompts from gold, outputs from a real generation service, then the report."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlctl.core.errors import UnavailableError
from rlctl.core.ports import free_port
from rlctl.evaluator.config import EvaluatorConfig, JudgeConfig, PairingConfig
from rlctl.evaluator.job import run_job
from rlctl.evaluator.serving import generation_service
from rlctl.evaluator.standin import StandIn
from support.tiny import tiny_llama

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tiny_llama(tmp_path_factory.mktemp("model"))
    address = f"127.0.0.1:{free_port()}"
    process = subprocess.Popen([
        sys.executable, "-m", "rlctl.generation", f'model="{folder}"', "engine=transformers",
        f'server.listen="{address}"', "server.metrics_listen=none", "dtype=float32",
    ])  # fmt: skip
    yield address
    process.send_signal(signal.SIGTERM)
    process.wait(60)


def _config(tmp_path: Path, address: str, **more: Any) -> EvaluatorConfig:
    rows = [{"question": f"What is {n} plus {n}?", "answer": str(2 * n)} for n in range(8)]
    gold = tmp_path / "gold.jsonl"
    gold.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings: dict[str, Any] = {
        "gold": str(gold), "output_dir": tmp_path / "report", "bootstrap": 200, "max_samples": 4,
        "generate": PairingConfig(model="tiny", addresses=[address], samples=2, max_tokens=8, language="en"),
    }  # fmt: skip
    return EvaluatorConfig(**{**settings, **more})


def test_outputs_are_generated_judged_and_not_generated_again(tmp_path: Path, address: str) -> None:
    async def run() -> dict[str, Any]:
        async with StandIn() as judge:
            judges = [JudgeConfig(preset="local", model="m", base_url=judge.base_url)]
            return await run_job(_config(tmp_path, address, judges=judges))

    summary = asyncio.run(run())
    entry = summary["data_sets"]["tiny"]
    assert (entry["records"], entry["prompts"], entry["gold"]) == (8, 4, {"explicit": 8})
    path = tmp_path / "report" / "outputs" / "tiny.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    assert all("Problem A: What is" in row["prompt"] and isinstance(row["output"], str) for row in rows)
    assert len({row["output"] for row in rows}) > 4
    # A generation that was cut off by a crash is made again, with the same seed and so the same text.
    part = path.parent / ".tiny.part"
    whole = part.read_bytes()
    part.write_bytes(whole[:-20])
    asyncio.run(run_job(_config(tmp_path, address, judges=[JudgeConfig(preset="rules")])))
    assert sorted(part.read_bytes().split(b"\n")) == sorted(whole.split(b"\n"))
    # With all of them there nothing is generated: nobody listens at this address.
    asyncio.run(run_job(_config(tmp_path, "127.0.0.1:9", judges=[JudgeConfig(preset="rules")])))


def test_single_mode_gives_pass_at_k(tmp_path: Path, address: str) -> None:
    summary = asyncio.run(run_job(_config(tmp_path, address, mode="single", pass_k=[1, 2])))
    measures = summary["data_sets"]["tiny"]["measures"]
    assert measures["accuracy"]["n"] == 8
    assert measures["pass@2"]["n"] == 4


def test_a_model_that_does_not_exist_ends_with_the_services_words(tmp_path: Path) -> None:
    async def run() -> None:
        with generation_service(str(tmp_path / "absent"), tmp_path / "generation.log", 1) as service:
            await asyncio.wait_for(service.ended(), 200)

    with pytest.raises(UnavailableError, match="absent"):
        asyncio.run(run())


OWNER = """
import sys, time
from pathlib import Path
from rlctl.evaluator.serving import generation_service
with generation_service("absent", Path(sys.argv[1]), 1, {"JUDGE_KEY"}) as service:
    print(service.process.pid, flush=True)
    time.sleep(600)
"""


def test_the_service_gets_no_key_and_ends_with_a_killed_evaluation(tmp_path: Path) -> None:
    paths = os.pathsep.join(str(REPO / root) for root in ("protos", "services", "trainer", "evaluator", "cli"))
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "generation.log")], stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths, "JUDGE_KEY": "sk-secret", "OTHER": "kept"},
    )  # fmt: skip
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    environment = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"OTHER=kept" in environment
    assert b"sk-secret" not in environment
    owner.kill()
    owner.wait(10)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and _runs(pid):
        time.sleep(0.05)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
