"""Mixtures of experts: the load-balancing loss, and checkpoints with the hub's names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from rlctl.core.errors import ConfigError
from rlctl.learner.sequence import Sequence
from rlctl.models.moe import balance_loss
from support.tiny_moe import tiny_moe
from support.training import critic, nll, plain_logprobs, plain_values, policy, sequences, square


def padded(found: list[Sequence]) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask `[B, L]`."""
    rows = [torch.cat([s.prompt_ids, s.response_ids]) for s in found]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return ids, torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)


def test_balance_by_hand() -> None:
    """Two experts, top 1: both tokens of layer one go to expert 0, of layer two one to each; f = (3/4, 1/4)."""
    far, even = [10.0, -10.0], [0.0, 0.0]
    layers = [torch.tensor([far, far, even]), torch.tensor([far, far[::-1], far])]
    real = torch.tensor([True, True, False])
    assert float(balance_loss(layers, real, 1)) == pytest.approx(2 * (0.75 * 0.75 + 0.25 * 0.25), abs=1e-6)
    assert float(balance_loss(layers, torch.zeros(3, dtype=torch.bool), 1)) == 0.0


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe", "qwen2_moe", "olmoe"])
@pytest.mark.parametrize("packing", [True, False])
def test_loss_and_gradient_are_those_of_transformers(tmp_path: Path, kind: str, packing: bool) -> None:
    folder = tiny_moe(tmp_path, kind)
    learner = policy(folder, aux_loss_coef=0.3, micro_batch_tokens=4096, packing=packing)
    metrics = learner.accumulate(sequences(), nll)
    plain = AutoModelForCausalLM.from_pretrained(folder)
    ids, mask = padded(sequences())
    output = plain(ids, attention_mask=mask, output_router_logits=True)
    logp = output.logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    wanted = torch.zeros(())
    for row, s in zip(logp, sequences(), strict=True):
        wanted = wanted - row[s.prompt_ids.numel() - 1 : len(s) - 1].sum() / 60
    assert metrics["aux_loss"] == pytest.approx(float(output.aux_loss.detach()), rel=1e-5)
    assert metrics["loss"] == pytest.approx(float(wanted.detach()), rel=1e-5)
    (wanted + 0.3 * output.aux_loss).backward()
    gradient = torch.cat([parameter.grad.flatten() for parameter in plain.parameters()])
    assert float((learner.gradients() - gradient).norm() / gradient.norm()) < 1e-5
    learner.apply()


def test_a_micro_batch_weighs_as_much_as_its_tokens(tmp_path: Path) -> None:
    folder = tiny_moe(tmp_path)
    found = sequences(count=3)
    learner = policy(folder, aux_loss_coef=0.3, micro_batch_tokens=16)
    plain = AutoModelForCausalLM.from_pretrained(folder)
    total = 0.0
    for one in found:
        ids = torch.cat([one.prompt_ids, one.response_ids]).unsqueeze(0)
        total += float(plain(ids, output_router_logits=True).aux_loss.detach()) * len(one)
    assert [len(one) for one in found] == [8, 9, 10]
    assert learner.step(found, nll)["aux_loss"] == pytest.approx(total / 27, rel=1e-5)


def test_training_balances_the_experts(tmp_path: Path) -> None:
    learner = policy(tiny_moe(tmp_path), aux_loss_coef=10.0, optimizer={"lr": 1e-2}, gradient_checkpointing=True)
    losses = [learner.step(sequences(), nll)["aux_loss"] for _ in range(10)]
    assert losses[-1] - 2.0 < 0.3 * (losses[0] - 2.0)


def test_a_model_without_experts_is_refused(tiny: Path) -> None:
    with pytest.raises(ConfigError, match="no mixture of experts"):
        policy(tiny, aux_loss_coef=0.1)


@pytest.mark.parametrize("zero_stage", [1, 3])
def test_saved_experts_have_the_names_of_the_hub(tmp_path: Path, zero_stage: int) -> None:
    folder = tiny_moe(tmp_path / "start")
    names = load_file(folder / "model.safetensors").keys()
    assert "model.layers.0.block_sparse_moe.experts.3.w2.weight" in names
    learner = policy(folder, zero_stage=zero_stage)
    learner.step(sequences(), nll)
    assert {name for name, _, _ in learner.weight_manifest()} == names
    assert [(name, tuple(tensor.shape)) for name, tensor in learner.export_weights()] == [
        (name, shape) for name, _, shape in learner.weight_manifest()
    ]
    learner.save_hf(tmp_path / "model", None)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    for sequence, given in zip(sequences(), learner.logprobs(sequences()), strict=True):
        torch.testing.assert_close(given, plain_logprobs(plain, sequence), rtol=1e-5, atol=1e-5)


def test_a_critic_with_experts(tmp_path: Path) -> None:
    learner = critic(tiny_moe(tmp_path / "start", "qwen3_moe"), aux_loss_coef=0.01, optimizer={"lr": 3e-3})
    losses = [learner.step(sequences(), square) for _ in range(10)]
    assert losses[-1]["loss"] < 0.5 * losses[0]["loss"]
    assert losses[0]["aux_loss"] > 2.0
    learner.save_hf(tmp_path / "critic", None)
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "critic", num_labels=1)
    for sequence, given in zip(sequences(), learner.values(sequences()), strict=True):
        torch.testing.assert_close(given, plain_values(plain, sequence), rtol=1e-5, atol=1e-5)
