"""Recipes of the loops: the training of each round, what is refused, and with what a run may go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlctl.cli.launch import LOOPS, read_loop_recipe
from rlctl.core.errors import ConfigError
from rlctl.launch.loop import choose
from rlctl.launch.loop_checks import check_loop
from rlctl.launch.loop_recipe import LOOP_RECIPES
from rlctl.launch.prepare import ARITHMETIC
from rlctl.launch.recipe import recipe_names
from rlctl.launch.run_folder import RunFolder

DATA = Path("/chosen.jsonl")


def faults(job: str, *arguments: str) -> str:
    with pytest.raises(ConfigError) as told:
        check_loop(read_loop_recipe(job, list(arguments)), here=False, gpus=None)
    return told.value.message


@pytest.mark.parametrize("job", LOOPS)
def test_each_loop_has_a_recipe_for_a_cpu_and_one_for_gpus(job):
    assert {job, f"{job}-7b"} <= set(recipe_names("offline"))
    assert set(LOOPS) == set(LOOP_RECIPES)
    recipe = read_loop_recipe(job, [])
    assert recipe.model == ARITHMETIC
    assert [spec.gpus for spec in check_loop(recipe, here=False, gpus=0).processes] == [0]
    large = read_loop_recipe(job, [f"{job}-7b"])
    assert [spec.gpus for spec in check_loop(large, here=False, gpus=None).processes] == [1] * 8


@pytest.mark.parametrize("name", ["iterative-dpo", "rejection-sampling", "conditional-sft"])
def test_held_out_prompts_are_cut_from_the_same_rows_as_the_prompts(name):
    recipe = read_loop_recipe("iterative-dpo" if name == "iterative-dpo" else "rejection-sampling", [name])
    assert recipe.eval_prompts.model_copy(update={"split": "rl"}) == recipe.prompts
    assert recipe.eval_prompts.split == "test"


def test_a_round_of_iterative_dpo_goes_on_from_its_policy_and_stays_close_to_the_first():
    recipe = read_loop_recipe("iterative-dpo", ["seed=5", "beta=0.3", "prompts.input_template=Q: {}"])
    training = recipe.training(2, "/round-01", "/first", Path("/run/round-02"), DATA)
    assert (training.model, training.reference.model, training.seed, training.beta) == ("/round-01", "/first", 7, 0.3)
    assert training.run_dir == Path("/run/round-02/train")
    data = training.data[0]
    assert (data.path, data.prompt_key, data.chosen_key) == ("/chosen.jsonl", "prompt", "chosen")
    assert (data.input_template, data.max_prompt_len, data.max_response_len) == ("Q: {}", 64, 16)
    assert training.learner == recipe.learner
    previous = recipe.model_copy(update={"reference": "previous"})
    assert previous.training(2, "/round-01", "/first", Path("/run/round-02"), DATA).reference.model == ""


def test_a_round_of_rejection_sampling_learns_the_responses():
    recipe = read_loop_recipe("rejection-sampling", ["epochs=2"])
    training = recipe.training(1, "/first", "/first", Path("/run/round-01"), DATA)
    data = training.data[0]
    assert (training.job, training.epochs) == ("sft", 2)
    assert (data.input_key, data.output_key, data.max_prompt_len) == ("prompt", "response", 64)
    conditional = read_loop_recipe("rejection-sampling", ["conditional-sft", "prompts.max_prompt_len=40"])
    data = conditional.training(1, "/first", "/first", Path("/run/round-01"), DATA).data[0]
    assert data.max_prompt_len == 72


def test_what_is_chosen_is_what_the_recipe_says():
    scored = [
        {"request": "r", "prompt": "p", "response": text, "finish": "stop", "reward": reward}
        for text, reward in (("bad", 0.0), ("good", 0.5))
    ]
    best = read_loop_recipe("rejection-sampling", ["min_reward=0.5"])
    assert [row["response"] for row in choose(best, scored).rows] == ["good"]
    assert choose(best.model_copy(update={"min_reward": 1.0}), scored).rows == []
    conditional = read_loop_recipe("rejection-sampling", ["conditional-sft"])
    assert [row["prompt"] for row in choose(conditional, scored).rows] == [
        "p <rm_score>: 0.00",
        "p <rm_score>: 0.50",
    ]
    pair = choose(read_loop_recipe("iterative-dpo", []), scored).rows
    assert [(row["chosen"], row["rejected"]) for row in pair] == [("good", "bad")]


@pytest.mark.parametrize(
    "job, setting, told",
    [
        ("iterative-dpo", "sampling.n=1", "sampling.n must be 2 or more"),
        ("rejection-sampling", "select=conditional", "needs target_score"),
        ("rejection-sampling", "target_score=1", "target_score is for select = 'conditional'"),
        ("rejection-sampling", "generation.model=org/other", "generation.model is the policy of the round"),
        ("rejection-sampling", "cluster.nodes=2", "set cluster.nodes = 1"),
        ("iterative-dpo", "betta=1", "Did you mean 'beta'?"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(job, setting, told):
    with pytest.raises(ConfigError, match=told.replace("?", r"\?")):
        read_loop_recipe(job, [setting])


def test_every_fault_is_told_at_once():
    told = faults(
        "iterative-dpo", "model=/no/model", "prompts.task=none", "prompts.path=/no/file.jsonl", "learner.ranks=128",
        "reward.scorers=[{kind='function', path='/no/reward.py'}]",
    )  # fmt: skip
    assert "model: '/no/model' is no folder here" in told
    assert "prompts.path: /no/file.jsonl does not exist" in told
    assert "reward.scorers.0.path: /no/reward.py does not exist" in told
    assert "learner.ranks = 128 is above batch_size = 64" in told
    told = faults("iterative-dpo", "iterative-dpo-7b", "generation.tensor_parallel=2", "generation.max_model_len=4000")
    assert "generation.replicas x generation.tensor_parallel = 16 GPUs, and there are 8" in told
    assert "= 4096 tokens, but generation holds 4000" in told


def test_a_run_goes_on_with_more_rounds_but_not_with_other_sampling(tmp_path):
    here = f"runs_dir={tmp_path}"
    folder = RunFolder(tmp_path / "iterative-dpo")
    folder.take()
    folder.write_recipe(read_loop_recipe("iterative-dpo", [here]))
    folder.release()
    assert folder.job == "iterative-dpo"
    folder.refuse_other_loop(read_loop_recipe("iterative-dpo", [here, "rounds=9", "generation.threads=2"]))
    with pytest.raises(ConfigError, match=r"sampling.n: 8 -> 4"):
        folder.refuse_other_loop(read_loop_recipe("iterative-dpo", [here, "sampling.n=4"]))
    with pytest.raises(ConfigError, match=r"prompts_per_round: 1500 -> 10"):
        folder.refuse_other_loop(read_loop_recipe("iterative-dpo", [here, "prompts_per_round=10"]))
    with pytest.raises(ConfigError, match="job: 'iterative-dpo' -> 'rejection-sampling'"):
        folder.refuse_other_loop(read_loop_recipe("rejection-sampling", [here, "name=iterative-dpo"]))
