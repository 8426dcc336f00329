import pytest
import torch
from torch.nn.functional import pad

from rlctl.algorithms.advantages import discounted_returns, gae, group_scores, whiten

NAN = float("nan")
ESTIMATORS = ["reinforce_baseline", "rloo", "group_norm", "dr_grpo"]


def test_gae_by_hand():
    rewards, values = torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([[0.5, 1.0, 1.5]])
    # deltas: 0 + .9*1 - .5 = .4 ; 1 + .9*1.5 - 1 = 1.35 ; 2 - 1.5 = .5 ; decay .9 * .5 = .45
    advantages, returns = gae(rewards, values, torch.ones(1, 3, dtype=torch.bool), gamma=0.9, lam=0.5)
    expected = [0.4 + 0.45 * (1.35 + 0.45 * 0.5), 1.35 + 0.45 * 0.5, 0.5]
    assert advantages[0].tolist() == pytest.approx(expected)
    assert returns[0].tolist() == pytest.approx([a + v for a, v in zip(expected, [0.5, 1.0, 1.5], strict=True)])


def test_gae_steps_over_masked_tokens():
    short = gae(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.3, 0.6]]), torch.ones(1, 2, dtype=torch.bool), 0.9, 0.5)
    mask = torch.tensor([[False, True, False, False, True, False]])
    rewards, values = torch.full((1, 6), NAN), torch.full((1, 6), NAN)
    rewards[mask], values[mask] = torch.tensor([1.0, 2.0]), torch.tensor([0.3, 0.6])
    long = gae(rewards, values, mask, 0.9, 0.5)
    for wide, narrow in zip(long, short, strict=True):
        assert wide[mask].tolist() == narrow[0].tolist()
        assert (wide[~mask] == 0).all()


def test_with_lambda_one_the_returns_are_the_discounted_rewards():
    generator = torch.Generator().manual_seed(1)
    rewards, values = torch.randn(3, 6, generator=generator), torch.randn(3, 6, generator=generator)
    mask = torch.rand(3, 6, generator=generator) > 0.3
    _, returns = gae(rewards, values, mask, 0.97, 1.0)
    torch.testing.assert_close(returns, discounted_returns(rewards, mask, 0.97), rtol=1e-5, atol=1e-6)


def test_discounted_returns_by_hand():
    rewards, mask = torch.tensor([[1.0, 7.0, 2.0, 4.0]]), torch.tensor([[True, False, True, True]])
    assert discounted_returns(rewards, mask, 0.5).tolist() == [[1 + 0.5 * 2 + 0.25 * 4, 0.0, 4.0, 4.0]]
    assert discounted_returns(rewards, mask, 1.0).tolist() == [[7.0, 0.0, 6.0, 4.0]]


@pytest.mark.parametrize("side", [(2, 0), (0, 2), (1, 1)])
def test_the_padding_side_changes_nothing(side):
    generator = torch.Generator().manual_seed(2)
    rewards, values = torch.randn(2, 5, generator=generator), torch.randn(2, 5, generator=generator)
    mask = torch.ones(2, 5, dtype=torch.bool)
    plain, _ = gae(rewards, values, mask, 0.9, 0.8)
    padded, _ = gae(pad(rewards, side, value=NAN), pad(values, side, value=NAN), pad(mask, side), 0.9, 0.8)
    assert padded[:, side[0] : side[0] + 5].equal(plain)


def test_no_tokens_give_no_advantages():
    empty = torch.zeros(2, 0)
    assert gae(empty, empty, empty.bool())[0].shape == (2, 0)


@pytest.mark.parametrize(
    "estimator, expected",
    [
        ("gae", [1.0, 3.0, 2.0, 5.0, 5.0]),
        ("reinforce", [1.0, 3.0, 2.0, 5.0, 5.0]),
        ("reinforce_baseline", [-1.0, 1.0, 0.0, 0.0, 0.0]),
        ("dr_grpo", [-1.0, 1.0, 0.0, 0.0, 0.0]),
        ("rloo", [-1.5, 1.5, 0.0, 0.0, 0.0]),  # 1 - (3 + 2) / 2, ...
        ("group_norm", [-1.0, 1.0, 0.0, 0.0, 0.0]),  # the unbiased std of 1, 2, 3 is 1
    ],
)
def test_group_rows_by_hand(estimator, expected):
    scores = torch.tensor([1.0, 5.0, 3.0, 5.0, 2.0])
    group = torch.tensor([4, 7, 4, 7, 4])
    shaped, keep = group_scores(scores, group, estimator)
    order = [0, 2, 4, 1, 3]
    assert shaped[order].tolist() == pytest.approx(expected, abs=2e-6)
    assert keep.all()


def test_group_norm_of_equal_scores_is_zero_even_when_rounding_differs():
    shaped, keep = group_scores(torch.tensor([0.3, 0.3 + 5e-7, 0.3]), torch.zeros(3, dtype=torch.int64), "group_norm")
    assert shaped.tolist() == [0.0, 0.0, 0.0]
    assert keep.all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_lone_sample_is_not_kept(estimator):
    shaped, keep = group_scores(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([0, 0, 1]), estimator)
    assert keep.tolist() == [True, True, False]
    assert shaped[2] == 0


@pytest.mark.parametrize("estimator", ["gae", "reinforce", *ESTIMATORS])
def test_a_missing_score_drops_its_group_alone(estimator):
    scores, group = torch.tensor([1.0, NAN, 2.0, 4.0, 3.0, 3.0]), torch.tensor([0, 0, 0, 1, 1, 1])
    shaped, keep = group_scores(scores, group, estimator)
    alone, _ = group_scores(scores[3:], group[3:], estimator)
    assert keep.tolist() == [False] * 3 + [True] * 3
    assert shaped[:3].tolist() == [0.0] * 3
    assert shaped[3:].equal(alone)


def test_zero_is_a_reward():
    shaped, keep = group_scores(torch.tensor([0.0, 1.0]), torch.tensor([0, 0]), "reinforce_baseline")
    assert shaped.tolist() == [-0.5, 0.5]
    assert keep.all()


def test_whitening_by_hand():
    advantages, mask = torch.tensor([[1.0, 3.0, NAN]]), torch.tensor([[True, True, False]])
    assert whiten(advantages, mask, "none").tolist() == [[1.0, 3.0, 0.0]]
    assert whiten(advantages, mask, "center").tolist() == [[-1.0, 1.0, 0.0]]
    assert whiten(advantages * 2, mask, "full").tolist() == [[-1.0, 1.0, 0.0]]
    assert whiten(torch.tensor([[2.0, 2.0, NAN]]), mask, "full").tolist() == [[0.0, 0.0, 0.0]]


def test_whitening_far_from_zero_loses_no_digits():
    generator = torch.Generator().manual_seed(3)
    noise, mask = torch.randn(6, 5, generator=generator), torch.rand(6, 5, generator=generator) > 0.4
    whitened = whiten((1e4 + noise.double()).float(), mask, "full")
    torch.testing.assert_close(whitened, whiten(noise, mask, "full"), rtol=1e-2, atol=2e-3)
    assert whitened.dtype == torch.float32


def test_nothing_to_whiten_gives_zeros():
    assert whiten(torch.full((1, 2), NAN), torch.zeros(1, 2, dtype=torch.bool), "full").tolist() == [[0.0, 0.0]]
