"""The critic service with everything that a learner can be set to: it learns, and goes back to a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rlctl.critic.config import CriticConfig
from rlctl.critic.engine import CriticEngine
from rlctl.learner.sequence import Sequence
from support.tiny_moe import tiny_moe
from support.training import sequences


def targets() -> list[Sequence]:
    """Every return is 1."""
    found = sequences()
    for sequence in found:
        sequence.fields["old_values"] = torch.zeros(5)
        sequence.fields["returns"] = torch.ones(5)
    return found


@pytest.mark.parametrize(
    "learner",
    [
        {"lora": {"rank": 4}},
        {"lora": {"rank": 4, "quantize_4bit": True}},
        {"adam_offload": True, "overlap_comm": False, "zero_stage": 2},
        {"gradient_checkpointing": True, "zero_stage": 3},
        {"ema_decay": 0.9},
        {"aux_loss_coef": 0.01},
    ],
    ids=["lora", "qlora", "offload", "checkpointing", "ema", "experts"],
)
def test_the_critic_learns_and_is_restored(tiny: Path, tmp_path: Path, learner: dict[str, Any]) -> None:
    model = tiny_moe(tmp_path / "experts") if "aux_loss_coef" in learner else tiny
    settings = {"dtype": "float32", "optimizer": {"lr": 3e-3}, "micro_batch_tokens": 64}
    engine = CriticEngine(
        CriticConfig.model_validate(
            {
                "model": str(model),
                "checkpoint_dir": tmp_path / "critic",
                "value_clip": "none",
                "learner": settings | learner,
            }
        )
    )
    engine.restore(1, "")
    first = engine.train(1, 0, 0, targets())
    assert first["value_loss"] == pytest.approx(0.5, abs=1e-6)  # every value is 0 at the start
    assert ("aux_loss" in first) == ("aux_loss_coef" in learner)
    for step in range(1, 8):
        last = engine.train(1, step, 0, targets())
    assert last["value_loss"] < 0.25
    engine.save(1, "a", [])
    saved = engine.values(1, targets())
    engine.train(1, 8, 0, targets())
    assert not torch.equal(torch.cat(engine.values(1, targets())), torch.cat(saved))
    engine.restore(2, "a")
    assert torch.equal(torch.cat(engine.values(2, targets())), torch.cat(saved))
