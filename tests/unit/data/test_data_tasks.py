"""reasoning-gym tasks as data."""

from __future__ import annotations

import json

import pytest

from rlctl.core.errors import ConfigError
from rlctl.data.config import PromptDataConfig, TaskConfig
from rlctl.data.prompts import load_prompts
from rlctl.data.tasks import task_entries
from rlctl.models.arithmetic import build_tokenizer

TWO_TERMS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}


def sums(split: str, **changes) -> PromptDataConfig:
    settings = {
        "task": TaskConfig(name="chain_sum", size=3000, parameters=TWO_TERMS),
        "include": r"\+",
        "unique": True,
        "splits": {"sft": 0.5, "rl": 0.3, "test": 0.2},
        "split_key": r"\d+",
        "split": split,
    }
    return PromptDataConfig(**(settings | changes))


def test_entries_depend_on_the_settings_alone():
    config = TaskConfig(name="chain_sum", size=5, seed=7, parameters=TWO_TERMS)
    assert task_entries(config) == task_entries(config.model_copy())
    assert [entry["question"] for entry in task_entries(config)] != [
        entry["question"] for entry in task_entries(config.model_copy(update={"seed": 1007}))
    ]


def test_an_unknown_task_names_the_nearest():
    with pytest.raises(ConfigError, match=r"no task 'chain_sums'. Did you mean chain_sum"):
        task_entries(TaskConfig(name="chain_sums"))


def test_an_unknown_parameter_lists_those_there_are():
    with pytest.raises(ConfigError, match="no parameter 'terms'; it has: min_terms, max_terms"):
        task_entries(TaskConfig(name="chain_sum", parameters={"terms": 2}))
    with pytest.raises(ConfigError, match="refuses its parameters: max_terms must be >= min_terms"):
        task_entries(TaskConfig(name="chain_sum", parameters={"min_terms": 3, "max_terms": 2}))


def test_a_prompt_carries_what_its_verifier_needs():
    import reasoning_gym

    prompt = load_prompts(sums("test"), build_tokenizer())[0]
    carried = json.loads(prompt.metadata_json)
    assert carried["task"] == "chain_sum"
    assert carried["entry"]["question"] == prompt.text
    verify = reasoning_gym.get_score_answer_fn(carried["task"])
    assert verify(answer=prompt.label, entry=carried["entry"]) == 1.0
    assert verify(answer=str(int(prompt.label) + 1), entry=carried["entry"]) < 0.5


def test_parts_of_a_task_share_no_pair_of_operands():
    tokenizer = build_tokenizer()
    parts = {split: load_prompts(sums(split), tokenizer) for split in ("sft", "rl", "test")}
    keys = {
        split: {tuple(sorted(prompt.metadata["entry"]["metadata"]["expression"].split(" + "))) for prompt in part}
        for split, part in parts.items()
    }
    assert not keys["sft"] & keys["rl"] and not keys["sft"] & keys["test"] and not keys["rl"] & keys["test"]
    counts = parts["rl"].counts
    assert counts["kept"] == len(parts["rl"])
    assert counts["rows"] == 3000 == counts["excluded"] + counts["repeated"] + counts["other_split"] + counts["kept"]
    assert sum(len(part) for part in parts.values()) == 3000 - counts["excluded"] - counts["repeated"]
    assert len({prompt.text for prompt in parts["rl"]}) == len(parts["rl"])
    assert all("+" in prompt.text for prompt in parts["rl"])


def test_a_part_stays_the_same_when_the_data_grows():
    tokenizer = build_tokenizer()
    small = {prompt.text for prompt in load_prompts(sums("test"), tokenizer)}
    grown = TaskConfig(name="chain_sum", size=6000, parameters=TWO_TERMS)
    large = {prompt.text for prompt in load_prompts(sums("test", task=grown), tokenizer)}
    train = {prompt.text for prompt in load_prompts(sums("rl", task=grown), tokenizer)}
    assert small < large
    assert not small & train
