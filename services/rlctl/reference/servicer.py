"""ReferenceService: translation alone."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
from torch import Tensor

from rlctl.core.errors import UnavailableError
from rlctl.learner import wire
from rlctl.learner.sequence import Sequence
from rlctl.reference.batcher import Batcher
from rlctl.reference.config import ReferenceConfig
from rlctl.reference.engine import ReferenceEngine
from rlctl.rpc.health import Health
from rlctl.v1 import reference_pb2 as pb
from rlctl.v1.reference_pb2_grpc import ReferenceServiceServicer, add_ReferenceServiceServicer_to_server


class ReferenceHosted(ReferenceServiceServicer):
    """The reference service as `rlctl.rpc.service` runs it."""

    def __init__(self, config: ReferenceConfig) -> None:
        self._config = config
        self._limits: wire.Limits | None = None
        self._batcher: Batcher[Sequence, Tensor] | None = None

    def register(self, server: grpc.aio.Server) -> list[str]:
        add_ReferenceServiceServicer_to_server(self, server)
        return [pb.DESCRIPTOR.services_by_name["ReferenceService"].full_name]

    async def load(self, health: Health) -> None:
        engine = await asyncio.to_thread(ReferenceEngine, self._config)
        self._limits = engine.limits
        self._batcher = Batcher(engine.logprobs, self._config.batch_tokens, self._config.batch_wait_ms / 1e3)

    async def close(self) -> None:
        if self._batcher is not None:
            await self._batcher.close()

    async def ComputeLogprobs(self, request: pb.ComputeLogprobsRequest, context: Any) -> pb.ComputeLogprobsResponse:
        if self._batcher is None or self._limits is None:
            raise UnavailableError("the reference model is still loading")
        temperature = wire.temperature(request.temperature)
        sequences = [
            wire.sequence(tokens, self._limits, f"sequences[{index}]") for index, tokens in enumerate(request.sequences)
        ]
        results = await self._batcher.submit(sequences, temperature, sum(len(s) for s in sequences))
        return pb.ComputeLogprobsResponse(logprobs=wire.token_floats(results))
