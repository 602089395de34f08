"""Risk rules: their parsing, their verdicts, and their effect on orders and money."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sweepd.deploy.trading.paper_trader
from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.trading import risk
from sweepd.deploy.trading.brokers.sim import SimBroker
from sweepd.deploy.trading.closed_bar import ClosedBar
from sweepd.deploy.trading.paper_trader import Entry, PaperTrader
from sweepd.deploy.trading.risk import Conditions, RiskRules, RiskVerdict, Situation
from sweepd.deploy.trading.risk_limits import RiskLimits, parse_limits, tightened
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.params import EnvParams, Instruments
from sweepd.envs.crypto.portfolio import Orders, Portfolio, fill, plan, value
from sweepd.envs.crypto.rules import Rules
from sweepd.envs.support.errors import InputError
from tests.deploy.builders import ensemble_of, small_bundle
from tests.deploy.trading.test_paper_trader import TICKERS, market_bars

HOUR = 3600
FIRST, LAST, BARS = 600, 648, 700
FALL = 620  # the first bar of the fall
VENUE = {"fee": 0.004, "slippage": 0.002}
FRESH = {"conditions": Conditions(0.0)}


# ---- parsing ----


def test_limits_are_shares_and_seconds() -> None:
    texts = [
        "drawdown=0.2",
        "cooldown=90m",
        "daily-loss=0.05",
        "orders-per-hour=60",
        "stale=15m",
        "max-position=.5",
    ]
    assert parse_limits(texts) == RiskLimits(
        drawdown=0.2,
        cooldown=5400.0,
        daily_loss=0.05,
        orders_per_hour=60,
        stale=900.0,
        max_position=0.5,
    )
    assert parse_limits([]) == RiskLimits()
    assert parse_limits(["drawdown=0.1"]).cooldown == 86_400.0
    assert parse_limits(["stale=1.5h"]).stale == 5_400.0
    assert parse_limits(["stale=45s"]).stale == 45.0
    assert parse_limits(["drawdown=0.1", "cooldown=7d"]).cooldown == 7 * 86_400.0


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (
            ["drawdwon=0.2"],
            "no such rule; rules are given like max-position=0.5, .*daily-loss=0.05, "
            "orders-per-hour=60",
        ),
        (["daily_loss=0.2"], "no such rule"),
        (
            ["drawdown=20"],
            r"--risk drawdown=20: it must be a share above 0 and below 1 \(0.2 is 20%\)",
        ),
        (["drawdown=20%"], "like drawdown=0.2"),
        (["drawdown"], "like drawdown=0.2"),
        (["drawdown=nan"], "like drawdown=0.2"),
        (["drawdown=0"], "above 0"),
        (["max-position=0"], "above 0, at most 1"),
        (["cash-reserve=1"], "from 0 to below 1"),
        (["stale=300"], "a number of seconds, minutes, hours or days above 0, like stale=15m"),
        (["stale=0s"], "above 0"),
        (["stale=3bars"], "like stale=15m"),
        (["orders-per-hour=2.5"], "a whole number of at least 1"),
        (["orders-per-hour=0"], "a whole number of at least 1"),
        (["drawdown=0.1", "drawdown=0.2"], "given twice"),
        (["cooldown=24h"], "--risk cooldown needs --risk drawdown=SHARE"),
    ],
)
def test_invalid_limits_are_refused(texts: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_limits(texts)


def test_limits_of_the_bundle_are_only_tightened() -> None:
    params = EnvParams(max_position=0.5, cash_reserve=0.1, trailing_stop=0.2)
    stricter = RiskLimits(max_position=0.3, cash_reserve=0.2, trailing_stop=0.1)
    looser = RiskLimits(max_position=0.9, cash_reserve=0.01, trailing_stop=0.5)
    assert tightened(params, looser) == tightened(params, RiskLimits()) == params
    assert tightened(params, stricter) == dataclasses.replace(
        params, max_position=0.3, cash_reserve=0.2, trailing_stop=0.1
    )
    assert tightened(EnvParams(), looser).trailing_stop == 0.5  # 0 was off


def test_rules_are_off_by_default_and_described() -> None:
    quiet = RiskRules(RiskLimits(max_position=0.5))
    assert quiet.words == ()
    for worth in (100.0, 1.0, 50.0):
        assert quiet.judge(Situation(0, value=worth, **FRESH)) == RiskVerdict()
    words = RiskRules(
        RiskLimits(drawdown=0.2, cooldown=5400.0, daily_loss=0.05, orders_per_hour=9, stale=900.0)
    ).words
    assert words == (
        "sells everything once the account is 20% below its highest value, and buys nothing for "
        "90m",
        "sells everything once a UTC day has lost 5%, and buys nothing until the next day",
        "sends at most 9 orders in any 60 minutes, closing positions first",
        "sends nothing if the newest bar closed more than 15m ago",
    )


# ---- verdicts ----


def said(rules: RiskRules, values: list[float], *, step: int = HOUR, start: int = 0) -> list[bool]:
    """Whether everything is to be sold, bar by bar."""
    return [
        rules.judge(Situation(start + step * bar, value=value, **FRESH)).sell_all
        for bar, value in enumerate(values)
    ]


def test_a_drawdown_stop_is_not_triggered_twice_by_one_fall() -> None:
    rules = RiskRules(RiskLimits(drawdown=0.2, cooldown=3 * HOUR))
    assert said(rules, [80, 100, 81, 80, 50, 40, 41, 42, 34, 33]) == [
        False,
        False,
        False,
        True,
        True,
        True,
        False,
        False,
        False,
        True,
    ]
    first = RiskRules(RiskLimits(drawdown=0.2))
    (reason,) = [first.judge(Situation(0, value=v, **FRESH)) for v in (100.0, 75.0)][1].reasons
    assert reason == (
        "drawdown stop: 25% below the highest value, 100.00; nothing is bought until "
        "1970-01-02T00:00:00Z"
    )


def test_a_daily_loss_counts_from_the_previous_days_last_close() -> None:
    rules = RiskRules(RiskLimits(daily_loss=0.1))
    day = 86_400
    assert said(rules, [100, 100], start=day - 2 * HOUR) == [
        False,
        False,
    ]  # the last two bars of a day
    assert said(rules, [95, 90, 99], start=day) == [False, True, True]
    assert said(rules, [99, 100, 89.2, 89], start=2 * day) == [
        False,
        False,
        False,
        True,
    ]  # from 99: 89.1
    assert said(rules, [80], start=5 * day, step=day) == [True]  # after days away: from 89
    daily = RiskRules(RiskLimits(daily_loss=0.1))
    assert said(daily, [100, 91, 80, 79], step=day) == [
        False,
        False,
        True,
        False,
    ]  # bars of a day work, too


def test_orders_are_counted_over_the_last_hour() -> None:
    rules = RiskRules(RiskLimits(orders_per_hour=5))

    def left(now: float) -> int | None:
        return rules.judge(Situation(0, 100.0, Conditions(now))).most_orders

    assert left(0) == 5
    rules.sent(0, 3)
    assert left(300) == 2
    rules.sent(300, 2)
    assert left(600) == 0
    assert rules.judge(Situation(0, 100.0, Conditions(600))).reasons == (
        "order limit: 5 orders were sent within the last 60 minutes",
    )
    assert [left(now) for now in (3599, 3600, 3899, 3900)] == [0, 3, 3, 5]


def test_stale_data_stops_all_rules_except_a_halt() -> None:
    rules = RiskRules(RiskLimits(stale=900.0, drawdown=0.1))
    rules.judge(Situation(0, value=100.0, **FRESH))
    verdict = rules.judge(Situation(HOUR, 80.0, Conditions(0.0, 901.0)))
    assert (verdict.sell_all, verdict.buys, verdict.sells) == (False, False, False)
    assert len(verdict.reasons) == 2
    told = rules.judge(Situation(2 * HOUR, 80.0, Conditions(0.0, 901.0, "told to", True)))
    assert (told.sell_all, told.buys, told.sells) == (True, False, True)
    assert told.reasons[0] == "halted: told to"
    kept = rules.judge(Situation(3 * HOUR, 80.0, Conditions(0.0, 0.0, "told to", False)))
    assert (kept.sell_all, kept.buys, kept.sells) == (
        False,
        False,
        False,
    )  # though the drawdown stop is on
    assert rules.judge(
        Situation(4 * HOUR, value=80.0, **FRESH)
    ).sell_all  # and it sells on the first fresh bar


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(50, 150), st.integers(1, 30), st.integers(0, 4)),
        min_size=2,
        max_size=60,
    ),
    st.data(),
)
def test_restored_rules_reach_the_same_verdicts(
    bars: list[tuple[float, int, int]], data: st.DataObject
) -> None:
    limits = RiskLimits(
        drawdown=0.2, cooldown=7 * HOUR, daily_loss=0.1, orders_per_hour=6, stale=100.0
    )
    split = data.draw(st.integers(0, len(bars)))
    whole, part = RiskRules(limits), RiskRules(limits)
    time = 0
    for number, (worth, gap, orders) in enumerate(bars):
        time += 900 * gap
        if number == split:
            text = json.dumps(part.state())
            part = RiskRules(limits)
            part.restore(json.loads(text))
        situation = Situation(time, worth, Conditions(float(time + 900), 50.0 * gap % 130))
        assert whole.judge(situation) == part.judge(situation)
        whole.sent(situation.conditions.now, orders)
        part.sent(situation.conditions.now, orders)
    assert whole.state() == part.state()


def test_rules_with_other_limits_restore_their_state() -> None:
    before = RiskRules(RiskLimits(drawdown=0.2, cooldown=5 * HOUR))
    assert said(before, [100, 70]) == [False, True]
    after = RiskRules(RiskLimits(drawdown=0.1, daily_loss=0.5))
    after.restore(before.state())
    assert said(after, [70, 70], start=5 * HOUR) == [True, False]
    RiskRules(RiskLimits()).restore(before.state())


# ---- orders ----


@st.composite
def plans(draw: st.DrawFn) -> tuple[Portfolio, Orders, torch.Tensor, Rules]:
    """A portfolio of one to three rows, its orders, the close, and the rules."""
    rows, assets = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    params = EnvParams(
        action_scale=0.5,
        trailing_stop=draw(st.sampled_from([0.0, 0.05])),
        max_holding_bars=4,
        max_holding_fraction=0.5,
    )
    rules = Rules.of(params, Instruments.unrestricted(assets), rows=rows)
    units = torch.from_numpy(
        rng.uniform(0, 50, (rows, assets)) * (rng.random((rows, assets)) < 0.7)
    )
    cash = torch.from_numpy(rng.uniform(0, 3000, rows))
    close = torch.from_numpy(np.tile(rng.uniform(10, 20, assets), (rows, 1)))
    held = torch.from_numpy(rng.integers(0, 6, (rows, assets)).astype(np.float64)) * (units > 0)
    high = close * torch.from_numpy(rng.uniform(1.0, 1.1, (rows, assets)))
    portfolio = Portfolio(cash.unsqueeze(1), units, close * (units > 0), high * (units > 0), held)
    # What rows buy and sell of one asset at once was crossed between them before.
    action = np.tile(rng.uniform(-1, 1, assets), (rows, 1)) * rng.uniform(0.2, 1, (rows, 1))
    orders = plan(portfolio, value(portfolio, close), torch.from_numpy(action), rules)
    return portfolio, orders, close, rules


def sent(orders: Orders) -> int:
    """Return the number of account orders: per asset, one sell and one buy over all rows."""
    return int((orders.sell_units > 0).any(0).sum() + (orders.buy_notional > 0).any(0).sum())


@settings(max_examples=150, deadline=None)
@given(plans(), st.booleans(), st.booleans(), st.booleans(), st.none() | st.integers(0, 6))
def test_a_verdict_removes_what_it_forbids(
    planned: tuple[Portfolio, Orders, torch.Tensor, Rules],
    sell_all: bool,
    buys: bool,
    sells: bool,
    most: int | None,
) -> None:
    portfolio, plan, close, rules = planned
    verdict = RiskVerdict(
        sell_all, buys and not sell_all, sells or sell_all, None if sell_all else most
    )
    left, dropped = risk.apply(verdict, plan, portfolio, close)
    if not verdict.buys:
        assert not left.buy_notional.any()
    if not verdict.sells:
        assert not left.sell_units.any()
    if verdict.most_orders is not None:
        assert sent(left) <= verdict.most_orders
    assert (left.buy_notional <= plan.buy_notional).all()
    assert (left.whole <= (left.sell_units > 0)).all()
    after, _ = fill(portfolio, left, close * 1.1, None, rules)
    assert (after.cash >= 0.0).all()
    assert (after.units >= 0.0).all()
    if sell_all:
        assert torch.equal(left.sell_units, portfolio.units)
        assert not after.units.any()
        assert dropped == int((plan.buy_notional > 0).any(0).sum())
        assert (after.cash >= portfolio.cash).all()
        return
    assert dropped == sent(plan) - sent(left)
    if verdict.buys and verdict.sells and (most is None or sent(plan) <= most):
        for name in ("sell_units", "buy_notional", "whole", "restart_clock", "dropped"):
            assert torch.equal(getattr(left, name), getattr(plan, name)), name
    if verdict.sells and most is not None:
        # Orders that close positions or are forced come first.
        urgent = ((plan.whole | plan.restart_clock) & (plan.sell_units > 0)).any(0)
        still = (left.sell_units > 0).any(0)
        assert int((urgent & still).sum()) == min(most, int(urgent.sum()))
    # A sell that was due by the clock and is not sent stays due.
    withheld = (plan.sell_units > 0) & (left.sell_units == 0)
    assert not (left.restart_clock & withheld).any()


def test_the_largest_orders_of_a_kind_are_kept() -> None:
    sells = torch.tensor([[1.0, 0.0, 5.0, 0.0, 2.0, 0.0]], dtype=torch.float64)
    buys = torch.tensor([[0.0, 90.0, 0.0, 100.0, 0.0, 10.0]], dtype=torch.float64)
    whole = torch.tensor([[True, False, False, False, False, False]])
    nothing = torch.zeros_like(whole)
    covers = torch.zeros_like(sells)
    plan = Orders(sells, buys, covers, whole, nothing, torch.zeros(1, dtype=torch.float64))
    portfolio = Portfolio(
        torch.tensor([500.0]), *(torch.full((1, 6), 9.0, dtype=torch.float64) for _ in range(4))
    )
    close = torch.full((1, 6), 10.0, dtype=torch.float64)
    order = []
    for most in range(7):
        left, dropped = risk.apply(RiskVerdict(most_orders=most), plan, portfolio, close)
        assert dropped == 6 - most
        order.append(
            {int(asset) for asset in torch.nonzero((left.sell_units + left.buy_notional)[0])}
        )
    assert order == [
        set(),
        {0},
        {0, 2},
        {0, 2, 4},
        {0, 2, 3, 4},
        {0, 1, 2, 3, 4},
        {0, 1, 2, 3, 4, 5},
    ]


# ---- effects in the trader ----


def fallen(share: float, *, at: int = FALL, holes: float = 0.0) -> Bars:
    """Return a market that falls by `share` from one bar to the next and stays there."""
    bars = market_bars(5, holes=holes, bars=BARS)
    factor = np.where(np.arange(len(bars.time)) < at, 1.0, 1.0 - share)[:, None]
    return dataclasses.replace(
        bars, **{name: getattr(bars, name) * factor for name in ("open", "high", "low", "close")}
    )


def single() -> Bundle:
    return small_bundle(tickers=TICKERS, params=EnvParams(action_scale=0.3, **VENUE))


def several() -> Bundle:
    bundles = [
        small_bundle(seed, tickers=TICKERS, params=EnvParams(action_scale=scale, **VENUE))
        for seed, scale in ((3, 0.5), (4, 0.2))
    ]
    return ensemble_of(bundles, (0.6, 0.4))


@dataclasses.dataclass
class Guarded:
    """A trader that always buys, under rules. ages, halts: conditions at some bars."""

    limits: RiskLimits
    bundle: Bundle = dataclasses.field(default_factory=single)
    ages: Mapping[int, float] = dataclasses.field(default_factory=dict)
    halts: Mapping[int, bool] = dataclasses.field(default_factory=dict)

    def trade(self, bars: Bars) -> dict[int, Entry]:
        """The ledger by bar number."""
        broker = SimBroker(TICKERS, 10_000.0, self.bundle.account, self.bundle.instruments)
        trader = PaperTrader(
            self.bundle, slot="s", act=lambda _obs: np.full(3, 0.4), limits=self.limits
        )
        trader.start(bars.slice(0, FIRST), broker.account())
        entries = {}
        for number in range(FIRST, LAST):
            bar = ClosedBar.of(bars, number)
            age = self.ages.get(number, 0.0)
            halt = "by hand" if number in self.halts else None
            conditions = Conditions(bar.time + HOUR + age, age, halt, self.halts.get(number, False))
            broker.next_bar(bar.time, bar.open, bar.hole)
            entries[number] = trader.on_bar(
                bar, broker.fills(), broker.account(), conditions=conditions
            )
            broker.submit(entries[number].orders)
        return entries


def assert_sold(entries: dict[int, Entry], bars: Bars, at: int) -> None:
    """Check that all positions at the close of bar `at` were sold at the next open's prices."""
    before, after = entries[at], entries[at + 1]
    assert before.units.min() > 0.0  # there was something to sell
    assert {order.side for order in before.orders} == {"sell"}
    assert all(order.whole for order in before.orders)
    assert len(before.orders) == 3
    proceeds = (
        float(np.sum(before.units * bars.open[at + 1]))
        * (1.0 - VENUE["slippage"])
        * (1.0 - VENUE["fee"])
    )
    assert after.cash == pytest.approx(before.cash + proceeds, abs=0.005)
    assert (after.units == 0.0).all()
    assert after.value == after.cash


def assert_flat(entries: dict[int, Entry], bars: range) -> None:
    for bar in bars:
        assert (entries[bar].units == 0.0).all(), bar
        assert entries[bar].cash == entries[bars[0]].cash


def check_drawdown(bundle: Bundle) -> None:
    bars = fallen(0.3)
    entries = Guarded(RiskLimits(drawdown=0.2, cooldown=12 * HOUR), bundle).trade(bars)
    assert_sold(entries, bars, FALL)
    assert_flat(entries, range(FALL + 1, FALL + 13))
    assert entries[FALL + 11].verdict.reasons == entries[FALL].verdict.reasons != ()
    # The cool-down is over: it buys again, and the old peak is forgotten.
    assert {order.side for order in entries[FALL + 12].orders} == {"buy"}
    assert entries[FALL + 13].units.min() > 0.0
    assert all(not entries[bar].verdict.reasons for bar in range(FALL + 12, LAST))


def check_daily_loss(bundle: Bundle) -> None:
    bars = fallen(0.15)
    entries = Guarded(RiskLimits(daily_loss=0.1), bundle).trade(bars)
    assert_sold(entries, bars, FALL)
    days = bars.time // 86_400
    tomorrow = int(np.argmax(days > days[FALL]))
    assert tomorrow > FALL + 2
    assert_flat(entries, range(FALL + 1, tomorrow + 1))
    assert (
        entries[tomorrow + 1].units.min() > 0.0
    )  # bought at the close of the next day's first bar


def check_halt(bundle: Bundle) -> None:
    bars = market_bars(5, bars=BARS)
    halts = dict.fromkeys(range(630, 640), True)
    entries = Guarded(RiskLimits(), bundle, halts=halts).trade(bars)
    assert_sold(entries, bars, 630)
    assert_flat(entries, range(631, 641))
    assert entries[641].units.min() > 0.0


def check_stale(bundle: Bundle) -> None:
    bars = fallen(0.3)
    ages = dict.fromkeys(range(FALL, FALL + 4), 1000.0)
    entries = Guarded(RiskLimits(stale=900.0, drawdown=0.2), bundle, ages).trade(bars)
    assert all(not entries[bar].orders for bar in range(FALL, FALL + 4))
    assert all(
        entries[bar].units == pytest.approx(entries[FALL].units, rel=1e-12)
        for bar in range(FALL, FALL + 5)
    )
    assert_sold(entries, bars, FALL + 4)  # on fresh data


def check_kept(bundle: Bundle) -> None:
    """A halt that does not sell keeps all positions."""
    halts = dict.fromkeys(range(FALL, LAST), False)
    entries = Guarded(RiskLimits(drawdown=0.2), bundle, halts=halts).trade(fallen(0.3))
    assert all(not entries[bar].orders for bar in range(FALL, LAST))
    assert entries[LAST - 1].units == pytest.approx(entries[FALL].units, rel=1e-12)
    assert entries[FALL].units.min() > 0.0


def check_order_limit(bundle: Bundle) -> None:
    entries = Guarded(RiskLimits(orders_per_hour=2), bundle).trade(market_bars(5, bars=BARS))
    assert len(entries[FIRST].orders) == 2  # of three
    assert entries[FIRST].dropped == 1
    assert max(len(entry.orders) for entry in entries.values()) == 2
    assert entries[FIRST + 1].cash == pytest.approx(
        10_000.0 - sum(order.notional for order in entries[FIRST].orders)
    )


def check_tightened(bundle: Bundle) -> None:
    """Limits of the bundle can be made stricter."""
    bars = market_bars(5, bars=BARS)
    loose, strict = (
        Guarded(limits, bundle).trade(bars)[LAST - 1]
        for limits in (RiskLimits(), RiskLimits(max_position=0.1))
    )
    held = [entry.units * bars.close[LAST - 1] / entry.value for entry in (loose, strict)]
    assert held[0].max() > 0.3
    assert 0.09 < held[1].max() < 0.13
    reserved = Guarded(RiskLimits(cash_reserve=0.6), bundle).trade(bars)[LAST - 1]
    assert loose.cash < 0.05 * loose.value
    assert 0.55 < reserved.cash / reserved.value < 0.65
    stopped = Guarded(RiskLimits(trailing_stop=0.2), bundle).trade(fallen(0.3))
    assert_sold(stopped, fallen(0.3), FALL)


CHECKS = (check_drawdown, check_daily_loss, check_halt, check_stale, check_kept, check_order_limit)
Check = Callable[[Bundle], None]


@pytest.mark.parametrize("bundle", [single, several], ids=["one trial", "several"])
@pytest.mark.parametrize("check", [*CHECKS, check_tightened], ids=lambda check: check.__name__)
def test_rules_have_their_effect(check: Check, bundle: Callable[[], Bundle]) -> None:
    check(bundle())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_checks_fail_if_no_rule_is_applied(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sweepd.deploy.trading.paper_trader,
        "apply",
        lambda _verdict, plan, _portfolio, _close: (plan, 0),
    )
    with pytest.raises(AssertionError):
        check(single())


def test_a_sell_that_meets_a_hole_is_repeated_at_the_next_bar() -> None:
    bars = fallen(0.3)
    hole = bars.hole.copy()
    hole[FALL + 1, 1] = True
    bars = dataclasses.replace(bars, hole=hole)
    entries = Guarded(RiskLimits(drawdown=0.2)).trade(bars)
    assert (entries[FALL + 1].units == 0.0).tolist() == [True, False, True]
    assert [order.ticker for order in entries[FALL + 1].orders] == [TICKERS[1]]
    assert (entries[FALL + 2].units == 0.0).all()


def test_rules_that_never_trigger_change_nothing() -> None:
    bars = fallen(0.3, holes=0.03)
    limits = RiskLimits(
        drawdown=0.9, daily_loss=0.9, orders_per_hour=100, stale=900.0, max_position=1.0
    )
    plain, guarded = Guarded(RiskLimits()).trade(bars), Guarded(limits).trade(bars)
    for bar, entry in plain.items():
        assert entry.cash == guarded[bar].cash
        assert entry.orders == guarded[bar].orders
