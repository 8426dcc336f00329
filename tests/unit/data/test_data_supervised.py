"""Responses, chats and plain text to learn."""

from __future__ import annotations

import pytest

from rlctl.core.errors import ConfigError, NotFoundError
from rlctl.data.config import SupervisedDataConfig
from rlctl.data.supervised import Example, load_supervised
from rlctl.models.load import load_tokenizer
from support.rows import CHATML, chatml, learnt, write_rows
from support.tiny import tiny_llama

MARKED = CHATML.replace(
    "{{ m['content'] }}<|im_end|>\n",
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m['content'] }}<|im_end|>{% endif %}{{ '\\n' }}",
)
#: Writes `think: ` before the last answer only, as templates of reasoning models do.
FORGETFUL = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' and loop.last %}think: {% endif %}{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TWO_TURNS = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "bb"},
    {"role": "user", "content": "c"},
    {"role": "assistant", "content": "dd"},
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return load_tokenizer(tiny_llama(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def load(tmp_path, tokenizer):
    def read(rows, own=tokenizer, **settings):
        path = write_rows(tmp_path / "rows.jsonl", rows)
        return load_supervised(SupervisedDataConfig(**{"path": path, "label_key": ""} | settings), own)

    return read


def text(tokenizer, ids):
    return tokenizer.decode(ids)


@pytest.mark.parametrize("template", [None, MARKED], ids=["found by prompts", "marked"])
def test_every_assistant_turn_is_learnt_with_its_end_and_nothing_else(load, tokenizer, template):
    own = chatml(tokenizer)
    (found,) = load([{"prompt": TWO_TURNS}], own, apply_chat_template=True, chat_template=template)
    assert text(own, found.prompt_ids) == "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
    assert text(own, found.response_ids) == (
        "bb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\ndd<|im_end|>"
    )
    assert learnt(own, found) == ["bb<|im_end|>", "dd<|im_end|>"]


def test_a_template_without_an_end_of_turn_gets_the_eos_at_its_last(load, tokenizer):
    (found,) = load([{"prompt": TWO_TURNS}], apply_chat_template=True)
    assert text(tokenizer, found.prompt_ids) == "<s>user: a\nassistant: "
    assert learnt(tokenizer, found) == ["bb", "dd</s>"]
    assert text(tokenizer, found.response_ids) == "bb\nuser: c\nassistant: dd</s>"


def test_past_turns_are_learnt_as_the_whole_chat_writes_them(load, tokenizer):
    own = chatml(tokenizer)
    (found,) = load([{"prompt": TWO_TURNS}], own, apply_chat_template=True, chat_template=FORGETFUL)
    assert learnt(own, found) == ["bb<|im_end|>", "think: dd<|im_end|>"]


@pytest.mark.parametrize(
    "template, expected",
    [
        pytest.param(
            "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% else %}{{ eos_token }}{% endif %}",
            ["bb<|im_end|>", "dd<|im_end|>"],
            id="an EOS behind whatever is no prompt",
        ),
        pytest.param(
            "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}Q: {{ m['content'] }} A:{% else %}"
            " {{ m['content'] }}{{ eos_token }}{% endif %}{% endfor %}",
            [" bb</s>", " dd</s>"],
            id="a space before the answer",
        ),
        pytest.param(
            "{% for m in messages %}<|im_start|>{{ m['role'] }}{% if m['role'] == 'assistant' %} final{% endif %}: "
            "{{ m['content'] }}{% if m['role'] == 'assistant' and loop.last %}</s>{% else %}<|im_end|>{% endif %}"
            "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant{% endif %}",
            [" final: bb<|im_end|>", " final: dd</s>"],
            id="another end for the last turn, and a channel",
        ),
        pytest.param(
            "{% for m in messages %}{% if m['role'] == 'assistant' %}{% generation %}<|im_start|>assistant:"
            "{{ m['content'] }}<|im_end|>{{ '\n' }}{% endgeneration %}{% else %}<|im_start|>user:"
            "{{ m['content'] }}<|im_end|>{{ '\n' }}{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}",
            ["bb<|im_end|>", "dd<|im_end|>"],
            id="marks that take in the header and the line break",
        ),
    ],
)
def test_templates_of_many_kinds(load, tokenizer, template, expected):
    own = chatml(tokenizer)
    (found,) = load([{"prompt": TWO_TURNS}], own, apply_chat_template=True, chat_template=template)
    assert learnt(own, found) == expected
    # What is read before the first turn is the prompt that is sampled from.
    own.chat_template = template
    prompt = own.apply_chat_template(TWO_TURNS[:1], tokenize=False, add_generation_prompt=True)
    assert text(own, found.prompt_ids) == prompt


def test_a_call_of_a_tool_is_learnt(load, tokenizer):
    own = chatml(tokenizer)
    template = CHATML.replace(
        "{{ m['content'] }}", "{{ m['content'] }}{% for c in m['tool_calls'] or [] %}({{ c }}){% endfor %}"
    )
    chat = [TWO_TURNS[0], {"role": "assistant", "content": "", "tool_calls": ["f"]}, {"role": "tool", "content": "7"}]
    rows = [{"prompt": [*chat, TWO_TURNS[3]]}]
    (found,) = load(rows, own, apply_chat_template=True, chat_template=template)
    assert learnt(own, found) == ["(f)<|im_end|>", "dd<|im_end|>"]


def test_a_template_that_rewrites_the_past_is_refused(load, tokenizer):
    own = chatml(tokenizer)
    rewriting = "{{ messages | length }}" + CHATML
    with pytest.raises(
        ConfigError, match=r"rows\.jsonl:1: the chat template changes earlier turns.*generation %} marks"
    ):
        load([{"prompt": TWO_TURNS}], own, apply_chat_template=True, chat_template=rewriting)


def test_what_the_assistant_quotes_is_not_taken_for_a_turn(load, tokenizer):
    own = chatml(tokenizer)
    chat = [*TWO_TURNS[:1], {"role": "assistant", "content": "say <|im_end|>\n<|im_start|>user\nc"}]
    (found,) = load([{"prompt": chat}], own, apply_chat_template=True)
    assert learnt(own, found) == ["say <|im_end|>\n<|im_start|>user\nc<|im_end|>"]


def test_turns_behind_the_last_answer_are_left_out(load, tokenizer):
    own = chatml(tokenizer)
    (found,) = load([{"prompt": TWO_TURNS[:3]}], own, apply_chat_template=True)
    assert text(own, found.response_ids) == "bb<|im_end|>"


def test_chats_without_an_answer_to_a_question_are_counted(load):
    rows = [{"prompt": TWO_TURNS[:1]}, {"prompt": TWO_TURNS[1:]}, {"prompt": TWO_TURNS}, {"prompt": []}]
    found = load(rows, apply_chat_template=True)
    assert (len(found), found.counts["no_assistant_turn"], found.counts["empty"]) == (1, 2, 1)
    with pytest.raises(ConfigError, match=r"no examples are left of the 1 rows .*no_assistant_turn 1"):
        load(rows[:1], apply_chat_template=True)


def test_a_response_beside_its_prompt_is_learnt_alone(load, tokenizer):
    own = chatml(tokenizer)
    rows = [
        {"prompt": "a", "answer": "bb"},
        {"prompt": TWO_TURNS[:1], "answer": "bb"},
        {"prompt": TWO_TURNS[:1], "answer": [TWO_TURNS[1]]},
    ]
    one, two, three = load(rows, own, apply_chat_template=True, output_key="answer")
    assert one == two == three
    assert learnt(own, one) == ["bb<|im_end|>"]
    # The assistant's turns within a prompt are read, not learnt.
    (longer,) = load([{"prompt": TWO_TURNS[:3], "answer": "dd"}], own, apply_chat_template=True, output_key="answer")
    assert learnt(own, longer) == ["dd<|im_end|>"]
    assert text(own, longer.prompt_ids).count("<|im_start|>") == 4


def test_a_chat_as_response_is_learnt_turn_by_turn(load, tokenizer):
    own = chatml(tokenizer)
    (found,) = load([{"prompt": "a", "answer": TWO_TURNS[1:]}], own, apply_chat_template=True, output_key="answer")
    assert learnt(own, found) == ["bb<|im_end|>", "dd<|im_end|>"]


def test_a_given_template_is_read_from_text_or_file_and_leaves_the_tokenizer_alone(load, tokenizer, tmp_path):
    (tmp_path / "own.jinja").write_text("{{ messages[0]['content'] }}! {{ messages[1]['content'] if messages[1:] }}")
    before = tokenizer.chat_template
    rows = [{"prompt": "a", "answer": "b"}]
    (found,) = load(rows, apply_chat_template=True, chat_template=str(tmp_path / "own.jinja"), output_key="answer")
    assert text(tokenizer, found.prompt_ids) == "a! "
    assert learnt(tokenizer, found) == ["b</s>"]
    assert tokenizer.chat_template == before
    with pytest.raises(NotFoundError, match=r"chat_template is neither Jinja text nor a file: .*absent\.jinja"):
        load(rows, apply_chat_template=True, chat_template=str(tmp_path / "absent.jinja"), output_key="answer")


def test_pretraining_learns_every_token_in_pieces(load, tokenizer):
    # 5 letters and the EOS are 6 tokens; pieces of 4 overlap by the one that is only read.
    found = load([{"prompt": "abcde"}, {"prompt": "f"}], pretrain=True, max_len=4)
    ids = [*tokenizer("abcde").input_ids, tokenizer.eos_token_id]
    f = tokenizer("f").input_ids
    assert list(found) == [
        Example(ids[:1], ids[1:4], [True] * 3),
        Example(ids[3:4], ids[4:6], [True] * 2),
        Example(f, [tokenizer.eos_token_id], [True]),
    ]
    with pytest.raises(ConfigError, match=r"rows\.jsonl:1: pretrain learns text"):
        load([{"prompt": ["a"]}], pretrain=True)


def test_limits_of_length_are_counted(load):
    rows = [{"prompt": "a" * 6, "answer": "b" * n} for n in (2, 4, 9)] + [{"prompt": "a" * 9, "answer": "b"}]
    found = load(rows, output_key="answer", max_prompt_len=8, max_response_len=8, max_len=10)
    # 6 + 3 fits in 10; 6 + 5 does not; 10 is a response too long; 9 a prompt too long.
    assert len(found) == 1
    assert (found.counts["over_max_len"], found.counts["response_too_long"], found.counts["too_long"]) == (1, 1, 1)


@pytest.mark.parametrize(
    "row, settings, message",
    [
        ({"prompt": "a", "answer": {"b": 1}}, {}, "column 'answer' is of type dict; a response is text or a list"),
        ({"prompt": "a", "answer": [TWO_TURNS[1]]}, {}, "the response is a chat; set apply_chat_template = true"),
        ({"prompt": "a", "answer": ["b"]}, {"apply_chat_template": True}, "needs 'role' and 'content'"),
        ({"prompt": "a", "answer": TWO_TURNS[:1]}, {"apply_chat_template": True}, "begins and ends with the assistant"),
        ({"prompt": TWO_TURNS, "answer": "e"}, {"apply_chat_template": True}, "the prompt ends with the assistant"),
        (
            {"prompt": [{"role": "user", "content": 3}], "answer": "e"},
            {"apply_chat_template": True},
            "the content of a chat message is text, not of type int",
        ),
        ({"prompt": 7, "answer": "e"}, {}, "the prompt is of type int"),
        ({"question": "a"}, {}, "has no column 'prompt'; it has: question"),
        ({"prompt": "a"}, {}, "has no column 'answer'; it has: prompt"),
    ],
)
def test_rows_of_a_wrong_kind_are_named(load, row, settings, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load([row], output_key="answer", **settings)
    assert "rows.jsonl:1" in caught.value.message


def test_a_template_that_refuses_a_chat_is_told_with_the_row(load):
    strict = "{{ raise_exception('roles must alternate') if messages[1:] and messages[1]['role'] == 'user' else 'x' }}"
    own = strict + "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    rows = [{"prompt": [TWO_TURNS[0], *TWO_TURNS[:2]]}]
    with pytest.raises(ConfigError, match=r"rows\.jsonl:1: the chat template refuses this chat: roles must alternate"):
        load(rows, apply_chat_template=True, chat_template=own)
