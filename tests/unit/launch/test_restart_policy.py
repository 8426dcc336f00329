"""When a failed process starts again."""

from __future__ import annotations

import pytest

from rlctl.core.errors import FutileError
from rlctl.launch.restart import GiveUp, RestartPolicy


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_delay_doubles_with_every_short_life_and_starts_again_after_a_long_one() -> None:
    policy = RestartPolicy(100, 600.0, Clock())
    assert [policy.delay("reward-0", -9, 1.0) for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert policy.delay("reward-0", -9, 300.0) == 0.5
    assert policy.delay("reference-0", -9, 1.0) == 0.5
    assert policy.total == 10


def test_the_budget_is_of_all_processes_within_the_window() -> None:
    clock = Clock()
    policy = RestartPolicy(2, 600.0, clock)
    policy.delay("reward-0", -9, 100.0)
    policy.delay("critic-0", -9, 100.0)
    with pytest.raises(GiveUp, match="more than 2 restarts within 600 s"):
        policy.delay("rollout-0", -9, 100.0)
    clock.now = 601.0
    assert policy.delay("rollout-0", -9, 100.0) == 0.5


def test_three_errors_in_a_row_soon_after_the_start_are_enough() -> None:
    policy = RestartPolicy(100, 600.0, Clock())
    policy.delay("generation-0", 1, 5.0)
    policy.delay("generation-0", 1, 5.0)
    with pytest.raises(GiveUp, match="3 starts in a row"):
        policy.delay("generation-0", 1, 5.0)


def test_a_long_life_between_errors_makes_them_no_row() -> None:
    policy = RestartPolicy(100, 600.0, Clock())
    for lived in (5.0, 5.0, 500.0, 5.0, 5.0):
        policy.delay("generation-0", 1, lived)


def test_wrong_settings_end_the_run_at_once() -> None:
    with pytest.raises(GiveUp, match="settings are wrong"):
        RestartPolicy(100, 600.0, Clock()).delay("trainer-0", 2, 1.0)


def test_a_run_with_nothing_to_train_on_is_not_restarted() -> None:
    with pytest.raises(GiveUp, match="would not help"):
        RestartPolicy(100, 600.0, Clock()).delay("trainer-0", FutileError.exit_code, 100.0)
