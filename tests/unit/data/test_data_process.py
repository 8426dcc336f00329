"""Judged steps of reasoning."""

from __future__ import annotations

import pytest

from rlctl.core.errors import ConfigError
from rlctl.data.config import ProcessDataConfig
from rlctl.data.process import load_process, reward_tokens
from rlctl.models.arithmetic import build_tokenizer
from rlctl.models.load import load_tokenizer
from support.rows import write_rows
from support.tiny import tiny_llama


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """Characters are tokens."""
    return load_tokenizer(tiny_llama(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def load(tmp_path, tokenizer):
    def read(rows, own=tokenizer, **settings):
        path = write_rows(tmp_path / "rows.jsonl", rows)
        return load_process(ProcessDataConfig(**{"path": path, "placeholder": "!"} | settings), own)

    return read


def test_labels_stand_at_the_placeholders(load, tokenizer):
    rows = [
        {"input": "ab!c!", "label": ["+", "-"]},
        {"input": "ab!c!", "label": [True, False]},
        {"input": "ab!c!", "label": "ab+c-"},
        {"input": "ab!c!", "label": [0.75, 0.25]},
    ]
    found = load(rows)
    assert {tuple(each.input_ids) for each in found} == {tuple(tokenizer("ab!c!").input_ids)}
    assert [each.positions for each in found] == [[2, 4]] * 4
    assert [each.labels for each in found] == [[1.0, 0.0]] * 3 + [[0.75, 0.25]]


def test_a_bos_moves_the_positions(load):
    own = build_tokenizer()
    own.add_special_tokens({"additional_special_tokens": ["<step>"]})
    (found,) = load([{"input": "1<step>2<step>", "label": ["-", "+"]}], own, placeholder="<step>")
    assert found.input_ids[0] == own.bos_token_id
    assert [found.input_ids[place] for place in found.positions] == [own.convert_tokens_to_ids("<step>")] * 2
    assert found.labels == [0.0, 1.0]


def test_labels_are_cut_together_with_the_input(load):
    rows = [{"input": "ab!c!d!", "label": ["+", "-", "+"]}, {"input": "abcdef!", "label": ["+"]}]
    found = load(rows, max_len=5)
    assert [(len(each.input_ids), each.positions, each.labels) for each in found] == [(5, [2, 4], [1.0, 0.0])]
    assert {name: found.counts[name] for name in ("truncated", "cut_steps", "no_steps", "kept")} == {
        "truncated": 2, "cut_steps": 2, "no_steps": 1, "kept": 1,
    }  # fmt: skip
    dropped = load([*rows, {"input": "a!", "label": [1]}], max_len=5, too_long="drop")
    assert (len(dropped), dropped.counts["too_long"]) == (1, 2)


def test_reward_tokens_can_be_others(load, tokenizer):
    (found,) = load([{"input": "a!b!", "label": ["y", "n"]}], positive="y", negative="n")
    assert found.labels == [1.0, 0.0]
    config = ProcessDataConfig(path="x", positive="y", negative="n")
    assert reward_tokens(config, tokenizer) == tuple(tokenizer("yn").input_ids)


@pytest.mark.parametrize(
    "row, settings, message",
    [
        ({"input": "a!b!", "label": ["+"]}, {}, "2 steps and 1 labels in column 'label'"),
        ({"input": "a!", "label": ["?"]}, {}, "a label is .* not '\\?'"),
        ({"input": "a!", "label": [1.5]}, {}, "a probability, not 1.5"),
        ({"input": "a!", "label": [None]}, {}, "not None"),
        ({"input": "a!", "label": "b+"}, {}, "is not the input with '\\+' or '-' for each '!'"),
        ({"input": "a!", "label": 1}, {}, "column 'label' is of type int; write a list"),
        ({"input": ["a!"], "label": ["+"]}, {}, "column 'input' is a chat; write question and steps as text"),
        ({"input": "a!"}, {}, "no column 'label'; it has: input. Set label_key"),
        ({"text": "a!"}, {}, "no column 'input'; it has: text. Set input_key"),
    ],
)
def test_rows_of_a_wrong_kind_are_named(load, row, settings, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load([row], **settings)
    assert "rows.jsonl:1" in caught.value.message


def test_each_special_text_must_be_one_token(load):
    rows = [{"input": "a!", "label": ["+"]}]
    with pytest.raises(ConfigError, match="placeholder: 'ки' is 2 tokens of this tokenizer; choose"):
        load(rows, placeholder="ки")
    with pytest.raises(ConfigError, match="positive: 'yes' is 3 tokens"):
        load(rows, positive="yes")
    with pytest.raises(ConfigError, match="negative: '%' is unknown to this tokenizer"):
        load(rows, negative="%")


def test_a_placeholder_that_the_tokenizer_joins_with_its_neighbour_is_told(load):
    # "2 =" has the token " =", so that a placeholder "=" is found only where no space stands before it.
    with pytest.raises(ConfigError, match=r"rows\.jsonl:1: the tokenizer joins the placeholder '=' .*\(1 of 2 are"):
        load([{"input": "1= 2 =", "label": ["+", "-"]}], build_tokenizer(), placeholder="=")


def test_rows_without_steps_are_counted(load):
    found = load([{"input": "a!", "label": ["+"]}, {"input": "a", "label": []}, {"input": "", "label": []}])
    assert (len(found), found.counts["no_steps"], found.counts["empty"]) == (1, 1, 1)
