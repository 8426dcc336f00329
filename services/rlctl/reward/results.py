"""What reward functions and remote rewards may answer, read into one result an item.

A list, a tensor or array, or a dict with `rewards` and, beside it, `scores` and `extra_logs` (each a list, or
one number for all items). This module runs in the sandbox too, so it imports the standard library alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class BadResultError(Exception):
    """The answer is not one number an item."""


def read_results(answer: Any, count: int) -> list[tuple[float | None, dict[str, float]]]:
    """(reward, extra logs) of each of `count` items; a reward of None is missing. Raises BadResultError."""
    if not isinstance(answer, Mapping):
        return [(reward, {}) for reward in _numbers(answer, count, "the answer")]
    if "rewards" not in answer:
        raise BadResultError(f"a dict must have 'rewards'; this one has {sorted(map(str, answer))}")
    rewards = _numbers(answer["rewards"], count, "'rewards'")
    logs: dict[str, list[float | None]] = {}
    if answer.get("scores") is not None:
        logs["score"] = _numbers(answer["scores"], count, "'scores'")
    extra = answer.get("extra_logs") or {}
    if not isinstance(extra, Mapping):
        raise BadResultError(f"'extra_logs' must be a dict, not a {type(extra).__name__}")
    for name, values in extra.items():
        logs[str(name)] = _numbers(values, count, f"extra_logs[{name!r}]", spread=True)
    return [
        (reward, {name: value for name, values in logs.items() if (value := values[index]) is not None})
        for index, reward in enumerate(rewards)
    ]


def _numbers(values: Any, count: int, what: str, *, spread: bool = False) -> list[float | None]:
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, int | float):
        values = [values] * (count if spread else 1)
    if not isinstance(values, list | tuple):
        raise BadResultError(f"{what} must be a list or a tensor, not a {type(values).__name__}")
    if len(values) != count:
        raise BadResultError(f"{what} has {len(values)} numbers for {count} responses")
    return [_number(value, what) for value in values]


def _number(value: Any, what: str) -> float | None:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if value is None:
        return None
    if not isinstance(value, int | float):
        raise BadResultError(f"{what} must hold numbers, not a {type(value).__name__}")
    return float(value)
