"""The live trader: it equals the replay, and kills at any instant do not change that."""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sweepd.deploy.trading.live.runner as runner
from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.deploy.dashboard.formatting import seconds_of
from sweepd.deploy.dashboard.health import health
from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.trading.certificates.parity import parity
from sweepd.deploy.trading.closed_bar import COLUMNS
from sweepd.deploy.trading.garbage import clear_garbage, find_garbage
from sweepd.deploy.trading.live.hot_swap import Traded, unfit
from sweepd.deploy.trading.live.queries import Records
from sweepd.deploy.trading.live.recorded_run import dry_run
from sweepd.deploy.trading.live.records import SHADOW, SLOT_ACCOUNT
from sweepd.deploy.trading.live.store import Replaced
from sweepd.deploy.trading.replay import replay
from sweepd.deploy.trading.risk_limits import RiskLimits
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.params import EnvParams
from sweepd.envs.support.errors import InputError, RunError
from tests.deploy.alpaca_server import Exchange, Fault, serving
from tests.deploy.builders import small_bundle
from tests.deploy.trading.live.world import SLOT, Killed, Killer, World
from tests.deploy.trading.test_paper_trader import market_bars

TICKERS = ("BTC/USDT", "ETH/USDT", "LINK/USDT")
FIRST, LAST = 640, 656
MARKET = 665  # bars that are made, of which tests trade the first ones
PARAMS = EnvParams(
    action_scale=0.4,
    trailing_stop=0.02,
    max_holding_bars=7,
    max_holding_fraction=0.5,
    minimum_order=50.0,
    lookback=2,
)


def bars_of(count: int = LAST + 1, *, seed: int = 1, holes: float = 0.0) -> Bars:
    market = market_bars(seed, bars=max(count, MARKET), holes=holes)
    return dataclasses.replace(market, tickers=TICKERS).slice(0, count)


def bundle_of(seed: int = 0, **changes: Any) -> Bundle:
    given: dict[str, Any] = {"params": PARAMS} | changes
    return small_bundle(seed, tickers=TICKERS, gain=1.5, **given)


@pytest.fixture
def exchange() -> Iterator[Exchange]:
    pytest.importorskip("alpaca", reason="alpaca-py is not installed")
    market = Exchange(
        {ticker.replace("USDT", "USD"): Decimal(1) for ticker in TICKERS}, spread=Decimal("0.001")
    )
    with serving(market) as made:
        yield made


def test_the_live_trader_equals_the_replay_bit_for_bit(tmp_path: Path) -> None:
    bars, bundle = bars_of(holes=0.05), bundle_of()
    world = World(tmp_path, bundle, bars, FIRST)
    world.run()
    expected = replay(bundle, bars, (FIRST, LAST)).entries
    lines = world.lines()
    assert [line.time for line in lines] == [entry.time for entry in expected]
    for line, entry in zip(lines, expected, strict=True):
        assert (line.value, line.cash, line.fees, line.trades) == (
            entry.value,
            entry.cash,
            entry.fees,
            entry.trades,
        )
        assert list(line.units.values()) == entry.units.tolist()
    assert sum(line.trades for line in lines) > 10


def test_a_kill_at_any_step_changes_no_order_and_no_record(tmp_path: Path) -> None:
    bars, bundle = bars_of(FIRST + 4, holes=0.05), bundle_of()
    start = World(tmp_path / "start", bundle, bars, FIRST)
    start.begin()
    undisturbed = start.copy(tmp_path / "undisturbed")
    count = Killer()
    undisturbed.run(count)
    assert count.steps >= 8
    for at in range(1, count.steps + 1):
        world = start.killed_at(at, tmp_path)
        assert world.lines() == undisturbed.lines(), at
        assert world.orders() == undisturbed.orders(), at


@pytest.mark.slow
def test_a_kill_at_any_step_loses_and_repeats_no_order_at_a_broker(
    tmp_path: Path, exchange: Exchange
) -> None:
    bars, bundle = bars_of(FIRST + 3), bundle_of()
    start = World(tmp_path / "start", bundle, bars, FIRST, exchange)
    start.begin()
    begun = copy.deepcopy((exchange.cash, exchange.units, exchange.orders))
    undisturbed = start.copy(tmp_path / "undisturbed")
    count = Killer()
    undisturbed.run(count)
    cash, held = exchange.cash, dict(exchange.units)
    assert len(exchange.orders) >= 3
    assert count.steps > 12
    for at in range(1, count.steps + 1):
        exchange.cash, exchange.units, exchange.orders = copy.deepcopy(begun)
        world = start.killed_at(at, tmp_path)
        assert (exchange.cash, exchange.units) == (cash, held), at
        assert world.orders() == undisturbed.orders(), at
        assert [line.value for line in world.lines()] == [
            line.value for line in undisturbed.lines()
        ], at


def test_account_and_ledger_agree_to_the_cent_and_the_shadow_tracks_it(
    tmp_path: Path, exchange: Exchange
) -> None:
    world = World(tmp_path, bundle_of(), bars_of(), FIRST, exchange)
    world.run()
    last = world.lines()[-1]
    assert last.cash == pytest.approx(float(exchange.cash), abs=1e-6)
    for ticker, units in last.units.items():
        assert units == pytest.approx(
            float(exchange.units.get(ticker.replace("USDT", "USD"), 0)), abs=1e-9
        )
    sent = [order["client_order_id"] for order in exchange.orders.values()]
    assert sent == [
        line.order.client_id for line in world.store.orders(SLOT, account=SLOT_ACCOUNT) if line.fill
    ]
    shadow = [line.value for line in world.lines(SHADOW)]
    np.testing.assert_allclose([line.value for line in world.lines()], shadow, rtol=1e-4)
    assert shadow[-1] != shadow[0]


@pytest.mark.parametrize("kind", [500, 429, "lost", "refused", "text", "slow"])
def test_a_fault_of_the_broker_loses_and_repeats_no_order(
    tmp_path: Path, exchange: Exchange, kind: int | str
) -> None:
    undisturbed = World(tmp_path / "a", bundle_of(), bars_of(FIRST + 4), FIRST, exchange)
    undisturbed.run()
    cash, held = exchange.cash, dict(exchange.units)
    exchange.cash, exchange.units, exchange.orders = Decimal(10_000), {}, {}
    exchange.faults = [
        Fault(kind, seconds=0.01),
        Fault(kind, "GET", "/v2/account"),
        Fault(kind, "GET", "/v2/orders"),
    ]
    world = World(tmp_path / "b", bundle_of(), bars_of(FIRST + 4), FIRST, exchange)
    world.run()
    assert exchange.faults == []
    assert (exchange.cash, exchange.units) == (cash, held)
    assert world.orders() == undisturbed.orders()


def test_after_a_downtime_missed_bars_are_booked_and_not_traded(tmp_path: Path) -> None:
    bars = bars_of()
    world = World(tmp_path, bundle_of(), bars, FIRST)
    session = world.session()
    for bar in range(FIRST, FIRST + 5):
        world.until_close_of(bar)
        session.poll()
    world.until_close_of(FIRST + 12)
    world.session().poll()
    lines = world.lines()
    assert [line.time for line in lines] == bars.time[FIRST : FIRST + 13].tolist()
    assert [line.action is None for line in lines] == [False] * 5 + [True] * 7 + [False]
    decided = {line.order.decided for line in world.store.orders(SLOT)}
    assert decided <= {line.time for line in lines if line.action is not None}
    assert ("caught up", "7 missed bars were booked; nothing was traded in them") in world.told
    assert sum(line.trades for line in lines[5:6]) == len(
        world.store.orders(SLOT, decided=lines[4].time)
    )


def test_the_newest_bar_is_not_traded_if_it_ended_too_long_ago(tmp_path: Path) -> None:
    world = World(tmp_path, bundle_of(), bars_of(), FIRST)
    session = world.session(max_delay=60.0)
    world.until_close_of(FIRST)
    session.poll()
    world.until_close_of(FIRST + 1)
    world.clock.wait(61.0)
    session.poll()
    assert [line.action is None for line in world.lines()] == [False, True]


def test_three_bars_in_a_row_that_come_too_late_are_an_alert(tmp_path: Path) -> None:
    world = World(tmp_path, bundle_of(), bars_of(), FIRST)
    session = world.session(max_delay=60.0)
    shown = []
    for bar in range(FIRST, FIRST + 5):
        world.until_close_of(bar)
        if bar < FIRST + 4:
            world.clock.wait(61.0)
        if bar == FIRST + 2:
            session = world.session(max_delay=60.0)  # the count survives a restart
        session.poll()
        trader = world.store.trader(SLOT)
        assert trader is not None
        beat, live = seconds_of(trader.beat), dataclasses.replace(trader, last_bar=None)
        shown.append(health(live, beat, slot=SLOT).state)
    assert shown == ["trading", "trading", "late", "late", "trading"]
    assert [line.action is None for line in world.lines()] == [True] * 4 + [False]
    [text] = [text for kind, text in world.told if kind == "alert"]
    assert "3 bars in a row came too late to be decided, the last one 63 s after its end" in text
    assert "the limit is 60 s" in text


def test_unsent_orders_are_not_sent_when_it_is_too_late(tmp_path: Path, exchange: Exchange) -> None:
    world = World(tmp_path, bundle_of(), bars_of(), FIRST, exchange)
    world.begin()
    exchange.orders = {}
    world.until_close_of(FIRST + 1)
    with pytest.raises(Killed):
        # Steps: two of the commits of start and champion each, fills, two of the bar, submit.
        world.session(Killer(8)).poll()
    assert exchange.orders == {}
    bar = int(world.bars.time[FIRST + 1])
    assert len(world.store.orders(SLOT, account=SLOT_ACCOUNT, decided=bar)) > 0
    world.clock.wait(1800.0)
    world.session()
    assert exchange.orders == {}
    fills = [line.fill for line in world.store.orders(SLOT, account=SLOT_ACCOUNT, decided=bar)]
    assert all(fill is not None and fill.status == "unfilled" for fill in fills)
    assert {fill.reason for fill in fills if fill} == {"the trader was not running when it was due"}


def test_a_halt_sells_everything_at_the_next_bar_and_ends_with_resume(tmp_path: Path) -> None:
    world = World(tmp_path, bundle_of(), bars_of(), FIRST)
    session = world.session()
    for bar in range(FIRST, FIRST + 6):
        world.until_close_of(bar)
        session.poll()
    assert sum(world.lines()[-1].units.values()) > 0
    world.store.halt(SLOT, "by the operator", sells=True)
    for bar in range(FIRST + 6, FIRST + 10):
        world.until_close_of(bar)
        session.poll()
    for line in world.lines()[-2:]:
        assert set(line.units.values()) == {0.0}
        assert line.cash == line.value
    world.store.resume(SLOT, "checked")
    for bar in range(FIRST + 10, FIRST + 14):
        world.until_close_of(bar)
        session.poll()
    assert sum(world.lines()[-1].units.values()) > 0
    assert [kind for kind, _ in world.told if kind == "risk"] == ["risk", "risk"]


def test_a_halt_sells_at_once_with_an_immediate_broker(tmp_path: Path, exchange: Exchange) -> None:
    world = World(tmp_path, bundle_of(), bars_of(), FIRST, exchange)
    session = world.session()
    for bar in range(FIRST, FIRST + 6):
        world.until_close_of(bar)
        session.poll()
    assert sum(exchange.units.values()) > 0
    world.store.halt(SLOT, "by the operator", sells=True)
    world.clock.wait(10.0)
    session.poll()  # no bar has closed
    assert max(exchange.units.values()) < Decimal("1e-9")  # less than can be sold
    world.store.halt(SLOT, "by the operator, again", sells=True)
    session.poll()
    world.until_close_of(FIRST + 6)
    world.session().poll()  # another process continues
    last = world.lines()[-1]
    assert last.cash == last.value == pytest.approx(float(exchange.cash), abs=1e-9)
    assert (
        last.trades
        >= sum(1 for line in world.store.orders(SLOT) if "-halt" in line.order.client_id)
        > 0
    )
    assert world.store.orders(SLOT, decided=last.time, account=SLOT_ACCOUNT) == []


def test_a_halt_that_keeps_positions_sends_no_orders(tmp_path: Path) -> None:
    world = World(tmp_path, bundle_of(), bars_of(), FIRST)
    session = world.session()
    for bar in range(FIRST, FIRST + 12):
        world.until_close_of(bar)
        if bar == FIRST + 6:
            world.store.halt(SLOT, "wait", sells=False)
        session.poll()
    lines = world.lines()
    assert all(line.units == lines[7].units for line in lines[7:])
    assert sum(lines[7].units.values()) > 0
    assert {line.order.decided for line in world.store.orders(SLOT)} <= {
        line.time for line in lines[:6]
    }


def test_a_new_champion_takes_over_the_positions_at_a_bar(tmp_path: Path) -> None:
    bars = bars_of()
    world = World(tmp_path, bundle_of(), bars, FIRST)
    session = world.session()
    for bar in range(FIRST, FIRST + 5):
        world.until_close_of(bar)
        session.poll()
    heir = small_bundle(
        5,
        tickers=TICKERS[::-1],
        gain=1.5,
        params=dataclasses.replace(PARAMS, fee=0.001, lookback=1),
    )
    world.registry.promote(SLOT, heir, expected=world.bundle.hash, reason="better")
    for bar in range(FIRST + 5, FIRST + 9):
        world.until_close_of(bar)
        session.poll()
    world.until_close_of(FIRST + 9)
    world.session().poll()  # a new process continues
    lines = world.lines()
    assert [line.bundle for line in lines] == [world.bundle.hash] * 5 + [heir.hash] * 5
    assert any("takes over" in text for kind, text in world.told if kind == "swapped")
    # Orders of the old one are filled at the bar at which the new one decides.
    old, new = lines[4], lines[5]
    assert new.trades == len(world.store.orders(SLOT, decided=old.time))
    assert sum(new.units.values()) > 0
    alone = World(tmp_path / "alone", world.bundle, bars, FIRST)
    alone.run()
    assert new.units == alone.lines()[5].units
    assert new.value == alone.lines()[5].value


@pytest.mark.parametrize("what", ["tickers", "timeframe", "files"])
def test_a_champion_that_cannot_take_over_is_refused(tmp_path: Path, what: str) -> None:
    world = World(tmp_path, bundle_of(), bars_of(), FIRST)
    session = world.session()
    world.until_close_of(FIRST)
    session.poll()
    heir = {
        "tickers": lambda: small_bundle(5, tickers=("BTC/USDT", "XRP/USDT")),
        "timeframe": lambda: small_bundle(5, tickers=TICKERS, timeframe="5m"),
        "files": lambda: bundle_of(5),
    }[what]()
    world.registry.promote(SLOT, heir, expected=world.bundle.hash, reason="better")
    if what == "files":
        path = world.registry.path(heir.hash) / "members.safetensors"
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    for bar in range(FIRST + 1, FIRST + 4):
        world.until_close_of(bar)
        session.poll()
    assert {line.bundle for line in world.lines()} == {world.bundle.hash}
    refusals = [text for kind, text in world.told if kind == "swap refused"]
    assert len(refusals) == 1
    [noted] = [event for event in world.registry.events(SLOT) if event.kind == "swap-refused"]
    assert (noted.bundle, noted.reason) == (heir.hash, refusals[0])


@pytest.mark.parametrize("then", ["rollback", "takeover"])
def test_arena_and_monitor_continue_after_a_refused_champion(tmp_path: Path, then: str) -> None:
    world = World(tmp_path, bundle_of(), bars_of(), FIRST)
    session = world.session()
    refused, heir = small_bundle(5, tickers=("BTC/USDT", "XRP/USDT")), bundle_of(6)

    def bars_evaluated(*bars: int) -> dict[str, int]:
        for bar in bars:
            world.until_close_of(bar)
            session.poll()
        trader = world.store.trader(SLOT)
        assert trader is not None
        return dict(trader.state.get("bars", {}))

    assert bars_evaluated(FIRST, FIRST + 1) == {world.bundle.hash: 1}
    world.registry.promote(SLOT, refused, expected=world.bundle.hash, reason="better")
    assert bars_evaluated(FIRST + 2, FIRST + 3) == {world.bundle.hash: 1}
    if then == "rollback":
        world.registry.rollback(SLOT, "cannot take over", Bundle)
        assert bars_evaluated(FIRST + 4, FIRST + 5) == {world.bundle.hash: 3}
    else:
        world.registry.promote(SLOT, heir, expected=refused.hash, reason="better")
        assert bars_evaluated(FIRST + 4, FIRST + 5) == {heir.hash: 1}
    # The same bundle as champion once more: examined, refused and recorded once more.
    champion = world.registry.slot(SLOT).champion
    world.registry.promote(SLOT, refused, expected=champion, reason="better")
    bars_evaluated(FIRST + 6, FIRST + 7)
    assert [kind for kind, _ in world.told].count("swap refused") == 2


def test_bundles_that_are_traded_or_were_traded_are_no_garbage(tmp_path: Path) -> None:
    """The traded bundle may be neither champion nor previous; parity needs the earlier ones."""
    world = World(tmp_path, bundle_of(), bars_of(), FIRST)
    world.begin()
    third, fourth = bundle_of(8), bundle_of(9)
    champion = world.bundle
    for bundle in (bundle_of(7), third, fourth):
        world.registry.promote(SLOT, bundle, expected=champion.hash, reason="better")
        champion = bundle
    removed = {bundle_of(7).name}
    assert {item.path.name for item in clear_garbage(world.registry)} == removed
    world.run()  # continues with the first bundle, and hands over to the champion
    assert {line.bundle for line in world.lines()} == {world.bundle.hash, fourth.hash}
    assert find_garbage(world.registry) == []
    assert max(day.action for day in parity(world.registry, SLOT)) == 0.0


def test_a_champion_whose_dry_run_fails_cannot_take_over(monkeypatch: pytest.MonkeyPatch) -> None:
    heir, history = bundle_of(5), bars_of()
    assert dry_run(heir, history) is None
    monkeypatch.setattr(FrozenPolicy, "act", lambda _self, _obs: np.full(3, np.nan))
    problem = dry_run(heir, history)
    assert problem is not None
    assert "dry run over the last 100 bars failed: the policy of bundle" in problem
    assert "it needs" in str(dry_run(heir, history.slice(LAST - 600, LAST)))


@pytest.mark.parametrize(
    ("symbols", "problem"),
    [
        ({"alpaca": dict.fromkeys(TICKERS, "BTC/USD")}, "are both BTC/USD at Alpaca"),
        ({}, "has no symbols for alpaca: they were unknown when it was made"),
    ],
)
def test_a_champion_without_a_symbol_for_each_ticker_cannot_take_over_at_alpaca(
    tmp_path: Path, exchange: Exchange, symbols: dict[str, dict[str, str]], problem: str
) -> None:
    world = World(tmp_path, bundle_of(), bars_of(), FIRST, exchange)
    world.begin()
    heir = bundle_of(5, symbols=symbols)
    world.registry.promote(SLOT, heir, expected=world.bundle.hash, reason="better")
    world.run()
    assert {line.bundle for line in world.lines()} == {world.bundle.hash}
    [text] = [text for kind, text in world.told if kind == "swap refused"]
    assert problem in text
    traded = Traded.of(world.bundle)
    assert unfit(heir, traded, broker="sim", feed="", shorts=True) is None
    assert problem in str(unfit(heir, traded, broker="sim", feed="alpaca", shorts=True))


def test_two_processes_never_write_for_one_slot(tmp_path: Path) -> None:
    world = World(tmp_path, bundle_of(), bars_of(), FIRST)
    first = world.session()
    world.until_close_of(FIRST)
    first.poll()
    second = world.session()
    world.until_close_of(FIRST + 1)
    with pytest.raises(Replaced, match="is traded by process"):
        first.poll()
    second.poll()
    assert len(world.lines()) == 2


def test_another_broker_is_refused_for_a_traded_slot(tmp_path: Path, exchange: Exchange) -> None:
    world = World(tmp_path, bundle_of(), bars_of(), FIRST)
    world.session()
    world.exchange = exchange
    with pytest.raises(InputError, match="has been traded with --broker sim"):
        world.session()


def test_risk_rules_apply_live_and_are_reported_once(tmp_path: Path) -> None:
    world = World(
        tmp_path, bundle_of(), bars_of(), FIRST, options={"limits": RiskLimits(drawdown=0.001)}
    )
    world.run()
    bars, bundle = world.bars, world.bundle
    expected = replay(bundle, bars, (FIRST, LAST), limits=RiskLimits(drawdown=0.001)).entries
    assert [line.value for line in world.lines()] == [entry.value for entry in expected]
    assert any(entry.verdict.reasons for entry in expected)
    assert 0 < len([text for kind, text in world.told if kind == "risk"]) < 10


def test_stale_data_is_reported_once_and_so_is_its_end(tmp_path: Path) -> None:
    world = World(tmp_path, bundle_of(), bars_of(), FIRST)
    session = world.session()
    world.until_close_of(FIRST)
    session.poll()
    poll, session._feed.poll = session._feed.poll, lambda _now: []  # type: ignore[method-assign]
    for bar in range(FIRST + 1, FIRST + 8):
        world.until_close_of(bar)
        session.poll()
    session._feed.poll = poll  # type: ignore[method-assign]
    session.poll()
    assert [kind for kind, _ in world.told if kind in ("stale", "fresh")] == ["stale", "fresh"]


def test_a_policy_that_returns_nan_ends_the_session_before_it_sends(tmp_path: Path) -> None:
    world = World(tmp_path, bundle_of(), bars_of(), FIRST)
    session = world.session()
    session.machine.own.trader._policies = [lambda _obs: np.full(3, np.nan)]
    world.until_close_of(FIRST)
    with pytest.raises(RunError, match="actions that are not finite"):
        session.poll()
    assert world.lines() == []
    assert world.store.orders(SLOT) == []


def test_refused_keys_after_the_start_do_not_end_the_process(
    tmp_path: Path, exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "PAUSES", (0.0,))
    world = World(tmp_path, bundle_of(), bars_of(FIRST + 6), FIRST, exchange)
    session, first = world.session(), iter([True])
    poll = session.poll

    def poll_and_deny() -> None:
        poll()
        if len(world.lines()) == 2:
            exchange.denied = 401

    session.poll = poll_and_deny  # type: ignore[method-assign]
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        exchange.denied = None

    noted: list[str] = []
    make = lambda: session if next(first, False) else world.session()  # noqa: E731
    runner.keep_trading(make, threading.Event(), say, noted.append)
    assert len(world.lines()) == 6
    assert len(noted) == 1
    assert noted[0].startswith("Alpaca refuses the keys (request is not authorized)")


@pytest.mark.parametrize("gone", ["untradable", "unlisted"])
def test_other_tickers_are_traded_after_one_was_delisted(
    tmp_path: Path, exchange: Exchange, gone: str
) -> None:
    world = World(tmp_path, bundle_of(), bars_of(), FIRST, exchange)
    getattr(exchange, gone).add("ETH/USD")
    with pytest.raises(
        InputError, match="ETH/USDT: Alpaca does not trade ETH/USD; promote a bundle without it"
    ):
        world.session()
    getattr(exchange, gone).clear()
    session = world.session()
    for bar in range(FIRST, FIRST + 4):
        world.until_close_of(bar)
        session.poll()
    getattr(exchange, gone).add("ETH/USD")
    exchange.orders.clear()
    session = world.session()
    for bar in range(FIRST + 4, FIRST + 10):
        world.until_close_of(bar)
        session.poll()
    assert [text for kind, text in world.told if kind == "untradable"] == [
        "ETH/USDT: Alpaca does not trade ETH/USD any more; its position stays, and the other "
        "tickers are traded"
    ]
    assert len(world.lines()) == 10
    traded = {order["symbol"] for order in exchange.orders.values()}
    assert traded
    assert "ETH/USD" not in traded


def test_the_bars_and_the_history_before_them_are_stored_once(tmp_path: Path) -> None:
    """Most feeds keep no bars; candles and the recomputation of decisions need them."""
    bars, bundle = bars_of(holes=0.05), bundle_of()
    world = World(tmp_path, bundle, bars, FIRST)
    world.begin()
    world.run()  # another process continues
    records = Records(world.registry.database)
    for asset, ticker in enumerate(TICKERS):
        stored = records.candles(SLOT, ticker, since=0, until=int(bars.time[-1]) + 1)
        first = len(bars) - len(stored.time)
        assert FIRST - first >= bundle.trials[0].params.lookback + 400, "the recipe's memory"
        for name in ("time", *COLUMNS):
            given = getattr(bars, name)[first:]
            assert (getattr(stored, name) == (given if given.ndim == 1 else given[:, asset])).all()
