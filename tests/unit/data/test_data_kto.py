"""Responses judged one by one."""

from __future__ import annotations

import pytest

from rlctl.core.errors import ConfigError
from rlctl.data.config import KTODataConfig
from rlctl.data.kto import load_kto
from rlctl.models.load import load_tokenizer
from support.rows import chatml, write_rows
from support.tiny import tiny_llama


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return load_tokenizer(tiny_llama(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def load(tmp_path, tokenizer):
    def read(rows, own=tokenizer, **settings):
        return load_kto(KTODataConfig(path=write_rows(tmp_path / "rows.jsonl", rows), **settings), own)

    return read


def test_judgements_are_read_as_data_sets_write_them(load, tokenizer):
    labels = [True, False, 1, 0, 1.0, 0.0, "true", "False", "1", "0"]
    found = load([{"prompt": "a", "completion": "b", "label": label} for label in labels])
    assert [each.desirable for each in found] == [True, False] * 5
    assert (found.counts["kept"], found.counts["desirable"]) == (10, 5)
    assert tokenizer.decode(found[0].prompt_ids) == "a"
    assert tokenizer.decode(found[0].response_ids) == "b</s>"


def test_a_chat_may_hold_the_response_as_its_last_turn(load, tokenizer):
    own = chatml(tokenizer)
    asked, said = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    rows = [{"prompt": [asked, said, asked, said], "label": 1}, {"prompt": [asked, said, asked], "label": 0}]
    found = load(rows, own, output_key="", apply_chat_template=True)
    assert [own.decode(each.response_ids) for each in found] == ["b<|im_end|>"]
    assert own.decode(found[0].prompt_ids).count("<|im_start|>") == 4
    assert found.counts["no_assistant_turn"] == 1
    beside = load([{"prompt": [asked, said, asked], "completion": [said], "label": 1}], own, apply_chat_template=True)
    assert beside[0] == found[0]


@pytest.mark.parametrize(
    "row, settings, message",
    [
        ({"prompt": "a", "completion": "b", "label": 2}, {}, "judgement in column 'label' is true or false .* not 2"),
        ({"prompt": "a", "completion": "b", "label": None}, {}, "not None"),
        ({"prompt": "a", "completion": "b", "label": "good"}, {}, "not 'good'"),
        ({"prompt": "a", "completion": "b"}, {}, "no column 'label'; .* Set label_key"),
        ({"prompt": "a", "label": 1}, {}, "no column 'completion'; .* Set output_key"),
        ({"prompt": "a", "label": 1}, {"output_key": ""}, "set output_key to the column with the response"),
        (
            {"prompt": "a", "completion": [{"role": "assistant", "content": "b"}] * 2, "label": 1},
            {"apply_chat_template": True},
            "is one assistant turn",
        ),
    ],
)
def test_rows_of_a_wrong_kind_are_named(load, row, settings, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load([row], **settings)
    assert "rows.jsonl:1" in caught.value.message
