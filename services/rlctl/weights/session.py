"""One update of one replica, as the publisher sees it: parts out, an answer each, every wait with a time-out."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from rlctl.clients.weights import WeightsClient
from rlctl.core.errors import DeadlineError, InternalError, UnavailableError
from rlctl.rpc.channel import Duplex
from rlctl.v1 import weights_pb2 as pb
from rlctl.weights.bucket import Announcement
from rlctl.weights.messages import to_bucket

#: Seconds after which an update ends even if its publisher vanished without a word; each part has its own time-out.
_BACKSTOP_S = 6 * 3600.0


@dataclass(frozen=True)
class Member:
    """A replica that takes part in syncs."""

    name: str
    """Its instance id: another process at the same address has another one."""
    address: str
    client: WeightsClient
    workers: int
    """Processes of it that join the group."""


class Session:
    """An update in progress; all methods run on the portal's loop."""

    def __init__(self, member: Member, timeout_s: float) -> None:
        self.member = member
        self._timeout_s = timeout_s
        self._call: Duplex[pb.UpdateRequest, pb.UpdateResponse] | None = None
        self._buckets = 0

    async def open(self, epoch: int, group: str, version: int) -> None:
        """Begins; returns once the replica holds its requests and is ready to load."""
        self._call = await self.member.client.update(timeout_s=_BACKSTOP_S)
        part = pb.OpenUpdate(epoch=epoch, group=group, policy_version=version)
        await self._write(pb.UpdateRequest(open=part))
        await self._answer("open the update")

    async def announce(self, announcement: Announcement) -> None:
        """Says which bucket is broadcast next."""
        await self._write(pb.UpdateRequest(bucket=to_bucket(announcement)))

    async def loaded(self) -> None:
        """Returns once the bucket announced last is checked and loaded.

        Waits twice the time-out: a replica that others keep waiting gives its own time-out as its answer.
        """
        answer = await self._answer(f"load bucket {self._buckets}", 2 * self._timeout_s)
        self._buckets += 1
        if answer.buckets_loaded != self._buckets:
            raise InternalError(
                f"generation at {self.member.address} loaded {answer.buckets_loaded} buckets of {self._buckets}"
            )

    async def close(self) -> None:
        """Says that all was sent; returns once the replica has it all in place."""
        await self._write(pb.UpdateRequest(close=pb.CloseUpdate(num_buckets=self._buckets)))
        answer = await self._answer("finish the update")
        if not answer.loaded:
            raise InternalError(f"generation at {self.member.address} did not finish the update")
        assert self._call is not None
        await self._call.done_writing()

    async def cancel(self) -> None:
        """Ends the call, whatever its state."""
        if self._call is not None:
            self._call.cancel()

    async def _write(self, request: pb.UpdateRequest) -> None:
        assert self._call is not None
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._call.write(request)
        except TimeoutError:
            raise self._late("take a message") from None

    async def _answer(self, what: str, timeout_s: float | None = None) -> pb.UpdateResponse:
        assert self._call is not None
        try:
            async with asyncio.timeout(timeout_s or self._timeout_s):
                answer = await self._call.read()
        except TimeoutError:
            raise self._late(what) from None
        if answer is None:
            raise UnavailableError(f"generation at {self.member.address} ended the update before it was told to")
        return answer

    def _late(self, what: str) -> DeadlineError:
        return DeadlineError(f"generation at {self.member.address} did not {what} within {self._timeout_s:g} s")
