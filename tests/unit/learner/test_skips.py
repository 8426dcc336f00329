"""Gradients that are not finite: left out whole, counted, and no reason to go on for ever."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from rlctl.core.errors import FutileError
from rlctl.learner.loss import Batch, LossOutput
from rlctl.learner.skips import MOST
from support.training import nll, policy, sequences, weights

KINDS = [{"zero_stage": stage, "dtype": dtype} for stage in range(4) for dtype in ("float32", "bfloat16")]


def broken(batch: Batch, totals: Any) -> LossOutput:
    """A loss that is finite, with a gradient that is not."""
    output = nll(batch, totals)
    return LossOutput(output.loss + (batch.outputs_BT.sum() * 0.0).sqrt(), output.metrics)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"zero{kind['zero_stage']}-{kind['dtype']}")
def test_a_step_without_a_finite_gradient_changes_nothing(
    tiny: Path, kind: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    learner, other = policy(tiny, **kind), policy(tiny, **kind)
    for one in (learner, other):
        assert one.step(sequences(0), nll)["skipped"] == 0.0
    before = weights(learner)
    with caplog.at_level(logging.WARNING):
        told = learner.step(sequences(1), broken)
    assert (told["skipped"], told["grad_norm"]) == (1.0, math.inf)
    assert "its gradient is not finite (1 in a row)" in caplog.text
    assert all(torch.equal(before[name], value) for name, value in weights(learner).items())
    after = [one.step(sequences(2), nll) for one in (learner, other)]
    assert after[0] == after[1], "it leaves no trace in the optimizer either"
    assert all(torch.equal(value, weights(other)[name]) for name, value in weights(learner).items())


def test_many_in_a_row_are_the_end(tiny: Path) -> None:
    learner = policy(tiny)
    for number in range(2 * MOST):
        learner.step(sequences(number), nll if number % 2 else broken)
    for _ in range(MOST - 1):
        learner.step(sequences(), broken)
    with pytest.raises(FutileError, match=r"10 optimizer steps in a row .* not finite, .* lower optimizer\.lr"):
        learner.step(sequences(), broken)
