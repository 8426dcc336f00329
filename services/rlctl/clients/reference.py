"""Client of the reference service."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import cast

from rlctl.clients.distributions import answer_bytes, too_large
from rlctl.clients.requests import ITEM_OVERHEAD, with_request_id
from rlctl.rpc.pool import Pool
from rlctl.v1 import reference_pb2 as pb
from rlctl.v1 import tensor_pb2
from rlctl.v1.reference_pb2_grpc import ReferenceServiceStub

#: Parts of one request that are in work at once: replicas share them, and one batches what waits.
_AT_ONCE = 4
#: Bytes of a message beside its sequences, at most.
_OVERHEAD = 1024


class ReferenceClient:
    """Calls reference replicas through a pool; errors are `rlctl.core.errors`."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._info: pb.GetReferenceInfoResponse | None = None

    async def compute_logprobs(
        self, request: pb.ComputeLogprobsRequest, *, timeout_s: float | None = None
    ) -> pb.ComputeLogprobsResponse:
        """Log-probs of the response tokens of each sequence."""
        answer = await self.pool.call(
            ReferenceServiceStub, "ComputeLogprobs", with_request_id(request), timeout_s=timeout_s, retry=True
        )
        return cast(pb.ComputeLogprobsResponse, answer)

    async def get_reference_info(self, *, timeout_s: float | None = None) -> pb.GetReferenceInfoResponse:
        """Which model one of the replicas serves."""
        answer = await self.pool.call(
            ReferenceServiceStub, "GetReferenceInfo", pb.GetReferenceInfoRequest(), timeout_s=timeout_s, retry=True
        )
        return cast(pb.GetReferenceInfoResponse, answer)

    async def compute_distributions(
        self, request: pb.ComputeDistributionsRequest, *, timeout_s: float | None = None
    ) -> list[pb.TokenDistributions]:
        """The distributions at the response tokens of each sequence, in order.

        The request is split so that every answer fits a message; `timeout_s` is for each part. Raises
        ResourceExhaustedError where one sequence alone does not fit.
        """
        if self._info is None:
            self._info = await self.get_reference_info(timeout_s=timeout_s)
        parts = list(self._split(request, self._info))
        room = asyncio.Semaphore(_AT_ONCE)

        async def ask(part: pb.ComputeDistributionsRequest) -> pb.ComputeDistributionsResponse:
            async with room:
                answer = await self.pool.call(
                    ReferenceServiceStub, "ComputeDistributions", part, timeout_s=timeout_s, retry=True
                )
                return cast(pb.ComputeDistributionsResponse, answer)

        tasks = [asyncio.ensure_future(ask(part)) for part in parts]
        try:
            answers = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return [one for answer in answers for one in answer.distributions]

    def _split(
        self, request: pb.ComputeDistributionsRequest, info: pb.GetReferenceInfoResponse
    ) -> Iterator[pb.ComputeDistributionsRequest]:
        """Requests of as many sequences as fit, in order, the question and the answer."""
        limit = min(self.pool.config.max_message_mb << 20, info.max_message_bytes) - _OVERHEAD
        part, used = _like(request), 0
        for index, sequence in enumerate(request.sequences):
            size = self._size(sequence, request, info.vocab_size)
            if size > limit:
                raise too_large(
                    f"sequences[{index}] ({len(sequence.response_ids)} response tokens)",
                    size,
                    limit,
                    top_k=request.top_k,
                    vocabulary=info.vocab_size,
                )
            if used + size > limit:
                yield part
                part, used = _like(request), 0
            part.sequences.append(sequence)
            used += size
        if part.sequences:
            yield part

    @staticmethod
    def _size(sequence: tensor_pb2.TokenSequence, request: pb.ComputeDistributionsRequest, vocabulary: int) -> int:
        answer = answer_bytes(
            len(sequence.response_ids), top_k=request.top_k, vocabulary=vocabulary, dtype=request.dtype
        )
        return max(answer, sequence.ByteSize() + ITEM_OVERHEAD)


def _like(request: pb.ComputeDistributionsRequest) -> pb.ComputeDistributionsRequest:
    """The same without sequences, and with an id of its own."""
    return with_request_id(
        pb.ComputeDistributionsRequest(
            temperature=request.temperature,
            top_k=request.top_k,
            dtype=request.dtype,
            tokenizer_digest=request.tokenizer_digest,
        )
    )
