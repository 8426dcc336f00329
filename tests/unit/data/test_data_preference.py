"""Pairs of responses."""

from __future__ import annotations

import pytest

from rlctl.core.errors import ConfigError
from rlctl.data.config import PreferenceDataConfig
from rlctl.data.preference import Pair, load_preferences
from rlctl.models.load import load_tokenizer
from support.rows import chatml, write_rows
from support.tiny import tiny_llama

ASKED = {"role": "user", "content": "a"}
GOOD = {"role": "assistant", "content": "good"}
BAD = {"role": "assistant", "content": "bad"}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return load_tokenizer(tiny_llama(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def load(tmp_path, tokenizer):
    def read(rows, own=tokenizer, **settings):
        path = write_rows(tmp_path / "rows.jsonl", rows)
        return load_preferences(PreferenceDataConfig(path=path, **settings), own)

    return read


def texts(tokenizer, pair: Pair) -> tuple[str, str, str]:
    return tuple(tokenizer.decode(ids) for ids in (pair.prompt_ids, pair.chosen_ids, pair.rejected_ids))


def test_texts_end_with_one_eos(load, tokenizer):
    (pair,) = load([{"prompt": "a", "chosen": "good", "rejected": "bad</s>"}], input_template="Q: {} A:")
    assert texts(tokenizer, pair) == ("Q: a A:", "good</s>", "bad</s>")
    assert pair.margin == 0.0


def test_chats_come_in_every_form_alike(load, tokenizer):
    own = chatml(tokenizer)
    expected = ("<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n", "good<|im_end|>", "bad<|im_end|>")
    beside = load(
        [
            {"prompt": "a", "chosen": "good", "rejected": "bad"},
            {"prompt": [ASKED], "chosen": [GOOD], "rejected": [BAD]},
            # The responses repeat the prompt, as text or as a chat.
            {"prompt": "a", "chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]},
            {"prompt": [ASKED], "chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]},
        ],
        own,
        apply_chat_template=True,
    )
    whole = load([{"chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]}], own, prompt_key="", apply_chat_template=True)
    assert [texts(own, pair) for pair in (*beside, *whole)] == [expected] * 5


@pytest.mark.parametrize(
    "chosen, rejected, expected",
    [
        ("Q: a A: yes", "Q: a A: no", ("Q: a A:", " yes</s>", " no</s>")),
        # They part within a word: the word is the response's.
        ("Q: a A: nothing", "Q: a A: none", ("Q: a A:", " nothing</s>", " none</s>")),
        ("Q: a\nyes", "Q: a\nno", ("Q: a\n", "yes</s>", "no</s>")),
        ("Q: a A: yes", "Q: a A: yes it is", ("Q: a A:", " yes</s>", " yes it is</s>")),
    ],
)
def test_whole_texts_share_their_beginning(load, tokenizer, chosen, rejected, expected):
    (pair,) = load([{"chosen": chosen, "rejected": rejected}], prompt_key="")
    assert texts(tokenizer, pair) == expected


def test_margins_are_numbers(load):
    rows = [{"prompt": "a", "chosen": "b", "rejected": "c", "gap": gap} for gap in (1, 0.5, "2.5")]
    assert [pair.margin for pair in load(rows, margin_key="gap")] == [1.0, 0.5, 2.5]
    for wrong in (True, None, "much", [1]):
        with pytest.raises(ConfigError, match=r"rows\.jsonl:1: the margin in column 'gap' is a number"):
            load([{"prompt": "a", "chosen": "b", "rejected": "c", "gap": wrong}], margin_key="gap")


def test_pairs_that_teach_nothing_are_counted(load):
    chat = {"apply_chat_template": True}
    rows = [
        {"prompt": "a", "chosen": "b", "rejected": "c"},
        {"prompt": "a", "chosen": "b", "rejected": "b"},
        {"prompt": "a", "chosen": "", "rejected": "b"},
        {"prompt": "a", "chosen": "b", "rejected": None},
        {"prompt": "", "chosen": "b", "rejected": "c"},
        {"prompt": "a", "chosen": "b", "rejected": "c" * 9},
        {"prompt": "a" * 9, "chosen": "b", "rejected": "c"},
        {"prompt": "aaaa", "chosen": "bbbb", "rejected": "c"},
    ]
    counts = load(rows, max_prompt_len=8, max_response_len=8, max_len=8).counts
    taken = ("kept", "same", "empty_response", "empty", "response_too_long", "too_long", "over_max_len")
    assert [counts[name] for name in taken] == [1, 1, 2, 1, 1, 1, 1]
    other = {"role": "user", "content": "b"}
    parting = [
        {"chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]},
        {"chosen": [ASKED, GOOD, other, GOOD], "rejected": [ASKED, BAD, other, BAD]},
        {"chosen": [ASKED, GOOD, other], "rejected": [ASKED, GOOD, ASKED]},
    ]
    counts = load(parting, prompt_key="", **chat).counts
    assert (counts["kept"], counts["not_one_turn"]) == (1, 2)


@pytest.mark.parametrize(
    "row, settings, message",
    [
        ({"prompt": "a", "rejected": "c"}, {}, "no column 'chosen'; it has: prompt, rejected. Set chosen_key"),
        ({"prompt": "a", "chosen": "c"}, {}, "no column 'rejected'; .* Set rejected_key"),
        ({"chosen": "b", "rejected": "c"}, {}, "no column 'prompt'; .* Set prompt_key"),
        ({"prompt": "a", "chosen": {"b": 1}, "rejected": "c"}, {}, "column 'chosen' is of type dict"),
        ({"prompt": "a", "chosen": [GOOD], "rejected": "c"}, {}, "one response is text and the other a chat"),
        ({"prompt": "a", "chosen": [GOOD], "rejected": [BAD]}, {}, "set apply_chat_template = true"),
        ({"chosen": "yes", "rejected": "no"}, {"prompt_key": ""}, "share no prompt: set prompt_key"),
        ({"chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]}, {"prompt_key": ""}, "set apply_chat_template = true"),
        (
            {"chosen": "a b", "rejected": "a c"},
            {"prompt_key": "", "apply_chat_template": True},
            "set prompt_key, write chats, or leave out",
        ),
    ],
)
def test_rows_of_a_wrong_kind_are_named(load, row, settings, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load([row], **settings)
    assert "rows.jsonl:1" in caught.value.message
