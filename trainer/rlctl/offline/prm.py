"""Process reward models: each step of reasoning is judged at the placeholder that ends it.

K placeholders, R = 2 reward tokens (right, wrong), B sequences, T tokens after the first, D hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlctl.algorithms.supervised import process_reward_loss
from rlctl.data.process import Steps
from rlctl.learner.forward import LogprobHead, PolicyForward
from rlctl.learner.learner import Learner
from rlctl.learner.loss import Batch, LossOutput, Totals
from rlctl.learner.sequence import Sequence
from rlctl.offline.objective import Item, Objective

#: Field of a sequence: the probability that the step which ends at a token is right.
LABELS = "labels"


class RewardTokensHead(LogprobHead):
    """The output embedding's logits of the reward tokens alone."""

    tokens: tuple[int, ...] = ()

    def forward(
        self,
        hidden_KD: Tensor,
        targets_K: Tensor | None = None,
        temperature: float = 1.0,
        chunk: int | None = None,
        with_entropy: bool = False,
    ) -> Tensor:
        """`[R, K]` logits, at least float32; without targets the logits of the whole vocabulary."""
        if targets_K is None:
            return super().forward(hidden_KD)
        tokens = torch.tensor(self.tokens, device=hidden_KD.device)
        wide = torch.promote_types(hidden_KD.dtype, torch.float32)
        logits_RK = self.weight[tokens].to(wide) @ hidden_KD.to(wide).T
        if self.bias is not None:
            logits_RK = logits_RK + self.bias[tokens].unsqueeze(-1)
        return logits_RK * (self.scale / temperature)


class RewardForward(PolicyForward):
    """The logits of the reward tokens at each wanted place."""

    head_type = RewardTokensHead

    def __init__(self, model: PreTrainedModel, chunk: int, tokens: tuple[int, int]) -> None:
        super().__init__(model, chunk)
        head = model.get_output_embeddings()
        assert isinstance(head, RewardTokensHead)
        head.tokens = tokens


class PRMObjective(Objective):
    """The mean over the judged steps of the optimizer step. Its learner's forward pass is `RewardForward`."""

    def __init__(self, learner: Learner, *, soft: bool) -> None:
        super().__init__(learner)
        self._soft = soft

    def loss(self, batch: Batch, totals: Totals) -> LossOutput:
        logits_NR = torch.stack(batch.rows_BT, -1)[batch.mask_BT]
        labels_N = batch.fields[LABELS][batch.mask_BT]
        wrong_N = (labels_N < 0.5).long()
        loss_N = process_reward_loss(logits_NR, labels_N if self._soft else wrong_N)
        right = (logits_NR.argmax(-1) == wrong_N).sum()
        return LossOutput(loss_N.sum() / max(totals.tokens, 1), {"accuracy": (right, len(labels_N))})

    def measured(self, batch: Batch, totals: Totals) -> LossOutput:
        return self.loss(batch, totals)


def to_item(steps: Steps) -> Item:
    """The state *at* a placeholder is what the next token is predicted from: that token's place is the wanted one,
    and a token that nobody attends to stands behind the last."""
    ids = torch.tensor([*steps.input_ids, 0], dtype=torch.int64)
    mask = torch.zeros(len(ids) - 1, dtype=torch.bool)
    labels = torch.zeros(len(ids) - 1)
    positions = torch.tensor(steps.positions, dtype=torch.int64)
    mask[positions] = True
    labels[positions] = torch.tensor(steps.labels, dtype=torch.float32)
    return [Sequence(ids[:1], ids[1:], mask, {LABELS: labels})]
