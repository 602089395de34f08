"""The paper trader against the environment: same actions or policy, same numbers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.market.scoring import Score, score_bundle
from sweepd.deploy.trading.brokers.base import AccountState, Order
from sweepd.deploy.trading.brokers.sim import SimBroker
from sweepd.deploy.trading.closed_bar import ClosedBar
from sweepd.deploy.trading.paper_trader import PaperTrader
from sweepd.deploy.trading.replay import ledger_table, orders_table, replay, write_replay
from sweepd.envs.crypto.data.bars import Bars, load_bars
from sweepd.envs.crypto.data.demo_market import make_demo_market
from sweepd.envs.crypto.env import CryptoEnv
from sweepd.envs.crypto.market import make_market
from sweepd.envs.crypto.params import EnvParams, Instruments
from sweepd.envs.crypto.scoring.metrics import TRADE_COLUMNS
from sweepd.envs.support.errors import InputError, RunError
from tests.deploy.builders import small_bundle

TICKERS = ("DEMO1/USDT", "DEMO2/USDT", "DEMO3/USDT")
LENGTH = 120
SEVERE = EnvParams(
    action_scale=0.4,
    cash_reserve=0.1,
    max_position=0.5,
    trailing_stop=0.03,
    max_holding_bars=9,
    max_holding_fraction=0.5,
    fee=0.004,
    slippage=0.002,
    minimum_order=200.0,
    lookback=2,
    initial_cash=5_000.0,
    held_scale=20.0,
)


def market_bars(seed: int = 0, *, holes: float = 0.0, bars: int = 800) -> Bars:
    """Return a demo market with holes, which are filled forward as in loading."""
    whole = make_demo_market(seed, assets=len(TICKERS), bars=bars)
    assert whole.tickers == TICKERS
    rng = np.random.default_rng(seed)
    hole = rng.random(whole.close.shape) < holes
    hole[0] = False
    values = {
        name: getattr(whole, name).copy() for name in ("open", "high", "low", "close", "volume")
    }
    for t, asset in np.argwhere(hole):
        for name in ("open", "high", "low", "close"):
            values[name][t, asset] = values["close"][t - 1, asset]
        values["volume"][t, asset] = 0.0
    return dataclasses.replace(whole, hole=hole, **values)


def assert_same_account(
    bundle: Bundle, bars: Bars, actions: np.ndarray, window: tuple[int, int]
) -> dict[str, float]:
    """Trade the same actions in the environment and in the trader; compare every bar."""
    first, last = window
    market = make_market(bars, "default", bundle.instruments)
    env = CryptoEnv.for_windows(
        market, bundle.account, [[window]], max_lookback=bundle.max_lookback
    )
    obs = env.reset(0)
    seen, turn = [], iter(actions)

    def act(observation: np.ndarray) -> np.ndarray:
        seen.append(observation)
        return next(turn)

    result = replay(bundle, bars, window, act=act, any_account=True)
    totals = {"trades": 0.0, "dropped": 0.0, "unfilled": 0.0}
    for step in range(last - first):
        np.testing.assert_allclose(
            seen[step], obs[0].numpy(), rtol=2e-7, atol=1e-9, err_msg=f"observation {step}"
        )
        obs = env.step(torch.from_numpy(actions[step][None])).obs
        assert env.account is not None
        account = {name: float(column[0]) for name, column in env.account._asdict().items()}
        entry, decided = result.entries[step + 1], result.entries[step]
        for name in ("value", "equal_weight", "fees", "notional", "exposure"):
            assert getattr(entry, name) == pytest.approx(account[name], rel=1e-9, abs=1e-9), (
                step,
                name,
            )
        assert (entry.trades, entry.unfilled, decided.dropped) == (
            account["trades"],
            account["unfilled"],
            account["dropped"],
        ), step
        assert entry.cash >= 0.0 or bundle.account.allow_short
        for name in totals:
            totals[name] += account[name]
    return totals


@pytest.mark.parametrize("seed", range(2))
def test_env_and_trader_agree_under_every_rule(seed: int) -> None:
    bars = market_bars(seed, holes=0.05)
    instruments = Instruments(minimum_order=(0.0, 400.0, 25.0), increment=(0.001, 0.0, 0.05))
    bundle = small_bundle(tickers=TICKERS, params=SEVERE, instruments=instruments, max_lookback=4)
    rng = np.random.default_rng(seed)
    actions = np.round(np.clip(rng.normal(0.1, 0.6, (LENGTH, 3)), -1, 1), 6)
    totals = assert_same_account(bundle, bars, actions, (600, 600 + LENGTH))
    assert totals["trades"] > 40  # the rules had an effect
    assert totals["dropped"] > 10
    assert totals["unfilled"] > 3


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 1000),
    scale=st.floats(0.01, 1.0),
    stop=st.sampled_from([0.0, 0.01, 0.05]),
    holding=st.sampled_from([0, 1, 6]),
    fraction=st.floats(0.1, 1.0),
    reserve=st.floats(0.0, 0.5),
    limit=st.floats(0.1, 1.0),
    minimum=st.sampled_from([0.0, 10.0, 500.0]),
    fee=st.sampled_from([0.0, 0.0025]),
    holes=st.sampled_from([0.0, 0.2]),
    increment=st.sampled_from([0.0, 1e-3, 1.0]),
    lean=st.sampled_from([-0.3, 0.0, 0.4]),
    cash=st.sampled_from([100.0, 10_000.0]),
)
def test_env_and_trader_agree_for_random_parameters(
    seed: int,
    scale: float,
    stop: float,
    holding: int,
    fraction: float,
    reserve: float,
    limit: float,
    minimum: float,
    fee: float,
    holes: float,
    increment: float,
    lean: float,
    cash: float,
) -> None:
    params = EnvParams(
        action_scale=scale,
        trailing_stop=stop,
        max_holding_bars=holding,
        max_holding_fraction=fraction,
        cash_reserve=reserve,
        max_position=limit,
        minimum_order=minimum,
        fee=fee,
        initial_cash=cash,
    )
    bundle = small_bundle(
        tickers=TICKERS, params=params, instruments=Instruments((0.0,) * 3, (increment,) * 3)
    )
    rng = np.random.default_rng(seed)
    actions = np.round(np.clip(rng.normal(lean, 0.5, (30, 3)), -1, 1), 6)
    assert_same_account(bundle, market_bars(seed % 5, holes=holes, bars=620), actions, (560, 590))


def assert_same_score(ours: Score, theirs: Score) -> None:
    assert np.array_equal(ours.time, theirs.time)
    for name in (*TRADE_COLUMNS, "crossed"):
        np.testing.assert_allclose(
            getattr(ours, name), getattr(theirs, name), rtol=1e-9, atol=1e-12, err_msg=name
        )
    own, other = ours.metrics.to_dict(), theirs.metrics.to_dict()
    assert own.pop("reason") == other.pop("reason")
    assert own == pytest.approx(other, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("holes", [0.0, 0.04])
def test_a_replay_equals_the_canonical_score(holes: float) -> None:
    bars = market_bars(7, holes=holes, bars=1000)
    params = EnvParams(
        action_scale=0.3,
        trailing_stop=0.04,
        max_holding_bars=30,
        max_holding_fraction=0.7,
        lookback=2,
    )
    bundle = small_bundle(3, tickers=TICKERS, params=params, max_lookback=3, members=3, gain=1.5)
    window = (700, 860)
    scored, replayed = score_bundle(bundle, bars, window), replay(bundle, bars, window)
    assert_same_score(replayed.score, scored)
    assert scored.metrics.trades > 50
    assert (
        len(np.unique(np.array([entry.action for entry in replayed.entries[:-1]])[:, 0])) > 50
    )  # the policy looks at the market


def test_a_replay_over_an_outage_of_the_real_exchange_equals_the_canonical_score(
    real_data: Path,
) -> None:
    tickers = ("SOL/USDT", "BTC/USDT", "NEAR/USDT")
    bars = load_bars(real_data / "binance_2021_2023_1h", "1h", tickers)
    outage = int(np.argmax(bars.hole.any(axis=1) & (np.arange(len(bars)) > 700)))
    assert bars.hole[outage].all()
    window = (outage - 60, outage + 60)
    bundle = small_bundle(8, tickers=tickers, params=EnvParams(trailing_stop=0.02), gain=1.5)
    scored, replayed = score_bundle(bundle, bars, window), replay(bundle, bars, window)
    np.testing.assert_allclose(replayed.score.returns, scored.returns, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(
        replayed.score.equal_weight, scored.equal_weight, rtol=1e-9, atol=1e-12
    )
    assert sum(entry.unfilled for entry in replayed.entries) > 0


def test_bars_outside_the_window_have_no_effect() -> None:
    bars = market_bars(2, bars=1200)
    bundle = small_bundle(5, tickers=TICKERS)
    whole = score_bundle(bundle, bars, (800, 900))
    part = score_bundle(bundle, bars.slice(250, 950), (550, 650))
    assert np.array_equal(whole.returns, part.returns)
    assert np.array_equal(whole.time, part.time)


def test_tickers_are_matched_by_name() -> None:
    bars = market_bars(4)
    bundle = small_bundle(6, tickers=TICKERS)
    order = [2, 0, 1]
    permuted = dataclasses.replace(
        bars,
        tickers=tuple(TICKERS[i] for i in order),
        **{
            name: getattr(bars, name)[:, order]
            for name in ("open", "high", "low", "close", "volume", "hole")
        },
    )
    window = (600, 660)
    assert np.array_equal(
        replay(bundle, permuted, window).score.returns, replay(bundle, bars, window).score.returns
    )
    assert np.array_equal(
        score_bundle(bundle, permuted, window).returns, score_bundle(bundle, bars, window).returns
    )
    swapped = small_bundle(6, tickers=(TICKERS[1], TICKERS[0], TICKERS[2]))
    assert not np.array_equal(
        replay(swapped, bars, window).score.returns, replay(bundle, bars, window).score.returns
    )  # the order is part of it
    fewer = dataclasses.replace(
        bars,
        tickers=TICKERS[:2],
        **{
            name: getattr(bars, name)[:, :2]
            for name in ("open", "high", "low", "close", "volume", "hole")
        },
    )
    with pytest.raises(InputError, match=r"trades DEMO3/USDT, which the data lacks"):
        replay(bundle, fewer, window)
    with pytest.raises(InputError, match=r"trades DEMO3/USDT, which the data lacks"):
        score_bundle(bundle, fewer, window)


def test_another_timeframe_is_refused() -> None:
    bundle = small_bundle(tickers=TICKERS)
    with pytest.raises(InputError, match=r"trades bars of 1h; the data has 4h"):
        replay(bundle, make_demo_market(0, assets=3, bars=700, timeframe="4h"), (600, 650))


@pytest.mark.parametrize(
    ("cash", "fine"), [(4_999.0, False), (5_001.0, True), (29_999.0, True), (30_001.0, False)]
)
def test_an_account_far_from_the_initial_cash_is_refused(cash: float, fine: bool) -> None:
    bars, bundle = market_bars(0), small_bundle(tickers=TICKERS)
    if fine:
        replay(bundle, bars, (600, 602), cash=cash)
    else:
        with pytest.raises(InputError, match=r"outside half to three times"):
            replay(bundle, bars, (600, 602), cash=cash)
        assert (
            replay(bundle, bars, (600, 602), cash=cash, any_account=True).entries[0].value == cash
        )


def test_short_histories_and_wrong_bars_are_refused() -> None:
    bars, bundle = market_bars(0), small_bundle(tickers=TICKERS, params=EnvParams(lookback=3))
    with pytest.raises(InputError, match="after 513 bars"):
        replay(bundle, bars, (512, 520))
    replay(bundle, bars, (513, 515))
    account, trader = AccountState(10_000.0, {}), PaperTrader(bundle, slot="s")
    with pytest.raises(RunError, match="not started"):
        trader.on_bar(ClosedBar.of(bars, 600), [], account)
    with pytest.raises(InputError, match="needs 513 bars before its first decision"):
        trader.start(bars.slice(0, 512), account)
    trader.start(bars.slice(0, 600), account)
    trader.on_bar(ClosedBar.of(bars, 600), [], account)
    for wrong in (600, 602, 599):
        with pytest.raises(RunError, match="the next bar should open at"):
            trader.on_bar(ClosedBar.of(bars, wrong), [], account)


def test_the_simulator_fills_at_the_next_open_with_slippage_and_fee() -> None:
    params = EnvParams(fee=0.01, slippage=0.02)
    broker = SimBroker(("A/USDT", "B/USDT"), 1_000.0, params, Instruments.unrestricted(2))
    no_holes = np.zeros(2, dtype=bool)
    broker.submit(
        [
            Order("1", "A/USDT", "buy", 0, notional=400.0),
            Order("2", "B/USDT", "buy", 0, notional=100.0),
        ]
    )
    assert broker.account().cash == 1_000.0
    broker.next_bar(3600, np.array([50.0, 10.0]), np.array([False, True]))
    bought, missed = broker.fills()
    assert (bought.status, missed.status) == ("filled", "unfilled")
    assert bought.units == pytest.approx(400.0 * 0.99 / (50.0 * 1.02), rel=1e-12)
    assert (bought.price, bought.fee, bought.notional) == pytest.approx((51.0, 4.0, 400.0))
    assert broker.account().cash == pytest.approx(600.0)
    assert broker.fills() == []
    broker.next_bar(7200, np.array([60.0, 10.0]), no_holes)
    assert broker.fills() == []  # the missed order is gone
    units = broker.account().units["A/USDT"]
    broker.submit([Order("3", "A/USDT", "sell", 7200, units=units, whole=True)])
    broker.next_bar(10800, np.array([60.0, 10.0]), no_holes)
    (sold,) = broker.fills()
    assert sold.notional == pytest.approx(units * 60.0 * 0.98)
    assert sold.price == pytest.approx(58.8)
    assert broker.account().units["A/USDT"] == 0.0
    assert broker.account().cash == pytest.approx(600.0 + units * 60.0 * 0.98 * 0.99)
    for order in (
        Order("3", "A/USDT", "buy", 0, notional=1.0),
        Order("4", "C/USDT", "buy", 0, notional=1.0),
    ):
        with pytest.raises(ValueError, match="order"):
            broker.submit([order])


def test_a_replay_writes_ledger_orders_and_plot(tmp_path: Path) -> None:
    import json

    import pandas as pd

    bars, bundle = market_bars(1, holes=0.02), small_bundle(2, tickers=TICKERS, gain=1.5)
    result = replay(bundle, bars, (600, 700))
    paths = write_replay(result, tmp_path / "replay")
    assert [path.name for path in paths] == [
        "ledger.parquet",
        "orders.parquet",
        "bars.parquet",
        "summary.json",
        "equity.png",
    ]
    ledger, orders = pd.read_parquet(paths[0]), pd.read_parquet(paths[1])
    pd.testing.assert_frame_equal(ledger, ledger_table(result))
    assert len(ledger) == 101
    assert ledger["value"].iloc[0] == 10_000.0
    assert len(orders) == len(orders_table(result)) > 0
    filled = orders[orders["status"] == "filled"]
    assert filled["fee"].sum() == pytest.approx(ledger["fees"].sum())
    assert orders["client_id"].is_unique
    assert json.loads(paths[3].read_text())["metrics"]["trades"] == len(filled)
    assert paths[4].read_bytes().startswith(b"\x89PNG")


def test_cash_and_units_follow_from_the_fills() -> None:
    bars, bundle = market_bars(3, holes=0.05), small_bundle(9, tickers=TICKERS, gain=1.5)
    result = replay(bundle, bars, (600, 750))
    cash, units = 10_000.0, dict.fromkeys(TICKERS, 0.0)
    for entry in result.entries:
        for fill in entry.fills:
            if fill.status != "filled":
                continue
            if fill.order.side == "buy":
                cash -= fill.notional
                units[fill.order.ticker] += fill.units
            else:
                cash += fill.notional - fill.fee
                units[fill.order.ticker] -= fill.units
        assert entry.cash == pytest.approx(cash, rel=1e-9)
        assert list(entry.units) == pytest.approx(list(units.values()), rel=1e-9, abs=1e-9)
