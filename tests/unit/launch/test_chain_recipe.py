"""Recipes of chains: how stages are put together, what is refused, and with what a chain may go on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlctl.cli.launch import read_chain_recipe, read_recipe, read_training_recipe
from rlctl.core.errors import ConfigError, NotFoundError
from rlctl.launch.chain_checks import check_chain
from rlctl.launch.chain_folder import ChainFolder
from rlctl.launch.chain_recipe import STAGES, ChainRecipe, Trained
from rlctl.launch.recipe import Recipe
from rlctl.launch.spec import shares

TRAINED = Trained("/sft/model", "/rm/model")


def read(*settings: str) -> ChainRecipe:
    return read_chain_recipe(list(settings))


def test_a_stage_is_its_recipe_with_its_own_settings_on_top():
    chain = read("seed=7", "rm.learner.optimizer.lr=0.5", "name=c")
    own, base = chain.rm_recipe("/sft/model"), read_training_recipe("rm", [])
    assert own.learner.optimizer.lr == 0.5
    assert own.learner.optimizer.betas == base.learner.optimizer.betas
    assert own.eval_data == base.eval_data
    assert (own.name, own.seed, own.model) == ("rm", 7, "/sft/model")
    assert own.run_dir == Path("runs/c/rm").resolve()
    assert chain.ppo_recipe(TRAINED).advantage == read_recipe(["quickstart"]).advantage


def test_models_and_pairs_go_from_stage_to_stage():
    chain = read("reward_model.normalize=false", "ppo.reward.threads=2", "rm.data=[{path='pairs.jsonl'}]")
    stages = chain.stages(TRAINED)
    assert {name: stage.model for name, stage in stages.items()} == {
        "sft": chain.model, "rm": "/sft/model", "ppo": "/sft/model", "dpo": "/sft/model",
    }  # fmt: skip
    ppo = stages["ppo"]
    assert isinstance(ppo, Recipe)
    assert ppo.reward.threads == 2
    (scorer,) = ppo.reward.scorers
    assert (scorer.kind, scorer.model, scorer.normalize, scorer.weight) == ("model", "/rm/model", False, 1.0)
    assert stages["dpo"].data == stages["rm"].data
    assert stages["dpo"].data[0].path == "pairs.jsonl"
    assert stages["dpo"].eval_data == stages["rm"].eval_data
    assert read("rm.model=org/bigger-7B").rm_recipe("/sft/model").model == "org/bigger-7B"
    assert read("rm.eval_data=none", "reward_model.normalize=false").rm_recipe("/sft/model").eval_data is None
    assert read("rm.model=''").rm_recipe("/sft/model").model == "/sft/model"


@pytest.mark.parametrize(
    "setting, told",
    [
        ("sft.model=org/other", "sft.model is filled in by the chain: set model instead"),
        ("ppo.seed=3", "ppo.seed is filled in by the chain: set seed instead"),
        ("ppo.reward.scorers=[]", "ppo.reward.scorers is filled in by the chain: set reward_model instead"),
        ("dpo.data=[]", "dpo.data is filled in by the chain: set rm.data instead"),
        ("rm.recipe=dpo", "is a recipe of `rlctl launch dpo`"),
        ("ppo.train.stepz=3", r"\[ppo\] unknown setting 'train.stepz'. Did you mean 'train.steps'"),
        ("ppo.eval.data=none", "ppo.eval.data is not set: the report asks these prompts"),
        ("rm.eval_data=none", "rm.eval_data is not set: reward_model.normalize takes"),
        ("ppo.cluster.nodes=2", "set ppo.cluster.nodes = 1"),
        ("sample=3", "Did you mean 'samples'"),
        ("ppo.reward=5", r"\[ppo\] reward: must be a table"),
        ("model=", "model is not set: name the model that SFT starts from"),
    ],
)
def test_what_the_chain_fills_in_and_what_does_not_fit_is_refused(setting, told):
    with pytest.raises(ConfigError, match=told):
        read(setting)


def test_an_unknown_recipe_of_a_stage_is_told_with_those_there_are():
    with pytest.raises(NotFoundError, match=r"no recipe 'sfft'.*sft"):
        read("sft.recipe=sfft")


def test_faults_of_all_stages_are_told_at_once():
    chain = read("model=/no/model", "rm.learner.ranks=128", "ppo.train.minibatches=7", "dpo.learner.ranks=99")
    with pytest.raises(ConfigError) as told:
        check_chain(chain, here=False, gpus=None)
    message = told.value.message
    assert "[sft] model: '/no/model' is no folder here" in message
    assert "[rm] learner.ranks = 128 is above batch_size = 64" in message
    assert "[ppo] 256 samples a step" in message
    assert "[dpo] learner.ranks = 99 is above batch_size = 64" in message


def test_the_recipe_that_comes_along_is_planned_without_a_gpu():
    plans = check_chain(read(), here=False, gpus=0)
    assert list(plans) == ["sft", "rm", "ppo", "dpo"]
    assert [process.name for process in plans["ppo"].processes] == [
        "nats-0", "generation-0", "reward-0", "reference-0", "critic-0", "rollout-0", "trainer-0",
    ]  # fmt: skip


def test_the_recipe_for_gpus_fits_on_one_machine():
    plans = check_chain(read("chain-7b"), here=False, gpus=None)
    assert {stage: sum(shares(plan.processes).values()) for stage, plan in plans.items()} == dict.fromkeys(plans, 8)
    told = r"= 16 GPUs, and there are 8(.|\n)*\[dpo\] the run needs 9 GPUs"
    with pytest.raises(ConfigError, match=told):
        check_chain(read("chain-7b", "generation.tensor_parallel=2", "dpo.learner.ranks=9"), here=False, gpus=None)
    joining = [f"{stage}.cluster.ray_address=head:6379" for stage in STAGES]
    check_chain(read("chain-7b", "generation.replicas=1", *joining), here=False, gpus=1)
    with pytest.raises(ConfigError, match=r"\[ppo\] the run needs 8 GPUs"):
        check_chain(read("chain-7b", "generation.replicas=1", *joining[:2], joining[3]), here=False, gpus=1)
    with pytest.raises(ConfigError, match="= 3072 tokens, but the report's generation holds 3000"):
        check_chain(read("chain-7b", "generation.max_model_len=3000"), here=False, gpus=None)


def test_the_held_out_prompts_are_in_no_stages_data():
    stages = read().stages(TRAINED)
    ppo = stages["ppo"]
    assert isinstance(ppo, Recipe)
    held_out = ppo.eval.data
    assert held_out is not None
    trained_on = [stages["sft"].data[0], *stages["rm"].data, *stages["dpo"].data, ppo.data]
    for data in trained_on:
        assert (data.splits, data.split_key) == (held_out.splits, held_out.split_key)
        assert data.split in ("sft", "rl")
    assert (held_out.split, stages["sft"].eval_data.split) == ("test", "dev")


def begun(tmp_path: Path, stage: str, *, done: bool) -> ChainFolder:
    chain = read(f"runs_dir={tmp_path}", "name=c")
    folder = ChainFolder(chain.run_dir.resolve())
    for run, recipe in ((folder.run, chain), (folder.stage(stage), chain.stages(folder.trained)[stage])):
        run.take()
        run.write_recipe(recipe)
        run.release()
    if done:
        (folder.path / stage / "model").mkdir()
    (folder.path / stage / "summary.json").write_text(json.dumps({"status": "done" if done else "stopped"}))
    return folder


@pytest.mark.parametrize("stage", ["sft", "rm", "ppo", "dpo"])
def test_a_chain_goes_on_with_the_recipe_it_was_started_with(tmp_path, stage):
    folder = begun(tmp_path, stage, done=False)
    assert not folder.done(stage)
    folder.refuse_other(folder.recipe())
    assert folder.recipe().stages(folder.trained) == read(f"runs_dir={tmp_path}", "name=c").stages(folder.trained)


def test_a_stage_that_is_not_begun_may_change_and_one_that_is_done_may_not(tmp_path):
    folder = begun(tmp_path, "sft", done=True)
    assert folder.done("sft")
    here = (f"runs_dir={tmp_path}", "name=c")
    folder.refuse_other(read(*here, "ppo.train.steps=5", "rm.epochs=1", "sft.log.steps=9"))
    with pytest.raises(ConfigError, match=r"sft.steps: 800 -> 5"):
        folder.refuse_other(read(*here, "sft.steps=5"))
    with pytest.raises(ConfigError, match=r"sft.seed: 1 -> 2(.|\n)*name=c-2"):
        folder.refuse_other(read(*here, "seed=2"))


def test_a_stage_in_the_middle_may_go_on_for_longer(tmp_path):
    folder = begun(tmp_path, "ppo", done=False)
    here = (f"runs_dir={tmp_path}", "name=c")
    folder.refuse_other(read(*here, "ppo.train.steps=500"))
    with pytest.raises(ConfigError, match=r"ppo.sampling.n: 8 -> 4"):
        folder.refuse_other(read(*here, "ppo.sampling.n=4"))


def test_what_was_begun_as_something_else_is_no_chain(tmp_path):
    folder = begun(tmp_path, "sft", done=True)
    inner = ChainFolder(folder.path / "sft")
    with pytest.raises(ConfigError, match=r"job: 'sft' -> 'chain'"):
        inner.refuse_other(read(f"runs_dir={folder.path}", "name=sft"))
    with pytest.raises(NotFoundError, match="is no chain"):
        inner.recipe()


def test_what_was_made_from_a_stage_that_is_gone_is_not_gone_on_with(tmp_path):
    for stage in ("sft", "rm", "ppo", "dpo"):
        folder = begun(tmp_path, stage, done=True)
    folder.report.mkdir()
    recipe = folder.recipe()
    folder.refuse_gaps(recipe)
    (folder.path / "dpo").rename(tmp_path / "dpo")
    with pytest.raises(ConfigError, match=r"models of dpo are gone(.|\n)*c/report\nMove it away") as told:
        folder.refuse_gaps(recipe)
    assert "c/ppo" not in told.value.message
    folder.report.rmdir()
    folder.refuse_gaps(recipe)
    (folder.path / "rm").rename(tmp_path / "rm")
    with pytest.raises(ConfigError, match=r"models of rm are gone(.|\n)*c/ppo\nMove it away"):
        folder.refuse_gaps(recipe)
    (tmp_path / "rm").rename(folder.path / "rm")
    (folder.path / "ppo").rename(tmp_path / "ppo")
    (folder.path / "sft").rename(tmp_path / "sft")
    with pytest.raises(ConfigError, match=r"models of sft are gone(.|\n)*c/rm\nMove it away"):
        folder.refuse_gaps(recipe)
    folder.refuse_gaps(read(f"runs_dir={tmp_path}", "name=c", "rm.model=org/own-7B"))
