import math

import pytest
import torch
from torch.nn.functional import pad

from rlctl.algorithms.aggregate import aggregate
from rlctl.algorithms.policy_loss import cispo_loss, gspo_loss, ppo_loss, reinforce_loss

NAN = float("nan")
LOSSES = [ppo_loss, gspo_loss, cispo_loss, reinforce_loss]
ALL = torch.ones(1, 4, dtype=torch.bool)


def _logs(*ratios):
    return torch.tensor([[math.log(ratio) for ratio in ratios]])


def _value(metric):
    return (metric[0] / metric[1]).item()


def test_ppo_by_hand():
    advantages = torch.tensor([[1.0, 1.0, -1.0, -1.0]])
    result = ppo_loss(_logs(1.5, 0.5, 0.5, 1.5), torch.zeros(1, 4), advantages, ALL)
    assert result.loss_BT[0].tolist() == pytest.approx([-1.2, -0.5, 0.8, 1.5])
    assert _value(result.metrics["policy/clip_fraction"]) == 0.5
    assert _value(result.metrics["policy/ratio_mean"]) == pytest.approx(1.0)


def test_clip_higher_leaves_more_room_above():
    result = ppo_loss(_logs(1.25, 1.5, 0.7, 0.9), torch.zeros(1, 4), torch.ones(1, 4), ALL, clip_high=0.28)
    assert result.loss_BT[0].tolist() == pytest.approx([-1.25, -1.28, -0.7, -0.9])


def test_dual_clip_bounds_the_loss_of_negative_advantages_only():
    advantages = torch.tensor([[-1.0, -1.0, 1.0, -2.0]])
    result = ppo_loss(_logs(5.0, 2.0, 5.0, 9.0), torch.zeros(1, 4), advantages, ALL, dual_clip=3.0)
    assert result.loss_BT[0].tolist() == pytest.approx([3.0, 2.0, -1.2, 6.0])
    assert _value(result.metrics["policy/dual_clip_fraction"]) == 0.5


def test_gspo_has_one_ratio_for_the_sequence():
    mask = torch.tensor([[True, True, True, False]])
    logprobs = torch.tensor([[3e-4, -3e-4, 3e-4, NAN]])  # mean 1e-4
    advantages = torch.tensor([[1.0, 1.0, -1.0, NAN]])
    result = gspo_loss(logprobs, torch.zeros(1, 4), advantages, mask)
    ratio = math.exp(1e-4)
    assert result.loss_BT[0].tolist() == pytest.approx([-ratio, -ratio, ratio, 0.0], abs=1e-7)
    clipped = gspo_loss(logprobs * 100, torch.zeros(1, 4), advantages, mask)
    assert clipped.loss_BT[0].tolist() == pytest.approx([-(1 + 4e-4), -(1 + 4e-4), math.exp(1e-2), 0.0], abs=1e-6)


def test_cispo_caps_the_weight_and_keeps_the_gradient():
    logprobs = torch.tensor([[-1.0, -1.0]], requires_grad=True)
    old = torch.tensor([[-1.0 - math.log(2.0), -1.0 + math.log(2.0)]])
    result = cispo_loss(logprobs, old, torch.tensor([[1.0, -3.0]]), ALL[:, :2], clip_high=0.2)
    assert result.loss_BT[0].tolist() == pytest.approx([1.2, -1.5])
    result.loss_BT.sum().backward()
    assert logprobs.grad[0].tolist() == pytest.approx([-1.2, 1.5])
    assert _value(result.metrics["policy/clip_fraction"]) == 0.5


def test_reinforce_by_hand():
    logprobs = torch.tensor([[-1.0, -2.0]])
    result = reinforce_loss(logprobs, logprobs, torch.tensor([[2.0, -1.0]]), ALL[:, :2])
    assert result.loss_BT[0].tolist() == [2.0, -2.0]


@pytest.mark.parametrize("loss", LOSSES)
def test_before_any_step_every_loss_has_the_policy_gradient(loss):
    logprobs = torch.tensor([[-1.0, -2.0, -0.5, -3.0]], requires_grad=True)
    advantages = torch.tensor([[2.0, 2.0, 2.0, 2.0]])
    loss(logprobs, logprobs.detach(), advantages, ALL).loss_BT.sum().backward()
    assert logprobs.grad[0].tolist() == pytest.approx([-2.0] * 4)


@pytest.mark.parametrize("loss", LOSSES)
def test_masked_places_leak_neither_value_nor_gradient(loss):
    mask = torch.tensor([[True, True, False, False], [False] * 4])
    logprobs = torch.tensor([[-1.0, -2.0, NAN, -torch.inf], [NAN] * 4], requires_grad=True)
    filler = torch.tensor([[-1.1, -1.9, torch.inf, NAN], [NAN, torch.inf, -torch.inf, 0.0]])
    result = loss(logprobs, filler, filler, mask, weights_BT=filler)
    result.loss_BT.sum().backward()
    assert (result.loss_BT[~mask] == 0).all()
    assert (logprobs.grad[~mask] == 0).all()
    assert logprobs.grad.isfinite().all()
    assert (logprobs.grad[0, :2] != 0).all()
    assert all(total.isfinite() for total, _ in result.metrics.values())


@pytest.mark.parametrize("loss", LOSSES)
def test_the_weights_multiply_the_policy_term(loss):
    logprobs, old = torch.tensor([[-1.0, -2.0, -0.5, -3.0]]), torch.tensor([[-1.1, -1.9, -0.6, -3.2]])
    advantages, weights = torch.tensor([[1.0, -1.0, 2.0, 0.5]]), torch.tensor([[0.5, 0.0, 2.0, 1.0]])
    plain = loss(logprobs, old, advantages, ALL).loss_BT
    torch.testing.assert_close(loss(logprobs, old, advantages, ALL, weights_BT=weights).loss_BT, plain * weights)


def test_an_extreme_ratio_stays_finite():
    logprobs = torch.tensor([[0.0, -500.0]], requires_grad=True)
    result = ppo_loss(logprobs, torch.tensor([[-500.0, 0.0]]), torch.tensor([[-1.0, -1.0]]), ALL[:, :2])
    result.loss_BT.sum().backward()
    assert result.loss_BT[0].tolist() == pytest.approx([math.exp(20), 0.8])
    assert logprobs.grad.isfinite().all()


@pytest.mark.parametrize("loss", [ppo_loss, gspo_loss, reinforce_loss])
def test_gradients_agree_with_finite_differences(loss):
    generator = torch.Generator().manual_seed(0)
    old = -torch.rand(3, 4, dtype=torch.float64, generator=generator) - 0.5
    logprobs = (old + 0.02 * torch.randn(3, 4, dtype=torch.float64, generator=generator)).requires_grad_()
    advantages = torch.randn(3, 4, dtype=torch.float64, generator=generator)
    mask = torch.rand(3, 4, generator=generator) > 0.3
    assert torch.autograd.gradcheck(lambda x: loss(x, old, advantages, mask).loss_BT, (logprobs,), eps=1e-7)


def test_aggregation_by_hand():
    loss = torch.tensor([[1.0, 2.0, 3.0, NAN], [10.0, NAN, NAN, NAN]])
    mask = torch.tensor([[True, True, True, False], [True, False, False, False]])
    totals = {"total_tokens": 4, "total_sequences": 2, "max_len": 8}
    assert aggregate(loss, mask, "token", **totals).item() == 4.0
    assert aggregate(loss, mask, "sequence", **totals).item() == 6.0
    assert aggregate(loss, mask, "constant", **totals).item() == 1.0


@pytest.mark.parametrize("mode", ["token", "sequence", "constant"])
def test_all_padding_is_exactly_zero_with_a_graph(mode):
    logprobs = torch.full((2, 3), NAN, requires_grad=True)
    mask = torch.zeros(2, 3, dtype=torch.bool)
    loss = ppo_loss(logprobs, logprobs.detach(), torch.ones(2, 3), mask).loss_BT
    total = aggregate(loss, mask, mode, total_tokens=0, total_sequences=0, max_len=8)
    total.backward()
    assert total.item() == 0.0
    assert (logprobs.grad == 0).all()


@pytest.mark.parametrize("mode", ["token", "sequence", "constant"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("split", [[6], [1] * 6, [4, 2], [1, 5]])
def test_splits_and_padding_give_the_gradient_of_the_whole(loss, mode, split):
    generator = torch.Generator().manual_seed(5)
    old = -torch.rand(6, 5, dtype=torch.float64, generator=generator)
    base = old + 0.1 * torch.randn(6, 5, dtype=torch.float64, generator=generator)
    advantages = torch.randn(6, 5, dtype=torch.float64, generator=generator)
    mask = torch.rand(6, 5, generator=generator) > 0.3
    mask[:, 0] = True
    totals = {"total_tokens": int(mask.sum()), "total_sequences": 6, "max_len": 7}

    def gradient(split, side):
        logprobs = base.clone().requires_grad_()
        for x, o, a, m in zip(*(t.split(split) for t in (logprobs, old, advantages, mask)), strict=True):
            x, o, a = (pad(t, side, value=NAN) for t in (x, o, a))
            m = pad(m, side)
            aggregate(loss(x, o, a, m).loss_BT, m, mode, **totals).backward()
        return logprobs.grad

    whole = gradient([6], (0, 0))
    for side in ((0, 3), (3, 0)):
        torch.testing.assert_close(gradient(split, side), whole, rtol=1e-9, atol=1e-12)
