"""Examples mixed into the policy's training, and steps in which only the critic learns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModelForCausalLM

from rlctl.core.errors import FailedPreconditionError
from rlctl.learner.learner import Learner
from rlctl.learner.loss import Part
from rlctl.models.load import load_causal_lm, load_tokenizer
from rlctl.trainer.config import TrainerConfig
from rlctl.trainer.objective import ptx_objective
from rlctl.trainer.ptx import PretrainMix
from rlctl.trainer.update import Updater
from rlctl.v1 import generation_pb2, journal_pb2, rollout_pb2
from support.tiny import tiny_llama
from support.training import nll, plain_logprobs, policy, sequences, weights

ROWS = [{"prompt": f"{a}+{a}=", "label": str(2 * a)} for a in range(10, 17)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "examples.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def settings(data: Path | None, **changes: object) -> TrainerConfig:
    tree = {
        "sampling": {"prompts_per_step": 2, "n": 2, "max_new_tokens": 4},
        "actor": {"dtype": "float32", "optimizer": {"lr": 1e-3}, "zero_stage": 0, "micro_batch_tokens": 16},
        "advantage": {"estimator": "rloo"},
        "kl": {"coef": 0},
    }
    ptx = {} if data is None else {"ptx": {"coef": 0.5, "batch_size": 3, "data": [{"path": str(data)}]}}
    return TrainerConfig.model_validate(tree | ptx | changes)


def learner(folder: Path, config: TrainerConfig) -> Learner:
    return Learner(load_causal_lm(folder, "float32"), config.actor, total_steps=10)


def mixed(folder: Path, config: TrainerConfig) -> PretrainMix:
    assert config.ptx is not None
    return PretrainMix(config.ptx, load_tokenizer(folder), config.seed)


def order(step: int) -> bytes:
    """Two prompts of two samples; the first of each was rewarded."""
    settled = journal_pb2.SettledStep(step=step)
    for number in range(2):
        task = rollout_pb2.PromptTask(id=rollout_pb2.GroupId(run="r", prompt=number), prompt_ids=[1, 20 + number])
        group = rollout_pb2.RolloutGroup(task=task)
        for index in range(2):
            ids = [5 + step, 6 + index, 2]
            sample = generation_pb2.Sample(
                token_ids=ids, logprobs=[-4.0] * 3, policy_versions=[1], finish_reason="FINISH_REASON_STOP"
            )
            group.samples.add(sample=sample, reward=1.0 - index)
        settled.groups.append(group.SerializeToString())
    return journal_pb2.TrainOrder(settled=settled, beta=0.0).SerializeToString()


def test_the_gradient_is_the_sum_of_both_losses(folder: Path) -> None:
    """Each over its own totals, in micro-batches of its own."""
    policies, examples = sequences(0), sequences(1, count=5)
    both = policy(folder, micro_batch_tokens=32)
    metrics = both.accumulate(policies, nll, temperature=0.7, also=[Part(examples, ptx_objective(0.5))])
    one, other = policy(folder), policy(folder)
    first = one.accumulate(policies, nll, temperature=0.7)
    second = other.accumulate(examples, nll)
    torch.testing.assert_close(both.gradients(), one.gradients() + 0.5 * other.gradients(), rtol=1e-5, atol=1e-5)
    assert metrics["loss"] == pytest.approx(first["loss"] + 0.5 * second["loss"], rel=1e-5)
    assert metrics["ptx/loss"] == pytest.approx(second["loss"], rel=1e-5)
    for each in (both, one, other):
        each.apply()


def test_a_step_learns_the_next_examples_beside_the_rollouts(folder: Path, data: Path) -> None:
    config = settings(data)
    plain = AutoModelForCausalLM.from_pretrained(folder)
    drawn = mixed(folder, config).draw(0, 1).sequences
    wanted = -torch.cat([plain_logprobs(plain, sequence) for sequence in drawn]).mean()
    actor = learner(folder, config)
    updater = Updater(config, actor, 0, 1, None, mixed(folder, config))
    metrics = [updater.step(order(step)) for step in range(8)]
    assert metrics[0]["ptx/loss"] == pytest.approx(float(wanted), rel=1e-5)
    assert metrics[-1]["ptx/loss"] < metrics[0]["ptx/loss"] - 0.3
    alone = learner(folder, settings(None))
    for step in range(8):
        Updater(settings(None), alone, 0, 1, None).step(order(step))
    gain = sum(map(torch.sum, actor.logprobs(drawn))) - sum(map(torch.sum, alone.logprobs(drawn)))
    assert float(gain) > 1.0


def test_every_example_comes_once_an_epoch_over_any_number_of_ranks(folder: Path, data: Path) -> None:
    one, first, second = (mixed(folder, settings(data)) for _ in range(3))
    seen = []
    for _ in range(7):
        whole = [tuple(s.prompt_ids.tolist()) for s in one.draw(0, 1).sequences]
        parts = [tuple(s.prompt_ids.tolist()) for rank, mix in ((0, first), (1, second))
                 for s in mix.draw(rank, 2).sequences]  # fmt: skip
        assert sorted(whole) == sorted(parts)
        seen += whole
    assert all(seen.count(prompt) == 3 for prompt in set(seen)) and len(set(seen)) == 7


def test_going_on_from_a_checkpoint_and_replaying_come_to_the_same_bits(
    folder: Path, data: Path, tmp_path: Path
) -> None:
    config = settings(data)

    def run(steps: range, start: Path | None = None, stop: Path | None = None) -> dict[str, torch.Tensor]:
        actor, ptx = learner(folder, config), mixed(folder, config)
        if start is not None:
            actor.load(start)
            ptx.load(start)
        updater = Updater(config, actor, 0, 1, None, ptx)
        for step in steps:
            updater.step(order(step))
        if stop is not None:
            actor.save(stop)
            ptx.save(stop)
        return weights(actor)

    unbroken = run(range(6))
    run(range(4), stop=tmp_path / "state")
    resumed = run(range(4, 6), start=tmp_path / "state")
    replayed = run(range(6))
    for name, tensor in unbroken.items():
        assert torch.equal(tensor, resumed[name]) and torch.equal(tensor, replayed[name])
    data.write_text(json.dumps(ROWS[0]) + "\n")
    with pytest.raises(FailedPreconditionError, match="data size 7, now it is 1"):
        mixed(folder, config).load(tmp_path / "state")


def test_a_frozen_actor_neither_moves_nor_draws_examples(folder: Path, data: Path) -> None:
    from concurrent.futures import Future

    class Critic:
        trained = 0

        def values(self, found):
            future = Future()
            future.set_result([torch.zeros(len(s.response_ids)) for s in found])
            return future

        def train(self, step, batches):
            self.trained += 1
            future = Future()
            future.set_result({"value/loss": 0.25})
            return future

    config = settings(data, advantage={"estimator": "gae"}, train={"freezing_actor_steps": 2})
    actor, critic, ptx = learner(folder, config), Critic(), mixed(folder, config)
    updater = Updater(config, actor, 0, 1, critic, ptx)
    start = weights(actor)
    for step in range(2):
        metrics = updater.step(order(step))
        assert metrics["value/loss"] == 0.25 and "policy/loss" not in metrics and "ptx/loss" not in metrics
    assert actor.steps == 0 and critic.trained == 2
    assert all(torch.equal(tensor, start[name]) for name, tensor in weights(actor).items())
    metrics = updater.step(order(2))
    assert actor.steps == 1 and critic.trained == 3 and metrics["policy/grad_norm"] > 0
    assert not all(torch.equal(tensor, start[name]) for name, tensor in weights(actor).items())
    drawn = [s.prompt_ids.tolist() for s in ptx.draw(0, 1).sequences]
    fresh = mixed(folder, config)
    fresh.draw(0, 1)
    assert drawn == [s.prompt_ids.tolist() for s in fresh.draw(0, 1).sequences]


def test_freezing_without_a_critic_is_refused() -> None:
    with pytest.raises(ValidationError, match="freezing_actor_steps needs a critic"):
        settings(None, train={"freezing_actor_steps": 1})
