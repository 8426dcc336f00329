import math

import pytest
import torch

from rlctl.algorithms.kl import adapt_beta, kl_per_token
from rlctl.algorithms.shaping import place_rewards, shape_scores

NAN = float("nan")


def test_estimators_by_hand():
    logprobs = torch.tensor([[-1.0, -2.0, -3.0]])
    ref = torch.tensor([[-1.5, -1.0, -3.0]])  # d = 0.5, -1, 0
    mask = torch.ones(1, 3, dtype=torch.bool)
    assert kl_per_token(logprobs, ref, mask, "k1")[0].tolist() == pytest.approx([0.5, -1.0, 0.0])
    assert kl_per_token(logprobs, ref, mask, "k2")[0].tolist() == pytest.approx([0.125, 0.5, 0.0])
    k3 = [math.exp(-0.5) - 1 + 0.5, math.exp(1.0) - 1 - 1.0, 0.0]
    assert kl_per_token(logprobs, ref, mask, "k3")[0].tolist() == pytest.approx(k3, abs=1e-6)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_masked_places_leak_neither_value_nor_gradient(estimator):
    logprobs = torch.tensor([[-1.0, NAN, -torch.inf]], requires_grad=True)
    mask = torch.tensor([[True, False, False]])
    kl = kl_per_token(logprobs, torch.tensor([[-1.5, 0.0, -torch.inf]]), mask, estimator)
    kl.sum().backward()
    assert kl[0, 1:].tolist() == [0.0, 0.0]
    assert logprobs.grad[0, 1:].tolist() == [0.0, 0.0]
    assert logprobs.grad[0, 0] != 0


def test_k3_stays_finite_far_from_the_reference():
    logprobs = torch.tensor([[-1000.0, 0.0]], requires_grad=True)
    kl = kl_per_token(logprobs, torch.tensor([[0.0, -1000.0]]), torch.ones(1, 2, dtype=torch.bool), "k3")
    kl.sum().backward()
    assert kl[0].tolist() == pytest.approx([math.exp(10) - 11, math.exp(-10) + 9], rel=1e-5)
    assert logprobs.grad.isfinite().all()


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_kl_gradient_agrees_with_finite_differences(estimator):
    logprobs = torch.tensor([[-0.3, -2.0], [-1.0, -0.2]], dtype=torch.float64, requires_grad=True)
    ref = torch.tensor([[-0.5, -1.0], [-1.2, -3.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True], [True, False]])
    assert torch.autograd.gradcheck(lambda x: kl_per_token(x, ref, mask, estimator), (logprobs,))


def test_controller_by_hand():
    assert adapt_beta(0.1, kl=6.6, target=6.0, horizon=10_000, n=500) == pytest.approx(0.1 * (1 + 0.1 * 0.05))
    assert adapt_beta(0.1, kl=60.0, target=6.0, horizon=100, n=50) == pytest.approx(0.1 * 1.1)  # held at +0.2
    assert adapt_beta(0.1, kl=-3.0, target=6.0, horizon=100, n=50) == pytest.approx(0.1 * 0.9)  # held at -0.2
    assert adapt_beta(0.1, kl=6.0, target=6.0, horizon=100, n=50) == 0.1


def _shape(scores, lengths=None, truncated=None, **options):
    scores = torch.tensor(scores)
    lengths = torch.tensor(lengths) if lengths else torch.full(scores.shape, 4)
    truncated = torch.tensor(truncated) if truncated else torch.zeros(scores.shape, dtype=torch.bool)
    return shape_scores(scores, lengths, truncated, max_len=100, **options).tolist()


def test_overlong_penalty_by_hand():
    shaped = _shape([1.0, 1.0, 1.0, 1.0], lengths=[80, 85, 100, 120], overlong_buffer=20, overlong_factor=2.0)
    assert shaped == pytest.approx([1.0, 0.5, -1.0, -1.0])


def test_stop_penalty_by_hand():
    cut = [True, True, False]
    assert _shape([1.0, -1.0, 1.0], truncated=cut, stop_coef=0.25) == pytest.approx([0.25, -1.0, 1.0])
    assert _shape([1.0, -1.0, 1.0], truncated=cut, stop_coef=0.0) == pytest.approx([0.0, -1.0, 1.0])
    assert _shape([1.0, -1.0, 1.0], truncated=cut, stop_coef=-2.0) == pytest.approx([-2.0, -2.0, 1.0])


def test_penalties_come_before_the_clip():
    assert _shape([12.0], lengths=[100], overlong_buffer=10, overlong_factor=5.0, clip=(-10, 10)) == [7.0]
    assert _shape([50.0, -50.0]) == [10.0, -10.0]
    assert _shape([50.0], clip=None) == [50.0]


@pytest.mark.parametrize("stop_coef", [None, 0.5, -1.0])
def test_a_missing_score_stays_missing(stop_coef):
    assert math.isnan(_shape([NAN], truncated=[True], overlong_buffer=10, stop_coef=stop_coef)[0])


def test_the_score_lands_on_the_last_trained_token():
    mask = torch.tensor([[1, 1, 1, 0], [0, 1, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]]).bool()
    rewards = place_rewards(torch.tensor([1.0, 2.0, 0.0, 9.0]), None, 0.1, mask)
    assert rewards.tolist() == [[0, 0, 1, 0], [0, 0, 0, 2], [0, 0, 0, 0], [0, 0, 0, 0]]


def test_kl_is_taken_off_every_trained_token():
    mask = torch.tensor([[True, True, False]])
    rewards = place_rewards(torch.tensor([1.0]), torch.tensor([[0.5, -1.0, NAN]]), 0.1, mask)
    assert rewards[0].tolist() == pytest.approx([-0.05, 1.1, 0.0])
