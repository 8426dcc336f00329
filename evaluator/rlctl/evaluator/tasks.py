"""reasoning-gym tasks as gold: `task:NAME` gives questions, and the task's own verifier scores answers."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from rlctl.core.errors import ConfigError
from rlctl.evaluator.gold import GoldItem

PREFIX = "task:"


@lru_cache(maxsize=8)
def _task(name: str, size: int, seed: int) -> Any:
    try:
        import reasoning_gym
    except ImportError as error:
        raise ConfigError("reasoning-gym tasks need reasoning-gym: pip install reasoning-gym") from error
    try:
        return reasoning_gym.create_dataset(name, size=size, seed=seed)
    except ValueError as error:
        raise ConfigError(f"no reasoning-gym task {name!r}: {error}") from error


def task_items(source: str, size: int, seed: int) -> list[GoldItem]:
    """Questions and answers of a task."""
    data = _task(source.removeprefix(PREFIX), size, seed)
    return [GoldItem((data[index]["question"],), str(data[index]["answer"])) for index in range(size)]


def score(source: str, size: int, seed: int, index: int, answer: str | None) -> float:
    """The verifier's score of an answer, in [0, 1]."""
    data = _task(source.removeprefix(PREFIX), size, seed)
    return float(data.score_answer(answer, data[index]))
