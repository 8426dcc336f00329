"""Shares with intervals, ratios with bootstrap intervals, agreement. Pure functions over booleans and None.

None means unscored: such a record is counted beside a share, never inside it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

#: Normal quantile of a two-sided 95 % interval.
Z = 1.959963984540054


@dataclass(frozen=True)
class Share:
    """yes of n, with its Wilson 95 % interval; unscored counts what is not in n. value is None when n is 0."""

    yes: int
    n: int
    unscored: int
    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Ratio:
    """P(right | switch) / P(right) over the n records where both are known; None when the denominator is 0.

    prompts: how many were resampled; undefined: share of the resamples in which the ratio did not exist.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int
    prompts: int
    undefined: float


@dataclass(frozen=True)
class Agreement:
    """How two raters agree on the n records both rated. kappa is None where chance alone would agree always."""

    n: int
    agreement: float | None
    kappa: float | None
    first_yes: float | None
    second_yes: float | None


def wilson(yes: int, n: int) -> tuple[float, float]:
    """Wilson score interval (Wilson 1927), 95 %."""
    share = yes / n
    middle = share + Z * Z / (2 * n)
    spread = Z * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
    scale = 1 + Z * Z / n
    low, high = (middle - spread) / scale, (middle + spread) / scale
    return (0.0 if yes == 0 else low), (1.0 if yes == n else high)


def share(values: Sequence[bool | None]) -> Share:
    """Share of True among the scored."""
    yes = sum(value is True for value in values)
    n = sum(value is not None for value in values)
    if n == 0:
        return Share(0, 0, len(values), None, None, None)
    low, high = wilson(yes, n)
    return Share(yes, n, len(values) - n, yes / n, low, high)


def share_given(values: Sequence[bool | None], condition: Sequence[bool | None], wanted: bool) -> Share:
    """Share of True among the scored records whose condition is `wanted`; unscored counts those of them unscored."""
    return share([value for value, given in zip(values, condition, strict=True) if given is wanted])


def ratio(
    right: Sequence[bool | None],
    switch: Sequence[bool | None],
    prompts: Sequence[Hashable],
    *,
    resamples: int,
    seed: int,
) -> Ratio:
    """P(right | switch) / P(right) with a percentile bootstrap interval that resamples prompts; none for one prompt.

    Prompts with the same counts are alike, so a resample of prompts is a multinomial draw over the kinds of prompt.
    """
    counts: dict[Hashable, list[int]] = {}
    for value, given, prompt in zip(right, switch, prompts, strict=True):
        if value is None or given is None:
            continue
        cell = counts.setdefault(prompt, [0, 0, 0, 0])
        for index, add in enumerate((1, value, given, value and given)):
            cell[index] += int(add)
    kinds = Counter(tuple(cell) for cell in counts.values())
    if not kinds:
        return Ratio(None, None, None, 0, 0, 1.0)
    cells = np.array(sorted(kinds), dtype=np.float64)
    weights = np.array([kinds[tuple(int(x) for x in cell)] for cell in cells], dtype=np.float64)
    point = float(_ratios((weights @ cells)[None, :])[0])
    n = int((weights @ cells)[0])
    rng = np.random.default_rng(seed)
    draws = rng.multinomial(len(counts), weights / weights.sum(), size=resamples) @ cells
    drawn = _ratios(draws)
    defined = drawn[np.isfinite(drawn)]
    undefined = 1 - len(defined) / resamples
    if not math.isfinite(point) or len(defined) == 0:
        return Ratio(None, None, None, n, len(counts), undefined)
    if len(counts) == 1:
        return Ratio(point, None, None, n, 1, undefined)
    low, high = np.quantile(defined, [0.025, 0.975])
    return Ratio(point, float(low), float(high), n, len(counts), undefined)


def _ratios(sums_R4: np.ndarray) -> np.ndarray:
    n, right, switch, both = sums_R4.T
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray((both / switch) / (right / n))


def agreement(first: Sequence[bool | None], second: Sequence[bool | None]) -> Agreement:
    """Observed agreement and Cohen's kappa (Cohen 1960) with both base rates."""
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    n = len(pairs)
    if n == 0:
        return Agreement(0, None, None, None, None)
    same = sum(a == b for a, b in pairs) / n
    p, q = sum(a for a, _ in pairs) / n, sum(b for _, b in pairs) / n
    chance = p * q + (1 - p) * (1 - q)
    kappa = None if math.isclose(chance, 1.0) else (same - chance) / (1 - chance)
    return Agreement(n, same, kappa, p, q)


def pass_at_k(right: int, n: int, k: int) -> float:
    """Unbiased estimate of pass@k from n samples of one prompt (Chen et al. 2021, arXiv:2107.03374)."""
    if n - right < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / index for index in range(n - right + 1, n + 1))


def mean_interval(values: Sequence[float], *, resamples: int, seed: int) -> tuple[float, float]:
    """Percentile bootstrap interval of a mean of shares; `values` are one a prompt.

    Where all are 0 or all are 1 a bootstrap knows no other value; then Wilson's interval over the prompts.
    """
    if set(values) in ({0.0}, {1.0}):
        return wilson(round(sum(values)), len(values))
    kinds = Counter(values)
    levels = np.array(sorted(kinds), dtype=np.float64)
    weights = np.array([kinds[level] for level in levels.tolist()], dtype=np.float64)
    rng = np.random.default_rng(seed)
    means = rng.multinomial(len(values), weights / weights.sum(), size=resamples) @ levels / len(values)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
