"""A teacher behind the reference service: each micro-batch's distributions are asked for when it comes."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlctl.algorithms.distill import Told, told_cross_entropy, told_entropy
from rlctl.clients.blocking import ReferenceClient
from rlctl.clients.distributions import answer_bytes, tokens_told, too_large
from rlctl.core.errors import ConfigError, InternalError, RlctlError
from rlctl.learner.batch import MicroBatch
from rlctl.learner.sequence import Sequence
from rlctl.models.vocabulary import vocabulary_digest
from rlctl.offline.config import TeacherServiceConfig
from rlctl.offline.objective import PLACE, Item
from rlctl.offline.teacher import Lesson
from rlctl.rpc import codec
from rlctl.v1 import reference_pb2 as pb
from rlctl.v1 import tensor_pb2

logger = logging.getLogger(__name__)
DTYPES = {"float32": tensor_pb2.D_TYPE_FLOAT32, "bfloat16": tensor_pb2.D_TYPE_BFLOAT16}


@dataclass(frozen=True)
class _Distributions:
    """As the service told them; on the CPU."""

    told: Told

    def cross_entropy(self, hidden_KD: Tensor, weight_VD: Tensor) -> Tensor:
        return told_cross_entropy(hidden_KD, weight_VD, self.told)

    def entropy(self) -> Tensor:
        return told_entropy(self.told)


#: For a rank whose forward pass wants no token, but computes one that nobody reads.
_NOTHING = _Distributions(Told(torch.zeros(1, 1), torch.zeros(1, 1, dtype=torch.int32), torch.zeros(1)))


class ServedTeacher:
    """Replicas of one model, with which the student shares its tokenizer. Close it."""

    setting = "teacher_service"

    def __init__(self, config: TeacherServiceConfig, tokenizer: PreTrainedTokenizerBase) -> None:
        """Waits until one serves (`ready_timeout_s`).

        Raises ConfigError where none does in that time, or it does not let us in, or is another service, or its
        tokenizer is not the student's.
        """
        self._config = config
        self._where = ", ".join(config.addresses)
        self._digest = vocabulary_digest(tokenizer)
        self._items: Seq[Item] = []
        self._client = ReferenceClient(config)
        logger.info("waiting for the teacher at %s (%g s at most)", self._where, config.ready_timeout_s)
        try:
            self._info = self._describe()
        except BaseException:
            self.close()
            raise
        self.vocabulary = int(self._info.vocab_size)

    def _describe(self) -> pb.GetReferenceInfoResponse:
        try:
            self._client.ready()
            info = self._client.get_reference_info()
        except RlctlError as error:
            raise ConfigError(
                f"teacher_service: {error.message}. Start it (rlctl serve reference model=... "
                f"server.listen={self._config.addresses[0]}), or correct teacher_service"
            ) from error
        if info.tokenizer_digest != self._digest:
            what = "has another tokenizer than the model" if info.tokenizer_digest else "has no tokenizer"
            raise ConfigError(
                f"teacher_service: {info.model}, which {self._where} serves, {what}; distillation compares "
                "distributions over one vocabulary: serve a teacher whose tokenizer gives every token the same id"
            )
        return info

    def prepare(self, items: Seq[Item]) -> None:
        config = self._config
        longest = max((s.response_ids.numel() for item in items for s in item), default=0)
        dtype = DTYPES[config.dtype]
        size = answer_bytes(longest, top_k=config.top_k, vocabulary=self.vocabulary, dtype=dtype)
        limit = min(config.max_message_mb << 20, self._info.max_message_bytes)
        if size > limit:
            what = f"teacher_service: the longest response has {longest} tokens"
            raise ConfigError(too_large(what, size, limit, top_k=config.top_k, vocabulary=self.vocabulary).message)

    def take(self, items: Seq[Item]) -> None:
        self._items = items

    def lesson(self, batch: MicroBatch) -> Lesson:
        """Raises the RlctlError of a service that does not answer, `timeout_s` being for each of its calls."""
        slots_K = _own_slots(batch)
        if PLACE not in batch.scalars or not slots_K.numel():
            return _NOTHING
        rows_K, steps_K = (slots_K // batch.shape[1]).numpy(), (slots_K % batch.shape[1]).numpy()
        places = batch.scalars[PLACE].tolist()
        asked = {int(row): self._items[int(places[row])][0] for row in np.unique(rows_K)}
        answers = self._ask(list(asked.values()))
        table = _Table(len(rows_K), self._config, self.vocabulary)
        for (row, sequence), answer in zip(asked.items(), answers, strict=True):
            where = rows_K == row
            table.fill(where, steps_K[where], answer, sequence.response_ids.numel())
        return _Distributions(table.told())

    def _ask(self, sequences: list[Sequence]) -> list[pb.TokenDistributions]:
        request = pb.ComputeDistributionsRequest(
            temperature=1.0,
            top_k=self._config.top_k,
            dtype=DTYPES[self._config.dtype],
            tokenizer_digest=self._digest,
        )
        for sequence in sequences:
            request.sequences.add(prompt_ids=sequence.prompt_ids.tolist(), response_ids=sequence.response_ids.tolist())
        try:
            return self._client.compute_distributions(request)
        except RlctlError as error:
            raise type(error)(f"teacher_service: {error.message}", reason=error.reason) from error

    def close(self) -> None:
        self._client.close()


class _Table:
    """The distributions at the wanted tokens of a micro-batch, filled sequence by sequence."""

    def __init__(self, tokens: int, config: TeacherServiceConfig, vocabulary: int) -> None:
        self._width = tokens_told(config.top_k, vocabulary)
        half = config.dtype == "bfloat16"
        self._logprobs = np.empty((tokens, self._width), np.uint16 if half else np.float32)
        self._whole = self._width == vocabulary
        self._ids = np.empty((tokens, 0 if self._whole else self._width), np.int32)
        self._tail = np.empty(tokens, np.float32)

    def fill(self, where: np.ndarray, steps: np.ndarray, answer: pb.TokenDistributions, length: int) -> None:
        """Takes the `steps` of a response of `length` tokens as the rows `where`."""
        self._logprobs[where] = _rows(answer.logprobs, (length, self._width), self._logprobs.dtype)[steps]
        if not self._whole:
            self._ids[where] = _rows(answer.token_ids, (length, self._width), self._ids.dtype)[steps]
            self._tail[where] = _rows(answer.tail_logmass, (length,), self._tail.dtype)[steps]

    def told(self) -> Told:
        logprobs = torch.from_numpy(self._logprobs)
        logprobs = logprobs.view(torch.bfloat16) if logprobs.dtype == torch.uint16 else logprobs
        if self._whole:
            return Told(logprobs)
        return Told(logprobs, torch.from_numpy(self._ids), torch.from_numpy(self._tail))


def _rows(tensor: tensor_pb2.Tensor, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    array = codec.decode(tensor, "distributions")
    if array.shape != shape or array.dtype != dtype:
        raise InternalError(
            f"teacher_service: it answered with {array.dtype} {array.shape} where {dtype} {shape} was asked for"
        )
    return array


def _own_slots(batch: MicroBatch) -> Tensor:
    """`slots_K` of the tokens whose outputs this rank computes, on the CPU."""
    slots_K, spread = batch.slots_K.cpu(), batch.spread
    return slots_K if spread is None else slots_K[(spread.order_K // spread.width == spread.group.rank).cpu()]
