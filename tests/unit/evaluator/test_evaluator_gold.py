"""Which gold questions a prompt asks, and gold in every file form."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlctl.core.errors import ConfigError
from rlctl.evaluator.gold import GoldIndex, GoldItem, load_gold
from rlctl.evaluator.records import BadRow

ITEMS = [
    GoldItem(("小明有３个苹果，吃了1个，还剩几个？", "Ming has 3 apples and eats 1. How many are left?"), "2"),
    GoldItem(("一本书10页，每天读2页，几天读完？", "A book has 10 pages, 2 a day. How many days?"), "5"),
    GoldItem(("一本书10页，每天读2页，几天读完？如果周日不读呢？",), "6"),
]


def test_questions_are_found_in_order_of_position() -> None:
    match = GoldIndex(ITEMS).match(
        "先看：一本书10页，每天读2页，几天读完？ 再看：小明有3个苹果，\n 吃了1个，还剩几个？"
    )
    assert (match.status, match.answer_a, match.answer_b) == ("ok", "5", "2")
    assert match.question_b == ITEMS[0].questions[0]


def test_width_and_white_space_do_not_matter() -> None:
    match = GoldIndex(ITEMS).match("小明有 3 个苹果,吃了１个,还剩几个? 一本书 10 页，每天读 2 页，几天读完？")
    assert (match.status, match.answer_a, match.answer_b) == ("ok", "2", "5")


def test_the_longer_question_wins_over_one_inside_it() -> None:
    match = GoldIndex(ITEMS).match(ITEMS[2].questions[0] + ITEMS[0].questions[0])
    assert (match.answer_a, match.answer_b) == ("6", "2")


def test_a_prompt_in_both_languages_is_one_pair() -> None:
    prompt = " / ".join((*ITEMS[0].questions, *ITEMS[1].questions))
    match = GoldIndex(ITEMS).match(prompt)
    assert (match.status, match.answer_a, match.answer_b) == ("ok", "2", "5")


def test_the_same_question_twice_is_a_pair() -> None:
    question = ITEMS[1].questions[0]
    assert GoldIndex(ITEMS).match(f"A：{question} B：{question}").answer_b == "5"


@pytest.mark.parametrize("prompt, status", [
    ("今天天气如何？", "gold_unmatched"),
    (ITEMS[0].questions[0], "gold_unmatched"),
    (ITEMS[0].questions[0] + ITEMS[1].questions[0] + ITEMS[2].questions[0], "gold_ambiguous"),
    ("", "gold_unmatched"),
])  # fmt: skip
def test_what_is_not_a_pair_is_told(prompt: str, status: str) -> None:
    match = GoldIndex(ITEMS).match(prompt)
    assert (match.status, match.answer_a) == (status, None)


def test_a_question_with_two_answers_is_ambiguous() -> None:
    items = [*ITEMS[:2], GoldItem((ITEMS[0].questions[0],), "3")]
    assert GoldIndex(items).match(ITEMS[0].questions[0] + ITEMS[1].questions[0]).status == "gold_ambiguous"


def test_explicit_answers_win() -> None:
    match = GoldIndex(ITEMS).match(ITEMS[0].questions[0] + ITEMS[1].questions[0], "7", "8")
    assert (match.status, match.answer_a, match.answer_b) == ("explicit", "7", "8")


ROWS = [
    {"question_zh": "问一？问一？", "answer_only": "1", "split": "train"},
    {"question": "Question two?", "answer": "long work\n#### 1,234", "split": "test"},
]


@pytest.mark.parametrize("form", ["jsonl", "json", "lines.json", "parquet", "bom.jsonl"])
def test_gold_in_every_form(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"gold.{form}"
    if form == "parquet":
        names = ("question_zh", "question", "answer_only", "answer", "split")
        pq.write_table(pa.table({name: [row.get(name) for row in ROWS] for name in names}), path)
    elif form == "json":
        path.write_text(json.dumps(ROWS), encoding="utf-8")
    else:
        mark = "\ufeff" if "bom" in form else ""
        path.write_text(mark + "\r\n".join(json.dumps(row) for row in ROWS), encoding="utf-8")
    assert [item.answer for item in load_gold(str(path))] == ["1", "1,234"]
    assert [item.answer for item in load_gold(str(path), "test")] == ["1,234"]


@pytest.mark.parametrize("form", ["jsonl", "json"])
def test_bad_gold_rows_are_named_and_the_rest_is_used(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"gold.{form}"
    rows = [ROWS[0], {"question": "no answer"}, [1], ROWS[1]]
    text = json.dumps(rows) if form == "json" else "".join(json.dumps(row) + "\n" for row in rows) + "{broken\n"
    path.write_text(text, encoding="utf-8")
    bad: list[BadRow] = []
    assert [item.answer for item in load_gold(str(path), bad=bad)] == ["1", "1,234"]
    assert [(row.file, row.line) for row in bad[:2]] == [(path.as_posix(), 2), (path.as_posix(), 3)]
    assert bad[0].reason == "a gold row without question or answer"
    assert [row.line for row in bad[2:]] == ([] if form == "json" else [5])


def test_gold_that_cannot_be_had_says_the_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "gold.jsonl"
    path.write_text('{"a": 1}\n')
    with pytest.raises(ConfigError, match="holds no gold row; it needs a question"):
        load_gold(str(path))
    path.write_text("{broken\n")
    with pytest.raises(ConfigError, match=r"gold\.jsonl:1: not JSON"):
        load_gold(str(path))
    with pytest.raises(ConfigError, match="there is no gold file"):
        load_gold(str(tmp_path / "none.jsonl"))
    with pytest.raises(ConfigError, match="there is no gold file"):
        # Not asked of the hub, although it has the form of a hub name.
        load_gold("data/none.jsonl")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError, match="--gold FILE"):
        load_gold("meta-math/GSM8K_zh_absent")
