"""From rows to token ids: templates, chats, special tokens, filters."""

from __future__ import annotations

import json

import pytest
from transformers import AutoTokenizer

from rlctl.core.errors import ConfigError
from rlctl.data.config import PromptDataConfig, SupervisedDataConfig
from rlctl.data.prompts import load_prompts
from rlctl.data.supervised import load_supervised
from rlctl.data.template import tokenizer_to_save
from rlctl.models.load import load_tokenizer
from support.tiny import tiny_llama


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """Characters are tokens; writes no BOS by itself; its chat template writes `<s>`."""
    return load_tokenizer(tiny_llama(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def data(tmp_path):
    def write(rows, cls=PromptDataConfig, **settings):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return cls(path=str(path), **settings)

    return write


def test_a_row_becomes_a_prompt(data, tokenizer):
    rows = [{"q": "1+1=", "a": 2, "source": "book", "page": None}]
    prompts = load_prompts(data(rows, input_key="q", label_key="a", input_template="Q: {} A: "), tokenizer)
    (prompt,) = prompts
    assert prompt.text == "Q: 1+1= A: "
    assert prompt.prompt_ids == tokenizer("Q: 1+1= A: ").input_ids
    assert prompt.label == "2"
    assert json.loads(prompt.metadata_json) == {"source": "book", "page": None}


def test_values_that_json_does_not_know_are_carried_as_text(tmp_path, tokenizer):
    import datetime

    import pyarrow
    import pyarrow.parquet

    rows = [{"prompt": "x", "day": datetime.date(2026, 1, 2), "pair": [1, 2]}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    (prompt,) = load_prompts(PromptDataConfig(path=str(tmp_path / "rows.parquet"), label_key=""), tokenizer)
    assert prompt.metadata == {"day": "2026-01-02", "pair": [1, 2]} == json.loads(prompt.metadata_json)


def test_a_template_keeps_braces_of_the_prompt(data, tokenizer):
    prompts = load_prompts(data([{"prompt": "{x} {}", "label": ""}], input_template="f({})"), tokenizer)
    assert prompts[0].text == "f({x} {})"


def test_no_label_is_needed_when_the_key_is_empty(data, tokenizer):
    assert load_prompts(data([{"prompt": "x"}], label_key=""), tokenizer)[0].label == ""


@pytest.mark.parametrize("missing, setting", [("prompt", "input_key"), ("label", "label_key")])
def test_a_missing_column_is_named_with_file_line_and_the_columns_there_are(data, tokenizer, missing, setting):
    rows = [{"prompt": "x", "label": "1"}, {"question": "y", "prompt": "x", "label": "1"}]
    del rows[1][missing]
    with pytest.raises(ConfigError, match=rf"rows\.jsonl:2 has no column '{missing}'; it has: question.*{setting}"):
        load_prompts(data(rows), tokenizer)


def test_text_and_chats_go_through_the_chat_template_with_one_bos(data, tokenizer):
    rows = [
        {"prompt": "1+1?", "label": "2"},
        {"prompt": [{"role": "user", "content": "1+1?"}], "label": "2"},
    ]
    prompts = load_prompts(data(rows, apply_chat_template=True, system_prompt="Add."), tokenizer)
    assert prompts[0].text == "system: Add.\nuser: 1+1?\nassistant: "
    assert prompts[1].prompt_ids == prompts[0].prompt_ids
    assert prompts[0].prompt_ids.count(tokenizer.bos_token_id) == 1
    assert prompts[0].prompt_ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(prompts[0].prompt_ids[1:]) == prompts[0].text


def test_a_model_is_saved_with_the_chat_template_it_was_trained_with(tokenizer, tmp_path, caplog):
    """That of the first data set that has one; plain text leaves the tokenizer's own."""
    file = tmp_path / "template.jinja"
    file.write_text("{{ messages[0]['content'] }}?")
    plain = SupervisedDataConfig(path="x")
    given = PromptDataConfig(path="y", apply_chat_template=True, chat_template=str(file))
    own = PromptDataConfig(path="z", apply_chat_template=True)
    own_template = tokenizer.chat_template
    assert tokenizer_to_save([plain], tokenizer) is tokenizer
    tokenizer_to_save([plain, given], tokenizer).save_pretrained(tmp_path / "saved")
    saved = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert saved.chat_template == "{{ messages[0]['content'] }}?"
    assert saved.get_vocab() == tokenizer.get_vocab()
    assert tokenizer_to_save(PromptDataConfig(mixture=[own]).parts, tokenizer).chat_template == own_template
    assert tokenizer.chat_template == own_template
    assert not caplog.records
    assert tokenizer_to_save([own, given], tokenizer).chat_template == own_template
    assert "several chat templates" in caplog.text


def test_plain_text_gets_what_the_tokenizer_writes_once(data):
    from rlctl.models.arithmetic import build_tokenizer

    tokenizer = build_tokenizer()
    rows = [{"prompt": "1 + 2 =", "label": "3"}, {"prompt": "<s>1 + 2 =", "label": "3"}]
    prompts = load_prompts(data(rows), tokenizer)
    assert prompts[0].prompt_ids == prompts[1].prompt_ids == tokenizer("1 + 2 =").input_ids
    assert prompts[0].prompt_ids.count(tokenizer.bos_token_id) == 1


def test_an_eos_that_a_tokenizer_appends_is_taken_off(data):
    from tokenizers import processors

    from rlctl.models.arithmetic import build_tokenizer

    tokenizer = build_tokenizer()
    bare = tokenizer("1 + 2 =").input_ids
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    assert tokenizer("1 + 2 =").input_ids == [*bare, 2]
    assert load_prompts(data([{"prompt": "1 + 2 =", "label": ""}]), tokenizer)[0].prompt_ids == bare


@pytest.mark.parametrize(
    "prompt, settings, message",
    [
        ([{"role": "user", "content": "x"}], {}, "set apply_chat_template = true"),
        ([{"role": "user", "content": "x"}], {"input_template": "{}!"}, "input_template is for text"),
        ([{"role": "user"}], {"apply_chat_template": True}, "needs 'role' and 'content'"),
        (["x"], {"apply_chat_template": True}, "needs 'role' and 'content'"),
        ([{"role": "assistant", "content": "x"}], {"apply_chat_template": True}, "ends with the assistant"),
        (7, {"apply_chat_template": True}, "not of type int"),
    ],
)
def test_prompts_of_a_wrong_kind_are_named(data, tokenizer, prompt, settings, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load_prompts(data([{"prompt": prompt, "label": ""}], **settings), tokenizer)
    assert "rows.jsonl:1" in caught.value.message


def test_a_chat_template_that_is_not_there_is_said_at_once(data, tokenizer):
    import copy

    bare = copy.copy(tokenizer)
    bare.chat_template = None
    with pytest.raises(ConfigError, match="no chat template"):
        load_prompts(data([{"prompt": "x", "label": ""}], apply_chat_template=True), bare)


def test_every_filter_counts_what_it_took(data, tokenizer):
    texts = ["keep", "keep", "", "  ", "no", "this is too long", "ok keep", "keep 3", "keep 4"]
    rows = [{"prompt": text, "label": ""} for text in texts]
    prompts = load_prompts(data(rows, include="keep|long", unique=True, max_prompt_len=8, max_samples=2), tokenizer)
    assert [prompt.text for prompt in prompts] == ["keep", "ok keep"]
    assert prompts.counts == {
        "rows": 9, "excluded": 1, "repeated": 1, "other_split": 0, "empty": 2, "too_long": 1, "truncated": 0,
        "beyond_max_samples": 2, "kept": 2,
    }  # fmt: skip


def test_long_prompts_lose_their_beginning_when_asked(data, tokenizer):
    settings = {"max_prompt_len": 4, "too_long": "truncate_left"}
    (plain,) = load_prompts(data([{"prompt": "abcdefgh", "label": ""}], **settings), tokenizer)
    assert tokenizer.decode(plain.prompt_ids) == "efgh"
    assert plain.text == "abcdefgh"
    chats = load_prompts(data([{"prompt": "abc", "label": ""}], apply_chat_template=True, **settings), tokenizer)
    assert chats.counts["truncated"] == 1
    # A BOS stays in front.
    assert chats[0].prompt_ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(chats[0].prompt_ids[1:]) == "t: "


def test_no_prompt_left_is_an_error_that_tells_the_filters(data, tokenizer):
    with pytest.raises(ConfigError, match=r"no prompts are left of the 2 rows .*\(excluded 2\): loosen"):
        load_prompts(data([{"prompt": "x", "label": ""}, {"prompt": "y", "label": ""}], include="z"), tokenizer)
    with pytest.raises(ConfigError, match=r"no prompts are left of the 0 rows .*: the data set is empty"):
        load_prompts(data([]), tokenizer)


def test_an_own_split_reads_the_data_sets_train_part(tmp_path, tokenizer):
    (tmp_path / "train.jsonl").write_text("".join(f'{{"prompt": "p {n}"}}\n' for n in range(100)))
    (tmp_path / "test.jsonl").write_text('{"prompt": "never"}\n')
    settings = {"path": str(tmp_path), "label_key": "", "splits": {"train": 0.8, "dev": 0.2}}
    train, dev = (load_prompts(PromptDataConfig(**settings, split=split), tokenizer) for split in ("train", "dev"))
    assert len(train) + len(dev) == 100
    assert not {prompt.text for prompt in train} & {prompt.text for prompt in dev}


def test_responses_end_with_eos_and_have_no_bos(data, tokenizer):
    rows = [{"prompt": "1+1=", "answer": "2", "long": "x" * 9}, {"prompt": "2+2=", "answer": "", "long": "y"}]
    settings = {"cls": SupervisedDataConfig, "label_key": ""}
    found = load_supervised(data(rows, output_key="answer", **settings), tokenizer)
    assert len(found) == 1
    assert found[0].prompt_ids == tokenizer("1+1=").input_ids
    assert found[0].response_ids == [*tokenizer("2").input_ids, tokenizer.eos_token_id]
    assert found.counts["empty_response"] == 1
    limited = load_supervised(data(rows, output_key="long", max_response_len=9, **settings), tokenizer)
    assert [example.response_ids[:-1] for example in limited] == [tokenizer("y").input_ids]
    assert limited.counts["response_too_long"] == 1


def test_without_an_output_key_the_label_is_the_response(data, tokenizer):
    (found,) = load_supervised(data([{"prompt": "1+1=", "label": 2}], cls=SupervisedDataConfig), tokenizer)
    assert found.response_ids == [*tokenizer("2").input_ids, tokenizer.eos_token_id]
