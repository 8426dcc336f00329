"""The policy's first weights before a run."""

from __future__ import annotations

import fcntl

import pytest

from rlctl.core.config import load
from rlctl.core.errors import DeadlineError, NotFoundError
from rlctl.data.prompts import load_prompts
from rlctl.data.supervised import load_supervised
from rlctl.launch.prepare import ARITHMETIC, UNTRAINED, prepare_model, progress_line
from rlctl.launch.recipe import Recipe, recipe_folder
from rlctl.launch.warmup import VERSION, Progress, sums
from rlctl.models.arithmetic import build_model, build_tokenizer, write_untrained
from rlctl.models.load import load_causal_lm, load_tokenizer

QUESTION = "State the final answer to the following arithmetic problem: 15 + 43 ="


@pytest.fixture
def models(tmp_path, monkeypatch):
    monkeypatch.setenv("RLCTL_CACHE", str(tmp_path))
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


def test_a_folder_is_its_own_model_and_nothing_is_built(models, tmp_path):
    (tmp_path / "mine").mkdir()
    assert prepare_model(str(tmp_path / "mine"), 1) == tmp_path / "mine"
    with pytest.raises(NotFoundError, match="no such folder"):
        prepare_model("./absent", 1)
    assert list(models.iterdir()) == []


def test_what_was_warmed_up_before_is_taken_from_the_cache(models):
    kept = models / f"rlctl--arithmetic-llama-v{VERSION}-seed7"
    kept.mkdir()
    (kept / "config.json").write_text("{}")
    lines = []
    assert prepare_model(ARITHMETIC, 7, lines.append) == kept
    assert lines == []


def test_a_warm_up_that_takes_too_long_ends_and_leaves_nothing(models):
    with pytest.raises(DeadlineError, match="took more than 0 s"):
        prepare_model(ARITHMETIC, 1, timeout_s=0.3)
    assert [path.suffix for path in models.iterdir()] == [".lock"]


def test_a_second_launch_waits_for_the_first_and_says_so(models):
    with (models / f"rlctl--arithmetic-llama-v{VERSION}-seed1.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DeadlineError, match="another process has been preparing"):
            prepare_model(ARITHMETIC, 1, timeout_s=0.3)


def test_progress_tells_the_time_left():
    line = progress_line(Progress(step=100, accuracy=0.034, seconds=10.0))
    assert line.startswith("warm-up: step 100, 3% of held-out sums right, about ")
    assert progress_line(Progress(step=10_000, accuracy=0.4, seconds=1000.0)).endswith("this one is not")


def test_the_tokenizer_keeps_digits_apart_and_any_text_whole():
    tokenizer = build_tokenizer()
    ids = tokenizer(QUESTION).input_ids
    assert [tokenizer.decode([token]) for token in ids] == [
        "<s>", "State the final answer to the following arithmetic problem: ", "1", "5", " + ", "4", "3", " =",
    ]  # fmt: skip
    for text in ("Grüße, 世界  12", " a\n"):
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text


def test_the_small_model_is_drawn_from_its_seed_and_loads_again(tmp_path):
    write_untrained(tmp_path, seed=3)
    tokenizer = load_tokenizer(tmp_path)
    loaded = load_causal_lm(tmp_path, "float32")
    assert tokenizer(QUESTION).input_ids == build_tokenizer()(QUESTION).input_ids
    same, other = build_model(build_tokenizer(), 3), build_model(build_tokenizer(), 4)
    name = "model.layers.0.mlp.up_proj.weight"
    assert loaded.state_dict()[name].equal(same.state_dict()[name])
    assert not loaded.state_dict()[name].equal(other.state_dict()[name])
    assert sum(parameter.numel() for parameter in loaded.parameters()) == 532_736


def test_no_held_out_sum_nor_its_mirror_is_warmed_up_or_trained_on():
    tokenizer = build_tokenizer()
    warmed = {tuple(example.prompt_ids) for example in load_supervised(sums("sft"), tokenizer)}
    parts = {split: load_prompts(sums(split), tokenizer) for split in ("rl", "dev", "test")}
    assert len(parts["test"]) >= 200
    for split in ("rl", "dev", "test"):
        mirrored = {
            " + ".join(reversed(prompt.metadata["entry"]["metadata"]["expression"].split(" + ")))
            for prompt in parts[split]
        }
        texts = [f"State the final answer to the following arithmetic problem: {sum_} =" for sum_ in mirrored]
        held = {tuple(prompt.prompt_ids) for prompt in parts[split]} | {tuple(tokenizer(t).input_ids) for t in texts}
        assert not held & warmed
    assert not {tuple(p.prompt_ids) for p in parts["rl"]} & {tuple(p.prompt_ids) for p in parts["test"]}


def test_the_quickstart_trains_and_tests_on_parts_of_the_same_sums():
    """Other settings there would cut other parts, and what was warmed up on could be tested on."""
    recipe = load(Recipe, recipe_folder() / "quickstart.toml")
    assert recipe.model == ARITHMETIC
    assert recipe.eval.data is not None
    what = ("task", "include", "unique", "splits", "split_key", "input_template", "apply_chat_template")
    for config, split in ((recipe.data, "rl"), (recipe.eval.data, "test")):
        assert config.split == split
        for name in what:
            assert getattr(config, name) == getattr(sums(split), name), name
    assert list(recipe.data.splits) == list(sums("rl").splits)


def test_the_untrained_model_is_built_once_in_a_process_of_its_own(models):
    lines = []
    built = prepare_model(UNTRAINED, 3, lines.append)
    assert built == models / f"rlctl--arithmetic-llama-untrained-v{VERSION}-seed3"
    assert lines == ["building rlctl/arithmetic-llama-untrained (seed 3)"]
    name = "model.layers.0.mlp.up_proj.weight"
    loaded = load_causal_lm(built, "float32").state_dict()[name]
    assert loaded.equal(build_model(build_tokenizer(), 3).state_dict()[name])
    assert prepare_model(UNTRAINED, 3, lines.append) == built
    assert len(lines) == 1
