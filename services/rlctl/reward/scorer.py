"""What every source of rewards takes and gives."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Item:
    """A response to be scored; texts without padding and special tokens."""

    prompt: str
    response: str
    label: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def query(self) -> str:
        """Prompt and response as one text."""
        return self.prompt + self.response


@dataclass(frozen=True)
class Score:
    """A finite reward, and what a user's function reported beside it."""

    reward: float
    extra_logs: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Fault:
    """Why an item has no reward.

    | reason | meaning |
    |---|---|
    | REWARD_TIMEOUT | took longer than `timeout_s` |
    | REWARD_RAISED | the function or verifier raised |
    | REWARD_CRASHED | its process ended (exit, out of memory, signal) |
    | REWARD_NOT_FINITE | NaN, infinite, or None |
    | REWARD_BAD_RESULT | not one number an item |
    | REWARD_BAD_METADATA | a task's item without its entry |
    | REWARD_NO_LABEL | a grader's item without the right answer |
    | REWARD_UNREACHABLE | a remote reward cannot be reached, or answers 502, 503 or 504: asked later it may answer |
    | REWARD_REFUSED | a remote reward answers with another status than 200, or breaks off |
    """

    reason: str
    message: str


Outcome = Score | Fault


class Scorer(Protocol):
    """One source of rewards. Errors of single items are Faults; `load` raises ConfigError."""

    async def load(self) -> None: ...

    async def score(self, items: list[Item]) -> list[Outcome]:
        """One outcome an item, in order."""
        ...

    async def close(self) -> None: ...


def finite(reward: float | None, extra_logs: dict[str, float] | None = None) -> Outcome:
    """The score of a reward that was reported, or the fault that it is no number; odd extra logs are left out."""
    if reward is None or not math.isfinite(reward):
        return Fault("REWARD_NOT_FINITE", f"the reward is {reward}")
    logs = {name: value for name, value in (extra_logs or {}).items() if math.isfinite(value)}
    return Score(reward, logs)
