"""Several data sets as one, and training kept apart from what is held out."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from rlctl.core.errors import ConfigError, FailedPreconditionError
from rlctl.data.config import PromptDataConfig, SupervisedDataConfig, TaskConfig
from rlctl.data.cursor import MixedCursor, PromptCursor
from rlctl.data.mix import mix, probabilities
from rlctl.data.overlap import check_apart
from rlctl.data.prompts import load_prompts
from rlctl.data.supervised import load_supervised
from rlctl.models.load import load_tokenizer
from rlctl.trainer.config import TrainingSettings
from support.rows import write_rows
from support.tiny import tiny_llama


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return load_tokenizer(tiny_llama(tmp_path_factory.mktemp("tiny")))


def test_draws_are_spread_by_probability():
    # Of n draws the first data set has had round(3n/4): 1, 2, 2, 3, 4, 5, 5, 6.
    taken = MixedCursor([4, 4], [0.75, 0.25], shuffle=False, seed=0).take(8)
    assert [p.index for p in taken] == [0, 1, 4, 2, 3, 0, 5, 1]
    # Of three, the second has had half of what the first leaves.
    taken = MixedCursor([9, 9, 9], [0.5, 0.25, 0.25], shuffle=False, seed=0).take(8)
    assert [p.index // 9 for p in taken] == [0, 1, 0, 2, 0, 1, 0, 2]


def test_any_stretch_of_draws_has_the_shares():
    taken = MixedCursor([7, 50, 20], [0.2, 0.5, 0.3], shuffle=True, seed=3).take(77)
    sources = [0 if p.index < 7 else 1 if p.index < 57 else 2 for p in taken]
    for draws in range(1, 78):
        for source, share in enumerate((0.2, 0.5, 0.3)):
            assert abs(sources[:draws].count(source) - share * draws) <= 1


def test_each_data_set_is_walked_through_whole_before_a_row_comes_again():
    taken = [p.index for p in MixedCursor([3, 5], [0.5, 0.5], shuffle=True, seed=1).take(80)]
    small = [index for index in taken if index < 3]
    large = [index for index in taken if index >= 3]
    # Across the ends of the mixture's epochs too.
    for start in range(0, len(small) - 2, 3):
        assert sorted(small[start : start + 3]) == [0, 1, 2]
    for start in range(0, len(large) - 4, 5):
        assert sorted(large[start : start + 5]) == [3, 4, 5, 6, 7]
    assert len({tuple(small[start : start + 3]) for start in range(0, 30, 3)}) > 1


@pytest.mark.parametrize("taken", [0, 5, 8, 21])
def test_a_mixture_goes_on_where_it_stood_whatever_is_taken_at_once(taken):
    def fresh():
        return MixedCursor([3, 5], [0.25, 0.75], shuffle=True, seed=2)

    whole = fresh().take(30)
    before = fresh()
    before.take(taken)
    after = fresh()
    after.restore(json.loads(json.dumps(before.state())))
    rest = [p for n in (1, 4, 25 - taken) for p in after.take(n)]
    assert rest == whole[taken:]
    assert [after.index(p.epoch, p.position) for p in whole] == [p.index for p in whole]


def test_a_mixture_of_other_shares_is_refused():
    state = MixedCursor([3, 5], [0.5, 0.5], shuffle=True, seed=2).state()
    with pytest.raises(FailedPreconditionError, match="probabilities"):
        MixedCursor([3, 5], [0.25, 0.75], shuffle=True, seed=2).restore(state)
    with pytest.raises(FailedPreconditionError, match="sizes"):
        MixedCursor([4, 4], [0.5, 0.5], shuffle=True, seed=2).restore(state)
    with pytest.raises(FailedPreconditionError, match="sizes None"):
        MixedCursor([3, 5], [0.5, 0.5], shuffle=True, seed=2).restore(PromptCursor(8, True, 2).state())


def test_put_together_every_row_comes_once_an_epoch(tmp_path, tokenizer):
    configs = [
        SupervisedDataConfig(path=write_rows(tmp_path / name, [{"prompt": p, "label": "x"} for p in prompts]))
        for name, prompts in (("a.jsonl", "abc"), ("b.jsonl", "de"))
    ]
    data = mix(configs, lambda config: load_supervised(config, tokenizer))
    assert [tokenizer.decode(example.prompt_ids) for example in data.items] == list("abcde")
    assert data.sizes == [3, 2]
    assert sorted(p.index for p in data.cursor(True, 0).take(5)) == [0, 1, 2, 3, 4]
    shared = [config.model_copy(update={"probability": 0.5}) for config in configs]
    mixed = mix(shared, lambda config: load_supervised(config, tokenizer))
    drawn = Counter(p.index >= 3 for p in mixed.cursor(True, 0).take(100))
    assert drawn == {False: 50, True: 50}


@pytest.mark.parametrize("given, message", [((0.5, None), "set for 1 of 2"), ((0.5, 0.4), "sum to 0.9")])
def test_probabilities_are_for_all_and_sum_to_one(given, message):
    with pytest.raises(ConfigError, match=message):
        probabilities([SupervisedDataConfig(path="x", probability=each) for each in given])
    with pytest.raises(ValueError, match=message):
        PromptDataConfig(mixture=[{"path": "x", "probability": each or "none"} for each in given])


def test_prompts_of_several_data_sets(tmp_path, tokenizer):
    first = write_rows(tmp_path / "a.jsonl", [{"q": "aaaa"}, {"q": "bb"}])
    second = write_rows(tmp_path / "b.jsonl", [{"prompt": "cc", "label": "1"}])
    config = PromptDataConfig(
        mixture=[
            {"path": first, "input_key": "q", "label_key": "", "probability": 0.25},
            {"path": second, "probability": 0.75},
        ],
        max_prompt_len=3,
    )
    found = load_prompts(config, tokenizer)
    assert [prompt.text for prompt in found] == ["bb", "cc"]
    assert (found.counts["rows"], found.counts["too_long"], found.counts["kept"]) == (3, 1, 2)
    assert [p.index for p in found.cursor(False, 0).take(4)] == [1, 0, 1, 1]


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"path": "x", "mixture": [{"path": "y"}]}, "path: set this in the entries of mixture"),
        ({"mixture": [{"path": "y"}], "input_key": "q"}, "input_key: set this in the entries"),
        ({"path": "x", "probability": 1.0}, "probability stands in the entries of mixture"),
    ],
)
def test_a_mixture_has_its_settings_in_its_entries(settings, message):
    with pytest.raises(ValueError, match=message):
        PromptDataConfig(**settings)


SUMS = TaskConfig(name="chain_sum")


@pytest.mark.parametrize(
    "train, held_out, message",
    [
        ({"path": "hub/name"}, {"path": "hub/name"}, "split 'train' is training and held-out data at once"),
        ({"path": "tests/../tests"}, {"path": "tests"}, "at once"),
        ({"task": SUMS}, {"task": SUMS}, "at once"),
        (
            {"path": "x", "splits": {"train": 0.9, "test": 0.1}},
            {"path": "x", "splits": {"train": 0.8, "test": 0.2}, "split": "test"},
            "cut from the same rows by different splits",
        ),
        ({"path": "x"}, {"path": "x", "splits": {"train": 0.8, "test": 0.2}, "split": "test"}, "cut from the same"),
    ],
)
def test_the_same_rows_never_train_and_test(train, held_out, message):
    with pytest.raises(ConfigError, match=message):
        check_apart([PromptDataConfig(path="other"), PromptDataConfig(**train)], [PromptDataConfig(**held_out)])


@pytest.mark.parametrize(
    "train, held_out",
    [
        ({"path": "x"}, {"path": "x", "split": "test"}),
        ({"path": "x", "name": "a"}, {"path": "x", "name": "b"}),
        ({"task": SUMS}, {"task": SUMS.model_copy(update={"seed": 1})}),
        (
            {"path": "x", "splits": {"train": 0.9, "test": 0.1}},
            {"path": "x", "splits": {"train": 0.9, "test": 0.1}, "split": "test"},
        ),
    ],
)
def test_other_rows_may(train, held_out):
    check_apart([PromptDataConfig(**train)], [PromptDataConfig(**held_out)])


def test_a_recipe_that_tests_on_its_training_data_is_refused():
    with pytest.raises(ValueError, match=r"data and eval.data: x: split 'train' is training and held-out data at once"):
        TrainingSettings(data={"path": "x"}, eval={"data": {"path": "x"}})


def test_held_out_rows_are_taken_out_of_training_and_counted(tmp_path, tokenizer):
    train = PromptDataConfig(path=write_rows(tmp_path / "train.jsonl", [{"prompt": p, "label": p} for p in "abcb"]))
    test = PromptDataConfig(path=write_rows(tmp_path / "test.jsonl", [{"prompt": p, "label": "?"} for p in "bd"]))
    found = load_prompts(train, tokenizer, test)
    assert [prompt.text for prompt in found] == ["a", "c"]
    assert (found.counts["rows"], found.counts["held_out"], found.counts["kept"]) == (4, 2, 2)
    all_of_it = PromptDataConfig(path=write_rows(tmp_path / "all.jsonl", [{"prompt": p, "label": ""} for p in "abc"]))
    with pytest.raises(ConfigError, match=r"no rows are left of the 4 rows .*\(held_out 4\)"):
        load_prompts(train, tokenizer, all_of_it)
