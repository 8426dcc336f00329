"""TrainerService: status, pause, resume, checkpoint now, stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc.aio

from rlctl.core.errors import FailedPreconditionError
from rlctl.rpc.service import Health
from rlctl.trainer.checkpoint import CheckpointStore
from rlctl.trainer.status import Controls, Status
from rlctl.v1 import trainer_pb2, trainer_pb2_grpc

POLL_S = 0.1


class TrainerServicer(trainer_pb2_grpc.TrainerServiceServicer):
    def __init__(self, status: Status, controls: Controls, checkpoints: CheckpointStore) -> None:
        self._status = status
        self._controls = controls
        self._checkpoints = checkpoints

    async def GetStatus(self, request: trainer_pb2.GetStatusRequest, context: object) -> trainer_pb2.GetStatusResponse:
        return self._status.read()

    async def Pause(self, request: trainer_pb2.PauseRequest, context: object) -> trainer_pb2.PauseResponse:
        self._controls.resume.clear()
        await _until(lambda: self._status.read().state in _RESTING)
        return trainer_pb2.PauseResponse(step=self._status.read().step)

    async def Resume(self, request: trainer_pb2.ResumeRequest, context: object) -> trainer_pb2.ResumeResponse:
        self._controls.resume.set()
        return trainer_pb2.ResumeResponse()

    async def Checkpoint(
        self, request: trainer_pb2.CheckpointRequest, context: object
    ) -> trainer_pb2.CheckpointResponse:
        self._controls.checkpoint.set()
        await _until(lambda: not self._controls.checkpoint.is_set() or self._ended())
        if self._controls.checkpoint.is_set():
            raise FailedPreconditionError("the trainer is ending; its last checkpoint is its own")
        step = self._status.read().checkpoint_step
        return trainer_pb2.CheckpointResponse(step=step, path=str(self._checkpoints.path(step)))

    async def Stop(self, request: trainer_pb2.StopRequest, context: object) -> trainer_pb2.StopResponse:
        self._controls.stop.set()
        self._controls.resume.set()
        return trainer_pb2.StopResponse(step=self._status.read().step)

    def _ended(self) -> bool:
        return self._status.read().state in (trainer_pb2.TRAINER_STATE_STOPPING, trainer_pb2.TRAINER_STATE_DONE)


_RESTING = (trainer_pb2.TRAINER_STATE_PAUSED, trainer_pb2.TRAINER_STATE_STOPPING, trainer_pb2.TRAINER_STATE_DONE)


async def _until(condition: Callable[[], bool]) -> None:
    """Polls; the call's own deadline ends it."""
    while not condition():
        await asyncio.sleep(POLL_S)


class HostedTrainer:
    """The service beside the trainer's main thread."""

    def __init__(self, servicer: TrainerServicer) -> None:
        self._servicer = servicer

    def register(self, server: grpc.aio.Server) -> list[str]:
        trainer_pb2_grpc.add_TrainerServiceServicer_to_server(self._servicer, server)
        return ["rlctl.v1.TrainerService"]

    async def load(self, health: Health) -> None:
        pass

    async def close(self) -> None:
        pass
