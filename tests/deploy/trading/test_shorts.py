"""Short positions in the paper trader and the simulated broker: the environment's numbers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sweepd.deploy.market.bundle import NO_SHORT_ENSEMBLES, load_bundle
from sweepd.deploy.market.candidates import build_bundle, open_study, read_candidate, study_search
from sweepd.deploy.market.constants import constant_returns, correlation
from sweepd.deploy.market.scoring import score_bundle
from sweepd.deploy.registry.bundle_files import write_bundle
from sweepd.deploy.trading import risk
from sweepd.deploy.trading.brokers.base import LIQUIDATED
from sweepd.deploy.trading.brokers.sim import SimBroker, sim_broker
from sweepd.deploy.trading.closed_bar import ClosedBar
from sweepd.deploy.trading.live.hot_swap import Traded, unfit
from sweepd.deploy.trading.paper_trader import PaperTrader
from sweepd.deploy.trading.replay import replay
from sweepd.deploy.trading.risk import RiskVerdict
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.params import SHORTS, EnvParams, Instruments
from sweepd.envs.crypto.portfolio import Portfolio, plan, value
from sweepd.envs.crypto.rules import Rules
from sweepd.envs.support.errors import InputError
from tests.deploy.builders import FakeStudy, ensemble_of, small_bundle
from tests.deploy.trading.test_paper_trader import (
    LENGTH,
    SEVERE,
    TICKERS,
    assert_same_account,
    market_bars,
)

SHORT = EnvParams(
    action_scale=0.4, allow_short=True, borrow_fee=5.0, max_leverage=2.0, maintenance_margin=0.4
)
WINDOW = (600, 600 + LENGTH)


def wild_bars(seed: int, *, holes: float = 0.0, power: float = 6.0) -> Bars:
    """Return a market of large moves, where margin is called."""
    bars = market_bars(seed, holes=holes)
    level = bars.close[WINDOW[0]]
    values = {
        name: level * (getattr(bars, name) / level) ** power
        for name in ("open", "high", "low", "close")
    }
    return dataclasses.replace(bars, **values)


def leaning(seed: int, lean: float) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.round(np.clip(rng.normal(lean, 0.6, (LENGTH, 3)), -1, 1), 6)


@pytest.mark.parametrize("seed", range(2))
def test_env_and_trader_agree_under_every_rule(seed: int) -> None:
    bars = wild_bars(seed, holes=0.05, power=3.0)
    instruments = Instruments(minimum_order=(0.0, 400.0, 25.0), increment=(0.001, 0.0, 0.05))
    params = dataclasses.replace(
        SEVERE, allow_short=True, borrow_fee=5.0, max_leverage=1.5, maintenance_margin=0.5
    )
    bundle = small_bundle(tickers=TICKERS, params=params, instruments=instruments, max_lookback=4)
    totals = assert_same_account(bundle, bars, leaning(seed, -0.1), WINDOW)
    assert totals["trades"] > 40


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 1000),
    stop=st.sampled_from([0.0, 0.05]),
    holding=st.sampled_from([0, 6]),
    margin=st.sampled_from([(0.5, 0.9), (1.0, 0.25), (3.0, 0.3)]),
    fee=st.sampled_from([0.0, 0.2, 50.0]),
    minimum=st.sampled_from([0.0, 500.0]),
    holes=st.sampled_from([0.0, 0.2]),
    increment=st.sampled_from([0.0, 1e-3, 1.0]),
    lean=st.sampled_from([-0.3, 0.0, 0.3]),
    steps=st.just(40),
)
@example(  # a bankrupt account, whose cent is no minimum order's
    seed=127,
    stop=0.0,
    holding=0,
    margin=(3.0, 0.3),
    fee=0.0,
    minimum=0.0,
    holes=0.0,
    increment=1.0,
    lean=-0.3,
    steps=100,
)
def test_env_and_trader_agree_for_random_parameters(
    seed: int,
    stop: float,
    holding: int,
    margin: tuple[float, float],
    fee: float,
    minimum: float,
    holes: float,
    increment: float,
    lean: float,
    steps: int,
) -> None:
    params = EnvParams(
        action_scale=0.4,
        trailing_stop=stop,
        max_holding_bars=holding,
        max_holding_fraction=0.5,
        minimum_order=minimum,
        allow_short=True,
        borrow_fee=fee,
        max_leverage=margin[0],
        maintenance_margin=margin[1],
    )
    instruments = Instruments((0.0,) * 3, (increment, 0.0, increment))
    bundle = small_bundle(tickers=TICKERS, params=params, instruments=instruments)
    window = (WINDOW[0], WINDOW[0] + steps)
    assert_same_account(bundle, wild_bars(seed, holes=holes), leaning(seed, lean)[:steps], window)


def test_liquidations_are_orders_of_the_venue() -> None:
    bars = wild_bars(1, power=12.0)
    bundle = small_bundle(tickers=TICKERS, params=SHORT)
    down = iter(-np.ones((LENGTH, 3)))
    result = replay(bundle, bars, WINDOW, act=lambda _obs: next(down), any_account=True)
    fills = [fill for entry in result.entries for fill in entry.fills]
    liquidated = [fill for fill in fills if fill.reason == LIQUIDATED]
    assert len(liquidated) >= 3
    for fill in liquidated:
        assert fill.order.side == "buy"
        assert fill.order.whole
        # Decided at the last close, like every order that fills in this bar.
        assert fill.order.decided == fill.at - 3600
    entry = next(entry for entry in result.entries if liquidated[0] in entry.fills)
    place = result.entries.index(entry)
    assert result.entries[place - 1].exposure > 1.0
    assert not entry.flow  # no transfers
    assert all(not entry.flow for entry in result.entries)


def test_replay_equals_the_canonical_score() -> None:
    bars = wild_bars(3, power=2.0)
    bundle = small_bundle(3, tickers=TICKERS, params=SHORT, gain=2.0)
    result, canonical = replay(bundle, bars, WINDOW), score_bundle(bundle, bars, WINDOW)
    for name in ("returns", "equal_weight", "trades", "fees", "notional", "exposure"):
        np.testing.assert_allclose(
            getattr(result.score, name), getattr(canonical, name), rtol=1e-9, atol=1e-9
        )
    held = np.array([entry.units for entry in result.entries])
    assert held.min() < 0.0 < held.max()


def test_a_trader_resumes_exactly_with_short_positions() -> None:
    bars = wild_bars(3, power=2.0)
    params = dataclasses.replace(SHORT, trailing_stop=0.05, max_holding_bars=20)
    bundle = small_bundle(3, tickers=TICKERS, params=params, gain=2.0)
    first = WINDOW[0]

    def begin() -> tuple[PaperTrader, SimBroker]:
        trader, broker = PaperTrader(bundle, slot="s"), sim_broker(bundle)
        trader.start(bars.slice(first - trader.bars_needed, first), broker.account())
        return trader, broker

    trader, broker = begin()
    other, values = None, []
    for number in range(first, first + 60):
        bar = ClosedBar.of(bars, number)
        broker.next_bar(bar.time, bar.open, bar.hole)
        broker.close_bar(bar.time, bar.close, bar.hole)
        entry = trader.on_bar(bar, broker.fills(), broker.account())
        broker.submit(entry.orders)
        values.append(entry.value)
        if number == first + 30:
            assert min(entry.units) < 0.0
            other, copy = PaperTrader(bundle, slot="s"), sim_broker(bundle)
            copy.restore(broker.state())
            copy.submit(entry.orders)
            other.resume(bars.slice(0, number + 1), trader.state())
        elif other is not None:
            copy.next_bar(bar.time, bar.open, bar.hole)
            copy.close_bar(bar.time, bar.close, bar.hole)
            again = other.on_bar(bar, copy.fills(), copy.account())
            copy.submit(again.orders)
            assert again.value == entry.value
            assert again.orders == entry.orders
            assert other.observation(bar.close).tolist() == trader.observation(bar.close).tolist()


def test_constant_policies_include_short_ones() -> None:
    bars = wild_bars(1, power=1.0)
    plain = constant_returns(small_bundle(tickers=TICKERS), bars, WINDOW)
    bundle = small_bundle(tickers=TICKERS, params=SHORT)
    found = constant_returns(bundle, bars, WINDOW)
    assert set(found) - set(plain) == {"always-short", "equal weight short"}
    # An equal-weight short loses what equal weight gains, but for costs and drifting weights.
    assert correlation(found["equal weight short"], found["equal weight"]) < -0.95
    assert correlation(found["always-short"], found["equal weight"]) < -0.95


def test_a_bundle_of_several_trials_refuses_shorts() -> None:
    parts = [small_bundle(seed, tickers=TICKERS, params=SHORT) for seed in range(2)]
    with pytest.raises(InputError, match="trials with short positions cannot share an account"):
        ensemble_of(parts).check()


def test_bundles_without_the_parameters_of_shorts_load(tmp_path: Path) -> None:
    recorded = EnvParams().recorded()
    assert not set(recorded) & set(SHORTS)
    bundle = small_bundle(tickers=TICKERS, env_params=recorded)
    assert not load_bundle(write_bundle(bundle, tmp_path)).account.allow_short
    assert set(SHORT.recorded()) > set(SHORTS)
    bundle = small_bundle(tickers=TICKERS, env_params=SHORT.recorded())
    assert load_bundle(write_bundle(bundle, tmp_path)).account == SHORT


def test_a_study_with_shorts_makes_a_bundle_with_them_but_no_ensemble(tmp_path: Path) -> None:
    fake = FakeStudy(tmp_path)
    params = EnvParams(allow_short=True, borrow_fee=0.3)
    trials = [fake.add(1.0 + seed, fake.contrarian(), params=params) for seed in range(2)]
    study = open_study(fake.name, fake.storage)
    found = {trial.number: trial for trial in study.complete}
    search = study_search(study)
    one = read_candidate([found[trials[0]]], study, search)
    assert not one.faults
    bundle = build_bundle(one, study, {})
    assert bundle.account == params
    both = read_candidate([found[number] for number in trials], study, search)
    assert NO_SHORT_ENSEMBLES in both.faults


def test_a_champion_without_shorts_does_not_inherit_short_positions() -> None:
    long, short = (small_bundle(tickers=TICKERS, params=own) for own in (EnvParams(), SHORT))
    sim = {"broker": "sim", "feed": ""}
    assert "without shorts" in str(unfit(long, Traded.of(short), **sim, shorts=True))
    assert unfit(short, Traded.of(long), **sim, shorts=True) is None
    problem = unfit(short, Traded.of(long), broker="alpaca", feed="", shorts=False)
    assert problem == "it was trained with --allow-short, and broker alpaca has no short positions"


def test_risk_rules_reduce_and_increase_on_both_sides() -> None:
    """One asset is long and reduced, one short and covered, one is sold short, one bought."""
    params = EnvParams(allow_short=True, max_leverage=5.0, maintenance_margin=0.1)
    rules = Rules.of(params, Instruments.unrestricted(4), bars_per_year=8766.0)
    units = torch.tensor([[40.0, -40.0, 0.0, 0.0]], dtype=torch.float64)
    held = Portfolio(
        torch.tensor([[10_000.0]], dtype=torch.float64), units, units * 0, units * 0, units * 0
    )
    close = torch.full((1, 4), 100.0, dtype=torch.float64)
    action = torch.tensor([[-0.5, 0.5, -0.5, 0.5]], dtype=torch.float64)
    orders = plan(held, value(held, close), action, rules)
    assert (orders.sell_units > 0).tolist() == [[True, False, True, False]]
    assert (orders.cover_units > 0).tolist() == [[False, True, False, False]]
    assert (orders.buy_notional > 0).tolist() == [[False, False, False, True]]

    left, dropped = risk.apply(RiskVerdict(buys=False), orders, held, close)
    assert dropped == 2
    assert (left.sell_units > 0).tolist() == [[True, False, False, False]]
    assert (left.cover_units > 0).tolist() == [[False, True, False, False]]
    assert not bool((left.buy_notional > 0).any())

    left, dropped = risk.apply(RiskVerdict(sell_all=True, buys=False), orders, held, close)
    assert left.sell_units.tolist() == [[40.0, 0.0, 0.0, 0.0]]
    assert left.cover_units.tolist() == [[0.0, 40.0, 0.0, 0.0]]
    assert left.whole.tolist() == [[True, True, False, False]]
    assert dropped == 2

    left, dropped = risk.apply(RiskVerdict(most_orders=3), orders, held, close)
    assert dropped == 1
    assert float(left.cover_units.sum()) > 0.0
