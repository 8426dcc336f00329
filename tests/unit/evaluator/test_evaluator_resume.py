"""Evaluations that stop, by an error, a budget, a full disk or a crash, and go on from their journal."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from rlctl.core.errors import ConfigError
from rlctl.evaluator.config import JudgeConfig
from rlctl.evaluator.evaluate import Evaluation, evaluate
from rlctl.evaluator.standin import StandIn
from support.judged import judge_pairs, judging
from support.pairs import write_pairs


def test_402_stops_keeps_everything_and_goes_on_later(tmp_path: Path) -> None:
    write_pairs(tmp_path, 30)

    async def run() -> tuple[Evaluation, int, Evaluation, int]:
        async with StandIn(["ok"] * 10 + ["402"] * 50) as server:
            config = judging(tmp_path, server.base_url, concurrency=4)
            first = await evaluate(config)
            asked = sum(server.calls.values())
            server.faults.clear()
            return first, asked, await evaluate(config), sum(server.calls.values())

    stopped, asked, whole, total = asyncio.run(run())
    assert stopped.summary["state"] == "stopped"
    assert "402" in stopped.summary["message"]
    assert "asks only for what is missing" in stopped.summary["message"]
    assert 11 <= asked <= 14
    scored = [row for row in stopped.rows if not row.unscored]
    assert len(scored) == 10
    assert all(row.unscored.startswith("not asked") for row in stopped.rows if row.unscored)
    assert whole.summary["state"] == "done"
    assert not any(row.unscored for row in whole.rows)
    assert total - asked == 20
    assert whole.summary["run"]["from_journal"] == 10


def test_a_second_run_asks_nothing_and_reports_the_same(tmp_path: Path) -> None:
    write_pairs(tmp_path, 20)

    async def run() -> tuple[dict[str, Any], dict[str, Any], int]:
        async with StandIn(["prose"] * 3) as server:
            config = judging(tmp_path, server.base_url, concurrency=1)
            first = await evaluate(config)
            asked = sum(server.calls.values())
            second = await evaluate(config)
            return first.summary, second.summary, sum(server.calls.values()) - asked

    first, second, asked = asyncio.run(run())
    assert asked == 0
    assert second.pop("run")["from_journal"] == first.pop("run")["calls"] == 22
    assert first == second


def test_any_change_of_what_a_verdict_depends_on_is_asked_anew(tmp_path: Path) -> None:
    write_pairs(tmp_path, 2)

    async def run() -> list[int]:
        counts = []
        async with StandIn() as server:
            judge = JudgeConfig(preset="local", model="m", base_url=server.base_url)
            for changed in (
                {},
                {"model": "n"},
                {"temperature": 0.5},
                {"max_tokens": 999},
                {"extra_body": {"top_p": 0.9}},
            ):
                before = sum(server.calls.values())
                await evaluate(judging(tmp_path, server.base_url, judges=[judge.model_copy(update=changed)]))
                counts.append(sum(server.calls.values()) - before)
        return counts

    assert asyncio.run(run()) == [2] * 5


def test_equal_records_are_asked_once(tmp_path: Path) -> None:
    outputs, _ = write_pairs(tmp_path, 1)
    path = outputs / "set.jsonl"
    path.write_text(path.read_text() * 5)
    evaluation, server = judge_pairs(tmp_path)
    assert sum(server.calls.values()) == 1
    entry = evaluation.summary["data_sets"]["set"]
    assert (entry["records"], entry["prompts"], entry["duplicate_prompts"]) == (5, 1, 4)
    assert entry["measures"]["switches"]["n"] == 5


def test_a_line_cut_by_a_crash_is_dropped(tmp_path: Path) -> None:
    write_pairs(tmp_path, 4)

    async def run() -> tuple[Evaluation, int]:
        async with StandIn() as server:
            config = judging(tmp_path, server.base_url)
            await evaluate(config)
            journal = tmp_path / "report" / "journal.jsonl"
            raw = journal.read_bytes()
            last = raw.rstrip(b"\n").rfind(b'\n{"reply"')
            journal.write_bytes(raw[: last + 30])
            before = sum(server.calls.values())
            return await evaluate(config), sum(server.calls.values()) - before

    evaluation, asked = asyncio.run(run())
    assert asked == 1
    assert evaluation.summary["run"]["repeated"] == 1
    assert not any(row.unscored for row in evaluation.rows)


@pytest.mark.parametrize("taken", [0, 7])
def test_a_full_disk_stops_the_run_and_the_journal_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    write_pairs(tmp_path, 30)
    write, room = os.write, 9000

    def bounded(file: int, raw: bytes) -> int:
        nonlocal room
        if file <= 2 or not raw.startswith(b"{"):
            return write(file, raw)
        room -= len(raw)
        if room >= 0:
            return write(file, raw)
        if taken == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, raw[:taken])

    async def run() -> tuple[Evaluation, Evaluation, int]:
        async with StandIn(latency_s=0.01) as server:
            config = judging(tmp_path, server.base_url)
            monkeypatch.setattr(os, "write", bounded)
            first = await evaluate(config)
            monkeypatch.setattr(os, "write", write)
            return first, await evaluate(config), sum(server.calls.values())

    first, second, calls = asyncio.run(run())
    assert first.summary["state"] == "stopped"
    assert (
        "No space left on device. Every verdict that was written is kept: free some space" in first.summary["message"]
    )
    assert second.summary["state"] == "done"
    assert second.summary["data_sets"]["set"]["measures"]["switches"]["n"] == 30
    # Only what was in flight when the disk was full is asked again.
    assert calls <= 30 + 8


def test_a_damaged_journal_is_not_overwritten(tmp_path: Path) -> None:
    write_pairs(tmp_path, 1)
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "journal.jsonl").write_text("nonsense\n")
    with pytest.raises(ConfigError, match="damaged at byte 0"):
        judge_pairs(tmp_path)
    assert (tmp_path / "report" / "journal.jsonl").read_text() == "nonsense\n"


def test_two_evaluations_in_one_folder_are_refused(tmp_path: Path) -> None:
    write_pairs(tmp_path, 2)

    async def run() -> None:
        async with StandIn(latency_s=0.5) as server:
            config = judging(tmp_path, server.base_url)
            first = asyncio.create_task(evaluate(config))
            await asyncio.sleep(0.2)
            try:
                await evaluate(config)
            finally:
                await first

    with pytest.raises(ConfigError, match="another evaluation is writing"):
        asyncio.run(run())


def test_the_budget_is_never_passed(tmp_path: Path) -> None:
    write_pairs(tmp_path, 40)
    whole, _ = judge_pairs(tmp_path, output_dir=tmp_path / "whole")
    full = whole.summary["cost"]["dollars"]

    async def run() -> tuple[Evaluation, Evaluation]:
        async with StandIn() as server:
            config = judging(tmp_path, server.base_url, max_cost=full / 2)
            first = await evaluate(config)
            return first, await evaluate(config.model_copy(update={"max_cost": 10 * full}))

    first, second = asyncio.run(run())
    assert first.summary["state"] == "stopped"
    assert "raise --max-cost" in first.summary["message"]
    assert 0 < first.summary["cost"]["dollars"] <= full / 2
    assert second.summary["state"] == "done"
    assert second.summary["cost"]["dollars"] == pytest.approx(full, rel=0.05)


def test_the_time_left_does_not_count_on_the_journal(tmp_path: Path) -> None:
    write_pairs(tmp_path, 170)
    seen: list[Any] = []

    async def run() -> None:
        async with StandIn() as server:
            await evaluate(judging(tmp_path, server.base_url, max_samples=150))
            server._latency_s = 0.1
            await evaluate(judging(tmp_path, server.base_url, concurrency=1), seen.append)

    asyncio.run(run())
    # Three of the 20 new ones took 0.3 s, so that 17 more take 1.7 s.
    first = next(progress for progress in seen if progress.seconds_left > 0)
    assert 1.5 < first.seconds_left < 5
