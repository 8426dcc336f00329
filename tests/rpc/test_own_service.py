"""A service for the length of a job, and rewards asked of it through a file."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlctl.core.errors import UnavailableError
from rlctl.offline.asking import Scored, rewards_file, score_all
from rlctl.rpc.config import ChannelConfig
from rlctl.rpc.own import OwnService, alongside, own_service

REWARD = """
def reward_func(queries, prompts, labels):
    if any("bad" in query for query in queries):
        raise ValueError("no bad words")
    return [float(len(query) - len(prompt)) for query, prompt in zip(queries, prompts)]
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnService]:
    folder = tmp_path_factory.mktemp("reward")
    (folder / "reward.py").write_text(REWARD)
    settings = {"scorers": [{"kind": "function", "path": str(folder / "reward.py")}]}
    with own_service("reward", settings, folder / "logs" / "reward-0.log", environment={"EXTRA": "kept"}) as started:
        started.wait(120)
        yield started
    assert started.process.poll() is not None


def response(key: str, sample: int, text: str) -> dict:
    return {"request": key, "prompt": f"p{key}", "sample": sample, "response": text, "finish": "stop"}


RESPONSES = [response("a", 0, "x"), response("a", 1, "xyz"), response("b", 0, "bad"), response("b", 1, "xy")]
SCORED = {key: Scored(f"p{key}", "", "") for key in "ab"}


def score(path: Path, channel: ChannelConfig) -> list[dict]:
    file = rewards_file(path, RESPONSES)
    return asyncio.run(score_all(file, RESPONSES, SCORED, channel, column="response", at_once=2))


def test_its_environment_and_its_log_are_the_jobs(service: OwnService) -> None:
    assert b"EXTRA=kept" in Path(f"/proc/{service.process.pid}/environ").read_bytes()
    assert "reward is loaded" in service.log_path.read_text()


def test_it_is_killed_when_the_job_is_killed() -> None:
    code = (
        "import os, subprocess, sys, time; from rlctl.rpc import bound\n"
        "command = [sys.executable, '-I', '-S', bound.__file__, str(os.getpid()), '/bin/sleep', '60']\n"
        "print(subprocess.Popen(command).pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        stat = Path(f"/proc/{int(job.stdout.readline())}/stat")
        wait_until(lambda: "(sleep)" in stat.read_text())
        job.kill()
        wait_until(lambda: not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z")


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_every_response_has_its_reward_or_the_reason_why_not(service: OwnService, tmp_path: Path) -> None:
    rows = score(tmp_path / "scored.jsonl", service.channel)
    assert [row["reward"] for row in rows] == [1.0, 3.0, None, 2.0]
    assert "no bad words" in rows[2]["reward_error"]
    assert [row["response"] for row in rows] == [row["response"] for row in RESPONSES]
    assert [json.loads(line) for line in (tmp_path / "scored.jsonl").read_text().splitlines()] == rows


def test_rewards_that_are_written_are_not_asked_for_again(service: OwnService, tmp_path: Path) -> None:
    path = tmp_path / "scored.jsonl"
    kept = [row | {"reward": 9.0} for row in RESPONSES[:2]]
    path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    assert [row["reward"] for row in score(path, service.channel)] == [9.0, 9.0, None, 2.0]


def test_work_ends_when_the_service_that_it_needs_does(tmp_path: Path) -> None:
    async def work(started: OwnService) -> None:
        await asyncio.sleep(0.2)
        os.kill(started.process.pid, signal.SIGKILL)
        await asyncio.sleep(60)

    with own_service("reward", {}, tmp_path / "reward-0.log") as started:
        started.wait(120)
        with pytest.raises(UnavailableError, match=r"(?s)the reward service ended: .*reward-0.log"):
            asyncio.run(alongside(work(started), [started]))


def test_what_cannot_start_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    told = r"(?s)the reward service ended before it served:.*scorers"
    with (
        own_service("reward", {"scorers": []}, tmp_path / "reward-0.log") as started,
        pytest.raises(UnavailableError, match=told),
    ):
        started.wait(120)


def test_work_that_is_done_first_gives_its_result(service: OwnService) -> None:
    async def work() -> int:
        return 3

    assert asyncio.run(alongside(work(), [service])) == 3
