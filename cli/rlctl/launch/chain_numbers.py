"""The numbers of a policy in the report, from its scored responses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean

from rlctl.clients.answers import Row
from rlctl.offline.asking import by_key

MODEL, GRADER = "model", "grader"
#: With fewer pairs than this, how often the reward model is right is not told.
FEWEST_PAIRS = 20


@dataclass(frozen=True)
class Measured:
    """One policy on the held-out prompts."""

    policy: str
    prompts: int
    accuracy: float | None
    """Share of greedy responses that the grader takes as right; None where the prompts have no labels."""
    reward: float
    """Mean reward of greedy responses under the trained reward model."""
    sampled_reward: float
    """The same of sampled ones."""
    kl: float
    """KL from the SFT model, nats a response, estimated on the samples."""
    length: float
    """Mean length of greedy responses, tokens, the EOS among them."""
    cut: float
    """Share of greedy responses that were cut at the longest length."""
    ranked: float | None
    """Share of (right, wrong) samples of one prompt of which the reward model prefers the right one; None where there
    are few."""


def measured(policy: str, greedy: Sequence[Row], sampled: Sequence[Row], log_ratios: Sequence[float]) -> Measured:
    """Rows as `score_all` gives them, with `token_ids` and, where the prompts have labels, `components`.

    `log_ratios` are log pi(y) - log sft(y) of the samples, nats. Responses without a reward are left out of means.
    """
    return Measured(
        policy,
        len(greedy),
        _mean(_right(row) for row in greedy if GRADER in row.get("components", {})),
        fmean(_rewards(greedy)),
        fmean(_rewards(sampled)),
        fmean(log_ratios),
        fmean(len(row["token_ids"]) for row in greedy),
        fmean(row["finish"] == "length" for row in greedy),
        ranked(sampled),
    )


def ranked(sampled: Sequence[Row]) -> float | None:
    """How often the reward model prefers a right sample to a wrong one of the same prompt; equal rewards count half.

    None below `FEWEST_PAIRS` pairs.
    """
    wins: list[float] = []
    for rows in by_key([row for row in sampled if GRADER in row.get("components", {})]).values():
        right = [row["components"][MODEL] for row in rows if _right(row)]
        wrong = [row["components"][MODEL] for row in rows if not _right(row)]
        wins += [1.0 if good > bad else 0.5 * (good == bad) for good, bad in product(right, wrong)]
    return fmean(wins) if len(wins) >= FEWEST_PAIRS else None


def _right(row: Row) -> bool:
    return bool(row["components"][GRADER] > 0.5)


def _rewards(rows: Sequence[Row]) -> list[float]:
    return [row["reward"] for row in rows if row["reward"] is not None]


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return fmean(found) if found else None
