"""A reward that fails for everything, or is gone for a while, in a real run: no prompt is used up for nothing."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator

import pytest

from support.launched import START_S, LaunchedRun, tiny_recipe
from support.remote_reward import RemoteReward

STEPS = 12
GROUPS = 6


@pytest.fixture(scope="module")
def remote() -> Iterator[RemoteReward]:
    with RemoteReward() as remote:
        yield remote


@pytest.fixture(scope="module")
def run(remote: RemoteReward, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LaunchedRun]:
    """GRPO without critic, reference and evaluation, rewarded over HTTP."""
    recipe = tiny_recipe(
        tmp_path_factory.mktemp("outage"),
        train={"steps": STEPS},
        advantage={"estimator": "group_norm"},
        kl={"coef": 0.0},
        eval={},
        reward={"scorers": [{"kind": "http", "url": remote.url}]},
        log__rollouts=GROUPS,
    )
    run = LaunchedRun(recipe)
    try:
        yield run
    finally:
        run.end()


def _dropped(run: LaunchedRun) -> list[int]:
    """Of each step."""
    totals = [0, *(int(row["ledger/dropped"]) for row in run.rows())]
    return [after - before for before, after in itertools.pairwise(totals)]


def test_a_reward_that_fails_for_everything_ends_the_run_instead_of_using_up_the_prompts(
    run: LaunchedRun, remote: RemoteReward
) -> None:
    run.start()
    run.until_step(2)
    remote.status = 500
    assert run.wait(START_S) == 1, run.tail()
    remote.status = 200
    assert run.left_over() == []
    dropped = _dropped(run)
    assert dropped[-3:] == [GROUPS] * 3 and len(dropped) < STEPS, dropped
    said = run.output.read_text()
    assert "3 steps in a row had nothing to train on (train.max_empty_steps)" in said
    assert f"{GROUPS} of {GROUPS} prompt groups dropped: {GROUPS} x REWARD_FAILED (REWARD_REFUSED: " in said
    assert "answered 500: no disk space left" in said
    assert f"the run goes on from step {len(dropped)}" in said
    assert "restarting" not in said
    summary = run.folder.summary()
    assert (summary["status"], summary["steps"]) == ("stopped", len(dropped))
    assert summary["ledger"]["dropped_by_reason"] == {"REWARD_FAILED": sum(dropped)}
    assert summary["reward"]["first"] >= 0


def test_a_reward_that_is_gone_for_a_while_is_waited_for_and_costs_nothing(
    run: LaunchedRun, remote: RemoteReward
) -> None:
    """Runs after the test above: the same command goes on."""
    before = _dropped(run)
    run.start()
    run.until_step(len(before) + 1)
    remote.go()
    run.until(lambda: "waiting for reward since" in run.log("rollout-0"), 60, "word of the wait")
    stood = run.step()
    time.sleep(3.0)
    assert run.step() == stood
    remote.come()
    assert run.wait(START_S) == 0, run.tail()
    assert sum(_dropped(run)) == sum(before)
    summary = run.folder.summary()
    trained = GROUPS * STEPS - sum(before)
    assert (summary["status"], summary["steps"]) == ("done", STEPS)
    assert summary["ledger"] | {"dropped_by_reason": {}} == {
        "issued": GROUPS * STEPS, "trained": trained, "dropped": sum(before), "pending": 0, "dropped_by_reason": {},
    }  # fmt: skip
    lines = [json.loads(line) for path in (run.path / "rollouts").glob("*.jsonl") for line in path.open()]
    assert sum("dropped" in line for line in lines) == sum(before)
