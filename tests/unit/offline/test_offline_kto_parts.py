"""Parts of KTO, by hand."""

from __future__ import annotations

import pytest
import torch

from rlctl.core.errors import ConfigError
from rlctl.data.kto import Judged
from rlctl.offline.kto import DESIRABLE, to_items, win_rate


def test_win_rate_counts_ties_half():
    above, below = torch.tensor([3.0, 1.0]), torch.tensor([2.0, 1.0, 0.0])
    # 3 beats all three; 1 beats 0, and ties with 1.
    assert win_rate(above, below) == pytest.approx((3 + 1 + 0.5) / 6)
    assert win_rate(above, torch.empty(0)) == 0.5


def test_the_mismatched_response_is_that_of_the_next_other_prompt():
    judged = [Judged([1], [10], True), Judged([1], [11], False), Judged([2], [12], True), Judged([1], [13], True)]
    items = to_items(judged)
    assert [item[1].response_ids.tolist() for item in items] == [[12], [12], [13], [12]]
    assert [item[1].prompt_ids.tolist() for item in items] == [[1], [1], [2], [1]]
    assert [item[0].scalars[DESIRABLE] for item in items] == [1.0, 0.0, 1.0, 1.0]
    assert [item[0].response_ids.tolist() for item in items] == [[10], [11], [12], [13]]


def test_one_prompt_has_no_mismatched_responses():
    with pytest.raises(ConfigError, match="one prompt only"):
        to_items([Judged([1], [10], True), Judged([1], [11], False)])
