"""Killed at random again and again: the report is that of an undisturbed run, and no reply is asked for twice."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rlctl.evaluator.config import EvaluatorConfig, JudgeConfig
from rlctl.evaluator.standin import StandIn
from support.evaluations import start
from support.pairs import write_pairs

RECORDS, CONCURRENCY, KILLS = 200, 8, 20
REPO = Path(__file__).resolve().parents[2]
PATHS = os.pathsep.join(str(REPO / root) for root in ("protos", "services", "trainer", "evaluator", "cli"))


def _config(tmp_path: Path, url: str, output: str) -> str:
    return EvaluatorConfig(
        outputs=tmp_path / "outputs", gold=str(tmp_path / "gold.jsonl"), output_dir=tmp_path / output, bootstrap=200,
        judges=[JudgeConfig(preset="local", model="m", base_url=url)], concurrency=CONCURRENCY, max_samples=1000,
    ).model_dump_json()  # fmt: skip


def _replies(journal: Path) -> int:
    return journal.read_bytes().count(b'{"reply"') if journal.exists() else 0


async def _killed_at(config: str, journal: Path, replies: int, pause_s: float) -> None:
    """Kills (SIGKILL) an evaluation some time after the journal holds so many replies."""
    process = await asyncio.to_thread(start, config)
    deadline = time.monotonic() + 60
    while _replies(journal) < replies:
        assert time.monotonic() < deadline, "the evaluation makes no progress"
        assert process.exitcode is None, "the evaluation ended before it was killed"
        await asyncio.sleep(0.005)
    await asyncio.sleep(pause_s)
    process.kill()
    await asyncio.to_thread(process.join, 30)
    assert process.exitcode == -9


async def _whole(config: str) -> None:
    process = await asyncio.to_thread(start, config)
    await asyncio.to_thread(process.join, 120)
    assert process.exitcode == 0


def _report(folder: Path) -> tuple[dict[str, Any], str]:
    return json.loads((folder / "summary.json").read_text()), (folder / "evaluation_results.jsonl").read_text()


def test_twenty_kills_change_nothing(tmp_path: Path) -> None:
    """Through the job that command and service run, in processes that start in milliseconds."""
    write_pairs(tmp_path, RECORDS)
    rng = random.Random(11)
    stops = sorted(rng.sample(range(1, RECORDS - 30), KILLS))

    async def run() -> tuple[dict[str, int], dict[str, int]]:
        async with StandIn(latency_s=0.1) as server:
            await _whole(_config(tmp_path, server.base_url, "calm"))
            calm = dict(server.calls)
            server.calls.clear()
            config = _config(tmp_path, server.base_url, "killed")
            for stop in stops:
                await _killed_at(config, tmp_path / "killed" / "journal.jsonl", stop, rng.uniform(0, 0.05))
            await _whole(config)
            return calm, dict(server.calls)

    calm, killed = asyncio.run(run())
    _check(tmp_path, calm, killed, KILLS)


def test_kills_of_the_command_change_nothing(tmp_path: Path) -> None:
    """The process that a person starts; RLCTL_TEST_KILLS says how often (default 5)."""
    kills = int(os.environ.get("RLCTL_TEST_KILLS", "5"))
    write_pairs(tmp_path, RECORDS)
    rng = random.Random(12)
    stops = sorted(rng.sample(range(1, RECORDS - 40), kills))
    journal = tmp_path / "killed" / "journal.jsonl"

    async def command(url: str, output: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "rlctl.cli.main", "eval", "--gold", "gold.jsonl", "--judge", "local",
            "--judge-model", "m", "--base-url", url, "--concurrency", str(CONCURRENCY), "--max-samples", "1000",
            "--output", output, "--set", "bootstrap=200", cwd=tmp_path, env={**os.environ, "PYTHONPATH": PATHS},
            stdout=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    async def run() -> tuple[dict[str, int], dict[str, int]]:
        async with StandIn(latency_s=0.1) as server:
            assert await (await command(server.base_url, "calm")).wait() == 0
            calm = dict(server.calls)
            server.calls.clear()
            for stop in stops:
                process = await command(server.base_url, "killed")
                deadline = time.monotonic() + 60
                while _replies(journal) < stop:
                    assert time.monotonic() < deadline, "the evaluation makes no progress"
                    assert process.returncode is None, "the evaluation ended before it was killed"
                    await asyncio.sleep(0.005)
                await asyncio.sleep(rng.uniform(0, 0.05))
                process.kill()
                assert await process.wait() == -signal.SIGKILL
            assert await (await command(server.base_url, "killed")).wait() == 0
            return calm, dict(server.calls)

    calm, killed = asyncio.run(run())
    _check(tmp_path, calm, killed, kills)


def _check(tmp_path: Path, calm: dict[str, int], killed: dict[str, int], kills: int) -> None:
    """Calls by sample of an undisturbed run and of a killed one, whose folders are `calm` and `killed`."""
    assert sum(calm.values()) == len(calm) == RECORDS
    repeats = sum(killed.values()) - RECORDS
    assert set(killed) == set(calm)
    assert 0 < repeats <= CONCURRENCY * kills

    journal = [json.loads(line) for line in (tmp_path / "killed" / "journal.jsonl").read_text().split("\n") if line]
    replied: set[str] = set()
    for entry in journal:
        if "reply" in entry:
            assert entry["reply"] not in replied
            replied.add(entry["reply"])
        else:
            assert entry["ask"] not in replied, "a record with a journalled reply was asked again"
    assert len(replied) == RECORDS

    summary, results = _report(tmp_path / "killed")
    calm_summary, calm_results = _report(tmp_path / "calm")
    run_facts, calm_facts = summary.pop("run"), calm_summary.pop("run")
    assert summary == calm_summary
    assert results == calm_results
    assert calm_facts["repeated"] == 0
    # A call that the journal announces may not have reached the server before the kill.
    assert repeats <= run_facts["repeated"] <= CONCURRENCY * kills
