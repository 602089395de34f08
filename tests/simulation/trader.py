"""A slot's trader, simulated: the real session, machine and rows, with a virtual venue and market.

A process trades the slot on one machine and is started again after its end. Later, another machine
starts one too, which takes over. Each transaction, request of the venue and poll of the feed is an
effect. The venue fills orders at once, some in part, and refuses a client id that it knows.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.brokers.base import AccountState, Broker, Fill, Order
from sweepd.deploy.trading.closed_bar import ClosedBar
from sweepd.deploy.trading.feeds import RecordedFeed
from sweepd.deploy.trading.live.clock import Clock
from sweepd.deploy.trading.live.events import TraderOptions
from sweepd.deploy.trading.live.records import (
    ACCOUNT_BARS,
    ORDERS,
    SLOT_ACCOUNT,
    TRADERS,
    OrderRecord,
)
from sweepd.deploy.trading.live.session import LiveSession
from sweepd.deploy.trading.live.store import Replaced
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.data.timeframe import bar_end
from sweepd.envs.crypto.params import EnvParams
from sweepd.envs.support.errors import RunError
from sweepd.envs.support.supervisor import Supervisor
from tests.deploy.builders import small_bundle
from tests.deploy.trading.test_paper_trader import market_bars
from tests.simulation import invariants
from tests.simulation.memory import MemoryRegistry, nothing
from tests.simulation.scheduler import Fault, Process, Scheduler

SLOT, TICKERS = "crypto-1h", ("BTC/USD", "ETH/USD")
FIRST, BARS = 640, 8  # the first traded bar, and the number of bars
HEIR_AT, HALT_AT = 3, 5  # bars at which the champion changes, and an operator halts for one bar
SECOND_AT = 4.5  # bars after which another machine starts a trader, too
RESTART, RETRY = 60.0, 15.0
FEE, SPREAD = 0.0025, 0.001
NEARLY = 1e-7  # relative
PARAMS = EnvParams(action_scale=0.4, max_holding_bars=3, max_holding_fraction=0.5, lookback=2)


@functools.cache
def _market() -> tuple[Bars, dict[str, Bundle]]:
    """The bars, and the bundles by hash: the first champion and its heir."""
    bars = market_bars(1, bars=FIRST + BARS)
    count = len(bars.tickers)
    places = list(range(count))[: len(TICKERS)]
    columns = {
        name: getattr(bars, name)[:, places]
        for name in ("open", "high", "low", "close", "volume", "hole")
    }
    bars = dataclasses.replace(bars, tickers=TICKERS, **columns)
    made = [small_bundle(seed, tickers=TICKERS, gain=1.5, params=PARAMS) for seed in (0, 1)]
    return bars, {one.hash: one for one in made}


class Exchange:
    """The venue: one account, which every process reaches.

    Args:
        world: knows the time and the record.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.cash, self.units = 10_000.0, dict.fromkeys(TICKERS, 0.0)
        self.fills: dict[str, Fill] = {}

    def execute(self, order: Order) -> None:
        """Fill an order at once. ValueError: its client id is known."""
        if order.client_id in self.fills:
            raise ValueError(f"order {order.client_id} was sent before")
        self._world.check_order(order)
        price = self._world.price(order.ticker)
        part = 0.4 if self._world.scheduler.tape.choose(len(Fault)) == 1 else 1.0
        if order.side == "buy":
            notional = min(order.notional * part, self.cash)
            slipped = price * (1.0 + SPREAD)
            units = notional / slipped * (1.0 - FEE)
            self.cash -= notional
            self.units[order.ticker] += units
            fill = Fill(order, "filled", 0, units, notional, notional * FEE, slipped)
        else:
            slipped = price * (1.0 - SPREAD)
            units = min(order.units * part, self.units[order.ticker])
            notional = units * slipped
            self.cash += notional * (1.0 - FEE)
            self.units[order.ticker] -= units
            fill = Fill(order, "filled", 0, units, notional, notional * FEE, slipped)
        self.fills[order.client_id] = dataclasses.replace(fill, at=int(self._world.market_time))


class VirtualBroker(Broker):
    """A process's line to the exchange; each request is an effect."""

    paper = "a simulated venue"
    immediate = True
    venue_account = "V1"

    def __init__(self, world: World) -> None:
        self._world, self._sent = world, list[Order]()

    def account(self) -> AccountState:
        self._world.request("account")
        exchange = self._world.exchange
        return AccountState(exchange.cash, dict(exchange.units))

    def submit(self, orders: Sequence[Order]) -> None:
        for order in orders:
            fault = self._world.scheduler.effect(f"order {order.client_id}")
            if fault is Fault.REFUSED:
                raise RunError("the venue does not answer")
            self._world.exchange.execute(order)
            self._sent.append(order)
            if fault is Fault.ANSWER_LOST:
                raise RunError("the venue's answer is lost")

    def adopt(self, orders: Sequence[Order], *, final: bool = False) -> list[Order]:
        del final
        self._world.request("orders")
        known = self._world.exchange.fills
        self._sent += [order for order in orders if order.client_id in known]
        return [order for order in orders if order.client_id not in known]

    def fills(self) -> list[Fill]:
        if not self._sent:
            return []
        self._world.request("fills")
        known = [self._world.exchange.fills[order.client_id] for order in self._sent]
        self._sent = []
        return known


class VirtualFeed(RecordedFeed):
    """Bars as the market closes them, whatever this machine's clock says."""

    def __init__(self, world: World, bars: Bars) -> None:
        super().__init__(bars)
        self._world = world

    def start(self, count: int, now: float, *given: Any) -> Bars:
        del now
        self._world.request("history")
        return super().start(count, self._world.market_time, *given)

    def poll(self, now: float) -> list[ClosedBar]:
        del now
        self._world.request("bars")
        return super().poll(self._world.market_time)


class VirtualClock(Clock):
    """This machine's clock, which faults may set."""

    def __init__(self, world: World, process: Process) -> None:
        super().__init__()
        self._world, self._process = world, process
        self.patience = 600.0

    def now(self) -> float:
        return self._world.market_time + self._world.scheduler.clock_error

    def wait(self, seconds: float) -> None:
        # A clock that is wrong makes it poll every few seconds: fewer polls make shorter runs.
        self._world.scheduler.wait(max(seconds, 120.0))
        if self._process.stopping:
            self.stop.set()


class World:
    """A slot, its market, its venue and the machines that trade it.

    Args:
        scheduler: decides what happens.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.bars, self.bundles = _market()
        # Kills between two writes cover those at reads.
        self.database = MemoryRegistry(scheduler, rows=nothing, check=nothing, reads=False)
        self.exchange = Exchange(self)
        self.champion, self._heir = self.bundles
        self._halted = False

    def run(self) -> None:
        """Trade all bars. Raises Violation."""
        self._start("a", 0.0)
        self._start("b", SECOND_AT * 3600.0)
        operator = Process("operator", "c")
        self.scheduler.spawn(operator, self._promote, HEIR_AT * 3600.0 + 60.0)
        self.scheduler.spawn(operator, self._halt, HALT_AT * 3600.0 + 60.0)
        self.scheduler.run()
        self._check_end()

    # ---- time and prices ----

    @property
    def market_time(self) -> float:
        """Seconds since the epoch, as the venue and the feed have it."""
        return float(self.bars.time[FIRST]) + self.scheduler.now

    def price(self, ticker: str) -> float:
        """Return the open of the present bar."""
        bar = int(self.bars.time.searchsorted(self.market_time, side="right")) - 1
        return float(self.bars.open[min(bar, len(self.bars) - 1)][TICKERS.index(ticker)])

    def request(self, what: str) -> None:
        """A request that changes nothing; RunError if it fails."""
        if self.scheduler.effect(what) in (Fault.REFUSED, Fault.ANSWER_LOST):
            raise RunError(f"{what}: no answer")

    # ---- processes ----

    def _start(self, host: str, after: float, starts: int = 0) -> None:
        process = Process(f"{host}.{starts}", host)
        finished = list[bool]()

        def work() -> None:
            if self._trade(process):
                finished.append(True)
            process.dead = True

        def ended() -> None:
            if not finished:
                self._start(host, RESTART, starts + 1)

        process.ended = ended
        self.scheduler.spawn(process, work, after)

    def _trade(self, process: Process) -> bool:
        """Do what `keep_trading` does; return whether no later start is needed."""
        while True:
            try:
                session = LiveSession(
                    SLOT,
                    TraderOptions(broker="venue", feed="recorded"),
                    self._registry(),
                    make_broker=lambda _bundle: VirtualBroker(self),
                    make_feed=lambda _bundle: VirtualFeed(self, self.bars),
                    clock=VirtualClock(self, process),
                    tell=lambda kind, text: self.scheduler.say(f"{kind}: {text}"),
                    supervisor=Supervisor({}),
                )
                session.run()
            except Replaced:
                self.scheduler.say("replaced")
                return True
            except RunError as error:
                self.scheduler.say(f"ends: {error}")
                if process.stopping:
                    return False
                self.scheduler.wait(RETRY)
                continue
            return not process.stopping

    def _registry(self) -> Registry:
        """What a session uses of a registry, for the present champion."""
        champion = lambda: SimpleNamespace(  # noqa: E731
            champion=self.champion, previous=None, challengers=()
        )
        found = SimpleNamespace(
            database=self.database,
            slot=lambda _slot: champion(),
            require=lambda _slot: champion(),
            bundle=lambda hash_, _kind: self.bundles[hash_],
            arena=SimpleNamespace(seats=lambda _slot: ()),
            evaluations=SimpleNamespace(holdout_span=lambda _hash: None),
            data_dir=lambda _hash: None,
        )
        return cast(Registry, found)

    def _promote(self) -> None:
        self.champion = self._heir

    def _halt(self) -> None:
        self._write_halt("by the operator", sells=True)
        self.scheduler.wait(3600.0)
        self._write_halt(None, sells=False)

    def _write_halt(self, reason: str | None, *, sells: bool) -> None:
        with self.database.engine.begin() as connection:
            connection.execute(TRADERS.update(slot=SLOT).values(halt=reason, halt_sells=sells))

    # ---- what must hold ----

    def check_order(self, order: Order) -> None:
        """An order is committed before it is sent, and its bar has closed."""
        with self.database.engine.connect() as connection:
            known = ORDERS.get(connection, client_id=order.client_id)
        invariants.require(known, f"{order.client_id} was sent before it was committed")
        end = bar_end(self.bars.timeframe, order.decided)
        open_ = end > self.market_time
        invariants.require(not open_, f"{order.client_id} was decided in an open bar")

    def _check_end(self) -> None:
        with self.database.engine.connect() as connection:
            lines = ACCOUNT_BARS.read(
                connection,
                ACCOUNT_BARS.select(ACCOUNT_BARS.c.account == SLOT_ACCOUNT).order_by(
                    ACCOUNT_BARS.c.time
                ),
            )
            orders = ORDERS.read(connection, ORDERS.select(ORDERS.c.account == SLOT_ACCOUNT))
        expected = self.bars.time[FIRST:].tolist()
        times = [line.time for line in lines]
        # Before its first bar, a trader begins wherever the market is.
        whole = times and times == expected[-len(times) :]
        invariants.require(whole, f"the account has bars {times}, not {expected}")
        known = {one.client_id: one for one in orders}
        for client_id, fill in self.exchange.fills.items():
            self._check_result(known.get(client_id), fill)
        for client_id, one in known.items():
            filled = one.status == "filled"
            executed = client_id in self.exchange.fills
            invariants.require(
                not filled or executed, f"{client_id} is recorded as filled, and is not"
            )
            last = one.decided == lines[-1].time
            text = f"the result of {client_id} is not known"
            invariants.require(one.status != "intended" or last, text)
        self._check_ledger(lines[-1].cash, lines[-1].units, known, lines[-1].time)

    def _check_result(self, one: OrderRecord | None, fill: Fill) -> None:
        name = fill.order.client_id
        invariants.require(one, f"{name} was executed, and is not recorded")
        assert one is not None
        # The results of the last bar's orders may not have been written any more.
        if one.status == "intended" and one.decided == int(self.bars.time[-1]):
            return
        same = (one.status, one.filled_units, one.filled_notional) == (
            fill.status,
            fill.units,
            fill.notional,
        )
        invariants.require(
            same, f"{name}: {one.status} {one.filled_units}, and really {fill.units}"
        )

    def _check_ledger(
        self, cash: float, units: dict[str, float], known: dict[str, OrderRecord], last: int
    ) -> None:
        """The books after the last bar, with the orders that followed it, are the venue's."""
        held = dict(units)
        for client_id, fill in self.exchange.fills.items():
            if known[client_id].decided != last:
                continue
            sign = 1.0 if fill.order.side == "buy" else -1.0
            held[fill.order.ticker] += sign * fill.units
            cash -= fill.notional if sign > 0.0 else -(fill.notional - fill.fee)
        text = f"the ledger has {cash} and {held}, the venue {self.exchange.cash} and"
        near = abs(cash - self.exchange.cash) <= NEARLY * 10_000.0
        near &= all(
            abs(held[name] - self.exchange.units[name]) <= NEARLY * max(1.0, held[name])
            for name in TICKERS
        )
        invariants.require(near, f"{text} {self.exchange.units}")


def simulate(scheduler: Scheduler) -> None:
    """Simulate a trader. Raises Violation."""
    World(scheduler).run()
