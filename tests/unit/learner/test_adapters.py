"""LoRA and QLoRA: what is trained, what is exported, and what peft and transformers make of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peft import AutoPeftModelForCausalLM, AutoPeftModelForSequenceClassification
from pydantic import ValidationError
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
from typer.testing import CliRunner

from rlctl.cli.main import app
from rlctl.core.errors import ConfigError, NotFoundError
from rlctl.learner.config import LearnerConfig
from rlctl.models.adapters import merge_adapter
from rlctl.models.load import load_tokenizer
from rlctl.models.quantize import is_quantized
from rlctl.offline.config import ReferenceOptions
from rlctl.offline.reference import Reference
from support.training import critic, nll, plain_logprobs, plain_values, policy, sequences, square, weights


@pytest.mark.parametrize("zero_stage", [1, 3])
def test_merged_weights_give_the_log_probs_of_applied_adapters(tiny: Path, tmp_path: Path, zero_stage: int) -> None:
    learner = policy(tiny, lora={"rank": 4}, optimizer={"lr": 1e-2}, zero_stage=zero_stage)
    for _ in range(3):
        learner.step(sequences(), nll)
    learner.save_hf(tmp_path / "model", load_tokenizer(tiny))
    applied = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "model" / "adapter")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    base = AutoModelForCausalLM.from_pretrained(tiny)
    for sequence, given in zip(sequences(), learner.logprobs(sequences()), strict=True):
        torch.testing.assert_close(given, plain_logprobs(merged, sequence), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(given, plain_logprobs(applied, sequence), rtol=1e-5, atol=1e-5)
        assert (given - plain_logprobs(base, sequence)).abs().max() > 1e-2
        with applied.disable_adapter():
            torch.testing.assert_close(plain_logprobs(applied, sequence), plain_logprobs(base, sequence))


def test_a_value_model_keeps_its_head_beside_adapters_and_through_the_merge(tiny: Path, tmp_path: Path) -> None:
    learner = critic(tiny, lora={"rank": 4, "target_modules": ["q_proj", "up_proj"]}, optimizer={"lr": 1e-2})
    losses = [learner.step(sequences(), square)["loss"] for _ in range(5)]
    assert losses[-1] < 0.5 * losses[0]
    learner.save_hf(tmp_path / "critic", load_tokenizer(tiny))
    adapter = tmp_path / "critic" / "adapter"
    config = json.loads((tmp_path / "critic" / "config.json").read_text())
    config |= {"mean": 0.5, "std": 2.0, "pad_token_id": config["vocab_size"]}  # a pad the base has no embedding for
    (tmp_path / "critic" / "config.json").write_text(json.dumps(config))
    architecture = merge_adapter(adapter, tmp_path / "merged")
    assert architecture == "LlamaForSequenceClassification"
    kept = json.loads((tmp_path / "merged" / "config.json").read_text())
    assert (kept["mean"], kept["std"], kept["pad_token_id"]) == (0.5, 2.0, config["vocab_size"])
    assert kept["vocab_size"] == config["vocab_size"] + 1
    (tmp_path / "critic" / "config.json").write_text(json.dumps(config | {"pad_token_id": 0}))
    applied = AutoPeftModelForSequenceClassification.from_pretrained(adapter, num_labels=1)
    for folder in (tmp_path / "critic", tmp_path / "merged"):
        merged = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1)
        for sequence, given in zip(sequences(), learner.values(sequences()), strict=True):
            torch.testing.assert_close(given, plain_values(merged, sequence), rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(given, plain_values(applied.base_model.model, sequence), rtol=1e-5, atol=1e-5)
    assert load_tokenizer(tmp_path / "merged").pad_token_id == 0


def test_the_command_merges_a_policy(tiny: Path, tmp_path: Path) -> None:
    learner = policy(tiny, lora={"rank": 4}, optimizer={"lr": 1e-2})
    learner.step(sequences(), nll)
    learner.save_hf(tmp_path / "model", load_tokenizer(tiny))
    adapter, output = tmp_path / "model" / "adapter", tmp_path / "merged"
    ran = CliRunner().invoke(app, ["lora", "merge", str(adapter), str(output), "--base", str(tiny)])
    assert ran.exit_code == 0 and "LlamaForCausalLM" in ran.output
    merged = AutoModelForCausalLM.from_pretrained(output)
    for sequence, given in zip(sequences(), learner.logprobs(sequences()), strict=True):
        torch.testing.assert_close(given, plain_logprobs(merged, sequence), rtol=1e-5, atol=1e-5)
    assert load_tokenizer(output).eos_token_id == load_tokenizer(tiny).eos_token_id


def test_merge_names_what_is_wrong(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="holds no adapter"):
        merge_adapter(tiny, tmp_path / "out")
    learner = policy(tiny, lora={"rank": 4})
    learner.save_hf(tmp_path / "model", None)
    with pytest.raises(ConfigError, match="exists"):
        merge_adapter(tmp_path / "model" / "adapter", tmp_path)
    from support.tiny import tiny_llama

    other = tiny_llama(tmp_path / "other", hidden=32)
    with pytest.raises(ConfigError, match="does not fit"):
        merge_adapter(tmp_path / "model" / "adapter", tmp_path / "out", str(other))


@pytest.mark.parametrize(("zero_stage", "dtype"), [(0, "float32"), (2, "float32"), (1, "bfloat16")])
def test_qlora_trains_adapters_on_frozen_4_bit_weights(tiny: Path, tmp_path: Path, zero_stage: int, dtype: str) -> None:
    changes = {"lora": {"rank": 4, "quantize_4bit": True}, "optimizer": {"lr": 1e-2}, "dtype": dtype}
    learner = policy(tiny, zero_stage=zero_stage, **changes)
    codes = {name: parameter for name, parameter in learner._model.named_parameters() if is_quantized(parameter)}
    assert len(codes) == 14 and all(code.dtype is torch.uint8 and not code.requires_grad for code in codes.values())
    assert sum(code.numel() for code in codes.values()) == 2 * (3 * 128 * 128 + 3 * 128 * 256) // 2  # 2 in a byte
    before, base = {name: code.clone() for name, code in codes.items()}, weights(learner)
    losses = [learner.step(sequences(), nll)["nll"] for _ in range(6)]
    assert losses[-1] < losses[0] - 0.3
    assert all(torch.equal(code, before[name]) for name, code in codes.items())
    merged = weights(learner)
    assert [(n, str(t.dtype).removeprefix("torch."), tuple(t.shape)) for n, t in merged.items()] == (
        learner.weight_manifest()
    )
    full = AutoModelForCausalLM.from_pretrained(tiny)
    name = "model.layers.0.mlp.up_proj.weight"
    assert 1e-4 < (base[name].float() - full.model.layers[0].mlp.up_proj.weight).abs().mean() < 1e-2
    assert not torch.equal(base[name], merged[name])
    learner.save_hf(tmp_path / "model", None)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    bound = 1e-5 if dtype == "float32" else 0.1
    for sequence, given in zip(sequences(), learner.logprobs(sequences()), strict=True):
        torch.testing.assert_close(given, plain_logprobs(plain, sequence), rtol=0, atol=bound)
    learner.save(tmp_path / "state")
    on = learner.step(sequences(1), nll)
    again = policy(tiny, zero_stage=zero_stage, **changes)
    again.load(tmp_path / "state")
    assert again.step(sequences(1), nll) == on


def test_a_qlora_critic_learns(tiny: Path) -> None:
    learner = critic(tiny, lora={"rank": 4, "quantize_4bit": True}, optimizer={"lr": 2e-3})
    losses = [learner.step(sequences(), square)["loss"] for _ in range(10)]
    assert losses[-1] < 0.5 * losses[0]


def test_4_bit_weights_under_zero3_are_refused() -> None:
    with pytest.raises(ValidationError, match="ZeRO-3 cannot part 4-bit weights"):
        LearnerConfig.model_validate({"zero_stage": 3, "lora": {"quantize_4bit": True}})


def test_the_reference_of_preferences_is_the_4_bit_base(tiny: Path, tmp_path: Path) -> None:
    learner = policy(tiny, lora={"rank": 4, "quantize_4bit": True})
    reference = Reference(ReferenceOptions(), str(tiny), learner.config, tmp_path)
    wanted = [float(each.sum()) for each in learner.logprobs(sequences())]
    assert reference.sums(sequences()) == pytest.approx(wanted, abs=1e-4)
    other = Reference(ReferenceOptions(model=str(tiny)), str(tiny), learner.config, tmp_path)
    assert other.sums(sequences()) != pytest.approx(wanted, abs=1e-2)
