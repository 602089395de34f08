"""Luck formulas: equal to two independent implementations, and general properties."""

from __future__ import annotations

import math

import numpy as np
import purgedcv
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from skfolio.measures import deflated_sharpe_ratio as skfolio_deflated
from skfolio.measures import probabilistic_sharpe_ratio as skfolio_probabilistic

from envs.crypto.scoring import luck
from envs.crypto.scoring.luck import Moments

numbers = st.floats(-0.3, 0.3)
sizes = st.integers(30, 5_000)


def sample(seed: int, n: int = 400) -> NDArray[np.float64]:
    """Draw skewed, fat-tailed returns."""
    rng = np.random.default_rng(seed)
    return 0.01 * rng.standard_t(4, n) + 0.004 * rng.exponential(size=n) + 0.002 * rng.normal()


@pytest.mark.parametrize("seed", range(10))
def test_equal_to_independent_implementations(seed: int) -> None:
    returns = sample(seed)
    m = luck.moments(returns)
    for benchmark in (-0.05, 0.0, 0.08):
        expected = purgedcv.probabilistic_sharpe_ratio(returns, benchmark)
        assert luck.probabilistic_sharpe(m, benchmark) == pytest.approx(expected, abs=1e-10)
    for trials, variance in ((2, 1e-4), (17, 2e-3), (500, 1e-3)):
        expected = purgedcv.deflated_sharpe_ratio(returns, trials, variance)
        assert luck.deflated_sharpe(m, variance, trials) == pytest.approx(expected, abs=1e-10)
    benchmark = m.sharpe - 0.04
    length = purgedcv.min_track_record_length(m.sharpe, benchmark, 0.05, m.skewness, m.kurtosis)
    assert math.ceil(luck.minimum_track_record(m, benchmark) - 1.0) + 1 == length


@pytest.mark.parametrize("seed", range(5))
def test_equal_to_skfolio_given_its_moments(seed: int) -> None:
    """skfolio uses n - 1 and moments without bias correction; the formula is the same."""
    returns = sample(seed)
    centred = returns - returns.mean()
    m2, m3, m4 = (float(np.mean(centred**power)) for power in (2, 3, 4))
    m = Moments(len(returns), returns.mean() / returns.std(ddof=1), m3 / m2**1.5, m4 / m2**2)
    assert luck.probabilistic_sharpe(m, 0.03) == pytest.approx(
        skfolio_probabilistic(returns, 0.03), abs=1e-10
    )
    trials = np.random.default_rng(seed).normal(0.0, 0.04, 23)
    expected = skfolio_deflated(returns, trials)
    assert luck.deflated_sharpe(m, float(np.var(trials, ddof=1)), 23) == pytest.approx(
        expected, abs=1e-10
    )


def test_minimum_back_test_lengths_of_the_literature() -> None:
    for trials, years in ((10, 2.5), (50, 5.2), (100, 6.4), (1000, 10.6)):
        assert luck.minimum_backtest_years(trials) == pytest.approx(years, abs=0.05)
        assert luck.minimum_backtest_years(trials) == pytest.approx(
            purgedcv.minimum_backtest_length(trials), abs=1e-10
        )
    assert luck.minimum_backtest_years(50, 2.0) == pytest.approx(
        luck.minimum_backtest_years(50) / 4.0
    )


def test_the_expected_maximum_is_about_that_of_normal_numbers() -> None:
    rng = np.random.default_rng(0)
    for trials in (5, 40, 300):
        drawn = rng.standard_normal((20_000, trials)).max(axis=1).mean()
        assert luck.expected_maximum(trials) == pytest.approx(drawn, rel=0.03)


@given(
    sizes,
    numbers,
    st.floats(-2.0, 2.0),
    st.floats(3.0, 20.0),
    st.floats(0.0, 0.01),
    st.floats(1.0, 1e4),
)
def test_more_luck_to_be_expected_means_less_trust(
    n: int, sharpe: float, skewness: float, kurtosis: float, variance: float, trials: float
) -> None:
    m = Moments(n, sharpe, skewness, kurtosis)
    found = luck.deflated_sharpe(m, variance, trials)
    assert 0.0 <= found <= 1.0
    assert luck.deflated_sharpe(m, variance, 2.0 * trials) <= found
    assert luck.deflated_sharpe(m, 2.0 * variance, trials) <= found
    assert found <= luck.probabilistic_sharpe(m)
    assert luck.deflated_sharpe(m, 0.0, trials) == luck.probabilistic_sharpe(m)


@given(sizes, numbers, numbers, st.floats(-2.0, 2.0), st.floats(3.0, 20.0))
def test_the_minimum_track_record_is_where_the_probability_reaches_the_confidence(
    n: int, sharpe: float, benchmark: float, skewness: float, kurtosis: float
) -> None:
    needed = luck.minimum_track_record(Moments(n, sharpe, skewness, kurtosis), benchmark)
    if sharpe - benchmark < 1e-3:
        assert sharpe > benchmark or needed == math.inf
        return
    longer, shorter = (
        Moments(max(2, m), sharpe, skewness, kurtosis) for m in (math.ceil(needed), int(needed) - 1)
    )
    assert luck.probabilistic_sharpe(longer, benchmark) >= 0.95 - 1e-12
    if int(needed) > 3:
        assert luck.probabilistic_sharpe(shorter, benchmark) < 0.95


@given(
    st.integers(200, 100_000),
    st.floats(1.0, 1e4),
    st.none() | st.floats(0.0, 1e-3),
    st.floats(-1.0, 1.0),
    st.floats(3.0, 20.0),
)
def test_the_needed_sharpe_is_where_the_deflated_one_reaches_the_confidence(
    bars: int, trials: float, variance: float | None, skewness: float, kurtosis: float
) -> None:
    needed = luck.needed_sharpe(bars, trials, variance, skewness=skewness, kurtosis=kurtosis)
    used = 1.0 / (bars - 1) if variance is None else variance
    exactly, less = (Moments(bars, share * needed, skewness, kurtosis) for share in (1.0, 0.99))
    assert luck.deflated_sharpe(exactly, used, trials) == pytest.approx(0.95, abs=1e-9)
    assert luck.deflated_sharpe(less, used, trials) < 0.95


@given(st.integers(1, 10_000), st.floats(-1.0, 1.0))
def test_effective_trials_lie_between_one_and_all(trials: int, correlation: float) -> None:
    found = luck.effective_trials(trials, correlation)
    assert 1.0 - 1e-9 <= found <= trials + 1e-9
    assert luck.effective_trials(trials, 1.0) == 1.0
    assert luck.effective_trials(trials, 0.0) == trials == luck.effective_trials(trials, -0.4)


def test_what_has_no_deviation_has_no_sharpe_ratio() -> None:
    for flat in (np.zeros(50), np.full(50, 0.1), np.full(50, 1e-9), np.array([0.1, 0.2])):
        assert luck.moments(flat) == Moments(len(flat), 0.0)
    assert luck.expected_maximum(1.99) == 0.0
    assert luck.luck_sharpe(1.0, 1.0) == 0.0
    assert luck.needed_sharpe(2, 10) == math.inf
    assert luck.probabilistic_sharpe(Moments(100, 1.0, 30.0, 3.0)) == 0.0
