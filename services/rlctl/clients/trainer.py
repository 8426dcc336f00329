"""Client of the trainer service."""

from __future__ import annotations

from typing import cast

from rlctl.rpc.pool import Pool
from rlctl.v1 import trainer_pb2 as pb
from rlctl.v1.trainer_pb2_grpc import TrainerServiceStub


class TrainerClient:
    """Watches and steers a running training; errors are `rlctl.core.errors`."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    async def get_status(self, *, timeout_s: float | None = None) -> pb.GetStatusResponse:
        """How the run stands."""
        answer = await self.pool.call(
            TrainerServiceStub, "GetStatus", pb.GetStatusRequest(), timeout_s=timeout_s, retry=True
        )
        return cast(pb.GetStatusResponse, answer)

    async def pause(self, *, timeout_s: float | None = None) -> pb.PauseResponse:
        """Finishes the step in hand, then waits."""
        answer = await self.pool.call(TrainerServiceStub, "Pause", pb.PauseRequest(), timeout_s=timeout_s)
        return cast(pb.PauseResponse, answer)

    async def resume(self, *, timeout_s: float | None = None) -> pb.ResumeResponse:
        """Goes on after a pause."""
        answer = await self.pool.call(TrainerServiceStub, "Resume", pb.ResumeRequest(), timeout_s=timeout_s)
        return cast(pb.ResumeResponse, answer)

    async def checkpoint(self, *, timeout_s: float | None = None) -> pb.CheckpointResponse:
        """Commits a checkpoint; answers when it is on disk."""
        answer = await self.pool.call(TrainerServiceStub, "Checkpoint", pb.CheckpointRequest(), timeout_s=timeout_s)
        return cast(pb.CheckpointResponse, answer)

    async def stop(self, *, timeout_s: float | None = None) -> pb.StopResponse:
        """Finishes the step in hand, commits a checkpoint and ends."""
        answer = await self.pool.call(TrainerServiceStub, "Stop", pb.StopRequest(), timeout_s=timeout_s)
        return cast(pb.StopResponse, answer)
