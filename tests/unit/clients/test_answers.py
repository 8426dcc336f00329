"""Answers in a file: what counts after a kill, and that nothing is asked for twice."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from rlctl.clients.answers import AnswerFile, answer
from rlctl.core.errors import ConfigError, UnavailableError

WANTED = {"a": 1, "b": 2, "c": 1}


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def run(file: AnswerFile, asked: list[str], fails: str = "", at_once: int = 2) -> list[dict]:
    async def ask(key: str) -> list[dict]:
        asked.append(key)
        await asyncio.sleep(0.01 if key == "a" else 0)
        if key == fails:
            raise UnavailableError("gone")
        return [{"text": f"{key}{sample}"} for sample in range(WANTED[key])]

    return asyncio.run(answer(file, ask, at_once=at_once))


def test_the_finished_file_has_the_order_of_the_questions(tmp_path):
    path, asked = tmp_path / "answers.jsonl", []
    rows = run(AnswerFile(path, WANTED), asked)
    assert [row["text"] for row in rows] == ["a0", "b0", "b1", "c0"]
    assert lines(path) == rows
    assert sorted(asked) == ["a", "b", "c"]


def test_what_is_in_the_file_is_not_asked_for_again(tmp_path):
    path, asked = tmp_path / "answers.jsonl", []
    with pytest.raises(UnavailableError):
        run(AnswerFile(path, WANTED), asked, fails="b", at_once=1)
    assert [row["request"] for row in lines(path)] == ["a"]
    again: list[str] = []
    assert len(run(AnswerFile(path, WANTED), again)) == 4
    assert again == ["b", "c"]
    done = AnswerFile(path, WANTED)
    assert (done.questions, done.missing) == (3, [])


@pytest.mark.parametrize("cut", range(0, 160, 7))
def test_a_file_cut_anywhere_keeps_whole_answers_alone(tmp_path, cut):
    path = tmp_path / "answers.jsonl"
    run(AnswerFile(path, WANTED), [])
    whole = lines(path)
    path.write_bytes(path.read_bytes()[:cut])
    file = AnswerFile(path, WANTED)
    assert all(row in whole for row in lines(path))
    counts = {key: sum(row["request"] == key for row in lines(path)) for key in WANTED}
    assert all(count in (0, WANTED[key]) for key, count in counts.items())
    assert file.missing == [key for key, count in counts.items() if not count]
    assert run(file, []) == whole


def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text('{"request": "a", "text": "x"}\n{"request": "z", "text": "other settings"}\n')
    with pytest.raises(ConfigError, match=r"answers.jsonl:2 is no answer to a prompt of this job"):
        AnswerFile(path, WANTED)
    assert "other settings" in path.read_text()
    path.write_text("notes of mine\n")
    with pytest.raises(ConfigError, match=r"answers.jsonl:1 is no answer"):
        AnswerFile(path, WANTED)
