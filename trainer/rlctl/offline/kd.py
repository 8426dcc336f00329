"""Distillation: the student learns the teacher's distribution over every next token of given responses.

K wanted tokens, B sequences, T response tokens, D and E hidden sizes of student and teacher, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlctl.algorithms.aggregate import aggregate
from rlctl.algorithms.distill import distillation_loss, soft_cross_entropy
from rlctl.algorithms.masking import masked
from rlctl.core.errors import ConfigError
from rlctl.learner.batch import MicroBatch
from rlctl.learner.forward import LogprobHead, PolicyForward, backbone_states, everywhere
from rlctl.learner.learner import Learner
from rlctl.learner.loss import Batch, LossOutput, Totals
from rlctl.models.rows import take
from rlctl.offline.objective import Objective
from rlctl.offline.sft import GreedyHead, greedy_accuracy


class DistillHead(GreedyHead):
    """The output embedding, which also compares with a teacher's."""

    def forward(
        self,
        hidden_KD: Tensor,
        targets_K: Tensor | None = None,
        temperature: float = 1.0,
        chunk: int | None = None,
        with_entropy: bool = False,
        teacher_KE: Tensor | None = None,
        teacher_VE: Tensor | None = None,
    ) -> Tensor:
        """As its base, with rows behind: cross-entropy to the teacher and, in eval mode, the teacher's entropy.

        `teacher_KE` are the teacher's states, scaled as its logits are.
        """
        outputs = super().forward(hidden_KD, targets_K, temperature, chunk, with_entropy)
        if teacher_KE is None or teacher_VE is None:
            return outputs
        rows = [soft_cross_entropy(hidden_KD * self.scale, self.weight, teacher_KE, teacher_VE)]
        if not self.training:
            rows.append(soft_cross_entropy(teacher_KE, teacher_VE, teacher_KE, teacher_VE))
        return torch.cat((outputs, torch.stack(rows).to(outputs.dtype)))


class DistillForward(PolicyForward):
    """Log-probs and cross-entropy to the teacher, `[2, K]`; in eval mode `[4, K]`: log-probs, whether greedy decoding
    gives the token, cross-entropy to the teacher, the teacher's entropy."""

    head_type = DistillHead

    def __init__(self, model: PreTrainedModel, chunk: int, teacher: PreTrainedModel) -> None:
        """Raises ConfigError when the vocabularies differ in size."""
        super().__init__(model, chunk)
        device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else None
        # Not a submodule: neither trained, nor parted over ranks, nor saved.
        self._teacher = (PolicyForward(teacher.to(device), chunk).requires_grad_(False).eval(),)
        sizes = [each.get_output_embeddings().weight.shape[0] for each in (model, teacher)]
        if sizes[0] != sizes[1]:
            raise ConfigError(
                f"teacher: its vocabulary has {sizes[1]} tokens and the model's {sizes[0]}; distillation compares "
                "distributions over one vocabulary: choose a teacher of the same family"
            )
        if any(each.get_output_embeddings().bias is not None for each in (model, teacher)):
            raise ConfigError("teacher: output embeddings with a bias cannot be distilled", reason="UNSUPPORTED_MODEL")

    def forward(
        self, batch: MicroBatch, temperature: float = 1.0, entropy: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        hidden, balance = backbone_states(self.model.base_model, batch, self.balance)
        states_KD = take(hidden.flatten(0, 1), batch.states_K, batch.repeats_K)
        teacher = self._teacher[0].model
        with torch.no_grad():
            seen, _ = backbone_states(teacher.base_model, batch, False)
            head = teacher.get_output_embeddings()
            assert isinstance(head, LogprobHead)
            teacher_KE = take(seen.flatten(0, 1), batch.states_K) * head.scale
        found = self.model.get_output_embeddings()(
            states_KD, batch.targets_K, temperature, self.chunk, False, teacher_KE, head.weight
        )
        outputs = everywhere(found, batch)
        return outputs if balance is None else (outputs, balance)


class KDObjective(Objective):
    """The mean over all trained tokens of the optimizer step. Its learner's forward pass is `DistillForward`."""

    def __init__(self, learner: Learner, alpha: float) -> None:
        super().__init__(learner)
        self._alpha = alpha

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


def check_tokenizers(student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase) -> None:
    """Raises ConfigError unless both give every token the same id."""
    ours, theirs = student.get_vocab(), teacher.get_vocab()
    if ours != theirs:
        other = next((token for token, number in theirs.items() if ours.get(token) != number), None)
        example = (
            f"{other!r} is {theirs[other]} there and {ours.get(other)} here" if other is not None else "it lacks tokens"
        )
        raise ConfigError(f"teacher: its tokenizer is another one than the model's ({example})")
