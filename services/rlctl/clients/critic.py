"""Client of the critic service."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from rlctl.clients.requests import split, with_request_id
from rlctl.rpc.pool import Pool
from rlctl.v1 import critic_pb2 as pb
from rlctl.v1.critic_pb2_grpc import CriticServiceStub

#: Bytes of sequences in one part of a Train stream, where the message limit allows it.
_PART_BYTES = 16 << 20
#: Bytes of a part beside its sequences, at most.
_PART_OVERHEAD = 64


class CriticClient:
    """Calls the critic. What changes its state is never sent twice: a critic that was restarted has lost it,
    and the caller goes back to a checkpoint."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    async def compute_values(
        self, request: pb.ComputeValuesRequest, *, timeout_s: float | None = None
    ) -> pb.ComputeValuesResponse:
        """Values of the response tokens of each sequence."""
        answer = await self.pool.call(
            CriticServiceStub, "ComputeValues", with_request_id(request), timeout_s=timeout_s, retry=True
        )
        return cast(pb.ComputeValuesResponse, answer)

    async def train(
        self, header: pb.TrainHeader, sequences: Iterable[pb.TrainSequence], *, timeout_s: float | None = None
    ) -> pb.TrainResponse:
        """One optimizer step over the sequences, sent in parts under the message limit."""
        limit = min(_PART_BYTES, (self.pool.config.max_message_mb << 20) - _PART_OVERHEAD)
        parts = [pb.TrainRequest(header=header)]
        for some in split(sequences, limit):
            parts.append(pb.TrainRequest(sequences=pb.TrainPart(sequences=some)))
        answer = await self.pool.call(CriticServiceStub, "Train", parts, timeout_s=timeout_s)
        return cast(pb.TrainResponse, answer)

    async def save_checkpoint(
        self, request: pb.SaveCheckpointRequest, *, timeout_s: float | None = None
    ) -> pb.SaveCheckpointResponse:
        """Writes a checkpoint under a tag."""
        answer = await self.pool.call(CriticServiceStub, "SaveCheckpoint", request, timeout_s=timeout_s)
        return cast(pb.SaveCheckpointResponse, answer)

    async def load_checkpoint(
        self, request: pb.LoadCheckpointRequest, *, timeout_s: float | None = None
    ) -> pb.LoadCheckpointResponse:
        """Goes back to a tag; safe to repeat."""
        answer = await self.pool.call(CriticServiceStub, "LoadCheckpoint", request, timeout_s=timeout_s, retry=True)
        return cast(pb.LoadCheckpointResponse, answer)
