"""Synthetic markets, each a pure function of its seed: with a planted edge, or without structure.

The demo market. An asset's log price is a random walk plus a mean-reverting deviation:

    log p_{t,i} = w_{t,i} + d_{t,i}
    d_{t,i} = φ · d_{t-1,i} + innovation,  with a stationary standard deviation of `edge` · 5%

The walk has a common and an idiosyncratic part and a drift that depends on the regime. Four regimes
(quiet, rising, falling, turbulent) follow each other as a Markov chain and set drift and
volatility. In addition, the log of volatility is an AR(1), common and per asset, which makes large
moves cluster. Innovations are Student-t, for fat tails. Volume follows volatility, the size of the
move and the time of day. A bar opens very close to the previous close.

The learnable structure is the mean reversion: at φ = 0.95 half of a deviation is gone after 14
bars, while a round trip costs 0.6% with the default fee and slippage. A policy sees it only
through the ordinary features (recent returns, RSI, CCI, …). A hand-written rule earns an excess log
growth of about 8 per year over equal weight after costs. No real market offers that much; it lets a
small study find some of it within minutes.

Figures are per bar, whatever the timeframe, and resemble hourly bars of small coins.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.data.timeframe import bar_seconds, grid_from
from sweepd.envs.support.errors import InputError

Array = NDArray[np.float64]

START = 1_577_836_800  # 2020-01-01 00:00 UTC
DEVIATION_SD, PHI = 0.04, 0.97  # of the planted market
DEMO_BARS, DEMO_DEVIATION_SD, DEMO_PHI = 24_000, 0.05, 0.95

# Per regime: factor on volatility and drift per bar; and the mean length of a regime.
REGIMES = ("quiet", "rising", "falling", "turbulent")
REGIME_VOLATILITY = np.array([0.7, 0.9, 1.1, 1.7])
REGIME_DRIFT = np.array([4e-5, 3e-4, -2.2e-4, 4e-5])
REGIME_BARS = 250
TAIL = 5.0  # degrees of freedom of the Student-t innovations


def make_demo_market(
    seed: int = 0,
    *,
    assets: int = 5,
    bars: int = DEMO_BARS,
    timeframe: str = "1h",
    edge: float = 1.0,
) -> Bars:
    """Make the demo market of the module's docstring: DEMO1/USDT, DEMO2/USDT, …, synthetic.

    Args:
        seed: at least 0.
        assets: number of assets.
        bars: number of bars.
        timeframe: of the bars.
        edge: strength of the learnable structure; 0 for none. 1 clearly exceeds the default costs.

    Raises:
        InputError: an argument is out of range.
    """
    _check(seed, assets, bars, timeframe)
    if not edge >= 0.0:
        raise InputError(f"the edge of the demo market must be at least 0, not {edge}")
    rng = np.random.default_rng([seed, 10])
    # The order of draws is part of the market: another order would give other bars for a seed.
    regime = _regimes(rng, bars)
    clustering = _autoregression(rng.standard_normal((bars, 1)), 0.985, 0.35)
    clustering = clustering + _autoregression(rng.standard_normal((bars, assets)), 0.97, 0.25)
    volatility = REGIME_VOLATILITY[regime, None] * np.exp(clustering)
    # Normalise, so that `edge` and the walk have the stated size in every realisation.
    volatility /= np.sqrt(np.mean(np.square(volatility), axis=0))
    shared = _student(rng, (bars, 1))
    own = _student(rng, (bars, assets))
    loading = rng.uniform(0.7, 1.3, assets)
    walk = np.cumsum(
        REGIME_DRIFT[regime, None] + volatility * (0.006 * loading * shared + 0.0025 * own), axis=0
    )
    deviation = _autoregression(
        volatility * _student(rng, (bars, assets)), DEMO_PHI, edge * DEMO_DEVIATION_SD
    )
    return _bars(rng, walk + deviation, volatility, timeframe)


def make_planted_market(
    seed: int,
    *,
    assets: int,
    bars: int,
    timeframe: str = "1h",
    deviation_sd: float = DEVIATION_SD,
    phi: float = PHI,
) -> Bars:
    """Make a market with only the planted edge: Gaussian, one regime, constant volatility.

    For tests of learning and of the gate's power. Log prices are a random walk (common 0.4%,
    idiosyncratic 0.3% per bar, no drift) plus an AR(1) deviation per asset.

    Args:
        seed: at least 0.
        assets: number of assets.
        bars: number of bars.
        timeframe: of the bars.
        deviation_sd: stationary standard deviation of the deviation.
        phi: coefficient of the AR(1), in [0, 1).

    Raises:
        InputError: an argument is out of range.
    """
    _check(seed, assets, bars, timeframe)
    if not 0.0 <= phi < 1.0 or not deviation_sd >= 0.0:
        raise InputError(
            f"a planted market needs 0 ≤ phi < 1 and deviation_sd ≥ 0, not {phi} and {deviation_sd}"
        )
    rng = np.random.default_rng([seed, 2])
    steps = 0.004 * rng.standard_normal((bars, 1)) + 0.003 * rng.standard_normal((bars, assets))
    deviation = _autoregression(rng.standard_normal((bars, assets)), phi, deviation_sd)
    return _bars(rng, np.cumsum(steps, axis=0) + deviation, np.ones((bars, assets)), timeframe)


def shuffled(bars: Bars, seed: int) -> Bars:
    """Put the bars in random order and chain them, so that the past predicts nothing.

    Each bar's open, high, low and close, relative to the previous close, stay together, for all
    assets at once. So their distribution and the assets' correlation stay the same. Each asset's
    mean simple return is removed; otherwise the shuffle would spread one asset's luck evenly over
    the whole range, where it could be learned. The first bar stays in place. Drawing without
    replacement fixes the last price, which pulls prices towards it: worth about 2% of the planted
    edge.
    """
    rng = np.random.default_rng([seed, 3])
    order = np.concatenate([[0], 1 + rng.permutation(len(bars.time) - 1)])
    before = np.concatenate([bars.open[:1], bars.close[:-1]])
    growth = bars.close / before
    mean = np.mean(growth[1:], axis=0) if len(bars.time) > 1 else np.ones(growth.shape[1])
    growth = np.concatenate([growth[:1], growth[1:] / mean])[order]
    close = bars.open[0] * np.cumprod(growth, axis=0)
    # One factor per bar and asset rescales the old bar, so ratios within a bar stay the same.
    factor = close / bars.close[order]
    return replace(
        bars,
        open=bars.open[order] * factor,
        high=bars.high[order] * factor,
        low=bars.low[order] * factor,
        close=close,
        volume=bars.volume[order],
        hole=bars.hole[order],
        synthetic=True,
    )


def _check(seed: int, assets: int, bars: int, timeframe: str) -> None:
    bar_seconds(timeframe)
    if seed < 0:
        raise InputError(f"a synthetic market needs a seed of 0 or more, not {seed}")
    if assets < 1 or bars < 1:
        raise InputError(
            f"a synthetic market needs at least 1 asset and 1 bar, not {assets} and {bars}"
        )


def _regimes(rng: np.random.Generator, bars: int) -> NDArray[np.int64]:
    """Return the regime of each bar, (bars,): geometric spells, each followed by another regime."""
    regime = np.empty(bars, dtype=np.int64)
    at, state = 0, 0
    while at < bars:
        # Geometric lengths are those of a Markov chain that leaves its state with probability
        # 1 / REGIME_BARS per bar.
        spell = int(rng.geometric(1.0 / REGIME_BARS))
        regime[at : at + spell] = state
        at += spell
        state = (state + int(rng.integers(1, len(REGIMES)))) % len(REGIMES)
    return regime


def _student(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Draw Student-t innovations of unit variance."""
    # The variance of Student's t with ν degrees of freedom is ν / (ν - 2).
    draws: Array = rng.standard_t(TAIL, shape)
    return draws * float(np.sqrt((TAIL - 2.0) / TAIL))


def _autoregression(innovations: Array, coefficient: float, deviation: float) -> Array:
    """Return the AR(1) x_t = coefficient · x_{t-1} + s · innovation_t, starting from 0.

    s is chosen such that innovations of unit variance give the stationary `deviation`.
    """
    # Var(x) = s² / (1 - coefficient²) for innovations of unit variance.
    scaled = innovations * (deviation * np.sqrt(1.0 - coefficient**2))
    values: Array = np.empty_like(scaled)
    last = np.zeros(scaled.shape[1])
    for t, innovation in enumerate(scaled):
        last = coefficient * last + innovation
        values[t] = last
    return values


def _bars(rng: np.random.Generator, log_price: Array, volatility: Array, timeframe: str) -> Bars:
    """Make bars around closing log prices (bars, assets).

    Gaps are tiny; wicks and volume are proportional to volatility.
    """
    count, assets = log_price.shape
    step = bar_seconds(timeframe)
    time = grid_from(timeframe, START // step * step, count)
    level = np.log(10.0) * rng.uniform(0.0, 4.0, assets)
    # Price levels between 1 and 10,000 quote units, so that nothing depends on a common scale.
    closes = level + log_price
    before = np.concatenate(
        [closes[:1] - 0.005 * volatility[:1] * rng.standard_normal((1, assets)), closes[:-1]]
    )
    opens = before + 0.0001 * volatility * rng.standard_normal((count, assets))
    wick = 0.004 * volatility
    highs = np.maximum(opens, closes) + wick * np.abs(rng.standard_normal((count, assets)))
    lows = np.minimum(opens, closes) - wick * np.abs(rng.standard_normal((count, assets)))
    of_day = 2.0 * np.pi * (time % 86400)[:, None] / 86400.0
    # Traded value per bar: it rises with volatility and with the size of the move, has a daily
    # cycle, and is log-normal otherwise.
    quote = np.exp(
        np.log(5e6)
        + rng.uniform(-1.0, 1.0, assets)
        + 0.8 * np.log(volatility)
        + 0.5 * np.log1p(np.abs(closes - opens) / (0.01 * volatility))
        - 0.3 * np.cos(of_day - 0.5)
        + 0.35 * rng.standard_normal((count, assets))
    )
    digits = len(str(assets))
    return Bars(
        tickers=tuple(f"DEMO{number:0{digits}d}/USDT" for number in range(1, assets + 1)),
        timeframe=timeframe,
        time=time,
        open=np.exp(opens),
        high=np.exp(highs),
        low=np.exp(lows),
        close=np.exp(closes),
        volume=quote / np.exp(closes),
        hole=np.zeros((count, assets), dtype=bool),
        synthetic=True,
    )
