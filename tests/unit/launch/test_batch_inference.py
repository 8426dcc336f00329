"""From the rows of a file to what is asked; the asking itself is tested end to end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rlctl.core.config import validate
from rlctl.core.errors import ConfigError, FailedPreconditionError
from rlctl.core.lock import only_writer
from rlctl.data.config import DataConfig
from rlctl.launch.batch_inference import BatchJob, generate_file, read_questions
from rlctl.v1.generation_pb2 import SamplingParams

CHAT = [{"role": "user", "content": "2+2?"}]


def job(folder: Path, rows: list[dict[str, Any]], **more: Any) -> BatchJob:
    path = folder / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"path": str(path), "label_key": ""} | more.pop("data", {})
    sampling = more.pop("sampling", SamplingParams(n=2, seed=7))
    return BatchJob(validate(DataConfig, settings), folder / "out.jsonl", "output", sampling, **more)


def test_a_question_a_row_with_its_columns_and_a_seed_of_its_own(tmp_path):
    rows = [{"prompt": "1+1=", "id": 4}, {"prompt": "1+1=", "id": 5}, {"prompt": " ", "id": 6}]
    questions, counts = read_questions(job(tmp_path, rows, data={"input_template": "Q {}"}))
    assert [question.request.text for question in questions] == ["Q 1+1=", "Q 1+1="]
    assert [question.columns["id"] for question in questions] == [4, 5]
    assert [question.request.sampling.seed for question in questions] == [7, 9]
    assert len({question.key for question in questions}) == 2
    assert (counts["rows"], counts["empty"]) == (3, 1)


def test_chats_go_through_the_services_template(tmp_path):
    data = {"apply_chat_template": True, "system_prompt": "Be short."}
    questions, _ = read_questions(job(tmp_path, [{"prompt": CHAT}, {"prompt": "3+3?"}], data=data))
    told = [[(turn.role, turn.content) for turn in question.request.chat.messages] for question in questions]
    assert told == [
        [("system", "Be short."), ("user", "2+2?")],
        [("system", "Be short."), ("user", "3+3?")],
    ]


def test_a_target_score_stands_behind_each_prompt(tmp_path):
    questions, _ = read_questions(job(tmp_path, [{"prompt": "1+1="}], target_score=1.25))
    assert questions[0].request.text == "1+1= <rm_score>: 1.25"


def test_other_models_and_sampling_are_other_questions(tmp_path):
    row = [{"prompt": "1+1="}]
    jobs = [job(tmp_path, row), job(tmp_path, row, model="m"), job(tmp_path, row, sampling=SamplingParams(n=2, seed=8))]
    assert len({read_questions(each)[0][0].key for each in jobs}) == 3
    assert read_questions(jobs[0])[0][0].key == read_questions(job(tmp_path, row))[0][0].key


def test_columns_that_the_answers_have_too_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"in.jsonl:1 has a column 'output'.*another --output-key"):
        read_questions(job(tmp_path, [{"prompt": "1+1=", "output": "2"}]))
    with pytest.raises(ConfigError, match="it has: question"):
        read_questions(job(tmp_path, [{"question": "1+1="}]))


def test_a_file_that_another_writes_is_not_touched(tmp_path):
    work = job(tmp_path, [{"prompt": "1+1="}])
    work.output.write_text('{"half": ')
    with only_writer(work.output, ""), pytest.raises(FailedPreconditionError, match=rf"process {os.getpid()} on"):
        generate_file(work, lambda stack: pytest.fail("it asked"), print)
    assert work.output.read_text() == '{"half": '


def test_a_finished_file_needs_no_service(tmp_path):
    work = job(tmp_path, [{"prompt": "1+1="}, {"prompt": "2+2="}], sampling=SamplingParams(n=1))
    questions, _ = read_questions(work)
    rows = [{"request": each.key, "sample": 0, "output": "2", "finish": "stop"} for each in questions]
    rows[1] |= {"output": "", "finish": "", "error": "too long"}
    work.output.write_text("".join(json.dumps(row) + "\n" for row in reversed(rows)))
    said: list[str] = []

    def serve(stack):
        raise AssertionError("nothing is missing")

    end = generate_file(work, serve, said.append)
    assert (end.prompts, end.asked, end.refused) == (2, 0, 1)
    assert [json.loads(line)["request"] for line in work.output.read_text().splitlines()] == [
        question.key for question in questions
    ]
    assert said == ["2 prompts of 2 rows"]
