"""Whom a student learns from, and the teacher that every rank holds in memory.

K wanted tokens of a micro-batch, D and E the hidden sizes of student and teacher, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlctl.algorithms.distill import soft_cross_entropy
from rlctl.core.errors import ConfigError
from rlctl.learner.batch import MicroBatch
from rlctl.learner.forward import LogprobHead, PolicyForward, backbone_states
from rlctl.offline.objective import Item


class Lesson(Protocol):
    """The teacher's distributions at the wanted tokens of a micro-batch (of this rank's columns)."""

    def cross_entropy(self, hidden_KD: Tensor, weight_VD: Tensor) -> Tensor:
        """Of a student with these last states and output embeddings, `[K]`, float32, with gradient."""

    def entropy(self) -> Tensor:
        """Of the teacher itself, `[K]`, float32."""


class Teacher(Protocol):
    """Gives a lesson for every micro-batch."""

    setting: str
    """Names it in errors."""
    vocabulary: int
    """Tokens of its distributions."""

    def prepare(self, items: Seq[Item]) -> None:
        """Called once with all items, behind the learner (which sets the device) and before the first step.

        Raises ConfigError where it cannot teach one.
        """

    def take(self, items: Seq[Item]) -> None:
        """Called with the items of all ranks before the forward passes over them."""

    def lesson(self, batch: MicroBatch) -> Lesson:
        """Called in every forward pass, without gradient."""

    def close(self) -> None:
        """Called at the end."""


@dataclass(frozen=True)
class _States:
    """The teacher's last states, scaled as its logits are, and its output embeddings."""

    hidden_KE: Tensor
    weight_VE: Tensor

    def cross_entropy(self, hidden_KD: Tensor, weight_VD: Tensor) -> Tensor:
        return soft_cross_entropy(hidden_KD, weight_VD, self.hidden_KE, self.weight_VE)

    def entropy(self) -> Tensor:
        return soft_cross_entropy(self.hidden_KE, self.weight_VE, self.hidden_KE, self.weight_VE)


class LocalTeacher:
    """A model in memory, neither trained, nor parted over ranks, nor saved."""

    setting = "teacher"

    def __init__(self, model: PreTrainedModel) -> None:
        """Raises ConfigError for a model that cannot be compared with."""
        self._model = PolicyForward(model, 1).requires_grad_(False).eval().model
        self._head = model.get_output_embeddings()
        assert isinstance(self._head, LogprobHead)
        if self._head.bias is not None:
            raise ConfigError("teacher: output embeddings with a bias cannot be distilled", reason="UNSUPPORTED_MODEL")
        self.vocabulary = self._head.weight.shape[0]

    def prepare(self, items: Seq[Item]) -> None:
        if torch.cuda.is_available():
            self._model.to(torch.device("cuda", torch.cuda.current_device()))

    def take(self, items: Seq[Item]) -> None:
        pass

    def lesson(self, batch: MicroBatch) -> Lesson:
        hidden, _ = backbone_states(self._model.base_model, batch, False)
        states_KE = batch.wanted(hidden)
        return _States(states_KE * self._head.scale, self._head.weight)

    def close(self) -> None:
        pass


def check_tokenizers(student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase) -> None:
    """Raises ConfigError unless both give every token the same id."""
    ours, theirs = student.get_vocab(), teacher.get_vocab()
    if ours != theirs:
        other = next((token for token, number in theirs.items() if ours.get(token) != number), None)
        example = (
            f"{other!r} is {theirs[other]} there and {ours.get(other)} here" if other is not None else "it lacks tokens"
        )
        raise ConfigError(f"teacher: its tokenizer is another one than the model's ({example})")
