"""EvaluatorService over gRPC: decode, call the engine, encode."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from rlctl.core.errors import InvalidArgumentError
from rlctl.evaluator.config import EvaluatorServiceConfig
from rlctl.evaluator.engine import EvaluatorEngine, Running, State
from rlctl.rpc.health import Health
from rlctl.v1 import evaluator_pb2 as pb
from rlctl.v1 import evaluator_pb2_grpc as pb_grpc

_STATES: dict[State, pb.EvaluationState] = {
    "running": pb.EVALUATION_STATE_RUNNING,
    "done": pb.EVALUATION_STATE_DONE,
    "stopped": pb.EVALUATION_STATE_STOPPED,
    "failed": pb.EVALUATION_STATE_FAILED,
    "cancelled": pb.EVALUATION_STATE_CANCELLED,
}


class EvaluatorServicer(pb_grpc.EvaluatorServiceServicer):
    """Translates between messages and the engine."""

    def __init__(self, engine: EvaluatorEngine) -> None:
        self._engine = engine

    async def StartEvaluation(self, request: pb.StartEvaluationRequest, context: Any) -> pb.StartEvaluationResponse:
        if not request.request_id:
            raise InvalidArgumentError("request_id is empty; it makes a repeat safe", field="request_id")
        return pb.StartEvaluationResponse(evaluation_id=self._engine.start(request.request_id, request.config_json))

    async def WatchEvaluation(
        self, request: pb.WatchEvaluationRequest, context: Any
    ) -> AsyncIterator[pb.WatchEvaluationResponse]:
        async for evaluation in self._engine.watch(request.evaluation_id):
            yield progress_message(evaluation)

    async def GetReport(self, request: pb.GetReportRequest, context: Any) -> pb.GetReportResponse:
        evaluation, summary = self._engine.report(request.evaluation_id)
        return pb.GetReportResponse(
            state=_STATES[evaluation.state], summary_json=summary, output_dir=str(evaluation.output_dir)
        )

    async def CancelEvaluation(self, request: pb.CancelEvaluationRequest, context: Any) -> pb.CancelEvaluationResponse:
        return pb.CancelEvaluationResponse(state=_STATES[await self._engine.cancel(request.evaluation_id)])


def progress_message(evaluation: Running) -> pb.WatchEvaluationResponse:
    """The message for how far an evaluation is."""
    return pb.WatchEvaluationResponse(
        state=_STATES[evaluation.state],
        records_done=evaluation.progress.records_done,
        records_total=evaluation.progress.records_total,
        seconds_left=evaluation.progress.seconds_left,
        cost=evaluation.progress.cost,
        message=evaluation.message,
    )


class EvaluatorHosted:
    """The evaluator as `rlctl.rpc.service.run` runs it."""

    def __init__(self, config: EvaluatorServiceConfig) -> None:
        self._engine = EvaluatorEngine(config)

    def register(self, server: grpc.aio.Server) -> list[str]:
        pb_grpc.add_EvaluatorServiceServicer_to_server(EvaluatorServicer(self._engine), server)
        return [pb.DESCRIPTOR.services_by_name["EvaluatorService"].full_name]

    async def load(self, health: Health) -> None:
        self._engine.resume()

    async def close(self) -> None:
        await self._engine.close()
