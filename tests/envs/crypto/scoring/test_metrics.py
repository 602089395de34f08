"""Metrics against independent implementations, and invariances."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
import skfolio.measures as skfolio
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from purgedcv import default_backtest_metrics

from sweepd.envs.crypto.data.timeframe import SECONDS, bars_per_year
from sweepd.envs.crypto.scoring import metrics
from sweepd.envs.crypto.scoring.metrics import OBJECTIVES, Metrics, PathTrades, objective, summarise

HOURS = 8766.0
TIGHT = {"rtol": 1e-12, "atol": 1e-12}


def sample(seed: int = 0, bars: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    market = 0.0001 + 0.01 * rng.standard_t(4, bars)
    return np.clip(0.0002 + 0.5 * market + 0.004 * rng.standard_normal(bars), -0.5, 0.5), np.clip(
        market, -0.5, 0.5
    )


def summary(
    returns: np.ndarray, equal_weight: np.ndarray, timeframe: str = "1h", **changes: np.ndarray
) -> Metrics:
    ones = np.ones(len(returns))
    columns = {
        "trades": ones,
        "fees": 0.001 * ones,
        "notional": 0.02 * ones,
        "exposure": 0.6 * ones,
        **changes,
    }
    return summarise(returns, equal_weight, timeframe, **columns)


def test_against_pandas() -> None:
    for seed in range(5):
        r, b = sample(seed)
        got = summary(r, b)
        own, equal = pd.Series(r), pd.Series(b)
        excess = own - equal
        curve = (1 + own).cumprod()
        years = len(r) / HOURS
        expected = {
            "sharpe": own.mean() / own.std() * HOURS**0.5,
            "sortino": own.mean() / (own.where(own < 0, 0.0) ** 2).mean() ** 0.5 * HOURS**0.5,
            "max_drawdown": -min(0.0, (curve / curve.cummax().clip(lower=1.0) - 1).min()),
            "total_return": curve.iloc[-1] - 1,
            "annual_return": curve.iloc[-1] ** (1 / years) - 1,
            "hit_rate": (own > 0).mean(),
            "beta": own.cov(equal) / equal.var(),
            "alpha": (own.mean() - own.cov(equal) / equal.var() * equal.mean()) * HOURS,
            "information_ratio": excess.mean() / excess.std() * HOURS**0.5,
            "excess_growth": (np.log1p(own) - np.log1p(equal)).mean() * HOURS,
            "equal_weight_sharpe": equal.mean() / equal.std() * HOURS**0.5,
            "equal_weight_return": (1 + equal).prod() - 1,
            "turnover": 0.02 * HOURS,
            "fees": 0.001 * len(r),
            "trades": len(r),
            "exposure": 0.6,
            "bars": len(r),
        }
        for name, value in expected.items():
            np.testing.assert_allclose(getattr(got, name), value, **TIGHT, err_msg=name)
        assert got.reason == ""


def test_against_skfolio() -> None:
    for seed in range(5):
        r, b = sample(seed)
        got = summary(r, b)
        expected = {
            "sharpe": skfolio.mean(r) / skfolio.standard_deviation(r) * HOURS**0.5,
            "sortino": skfolio.mean(r)
            / skfolio.semi_deviation(r, min_acceptable_return=0.0, biased=True)
            * HOURS**0.5,
            "max_drawdown": skfolio.max_drawdown(skfolio.get_drawdowns(r, compounded=True)),
            "equal_weight_drawdown": skfolio.max_drawdown(
                skfolio.get_drawdowns(b, compounded=True)
            ),
            "total_return": skfolio.get_cumulative_returns(r, compounded=True)[-1] - 1,
            "information_ratio": skfolio.mean(r - b)
            / skfolio.standard_deviation(r - b)
            * HOURS**0.5,
        }
        for name, value in expected.items():
            np.testing.assert_allclose(getattr(got, name), value, **TIGHT, err_msg=name)


def test_against_purgedcv() -> None:
    r, _ = sample(7)
    theirs = default_backtest_metrics(r, bars_per_year=8766)
    np.testing.assert_allclose(metrics.sharpe(r, HOURS), theirs["sharpe"], **TIGHT)
    # Their equity curve is a sum (log returns), ours a product.
    np.testing.assert_allclose(
        np.log1p(metrics.total_return(r)), default_backtest_metrics(np.log1p(r))["total_return"]
    )


def test_alpha_and_beta_are_those_of_least_squares() -> None:
    r, b = sample(3)
    coefficients, *_ = np.linalg.lstsq(np.stack([np.ones_like(b), b], axis=1), r, rcond=None)
    got = summary(r, b)
    np.testing.assert_allclose([got.alpha / HOURS, got.beta], coefficients, **TIGHT)


@pytest.mark.parametrize("timeframe", list(SECONDS))
def test_sharpe_uses_the_factor_of_the_timeframe(timeframe: str) -> None:
    """The hourly factor on 5-minute bars would be wrong by √12."""
    r, b = sample()
    factor = math.sqrt(365.25 * 86400 / SECONDS[timeframe])
    np.testing.assert_allclose(
        summary(r, b, timeframe).sharpe, factor * r.mean() / r.std(ddof=1), **TIGHT
    )


def test_sharpe_does_not_depend_on_the_length_of_the_test() -> None:
    """Repeating the bars keeps ratios (up to n - 1 to n) and annual growth."""
    r, b = sample(bars=5000)
    once, thrice = summary(r, b), summary(np.tile(r, 3), np.tile(b, 3))
    for name in ("sharpe", "equal_weight_sharpe", "information_ratio"):
        assert getattr(thrice, name) == pytest.approx(getattr(once, name), rel=1 / 5000), name
    for name in (
        "sortino",
        "annual_return",
        "turnover",
        "alpha",
        "excess_growth",
        "exposure",
        "hit_rate",
    ):
        assert getattr(thrice, name) == pytest.approx(getattr(once, name), rel=1e-9), name
    assert thrice.fees == pytest.approx(3 * once.fees)


@pytest.mark.parametrize(
    "returns", [np.zeros(500), np.full(500, 1e-4), np.full(500, 0.1 + 0.2), np.array([0.1])]
)
def test_zero_variance_is_sharpe_zero_with_that_reason(returns: np.ndarray) -> None:
    got = summary(returns, sample(bars=len(returns))[1])
    assert got.sharpe == 0.0
    assert got.reason == metrics.ZERO_VARIANCE
    assert all(
        math.isfinite(value) for value in got.to_dict().values() if not isinstance(value, str)
    )


def test_rounding_of_money_is_no_variance() -> None:
    """Constant growth gives returns that differ in their last bit; that is not risk."""
    value = 10_000.0 * 1.0001 ** np.arange(1000)
    returns = value[1:] / value[:-1] - 1.0
    assert np.ptp(returns) > 0.0
    assert metrics.sharpe(returns, HOURS) == 0.0


def test_no_losing_bar_is_sortino_zero_with_that_reason() -> None:
    got = summary(np.array([0.01, 0.0, 0.02]), np.zeros(3))
    assert got.sortino == 0.0
    assert got.sharpe > 0.0
    assert got.reason == metrics.NO_LOSS


def test_drawdown_counts_the_start_as_a_peak() -> None:
    assert metrics.max_drawdown(np.array([-0.1, 0.05])) == pytest.approx(0.1)
    assert metrics.max_drawdown(np.array([0.1, -0.5, 0.2])) == pytest.approx(0.5)
    assert metrics.max_drawdown(np.array([0.1, 0.1])) == 0.0


def test_total_loss_and_absurd_gains_stay_finite() -> None:
    lost = summary(np.array([0.1, -1.0, 0.0]), np.array([0.0, 0.01, -0.01]))
    assert (lost.total_return, lost.annual_return, lost.max_drawdown) == (-1.0, -1.0, 1.0)
    assert math.isfinite(lost.excess_growth)
    assert math.isfinite(summary(np.array([0.5, 0.4]), np.zeros(2)).annual_return)


@settings(max_examples=100, deadline=None)
@given(arrays(np.float64, st.integers(0, 40), elements=st.floats(-0.9, 3.0)), st.integers(0, 1000))
def test_everything_is_finite_and_in_range(returns: np.ndarray, seed: int) -> None:
    benchmark = np.random.default_rng(seed).normal(0, 0.01, len(returns))
    got = summary(returns, benchmark)
    assert all(
        math.isfinite(value) for value in got.to_dict().values() if not isinstance(value, str)
    )
    assert 0.0 <= got.max_drawdown <= 1.0
    assert 0.0 <= got.hit_rate <= 1.0
    assert json.loads(json.dumps(got.to_dict())) == got.to_dict()


def test_columns_of_other_lengths_or_not_finite_are_refused() -> None:
    r, b = sample(bars=10)
    with pytest.raises(ValueError, match="equal_weight has shape"):
        summary(r, b[:-1])
    r[4] = np.nan
    with pytest.raises(ValueError, match="returns is nan at bar 4"):
        summary(r, b)


def paths_of(
    returns: np.ndarray, equal_weight: np.ndarray, trades: float = 0.1, exposure: float = 0.5
) -> PathTrades:
    ones = np.ones_like(returns)
    return PathTrades(
        returns, equal_weight, trades * ones, 1e-4 * ones, 0.04 * ones, exposure * ones
    )


def test_the_default_objective() -> None:
    samples = [sample(seed) for seed in range(4)]
    returns, equal = (np.stack(rows) for rows in zip(*samples, strict=True))
    got = objective(paths_of(returns, equal), "1h")
    factor = HOURS**0.5
    scores = [
        factor * (r - b).mean() / (r - b).std(ddof=1) for r, b in samples
    ]  # what the gate tests
    np.testing.assert_allclose(got.path_scores, scores, **TIGHT)
    np.testing.assert_allclose(got.value, np.mean(scores) - 0.1 * np.std(scores), **TIGHT)
    wary = objective(paths_of(returns, equal), "1h", std_weight=0.7)
    np.testing.assert_allclose(wary.value, np.mean(scores) - 0.7 * np.std(scores), **TIGHT)
    assert got.reasons == ()
    assert bars_per_year("1h") == HOURS


def test_a_path_that_hardly_trades_scores_at_most_minus_one() -> None:
    """In a falling market cash beats equal weight; without this rule, not trading would win."""
    _, equal = sample()
    equal = equal[None] - 0.001
    idle = objective(paths_of(np.zeros_like(equal), equal, trades=0.0, exposure=0.0), "1h")
    assert idle.value == -1.0
    assert idle.reasons == (
        "path 0: 0 trades, fewer than 30; exposure 0.0%, under 5%; zero variance",
    )
    good = 0.001 + 0.9 * equal
    assert objective(paths_of(good, equal), "1h").value > 0.0
    # 29 trades in 3,000 bars; 30 are enough.
    few = objective(paths_of(good, equal, trades=29 / 3000), "1h")
    assert few.value == -1.0
    assert few.reasons == ("path 0: 29 trades, fewer than 30",)
    assert objective(paths_of(good, equal, trades=30 / 3000), "1h").value > 0.0
    assert objective(paths_of(good, equal, exposure=0.049), "1h").value == -1.0
    assert objective(paths_of(good, equal, exposure=0.0501), "1h").value > 0.0
    # A loss still counts: min(0, score) - 1.
    bad = 1.5 * equal
    score = objective(paths_of(bad - 0.002, equal), "1h").value
    assert score < 0.0
    assert objective(paths_of(bad - 0.002, equal, trades=0.0), "1h").value == pytest.approx(
        score - 1.0
    )


def test_the_rule_is_per_path() -> None:
    samples = [sample(seed) for seed in range(3)]
    returns, equal = (np.stack(rows) for rows in zip(*samples, strict=True))
    paths = paths_of(returns, equal)
    paths.trades[1] = 0.0
    got, free = objective(paths, "1h"), objective(paths_of(returns, equal), "1h")
    assert got.path_scores[0] == free.path_scores[0]
    assert got.path_scores[2] == free.path_scores[2]
    assert got.path_scores[1] == min(0.0, free.path_scores[1]) - 1.0
    assert len(got.reasons) == 1
    assert got.reasons[0].startswith("path 1: 0 trades")


def test_other_objectives_read_their_own_ratio() -> None:
    r, b = sample()
    one = summary(r, b)
    expected = {
        "information-ratio": one.information_ratio,
        "sharpe-difference": one.sharpe - one.equal_weight_sharpe,
        "sharpe": one.sharpe,
        "sortino": one.sortino,
    }
    assert list(OBJECTIVES) == list(expected)
    for name, value in expected.items():
        assert objective(paths_of(r[None], b[None]), "1h", name).value == pytest.approx(
            value, rel=1e-12
        ), name
        assert objective(paths_of(r[None], b[None], trades=0.0), "1h", name).value <= -1.0
