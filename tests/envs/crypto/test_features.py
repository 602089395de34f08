"""Features: causal, not constant, and the same bits from the last W bars as from all history."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import talib

from sweepd.envs.crypto.data.bars import Bars, load_bars
from sweepd.envs.crypto.data.demo_market import make_demo_market
from sweepd.envs.crypto.features import Recipe, compute_features, get_recipe, register_recipe
from sweepd.envs.support.errors import InputError

RECIPE = get_recipe("default")
W = RECIPE.memory
PRICES = ("open", "high", "low", "close")


@pytest.fixture(scope="module")
def market() -> Bars:
    """Make a demo market with zero volume, a hole in all assets, and one constant price."""
    bars = make_demo_market(3, assets=3, bars=2400)
    volume, hole = bars.volume.copy(), bars.hole.copy()
    prices = {name: getattr(bars, name).copy() for name in PRICES}
    volume[[700, 701, 1300], 1] = 0.0
    for at in range(900, 912):
        hole[at], volume[at] = True, 0.0
        for values in prices.values():
            values[at] = prices["close"][899]
    for values in prices.values():
        values[1500:1900, 2] = prices["close"][1499, 2]
    volume[1500:1900, 2] = 0.0
    return replace(bars, volume=volume, hole=hole, **prices)


@pytest.fixture(scope="module")
def features(market: Bars) -> np.ndarray:
    return compute_features(market, RECIPE)


def column(name: str, asset: int = 0) -> int:
    if name in RECIPE.shared_features:
        return 3 * len(RECIPE.asset_features) + RECIPE.shared_features.index(name)
    return asset * len(RECIPE.asset_features) + RECIPE.asset_features.index(name)


def test_shape_and_rows_before_the_memory_is_full(market: Bars, features: np.ndarray) -> None:
    assert features.shape == (2400, 3 * 12 + 4)
    assert features.dtype == np.float32
    assert np.isfinite(features).all()
    assert not features[: W - 1].any()
    assert features[W - 1].any()
    assert len(RECIPE.columns(market.tickers)) == features.shape[1]
    assert RECIPE.columns(market.tickers)[column("rsi_14", 1)] == "DEMO2/USDT rsi_14"


@pytest.mark.parametrize("timeframe", ["1m", "5m", "1h", "1d"])
def test_live_equals_training_to_the_bit(timeframe: str) -> None:
    """The last W bars alone give the features of the whole history, wherever they begin."""
    bars = make_demo_market(1, assets=2, bars=1800, timeframe=timeframe)
    whole = compute_features(bars, RECIPE)
    rng = np.random.default_rng(0)
    for t in [W - 1, W, len(bars.time) - 1, *rng.integers(W - 1, len(bars.time), 60).tolist()]:
        longer = int(rng.integers(0, t - W + 2))
        for start in (t - W + 1, t - W + 1 - longer):
            live = compute_features(bars.slice(start, t + 1), RECIPE)
            assert np.array_equal(live[-1], whole[t]), (t, start)


def test_short_recipe_live_equals_training_to_the_bit() -> None:
    recipe = get_recipe("short")
    assert recipe.memory == 128
    bars = make_demo_market(1, assets=2, bars=700, timeframe="1d")
    whole = compute_features(bars, recipe)
    for t in range(recipe.memory - 1, 700):
        live = compute_features(bars.slice(t - recipe.memory + 1, t + 1), recipe)
        assert np.array_equal(live[-1], whole[t]), t
    # Its indicators are those of the default recipe, but for the start of their recursions.
    other = compute_features(bars, RECIPE)
    assert np.array_equal(whole[W - 1 :, :4], other[W - 1 :, :4])  # log returns
    # Windows that are longer than the distance of the anchors would hold no numbers.
    assert (whole[recipe.memory - 1 :, :24] != 0.0).any(axis=0).all()


def test_live_equals_training_with_holes_and_constant_prices(
    market: Bars, features: np.ndarray
) -> None:
    for t in [*range(895, 920), *range(1495, 1900, 23), *range(1900, 2400, 31)]:
        live = compute_features(market.slice(t - W + 1, t + 1), RECIPE)
        assert np.array_equal(live[-1], features[t]), t


def test_no_feature_sees_the_future(market: Bars, features: np.ndarray) -> None:
    rng = np.random.default_rng(1)
    for t in rng.integers(W - 1, 2399, 12).tolist():
        factor = np.exp(0.3 * rng.standard_normal((2400 - t - 1, 3)))
        changed = {name: getattr(market, name).copy() for name in (*PRICES, "volume")}
        for name, values in changed.items():
            values[t + 1 :] *= factor if name != "volume" else 7.0 * factor
        other = compute_features(replace(market, **changed), RECIPE)
        assert np.array_equal(other[: t + 1], features[: t + 1]), t
        # The change has an effect one bar later.
        assert not np.array_equal(other[t + 1], features[t + 1]), t


def test_features_of_an_asset_do_not_depend_on_other_assets(
    market: Bars, features: np.ndarray
) -> None:
    changed = {name: getattr(market, name).copy() for name in PRICES}
    for values in changed.values():
        values[:, 1] *= np.linspace(1.0, 2.0, 2400)
    other = compute_features(replace(market, **changed), RECIPE)
    width = len(RECIPE.asset_features)
    assert np.array_equal(other[:, :width], features[:, :width])
    assert np.array_equal(other[:, 2 * width :], features[:, 2 * width :])
    assert not np.array_equal(other[:, width : 2 * width], features[:, width : 2 * width])


def assert_alive(values: np.ndarray, names: tuple[str, ...]) -> None:
    for index, name in enumerate(names):
        used = values[W - 1 :, index]
        assert np.mean(used != 0.0) > 0.03, f"{name} is zero nearly always"
        assert np.std(used) > 0.1, f"{name} hardly moves"
        assert np.std(used) < 5.0, f"{name} is far from unit scale"
        assert np.mean(np.abs(used) >= 10.0) < 0.01, f"{name} is clipped often"


def test_every_feature_varies_on_the_demo_market() -> None:
    bars = make_demo_market(0, assets=3, bars=6000)
    assert_alive(compute_features(bars, RECIPE), RECIPE.columns(bars.tickers))


def test_every_feature_varies_on_real_bars(real_data: Path) -> None:
    bars = load_bars(real_data / "binance_2021_2023_1h", "1h", ["BTC/USDT", "NEAR/USDT"]).slice(
        0, 9000
    )
    assert_alive(compute_features(bars, RECIPE), RECIPE.columns(bars.tickers))


def test_real_bars_live_equals_training(real_data: Path) -> None:
    bars = load_bars(real_data / "binance_2024_5m", "5m", ["BCH/USDT", "ETH/USDT"]).slice(0, 20_000)
    whole = compute_features(bars, RECIPE)
    for t in np.random.default_rng(2).integers(W - 1, 20_000, 60).tolist():
        assert np.array_equal(
            compute_features(bars.slice(t - W + 1, t + 1), RECIPE)[-1], whole[t]
        ), t


def test_features_do_not_depend_on_the_price_level(market: Bars, features: np.ndarray) -> None:
    """No absolute price or threshold: scaling the price (by a power of two) keeps the bits."""
    for factor in (2.0**-20, 2.0**12):
        scaled = {name: getattr(market, name) * factor for name in PRICES}
        assert np.array_equal(compute_features(replace(market, **scaled), RECIPE), features)


def test_bars_without_volume_or_price_changes(market: Bars, features: np.ndarray) -> None:
    assert not features[[700, 701, 1300], column("relative_volume", 1)].any()
    assert not features[[700, 701, 1300], column("breakout_volume", 1)].any()
    assert not features[900:912, column("relative_volume", 0)].any()
    still = replace(
        market,
        **{name: np.full_like(market.close, 5.0) for name in PRICES},
        volume=np.zeros_like(market.volume),
    )
    values = compute_features(still, RECIPE)
    assert not values[:, : 3 * len(RECIPE.asset_features)].any()


def pandas_features(bars: Bars, asset: int) -> dict[str, np.ndarray]:
    """Compute the default recipe independently, with pandas, and TA-Lib over the whole history."""
    frame = pd.DataFrame({name: getattr(bars, name)[:, asset] for name in (*PRICES, "volume")})
    high, low, close = (frame[name].to_numpy() for name in ("high", "low", "close"))
    made: dict[str, np.ndarray] = {}
    hours = (bars.time[1] - bars.time[0]) / 3600
    for k in (1, 3, 12, 48):
        made[f"log_return_{k}"] = (
            100 * np.log(frame.close / frame.close.shift(k)).to_numpy() / (k * hours) ** 0.5
        )
    before = frame.close.shift(1)
    spread = pd.concat(
        [frame.high - frame.low, (frame.high - before).abs(), (frame.low - before).abs()], axis=1
    )
    true_range = spread.max(axis=1).iloc[1:]
    atr = true_range.iloc[14:].copy()
    first = true_range.iloc[:14].mean()
    atr = (
        pd.concat([pd.Series([first], index=[14]), atr])
        .ewm(alpha=1 / 14, adjust=False)
        .mean()
        .reindex(frame.index)
    )
    ema = {span: frame.close.ewm(span=span, adjust=False).mean() for span in (12, 26)}
    macd = ema[12] - ema[26]
    made["macd_histogram_atr"] = ((macd - macd.ewm(span=9, adjust=False).mean()) / atr).to_numpy()
    move = frame.close.diff()
    gain = move.clip(lower=0).ewm(alpha=1 / 14, adjust=False).mean()
    loss = (-move).clip(lower=0).ewm(alpha=1 / 14, adjust=False).mean()
    made["rsi_14"] = ((100 * gain / (gain + loss) - 50) / 25).to_numpy()
    typical = (frame.high + frame.low + frame.close) / 3
    window = typical.rolling(14)
    spread_14 = window.apply(lambda values: np.mean(np.abs(values - values.mean())), raw=True)
    made["cci_14"] = ((typical - window.mean()) / (0.015 * spread_14) / 100).to_numpy()
    made["dx_14"] = talib.DX(high, low, close, 14) / 25
    made["atr_regime"] = np.log(atr / atr.rolling(50).mean()).to_numpy()
    relative = frame.volume / frame.volume.rolling(20).mean()
    top, bottom = frame.high.shift(1).rolling(20).max(), frame.low.shift(1).rolling(20).min()
    out = (frame.close - top).clip(lower=0) - (bottom - frame.close).clip(lower=0)
    made["breakout_volume"] = (out / atr * relative).to_numpy()
    adx = pd.Series(talib.ADX(high, low, close, 14))
    made["adx_acceleration"] = adx.diff().diff().to_numpy()
    made["relative_volume"] = relative.to_numpy()
    return {name: np.clip(values, -10, 10) for name, values in made.items()}


def test_features_equal_formulas_over_the_whole_history() -> None:
    """Restarting at an anchor 256 to 511 bars back changes values by less than 1e-4."""
    bars = make_demo_market(5, assets=2, bars=3000)
    values = compute_features(bars, RECIPE)
    for asset in range(2):
        expected = pandas_features(bars, asset)
        assert tuple(expected) == RECIPE.asset_features
        for index, (name, wanted) in enumerate(expected.items()):
            got = values[W - 1 :, asset * 12 + index]
            np.testing.assert_allclose(got, wanted[W - 1 :], atol=1e-4, err_msg=name)


def test_time_of_day_and_week_are_those_of_the_close() -> None:
    bars = make_demo_market(0, assets=1, bars=700)
    values = compute_features(bars, RECIPE)[W - 1 :, -4:]
    closes = pd.to_datetime(bars.time[W - 1 :] + 3600, unit="s", utc=True)
    hour = closes.hour.to_numpy() / 24
    day = ((closes.day_of_week.to_numpy() - 3) % 7 + hour) / 7  # 1970-01-01 was a Thursday
    expected = [
        np.sin(2 * np.pi * hour),
        np.cos(2 * np.pi * hour),
        np.sin(2 * np.pi * day),
        np.cos(2 * np.pi * day),
    ]
    np.testing.assert_allclose(values, np.stack(expected, axis=1), atol=1e-6)


def test_the_range_of_the_breakout_excludes_the_current_bar() -> None:
    """If the current bar were part of its own range, no close could leave it: always zero."""
    bars = make_demo_market(0, assets=1, bars=600)
    high, close, low = bars.high.copy(), bars.close.copy(), bars.low.copy()
    high[560], close[560] = 2 * high[540:560].max(), 1.9 * high[540:560].max()
    up = compute_features(replace(bars, high=high, close=close), RECIPE)
    low[560], close[560] = 0.5 * low[540:560].min(), 0.6 * low[540:560].min()
    down = compute_features(replace(bars, low=low, close=close), RECIPE)
    assert up[560, RECIPE.asset_features.index("breakout_volume")] > 1.0
    assert down[560, RECIPE.asset_features.index("breakout_volume")] < -1.0


def test_the_result_of_a_custom_recipe_is_checked() -> None:
    bars = make_demo_market(0, assets=2, bars=40)

    def make(values: np.ndarray, memory: int = 5) -> Recipe:
        return Recipe("mine", 1, memory, ("next_return",), (), lambda _: values)

    good = np.arange(80.0).reshape(40, 2)
    assert np.array_equal(compute_features(bars, make(good))[4:], good[4:].astype(np.float32))
    with pytest.raises(InputError, match=r"'mine' returned shape \(40, 3\); expected \(40, 2\)"):
        compute_features(bars, make(np.zeros((40, 3))))
    bad = good.copy()
    bad[2, 0] = np.nan  # before the memory is full: never used
    bad[17, 1] = np.inf
    with pytest.raises(InputError, match="DEMO2/USDT next_return = inf at bar 17"):
        compute_features(bars, make(bad))
    with pytest.raises(InputError, match="needs at least 41 bars; there are 40"):
        compute_features(bars, make(good, memory=41))


def test_recipe_names_are_unique() -> None:
    recipe = Recipe(
        "test_recipes_have_names", 1, 1, ("zero",), (), lambda bars: np.zeros((len(bars.time), 1))
    )
    assert register_recipe(recipe) is recipe
    assert register_recipe(recipe) is recipe
    assert get_recipe(recipe.name) is recipe
    with pytest.raises(InputError, match="registered already"):
        register_recipe(replace(recipe, version=2))
    with pytest.raises(InputError, match="'nonsense' is not known; choose one of default"):
        get_recipe("nonsense")
