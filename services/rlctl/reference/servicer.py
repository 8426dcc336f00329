"""ReferenceService: translation alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import grpc.aio
import torch
from torch import Tensor

from rlctl.algorithms.distill import Told
from rlctl.clients.distributions import answer_bytes, too_large
from rlctl.core.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError
from rlctl.learner import wire
from rlctl.learner.sequence import Sequence
from rlctl.reference.batcher import Batcher
from rlctl.reference.config import ReferenceConfig
from rlctl.reference.engine import ReferenceEngine
from rlctl.rpc import codec
from rlctl.rpc.health import Health
from rlctl.v1 import reference_pb2 as pb
from rlctl.v1 import tensor_pb2
from rlctl.v1.reference_pb2_grpc import ReferenceServiceServicer, add_ReferenceServiceServicer_to_server


@dataclass(frozen=True)
class _Loaded:
    """What serves once the model is there."""

    limits: wire.Limits
    info: pb.GetReferenceInfoResponse
    logprobs: Batcher[Sequence, float, Tensor]
    distributions: Batcher[Sequence, tuple[float, int], Told]


class ReferenceHosted(ReferenceServiceServicer):
    """The reference service as `rlctl.rpc.service` runs it."""

    def __init__(self, config: ReferenceConfig) -> None:
        self._config = config
        self._max_bytes = config.server.max_message_mb << 20
        self._loaded: _Loaded | None = None

    def register(self, server: grpc.aio.Server) -> list[str]:
        add_ReferenceServiceServicer_to_server(self, server)
        return [pb.DESCRIPTOR.services_by_name["ReferenceService"].full_name]

    async def load(self, health: Health) -> None:
        engine = await asyncio.to_thread(ReferenceEngine, self._config)
        info = pb.GetReferenceInfoResponse(
            model=self._config.model,
            dtype=self._config.dtype,
            vocab_size=engine.vocabulary,
            max_length=engine.limits.length,
            tokenizer_digest=await asyncio.to_thread(engine.tokenizer_digest),
            max_message_bytes=self._max_bytes,
        )
        # Two batchers, each with its thread, and one model.
        alone = threading.Lock()

        def logprobs(sequences: list[Sequence], temperature: float) -> list[Tensor]:
            with alone:
                return engine.logprobs(sequences, temperature)

        def distributions(sequences: list[Sequence], key: tuple[float, int]) -> list[Told]:
            with alone:
                return engine.distributions(sequences, *key)

        wait_s = self._config.batch_wait_ms / 1e3
        self._loaded = _Loaded(
            engine.limits,
            info,
            Batcher(logprobs, self._config.batch_tokens, wait_s),
            # Sizes are bytes of answers: what waits to be sent is bounded.
            Batcher(distributions, self._max_bytes, wait_s),
        )

    async def close(self) -> None:
        if self._loaded is not None:
            await self._loaded.logprobs.close()
            await self._loaded.distributions.close()

    async def ComputeLogprobs(self, request: pb.ComputeLogprobsRequest, context: Any) -> pb.ComputeLogprobsResponse:
        loaded = self._model()
        temperature = wire.temperature(request.temperature)
        sequences = _sequences(request.sequences, loaded.limits)
        results = await loaded.logprobs.submit(sequences, temperature, sum(len(s) for s in sequences))
        return pb.ComputeLogprobsResponse(logprobs=wire.token_floats(results))

    async def ComputeDistributions(
        self, request: pb.ComputeDistributionsRequest, context: Any
    ) -> pb.ComputeDistributionsResponse:
        loaded = self._model()
        temperature = wire.temperature(request.temperature)
        if request.dtype not in (
            tensor_pb2.D_TYPE_UNSPECIFIED, tensor_pb2.D_TYPE_FLOAT32, tensor_pb2.D_TYPE_BFLOAT16,
        ):  # fmt: skip
            raise InvalidArgumentError("dtype: log-probs come as FLOAT32 or BFLOAT16", field="dtype")
        if request.tokenizer_digest not in ("", loaded.info.tokenizer_digest):
            raise FailedPreconditionError(
                f"tokenizer_digest: {self._config.model}, which is served here, has another tokenizer "
                f"({loaded.info.tokenizer_digest[:12] or 'none'}, not {request.tokenizer_digest[:12]})",
                reason="OTHER_TOKENIZER",
            )
        sequences = _sequences(request.sequences, loaded.limits)
        told = {"top_k": request.top_k, "vocabulary": loaded.info.vocab_size}
        size = sum(answer_bytes(s.response_ids.numel(), dtype=request.dtype, **told) for s in sequences)
        if size > self._max_bytes:
            raise too_large("sequences", size, self._max_bytes, **told)
        results = await loaded.distributions.submit(sequences, (temperature, request.top_k), size)
        half = request.dtype == tensor_pb2.D_TYPE_BFLOAT16
        return await asyncio.to_thread(_answer, results, half)

    async def GetReferenceInfo(self, request: pb.GetReferenceInfoRequest, context: Any) -> pb.GetReferenceInfoResponse:
        return self._model().info

    def _model(self) -> _Loaded:
        if self._loaded is None:
            raise UnavailableError("the reference model is still loading")
        return self._loaded


def _sequences(messages: Iterable[tensor_pb2.TokenSequence], limits: wire.Limits) -> list[Sequence]:
    return [wire.sequence(tokens, limits, f"sequences[{index}]") for index, tokens in enumerate(messages)]


def _answer(told: list[Told], half: bool) -> pb.ComputeDistributionsResponse:
    answer = pb.ComputeDistributionsResponse()
    for each in told:
        logprobs = each.logprobs_NJ.bfloat16().view(torch.uint16) if half else each.logprobs_NJ
        one = answer.distributions.add(logprobs=codec.encode(logprobs.numpy()))
        if each.ids_NJ is not None and each.tail_N is not None:
            one.token_ids.CopyFrom(codec.encode(each.ids_NJ.numpy()))
            one.tail_logmass.CopyFrom(codec.encode(each.tail_N.numpy()))
    return answer
