import math

import pytest
import torch

from rlctl.algorithms.offpolicy import correction_weights, mismatch_metrics
from rlctl.algorithms.value_loss import value_loss

NAN = float("nan")
MASK = torch.tensor([[True, True, True, False]])
RATIOS = torch.tensor([[math.log(0.25), math.log(1.0), math.log(4.0), NAN]])
ZERO = torch.zeros(1, 4)


@pytest.mark.parametrize(
    "kind, options, expected",
    [
        ("none", {}, [1.0, 1.0, 1.0, 0.0]),
        ("tis", {}, [0.25, 1.0, 2.0, 0.0]),
        ("tis", {"low": 0.5, "high": 5.0}, [0.5, 1.0, 4.0, 0.0]),
        ("icepop", {}, [0.0, 1.0, 0.0, 0.0]),
        ("icepop", {"low": 0.2, "high": 5.0}, [0.25, 1.0, 4.0, 0.0]),
        ("decoupled", {"low": 0.5}, [0.25, 1.0, 2.0, 0.0]),
        ("seq_mask_tis", {}, [0.25, 1.0, 2.0, 0.0]),  # the geometric mean is exactly 1
    ],
)
def test_weights_by_hand(kind, options, expected):
    assert correction_weights(kind, RATIOS, ZERO, MASK, **options)[0].tolist() == pytest.approx(expected)


def test_a_sequence_outside_its_band_is_dropped_whole():
    old = torch.tensor([[0.0, 0.0, 0.09, NAN], [0.0, 0.0, 0.03, NAN]])  # geometric means exp(.03), exp(.01)
    weights = correction_weights("seq_mask_tis", old, torch.zeros(2, 4), MASK.expand(2, 4))
    assert weights[0].tolist() == [0.0] * 4
    assert weights[1].tolist() == pytest.approx([1.0, 1.0, math.exp(0.03), 0.0])


@pytest.mark.parametrize("kind", ["none", "tis", "icepop", "seq_mask_tis", "decoupled"])
def test_weights_carry_no_gradient_and_no_overflow(kind):
    old = torch.tensor([[1000.0, -1000.0, 0.0, NAN]], requires_grad=True)
    weights = correction_weights(kind, old, ZERO, MASK)
    assert not weights.requires_grad
    assert weights.isfinite().all()


def test_mismatch_metrics_by_hand():
    weights = correction_weights("icepop", RATIOS, ZERO, MASK)
    metrics, largest = mismatch_metrics(RATIOS, ZERO, MASK, weights)
    total, count = metrics["mismatch/kl_mean"]
    # k3: 0.25 - 1 - log .25, 0, 4 - 1 - log 4; the logs cancel
    assert (total.item(), count.item()) == (pytest.approx(2.25), 3)
    assert largest.item() == pytest.approx(math.log(4.0))
    assert metrics["mismatch/dropped_fraction"][0].item() == 2
    assert metrics["mismatch/weight_mean"][0].item() == pytest.approx(1.0)


def test_value_loss_by_hand():
    values, old = torch.tensor([[1.0, 1.0, 0.1]]), torch.tensor([[0.5, 1.0, 0.0]])
    returns = torch.tensor([[1.0, 3.0, 1.0]])
    mask = torch.ones(1, 3, dtype=torch.bool)
    # held at 0.7: 0.3^2 beats 0; inside the clip: 2^2 and 0.9^2
    assert value_loss(values, old, returns, mask, 0.2)[0].tolist() == pytest.approx([0.045, 2.0, 0.405])
    assert value_loss(values, old, returns, mask, None)[0].tolist() == pytest.approx([0.0, 2.0, 0.405])


@pytest.mark.parametrize("clip", [0.2, None])
def test_value_loss_keeps_masked_places_out(clip):
    values = torch.tensor([[1.0, 0.1, NAN, torch.inf]], requires_grad=True)
    mask = torch.tensor([[True, True, False, False]])
    filler = torch.tensor([[0.9, 0.0, torch.inf, NAN]])
    loss = value_loss(values, filler, filler, mask, clip)
    loss.sum().backward()
    assert loss[0, 2:].tolist() == [0.0, 0.0]
    assert values.grad[0, 2:].tolist() == [0.0, 0.0]
    assert values.grad[0, 0] != 0


def test_value_gradient_agrees_with_finite_differences():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(3, 4, dtype=torch.float64, generator=generator).requires_grad_()
    old, returns = (torch.randn(3, 4, dtype=torch.float64, generator=generator) for _ in range(2))
    mask = torch.rand(3, 4, generator=generator) > 0.3
    assert torch.autograd.gradcheck(lambda x: value_loss(x, old, returns, mask, 0.2), (values,), eps=1e-7)
