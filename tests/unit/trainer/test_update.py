"""One training step over settled rollouts, with a real DeepSpeed learner on a tiny model."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, OPTConfig

from rlctl.learner.learner import Learner
from rlctl.models.load import load_causal_lm
from rlctl.trainer import own_pass
from rlctl.trainer.config import TrainerConfig
from rlctl.trainer.experience import estimate, read
from rlctl.trainer.metrics_table import meaning
from rlctl.trainer.update import Updater, minibatches
from rlctl.v1 import generation_pb2, journal_pb2, rollout_pb2
from support.tiny import tiny_llama

PROMPTS = [[1, 20, 21, 22], [1, 30, 31]]
RESPONSES = [[[5, 6, 2], [7, 2]], [[8, 9, 10, 11], [12, 2]]]
REWARDS = [[1.0, 0.0], [0.5, 0.5]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("tiny"))


def settings(**changes) -> TrainerConfig:
    base = {
        "sampling": {"prompts_per_step": 2, "n": 2, "max_new_tokens": 4, "temperature": 0.7},
        "actor": {"dtype": "float32", "optimizer": {"lr": 1e-3}, "zero_stage": 0},
        "kl": {"coef": 0.1},
    }
    return TrainerConfig(**(base | changes))


def learner(folder, config: TrainerConfig) -> Learner:
    torch.manual_seed(0)
    return Learner(load_causal_lm(folder, "float32"), config.actor, total_steps=10)


def settled(logprobs_of) -> journal_pb2.SettledStep:
    """Rollouts whose log-probs, sampler's and reference's, are those of `logprobs_of(prompt, response)`."""
    step = journal_pb2.SettledStep(step=0)
    for number, prompt in enumerate(PROMPTS):
        task = rollout_pb2.PromptTask(
            id=rollout_pb2.GroupId(run="r", prompt=number), prompt_ids=prompt, needs_reference=True
        )
        group = rollout_pb2.RolloutGroup(task=task)
        for response, reward in zip(RESPONSES[number], REWARDS[number], strict=True):
            logprobs = logprobs_of(prompt, response)
            sample = generation_pb2.Sample(
                token_ids=response,
                logprobs=logprobs,
                policy_versions=[1],
                finish_reason="FINISH_REASON_STOP" if response[-1] == 2 else "FINISH_REASON_LENGTH",
            )
            group.samples.add(sample=sample, reward=reward, reference_logprobs=logprobs)
        step.groups.append(group.SerializeToString())
    return step


def by_hand(folder, temperature: float):
    """Log-probs by plain transformers."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def logprobs_of(prompt, response):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + response])).logits[0].float() / temperature
        rows = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        return rows[torch.arange(len(response)), torch.tensor(response)].tolist()

    return logprobs_of


class FixedCritic:
    """Stands in for the critic service: values 0.25, and notes what it is given to train on."""

    def __init__(self) -> None:
        self.batches = []

    def values(self, sequences):
        future = Future()
        future.set_result([torch.full((len(s.response_ids),), 0.25) for s in sequences])
        return future

    def train(self, step, batches):
        self.batches = batches
        future = Future()
        future.set_result({"value/loss": 0.5})
        return future


def order(step: journal_pb2.SettledStep, beta: float = 0.1) -> bytes:
    return journal_pb2.TrainOrder(settled=step, beta=beta).SerializeToString()


def test_ppo_step_metrics_and_critic_targets(folder):
    config = settings()
    critic = FixedCritic()
    updater = Updater(config, learner(folder, config), 0, 1, critic)
    metrics = updater.step(order(settled(by_hand(folder, 0.7))))
    assert metrics["mismatch/abs_diff_mean"] < 1e-5
    assert metrics["policy/ratio_first"] == pytest.approx(1, abs=1e-5)
    assert metrics["kl/mean"] == pytest.approx(0, abs=1e-4)
    assert metrics["reward/mean"] == 0.5
    assert metrics["length/mean"] == 2.75
    assert metrics["length/truncated"] == 0.25
    assert metrics["response_tokens"] == 11
    assert metrics["value/loss"] == 0.5
    assert metrics["policy/grad_norm"] > 0
    # gamma = lambda = 1 and no KL yet: the return of every token is the reward of its sample.
    returns = [s.fields["returns"] for s in critic.batches[0]]
    for got, want in zip(returns, [1.0, 0.0, 0.5, 0.5], strict=True):
        assert got.tolist() == pytest.approx([want] * len(got), abs=1e-4)
    assert not [name for name in metrics if meaning(name) is None]


def test_grpo_needs_no_critic_and_equal_rewards_teach_nothing(folder):
    config = settings(advantage={"estimator": "group_norm"}, kl={"coef": 0.1, "as_loss": True, "estimator": "k3"})
    experience = read(settled(by_hand(folder, 0.7)), config)
    for sequence in experience.sequences:
        sequence.fields["old_logprobs"] = sequence.fields["rollout_logprobs"]
    estimate(experience, config, 0.1)
    firsts = [s.fields["advantages"][0].item() for s in experience.sequences]
    assert firsts == pytest.approx([0.70711, -0.70711, 0, 0], abs=1e-4)
    metrics = Updater(config, learner(folder, config), 0, 1, None).step(order(settled(by_hand(folder, 0.7))))
    assert metrics["kl/loss"] == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("correction", ["none", "tis"])
def test_old_logprobs_of_the_update_itself_are_the_recomputed_ones(folder, correction, monkeypatch):
    """Sampler's log-probs are off by up to 0.4, one sample's reward is missing, another is cut and masked."""
    exact = by_hand(folder, 0.7)
    step = settled(lambda *ids: [value - 0.1 * n for n, value in enumerate(exact(*ids), 1)])
    config = settings(
        advantage={"estimator": "rloo"},
        kl={"coef": 0.1, "as_loss": True, "estimator": "k3"},
        off_policy={"kind": correction, "high": 1.2},
        shaping={"mask_truncated": True},
    )
    found = []
    for enough in (True, False):
        monkeypatch.setattr(own_pass, "is_enough", lambda *_, enough=enough: enough)
        actor = learner(folder, config)
        passes = []
        monkeypatch.setattr(actor, "_infer", lambda *given, of=actor._infer, to=passes: to.append(1) or of(*given))
        metrics = Updater(config, actor, 0, 1, None).step(order(step))
        assert bool(passes) != enough
        found.append((metrics, torch.cat([tensor.flatten() for _, tensor in actor.export_weights()])))
    (own, weights), (recomputed, wanted) = found
    assert own == pytest.approx(recomputed, rel=1e-4, abs=1e-5)
    assert own["mismatch/abs_diff_mean"] > 0.1 and own["kl/mean"] > 0.1
    assert (own["mismatch/weight_mean"] > 1.05) == (correction == "tis")
    torch.testing.assert_close(weights, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "enough"),
    [
        ({"kl": {"coef": 0.1, "as_loss": True, "estimator": "k3"}}, True),
        ({"kl": {"coef": 0}}, True),
        ({"kl": {"coef": 0.1}}, False),
        ({"kl": {"coef": 0}, "train": {"passes": 2}}, False),
        ({"kl": {"coef": 0}, "train": {"minibatches": 2}}, False),
        ({"kl": {"coef": 0}, "actor": {"dtype": "float32", "lora": {"rank": 2}}}, True),
        ({"kl": {"coef": 0}, "actor": {"dtype": "float32", "lora": {"rank": 2, "dropout": 0.1}}}, False),
    ],
)
def test_what_needs_old_logprobs_before_the_update(folder, changes, enough):
    config = settings(**changes)
    assert own_pass.is_enough(config, learner(folder, config)) == enough


@pytest.mark.parametrize(
    ("model", "enough"),
    [
        (OPTConfig(dropout=0.3, hidden_size=32, num_hidden_layers=1, ffn_dim=32, num_attention_heads=2), False),
        (OPTConfig(dropout=0.0, hidden_size=32, num_hidden_layers=1, ffn_dim=32, num_attention_heads=2), True),
        (GPT2Config(n_embd=32, n_layer=1, n_head=2, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.3), False),
        (GPT2Config(n_embd=32, n_layer=1, n_head=2, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0), True),
    ],
)
def test_old_logprobs_are_without_the_dropout_of_the_model(tmp_path, model, enough):
    """OPT calls dropout as a function, GPT-2 has modules; both have it by default."""
    model.update({"vocab_size": 80, "word_embed_proj_dim": 32, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0})
    AutoModelForCausalLM.from_config(model).save_pretrained(tmp_path)
    config = settings(kl={"coef": 0}, advantage={"estimator": "rloo"})
    actor = learner(tmp_path, config)
    assert own_pass.is_enough(config, actor) == enough
    metrics = Updater(config, actor, 0, 1, None).step(order(settled(by_hand(tmp_path, 0.7))))
    assert metrics["mismatch/abs_diff_max"] < 1e-4


def test_a_step_raises_the_probability_of_what_was_rewarded(folder):
    config = settings(advantage={"estimator": "rloo"}, kl={"coef": 0})
    actor = learner(folder, config)
    step = settled(by_hand(folder, 0.7))
    updater = Updater(config, actor, 0, 1, None)
    before = [part.sum().item() for part in actor.logprobs(read(step, config).sequences[:2], 0.7)]
    for _ in range(3):
        updater.step(order(step))
    after = [part.sum().item() for part in actor.logprobs(read(step, config).sequences[:2], 0.7)]
    assert after[0] > before[0]
    assert after[1] < before[1]


def test_samples_without_a_reward_are_left_out(folder):
    config = settings(advantage={"estimator": "rloo"})
    step = settled(by_hand(folder, 0.7))
    group = rollout_pb2.RolloutGroup.FromString(step.groups[0])
    group.samples[0].ClearField("reward")
    step.groups[0] = group.SerializeToString()
    experience = read(step, config)
    assert len(experience.sequences) == 3
    assert experience.failed_samples == 1


def test_minibatches_cover_every_sequence_once_a_pass_and_differ_by_pass(folder):
    config = settings(train={"passes": 2, "minibatches": 2})
    sequences = read(settled(by_hand(folder, 0.7)), config).sequences
    batches = list(minibatches(sequences, config, step=3))
    assert [len(batch) for batch in batches] == [2, 2, 2, 2]
    for begin in (0, 2):
        assert sorted(id(s) for batch in batches[begin : begin + 2] for s in batch) == sorted(map(id, sequences))
    again = list(minibatches(sequences, config, step=3))
    assert [[id(s) for s in batch] for batch in again] == [[id(s) for s in batch] for batch in batches]


def test_truncated_responses_can_be_masked(folder):
    config = settings(shaping={"mask_truncated": True}, advantage={"estimator": "rloo"})
    experience = read(settled(by_hand(folder, 0.7)), config)
    assert [bool(s.mask.all()) for s in experience.sequences] == [True, True, False, True]
