"""Client of the reference service."""

from __future__ import annotations

from typing import cast

from rlctl.clients.requests import with_request_id
from rlctl.rpc.pool import Pool
from rlctl.v1 import reference_pb2 as pb
from rlctl.v1.reference_pb2_grpc import ReferenceServiceStub


class ReferenceClient:
    """Calls reference replicas through a pool; errors are `rlctl.core.errors`."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    async def compute_logprobs(
        self, request: pb.ComputeLogprobsRequest, *, timeout_s: float | None = None
    ) -> pb.ComputeLogprobsResponse:
        """Log-probs of the response tokens of each sequence."""
        answer = await self.pool.call(
            ReferenceServiceStub, "ComputeLogprobs", with_request_id(request), timeout_s=timeout_s, retry=True
        )
        return cast(pb.ComputeLogprobsResponse, answer)
