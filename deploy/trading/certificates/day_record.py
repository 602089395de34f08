"""A day of a slot's own account with everything that it followed from, as JSON objects.

A day begins with the event before which the machine's snapshot was stored, its first bar, and ends
before the next such event. The record of a day that is over never changes, so it can be read again
at any time, and hashed.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import ColumnElement, func, select

from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.closed_bar import COLUMNS
from sweepd.deploy.trading.live.queries import Records
from sweepd.deploy.trading.live.records import (
    ACCOUNT_BARS,
    BENCHMARK,
    ORDERS,
    SLOT_ACCOUNT,
    TRADER_INPUTS,
    TraderInput,
)
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.data.timeframe import DAY, later
from sweepd.envs.support.errors import InputError

Record = Mapping[str, Any]  # of JSON's types


@dataclass(frozen=True)
class Span:
    """A day that is over: its start, and the numbers of its first event and of the next day's."""

    day: int
    first: int
    end: int


@dataclass(frozen=True)
class DayRecord:
    """What a day is recomputed from.

    Attributes:
        slot: the slot.
        day: start of the UTC day, seconds since the epoch.
        state: the trader's before the day, see `own_state`.
        after: likewise after the day, as stored.
        records: by kind:

            history      bars before the day, as they were seen
            bars         the day's
            adjustments  changes of units before the day, which the history follows
            start        the start of the process before the day; none if the day begins with one
            inputs       the day's events
            orders       of the account, decided in the day
            lines        of the account, from the last one before the day on
    """

    slot: str
    day: int
    state: Record
    after: Record
    records: Mapping[str, Sequence[Record]]


def own_state(snapshot: Record) -> dict[str, Any]:
    """Return the part of a machine's snapshot that its own account and the benchmarks decide.

    Events that matter only to challengers are counted in its number, which is left out.
    """
    state = {name: value for name, value in snapshot["state"].items() if name != "number"}
    kinds = (SLOT_ACCOUNT, BENCHMARK)
    accounts = [one for one in snapshot["accounts"] if one["kind"] in kinds]
    return {"state": state, "accounts": sorted(accounts, key=lambda one: str(one["name"]))}


def days_over(registry: Registry, slot: str) -> list[Span]:
    """Return the days of a slot that are over and have a bar, oldest first.

    What an earlier version of the program traded without storing events is left out.
    """
    row = TRADER_INPUTS.c
    columns = (row.number, row.kind, row.bar)
    own = select(*columns).where(row.slot == slot).order_by(row.number)
    with registry.database.reading() as connection:
        first = connection.execute(own.limit(1)).all()
        marks = connection.execute(own.where(row.snapshot.is_not(None))).all()
        if first and first[0] not in marks and first[0].kind == "Started":
            marks = [*first, *marks]
        found = []
        for one, following in itertools.pairwise(marks):
            bar = one.bar
            if one.kind != "BarClosed":  # it may be the start of a record, before its first bar
                bars = (row.number > one.number, row.number < following.number)
                query = select(func.min(row.bar)).where(row.slot == slot, *bars)
                bar = connection.scalar(query.where(row.kind == "BarClosed"))
            if bar is not None:
                found.append(Span(bar // DAY * DAY, one.number, following.number))
    return found


def read_day(registry: Registry, slot: str, span: Span) -> DayRecord:
    """Return the record of a day.

    Raises:
        InputError: no start precedes it, or its bundle is unknown.
    """
    row = TRADER_INPUTS.c
    trader = TraderStore(registry.database).trader(slot)
    assert trader is not None
    inputs = _inputs(registry, slot, row.number >= span.first, row.number < span.end)
    [following] = _inputs(registry, slot, row.number == span.end)
    starts: list[TraderInput] = []
    if inputs[0].kind != "Started":
        query = (row.number < span.first, row.kind == "Started")
        starts = _inputs(registry, slot, *query)[-1:]
        if not starts:
            raise InputError(f"no start precedes event {span.first} of slot {slot!r}")
    times = [one.bar for one in inputs if one.kind == "BarClosed"]
    first, last = times[0], times[-1]
    begun = [*starts, *(one for one in inputs if one.kind == "Started")]
    market = registry.market(begun[0].content["bundle"])
    if market is None:
        raise InputError(f"bundle {begun[0].content['bundle']} is not registered")
    needed = max(one.content["history"] for one in begun)
    since = later(trader.timeframe, first, -needed)
    bars = Records(registry.database).bars(
        slot, trader.timeframe, market[1], since=since, until=last + 1
    )
    day = int(np.searchsorted(bars.time, first))
    snapshot = inputs[0].snapshot or {"state": {}, "accounts": []}
    assert following.snapshot is not None
    return DayRecord(
        slot,
        span.day,
        own_state(snapshot),
        own_state(following.snapshot),
        {
            "history": bar_records(bars.slice(max(0, day - needed), day)),
            "bars": bar_records(bars.slice(day, len(bars))),
            "adjustments": _adjustments(registry, slot, span.first),
            "start": [_input_record(one) for one in starts],
            "inputs": [_input_record(one) for one in inputs],
            "orders": _orders(registry, slot, first, last),
            "lines": _lines(registry, slot, first, last),
        },
    )


def _inputs(registry: Registry, slot: str, *clauses: ColumnElement[bool]) -> list[TraderInput]:
    row = TRADER_INPUTS.c
    query = TRADER_INPUTS.select(row.slot == slot, *clauses).order_by(row.number)
    with registry.database.reading() as connection:
        return TRADER_INPUTS.read(connection, query)


def _input_record(one: TraderInput) -> Record:
    return {"number": one.number, "bar": one.bar, "kind": one.kind, "content": one.content}


def _adjustments(registry: Registry, slot: str, first: int) -> list[Record]:
    """Return the changes of units before an event; events have the later ones."""
    row = TRADER_INPUTS.c
    reviews = _inputs(registry, slot, row.number >= first, row.kind == "Reviewed")
    later_ones = sum(len(one.content["review"]["adjustments"]) for one in reviews)
    everything = TraderStore(registry.database).adjustments(slot)
    return [vars(one) for one in everything[: len(everything) - later_ones]]


def _orders(registry: Registry, slot: str, first: int, last: int) -> list[Record]:
    row = ORDERS.c
    own = (row.slot == slot, row.account == SLOT_ACCOUNT)
    query = ORDERS.select(*own, row.decided >= first, row.decided <= last)
    with registry.database.reading() as connection:
        found = ORDERS.read(connection, query.order_by(row.decided, row.client_id))
    return [vars(one.order) for one in found]


def _lines(registry: Registry, slot: str, first: int, last: int) -> list[Record]:
    row = ACCOUNT_BARS.c
    own = (row.slot == slot, row.account == SLOT_ACCOUNT)
    before = select(func.max(row.time)).where(*own, row.time < first).scalar_subquery()
    query = ACCOUNT_BARS.select(*own, row.time >= func.coalesce(before, first), row.time <= last)
    with registry.database.reading() as connection:
        return [vars(one) for one in ACCOUNT_BARS.read(connection, query.order_by(row.time))]


# ---- bars as records ----


def bar_records(bars: Bars) -> list[Record]:
    """Return each bar as an object: its open, and by ticker the values of `COLUMNS`."""
    columns = [getattr(bars, name).tolist() for name in COLUMNS]
    return [
        {
            "time": time,
            "tickers": {
                ticker: [column[place][asset] for column in columns]
                for asset, ticker in enumerate(bars.tickers)
            },
        }
        for place, time in enumerate(bars.time.tolist())
    ]


def bars_of(records: Sequence[Record], timeframe: str, tickers: Sequence[str]) -> Bars:
    """Return the bars of `bar_records`, with the assets in the order of `tickers`.

    Raises:
        InputError: a bar lacks a ticker.
    """
    try:
        rows = [[one["tickers"][ticker] for ticker in tickers] for one in records]
    except KeyError as error:
        raise InputError(f"the bars lack {error.args[0]}") from None
    values = np.array(rows, dtype=np.float64).reshape(len(rows), len(tickers), len(COLUMNS))
    columns: dict[str, Any] = {name: values[:, :, at] for at, name in enumerate(COLUMNS)}
    columns["hole"] = columns["hole"] != 0.0
    time = np.array([one["time"] for one in records], dtype=np.int64)
    return Bars(tickers=tuple(tickers), timeframe=timeframe, time=time, synthetic=False, **columns)
