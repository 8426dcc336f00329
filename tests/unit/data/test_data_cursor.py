"""The order of training."""

from __future__ import annotations

import json

import pytest

from rlctl.core.errors import FailedPreconditionError
from rlctl.data.cursor import Position, PromptCursor


def test_every_epoch_has_every_prompt_once_in_an_order_of_its_own():
    cursor = PromptCursor(10, shuffle=True, seed=3)
    first, second = cursor.take(10), cursor.take(10)
    assert [p.position for p in first] == list(range(10)) == [p.position for p in second]
    assert {p.epoch for p in first} == {0}
    assert {p.epoch for p in second} == {1}
    assert sorted(p.index for p in first) == list(range(10)) == sorted(p.index for p in second)
    assert [p.index for p in first] != [p.index for p in second]


def test_the_order_is_fixed_for_ever():
    # Checkpoints rely on it: these numbers must not change with a version of anything.
    assert [p.index for p in PromptCursor(8, shuffle=True, seed=1).take(8)] == [5, 1, 2, 0, 4, 7, 6, 3]


def test_without_shuffling_the_order_is_that_of_the_data():
    assert PromptCursor(2, shuffle=False, seed=0).take(3) == [Position(0, 0, 0), Position(0, 1, 1), Position(1, 0, 0)]


def test_taking_in_other_portions_gives_the_same_order():
    whole = PromptCursor(7, shuffle=True, seed=5).take(20)
    cursor = PromptCursor(7, shuffle=True, seed=5)
    assert [p for n in (1, 6, 0, 9, 4) for p in cursor.take(n)] == whole


@pytest.mark.parametrize("taken", [0, 3, 7, 12, 14])
def test_a_restored_cursor_skips_nothing_and_repeats_nothing(taken):
    whole = PromptCursor(7, shuffle=True, seed=5).take(20)
    before = PromptCursor(7, shuffle=True, seed=5)
    before.take(taken)
    after = PromptCursor(7, shuffle=True, seed=5)
    after.restore(json.loads(json.dumps(before.state())))
    assert after.take(20 - taken) == whole[taken:]


@pytest.mark.parametrize("other", [(8, True, 5), (7, False, 5), (7, True, 6)])
def test_other_data_or_another_order_is_refused(other):
    state = PromptCursor(7, shuffle=True, seed=5).state()
    with pytest.raises(FailedPreconditionError, match="resume with the same data settings"):
        PromptCursor(*other).restore(state)
