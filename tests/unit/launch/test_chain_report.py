"""The numbers of a chain's report, from rows worked by hand, and how they are shown."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from rlctl.launch.chain_chart import draw
from rlctl.launch.chain_measures import ways
from rlctl.launch.chain_numbers import measured, ranked
from rlctl.launch.chain_view import cells, markdown, print_chain
from rlctl.trainer.config import SamplingConfig


def row(key: str, reward: float | None, right: float | None, tokens: int = 2, finish: str = "stop") -> dict:
    told = {"request": key, "reward": reward, "token_ids": [5] * tokens, "finish": finish}
    return told if right is None else told | {"components": {"model": reward, "grader": right}}


def test_means_of_a_policy():
    greedy = [row("a", 1.0, 1.0, 3), row("b", -2.0, 0.0, 8, "length"), row("c", None, None, 1)]
    sampled = [row("a", 1.0, 1.0), row("a", 0.0, 0.0), row("b", 5.0, 1.0)]
    told = measured("ppo", greedy, sampled, [0.5, 0.1, 0.0])
    assert (told.policy, told.prompts) == ("ppo", 3)
    assert (told.accuracy, told.reward, told.sampled_reward) == (0.5, -0.5, 2.0)
    assert told.kl == pytest.approx(0.2)
    assert (told.length, told.cut) == (4.0, pytest.approx(1 / 3))


def test_without_labels_there_is_no_accuracy():
    told = measured("sft", [row("a", 1.0, None)], [row("a", 1.0, None)], [0.0])
    assert (told.accuracy, told.ranked) == (None, None)


def test_pairs_are_of_one_prompt_and_ties_count_half():
    # a: (1 right; 2, 0 wrong) loses one and wins one; b: a tie; c has no wrong one. Ten times over.
    sampled = [
        row(f"{prompt}{copy}", reward, right)
        for copy in range(10)
        for prompt, reward, right in (
            ("a", 1.0, 1.0), ("a", 2.0, 0.0), ("a", 0.0, 0.0), ("b", 3.0, 1.0), ("b", 3.0, 0.0), ("c", 9.0, 1.0),
        )
    ]  # fmt: skip
    assert ranked(sampled) == pytest.approx(1.5 / 3)
    assert ranked(sampled[: 6 * 6]) is None, "18 pairs tell little"


SUMMARY = {
    "run": "chain", "seed": 1, "seconds": 600.0,
    "stages": {
        "sft": {"steps": 400, "seconds": 30.2, "model": "m"},
        "rm": {"steps": 492, "seconds": 60.0, "model": "m",
               "eval": {"before": {"accuracy": 0.5}, "after": {"accuracy": 0.8}, "n": 521}},
        "ppo": {"steps": 100, "seconds": 180.0, "model": "m"},
        "dpo": {"steps": 197, "seconds": 20.0, "model": "m"},
    },
    "policies": [
        {"policy": name, "prompts": 521, "accuracy": accuracy, "reward": 0.1, "sampled_reward": 0.2, "kl": kl,
         "length": 3.0, "cut": 0.0, "ranked": None}
        for name, accuracy, kl in (("base", 0.0, 40.0), ("sft", 0.5, -1e-6), ("ppo", 0.75, 2.0), ("dpo", 0.7, 1.0))
    ],
}  # fmt: skip


def test_the_table_has_a_line_a_measure_and_leaves_out_what_nobody_has():
    lines = {line[0]: line[1:] for line in cells(SUMMARY)}
    assert lines["right answers, greedy"] == ["0.000", "0.500", "0.750", "0.700"]
    assert lines["training, s"] == ["-", "30", "180", "20"]
    assert lines["KL from SFT, nats a response"] == ["40.000", "0.000", "2.000", "1.000"]
    assert "right above wrong, by reward" not in lines


def test_terminal_and_page_tell_the_same_numbers():
    page = markdown(SUMMARY, normalized=True)
    assert "| 521 held-out prompts | base | SFT | PPO | DPO |\n|---|---:|---:|---:|---:|" in page
    assert "| right answers, greedy | 0.000 | 0.500 | 0.750 | 0.700 |" in page
    assert "0.500 -> 0.800 of 521 held-out pairs right, 492 steps in 60 s" in page
    assert "standard deviations" in page
    assert "as it comes" in markdown(SUMMARY, normalized=False)
    out = io.StringIO()
    print_chain(Console(file=out, width=100), SUMMARY, Path("runs/chain"))
    assert "0.750" in out.getvalue()
    assert "0.500 -> 0.800 of 521" in out.getvalue()


def test_responses_of_the_report_end_as_those_of_ppo():
    told = ways(SamplingConfig(max_new_tokens=9, stop=["\n"], temperature=0.7), 4)
    assert {way: (one.n, round(one.temperature, 3)) for way, one in told.items()} == {
        "greedy": (1, 0.0), "sampled": (4, 0.7),
    }  # fmt: skip
    assert all((one.max_tokens, list(one.stop)) == (9, ["\n"]) for one in told.values())


@pytest.mark.parametrize("labelled", [True, False])
def test_the_chart_is_an_image(tmp_path, labelled):
    policies = [one | {"accuracy": one["accuracy"] if labelled else None} for one in SUMMARY["policies"]]
    draw(tmp_path / "chart.png", SUMMARY | {"policies": policies})
    assert (tmp_path / "chart.png").stat().st_size > 10_000
