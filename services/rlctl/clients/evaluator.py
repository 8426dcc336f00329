"""Client of the evaluator service."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import cast

from rlctl.clients.requests import with_request_id
from rlctl.rpc.pool import Pool
from rlctl.v1 import evaluator_pb2 as pb
from rlctl.v1.evaluator_pb2_grpc import EvaluatorServiceStub


class EvaluatorClient:
    """Starts and follows evaluations; errors are `rlctl.core.errors`."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    async def start_evaluation(
        self, request: pb.StartEvaluationRequest, *, timeout_s: float | None = None
    ) -> pb.StartEvaluationResponse:
        """Starts an evaluation; its `request_id` makes a repeat safe."""
        answer = await self.pool.call(
            EvaluatorServiceStub, "StartEvaluation", with_request_id(request), timeout_s=timeout_s, retry=True
        )
        return cast(pb.StartEvaluationResponse, answer)

    async def watch_evaluation(
        self, evaluation_id: str, *, timeout_s: float | None = None
    ) -> AsyncGenerator[pb.WatchEvaluationResponse, None]:
        """Progress until the evaluation ends, or `timeout_s` is over."""
        request = pb.WatchEvaluationRequest(evaluation_id=evaluation_id)
        stream = self.pool.stream(EvaluatorServiceStub, "WatchEvaluation", request, timeout_s=timeout_s, retry=True)
        async with aclosing(stream):
            async for progress in stream:
                yield progress

    async def get_report(self, evaluation_id: str, *, timeout_s: float | None = None) -> pb.GetReportResponse:
        """The report of an ended evaluation."""
        request = pb.GetReportRequest(evaluation_id=evaluation_id)
        answer = await self.pool.call(EvaluatorServiceStub, "GetReport", request, timeout_s=timeout_s, retry=True)
        return cast(pb.GetReportResponse, answer)

    async def cancel_evaluation(
        self, evaluation_id: str, *, timeout_s: float | None = None
    ) -> pb.CancelEvaluationResponse:
        """Ends an evaluation; safe to repeat."""
        request = pb.CancelEvaluationRequest(evaluation_id=evaluation_id)
        answer = await self.pool.call(
            EvaluatorServiceStub, "CancelEvaluation", request, timeout_s=timeout_s, retry=True
        )
        return cast(pb.CancelEvaluationResponse, answer)
