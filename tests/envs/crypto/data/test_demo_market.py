"""Synthetic markets: realistic statistics, functions of their seed, an edge that survives costs."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.data.demo_market import (
    DEMO_BARS,
    DEMO_DEVIATION_SD,
    DEMO_PHI,
    make_demo_market,
    make_planted_market,
    shuffled,
)
from sweepd.envs.crypto.data.timeframe import SECONDS
from sweepd.envs.crypto.scoring.metrics import Metrics, summarise
from sweepd.envs.support.errors import InputError

FEE, SLIPPAGE, RESERVE = 0.0025, 0.0005, 0.02


def log_returns(bars: Bars) -> np.ndarray:
    return np.diff(np.log(bars.close), axis=0)


def autocorrelation(values: np.ndarray, lag: int) -> float:
    """Return the mean autocorrelation over assets."""
    return float(np.mean([np.corrcoef(v[lag:], v[:-lag])[0, 1] for v in values.T]))


def assert_sound(bars: Bars) -> None:
    for values in (bars.open, bars.high, bars.low, bars.close, bars.volume):
        assert values.dtype == np.float64
        assert np.isfinite(values).all()
        assert (values > 0).all()
    assert (bars.high >= np.maximum(bars.open, bars.close)).all()
    assert (bars.low <= np.minimum(bars.open, bars.close)).all()
    assert bars.synthetic
    assert not bars.hole.any()


def test_the_demo_market_looks_like_a_market() -> None:
    for seed in range(3):
        bars = make_demo_market(seed)
        assert bars.close.shape == (DEMO_BARS, 5)
        assert_sound(bars)
        returns = log_returns(bars)
        centred = returns - returns.mean(axis=0)
        kurtosis = (centred**4).mean(axis=0) / (centred**2).mean(axis=0) ** 2 - 3.0
        assert (kurtosis > 1.0).all()  # fat tails
        assert autocorrelation(np.abs(centred), 1) > 0.1  # volatility clusters …
        assert autocorrelation(np.abs(centred), 24) > 0.05  # … for a day and longer
        correlation = np.corrcoef(returns.T)[np.triu_indices(5, 1)]
        assert correlation.mean() > 0.1  # one market
        assert 0.005 < returns.std() < 0.02  # about one per cent an hour
        for asset in range(5):
            assert (
                np.corrcoef(np.abs(returns[:, asset]), np.log(bars.volume[1:, asset]))[0, 1] > 0.15
            )
        gap = np.log(bars.open[1:] / bars.close[:-1])
        assert np.abs(gap).max() < 0.002  # tiny, far below the costs
        # Single-bar returns are not worth trading; the structure shows over many bars.
        assert abs(autocorrelation(returns, 1)) < 0.1


def test_each_source_of_volatility_shows() -> None:
    """Regimes, clusters and tails each have their own effect (in brackets: without it)."""
    regimes, clusters, tails = [], [], []
    for seed in range(3):
        returns = log_returns(make_demo_market(seed))
        centred = returns - returns.mean(axis=0)
        regimes.append(autocorrelation(np.abs(centred), 100))
        weeks = centred[: len(centred) // 168 * 168].reshape(-1, 168, 5)
        levelled = (weeks / weeks.std(axis=1, keepdims=True)).reshape(-1, 5)
        clusters.append(autocorrelation(np.abs(levelled), 1))
        tails.append(float(np.mean(levelled**4) / np.mean(levelled**2) ** 2 - 3.0))
    assert np.mean(regimes) > 0.05  # (0.03) still visible after four days
    assert np.mean(clusters) > 0.06  # (0.03) inside a week, after removing its level
    assert np.mean(tails) > 2.5  # (1.3) inside a week, after removing its level


def variance_ratio(bars: Bars, lag: int = 60) -> float:
    """Return the variance of log returns over `lag` bars over `lag` times that of one bar.

    It is 1 for a random walk.
    """
    price = np.log(bars.close)
    long = price[lag:] - price[:-lag]
    return float(np.mean(long.var(axis=0) / (lag * np.diff(price, axis=0).var(axis=0))))


def test_the_planted_autocorrelation_is_there() -> None:
    """Var of w + d over k bars: k s² + 2 σ² (1 - φ^k); s of the walk, σ of the deviation."""
    sigma, phi, s2, lag = 0.04, 0.97, 0.004**2 + 0.003**2, 60
    expected = (lag * s2 + 2 * sigma**2 * (1 - phi**lag)) / (lag * (s2 + 2 * sigma**2 * (1 - phi)))
    got = [
        variance_ratio(make_planted_market(seed, assets=4, bars=20_000), lag) for seed in range(3)
    ]
    assert np.mean(got) == pytest.approx(expected, abs=0.05)
    without = make_planted_market(0, assets=4, bars=20_000, deviation_sd=0.0)
    assert variance_ratio(without, lag) == pytest.approx(1.0, abs=0.15)


def test_the_demo_markets_deviation_is_mean_reverting() -> None:
    """One seed with and without edge has the same walk: their difference is the deviation."""
    bars, walk = make_demo_market(4), make_demo_market(4, edge=0.0)
    deviation = np.log(bars.close) - np.log(walk.close)
    assert deviation.std() == pytest.approx(DEMO_DEVIATION_SD, rel=0.15)
    assert autocorrelation(deviation, 1) == pytest.approx(DEMO_PHI, abs=0.005)
    assert autocorrelation(deviation, 14) == pytest.approx(0.5, abs=0.07)
    assert variance_ratio(bars) < 0.7 * variance_ratio(walk)
    twice = np.log(make_demo_market(4, edge=2.0).close) - np.log(walk.close)
    np.testing.assert_allclose(twice, 2.0 * deviation, atol=1e-9)


@pytest.mark.parametrize(
    "make", [make_demo_market, lambda seed: make_planted_market(seed, assets=3, bars=500)]
)
def test_a_market_is_a_function_of_its_seed(make: object) -> None:
    assert make(5).fingerprint == make(5).fingerprint  # type: ignore[operator]
    assert make(5).fingerprint != make(6).fingerprint  # type: ignore[operator]


def test_the_default_market_keeps_its_fingerprint() -> None:
    """Rounded to ten digits, since the last bits of an exponential depend on the processor.

    Change it only on purpose: users compare runs.
    """
    bars = make_demo_market(0, bars=2000)
    text = ",".join(f"{value:.10g}" for value in bars.close[::100].ravel())
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "600e6a19fb30041e"


@pytest.mark.parametrize("timeframe", list(SECONDS))
def test_every_timeframe_has_its_grid(timeframe: str) -> None:
    bars = make_demo_market(0, assets=2, bars=300, timeframe=timeframe)
    assert (np.diff(bars.time) == SECONDS[timeframe]).all()
    assert (bars.time % SECONDS[timeframe] == 0).all()
    assert_sound(bars)


def test_names_sort_in_their_order() -> None:
    names = make_demo_market(0, assets=12, bars=10).tickers
    assert names[0] == "DEMO01/USDT"
    assert list(names) == sorted(names)
    assert make_demo_market(0, assets=1, bars=1).tickers == ("DEMO1/USDT",)


@pytest.mark.parametrize(
    "wrong",
    [
        {"assets": 0},
        {"bars": 0},
        {"timeframe": "7m"},
        {"edge": -1.0},
        {"edge": float("nan")},
        {"seed": -1},
    ],
)
def test_bad_input(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError):
        make_demo_market(**{"bars": 100, **wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong", [{"phi": 1.0}, {"phi": -0.1}, {"deviation_sd": -1.0}, {"bars": 0}]
)
def test_bad_input_for_a_planted_market(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError):
        make_planted_market(**{"seed": 0, "assets": 1, "bars": 100, **wrong})  # type: ignore[arg-type]


def test_shuffling_keeps_the_returns_and_removes_the_structure() -> None:
    bars = make_planted_market(0, assets=4, bars=20_000)
    mixed = shuffled(bars, 1)
    assert_sound(mixed)
    assert np.array_equal(mixed.time, bars.time)
    assert variance_ratio(bars) < 0.7
    assert variance_ratio(mixed) == pytest.approx(1.0, abs=0.15)
    # No asset has a higher mean simple return than another over the whole range.
    simple = mixed.close[1:] / mixed.close[:-1] - 1.0
    np.testing.assert_allclose(simple.mean(axis=0), 0.0, atol=1e-12)
    # The same bars: distribution, correlation between assets, and what happens within a bar.
    before, after = log_returns(bars), log_returns(mixed)
    ordered = [np.sort(values - values.mean(axis=0), axis=0) for values in (before, after)]
    np.testing.assert_allclose(ordered[0], ordered[1], atol=1e-6)
    np.testing.assert_allclose(np.corrcoef(before.T), np.corrcoef(after.T), atol=1e-9)
    for name in ("open", "high", "low"):
        ratio = [np.sort(getattr(market, name) / market.close, axis=0) for market in (bars, mixed)]
        np.testing.assert_allclose(ratio[0], ratio[1], rtol=1e-12)
    assert shuffled(bars, 1).fingerprint == mixed.fingerprint
    assert shuffled(bars, 2).fingerprint != mixed.fingerprint


def test_shuffling_keeps_holes_with_their_bars() -> None:
    bars = make_demo_market(0, assets=2, bars=200)
    hole = np.zeros((200, 2), dtype=bool)
    hole[50, 1] = True
    mixed = shuffled(replace(bars, hole=hole), 0)
    assert mixed.hole.sum() == 1
    assert mixed.volume[np.argmax(mixed.hole[:, 1]), 1] == bars.volume[50, 1]


def mean_reversion(
    bars: Bars, look: int = 72, threshold: float = 0.25, scale: float = 0.2
) -> Metrics:
    """A hand-written rule: buy assets below their three-day mean, sell those above.

    Orders are decided at the close and fill at the next open with slippage and fee; 2% stay in
    cash. The benchmark is equal weight, bought at the first fill with the same costs.
    """
    close, open_ = bars.close, bars.open
    price = np.log(close)
    count, assets = close.shape
    sums = np.concatenate([np.zeros((1, assets)), np.cumsum(price, axis=0)])
    deviation = price[look - 1 :] - (sums[look:] - sums[:-look]) / look
    wish = np.clip(-deviation / 0.04 * 0.5, -1.0, 1.0)
    wish[np.abs(wish) < threshold] = 0.0
    cash, units, equal = 1.0, np.zeros(assets), np.zeros(assets)
    columns: list[tuple[float, ...]] = []
    for t in range(look - 1, count - 1):
        value = cash + units @ close[t]
        order = wish[t - look + 1] * scale * value
        sell = np.minimum(units, np.maximum(-order, 0.0) / close[t])
        buy = np.maximum(order, 0.0)
        buy *= min(1.0, max(0.0, cash - RESERVE * value) / max(buy.sum(), 1e-12))
        sold = sell * open_[t + 1] * (1 - SLIPPAGE)
        if t == look - 1:
            equal = (1 - FEE) / (assets * open_[t + 1] * (1 + SLIPPAGE))
        held = 1.0 if t == look - 1 else equal @ close[t]
        cash += sold.sum() * (1 - FEE) - buy.sum()
        units = units - sell + buy * (1 - FEE) / (open_[t + 1] * (1 + SLIPPAGE))
        after = cash + units @ close[t + 1]
        notional = (buy.sum() + sold.sum()) / value
        trades = np.count_nonzero(buy) + np.count_nonzero(sell)
        own, other = after / value - 1, equal @ close[t + 1] / held - 1
        columns.append((own, other, trades, FEE * notional, notional, 1 - cash / after))
    returns, benchmark, trades_, fees, moved, exposure = np.array(columns).T
    return summarise(
        returns,
        benchmark,
        bars.timeframe,
        trades=trades_,
        fees=fees,
        notional=moved,
        exposure=exposure,
    )


def test_the_edge_survives_costs() -> None:
    """After 0.25% fees and 0.05% slippage the rule beats equal weight; without the edge not."""
    growth = [mean_reversion(make_demo_market(seed, bars=5000)).excess_growth for seed in range(3)]
    assert min(growth) > 2.0
    assert np.mean(growth) > 4.0
    nothing = [
        mean_reversion(make_demo_market(seed, bars=5000, edge=0.0)).information_ratio
        for seed in range(3)
    ]
    assert np.mean(nothing) < 0.5


def test_the_planted_edge_survives_costs_and_its_shuffle_has_none() -> None:
    bars = make_planted_market(0, assets=5, bars=5000)
    planted = mean_reversion(bars)
    assert planted.excess_growth > 1.5
    # After a shuffle only noise of either sign remains, since half a year is short.
    left = [mean_reversion(shuffled(bars, seed)).alpha for seed in range(3)]
    assert abs(np.mean(left)) < 0.2 * planted.alpha


def test_mean_result_of_many_shuffles() -> None:
    """Without costs, a contrarian gets less than 5% of what the planted market gives.

    The rest comes from the fixed last price of a shuffle, so there is nothing to learn.
    """
    bars = make_planted_market(0, assets=5, bars=5000)
    left = [contrarian(shuffled(bars, seed)) for seed in range(60)]
    assert abs(np.mean(left)) < 0.05 * contrarian(bars)


def contrarian(bars: Bars, look: int = 72) -> float:
    """Return the annual excess over half of equal weight, without costs, of a contrarian."""
    price = np.log(bars.close)
    sums = np.concatenate([np.zeros((1, price.shape[1])), np.cumsum(price, axis=0)])
    deviation = price[look - 1 : -1] - (sums[look:-1] - sums[: -look - 1]) / look
    share = np.clip(0.5 - deviation / 0.08, 0.0, 1.0)
    simple = bars.close[look:] / bars.close[look - 1 : -1] - 1.0
    return 8766.0 * float(np.mean((share - 0.5) * simple))
