"""Queries of long records: filtered, counted, paged and streamed, without loading everything."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Select, Subquery, case, func, literal, null, select, union_all

from sweepd.deploy.registry.database import RegistryDatabase
from sweepd.deploy.registry.records import EVENTS
from sweepd.deploy.trading.closed_bar import COLUMNS
from sweepd.deploy.trading.live.records import (
    ACCOUNT_BARS,
    INTENDED,
    ORDERS,
    TRADER_BARS,
    TRADER_EVENTS,
    Adjustment,
    OrderRecord,
)
from sweepd.deploy.trading.live.revisions import units_moment, units_since
from sweepd.envs.crypto.data.bars import Bars

Array = NDArray[np.float64]
FOREVER = 2**62
STREAMED = 1_000  # rows in memory while a table is streamed
ORDER_STATUSES = ("filled", "unfilled", INTENDED)
Source = Literal["trader", "registry"]


@dataclass(frozen=True)
class OrderFilter:
    """Which orders of a slot. first, last: opens of bars at which they were decided, inclusive."""

    slot: str
    account: str
    ticker: str = ""
    side: str = ""
    status: str = ""
    first: int | None = None
    last: int | None = None

    def clauses(self) -> list[ColumnElement[bool]]:
        """Return the conditions."""
        row = ORDERS.c
        found = [row.slot == self.slot, row.account == self.account]
        for name in ("ticker", "side", "status"):
            if getattr(self, name):
                found.append(row[name] == getattr(self, name))
        if self.first is not None:
            found.append(row.decided >= self.first)
        if self.last is not None:
            found.append(row.decided <= self.last)
        return found


class Mark(NamedTuple):
    """Fills of one side in an interval; at: the first of them. price: average per unit."""

    side: str
    at: int
    fills: int
    units: float
    price: float
    notional: float
    fee: float


@dataclass(frozen=True)
class EventFilter:
    """Which events of a slot. text: contained, in any case. first, last: UTC text, inclusive."""

    slot: str
    kinds: Sequence[str] = ()
    source: str = ""
    text: str = ""
    first: str = ""
    last: str = ""


class EventRecord(NamedTuple):
    """An event of a slot's trader or of its history in the registry."""

    at: str
    source: Source
    number: int
    bar: int | None
    kind: str
    text: str


@dataclass(frozen=True, eq=False)
class Candles:
    """A ticker's bars, (n,) each; time in seconds since the epoch. hole: it had no bar."""

    time: NDArray[np.int64]
    open: Array
    high: Array
    low: Array
    close: Array
    volume: Array
    hole: NDArray[np.bool_]


class Records:
    """Queries of what traders and registry stored."""

    def __init__(self, database: RegistryDatabase) -> None:
        self._database = database

    # ---- orders ----

    def count_orders(self, wanted: OrderFilter) -> int:
        """Return the number of orders."""
        return self._count(select(ORDERS.c.client_id).where(*wanted.clauses()))

    def orders(
        self, wanted: OrderFilter, *, offset: int = 0, limit: int | None = None
    ) -> list[OrderRecord]:
        """Return orders, the newest first."""
        query = self._orders(wanted).offset(offset).limit(limit)
        return [OrderRecord(*row) for row in self._rows(query)]

    def stream_orders(self, wanted: OrderFilter) -> Iterator[OrderRecord]:
        """Yield orders, the newest first, without loading all of them."""
        yield from (OrderRecord(*row) for row in self._stream(self._orders(wanted)))

    def order_tickers(self, slot: str) -> list[str]:
        """Return the tickers of a slot's newest bar and of its orders."""
        row = TRADER_BARS.c
        # A scan of all bars would take long.
        newest = select(func.max(row.time)).where(row.slot == slot).scalar_subquery()
        bars = select(row.ticker).where(row.slot == slot, row.time == newest)
        orders = select(ORDERS.c.ticker).where(ORDERS.c.slot == slot)
        return sorted({row[0] for row in self._rows(bars.union(orders))})

    def marks(
        self,
        slot: str,
        account: str,
        ticker: str,
        *,
        since: int,
        until: int,
        seconds: int,
        adjustments: Sequence[Adjustment] = (),
        immediate: bool = False,
    ) -> list[Mark]:
        """Return the fills in since <= at < until, joined by side and interval of `seconds`.

        Args:
            slot: the slot.
            account: its name.
            ticker: the asset.
            since: first moment.
            until: the moment after the last one.
            seconds: of an interval.
            adjustments: changes of units that are followed.
            immediate: whether the account's orders are filled when they are sent.
        """
        row = ORDERS.c
        start = row.at - row.at % seconds
        units = row.filled_units * _per_unit(ticker, adjustments, immediate=immediate)
        worth = func.sum(row.price * row.filled_units)
        columns = (
            row.side,
            func.min(row.at),
            func.count(),
            func.sum(units),
            worth,
            func.sum(row.filled_notional),
            func.sum(row.fee),
        )
        query = (
            select(*columns)
            .where(
                row.slot == slot,
                row.account == account,
                row.ticker == ticker,
                row.filled_units > 0.0,
                row.at >= since,
                row.at < until,
            )
            .group_by(row.side, start)
            .order_by(start)
        )
        return [
            Mark(side, at, fills, units, total / units, notional, fee)
            for side, at, fills, units, total, notional, fee in self._rows(query)
        ]

    def settled(self, slot: str, account: str) -> tuple[int, int]:
        """Return the number of an account's filled orders and the last moment of one.

        Both change whenever its round trips do.
        """
        row = ORDERS.c
        query = select(func.count(), func.coalesce(func.max(row.at), 0)).where(
            row.slot == slot, row.account == account, row.status == "filled"
        )
        count, last = self._rows(query)[0]
        return int(count), int(last)

    def _orders(self, wanted: OrderFilter) -> Select[Any]:
        query = ORDERS.select(*wanted.clauses())
        return query.order_by(ORDERS.c.decided.desc(), ORDERS.c.client_id.desc())

    # ---- events ----

    def count_events(self, wanted: EventFilter) -> int:
        """Return the number of events."""
        return self._count(self._events(wanted).order_by(None))

    def events(
        self, wanted: EventFilter, *, offset: int = 0, limit: int | None = None
    ) -> list[EventRecord]:
        """Return events, the newest first."""
        query = self._events(wanted).offset(offset).limit(limit)
        return [EventRecord(*row) for row in self._rows(query)]

    def stream_events(self, wanted: EventFilter) -> Iterator[EventRecord]:
        """Yield events, the newest first, without loading all of them."""
        yield from (EventRecord(*row) for row in self._stream(self._events(wanted)))

    def event_kinds(self, slot: str) -> list[str]:
        """Return the kinds that a slot's events have."""
        found = _all_events(slot)
        return [
            row[0] for row in self._rows(select(found.c.kind).distinct().order_by(found.c.kind))
        ]

    def _events(self, wanted: EventFilter) -> Select[Any]:
        found = _all_events(wanted.slot)
        query = select(*(found.c[name] for name in EventRecord._fields))
        if wanted.kinds:
            query = query.where(found.c.kind.in_(wanted.kinds))
        if wanted.source:
            query = query.where(found.c.source == wanted.source)
        if wanted.text:
            query = query.where(
                func.lower(found.c.text).contains(wanted.text.lower(), autoescape=True)
            )
        if wanted.first:
            query = query.where(found.c.at >= wanted.first)
        if wanted.last:
            query = query.where(found.c.at <= wanted.last)
        return query.order_by(found.c.at.desc(), found.c.source, found.c.number.desc())

    # ---- bars and lines ----

    def candles(
        self,
        slot: str,
        ticker: str,
        *,
        since: int,
        until: int,
        adjustments: Sequence[Adjustment] = (),
    ) -> Candles:
        """Return a ticker's bars that opened in since <= time < until, oldest first.

        They are in the units in which they were seen, unless `adjustments` are given to follow.
        """
        row = TRADER_BARS.c
        names = Candles.__dataclass_fields__
        query = (
            select(*(row[name] for name in names))
            .where(row.slot == slot, row.ticker == ticker, row.time >= since, row.time < until)
            .order_by(row.time)
        )
        # Tuples: numpy takes ten times as long to read the database's rows.
        found = [tuple(row) for row in self._rows(query)]
        columns = np.array(found, dtype=np.float64).reshape(len(found), len(names)).T
        for one in adjustments:
            rows = (columns[0] <= one.time) & (one.ticker == ticker)
            columns[1:5, rows] *= one.price
            columns[5, rows] *= one.volume
        time, hole = columns[0].astype(np.int64), columns[6].astype(np.bool_)
        return Candles(time, columns[1], columns[2], columns[3], columns[4], columns[5], hole)

    def bars(
        self,
        slot: str,
        timeframe: str,
        tickers: Sequence[str],
        *,
        since: int = 0,
        until: int = FOREVER,
    ) -> Bars:
        """Return the bars that a slot's trader stored, as they were seen, in the tickers' order.

        Args:
            slot: the slot.
            timeframe: of its bars.
            tickers: those of its bundles.
            since: the first opening time.
            until: the moment after the last opening time.
        """
        found = [self.candles(slot, one, since=since, until=until) for one in tickers]
        time = functools.reduce(np.intersect1d, [one.time for one in found])
        kept = [np.isin(one.time, time) for one in found]
        columns = {
            name: np.stack(
                [getattr(one, name)[mask] for one, mask in zip(found, kept, strict=True)], axis=1
            )
            for name in COLUMNS
        }
        return Bars(
            tickers=tuple(tickers), timeframe=timeframe, time=time, synthetic=False, **columns
        )

    def closes(self, slot: str, time: int) -> dict[str, float]:
        """Return the closes of the bar that opened at `time`, by ticker."""
        row = TRADER_BARS.c
        query = select(row.ticker, row.close).where(row.slot == slot, row.time == time)
        return {str(ticker): float(close) for ticker, close in self._rows(query)}

    def bars_before(self, slot: str, ticker: str, moment: int, count: int) -> int:
        """Return the open of the bar that is `count` bars before `moment`, or of the oldest."""
        row = TRADER_BARS.c
        before = (
            select(row.time)
            .where(row.slot == slot, row.ticker == ticker, row.time < moment)
            .order_by(row.time.desc())
            .limit(count)
            .subquery()
        )
        found = self._rows(select(func.min(before.c.time)))[0][0]
        return moment if found is None else int(found)

    def lines(
        self, slot: str, account: str, times: Sequence[int]
    ) -> dict[int, tuple[float, Mapping[str, float]]]:
        """Return value and units of an account's lines of some bars (opens), by bar."""
        row = ACCOUNT_BARS.c
        query = select(row.time, row.value, row.units).where(
            row.slot == slot, row.account == account, row.time.in_(times)
        )
        return {int(time): (float(value), units) for time, value, units in self._rows(query)}

    def bar_span(self, slot: str) -> tuple[int, int] | None:
        """Return the opens of the oldest and the newest stored bar."""
        row = TRADER_BARS.c
        query = select(func.min(row.time), func.max(row.time)).where(row.slot == slot)
        first, last = self._rows(query)[0]
        return None if first is None else (int(first), int(last))

    def holdings(
        self, slot: str, account: str
    ) -> list[tuple[int, float, float, Mapping[str, float]]]:
        """Return time, value, transfers and units of the lines that round trips must settle.

        These are the account's first line, its lines with a transfer, and its last one.
        """
        row = ACCOUNT_BARS.c
        own = (row.slot == slot, row.account == account)
        ends = select(func.min(row.time)).where(*own).union(select(func.max(row.time)).where(*own))
        query = (
            select(row.time, row.value, row.flow, row.units)
            .where(*own, (row.flow != 0.0) | row.time.in_(ends))
            .order_by(row.time)
        )
        return [
            (int(at), float(value), float(flow), units)
            for at, value, flow, units in self._rows(query)
        ]

    # ---- the database ----

    def _count(self, query: Select[Any]) -> int:
        return int(self._rows(select(func.count()).select_from(query.subquery()))[0][0])

    def _rows(self, query: Any) -> list[Any]:
        with self._database.reading() as connection:
            return list(connection.execute(query))

    def _stream(self, query: Any) -> Iterator[Any]:
        with self._database.reading() as connection:
            yield from connection.execution_options(yield_per=STREAMED).execute(query)


def _per_unit(
    ticker: str, adjustments: Sequence[Adjustment], *, immediate: bool
) -> ColumnElement[float] | float:
    """Return the present units of one unit of an order's result, as an expression."""
    moment = ORDERS.c.decided + units_moment(0, immediate=immediate)
    times = sorted({one.time for one in adjustments if one.ticker == ticker})
    if not times:
        return 1.0
    whens = [(moment <= at, 1.0 / units_since(adjustments, ticker, at)[0]) for at in times]
    return case(*whens, else_=1.0)


def _all_events(slot: str) -> Subquery:
    """The events of a slot's trader, and those of its history in the registry."""
    trader, registry = TRADER_EVENTS.c, EVENTS.c
    return union_all(
        select(
            trader.at,
            literal("trader").label("source"),
            trader.id.label("number"),
            trader.bar,
            trader.kind,
            trader.text,
        ).where(trader.slot == slot),
        select(
            registry.at, literal("registry"), registry.id, null(), registry.kind, registry.reason
        ).where(registry.slot == slot),
    ).subquery()
