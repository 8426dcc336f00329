"""The same batch through our objectives and through TRL's own trainers: SFT, DPO, IPO, KTO, to 1e-5.

Their loss methods run on a stand-in `self` that holds settings, with real models that they have prepared.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from rlctl.learner.config import LearnerConfig, OptimizerConfig
from rlctl.learner.learner import Learner
from rlctl.learner.sequence import Sequence
from rlctl.models.load import load_causal_lm
from rlctl.offline import dpo, kto, sft
from rlctl.offline.config import DPOConfig, KTOConfig
from support.offline_rank import Watched, draw, reference
from support.tiny import tiny_llama

pytestmark = pytest.mark.optional
BETA = 0.3
CONFIG = LearnerConfig(dtype="float32", zero_stage=0, optimizer=OptimizerConfig(lr=1e-30, max_grad_norm=0.0))
DATA: Any = [{"path": "unread"}]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return tiny_llama(folder / "policy", hidden=32, seed=1), tiny_llama(folder / "other", hidden=32, seed=2)


@pytest.fixture
def theirs(folders):
    """TRL, and the two models as its trainers prepare them."""
    trainers = pytest.importorskip("trl.trainer", reason="needs trl==1.16.0")
    from trl.trainer.utils import add_fused_lm_head

    models = [AutoModelForCausalLM.from_pretrained(folder) for folder in folders]
    for model in models:
        add_fused_lm_head(model, outputs=("log_probs", "entropy", "mean_logits", "is_top1"))
    return trainers, *models


def stand_in(policy: PreTrainedModel, other: PreTrainedModel, **settings: Any) -> SimpleNamespace:
    accelerator = SimpleNamespace(
        device=torch.device("cpu"), num_processes=1, gather=lambda x: x, gather_for_metrics=lambda x: x,
        reduce=lambda x, reduction: x, unwrap_model=lambda x: x, parallelism_config=None,
    )  # fmt: skip
    defaults = {
        "model": policy.train(), "ref_model": other.eval(), "accelerator": accelerator, "aux_loss_enabled": False,
        "_metrics": {"train": defaultdict(list), "eval": defaultdict(list)}, "_total_train_tokens": 0, "_tp_size": 1,
        "precompute_ref_logps": False, "beta": BETA, "compute_loss_func": None, "label_smoother": None,
    }  # fmt: skip
    arguments = SimpleNamespace(
        gradient_checkpointing_kwargs=None, loss_type="nll", average_tokens_across_devices=False
    )
    return SimpleNamespace(**(defaults | {"args": arguments} | settings))


def padded(sequences: list[Sequence]) -> dict[str, Tensor]:
    longest = max(map(len, sequences))
    ids = torch.zeros(len(sequences), longest, dtype=torch.int64)
    attention, completion = torch.zeros_like(ids), torch.zeros_like(ids)
    for row, s in enumerate(sequences):
        whole = torch.cat([s.prompt_ids, s.response_ids])
        ids[row, : len(whole)] = whole
        attention[row, : len(whole)] = 1
        completion[row, len(s.prompt_ids) : len(whole)] = s.mask.long()
    return {"input_ids": ids, "attention_mask": attention, "completion_mask": completion}


def check(loss: Tensor, policy: PreTrainedModel, objective: Any, items: Any) -> None:
    """Values to 1e-5, and the gradient too."""
    loss.backward()
    wanted = torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])
    assert objective.step(items)["loss"] == pytest.approx(loss.item(), rel=1e-5)
    found = objective.learner.gradient
    assert float((found - wanted).norm() / wanted.norm()) < 1e-5


def learner(folder: Any, **more: Any) -> Learner:
    return Watched(load_causal_lm(folder, "float32"), CONFIG, total_steps=1, **more)


def test_sft(theirs, folders):
    trl, policy, other = theirs
    items = [sft.to_item(example) for example in draw()[0]]
    inputs = padded([item[0] for item in items])
    inputs["labels"] = inputs["input_ids"].masked_fill(inputs.pop("completion_mask") == 0, -100)
    loss = trl.SFTTrainer.compute_loss(stand_in(policy, other), policy, inputs)
    check(loss, policy, sft.SFTObjective(learner(folders[0], forward=sft.GreedyForward)), items)


@pytest.mark.parametrize("kind", ["sigmoid", "ipo"])
def test_dpo(theirs, folders, kind):
    trl, policy, other = theirs
    items = [dpo.to_item(pair) for pair in draw()[1]]
    trainer = stand_in(
        policy, other, ld_alpha=None, f_divergence_type="reverse_kl", loss_types=[kind], loss_weights=[1.0],
        use_weighting=False, label_smoothing=0.0,
    )  # fmt: skip
    inputs = padded([item[side] for side in (0, 1) for item in items])
    loss = trl.DPOTrainer._compute_loss(trainer, policy, inputs, False)
    config = DPOConfig(data=DATA, beta=BETA, loss=kind, length_normalized=kind == "ipo")
    objective = dpo.DPOObjective(learner(folders[0]), config, reference(str(folders[1]), CONFIG, precompute=True))
    objective.prepare(items, [])
    check(loss, policy, objective, items)


def test_kto(theirs, folders):
    trl, policy, other = theirs
    judged = draw()[2]
    items = kto.to_items(judged)
    trainer = stand_in(
        policy, other, calculate_KL=True, loss_type="kto", desirable_weight=1.5, undesirable_weight=0.5,
    )  # fmt: skip
    trainer._compute_kl_logps = lambda model, batch: trl.KTOTrainer._compute_kl_logps(trainer, model, batch)
    mismatched = {f"KL_{name}": value for name, value in padded([item[1] for item in items]).items()}
    inputs = padded([item[0] for item in items]) | mismatched
    inputs["label"] = torch.tensor([each.desirable for each in judged])
    loss = trl.KTOTrainer._compute_loss(trainer, policy, inputs, False)
    config = KTOConfig(data=DATA, beta=BETA, desirable_weight=1.5, undesirable_weight=0.5)
    objective = kto.KTOObjective(learner(folders[0]), config, reference(str(folders[1]), CONFIG, precompute=False))
    check(loss, policy, objective, items)
