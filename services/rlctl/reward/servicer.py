"""RewardService: translation alone."""

from __future__ import annotations

import json
from typing import Any

import grpc.aio

from rlctl.core.errors import InvalidArgumentError
from rlctl.reward.config import RewardSettings
from rlctl.reward.engine import Reward, RewardEngine
from rlctl.reward.scorer import Fault, Item
from rlctl.rpc.health import Health
from rlctl.v1 import reward_pb2 as pb
from rlctl.v1.reward_pb2_grpc import RewardServiceServicer, add_RewardServiceServicer_to_server


class RewardServicer(RewardServiceServicer):
    """Decodes items, calls the engine, encodes scores."""

    def __init__(self, engine: RewardEngine) -> None:
        self._engine = engine

    async def Score(self, request: pb.ScoreRequest, context: Any) -> pb.ScoreResponse:
        items = [_item(index, item) for index, item in enumerate(request.items)]
        return pb.ScoreResponse(scores=[_score(reward) for reward in await self._engine.score(items)])

    async def GetRewardInfo(self, request: pb.GetRewardInfoRequest, context: Any) -> pb.GetRewardInfoResponse:
        scorers = [pb.Scorer(name=c.label, kind=c.kind, weight=c.weight) for c in self._engine.configs]
        return pb.GetRewardInfoResponse(scorers=scorers)


class RewardHosted:
    """The reward service as `rlctl.rpc.service` runs it."""

    def __init__(self, settings: RewardSettings) -> None:
        self._engine = RewardEngine(settings)

    def register(self, server: grpc.aio.Server) -> list[str]:
        add_RewardServiceServicer_to_server(RewardServicer(self._engine), server)
        return [pb.DESCRIPTOR.services_by_name["RewardService"].full_name]

    async def load(self, health: Health) -> None:
        await self._engine.load()

    async def close(self) -> None:
        await self._engine.close()


def _item(index: int, item: pb.ScoreItem) -> Item:
    metadata: Any = {}
    if item.metadata_json:
        field = f"items[{index}].metadata_json"
        try:
            metadata = json.loads(item.metadata_json)
        except ValueError as error:
            raise InvalidArgumentError(f"{field} is no JSON: {error}", field=field) from error
        if not isinstance(metadata, dict):
            raise InvalidArgumentError(f"{field} must be a JSON object", field=field)
    return Item(item.prompt, item.response, item.label, metadata)


def _score(reward: Reward) -> pb.ItemScore:
    outcome = reward.outcome
    if isinstance(outcome, Fault):
        error = pb.ItemError(reason=outcome.reason, message=outcome.message)
        return pb.ItemScore(error=error, components=reward.components)
    return pb.ItemScore(reward=outcome.reward, components=reward.components, extra_logs=outcome.extra_logs)
