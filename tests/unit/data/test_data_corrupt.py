"""Wrong answers made from right ones."""

from __future__ import annotations

import random

import pytest

from rlctl.core.errors import ConfigError
from rlctl.data.config import KTODataConfig, PreferenceDataConfig, ProcessDataConfig, TaskConfig
from rlctl.data.corrupt import change_digit, corrupted
from rlctl.data.kto import load_kto
from rlctl.data.preference import load_preferences
from rlctl.data.process import load_process
from rlctl.data.tasks import task_entries
from rlctl.models.arithmetic import build_tokenizer

SUMS = {"min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 1}


@pytest.mark.parametrize("text, length", [("7", 1), ("10", 2), ("-305", 4), ("about 40 apples", 15)])
def test_one_digit_is_another_and_no_number_begins_with_0(text, length):
    for seed in range(40):
        made = change_digit(text, random.Random(seed))
        assert sum(a != b for a, b in zip(text, made, strict=True)) == 1
        number = made.strip("about ples-")
        assert str(int(number)) == number


def test_an_answer_without_a_digit_cannot_be_corrupted():
    with pytest.raises(ConfigError, match="'yes' has none"):
        corrupted({"question": "?", "answer": "yes", "metadata": {}}, 0.5, "0")


def test_no_step_is_wrong_at_0_and_every_one_at_1():
    entry = {"question": "3 + 9 - 4 =", "answer": "8", "metadata": {"expression": "3 + 9 - 4"}}
    right = corrupted(entry, 0.0, "0")
    assert right["worked"] == "3 + 9 - 4 = 3 + 9 = 12\n12 - 4 = 8\n"
    assert (right["worked_right"], right["shown"], right["shown_right"]) == ([True, True], "8", True)
    wrong = corrupted(entry, 1.0, "0")
    first, second, _ = wrong["worked"].removeprefix("3 + 9 - 4 = ").split("\n")
    carried = first.removeprefix("3 + 9 = ")
    assert carried != "12"
    # The step after a wrong one goes on from it.
    assert second.startswith(f"{carried} - 4 = ")
    assert int(second.split(" = ")[1]) != int(carried) - 4
    assert (wrong["worked_right"], wrong["shown"], wrong["shown_right"]) == ([False, False], wrong["wrong"], False)


def test_the_share_of_wrong_steps_is_as_asked_and_the_same_each_time():
    config = TaskConfig(name="chain_sum", size=400, corrupt=0.3, parameters=SUMS)
    entries = task_entries(config)
    truths = [truth for entry in entries for truth in entry["worked_right"]]
    assert len(truths) == 800
    assert 0.25 < truths.count(False) / len(truths) < 0.35
    assert task_entries(config.model_copy(update={"size": 3})) == entries[:3]


def test_the_columns_are_read_as_preferences_judgements_and_steps():
    tokenizer = build_tokenizer()
    task = TaskConfig(name="chain_sum", size=20, corrupt=0.5, parameters=SUMS)
    entries = task_entries(task)
    pairs = load_preferences(
        PreferenceDataConfig(task=task, prompt_key="question", chosen_key="answer", rejected_key="wrong"), tokenizer
    )
    assert [tokenizer.decode(pair.chosen_ids) for pair in pairs] == [f"{e['answer']}</s>" for e in entries]
    assert [tokenizer.decode(pair.rejected_ids) for pair in pairs] == [f"{e['wrong']}</s>" for e in entries]
    judged = load_kto(
        KTODataConfig(task=task, input_key="question", output_key="shown", label_key="shown_right"), tokenizer
    )
    assert [each.desirable for each in judged] == [e["shown_right"] for e in entries]
    steps = load_process(
        ProcessDataConfig(task=task, input_key="worked", label_key="worked_right", placeholder="\n"), tokenizer
    )
    assert [[label == 1.0 for label in each.labels] for each in steps] == [e["worked_right"] for e in entries]


def test_a_task_has_no_preferences_without_them():
    config = PreferenceDataConfig(task=TaskConfig(name="chain_sum", size=2), prompt_key="question")
    with pytest.raises(ConfigError, match=r"task\.corrupt to make some"):
        load_preferences(config, build_tokenizer())
