"""Market features by named, versioned recipe, with the same bits live as in training.

A recipe has a memory W: by definition, the features of bar t depend only on bars t - W + 1 … t.
Indicators such as RSI and ADX are recursive and have infinite memory, so here every recursion
restarts at an anchor on an absolute time grid. With k the number of bars of that length (or sessions) since 1970,
the anchor of bar k is the largest multiple of 256 that is at most k - 255. The recursion thus sees
256 to 511 bars up to and including k, and always the same ones, whether the caller holds ten years
of history or only the last W = 512 bars. So live values equal training values to the bit.

The recipe "short" has the same features with anchors every 64 bars: its memory is 128 bars. Folds
are purged by the memory, and daily bars are few, so `default` would need more than ten years of
them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import talib
from numpy.typing import NDArray

from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.data.timeframe import bar_length, bar_number, bar_seconds, closing_clock
from sweepd.envs.support.errors import InputError

BLOCK = 256  # distance of the anchors, in bars
MEMORY = 2 * BLOCK
SHORT_BLOCK = 64  # the longest window, an average of 50 values over 14 bars each, just fits
CLIP = 10.0  # bound of every feature of an asset

RETURN_HORIZONS = (1, 3, 12, 48)  # bars
RANGE_BARS = 20  # window of breakouts and of the average volume

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Recipe:
    """How features are computed.

    Attributes:
        name: stored with studies and in bundles.
        version: stored likewise. Any change of values needs a new version.
        memory: W, the number of bars on which the features of a bar may depend, itself included.
        asset_features: names of the features of each asset.
        shared_features: names of the features that are not of an asset. Columns are all features
            of asset 0, of asset 1, …, then the shared ones.
        compute: maps Bars of T bars and N assets to an array (T, M) float64 with
            M = N · len(asset_features) + len(shared_features). Rows before W - 1 are ignored.
    """

    name: str
    version: int
    memory: int
    asset_features: tuple[str, ...]
    shared_features: tuple[str, ...]
    compute: Callable[[Bars], Array]

    def columns(self, tickers: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of the M columns for these tickers, such as "BTC/USDT rsi_14"."""
        own = [f"{ticker} {feature}" for ticker in tickers for feature in self.asset_features]
        return (*own, *self.shared_features)

    def width(self, assets: int) -> int:
        """Return M, the number of columns for that many assets."""
        return assets * len(self.asset_features) + len(self.shared_features)


def compute_features(bars: Bars, recipe: Recipe) -> NDArray[np.float32]:
    """Compute the features of every bar.

    Returns:
        (T, M) float32, all finite. Rows before `recipe.memory - 1` are 0 and must not be used.

    Raises:
        InputError: there are fewer bars than the recipe's memory, or the recipe returned a wrong
            shape or a number that is not finite.
    """
    count = len(bars.time)
    if count < recipe.memory:
        raise InputError(
            f"the feature recipe {recipe.name!r} needs at least {recipe.memory} bars; there are "
            f"{count}"
        )
    # Recipes can be registered by other code, so the result is checked.
    values = np.asarray(recipe.compute(bars))
    expected = (count, recipe.width(len(bars.tickers)))
    if values.shape != expected:
        raise InputError(
            f"the feature recipe {recipe.name!r} returned shape {values.shape}; expected {expected}"
        )
    features = np.zeros(expected, dtype=np.float32)
    features[recipe.memory - 1 :] = values[recipe.memory - 1 :]
    finite = np.isfinite(features)
    if not finite.all():
        bar, column = np.argwhere(~finite)[0]
        name = recipe.columns(bars.tickers)[column]
        raise InputError(
            f"the feature recipe {recipe.name!r} made {name} = {features[bar, column]} at bar {bar}"
        )
    return features


_RECIPES: dict[str, Recipe] = {}


def register_recipe(recipe: Recipe) -> Recipe:
    """Register a recipe under its name and return it.

    Raises:
        InputError: another recipe has this name.
    """
    known = _RECIPES.setdefault(recipe.name, recipe)
    if known != recipe:
        raise InputError(
            f"a feature recipe named {recipe.name!r} is registered already (version "
            f"{known.version})"
        )
    return recipe


def get_recipe(name: str) -> Recipe:
    """Return a registered recipe.

    Raises:
        InputError: the name is unknown.
    """
    if name not in _RECIPES:
        raise InputError(
            f"feature recipe {name!r} is not known; choose one of {', '.join(sorted(_RECIPES))}"
        )
    return _RECIPES[name]


def default_recipe(timeframe: str) -> str:
    """Return the name of the recipe that a study uses if none is named."""
    return "short" if bar_length(timeframe) == "1d" else "default"


def blockwise(
    bars: Bars,
    one_asset: Callable[[Array, Array, Array, Array], list[Array]],
    columns: int,
    block: int = BLOCK,
) -> Array:
    """Run `one_asset` once per asset and anchor, and keep the rows of that anchor.

    Args:
        bars: T bars of N assets.
        one_asset: maps high, low, close and volume of a run of n bars, each (n,) float64 and
            contiguous, to `columns` arrays (n,). Prices are relative to the run's first close. Its
            first `block` - 1 rows are discarded.
        columns: number of arrays.
        block: distance of the anchors, in bars.

    Returns:
        (T, N, columns). Rows whose anchor precedes the first bar are 0.
    """
    count, assets = bars.close.shape
    values = np.zeros((count, assets, columns))
    if count == 0:
        return values
    # The index of the first bar on the absolute grid: bars since 1970, or of the calendar.
    number = bar_number(bars.timeframe, int(bars.time[0]))
    # (N, T), because TA-Lib reads one asset's contiguous series at a time.
    high, low, close, volume = (
        np.ascontiguousarray(a.T) for a in (bars.high, bars.low, bars.close, bars.volume)
    )
    # With 256, an anchor at grid index a serves bars a + 255 … a + 510: the next anchor, 256 bars
    # later, takes over once it has 256 bars itself.
    for anchor in range(-number % block, count - block + 1, block):
        stop = min(anchor + 2 * block - 1, count)
        rows = slice(anchor + block - 1, stop)
        for asset in range(assets):
            # TA-Lib has absolute thresholds, so prices are made relative to the anchor's close.
            unit = close[asset, anchor]
            made = one_asset(
                high[asset, anchor:stop] / unit,
                low[asset, anchor:stop] / unit,
                close[asset, anchor:stop] / unit,
                volume[asset, anchor:stop],
            )
            for column, value in enumerate(made):
                values[rows, asset, column] = value[block - 1 :]
    return values


def _ratio(numerator: Array, denominator: Array) -> Array:
    """Divide; 0 where the denominator is 0 (no price movement, no volume)."""
    return np.divide(
        numerator, denominator, out=np.zeros_like(numerator), where=denominator > 1e-12
    )


def _lagged(values: Array, lag: int) -> Array:
    """Return the values `lag` bars earlier; the first value fills the start."""
    # The start lies in the first rows after an anchor, which `blockwise` discards.
    return np.concatenate([np.repeat(values[:1], lag), values[:-lag]])


def _default_asset(hours: float) -> Callable[[Array, Array, Array, Array], list[Array]]:
    """Return the function that computes the twelve features of an asset.

    Args:
        hours: length of a bar.
    """

    def features(high: Array, low: Array, close: Array, volume: Array) -> list[Array]:
        # Wilder's period of 14 bars (1978), and Appel's 12, 26 and 9 for MACD.
        atr = talib.ATR(high, low, close, 14)
        log_close = np.log(close)
        # In percent per square root of an hour, which is about the volatility of a coin, so values
        # are of the order of 1 on every timeframe.
        returns = [
            100.0 * (log_close - _lagged(log_close, k)) / np.sqrt(k * hours)
            for k in RETURN_HORIZONS
        ]
        histogram = talib.MACD(close, 12, 26, 9)[2]
        # RSI is 0/0 in a market without movement; 50 is its neutral value.
        rsi = np.where(atr > 1e-12, talib.RSI(close, 14), 50.0)
        average_atr = talib.SMA(atr, 50)
        # Volatility regime: the log of current over average volatility.
        regime = np.log(
            np.maximum(_ratio(atr, average_atr), 1e-4),
            where=average_atr > 1e-12,
            out=np.zeros_like(atr),
        )
        adx = talib.ADX(high, low, close, 14)
        # The mean of each window instead of a running sum: the rounding of a running sum would
        # leave a residual volume in windows without any.
        recent = np.lib.stride_tricks.sliding_window_view(volume, RANGE_BARS).mean(axis=1)
        relative_volume = _ratio(volume, np.concatenate([np.zeros(RANGE_BARS - 1), recent]))
        # The range of the previous bars, without the current one, which may break out of it.
        top = _lagged(talib.MAX(high, RANGE_BARS), 1)
        bottom = _lagged(talib.MIN(low, RANGE_BARS), 1)
        breakout = np.maximum(close - top, 0.0) - np.maximum(bottom - close, 0.0)
        # All features are of the order of 1; oscillators are centred and divided by a typical size.
        made = [
            *returns,
            _ratio(histogram, atr),
            (rsi - 50.0) / 25.0,
            talib.CCI(high, low, close, 14) / 100.0,
            talib.DX(high, low, close, 14) / 25.0,
            regime,
            _ratio(breakout, atr) * relative_volume,
            adx - 2.0 * _lagged(adx, 1) + _lagged(adx, 2),
            relative_volume,
        ]
        return [np.clip(value, -CLIP, CLIP) for value in made]

    return features


def _clock(bars: Bars) -> Array:
    """Return (T, 4): sine and cosine of the time of day and of the week at the bar's close.

    The close is when decisions are made. The time is the market's own, see `closing_clock`.
    """
    # Sine and cosine together, so that the end of a day is next to its beginning. The week starts
    # on a Thursday, the weekday of 1970-01-01; the network only needs a fixed phase.
    seconds = closing_clock(bars.timeframe, bars.time)
    day = 2.0 * np.pi * (seconds % 86400) / 86400.0
    week = 2.0 * np.pi * (seconds % 604800) / 604800.0
    return np.stack([np.sin(day), np.cos(day), np.sin(week), np.cos(week)], axis=1)


def _default(bars: Bars, block: int = BLOCK) -> Array:
    hours = bar_seconds(bars.timeframe) / 3600.0
    per_asset = blockwise(bars, _default_asset(hours), len(DEFAULT_ASSET_FEATURES), block)
    return np.concatenate([per_asset.reshape(len(bars.time), -1), _clock(bars)], axis=1)


DEFAULT_ASSET_FEATURES = (
    *(f"log_return_{k}" for k in RETURN_HORIZONS),
    "macd_histogram_atr",
    "rsi_14",
    "cci_14",
    "dx_14",
    "atr_regime",
    "breakout_volume",
    "adx_acceleration",
    "relative_volume",
)

register_recipe(
    Recipe(
        name="default",
        version=1,
        memory=MEMORY,
        asset_features=DEFAULT_ASSET_FEATURES,
        shared_features=("day_sine", "day_cosine", "week_sine", "week_cosine"),
        compute=_default,
    )
)
register_recipe(
    Recipe(
        name="short",
        version=1,
        memory=2 * SHORT_BLOCK,
        asset_features=DEFAULT_ASSET_FEATURES,
        shared_features=("day_sine", "day_cosine", "week_sine", "week_cosine"),
        compute=partial(_default, block=SHORT_BLOCK),
    )
)
