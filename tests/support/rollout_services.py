"""Generation, reward and reference behind real gRPC servers, with answers that can be worked out by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from rlctl.rpc.health import Health
from rlctl.v1 import generation_pb2, reference_pb2, reward_pb2, tensor_pb2
from rlctl.v1.generation_pb2_grpc import GenerationServiceServicer, add_GenerationServiceServicer_to_server
from rlctl.v1.reference_pb2_grpc import ReferenceServiceServicer, add_ReferenceServiceServicer_to_server
from rlctl.v1.reward_pb2_grpc import RewardServiceServicer, add_RewardServiceServicer_to_server

Before = Callable[[Any], Awaitable[None]]


async def nothing(request: Any) -> None:
    """The default of `before`."""


@dataclass
class Recorded:
    """Calls so far; `before` runs ahead of each, and may raise or wait."""

    calls: list[Any] = field(default_factory=list)
    cancelled: int = 0
    before: Before = nothing

    async def begin(self, request: Any) -> None:
        self.calls.append(request)
        try:
            await self.before(request)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def load(self, health: Health) -> None:
        pass

    async def close(self) -> None:
        pass


class Generation(Recorded, GenerationServiceServicer):
    """Sample i of a prompt with ids p has the tokens p[-1], 10 + i and the text "<p[-1]>:<i>"."""

    def register(self, server: grpc.aio.Server) -> list[str]:
        add_GenerationServiceServicer_to_server(self, server)
        return ["rlctl.v1.GenerationService"]

    async def Generate(self, request: generation_pb2.GenerateRequest, context: Any) -> generation_pb2.GenerateResponse:
        await self.begin(request)
        last = request.tokens.ids[-1]
        samples = [
            generation_pb2.Sample(
                text=f"{last}:{index}",
                token_ids=[last, 10 + index],
                logprobs=[-0.5, -0.25 * index],
                finish_reason=generation_pb2.FINISH_REASON_STOP,
                policy_versions=[7],
            )
            for index in range(request.sampling.n or 1)
        ]
        return generation_pb2.GenerateResponse(
            request_id=request.request_id, prompt_token_ids=request.tokens.ids, samples=samples
        )


class Reward(Recorded, RewardServiceServicer):
    """The reward is the label; a response that ends in 1 cannot be scored. Or every item gets `answer`."""

    answer: reward_pb2.ItemScore | None = None

    def register(self, server: grpc.aio.Server) -> list[str]:
        add_RewardServiceServicer_to_server(self, server)
        return ["rlctl.v1.RewardService"]

    async def Score(self, request: reward_pb2.ScoreRequest, context: Any) -> reward_pb2.ScoreResponse:
        await self.begin(request)
        return reward_pb2.ScoreResponse(scores=[self.answer or self._score(item) for item in request.items])

    @staticmethod
    def _score(item: reward_pb2.ScoreItem) -> reward_pb2.ItemScore:
        if item.response.endswith("1"):
            return reward_pb2.ItemScore(error=reward_pb2.ItemError(reason="REWARD_RAISED", message="no ones"))
        return reward_pb2.ItemScore(reward=float(item.label), components={"label": float(item.label)})


class Reference(Recorded, ReferenceServiceServicer):
    """The log-prob of a token is minus its id, divided by the temperature."""

    def register(self, server: grpc.aio.Server) -> list[str]:
        add_ReferenceServiceServicer_to_server(self, server)
        return ["rlctl.v1.ReferenceService"]

    async def ComputeLogprobs(
        self, request: reference_pb2.ComputeLogprobsRequest, context: Any
    ) -> reference_pb2.ComputeLogprobsResponse:
        await self.begin(request)
        return reference_pb2.ComputeLogprobsResponse(
            logprobs=[
                tensor_pb2.TokenFloats(values=[-token / request.temperature for token in sequence.response_ids])
                for sequence in request.sequences
            ]
        )
