"""Distillation: the student learns the teacher's distribution over every next token of given responses.

K wanted tokens, B sequences, T response tokens, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlctl.algorithms.aggregate import aggregate
from rlctl.algorithms.distill import distillation_loss
from rlctl.algorithms.masking import masked
from rlctl.core.errors import ConfigError
from rlctl.learner.batch import MicroBatch
from rlctl.learner.forward import PolicyForward, backbone_states, everywhere
from rlctl.learner.learner import Learner
from rlctl.learner.loss import Batch, LossOutput, Totals
from rlctl.learner.sequence import Sequence
from rlctl.offline.objective import Item, Objective
from rlctl.offline.sft import GreedyHead, greedy_accuracy
from rlctl.offline.teacher import Lesson, Teacher


class DistillHead(GreedyHead):
    """The output embedding, which is also compared with a teacher's distributions."""

    def forward(
        self,
        hidden_KD: Tensor,
        targets_K: Tensor | None = None,
        temperature: float = 1.0,
        chunk: int | None = None,
        with_entropy: bool = False,
        lesson: Lesson | None = None,
    ) -> Tensor:
        """As its base, with one row behind: cross-entropy to the teacher."""
        outputs = super().forward(hidden_KD, targets_K, temperature, chunk, with_entropy)
        if lesson is None:
            return outputs
        soft_K = lesson.cross_entropy(hidden_KD * self.scale, self.weight)
        return torch.cat((outputs, soft_K.unsqueeze(0).to(outputs.dtype)))


class DistillForward(PolicyForward):
    """Log-probs and cross-entropy to the teacher, `[2, K]`; in eval mode `[4, K]`: log-probs, whether greedy decoding
    gives the token, cross-entropy to the teacher, the teacher's entropy."""

    head_type = DistillHead

    def __init__(self, model: PreTrainedModel, chunk: int, teacher: Teacher) -> None:
        """Raises ConfigError when the vocabularies differ in size."""
        super().__init__(model, chunk)
        self._teacher = teacher
        head = model.get_output_embeddings()
        if head.weight.shape[0] != teacher.vocabulary:
            raise ConfigError(
                f"{teacher.setting}: its vocabulary has {teacher.vocabulary} tokens and the model's "
                f"{head.weight.shape[0]}; distillation compares distributions over one vocabulary: choose a teacher "
                "of the same family"
            )
        if head.bias is not None:
            raise ConfigError("model: output embeddings with a bias cannot learn by distillation")

    def forward(
        self, batch: MicroBatch, temperature: float = 1.0, entropy: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        hidden, balance = backbone_states(self.model.base_model, batch, self.balance)
        states_KD = batch.wanted(hidden)
        with torch.no_grad():
            lesson = self._teacher.lesson(batch)
        head = self.model.get_output_embeddings()
        found = head(states_KD, batch.targets_K, temperature, self.chunk, False, lesson)
        if not self.training:
            found = torch.cat((found, lesson.entropy().unsqueeze(0).to(found)))
        outputs = everywhere(found, batch)
        return outputs if balance is None else (outputs, balance)


class KDObjective(Objective):
    """The mean over all trained tokens of the optimizer step. Its learner's forward pass is `DistillForward`."""

    def __init__(self, learner: Learner, alpha: float, teacher: Teacher) -> None:
        """`teacher` is the one that the forward pass asks."""
        super().__init__(learner)
        self._alpha = alpha
        self._teacher = teacher

    def prepare(self, items: Seq[Item], held_out: Seq[Item]) -> None:
        self._teacher.prepare([*items, *held_out])

    def share(self, items: Seq[Item]) -> list[Sequence]:
        self._teacher.take(items)
        return super().share(items)

    def close(self) -> None:
        self._teacher.close()

    def loss(self, batch: Batch, totals: Totals) -> LossOutput:
        return self._loss(batch, totals, batch.rows_BT[1])

    def measured(self, batch: Batch, totals: Totals) -> LossOutput:
        _, right_BT, soft_BT, entropy_BT = batch.rows_BT
        output = self._loss(batch, totals, soft_BT)
        kl = masked(soft_BT - entropy_BT, batch.mask_BT).sum()
        found = {"kl": (kl, batch.mask_BT.sum())} | greedy_accuracy(right_BT, batch)
        return LossOutput(output.loss, output.metrics | found)

    def _loss(self, batch: Batch, totals: Totals, soft_BT: Tensor) -> LossOutput:
        tokens = batch.mask_BT.sum()
        loss = aggregate(
            distillation_loss(batch.logprobs_BT, soft_BT, self._alpha),
            batch.mask_BT,
            "token",
            total_tokens=totals.tokens,
            total_sequences=totals.sequences,
            max_len=1,
        )
        nll = -masked(batch.logprobs_BT, batch.mask_BT).sum().detach()
        soft = masked(soft_BT, batch.mask_BT).sum().detach()
        return LossOutput(loss, {"nll": (nll, tokens), "teacher_ce": (soft, tokens)})
