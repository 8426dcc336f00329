"""Whole evaluations against the stand-in: verdicts, statistics, resuming, budget, several judges."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rlctl.core.errors import ConfigError
from rlctl.evaluator.config import EvaluatorConfig, JudgeConfig, PriceConfig
from rlctl.evaluator.evaluate import Evaluation, estimate, evaluate
from rlctl.evaluator.files import RESULTS
from rlctl.evaluator.report import write_report
from rlctl.evaluator.standin import StandIn, verdict_by_rules
from support.pairs import write_pairs

PRICE = PriceConfig(input_hit=1.0, input_miss=10.0, output=100.0)


def _config(tmp_path: Path, url: str, **more: Any) -> EvaluatorConfig:
    settings: dict[str, Any] = {
        "outputs": tmp_path / "outputs", "gold": str(tmp_path / "gold.jsonl"), "output_dir": tmp_path / "report",
        "judges": [JudgeConfig(preset="local", model="m", base_url=url, price=PRICE)], "max_samples": 1000,
        "bootstrap": 500, "max_wait_s": 0.05, "concurrency": 8,
    }  # fmt: skip
    return EvaluatorConfig(**{**settings, **more})


def _run(
    tmp_path: Path, *faults: str, verdict: Callable[[str], Any] = verdict_by_rules, **more: Any
) -> tuple[Evaluation, StandIn]:
    async def run() -> tuple[Evaluation, StandIn]:
        async with StandIn(faults, verdict=verdict) as server:
            # A fixed name stands for the address, which is part of a verdict's key.
            more.setdefault("judges", [JudgeConfig(preset="local", model="m", base_url=server.base_url, price=PRICE)])
            return await evaluate(_config(tmp_path, server.base_url, **more)), server

    return asyncio.run(run())


def test_statistics_equal_those_recomputed_from_the_journal(tmp_path: Path) -> None:
    write_pairs(tmp_path, 120)
    evaluation, _ = _run(tmp_path, "fenced", "blank", "cut", "python", "think", *["prose"] * 3, concurrency=1)
    entry = evaluation.summary["data_sets"]["set"]
    journal = pd.read_json(tmp_path / "report" / "journal.jsonl", lines=True)
    replies = journal[journal["reply"].notna()].copy()
    assert len(replies) == 120 + 4
    parsed = replies["content"].map(_plain)
    last = replies.assign(parsed=parsed).sort_values("attempt").groupby("reply", sort=False)["parsed"].last()
    verdicts = pd.DataFrame(last.dropna().tolist())
    both = verdicts["a_right"] & verdicts["b_right"]
    measures = entry["measures"]
    assert measures["distinguishes"]["n"] == len(verdicts) == 119
    assert measures["distinguishes"]["unscored"] == 1
    assert measures["switches"]["yes"] == verdicts["switches"].sum()
    assert measures["both_right"]["yes"] == both.sum()
    assert measures["both_right_given_switch"]["value"] == pytest.approx(both[verdicts["switches"]].mean())
    assert measures["both_right_given_no_switch"]["value"] == pytest.approx(both[~verdicts["switches"]].mean())
    assert entry["ratio"]["value"] == pytest.approx(both[verdicts["switches"]].mean() / both.mean())
    assert entry["judge_and_rules"]["answers"]["agreement"] == 1.0
    usage = pd.DataFrame(replies["usage"].tolist())
    assert evaluation.summary["cost"]["judges"]["local"]["output"] == usage["completion_tokens"].sum()


def _plain(content: str) -> dict[str, Any] | None:
    """Reads a reply independently of the evaluator's own parser."""
    text = content.split("</think>")[-1].replace("```json", "").replace("```", "").replace("Here is my verdict:", "")
    for true, false, none in (("true", "false", "null"), ("True", "False", "None")):
        try:
            value = json.loads(
                text.replace(true, "true").replace(false, "false").replace(none, "null").replace("'", '"')
            )
        except ValueError:
            continue
        return value if "a_right" in value else None
    return None


@pytest.mark.parametrize("fault", ["fenced", "python", "think", "blank", "cut", "length", "missing-keys", "prose"])
def test_every_form_of_reply_ends_in_the_right_verdict(tmp_path: Path, fault: str) -> None:
    write_pairs(tmp_path, 3)
    plain, _ = _run(tmp_path, output_dir=tmp_path / "plain")
    odd, server = _run(tmp_path, fault, concurrency=1)
    assert [row.measures for row in odd.rows] == [row.measures for row in plain.rows]
    asked_again = fault not in ("fenced", "python", "think")
    assert sum(server.calls.values()) == 3 + asked_again


def test_a_cut_reply_gets_more_room(tmp_path: Path) -> None:
    write_pairs(tmp_path, 1)

    async def run() -> list[int]:
        async with StandIn(["length"]) as server:
            server.keep_requests = True
            await evaluate(_config(tmp_path, server.base_url))
            return [request["max_tokens"] for request in server.requests]

    assert asyncio.run(run()) == [1024, 2048]


@pytest.mark.parametrize("fault", ["blank", "cut", "missing-keys", "prose"])
def test_a_reply_that_stays_unreadable_leaves_the_record_unscored(tmp_path: Path, fault: str) -> None:
    write_pairs(tmp_path, 2)
    evaluation, server = _run(tmp_path, *[fault] * 3, concurrency=1)
    first, second = evaluation.rows
    assert first.measures["both_right"] is first.measures["switches"] is None
    assert "(3 replies)" in first.unscored
    assert first.measures["both_right_rules"] is not None
    assert second.unscored == ""
    share = evaluation.summary["data_sets"]["set"]["measures"]["both_right"]
    assert (share["n"], share["unscored"]) == (1, 1)
    assert sum(server.calls.values()) == 4


def test_a_final_error_concerns_one_record_and_is_asked_again_next_time(tmp_path: Path) -> None:
    write_pairs(tmp_path, 3)

    async def run() -> tuple[Evaluation, Evaluation, int]:
        async with StandIn(["400"]) as server:
            config = _config(tmp_path, server.base_url, concurrency=1)
            first = await evaluate(config)
            before = sum(server.calls.values())
            return first, await evaluate(config), sum(server.calls.values()) - before

    first, second, asked = asyncio.run(run())
    assert "HTTP 400: ordered 400" in first.rows[0].unscored
    assert [row.unscored for row in first.rows[1:]] == ["", ""]
    assert asked == 1
    assert [row.unscored for row in second.rows] == ["", "", ""]


@pytest.mark.parametrize("fault", ["error-200", "503"])
def test_an_error_is_never_kept_as_a_verdict(tmp_path: Path, fault: str) -> None:
    write_pairs(tmp_path, 1)
    evaluation, _ = _run(tmp_path, *[fault] * 2, max_tries=2)
    assert "(2 tries)" in evaluation.rows[0].unscored
    entries = [json.loads(line) for line in (tmp_path / "report" / "journal.jsonl").read_text().split("\n") if line]
    assert [next(iter(entry)) for entry in entries] == ["ask", "failed"]


def test_402_stops_keeps_everything_and_goes_on_later(tmp_path: Path) -> None:
    write_pairs(tmp_path, 30)

    async def run() -> tuple[Evaluation, int, Evaluation, int]:
        async with StandIn(["ok"] * 10 + ["402"] * 50) as server:
            config = _config(tmp_path, server.base_url, concurrency=4)
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
            config = _config(tmp_path, server.base_url, concurrency=1)
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
                await evaluate(_config(tmp_path, server.base_url, judges=[judge.model_copy(update=changed)]))
                counts.append(sum(server.calls.values()) - before)
        return counts

    assert asyncio.run(run()) == [2] * 5


def test_equal_records_are_asked_once(tmp_path: Path) -> None:
    outputs, _ = write_pairs(tmp_path, 1)
    path = outputs / "set.jsonl"
    path.write_text(path.read_text() * 5)
    evaluation, server = _run(tmp_path)
    assert sum(server.calls.values()) == 1
    entry = evaluation.summary["data_sets"]["set"]
    assert (entry["records"], entry["prompts"], entry["duplicate_prompts"]) == (5, 1, 4)
    assert entry["measures"]["switches"]["n"] == 5


def test_a_line_cut_by_a_crash_is_dropped(tmp_path: Path) -> None:
    write_pairs(tmp_path, 4)

    async def run() -> tuple[Evaluation, int]:
        async with StandIn() as server:
            config = _config(tmp_path, server.base_url)
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
            config = _config(tmp_path, server.base_url)
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


def test_the_report_is_not_read_as_an_output(tmp_path: Path) -> None:
    outputs, _ = write_pairs(tmp_path, 5)
    for _ in range(2):
        evaluation, _ = _run(tmp_path, output_dir=outputs / "report")
        write_report(evaluation)
        assert list(evaluation.summary["data_sets"]) == ["set"]
        assert evaluation.bad == []


def test_bad_gold_rows_are_in_the_report(tmp_path: Path) -> None:
    _, gold = write_pairs(tmp_path, 3)
    with gold.open("ab") as file:
        file.write(b'{"question": "no answer"}\n\xff\n')
    evaluation, _ = _run(tmp_path)
    assert [(row["file"], row["line"]) for row in evaluation.summary["bad_rows"]] == [
        (gold.as_posix(), 41), (gold.as_posix(), 42),
    ]  # fmt: skip
    assert evaluation.summary["data_sets"]["set"]["measures"]["both_right"]["n"] == 3


def test_a_damaged_journal_is_not_overwritten(tmp_path: Path) -> None:
    write_pairs(tmp_path, 1)
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "journal.jsonl").write_text("nonsense\n")
    with pytest.raises(ConfigError, match="damaged at byte 0"):
        _run(tmp_path)
    assert (tmp_path / "report" / "journal.jsonl").read_text() == "nonsense\n"


def test_two_evaluations_in_one_folder_are_refused(tmp_path: Path) -> None:
    write_pairs(tmp_path, 2)

    async def run() -> None:
        async with StandIn(latency_s=0.5) as server:
            config = _config(tmp_path, server.base_url)
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
    whole, _ = _run(tmp_path, output_dir=tmp_path / "whole")
    full = whole.summary["cost"]["dollars"]

    async def run() -> tuple[Evaluation, Evaluation]:
        async with StandIn() as server:
            config = _config(tmp_path, server.base_url, max_cost=full / 2)
            first = await evaluate(config)
            return first, await evaluate(config.model_copy(update={"max_cost": 10 * full}))

    first, second = asyncio.run(run())
    assert first.summary["state"] == "stopped"
    assert "raise --max-cost" in first.summary["message"]
    assert 0 < first.summary["cost"]["dollars"] <= full / 2
    assert second.summary["state"] == "done"
    assert second.summary["cost"]["dollars"] == pytest.approx(full, rel=0.05)


def test_a_budget_needs_a_price(tmp_path: Path) -> None:
    write_pairs(tmp_path, 1)
    with pytest.raises(ConfigError, match="--price"):
        _run(tmp_path, max_cost=1.0, judges=[JudgeConfig(preset="local", model="m", base_url="http://127.0.0.1:9")])


def test_a_dry_run_tells_an_upper_bound(tmp_path: Path) -> None:
    write_pairs(tmp_path, 10)
    evaluation, server = _run(tmp_path)
    told = estimate(_config(tmp_path, server.base_url, swap_check=True))
    assert (told.records, told.calls) == (10, 20)
    assert told.dollars is not None
    assert told.dollars / 2 > evaluation.summary["cost"]["dollars"]


def test_the_swap_check_maps_verdicts_back(tmp_path: Path) -> None:
    write_pairs(tmp_path, 20)
    evaluation, server = _run(tmp_path, swap_check=True)
    assert sum(server.calls.values()) == 40
    swap = evaluation.summary["data_sets"]["set"]["swap"]["local"]
    assert {name: item["agreement"] for name, item in swap.items()} == dict.fromkeys(swap, 1.0)


def test_the_swap_check_finds_a_judge_that_looks_at_the_place(tmp_path: Path) -> None:
    write_pairs(tmp_path, 20)

    def first_is_right(user: str) -> dict[str, Any]:
        return {**verdict_by_rules(user), "a_right": True, "b_right": False}

    evaluation, _ = _run(tmp_path, swap_check=True, verdict=first_is_right)
    swap = evaluation.summary["data_sets"]["set"]["swap"]["local"]
    assert swap["a_right"]["agreement"] == 0.0
    assert swap["switches"]["agreement"] == 1.0


def test_several_judges_decide_by_majority(tmp_path: Path) -> None:
    write_pairs(tmp_path, 10)

    def harsh(user: str) -> dict[str, Any]:
        return {**verdict_by_rules(user), "switches": False, "a_right": False}

    async def run(count: int) -> Evaluation:
        async with StandIn() as fair, StandIn() as same, StandIn(verdict=harsh) as strict:
            servers = {"fair": fair, "strict": strict, "same": same}
            judges = [
                JudgeConfig(preset="local", name=name, model="m", base_url=server.base_url)
                for name, server in list(servers.items())[:count]
            ]
            return await evaluate(_config(tmp_path, "", judges=judges, output_dir=tmp_path / str(count)))

    three = asyncio.run(run(3))
    assert all(row.measures["a_right"] == row.measures["a_right_rules"] for row in three.rows)
    between = three.summary["data_sets"]["set"]["judges"]
    assert between["fair / same"]["a_right"]["agreement"] == 1.0
    assert between["fair / strict"]["a_right"]["agreement"] < 1.0
    two = asyncio.run(run(2))
    divided = [row for row in two.rows if row.measures["a_right_rules"]]
    assert divided
    assert {row.reasons["a_right"] for row in divided} == {"the judges are divided"}


def test_gold_that_is_missing_leaves_only_the_answers_unscored(tmp_path: Path) -> None:
    outputs, _ = write_pairs(tmp_path, 2)
    with (outputs / "set.jsonl").open("a") as file:
        file.write(
            json.dumps({"prompt": "别的问题", "output": "<think>A B</think>A: 1 B: 2"}, ensure_ascii=False) + "\n"
        )
        file.write(json.dumps({"prompt": "x", "output": "A: 1 B: 2", "answer_a": 1, "answer_b": "3"}) + "\n")
    evaluation, _ = _run(tmp_path)
    *_, unmatched, explicit = evaluation.rows
    assert unmatched.measures["distinguishes"] is True
    assert unmatched.measures["both_right"] is None
    assert unmatched.reasons["both_right"] == "gold_unmatched"
    assert explicit.measures["a_right"] is True
    assert explicit.measures["b_right"] is False
    assert evaluation.summary["data_sets"]["set"]["gold"] == {"explicit": 1, "gold_unmatched": 1, "ok": 2}


def test_rules_alone_need_no_network(tmp_path: Path) -> None:
    write_pairs(tmp_path, 10)
    evaluation = asyncio.run(evaluate(_config(tmp_path, "", judges=[JudgeConfig(preset="rules")])))
    measures = evaluation.summary["data_sets"]["set"]["measures"]
    assert measures["both_right"]["n"] == 10
    assert measures["both_right"] == measures["both_right_rules"]
    assert (measures["switches"]["n"], measures["switches"]["unscored"]) == (0, 10)


def test_progress_reaches_the_end_with_a_time_left(tmp_path: Path) -> None:
    write_pairs(tmp_path, 12)
    seen: list[Any] = []

    async def run() -> None:
        async with StandIn(latency_s=0.02) as server:
            await evaluate(_config(tmp_path, server.base_url, concurrency=2), seen.append)

    asyncio.run(run())
    assert (seen[-1].records_done, seen[-1].records_total) == (12, 12)
    assert any(progress.seconds_left > 0 for progress in seen)
    assert seen[-1].cost > 0


def test_the_time_left_does_not_count_on_the_journal(tmp_path: Path) -> None:
    write_pairs(tmp_path, 170)
    seen: list[Any] = []

    async def run() -> None:
        async with StandIn() as server:
            await evaluate(_config(tmp_path, server.base_url, max_samples=150))
            server._latency_s = 0.1
            await evaluate(_config(tmp_path, server.base_url, concurrency=1), seen.append)

    asyncio.run(run())
    # Three of the 20 new ones took 0.3 s, so that 17 more take 1.7 s.
    first = next(progress for progress in seen if progress.seconds_left > 0)
    assert 1.5 < first.seconds_left < 5


def test_no_more_calls_at_once_than_allowed(tmp_path: Path) -> None:
    write_pairs(tmp_path, 20)

    async def run() -> int:
        async with StandIn(latency_s=0.05) as server:
            await evaluate(_config(tmp_path, server.base_url, concurrency=5))
            return server.most_at_once

    assert asyncio.run(run()) == 5


def test_a_template_of_ones_own_adds_its_measures(tmp_path: Path) -> None:
    write_pairs(tmp_path, 4)
    path = tmp_path / "own.toml"
    path.write_text(
        'name = "own"\nversion = "1"\nsystem = "json"\nuser = "{prompt}{output}"\n[fields.polite]\ntype = "boolean"\n'
    )
    evaluation, _ = _run(
        tmp_path, verdict=lambda user: {"polite": "号" in user}, prompt_template=path, chart=["polite"]
    )
    measures = evaluation.summary["data_sets"]["set"]["measures"]
    assert measures["polite"]["yes"] == 4
    assert (measures["both_right"]["n"], measures["both_right_rules"]["n"]) == (0, 4)
    write_report(evaluation)
    line = json.loads((tmp_path / "report" / RESULTS).read_text().split("\n")[0])
    assert line["measures"]["polite"] is True
    with pytest.raises(ConfigError, match=r"chart\.0: 'polite' is no measure"):
        _run(tmp_path, chart=["polite"])
