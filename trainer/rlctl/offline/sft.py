"""Supervised fine-tuning: cross-entropy on the responses' tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from rlctl.algorithms.aggregate import aggregate
from rlctl.algorithms.supervised import sft_loss
from rlctl.data.supervised import Example
from rlctl.learner.forward import LogprobHead, PolicyForward
from rlctl.learner.loss import Batch, LossOutput, Totals
from rlctl.learner.sequence import Sequence
from rlctl.offline.objective import Item, Objective


class GreedyHead(LogprobHead):
    """In eval mode it also tells which tokens are the likeliest after those before them."""

    def forward(
        self,
        hidden_KD: Tensor,
        targets_K: Tensor | None = None,
        temperature: float = 1.0,
        chunk: int | None = None,
        with_entropy: bool = False,
    ) -> Tensor:
        """As its base; in eval mode with a second row, 1 where greedy decoding gives the token, else 0."""
        outputs = super().forward(hidden_KD, targets_K, temperature, chunk, with_entropy)
        if self.training or targets_K is None or with_entropy:
            return outputs
        right = [
            super(LogprobHead, self).forward(states).argmax(-1) == targets
            for states, targets in zip(hidden_KD.split(chunk or 1024), targets_K.split(chunk or 1024), strict=True)
        ]
        return torch.cat((outputs, torch.cat(right).to(outputs.dtype).unsqueeze(0)))


class GreedyForward(PolicyForward):
    """Log-probs, and in eval mode whether greedy decoding gives each token."""

    head_type = GreedyHead


class SFTObjective(Objective):
    """The mean over all trained tokens of the optimizer step. Its learner's forward pass is `GreedyForward`."""

    def loss(self, batch: Batch, totals: Totals) -> LossOutput:
        return LossOutput(cross_entropy(batch, totals))

    def measured(self, batch: Batch, totals: Totals) -> LossOutput:
        return LossOutput(cross_entropy(batch, totals), greedy_accuracy(batch.rows_BT[1], batch))


def cross_entropy(batch: Batch, totals: Totals) -> Tensor:
    """The micro-batch's share of the mean cross-entropy of a trained token."""
    return aggregate(
        sft_loss(batch.logprobs_BT, batch.mask_BT),
        batch.mask_BT,
        "token",
        total_tokens=totals.tokens,
        total_sequences=totals.sequences,
        max_len=1,
    )


def greedy_accuracy(right_BT: Tensor, batch: Batch) -> dict[str, tuple[Tensor | float, Tensor | float]]:
    """`accuracy`: share of examples that greedy decoding gives token for token (their trained tokens, each after the
    given ones before it); `token_accuracy`: share of tokens."""
    right_BT = right_BT.bool() & batch.mask_BT
    whole_B = right_BT.sum(-1) == batch.mask_BT.sum(-1)
    return {
        "accuracy": (whole_B.sum(), len(whole_B)),
        "token_accuracy": (right_BT.sum(), batch.mask_BT.sum()),
    }


def to_item(example: Example) -> Item:
    """The trained tokens are those of the example's mask; none of the prompt."""
    return [
        Sequence(
            prompt_ids=torch.tensor(example.prompt_ids, dtype=torch.int64),
            response_ids=torch.tensor(example.response_ids, dtype=torch.int64),
            mask=torch.tensor(example.mask, dtype=torch.bool),
        )
    ]
