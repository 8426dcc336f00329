"""The moving average of weights, optimizer states in CPU memory, and kernels that are not there."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModelForCausalLM

from rlctl.core.errors import ConfigError
from rlctl.learner.config import LearnerConfig
from rlctl.learner.engine import deepspeed_config
from rlctl.models.load import load_causal_lm
from rlctl.offline.rm import RMObjective
from support.training import critic, nll, policy, sequences, square, weights


@pytest.mark.parametrize("changes", [{"zero_stage": 1}, {"zero_stage": 3}, {"zero_stage": 0, "lora": {"rank": 4}}])
def test_average_by_hand_through_a_checkpoint_and_export(tiny: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    """After two steps with decay 0.75: 0.75 * (0.75 * w0 + 0.25 * w1) + 0.25 * w2."""
    changes = changes | {"ema_decay": 0.75, "optimizer": {"lr": 1e-2}}
    learner = policy(tiny, **changes)
    lora = "lora" in changes
    names = [
        name for name, p in learner._model.named_parameters() if p.requires_grad and (not lora or "lora_B" in name)
    ]

    def now() -> dict[str, torch.Tensor]:
        found = dict(learner._model.named_parameters())
        return {name: found[name].detach().clone() for name in names} if lora else weights(learner)

    history = [now()]
    for seed in range(2):
        learner.step(sequences(seed), nll)
        history.append(now())
    wanted = {name: 0.75 * (0.75 * w + 0.25 * history[1][name]) + 0.25 * history[2][name]
              for name, w in history[0].items()}  # fmt: skip
    with learner.averaged():
        average = now()
    for name in wanted:
        torch.testing.assert_close(average[name], wanted[name], rtol=0, atol=1e-6)
        torch.testing.assert_close(now()[name], history[2][name], rtol=0, atol=0)
    learner.save(tmp_path / "state")
    learner.save_hf(tmp_path / "model", None)
    again = policy(tiny, **changes)
    again.step(sequences(9), nll)
    again.load(tmp_path / "state")
    for each in (learner, again):
        each.step(sequences(5), nll)
    with learner.averaged(), again.averaged():
        assert all(torch.equal(tensor, weights(again)[name]) for name, tensor in weights(learner).items())
    if not lora:
        for folder, values in ((tmp_path / "model", history[2]), (tmp_path / "model" / "ema", wanted)):
            plain = dict(AutoModelForCausalLM.from_pretrained(folder).named_parameters())
            for name, value in values.items():
                torch.testing.assert_close(plain[name].detach(), value, rtol=0, atol=1e-6)


def test_the_average_can_be_the_model_of_a_critic(tiny: Path, tmp_path: Path) -> None:
    learner = critic(tiny, ema_decay=0.9, ema_as_model=True)
    learner.step(sequences(), square)
    with learner.averaged():
        wanted = learner.values(sequences())
    learner.save_hf(tmp_path / "critic", None)
    assert not (tmp_path / "critic" / "ema").exists()
    from rlctl.learner.learner import Learner
    from rlctl.models.load import load_value_model

    again = Learner(load_value_model(tmp_path / "critic", "float32"), learner.config, total_steps=1, value=True)
    torch.testing.assert_close(torch.cat(again.values(sequences())), torch.cat(wanted), rtol=0, atol=1e-6)
    with pytest.raises(ValidationError, match="set ema_decay too"):
        LearnerConfig(ema_as_model=True)


def test_the_average_of_a_reward_model_is_told_what_its_model_is(tiny: Path, tmp_path: Path) -> None:
    critic(tiny, ema_decay=0.9).save_hf(tmp_path / "reward", None)
    told = {"reward_mean": 0.5, "reward_std": 2.0}
    RMObjective.finish(SimpleNamespace(_last={}), tmp_path / "reward", SimpleNamespace(pad_token_id=0), told)  # type: ignore[arg-type]
    for folder in ("reward", "reward/ema"):
        config = json.loads((tmp_path / folder / "config.json").read_text())
        assert (config["mean"], config["std"], config["pad_token_id"]) == (0.5, 2.0, 0)


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_offloaded_optimizer_takes_the_same_steps(tiny: Path, tmp_path: Path, zero_stage: int, dtype: str) -> None:
    changes = {"zero_stage": zero_stage, "dtype": dtype}
    losses = []
    for offload in (False, True):
        learner = policy(tiny, adam_offload=offload, overlap_comm=not offload, **changes)
        losses.append([learner.step(sequences(seed), nll)["loss"] for seed in range(3)])
        last = learner
    assert losses[0] == pytest.approx(losses[1], rel=1e-5 if dtype == "float32" else 2e-3)
    last.save(tmp_path / "state")
    on = last.step(sequences(4), nll)
    again = policy(tiny, adam_offload=True, overlap_comm=False, **changes)
    again.load(tmp_path / "state")
    assert again.step(sequences(4), nll) == on


def test_settings_reach_deepspeed() -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    config = LearnerConfig(zero_stage=2, adam_offload=True, overlap_comm=False)
    assert deepspeed_config(config, 2, gpu)["zero_optimization"]["offload_optimizer"] == {
        "device": "cpu", "pin_memory": True,
    }  # fmt: skip
    assert deepspeed_config(config, 2, gpu)["zero_force_ds_cpu_optimizer"]
    assert not deepspeed_config(config, 2, cpu)["zero_force_ds_cpu_optimizer"]
    assert deepspeed_config(config, 2, cpu)["zero_optimization"]["overlap_comm"] is False
    assert deepspeed_config(config, 2, cpu)["zero_optimization"]["offload_optimizer"]["device"] == "cpu"
    assert "offload_optimizer" not in deepspeed_config(LearnerConfig(), 1, gpu)["zero_optimization"]
    with pytest.raises(ValidationError, match="adam_offload moves ZeRO's optimizer states"):
        LearnerConfig(zero_stage=0, adam_offload=True)


def test_flash_attention_where_there_is_none_is_refused_and_auto_chooses_ours(tiny: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("needs a machine without a GPU")
    with pytest.raises(ConfigError, match="needs a GPU and the package flash-attn; set attention = 'auto'"):
        load_causal_lm(tiny, "float32", "flash_attention_2")
    assert load_causal_lm(tiny, "float32").config._attn_implementation == "rlctl_causal"
