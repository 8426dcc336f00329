"""Client of the reward service."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from rlctl.clients.requests import with_request_id
from rlctl.core.errors import UnavailableError
from rlctl.rpc.pool import Pool
from rlctl.v1 import reward_pb2 as pb
from rlctl.v1.reward_pb2_grpc import RewardServiceStub

#: Reason of an item whose remote reward did not answer.
UNREACHABLE = "REWARD_UNREACHABLE"


def check_reached(scores: Iterable[pb.ItemScore]) -> None:
    """Raises UnavailableError where a remote reward could not be reached: asked again, it may answer."""
    for score in scores:
        if score.error.reason == UNREACHABLE:
            raise UnavailableError(score.error.message, reason=UNREACHABLE)


class RewardClient:
    """Calls reward replicas through a pool; errors are `rlctl.core.errors`, those of single items are in the answer."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    async def score(self, request: pb.ScoreRequest, *, timeout_s: float | None = None) -> pb.ScoreResponse:
        """One score an item, in order."""
        answer = await self.pool.call(
            RewardServiceStub, "Score", with_request_id(request), timeout_s=timeout_s, retry=True
        )
        return cast(pb.ScoreResponse, answer)

    async def get_reward_info(self, *, timeout_s: float | None = None) -> pb.GetRewardInfoResponse:
        """What scores here."""
        answer = await self.pool.call(
            RewardServiceStub, "GetRewardInfo", pb.GetRewardInfoRequest(), timeout_s=timeout_s, retry=True
        )
        return cast(pb.GetRewardInfoResponse, answer)

    async def score_text(
        self,
        prompts: Sequence[str],
        responses: Sequence[str],
        labels: Sequence[str] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> list[pb.ItemScore]:
        """Scores `responses[i]` to `prompts[i]`, with `labels[i]` as the right answer where given."""
        answers = labels if labels is not None else [""] * len(prompts)
        items = [
            pb.ScoreItem(prompt=prompt, response=response, label=label)
            for prompt, response, label in zip(prompts, responses, answers, strict=True)
        ]
        return list((await self.score(pb.ScoreRequest(items=items), timeout_s=timeout_s)).scores)
