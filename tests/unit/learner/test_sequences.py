"""Sequences travel between ranks unchanged, and are shared out evenly."""

from __future__ import annotations

import torch

from rlctl.learner.batch import share_out
from rlctl.learner.config import OptimizerConfig
from rlctl.learner.schedule import learning_rate
from rlctl.learner.sequence import Sequence, decode, encode


def test_sequences_survive_the_wire() -> None:
    one = Sequence(
        torch.tensor([1, 2]), torch.tensor([3, 4, 5]), torch.tensor([True, False, True]),
        {"returns": torch.tensor([0.5, -1.0, 2.0])}, {"reward": 0.25},
    )  # fmt: skip
    two = Sequence(
        torch.tensor([6]), torch.tensor([7]), torch.tensor([True]), {"returns": torch.tensor([9.0])}, {"reward": -1.5}
    )
    back = decode(encode([one, two]))
    for given, sent in zip(back, [one, two], strict=True):
        assert given.prompt_ids.tolist() == sent.prompt_ids.tolist()
        assert given.response_ids.tolist() == sent.response_ids.tolist()
        assert given.mask.tolist() == sent.mask.tolist()
        assert given.fields["returns"].tolist() == sent.fields["returns"].tolist()
        assert given.scalars == sent.scalars
    assert decode(encode([])) == []


def test_shares_are_even_and_complete() -> None:
    shares = share_out([10, 1, 1, 7, 4, 4, 1], 2)
    assert sorted(index for share in shares for index in share) == list(range(7))
    assert shares == [[0, 5], [3, 4, 1, 2, 6]]
    assert share_out([5], 3) == [[0], [], []]


def test_learning_rate_by_step() -> None:
    constant = OptimizerConfig(lr=1.0, warmup_steps=4)
    assert [learning_rate(constant, step, 10) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    # A quarter of 10 steps, rounded up, is 3.
    share = OptimizerConfig(lr=3.0, warmup_ratio=0.25)
    assert [learning_rate(share, step, 10) for step in range(4)] == [1.0, 2.0, 3.0, 3.0]
    linear = OptimizerConfig(lr=1.0, scheduler="linear", min_lr_ratio=0.5)
    assert [learning_rate(linear, step, 5) for step in range(6)] == [1.0, 0.875, 0.75, 0.625, 0.5, 0.5]
    cosine = OptimizerConfig(lr=2.0, scheduler="cosine", warmup_steps=1)
    assert [round(learning_rate(cosine, step, 4), 6) for step in range(4)] == [2.0, 2.0, 1.0, 0.0]
