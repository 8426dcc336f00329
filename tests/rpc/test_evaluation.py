"""The trainer's held-out evaluation against real gRPC servers with answers worked out by hand."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from rlctl.clients.generation import GenerationClient
from rlctl.clients.reward import RewardClient
from rlctl.core.errors import FutileError
from rlctl.data.prompts import Prompt
from rlctl.trainer import evaluate as evaluation
from rlctl.trainer.config import TrainingSettings
from rlctl.v1.reward_pb2 import ItemError, ItemScore
from support.rollout_services import Generation, Reward

pytestmark = pytest.mark.anyio
#: A response is "<last id>:0" and its reward the label.
PROMPTS: Any = [Prompt([index], f"prompt {index}", str(index % 2)) for index in range(5)]


@pytest.fixture
async def reward() -> Reward:
    return Reward()


@pytest.fixture
async def evaluate(reward: Reward, serve: Any, connect: Any) -> Any:
    generation = await serve(Generation())
    rewards = await serve(reward)

    async def run() -> dict[str, float]:
        return await evaluation.evaluate(
            GenerationClient(connect(generation.address)),
            RewardClient(connect(rewards.address)),
            PROMPTS,
            TrainingSettings(),
        )

    return run


async def test_accuracy_reward_and_length_are_means_over_the_prompts(evaluate: Any) -> None:
    assert await evaluate() == {"accuracy": 0.4, "reward": 0.4, "length": 2.0, "n": 5.0, "failed": 0.0}


async def test_a_reward_that_fails_for_everything_is_an_error(evaluate: Any, reward: Reward) -> None:
    reward.answer = ItemScore(error=ItemError(reason="REWARD_RAISED", message="no disk"))
    with pytest.raises(FutileError, match="none of 5 held-out answers could be scored: no disk"):
        await evaluate()


async def test_a_remote_reward_that_cannot_be_reached_is_waited_for(
    evaluate: Any, reward: Reward, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(evaluation, "PAUSE_S", 0.01)
    reward.answer = ItemScore(error=ItemError(reason="REWARD_UNREACHABLE", message="cannot reach http://far/away"))

    async def come_back(request: Any) -> None:
        if len(reward.calls) == 3:
            reward.answer = None

    reward.before = come_back
    with caplog.at_level(logging.WARNING):
        assert (await evaluate())["n"] == 5.0
    assert caplog.text.count("the evaluation waits for the reward: cannot reach http://far/away") == 2
