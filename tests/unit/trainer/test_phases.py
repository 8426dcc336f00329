"""Where time goes: unions of intervals, never counted twice."""

from __future__ import annotations

import pytest

from rlctl.trainer.phases import PhaseTimer, RolloutClock, covered
from rlctl.trainer.versions import PolicyVersions
from rlctl.v1 import rollout_pb2


def test_union_of_intervals():
    assert covered([]) == 0
    assert covered([(5, 7), (0, 2), (1, 3)]) == 5
    assert covered([(0, 10), (2, 3)]) == 10


def group(worker: str, begun: float, generate: float, score: float) -> rollout_pb2.RolloutGroup:
    return rollout_pb2.RolloutGroup(worker=worker, started_unix_s=begun, generate_seconds=generate, score_seconds=score)


def test_scoring_beside_generation_counts_as_generation():
    clock = RolloutClock()
    clock.add(group("a", 100, 4, 1))
    clock.add(group("a", 100, 3, 3))
    assert clock.seconds() == (4, 2)


def test_of_two_workers_the_busiest_counts():
    clock = RolloutClock()
    clock.add(group("a", 100, 4, 1))
    clock.add(group("b", 900, 2, 1))
    assert clock.seconds() == (4, 1)


def test_waiting_is_what_neither_generates_nor_scores():
    clock = RolloutClock()
    clock.add(group("a", 100, 4, 1))
    timer = PhaseTimer()
    timer.rollouts(7.5, clock)
    assert timer.seconds == pytest.approx({"generate": 4, "score": 1, "wait": 2.5, "train": 0, "sync": 0})


def test_a_policy_version_is_never_used_twice(tmp_path):
    path = tmp_path / "versions.json"
    versions = PolicyVersions(path)
    assert [versions.take(0), versions.take(1)] == [1, 2]
    again = PolicyVersions(path)
    assert again.take(1) == 3
    assert (again.staleness(2, 1), again.staleness(1, 4), again.staleness(3, 1)) == (0, 4, 0)
