"""Whole evaluations against the stand-in: verdicts, statistics, several judges, reports."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rlctl.core.errors import ConfigError
from rlctl.evaluator.config import JudgeConfig
from rlctl.evaluator.evaluate import Evaluation, estimate, evaluate
from rlctl.evaluator.files import RESULTS
from rlctl.evaluator.report import write_report
from rlctl.evaluator.standin import StandIn, verdict_by_rules
from support.judged import judge_pairs, judging
from support.pairs import write_pairs


def test_statistics_equal_those_recomputed_from_the_journal(tmp_path: Path) -> None:
    write_pairs(tmp_path, 120)
    evaluation, _ = judge_pairs(tmp_path, "fenced", "blank", "cut", "python", "think", *["prose"] * 3, concurrency=1)
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
    plain, _ = judge_pairs(tmp_path, output_dir=tmp_path / "plain")
    odd, server = judge_pairs(tmp_path, fault, concurrency=1)
    assert [row.measures for row in odd.rows] == [row.measures for row in plain.rows]
    asked_again = fault not in ("fenced", "python", "think")
    assert sum(server.calls.values()) == 3 + asked_again


def test_a_cut_reply_gets_more_room(tmp_path: Path) -> None:
    write_pairs(tmp_path, 1)

    async def run() -> list[int]:
        async with StandIn(["length"]) as server:
            server.keep_requests = True
            await evaluate(judging(tmp_path, server.base_url))
            return [request["max_tokens"] for request in server.requests]

    assert asyncio.run(run()) == [1024, 2048]


@pytest.mark.parametrize("fault", ["blank", "cut", "missing-keys", "prose"])
def test_a_reply_that_stays_unreadable_leaves_the_record_unscored(tmp_path: Path, fault: str) -> None:
    write_pairs(tmp_path, 2)
    evaluation, server = judge_pairs(tmp_path, *[fault] * 3, concurrency=1)
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
            config = judging(tmp_path, server.base_url, concurrency=1)
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
    evaluation, _ = judge_pairs(tmp_path, *[fault] * 2, max_tries=2)
    assert "(2 tries)" in evaluation.rows[0].unscored
    entries = [json.loads(line) for line in (tmp_path / "report" / "journal.jsonl").read_text().split("\n") if line]
    assert [next(iter(entry)) for entry in entries] == ["ask", "failed"]


def test_the_report_is_not_read_as_an_output(tmp_path: Path) -> None:
    outputs, _ = write_pairs(tmp_path, 5)
    for _ in range(2):
        evaluation, _ = judge_pairs(tmp_path, output_dir=outputs / "report")
        write_report(evaluation)
        assert list(evaluation.summary["data_sets"]) == ["set"]
        assert evaluation.bad == []


def test_bad_gold_rows_are_in_the_report(tmp_path: Path) -> None:
    _, gold = write_pairs(tmp_path, 3)
    with gold.open("ab") as file:
        file.write(b'{"question": "no answer"}\n\xff\n')
    evaluation, _ = judge_pairs(tmp_path)
    assert [(row["file"], row["line"]) for row in evaluation.summary["bad_rows"]] == [
        (gold.as_posix(), 41), (gold.as_posix(), 42),
    ]  # fmt: skip
    assert evaluation.summary["data_sets"]["set"]["measures"]["both_right"]["n"] == 3


def test_a_budget_needs_a_price(tmp_path: Path) -> None:
    write_pairs(tmp_path, 1)
    with pytest.raises(ConfigError, match="--price"):
        judge_pairs(
            tmp_path, max_cost=1.0, judges=[JudgeConfig(preset="local", model="m", base_url="http://127.0.0.1:9")]
        )


def test_a_dry_run_tells_an_upper_bound(tmp_path: Path) -> None:
    write_pairs(tmp_path, 10)
    evaluation, server = judge_pairs(tmp_path)
    told = estimate(judging(tmp_path, server.base_url, swap_check=True))
    assert (told.records, told.calls) == (10, 20)
    assert told.dollars is not None
    assert told.dollars / 2 > evaluation.summary["cost"]["dollars"]


def test_the_swap_check_maps_verdicts_back(tmp_path: Path) -> None:
    write_pairs(tmp_path, 20)
    evaluation, server = judge_pairs(tmp_path, swap_check=True)
    assert sum(server.calls.values()) == 40
    swap = evaluation.summary["data_sets"]["set"]["swap"]["local"]
    assert {name: item["agreement"] for name, item in swap.items()} == dict.fromkeys(swap, 1.0)


def test_the_swap_check_finds_a_judge_that_looks_at_the_place(tmp_path: Path) -> None:
    write_pairs(tmp_path, 20)

    def first_is_right(user: str) -> dict[str, Any]:
        return {**verdict_by_rules(user), "a_right": True, "b_right": False}

    evaluation, _ = judge_pairs(tmp_path, swap_check=True, verdict=first_is_right)
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
            return await evaluate(judging(tmp_path, "", judges=judges, output_dir=tmp_path / str(count)))

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
    evaluation, _ = judge_pairs(tmp_path)
    *_, unmatched, explicit = evaluation.rows
    assert unmatched.measures["distinguishes"] is True
    assert unmatched.measures["both_right"] is None
    assert unmatched.reasons["both_right"] == "gold_unmatched"
    assert explicit.measures["a_right"] is True
    assert explicit.measures["b_right"] is False
    assert evaluation.summary["data_sets"]["set"]["gold"] == {"explicit": 1, "gold_unmatched": 1, "ok": 2}


def test_rules_alone_need_no_network(tmp_path: Path) -> None:
    write_pairs(tmp_path, 10)
    evaluation = asyncio.run(evaluate(judging(tmp_path, "", judges=[JudgeConfig(preset="rules")])))
    measures = evaluation.summary["data_sets"]["set"]["measures"]
    assert measures["both_right"]["n"] == 10
    assert measures["both_right"] == measures["both_right_rules"]
    assert (measures["switches"]["n"], measures["switches"]["unscored"]) == (0, 10)


def test_progress_reaches_the_end_with_a_time_left(tmp_path: Path) -> None:
    write_pairs(tmp_path, 12)
    seen: list[Any] = []

    async def run() -> None:
        async with StandIn(latency_s=0.02) as server:
            await evaluate(judging(tmp_path, server.base_url, concurrency=2), seen.append)

    asyncio.run(run())
    assert (seen[-1].records_done, seen[-1].records_total) == (12, 12)
    assert any(progress.seconds_left > 0 for progress in seen)
    assert seen[-1].cost > 0


def test_no_more_calls_at_once_than_allowed(tmp_path: Path) -> None:
    write_pairs(tmp_path, 20)

    async def run() -> int:
        async with StandIn(latency_s=0.05) as server:
            await evaluate(judging(tmp_path, server.base_url, concurrency=5))
            return server.most_at_once

    assert asyncio.run(run()) == 5


def test_a_template_of_ones_own_adds_its_measures(tmp_path: Path) -> None:
    write_pairs(tmp_path, 4)
    path = tmp_path / "own.toml"
    path.write_text(
        'name = "own"\nversion = "1"\nsystem = "json"\nuser = "{prompt}{output}"\n[fields.polite]\ntype = "boolean"\n'
    )
    evaluation, _ = judge_pairs(
        tmp_path, verdict=lambda user: {"polite": "号" in user}, prompt_template=path, chart=["polite"]
    )
    measures = evaluation.summary["data_sets"]["set"]["measures"]
    assert measures["polite"]["yes"] == 4
    assert (measures["both_right"]["n"], measures["both_right_rules"]["n"]) == (0, 4)
    write_report(evaluation)
    line = json.loads((tmp_path / "report" / RESULTS).read_text().split("\n")[0])
    assert line["measures"]["polite"] is True
    with pytest.raises(ConfigError, match=r"chart\.0: 'polite' is no measure"):
        judge_pairs(tmp_path, chart=["polite"])
