"""A run's folder: its lock, its recipe, what may change when it goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlctl.core.config import load
from rlctl.core.errors import ConfigError, FailedPreconditionError, NotFoundError
from rlctl.launch.recipe import Recipe
from rlctl.launch.run_folder import RunFolder


def recipe(*settings: str) -> Recipe:
    return load(Recipe, None, ["model=org/model", "name=trial", "data.path=org/data", *settings])


def started(folder: Path, *settings: str) -> RunFolder:
    run = RunFolder(folder / "trial")
    run.take()
    run.write_recipe(recipe(*settings))
    return run


def test_a_recipe_is_kept_exactly_with_what_was_cleared(tmp_path: Path) -> None:
    settings = ("critic.value_clip=none", "off_policy.kind=none", "shaping.clip=none", "eval.data.path=org/test")
    run = started(tmp_path, *settings)
    assert run.recipe() == recipe(*settings)
    assert run.recipe().critic.value_clip is None
    assert run.recipe().off_policy.kind == "none"


def test_only_one_launcher_has_a_run(tmp_path: Path) -> None:
    run = started(tmp_path)
    run.write_launch("abc", "nats://127.0.0.1:1", 1)
    other = RunFolder(run.path)
    assert other.is_up()
    with pytest.raises(
        FailedPreconditionError, match=r"'trial' is at work already \(process \d+ on .*rlctl stop trial"
    ):
        other.take()
    run.release()
    assert not other.is_up()
    other.take()
    other.release()


@pytest.mark.parametrize(
    "setting, told",
    [
        ("seed=9", "seed: 0 -> 9"),
        ("sampling.n=4", "sampling.n: 8 -> 4"),
        ("data.path=org/other", "data.path: 'org/data' -> 'org/other'"),
        ("advantage.estimator=rloo", "advantage.estimator: 'gae' -> 'rloo'"),
        ("actor.ranks=2", "actor.ranks: 1 -> 2"),
        ("kl.coef=0", "kl.coef: 0.01 -> 0.0"),
    ],
)
def test_settings_that_decide_the_ledger_may_not_change(tmp_path: Path, setting: str, told: str) -> None:
    run = started(tmp_path)
    with pytest.raises(ConfigError) as refused:
        run.refuse_other(recipe(setting))
    assert told in refused.value.message
    assert "--fresh" in refused.value.message
    run.release()


@pytest.mark.parametrize(
    "setting", ["train.steps=500", "actor.optimizer.lr=1e-5", "generation.replicas=2", "kl.coef=0.02"]
)
def test_other_settings_may_change(tmp_path: Path, setting: str) -> None:
    run = started(tmp_path)
    run.refuse_other(recipe(setting))
    run.release()


def test_an_older_run_is_set_aside_whole(tmp_path: Path) -> None:
    run = started(tmp_path)
    run.release()
    aside = run.set_aside()
    assert aside is not None
    assert not run.exists
    assert RunFolder(aside).recipe() == recipe()


def test_the_newest_checkpoint_is_found_and_an_unfinished_one_is_none(tmp_path: Path) -> None:
    run = started(tmp_path)
    assert run.checkpoint_step() is None
    for name in ("step-00000004", "step-00000012", "step-00000020.tmp"):
        (run.path / "checkpoints" / name).mkdir(parents=True)
    assert run.checkpoint_step() == 12
    run.release()


def test_a_run_that_does_not_exist_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no run 'ghost'"):
        RunFolder(tmp_path / "ghost").recipe()


def test_the_summary_of_a_run_is_what_the_trainer_wrote(tmp_path: Path) -> None:
    run = started(tmp_path)
    assert run.summary() == {}
    (run.path / "summary.json").write_text(json.dumps({"status": "done", "steps": 3}))
    assert run.summary()["steps"] == 3
    run.release()
