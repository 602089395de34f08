"""A slot with a market that advances by leaps and a trader that can be killed at any step.

A kill is an exception that no code of the trader catches: everything that was committed or sent
before it has happened, nothing after it has. The next session starts from the database and the
broker alone, as another process would.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import exchange_calendars
import numpy as np
import pandas as pd
import pytest

import sweepd.deploy.trading.live.session as session_module
from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.registry.database import RegistryDatabase
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.brokers.alpaca import COIN_ORDERS, SHARE_ORDERS, AlpacaBroker
from sweepd.deploy.trading.brokers.base import AccountState, Broker, Fill, Order
from sweepd.deploy.trading.brokers.sim import sim_broker
from sweepd.deploy.trading.feeds import Feed, RecordedFeed
from sweepd.deploy.trading.live.clock import LeapingClock
from sweepd.deploy.trading.live.events import TraderOptions
from sweepd.deploy.trading.live.records import SLOT_ACCOUNT, AccountBar, Changes
from sweepd.deploy.trading.live.session import LiveSession
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.data.timeframe import bar_end, bar_ends, bar_length, calendar_of, has_hours
from sweepd.envs.support.supervisor import Supervisor
from tests.deploy.alpaca_server import Exchange

SLOT = "crypto-1h"


class Killed(BaseException):
    """The process is gone."""


@dataclass
class Killer:
    """Ends the process at its `at`-th step. steps: how many there were."""

    at: int | None = None
    steps: int = 0

    def step(self) -> None:
        """Count a step, and end the process at the chosen one."""
        self.steps += 1
        if self.steps == self.at:
            raise Killed


class KillableStore(TraderStore):
    """A database at which the process may be killed before and after each transaction."""

    def __init__(self, database: RegistryDatabase, killer: Killer) -> None:
        super().__init__(database)
        self._killer = killer

    def commit(self, slot: str, token: str, changes: Changes) -> None:
        self._killer.step()
        super().commit(slot, token, changes)
        self._killer.step()


class KillableBroker(Broker):
    """A broker at which the process may be killed before each call and each order."""

    paper = "the account of another broker"

    def __init__(self, inner: Broker, killer: Killer) -> None:
        self.inner, self.killer, self.immediate = inner, killer, inner.immediate
        self.venue_account, self.untradable = inner.venue_account, inner.untradable

    def account(self) -> AccountState:
        return self.inner.account()

    def fills_now(self) -> bool:
        return self.inner.fills_now()

    def parts(self, order: Order, price: float) -> Sequence[Order]:
        return self.inner.parts(order, price)

    def submit(self, orders: Sequence[Order]) -> None:
        for order in orders:
            self.killer.step()
            self.inner.submit([order])
        self.killer.step()

    def adopt(self, orders: Sequence[Order], *, final: bool = False) -> list[Order]:
        self.killer.step()
        return self.inner.adopt(orders, final=final)

    def fills(self) -> list[Fill]:
        self.killer.step()
        return self.inner.fills()


class MarketClock(LeapingClock):
    """A clock that also sets the exchange's prices to the bars' opens.

    A market with hours opens and closes; what waits for the opening is filled there, at the first
    bar's open.
    """

    def __init__(self, start: float, bars: Bars, exchange: Exchange | None) -> None:
        super().__init__(start)
        self._bars, self._exchange, self._before = bars, exchange, start
        self._follow()

    def wait(self, seconds: float) -> None:
        super().wait(seconds)
        self._follow()

    def _follow(self) -> None:
        if self._exchange is None:
            return
        frame, bars = self._bars.timeframe, self._bars
        if has_hours(frame):
            if self._exchange.waiting:
                decided = int(np.searchsorted(bar_ends(frame, bars.time), self._before, "right"))
                if decided < len(bars) and opening_of(frame, int(bars.time[decided])) <= self._now:
                    self._price(decided)
                    self._exchange.open_market()
            self._exchange.is_open = is_open(frame, self._now)
        bar = int(np.searchsorted(bars.time, self._now, side="right")) - 1
        self._price(min(bar, len(bars) - 1))
        self._before = self._now

    def _price(self, bar: int) -> None:
        assert self._exchange is not None
        for ticker, price in zip(self._bars.tickers, self._bars.open[bar], strict=True):
            self._exchange.prices[symbol_of(ticker, self._bars.timeframe)] = Decimal(
                repr(float(price))
            )


def symbol_of(ticker: str, timeframe: str) -> str:
    """Return Alpaca's symbol: BTC/USD of BTC/USDT, and AAPL of AAPL/USD with a calendar."""
    return ticker.partition("/")[0] if has_hours(timeframe) else ticker.replace("USDT", "USD")


def is_open(timeframe: str, now: float) -> bool:
    """Return whether a market with hours is open, by the library's own calendar."""
    minute = pd.Timestamp(now, unit="s", tz="UTC").floor("min")
    calendar = exchange_calendars.get_calendar(calendar_of(timeframe))
    return bool(calendar.is_trading_minute(minute))


def opening_of(timeframe: str, time: int) -> int:
    """Return when trading begins in a bar, by the library's own calendar."""
    if bar_length(timeframe) != "1d":
        return time
    calendar = exchange_calendars.get_calendar(calendar_of(timeframe))
    return int(calendar.session_open(pd.Timestamp(time, unit="s")).timestamp())


@dataclass
class World:
    """A slot, its market and its trader's processes. first: the first traded bar."""

    folder: Path
    bundle: Bundle
    bars: Bars
    first: int
    exchange: Exchange | None = None
    options: dict[str, Any] = field(default_factory=dict)
    told: list[tuple[str, str]] = field(default_factory=list)
    make_feed: Callable[[Bundle], Feed] | None = None
    slot: str = SLOT

    def __post_init__(self) -> None:
        self.registry = Registry(self.folder)
        if self.registry.slot(self.slot).champion is None:
            self.registry.promote(self.slot, self.bundle, expected=None, reason="test")
        self.store = TraderStore(self.registry.database)
        # The first look finds the history up to the bar before; the next one the first bar.
        self.clock = MarketClock(float(self.bars.time[self.first]), self.bars, self.exchange)

    def session(self, killer: Killer | None = None, **changes: Any) -> LiveSession:
        """Return the session of a new process. changes: other options of the trader."""
        killer = killer or Killer()
        name = "sim" if self.exchange is None else "alpaca"
        options = TraderOptions(broker=name, feed="recorded", **(self.options | changes))
        session_module.TraderStore = lambda database: KillableStore(database, killer)  # type: ignore
        return LiveSession(
            self.slot,
            options,
            self.registry,
            make_broker=lambda bundle: self._broker(bundle, killer),
            make_feed=self.make_feed or (lambda _bundle: RecordedFeed(self.bars)),
            clock=self.clock,
            tell=lambda kind, text: self.told.append((kind, text)),
            supervisor=Supervisor({}),
        )

    def begin(self) -> None:
        """Process the first bar in a process of its own."""
        session = self.session()
        self.until_close_of(self.first)
        session.poll()

    def copy(self, folder: Path) -> World:
        """Copy the slot, with everything that its processes know, to another folder."""
        self.registry.database.engine.dispose()
        shutil.copytree(self.folder, folder)
        world = dataclasses.replace(self, folder=folder, told=[])
        world.clock.wait(self.clock.now() - world.clock.now())
        return world

    def run(self, killer: Killer | None = None, **changes: Any) -> None:
        """Trade until the bars are over."""
        self.session(killer, **changes).run()

    def killed_at(self, step: int, folder: Path) -> World:
        """Return a copy in `folder / str(step)` that was killed at that step, and then ran again."""
        world = self.copy(folder / str(step))
        with pytest.raises(Killed):
            world.run(Killer(step))
        world.run()
        return world

    def until_close_of(self, bar: int) -> None:
        """Advance the market to two seconds after that bar's end, without a trader."""
        end = bar_end(self.bars.timeframe, int(self.bars.time[bar]))
        self.clock.wait(end + 2.0 - self.clock.now())

    def lines(self, account: str = SLOT_ACCOUNT) -> list[AccountBar]:
        """Return the lines of an account."""
        return self.store.account_bars(self.slot, account)

    def orders(self) -> list[tuple[Any, ...]]:
        """Return every order with its result, without times of the real clock."""
        return [
            (line.account, line.order, fill and (fill.status, fill.units, fill.notional, fill.fee))
            for line in self.store.orders(self.slot)
            for fill in [line.fill]
        ]

    def _broker(self, bundle: Bundle, killer: Killer) -> Broker:
        if self.exchange is None:
            return sim_broker(bundle)
        frame = bundle.manifest.timeframe
        broker = AlpacaBroker(
            {ticker: symbol_of(ticker, frame) for ticker in bundle.manifest.tickers},
            SHARE_ORDERS if has_hours(frame) else COIN_ORDERS,
            key="key",
            secret="secret",
            fee=0.0 if has_hours(frame) else 0.0025,
            url=self.exchange.url,
            patience=2.0,
            timeout=2.0,
            sleep=lambda _: None,
        )
        return KillableBroker(broker, killer)
