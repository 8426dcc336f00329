"""Reward models: the better response's score above the worse one's.

P pairs of a micro-batch; chosen and rejected are whole texts, scored at their last token.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlctl.algorithms.preference import pairwise_loss
from rlctl.data.preference import Pair
from rlctl.learner.folders import EMA
from rlctl.learner.learner import Learner
from rlctl.learner.loss import Batch, LossOutput, Totals
from rlctl.learner.sequence import Sequence
from rlctl.models.value_head import ValueModel
from rlctl.offline.objective import Item, Objective, sides

Metrics = dict[str, tuple[Tensor | float, Tensor | float]]


class RMObjective(Objective):
    """The mean over the pairs of the optimizer step."""

    group = 2

    def __init__(self, learner: Learner) -> None:
        super().__init__(learner)
        self._last: dict[str, float] = {}

    def loss(self, batch: Batch, totals: Totals) -> LossOutput:
        chosen_P, rejected_P = sides(batch.values_BT.sum(-1), batch)
        margin_P, _ = sides(batch.scalars["margin"], batch)
        loss_P = pairwise_loss(chosen_P, rejected_P, margin_P)
        return LossOutput(loss_P.sum() / max(totals.sequences / 2, 1), _metrics(chosen_P.detach(), rejected_P.detach()))

    def measured(self, batch: Batch, totals: Totals) -> LossOutput:
        return self.loss(batch, totals)

    def step(self, items: list[Item]) -> dict[str, float]:  # type: ignore[override]
        self._last = _with_deviation(super().step(items))
        return self._last

    def measure(self, items: list[Item]) -> dict[str, float]:  # type: ignore[override]
        return _with_deviation(super().measure(items))

    def finish(self, folder: Path, tokenizer: Any, measured: dict[str, float]) -> None:
        """Mean and deviation of rewards, and the pad that classifiers tell padding by, into the model's config."""
        told = measured if "reward_std" in measured else self._last
        for path in (folder / "config.json", folder / EMA / "config.json"):
            if path.is_file():
                config = json.loads(path.read_text())
                config |= {"mean": told.get("reward_mean"), "std": told.get("reward_std")}
                config |= {"pad_token_id": tokenizer.pad_token_id}
                path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _metrics(chosen_P: Tensor, rejected_P: Tensor) -> Metrics:
    pairs = len(chosen_P)
    rewards = torch.cat((chosen_P, rejected_P)).double()
    return {
        "accuracy": ((chosen_P > rejected_P).sum(), pairs),
        "margin": ((chosen_P - rejected_P).sum(), pairs),
        "reward_mean": (rewards.sum(), 2 * pairs),
        "reward_square": (rewards.square().sum(), 2 * pairs),
    }


def _with_deviation(metrics: dict[str, float]) -> dict[str, float]:
    square = metrics.pop("reward_square")
    return metrics | {"reward_std": math.sqrt(max(square - metrics["reward_mean"] ** 2, 0.0))}


def to_item(pair: Pair) -> Item:
    """Two texts. A value is that of the state before a wanted token, so behind each text stands one that nobody
    attends to: its state is that of the text's last token."""
    return [_scored(pair.prompt_ids + response, pair.margin) for response in (pair.chosen_ids, pair.rejected_ids)]


def _scored(ids: list[int], margin: float) -> Sequence:
    return Sequence(
        prompt_ids=torch.tensor(ids, dtype=torch.int64),
        response_ids=torch.zeros(1, dtype=torch.int64),
        mask=torch.ones(1, dtype=torch.bool),
        scalars={"margin": margin},
    )


def choose_pad(tokenizer: PreTrainedTokenizerBase, model: ValueModel) -> None:
    """Gives the tokenizer a pad token that is not its EOS, and the model an embedding for it where it has none.

    `AutoModelForSequenceClassification` reads the last token that is no pad: with a pad equal to the EOS it would
    read the token before the EOS, which was never trained.
    """
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id == tokenizer.eos_token_id:
        taken = {tokenizer.eos_token, tokenizer.bos_token, None}
        spare = [token for token in (tokenizer.unk_token, *tokenizer.all_special_tokens) if token not in taken]
        tokenizer.add_special_tokens({"pad_token": spare[0] if spare else "<|pad|>"})
    if tokenizer.pad_token_id >= model.backbone.get_input_embeddings().num_embeddings:
        model.backbone.resize_token_embeddings(tokenizer.pad_token_id + 1, mean_resizing=False)
