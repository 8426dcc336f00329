"""Where the time of a step went."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rlctl.v1 import rollout_pb2

Interval = tuple[float, float]


@dataclass
class RolloutClock:
    """When groups were generated and scored, by their workers' clocks."""

    generating: dict[str, list[Interval]] = field(default_factory=dict)
    scoring: dict[str, list[Interval]] = field(default_factory=dict)

    def add(self, group: rollout_pb2.RolloutGroup) -> None:
        begun = group.started_unix_s
        generated = begun + group.generate_seconds
        self.generating.setdefault(group.worker, []).append((begun, generated))
        self.scoring.setdefault(group.worker, []).append((generated, generated + group.score_seconds))

    def seconds(self) -> tuple[float, float]:
        """Seconds in which something was generated, and in which something was scored but nothing generated.

        Of several workers the busiest counts: their clocks are not compared.
        """
        best = (0.0, 0.0)
        for worker, generating in self.generating.items():
            generate = covered(generating)
            score = covered(generating + self.scoring[worker]) - generate
            best = max(best, (generate, score), key=sum)
        return best


def covered(intervals: list[Interval]) -> float:
    """Length of the union of intervals."""
    total, reach = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reach))
        reach = max(reach, end)
    return total


class PhaseTimer:
    """Adds up seconds by phase; what no phase covers is `other`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(("generate", "score", "train", "sync", "wait"), 0.0)
        self._begun = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - begun

    def rollouts(self, waited: float, clock: RolloutClock) -> None:
        """Splits the time waited for rollouts into generating, scoring, and neither."""
        generate, score = clock.seconds()
        generate = min(generate, waited)
        score = min(score, waited - generate)
        self.seconds["generate"] += generate
        self.seconds["score"] += score
        self.seconds["wait"] += waited - generate - score

    def metrics(self) -> dict[str, float]:
        wall = time.perf_counter() - self._begun
        other = max(0.0, wall - sum(self.seconds.values()))
        return {f"time/{name}": value for name, value in self.seconds.items()} | {
            "time/other": other,
            "time/step": wall,
        }
