"""WeightsService: translates, and asks the replica."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from rlctl.core.errors import InvalidArgumentError, UnavailableError
from rlctl.generation.replica import Replica
from rlctl.v1 import weights_pb2 as pb
from rlctl.v1.weights_pb2_grpc import WeightsServiceServicer
from rlctl.weights.messages import from_bucket, from_join


class WeightsServicer(WeightsServiceServicer):
    """See weights.proto."""

    def __init__(self) -> None:
        self._replica: Replica | None = None

    def serve(self, replica: Replica) -> None:
        """Called once the model is loaded; no call comes before."""
        self._replica = replica

    async def JoinGroup(self, request: pb.JoinGroupRequest, context: Any) -> pb.JoinGroupResponse:
        assert self._replica is not None
        invitation = from_join(request, self._replica.engine.workers)
        await self._replica.join_group(request.epoch, request.group, invitation)
        return pb.JoinGroupResponse()

    async def Update(
        self, request_iterator: AsyncIterator[pb.UpdateRequest], context: Any
    ) -> AsyncIterator[pb.UpdateResponse]:
        replica = self._replica
        assert replica is not None
        opened = finished = False
        try:
            async for request in request_iterator:
                part = request.WhichOneof("part")
                if part == "open" and not opened:
                    await replica.open(request.open.epoch, request.open.group, request.open.policy_version)
                    opened = True
                    yield pb.UpdateResponse()
                elif part == "bucket" and opened and not finished:
                    loaded = await replica.load_bucket(from_bucket(request.bucket))
                    yield pb.UpdateResponse(buckets_loaded=loaded)
                elif part == "close" and opened and not finished:
                    await replica.close_update(request.close.num_buckets)
                    finished = True
                    yield pb.UpdateResponse(buckets_loaded=request.close.num_buckets, loaded=True)
                else:
                    raise InvalidArgumentError(
                        f"{part or 'nothing'} came out of order; an update is open, buckets, close", field="part"
                    )
            if opened and not finished:
                raise UnavailableError("the update ended before its close")
        except BaseException as error:
            # A call that is cancelled ends here too.
            if opened and not finished:
                await replica.fail(error)
            raise

    async def Activate(self, request: pb.ActivateRequest, context: Any) -> pb.ActivateResponse:
        assert self._replica is not None
        canary = request.canary
        if request.HasField("canary") and len(canary.logprobs) != len(canary.token_ids) - 1:
            raise InvalidArgumentError(
                f"canary.logprobs: {len(canary.token_ids)} tokens have {len(canary.token_ids) - 1} log-probs, "
                f"not {len(canary.logprobs)}",
                field="canary.logprobs",
            )
        difference = await self._replica.activate(
            request.epoch, request.policy_version, list(canary.token_ids), list(canary.logprobs), canary.tolerance
        )
        return pb.ActivateResponse(canary_difference=difference)
