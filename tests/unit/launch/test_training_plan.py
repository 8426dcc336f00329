"""Recipes of the offline trainers: what is planned, what is refused, and with what a run may go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlctl.cli.launch import CHAIN, LOOPS, TRAININGS, read_chain_recipe, read_loop_recipe, read_training_recipe
from rlctl.core.errors import ConfigError, FailedPreconditionError, NotFoundError
from rlctl.launch.prepare import ARITHMETIC, UNTRAINED
from rlctl.launch.recipe import recipe_names
from rlctl.launch.run_folder import RunFolder
from rlctl.launch.training_plan import check_training, plan_training
from rlctl.launch.training_recipe import TRAINING_RECIPES, models_of


def planned(job: str, *arguments: str, gpu: bool = False):
    recipe = read_training_recipe(job, list(arguments))
    plan = plan_training(recipe, models_of(recipe), gpu=gpu)
    return recipe, plan


def faults(job: str, *arguments: str) -> str:
    recipe, plan = planned(job, *arguments)
    with pytest.raises(ConfigError) as told:
        check_training(recipe, plan, here=True, gpus=0)
    return told.value.message


@pytest.mark.parametrize("job", TRAININGS)
def test_each_job_has_a_recipe_for_a_cpu_and_one_for_gpus(job):
    assert {job, f"{job}-7b"} <= set(recipe_names("offline"))
    recipe, plan = planned(job)
    check_training(recipe, plan, here=False, gpus=0)
    assert recipe.model in (ARITHMETIC, UNTRAINED)
    assert recipe.eval_data is not None
    assert [spec.name for spec in plan.processes] == ["trainer-0"]
    large, plan = planned(job, f"{job}-7b", gpu=True)
    check_training(large, plan, here=False, gpus=None)
    assert [spec.gpus for spec in plan.processes] == [1] * 8


def test_training_and_held_out_data_are_cut_from_the_same_rows_alike():
    for job in TRAININGS:
        recipe = read_training_recipe(job, [])
        held_out, first = recipe.eval_data, recipe.data[0]
        assert held_out.model_copy(update={"split": first.split}) == first
        assert held_out.split != first.split


def test_a_rank_is_told_its_job_with_the_models_folders(tmp_path):
    recipe, _ = planned("dpo", f"runs_dir={tmp_path}", "learner.ranks=2", "reference.model=some/model")
    plan = plan_training(recipe, {"model": "/policy", "reference.model": "/reference"}, gpu=False)
    assert [(spec.rank, spec.ranks, spec.module) for spec in plan.processes] == [
        (0, 2, "rlctl.offline"),
        (1, 2, "rlctl.offline"),
    ]
    told = plan.processes[0].config["run"]
    assert (told["job"], told["model"], told["reference"]["model"]) == ("dpo", "/policy", "/reference")
    assert told["runs_dir"] == str(tmp_path)
    assert "cluster" not in told


def test_a_frozen_model_counts_where_it_stays_in_memory():
    def need(*arguments: str) -> float:
        return planned("dpo", "dpo-7b", *arguments, gpu=True)[1].processes[0].gpu_memory_gb

    assert need("reference.precompute=false") - need() == pytest.approx(14, rel=0.01)


SERVED = ("teacher=none", 'teacher_service.addresses=["127.0.0.1:50053"]')


def test_a_served_teacher_is_no_ranks_burden():
    """14 billion numbers of two bytes, which a teacher in memory takes on every GPU."""
    recipe, plan = planned("kd", "kd-7b", *SERVED, gpu=True)
    _, local = planned("kd", "kd-7b", gpu=True)
    assert local.processes[0].gpu_memory_gb - plan.processes[0].gpu_memory_gb == pytest.approx(28, abs=2)
    check_training(recipe, plan, here=False, gpus=None)
    told = plan.processes[0].config["run"]
    assert (told["teacher"], told["teacher_service"]["addresses"]) == (None, ["127.0.0.1:50053"])


@pytest.mark.parametrize(
    "arguments, words",
    [
        (SERVED[1:], "set teacher or teacher_service, not both"),
        (SERVED[:1], "a teacher is missing: set teacher"),
        (["teacher=none", "teacher_service.top_k=4"], r"teacher_service\.addresses: Field required"),
    ],
)
def test_there_is_one_teacher(arguments, words):
    with pytest.raises(ConfigError, match=words):
        read_training_recipe("kd", list(arguments))


def test_a_training_goes_on_with_a_teacher_at_another_address(tmp_path):
    folder = RunFolder(tmp_path / "kd")
    folder.path.mkdir()
    here = f"runs_dir={tmp_path}"
    folder.write_recipe(read_training_recipe("kd", [here, *SERVED]))
    moved = [here, SERVED[0], 'teacher_service.addresses=["127.0.0.1:6"]', "teacher_service.timeout_s=9"]
    folder.refuse_other_training(read_training_recipe("kd", moved))
    with pytest.raises(ConfigError, match=r"teacher_service\.top_k: 0 -> 4"):
        folder.refuse_other_training(read_training_recipe("kd", [*moved, "teacher_service.top_k=4"]))


def test_faults_are_told_at_once():
    told = faults("rm", "model=./absent", "learner.ranks=128", "cluster.nodes=2")
    for part in (
        "./absent",
        "learner.ranks = 128 is above batch_size = 64",
        "cluster.ray_address",
        "cluster.interface",
    ):
        assert part in told


def test_a_recipe_of_another_job_is_refused():
    with pytest.raises(ConfigError, match="job"):
        read_training_recipe("rm", ["dpo"])
    with pytest.raises(NotFoundError, match=r"dpo, dpo-7b"):
        read_training_recipe("rm", ["absent"])


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    found = RunFolder(tmp_path / "kto")
    found.path.mkdir()
    found.write_recipe(read_training_recipe("kto", [f"runs_dir={tmp_path}"]))
    return found


def test_a_run_remembers_its_recipe(folder):
    assert folder.job == "kto"
    assert folder.training_recipe() == read_training_recipe("kto", [f"runs_dir={folder.path.parent}"])
    with pytest.raises(FailedPreconditionError, match="training of its own"):
        folder.recipe()


def test_a_run_goes_on_with_more_steps_but_not_with_other_data(folder):
    here = f"runs_dir={folder.path.parent}"
    folder.refuse_other_training(read_training_recipe("kto", [here, "steps=900", "eval_steps=5", "learner.threads=2"]))
    with pytest.raises(ConfigError, match=r"beta: 0.1 -> 0.2") as told:
        folder.refuse_other_training(read_training_recipe("kto", [here, "beta=0.2", "learner.zero_stage=2"]))
    assert "learner.zero_stage: 0 -> 2" in told.value.message
    assert "name=kto-2" in told.value.message
    with pytest.raises(ConfigError, match="job: 'kto' -> 'sft'"):
        folder.refuse_other_training(read_training_recipe("sft", [here, "name=kto"]))


def test_every_recipe_says_its_job():
    assert set(TRAINING_RECIPES) == set(TRAININGS)
    loops = {"conditional-sft": "rejection-sampling"} | {job: job for job in LOOPS}
    for name in recipe_names("offline"):
        job = name.removesuffix("-7b")
        if job == CHAIN:
            assert read_chain_recipe([name]).job == CHAIN
        elif job in loops:
            assert read_loop_recipe(loops[job], [name]).job == loops[job]
        else:
            assert read_training_recipe(job, [name]).job == job
