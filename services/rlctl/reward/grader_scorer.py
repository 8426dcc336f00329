"""Rewards by rule: 1 when the response's final answer equals the label, else 0."""

from __future__ import annotations

import asyncio

from rlctl.grading.grade import grade
from rlctl.reward.scorer import Fault, Item, Outcome, Score


class GraderScorer:
    """`rlctl.grading`, which is bounded in time and executes nothing."""

    async def load(self) -> None:
        pass

    async def score(self, items: list[Item]) -> list[Outcome]:
        return await asyncio.to_thread(lambda: [_grade(item) for item in items])

    async def close(self) -> None:
        pass


def _grade(item: Item) -> Outcome:
    if not item.label:
        return Fault("REWARD_NO_LABEL", "the grader compares with the label, and this item has none")
    return Score(1.0 if grade(item.response, item.label).equal else 0.0)
