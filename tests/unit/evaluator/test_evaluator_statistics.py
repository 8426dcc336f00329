"""Statistics with values worked by hand, and against scipy and statsmodels in the optional group."""

from __future__ import annotations

import random

import pytest

from rlctl.evaluator.statistics import agreement, mean_interval, pass_at_k, ratio, share, share_given, wilson


def test_a_share_leaves_the_unscored_outside_its_denominator() -> None:
    result = share([True, True, False, None, None])
    assert (result.yes, result.n, result.unscored) == (2, 3, 2)
    assert result.value == pytest.approx(2 / 3)


def test_wilson_by_hand() -> None:
    # 8 of 10: centre (0.8 + 3.8415/20)/(1 + 3.8415/10) = 0.71674, half width 0.22659.
    assert wilson(8, 10) == pytest.approx((0.49016, 0.94332), abs=1e-5)
    assert wilson(0, 10) == pytest.approx((0.0, 0.27753), abs=1e-5)
    assert wilson(10, 10)[1] == 1.0


def test_nothing_scored_has_no_value() -> None:
    result = share([None, None])
    assert (result.value, result.low, result.n, result.unscored) == (None, None, 0, 2)


def test_a_conditional_share_counts_only_where_the_condition_holds() -> None:
    right = [True, False, True, None, True]
    switch = [True, True, False, True, None]
    result = share_given(right, switch, True)
    assert (result.yes, result.n, result.unscored) == (1, 2, 1)
    assert share_given(right, switch, False).n == 1


def test_the_ratio_by_hand() -> None:
    # P(right) = 3/6, P(right | switch) = 2/3: 4/3.
    right = [True, True, False, True, False, False]
    switch = [True, True, True, False, False, False]
    result = ratio(right, switch, range(6), resamples=4000, seed=0)
    assert result.value == pytest.approx(4 / 3)
    assert (result.n, result.prompts) == (6, 6)
    assert result.low is not None
    assert result.high is not None
    assert result.low < 4 / 3 < result.high
    assert ratio(right, switch, range(6), resamples=4000, seed=0) == result


def test_the_ratio_is_undefined_when_nothing_is_right_or_nothing_switches() -> None:
    assert ratio([False, False], [True, False], [1, 2], resamples=100, seed=0).value is None
    assert ratio([True, False], [False, False], [1, 2], resamples=100, seed=0).value is None
    assert ratio([None], [True], [1], resamples=100, seed=0).n == 0


def test_the_bootstrap_resamples_prompts_not_records() -> None:
    rng = random.Random(0)
    right = [rng.random() < 0.5 for _ in range(60)]
    switch = [rng.random() < 0.5 for _ in range(60)]
    alone = ratio(right, switch, range(60), resamples=4000, seed=1)
    # The same records ten times over: ten times the records, but no more prompts, so no narrower interval.
    grouped = ratio(right * 10, switch * 10, list(range(60)) * 10, resamples=4000, seed=1)
    assert grouped.value == pytest.approx(alone.value)
    assert grouped.prompts == 60
    assert alone.low is not None
    assert grouped.low == pytest.approx(alone.low, abs=0.05)
    pretended = ratio(right * 10, switch * 10, range(600), resamples=4000, seed=1)
    assert pretended.low is not None
    assert grouped.low is not None
    assert pretended.low > grouped.low + 0.1


def test_the_bootstrap_agrees_with_a_naive_one() -> None:
    rng = random.Random(3)
    rows = [(prompt, rng.random() < 0.6, rng.random() < 0.5) for prompt in range(30) for _ in range(2)]
    result = ratio([r for _, r, _ in rows], [s for _, _, s in rows], [p for p, _, _ in rows], resamples=20_000, seed=5)
    drawn = []
    for _ in range(4000):
        sample = [row for prompt in rng.choices(range(30), k=30) for row in rows if row[0] == prompt]
        both = sum(r and s for _, r, s in sample) / sum(s for _, _, s in sample)
        drawn.append(both / (sum(r for _, r, _ in sample) / len(sample)))
    drawn.sort()
    assert result.low == pytest.approx(drawn[100], abs=0.03)
    assert result.high == pytest.approx(drawn[3899], abs=0.03)


def test_kappa_by_hand() -> None:
    # 20 both yes, 15 both no, 5 and 10 differ: agreement 0.7, chance 0.5, kappa 0.4.
    first = [True] * 25 + [False] * 25
    second = [True] * 20 + [False] * 5 + [True] * 10 + [False] * 15
    result = agreement(first, second)
    assert result.agreement == pytest.approx(0.7)
    assert result.kappa == pytest.approx(0.4)
    assert (result.first_yes, result.second_yes) == (0.5, 0.6)


def test_kappa_does_not_exist_when_chance_alone_agrees() -> None:
    assert agreement([True, True], [True, True]).kappa is None
    assert agreement([None], [True]).agreement is None


def test_pass_at_k_by_hand() -> None:
    # 2 right of 5: one sample 2/5; two samples 1 - C(3,2)/C(5,2) = 0.7.
    assert pass_at_k(2, 5, 1) == pytest.approx(0.4)
    assert pass_at_k(2, 5, 2) == pytest.approx(0.7)
    assert pass_at_k(2, 5, 4) == 1.0
    assert pass_at_k(0, 5, 3) == 0.0


def test_an_interval_of_equal_values_is_not_a_point() -> None:
    # Wilson, 0 of 10: 0 to z²/(n + z²) = 3.8415/13.8415.
    assert mean_interval([0.0] * 10, resamples=100, seed=0) == pytest.approx((0.0, 0.27754), abs=1e-5)
    assert mean_interval([1.0] * 10, resamples=100, seed=0) == pytest.approx((0.72246, 1.0), abs=1e-5)


def test_one_prompt_has_no_interval() -> None:
    one = ratio([True, True], [True, False], ["p", "p"], resamples=100, seed=0)
    assert (one.value, one.low, one.high, one.prompts) == (1.0, None, None, 1)


def test_a_mean_interval_holds_the_mean() -> None:
    low, high = mean_interval([0.0, 1.0] * 50, resamples=4000, seed=0)
    assert low == pytest.approx(0.4, abs=0.03)
    assert high == pytest.approx(0.6, abs=0.03)


@pytest.mark.optional
def test_intervals_agree_with_statsmodels_and_scipy() -> None:
    proportion = pytest.importorskip("statsmodels.stats.proportion")
    rater = pytest.importorskip("statsmodels.stats.inter_rater")
    stats = pytest.importorskip("scipy.stats")
    rng = random.Random(0)
    for _ in range(200):
        n = rng.randint(1, 400)
        yes = rng.randint(0, n)
        low, high = wilson(yes, n)
        assert (low, high) == pytest.approx(proportion.proportion_confint(yes, n, method="wilson"), abs=1e-9)
        other = stats.binomtest(yes, n).proportion_ci(0.95, method="wilson")
        assert (low, high) == pytest.approx((other.low, other.high), abs=1e-9)
        first, second = ([rng.random() < 0.4 for _ in range(50)] for _ in range(2))
        table = [[sum((a, b) == (x, y) for a, b in zip(first, second, strict=True)) for y in (0, 1)] for x in (0, 1)]
        assert agreement(first, second).kappa == pytest.approx(rater.cohens_kappa(table).kappa)
