"""A reward service whose answers are known: the reward of an item is the length of its response.

What an item's prompt says is done first: `raise NAME` raises that error, `crash` is a defect, `wait` waits until
released or cancelled, `big N` answers with N bytes.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio

from rlctl.core import errors
from rlctl.rpc.service import Health
from rlctl.v1 import reward_pb2 as pb
from rlctl.v1.reward_pb2_grpc import RewardServiceServicer, add_RewardServiceServicer_to_server

SERVICE = "rlctl.v1.RewardService"


class LengthServicer(RewardServiceServicer):
    def __init__(self) -> None:
        self.calls = 0
        self.request_ids: list[str] = []
        self.cancelled = 0
        self.waiting = asyncio.Event()
        self.release = asyncio.Event()

    async def Score(self, request: pb.ScoreRequest, context: Any) -> pb.ScoreResponse:
        self.calls += 1
        self.request_ids.append(request.request_id)
        for item in request.items:
            await self._do(item.prompt)
        scores = [pb.ItemScore(reward=len(item.response)) for item in request.items]
        if request.items and request.items[0].prompt.startswith("big "):
            scores[0].extra_logs["x" * int(request.items[0].prompt[4:])] = 1.0
        return pb.ScoreResponse(scores=scores)

    async def GetRewardInfo(self, request: pb.GetRewardInfoRequest, context: Any) -> pb.GetRewardInfoResponse:
        return pb.GetRewardInfoResponse(scorers=[pb.Scorer(name="length", kind="function", weight=1.0)])

    async def _do(self, what: str) -> None:
        if what.startswith("raise "):
            raise getattr(errors, what[6:])("the label is missing; give one", field="items[0].label")
        if what == "crash":
            raise ZeroDivisionError("secret detail")
        if what == "wait":
            self.waiting.set()
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise


class LengthService:
    """Hosts a `LengthServicer`. With `hold_load` its load waits for `loaded` to be set."""

    def __init__(self, *, hold_load: bool = False, load_error: Exception | None = None) -> None:
        self.servicer = LengthServicer()
        self.loading = asyncio.Event()
        self.loaded = asyncio.Event()
        self.closed = 0
        self.cancelled_at_close = 0
        self._load_error = load_error
        if not hold_load:
            self.loaded.set()

    def register(self, server: grpc.aio.Server) -> list[str]:
        add_RewardServiceServicer_to_server(self.servicer, server)
        return [SERVICE]

    async def load(self, health: Health) -> None:
        self.loading.set()
        await self.loaded.wait()
        if self._load_error is not None:
            raise self._load_error

    async def close(self) -> None:
        self.closed += 1
        self.cancelled_at_close = self.servicer.cancelled


def items(*prompts: str, response: str = "abc") -> pb.ScoreRequest:
    """A request with an item for each prompt; each is worth the length of `response`."""
    return pb.ScoreRequest(items=[pb.ScoreItem(prompt=prompt, response=response) for prompt in prompts])
