"""WeightsService: translates, and asks `Updates`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from rlctl.core.errors import InvalidArgumentError, UnavailableError
from rlctl.generation.updates import Update, Updates
from rlctl.v1 import weights_pb2 as pb
from rlctl.v1.weights_pb2_grpc import WeightsServiceServicer
from rlctl.weights.messages import from_bucket, from_join


class WeightsServicer(WeightsServiceServicer):
    """See weights.proto."""

    def __init__(self) -> None:
        self._updates: Updates | None = None
        self._workers = 0

    def serve(self, updates: Updates, workers: int) -> None:
        """Called once the model is loaded; no call comes before."""
        self._updates, self._workers = updates, workers

    async def JoinGroup(self, request: pb.JoinGroupRequest, context: Any) -> pb.JoinGroupResponse:
        assert self._updates is not None
        await self._updates.join_group(request.epoch, from_join(request, self._workers))
        return pb.JoinGroupResponse()

    async def Update(
        self, request_iterator: AsyncIterator[pb.UpdateRequest], context: Any
    ) -> AsyncIterator[pb.UpdateResponse]:
        updates = self._updates
        assert updates is not None
        update: Update | None = None
        try:
            async for request in request_iterator:
                part = request.WhichOneof("part")
                if part == "open" and update is None:
                    update = await updates.open(request.open.epoch, request.open.group, request.open.policy_version)
                    yield pb.UpdateResponse()
                elif part == "bucket" and update is not None and not update.complete:
                    loaded = await updates.load_bucket(update, from_bucket(request.bucket))
                    yield pb.UpdateResponse(buckets_loaded=loaded)
                elif part == "close" and update is not None and not update.complete:
                    await updates.close(update, request.close.num_buckets)
                    yield pb.UpdateResponse(buckets_loaded=update.buckets, loaded=True)
                else:
                    raise InvalidArgumentError(
                        f"{part or 'nothing'} came out of order; an update is open, buckets, close", field="part"
                    )
            if update is not None and not update.complete:
                raise UnavailableError("the update ended before its close")
        except BaseException as error:
            # A call that is cancelled ends here too.
            if update is not None and not update.complete:
                await updates.fail(update, error)
            raise

    async def Activate(self, request: pb.ActivateRequest, context: Any) -> pb.ActivateResponse:
        assert self._updates is not None
        canary = request.canary
        if request.HasField("canary") and len(canary.logprobs) != len(canary.token_ids) - 1:
            raise InvalidArgumentError(
                f"canary.logprobs: {len(canary.token_ids)} tokens have {len(canary.token_ids) - 1} log-probs, "
                f"not {len(canary.logprobs)}",
                field="canary.logprobs",
            )
        difference = await self._updates.activate(
            request.epoch, request.policy_version, list(canary.token_ids), list(canary.logprobs), canary.tolerance
        )
        return pb.ActivateResponse(canary_difference=difference)
