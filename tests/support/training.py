"""What tests of a learner train on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlctl.learner.config import LearnerConfig
from rlctl.learner.learner import Learner
from rlctl.learner.loss import Batch, LossOutput, Totals
from rlctl.learner.sequence import Sequence
from rlctl.models.load import load_causal_lm, load_value_model


def settings(**changes: Any) -> LearnerConfig:
    base = {"dtype": "float32", "optimizer": {"lr": 1e-3}, "micro_batch_tokens": 64}
    return LearnerConfig.model_validate(base | changes)


def policy(folder: Path, **changes: Any) -> Learner:
    config = settings(**changes)
    return Learner(load_causal_lm(folder, config.dtype, config.attention), config, total_steps=10)


def critic(folder: Path, **changes: Any) -> Learner:
    config = settings(**changes)
    return Learner(load_value_model(folder, config.dtype, seed=0), config, total_steps=10, value=True)


def sequences(seed: int = 0, count: int = 12) -> list[Sequence]:
    """Prompts of 3 to 6 tokens with responses of 5, all trained."""
    generator = torch.Generator().manual_seed(seed)
    ids = [torch.randint(4, 60, (3 + number % 4 + 5,), generator=generator) for number in range(count)]
    return [Sequence(row[:-5], row[-5:], torch.ones(5, dtype=torch.bool)) for row in ids]


def nll(batch: Batch, totals: Totals) -> LossOutput:
    total = -(batch.logprobs_BT * batch.mask_BT).sum()
    return LossOutput(total / totals.tokens, {"nll": (total, batch.mask_BT.sum())})


def square(batch: Batch, totals: Totals) -> LossOutput:
    """Values should be 1."""
    return LossOutput(((batch.values_BT - 1.0).square() * batch.mask_BT).sum() / totals.tokens)


def weights(learner: Learner) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in learner.export_weights()}


def plain_logprobs(model: Any, sequence: Sequence) -> Tensor:
    """The log-probs of a response by plain transformers."""
    ids = torch.cat([sequence.prompt_ids, sequence.response_ids])
    with torch.no_grad():
        logp = model(ids.unsqueeze(0)).logits[0, sequence.prompt_ids.numel() - 1 : -1].float().log_softmax(-1)
    return logp.gather(-1, sequence.response_ids.unsqueeze(-1)).squeeze(-1)


def plain_values(model: Any, sequence: Sequence) -> Tensor:
    """The values of a response by a plain sequence classifier, whose head is read before each token."""
    ids = torch.cat([sequence.prompt_ids, sequence.response_ids])
    with torch.no_grad():
        hidden = model.base_model(ids.unsqueeze(0)).last_hidden_state[0]
        return model.score(hidden).squeeze(-1).float()[sequence.prompt_ids.numel() - 1 : -1]
