"""From scored responses to what is learnt next: the best of each prompt, pairs, or all with their scores.

A response that was cut by length is never chosen: to learn it, the data would give it an end that the policy did not
sample. Nor is one without a reward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rlctl.algorithms.selection import best_and_worst, best_of
from rlctl.clients.answers import KEY, Row
from rlctl.data.condition import score_text


@dataclass(frozen=True)
class Chosen:
    """Rows to train on, and how they came about."""

    rows: list[Row]
    counts: dict[str, int]
    """`prompts`, `responses`, those not usable (`cut`, `unscored`), `chosen` rows, and `left_out` prompts."""


def best_responses(scored: Sequence[Row], min_reward: float | None = None) -> Chosen:
    """The best response of each prompt (rejection sampling), where its reward is at least `min_reward`."""
    indices = best_of(*_scores(scored)).tolist()
    if min_reward is not None:
        indices = [index for index in indices if scored[index]["reward"] >= min_reward]
    return _chosen(scored, [_response(scored[index]) for index in indices], len(indices))


def preference_pairs(scored: Sequence[Row]) -> Chosen:
    """Best and worst response of each prompt (iterative DPO); equal scores give no pair."""
    pairs = best_and_worst(*_scores(scored)).tolist()
    rows = [
        {
            "prompt": scored[best]["prompt"],
            "chosen": scored[best]["response"],
            "rejected": scored[worst]["response"],
            "chosen_reward": scored[best]["reward"],
            "rejected_reward": scored[worst]["reward"],
        }
        for best, worst in pairs
    ]
    return _chosen(scored, rows, len(rows))


def conditioned_responses(scored: Sequence[Row]) -> Chosen:
    """Every response, its reward written behind the prompt (conditional SFT)."""
    rows = [_response(row) for row in scored if _usable(row)]
    rows = [row | {"prompt": row["prompt"] + score_text(row["reward"])} for row in rows]
    return _chosen(scored, rows, len({row[KEY] for row in scored if _usable(row)}))


def _response(row: Row) -> Row:
    return {name: row[name] for name in ("prompt", "response", "reward")}


def _usable(row: Row) -> bool:
    return row["finish"] == "stop" and row["reward"] is not None


def _scores(scored: Sequence[Row]) -> tuple[Any, Any]:
    places = {key: place for place, key in enumerate(dict.fromkeys(row[KEY] for row in scored))}
    scores = [row["reward"] if _usable(row) else math.nan for row in scored]
    return torch.tensor(scores, dtype=torch.float64), torch.tensor([places[row[KEY]] for row in scored])


def _chosen(scored: Sequence[Row], rows: list[Row], prompts_used: int) -> Chosen:
    prompts = len({row[KEY] for row in scored})
    cut = sum(row["finish"] != "stop" for row in scored)
    counts = {
        "prompts": prompts,
        "responses": len(scored),
        "cut": cut,
        "unscored": sum(row["finish"] == "stop" and row["reward"] is None for row in scored),
        "chosen": len(rows),
        "left_out": prompts - prompts_used,
    }
    return Chosen(rows, counts)
