"""The value model on all its ranks.

Rank 0 takes the calls and tells the other ranks by broadcast bytes; every rank then does the same thing:

    rank 0   call ─► checks ─► broadcast(command) ─► learner ─► answer
    rank 1.. follow(): wait ─► command ─► learner ─► wait ...

A rank that fails ends its process; the others then fail in the collective they are in, or in the next one. Rank 0 must
end its process when anything but an RlctlError comes out of a call, for the ranks are no longer in step.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

from torch import Tensor

from rlctl.algorithms.aggregate import aggregate
from rlctl.algorithms.value_loss import value_loss
from rlctl.core.errors import FailedPreconditionError
from rlctl.critic.checkpoints import Checkpoints
from rlctl.critic.config import CriticConfig
from rlctl.learner import distributed
from rlctl.learner.batch import share_out
from rlctl.learner.learner import Learner
from rlctl.learner.loss import Batch, LossOutput, Totals
from rlctl.learner.sequence import Sequence, decode, encode
from rlctl.learner.wire import Limits
from rlctl.models.load import load_value_model
from rlctl.models.source import resolve

#: Answers of optimizer steps kept for callers that ask again.
_REMEMBERED = 256


class CriticEngine:
    """Not for several threads at once; all but `follow` are called on rank 0 only."""

    def __init__(self, config: CriticConfig) -> None:
        """Joins the ranks and loads the model. Raises NotFoundError, ConfigError."""
        self._config = config
        distributed.initialise()
        self._model = resolve(config.model)
        self._learner = self._build()
        self._checkpoints = Checkpoints(config.checkpoint_dir)
        self._answers: dict[tuple[int, int], dict[str, float]] = {}
        self._restored_by: int | None = None

    @property
    def limits(self) -> Limits:
        config = self._learner.model_config
        return Limits(config.vocab_size, config.max_position_embeddings)

    def values(self, epoch: int, sequences: Seq[Sequence]) -> list[Tensor]:
        """The value of the state before each response token, float32 `[T]` each, in order."""
        self._enter(epoch)
        if not sequences:
            return []
        return self._command({"do": "values"}, sequences)

    def train(self, epoch: int, step: int, minibatch: int, sequences: Seq[Sequence]) -> dict[str, float]:
        """One optimizer step on fields `old_values` and `returns`; a step already taken is answered from memory."""
        self._enter(epoch)
        key = (step, minibatch)
        if key in self._answers:
            return self._answers[key]
        if self._answers and key < max(self._answers):
            raise FailedPreconditionError(
                f"step {step} minibatch {minibatch} comes after {max(self._answers)}: steps are taken in order",
                reason="OUT_OF_ORDER",
            )
        metrics: dict[str, float] = self._command({"do": "train"}, sequences)
        self._answers[key] = metrics
        for old in sorted(self._answers)[:-_REMEMBERED]:
            del self._answers[old]
        return metrics

    def save(self, epoch: int, tag: str, keep: Seq[str]) -> None:
        """Writes weights, optimizer and schedule under `tag`; all other tags but `keep` are deleted."""
        self._enter(epoch)
        folder = self._checkpoints.begin(tag)
        self._command({"do": "save", "folder": str(folder)})
        self._checkpoints.commit(tag, keep)

    def restore(self, epoch: int, tag: str) -> None:
        """Goes back to `tag`, or with "" to the state at the start. Every trainer calls it before anything else."""
        self._checkpoints.enter(epoch)
        folder = str(self._checkpoints.path(tag)) if tag else ""
        self._command({"do": "restore", "folder": folder})
        self._answers.clear()
        self._restored_by = epoch

    def close(self) -> None:
        """Lets the other ranks end."""
        if distributed.world_size() > 1:
            distributed.broadcast_bytes(b'{"do": "end"}\n')

    def follow(self) -> None:
        """What ranks above 0 do until rank 0 closes."""
        while True:
            header, _, body = distributed.broadcast_bytes().partition(b"\n")
            command = json.loads(header)
            if command["do"] == "end":
                return
            self._do(command, decode(body) if body else [])

    def _enter(self, epoch: int) -> None:
        self._checkpoints.enter(epoch)
        if self._restored_by != epoch:
            raise FailedPreconditionError(
                f"the critic was started since the trainer of epoch {epoch} last told it where to begin; "
                "call LoadCheckpoint first (an empty tag is the start)",
                reason="NOT_RESTORED",
            )

    def _command(self, command: dict[str, str], sequences: Seq[Sequence] = ()) -> Any:
        body = encode(sequences) if sequences and distributed.world_size() > 1 else b""
        distributed.broadcast_bytes(json.dumps(command).encode() + b"\n" + body)
        return self._do(command, sequences)

    def _do(self, command: dict[str, str], sequences: Seq[Sequence]) -> Any:
        """The same on every rank."""
        match command["do"]:
            case "values":
                return self._values(sequences)
            case "train":
                mine = self._share(sequences)[distributed.rank()]
                return self._learner.step([sequences[index] for index in mine], self._loss)
            case "save":
                return self._learner.save(Path(command["folder"]))
            case "restore":
                return self._restore(command["folder"])
            case other:
                raise AssertionError(other)

    def _values(self, sequences: Seq[Sequence]) -> list[Tensor]:
        shares = self._share(sequences)
        values = self._learner.values([sequences[index] for index in shares[distributed.rank()]])
        placed = {
            index: value
            for share, found in zip(shares, distributed.gather_ragged(values), strict=True)
            for index, value in zip(share, found, strict=True)
        }
        return [placed[index] for index in range(len(sequences))]

    def _share(self, sequences: Seq[Sequence]) -> list[list[int]]:
        return share_out([len(sequence) for sequence in sequences], distributed.world_size())

    def _loss(self, batch: Batch, totals: Totals) -> LossOutput:
        old_BT, returns_BT, mask_BT = batch.fields["old_values"], batch.fields["returns"], batch.mask_BT
        clip = self._config.value_clip
        loss_BT = value_loss(batch.values_BT, old_BT, returns_BT, mask_BT, clip)
        loss = aggregate(
            loss_BT,
            mask_BT,
            "token",
            total_tokens=totals.tokens,
            total_sequences=totals.sequences,
            max_len=mask_BT.shape[1],
        )
        count = mask_BT.sum()
        values_BT = batch.values_BT.detach()
        metrics = {"value_loss": (loss_BT.detach().sum(), count), "value_mean": ((values_BT * mask_BT).sum(), count)}
        if clip is not None:
            clipped_BT = ((values_BT - old_BT).abs() > clip) & mask_BT
            metrics["value_clip_fraction"] = (clipped_BT.sum(), count)
        return LossOutput(loss, dict(metrics))

    def _restore(self, folder: str) -> None:
        if folder:
            self._learner.load(Path(folder))
        elif self._learner.steps:
            del self._learner
            gc.collect()
            self._learner = self._build()

    def _build(self) -> Learner:
        settings = self._config.learner
        model = load_value_model(
            self._model, settings.dtype, settings.attention, trust_remote_code=settings.trust_remote_code
        )
        return Learner(model, settings, total_steps=self._config.total_steps, value=True, seed=self._config.seed)
