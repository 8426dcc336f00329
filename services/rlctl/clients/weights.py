"""Client of one replica's weights service: every replica is spoken to, so there is no pool."""

from __future__ import annotations

from typing import cast

from rlctl.rpc.channel import Channel, Duplex
from rlctl.rpc.config import ChannelConfig
from rlctl.v1 import weights_pb2 as pb
from rlctl.v1.weights_pb2_grpc import WeightsServiceStub


class WeightsClient:
    """Calls the weights service at one address; errors are `rlctl.core.errors` and name the address."""

    def __init__(self, address: str, config: ChannelConfig) -> None:
        self.address = address
        self._channel = Channel("generation", address, config)

    async def join_group(self, request: pb.JoinGroupRequest, *, timeout_s: float | None = None) -> pb.JoinGroupResponse:
        """Joins the process group of one sync; blocks until all members are there."""
        answer = await self._channel.call(WeightsServiceStub, "JoinGroup", request, timeout_s=timeout_s)
        return cast(pb.JoinGroupResponse, answer)

    async def update(self, *, timeout_s: float | None = None) -> Duplex[pb.UpdateRequest, pb.UpdateResponse]:
        """Opens an update: `write` a part, `read` its answer; `timeout_s` is for the whole update."""
        return self._channel.duplex(WeightsServiceStub, "Update", timeout_s=timeout_s)

    async def activate(self, request: pb.ActivateRequest, *, timeout_s: float | None = None) -> pb.ActivateResponse:
        """Checks the canary and serves the version just loaded."""
        answer = await self._channel.call(WeightsServiceStub, "Activate", request, timeout_s=timeout_s)
        return cast(pb.ActivateResponse, answer)

    async def close(self) -> None:
        """Closes the connection."""
        await self._channel.close()
