"""What live traders remember, in the registry's database: one transaction per closed bar, by one process per slot.

A trader that starts puts its token into the slot's row, and every later transaction of it checks that the token is
still there: one that was suspended and replaced cannot write any more (`Replaced`). Anybody may read, and may tell a
trader to halt.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select
from sqlalchemy.orm import Session

from deploy.registry.database import RegistryDatabase, utc_now
from deploy.registry.models import ACCOUNT as ACCOUNT
from deploy.registry.models import STOPPED as STOPPED
from deploy.registry.models import LaneBarRow, LaneRow, OrderRow, TraderEventRow, TraderRow
from deploy.trading.brokers.base import Fill, Order, Side, Status
from deploy.trading.live.venue_accounts import take_account
from envs.support.errors import InputError, RunError

LaneKind = Literal["account", "shadow", "challenger", "benchmark"]
INTENDED = "intended"  # an order that is committed before it is sent: its results are still unknown


class Replaced(RunError):
    """Another process trades this slot, or another slot its account."""


@dataclass(frozen=True)
class Trader:
    """The trader of a slot. status: what it is at, a few words. last_bar: open of the last bar acted on, seconds.

    started, beat: UTC text. halt: why it does not trade, None where it may; halt_sells: it sells everything first.
    session: what concerns no single lane.
    """

    slot: str
    token: str
    pid: int
    host: str
    broker: str
    feed: str
    timeframe: str
    started: str
    beat: str
    status: str
    last_bar: int | None
    halt: str | None
    halt_sells: bool
    session: dict[str, Any]


@dataclass(frozen=True)
class Lane:
    """Something of a slot that has an equity of its own.

    kind: `account` trades the champion with the broker; `shadow` does the same in the simulator; a `challenger` (named
    by its bundle) and a `benchmark` have virtual money. since: open of its first bar, at whose close it began. retired:
    why it no longer trades, None while it does. state: all it needs to go on after a restart.
    """

    name: str
    kind: LaneKind
    bundle: str | None
    since: int
    retired: str | None
    state: dict[str, Any]


@dataclass(frozen=True)
class LaneBar:
    """A lane's line for the closed bar that opened at `time`; money in quote units.

    value, cash: at its close. flow: net transfers in the bar; the value includes them, but they are no gain. fees,
    notional, trades, unfilled: of the orders that were to be filled in the bar. dropped: orders decided at
    its close that were too small to send. crossed: what changed hands between an ensemble's trials then. units, action:
    by ticker, at its close; action is None where nothing was decided.
    """

    lane: str
    time: int
    bundle: str | None
    value: float
    cash: float
    flow: float = 0.0
    fees: float = 0.0
    notional: float = 0.0
    trades: int = 0
    unfilled: int = 0
    dropped: int = 0
    crossed: float = 0.0
    units: dict[str, float] = field(default_factory=dict)
    action: dict[str, float] | None = None


@dataclass(frozen=True, eq=False)
class LaneColumns:
    """Lines of a lane as arrays, (n,) each, oldest first: see `LaneBar`."""

    time: NDArray[np.int64]
    value: NDArray[np.float64]
    cash: NDArray[np.float64]
    flow: NDArray[np.float64]
    fees: NDArray[np.float64]
    notional: NDArray[np.float64]
    trades: NDArray[np.int64]
    bundle: NDArray[np.object_]


@dataclass(frozen=True)
class OrderLine:
    """An order of a lane, and what became of it: None while that is unknown."""

    lane: str
    order: Order
    fill: Fill | None = None


@dataclass(frozen=True)
class TraderEvent:
    """Something that happened to a trader, at the moment `at` (UTC text), about the bar that opened at `bar`."""

    id: int
    slot: str
    at: str
    bar: int | None
    kind: str
    text: str


@dataclass
class Changes:
    """What one transaction writes. Lanes and session replace what was there; None leaves it.

    intents: orders about to be sent. fills: what became of orders. events: kind, text, and the bar they are about.
    """

    last_bar: int | None = None
    status: str | None = None
    session: dict[str, Any] | None = None
    lanes: list[Lane] = field(default_factory=list)
    bars: list[LaneBar] = field(default_factory=list)
    intents: list[OrderLine] = field(default_factory=list)
    fills: list[Fill] = field(default_factory=list)
    events: list[tuple[str, str, int | None]] = field(default_factory=list)


class TraderStore:
    """The traders' rows in a registry's database."""

    def __init__(self, database: RegistryDatabase) -> None:
        self._database = database

    # ---- reading ----

    def traders(self) -> list[Trader]:
        """Of all slots that were ever traded, by name."""
        with self._database.reading() as session:
            return [
                _trader(row) for row in session.scalars(select(TraderRow).order_by(TraderRow.slot))
            ]

    def trader(self, slot: str) -> Trader | None:
        """Of that slot; None where it was never traded."""
        with self._database.reading() as session:
            row = session.get(TraderRow, slot)
            return None if row is None else _trader(row)

    def lanes(self, slot: str) -> list[Lane]:
        """Of a slot, the retired ones too, in the order in which they began."""
        query = select(LaneRow).where(LaneRow.slot == slot).order_by(LaneRow.since, LaneRow.name)
        with self._database.reading() as session:
            return [
                Lane(
                    row.name,
                    cast(LaneKind, row.kind),
                    row.bundle,
                    row.since,
                    row.retired,
                    row.state,
                )
                for row in session.scalars(query)
            ]

    def lane_bars(
        self, slot: str, lane: str, *, since: int | None = None, newest: int | None = None
    ) -> list[LaneBar]:
        """A lane's lines, oldest first. since: only from bars that opened then. newest: only as many."""
        query = select(LaneBarRow).where(LaneBarRow.slot == slot, LaneBarRow.lane == lane)
        if since is not None:
            query = query.where(LaneBarRow.time >= since)
        with self._database.reading() as session:
            rows = session.scalars(query.order_by(LaneBarRow.time.desc()).limit(newest))
            names = LaneBar.__dataclass_fields__
            return [LaneBar(**{name: getattr(row, name) for name in names}) for row in rows][::-1]

    def lane_columns(self, slot: str, lane: str, *, since: int) -> LaneColumns:
        """A lane's lines from bars that opened at `since` or later, read fast: years of them are many."""
        row = LaneBarRow
        query = (
            select(
                row.time,
                row.value,
                row.cash,
                row.flow,
                row.fees,
                row.notional,
                row.trades,
                row.bundle,
            )
            .where(row.slot == slot, row.lane == lane, row.time >= since)
            .order_by(row.time)
        )
        with self._database.reading() as session:
            found = [tuple(line) for line in session.connection().execute(query)]
        columns = np.array(found, dtype=object).reshape(len(found), 8).T
        value, cash, flow, fees, notional = columns[1:6].astype(np.float64)
        time, trades = columns[[0, 6]].astype(np.int64)
        return LaneColumns(time, value, cash, flow, fees, notional, trades, columns[7])

    def orders(
        self,
        slot: str,
        *,
        lane: str | None = None,
        decided: int | None = None,
        newest: int | None = None,
    ) -> list[OrderLine]:
        """Orders of a slot, oldest first; of that lane, decided at that bar, or only as many of the newest."""
        query = select(OrderRow).where(OrderRow.slot == slot)
        if lane is not None:
            query = query.where(OrderRow.lane == lane)
        if decided is not None:
            query = query.where(OrderRow.decided == decided)
        with self._database.reading() as session:
            rows = session.scalars(
                query.order_by(OrderRow.decided.desc(), OrderRow.client_id.desc()).limit(newest)
            )
            return [_order_line(row) for row in rows][::-1]

    def events(
        self, slot: str | None = None, *, after: int = 0, newest: int | None = None
    ) -> list[TraderEvent]:
        """What happened to a slot's trader, or to all, oldest first; after the event of that id, or the newest ones."""
        query = select(TraderEventRow).where(TraderEventRow.id > after)
        if slot is not None:
            query = query.where(TraderEventRow.slot == slot)
        with self._database.reading() as session:
            rows = session.scalars(query.order_by(TraderEventRow.id.desc()).limit(newest))
            return [
                TraderEvent(row.id, row.slot, row.at, row.bar, row.kind, row.text) for row in rows
            ][::-1]

    # ---- writing ----

    def take_over(
        self, slot: str, *, broker: str, feed: str, timeframe: str, account: str | None = None
    ) -> str:
        """Become the slot's trader; an earlier one may not write any more. Returns the token that writing needs.

        account: the venue's name of the account, None for virtual money. Raises InputError where the slot was traded
        with another broker, and for an account that `take_account` refuses.
        """
        token = secrets.token_hex(8)
        with self._database.writing() as session:
            if account is not None:
                take_account(session, slot, broker, account)
            row = session.get(TraderRow, slot)
            if row is None:
                row = TraderRow(
                    slot=slot, last_bar=None, halt=None, halt_sells=False, session={}, broker=broker
                )
                session.add(row)
            elif row.broker != broker:
                raise InputError(
                    f"slot {slot!r} has been traded with --broker {row.broker}; its positions are there. Go on with "
                    f"that broker, or trade {broker} in another slot"
                )
            row.account = account
            row.token, row.pid, row.host = token, os.getpid(), socket.gethostname()
            row.feed, row.timeframe, row.started, row.beat, row.status = (
                feed,
                timeframe,
                utc_now(),
                utc_now(),
                "starting",
            )
        return token

    def beat(self, slot: str, token: str, status: str) -> Trader:
        """Show that the trader is alive. Returns its row, which tells whether it was told to halt."""
        with self._writing(slot, token) as (_, row):
            row.beat, row.status = utc_now(), status
            return _trader(row)

    def commit(self, slot: str, token: str, changes: Changes) -> None:
        """Write `changes`, all or none. Raises Replaced where another process now trades the slot."""
        with self._writing(slot, token) as (session, row):
            row.beat = utc_now()
            for name in ("last_bar", "status", "session"):
                if getattr(changes, name) is not None:
                    setattr(row, name, getattr(changes, name))
            for lane in changes.lanes:
                session.merge(
                    LaneRow(
                        slot=slot,
                        name=lane.name,
                        kind=lane.kind,
                        bundle=lane.bundle,
                        since=lane.since,
                        retired=lane.retired,
                        state=lane.state,
                    )
                )
            session.add_all(LaneBarRow(slot=slot, **vars(bar)) for bar in changes.bars)
            session.add_all(_order_row(slot, line) for line in changes.intents)
            session.flush()
            for fill in changes.fills:
                _settle(session.get_one(OrderRow, fill.order.client_id), fill)
            session.add_all(_event(slot, kind, text, bar) for kind, text, bar in changes.events)

    def note(self, slot: str, kind: str, text: str) -> None:
        """Append an event; any process may."""
        with self._database.writing() as session:
            session.add(_event(slot, kind, text))

    def halt(self, slot: str, reason: str, *, sells: bool) -> None:
        """Tell the slot's trader to stop trading, after it has sold everything where `sells`; it holds for every later
        one, too, until `resume`. Raises InputError for a slot that was never traded.
        """
        with self._database.writing() as session:
            row = _require(session, slot)
            row.halt, row.halt_sells = reason, sells
            session.add(_event(slot, "halted", reason))

    def resume(self, slot: str) -> None:
        """Let the slot's trader trade again. Raises InputError where nothing had stopped it."""
        with self._database.writing() as session:
            row = _require(session, slot)
            if row.halt is None:
                raise InputError(f"slot {slot!r} is not halted")
            session.add(_event(slot, "resumed", f"it was halted: {row.halt}"))
            row.halt, row.halt_sells = None, False

    @contextmanager
    def _writing(self, slot: str, token: str) -> Iterator[tuple[Session, TraderRow]]:
        with self._database.writing() as session:
            row = session.get_one(TraderRow, slot)
            if not row.token:
                raise Replaced(
                    f"slot {slot!r}: another slot took over its {row.broker} account {row.account}"
                )
            if row.token != token:
                raise Replaced(
                    f"slot {slot!r} is traded by process {row.pid} on {row.host} since {row.started}"
                )
            yield session, row


def _require(session: Session, slot: str) -> TraderRow:
    row = session.get(TraderRow, slot)
    if row is None:
        known = (
            ", ".join(session.scalars(select(TraderRow.slot).order_by(TraderRow.slot))) or "none"
        )
        raise InputError(f"slot {slot!r} was never traded; slots that were: {known}")
    return row


def _trader(row: TraderRow) -> Trader:
    return Trader(**{name: getattr(row, name) for name in Trader.__dataclass_fields__})


def _event(slot: str, kind: str, text: str, bar: int | None = None) -> TraderEventRow:
    return TraderEventRow(slot=slot, at=utc_now(), bar=bar, kind=kind, text=text)


def _order_row(slot: str, line: OrderLine) -> OrderRow:
    order = line.order
    row = OrderRow(
        client_id=order.client_id,
        slot=slot,
        lane=line.lane,
        decided=order.decided,
        ticker=order.ticker,
        side=order.side,
        units=order.units,
        notional=order.notional,
        whole=order.whole,
        restart_clock=order.restart_clock,
        status=INTENDED,
        at=None,
        filled_units=0.0,
        filled_notional=0.0,
        fee=0.0,
        price=0.0,
        reason="",
    )
    if line.fill is not None:
        _settle(row, line.fill)
    return row


def _settle(row: OrderRow, fill: Fill) -> None:
    """Write what became of an order; once, since it is final."""
    if row.status != INTENDED:
        raise RunError(f"order {row.client_id} was {row.status} already")
    row.status, row.at, row.fee, row.price, row.reason = (
        fill.status,
        fill.at,
        fill.fee,
        fill.price,
        fill.reason,
    )
    row.filled_units, row.filled_notional = fill.units, fill.notional


def _order_line(row: OrderRow) -> OrderLine:
    order = Order(
        row.client_id,
        row.ticker,
        cast(Side, row.side),
        row.decided,
        row.units,
        row.notional,
        row.whole,
        row.restart_clock,
    )
    if row.status == INTENDED:
        return OrderLine(row.lane, order)
    assert row.at is not None
    status: Status = "filled" if row.status == "filled" else "unfilled"
    fill = Fill(
        order, status, row.at, row.filled_units, row.filled_notional, row.fee, row.price, row.reason
    )
    return OrderLine(row.lane, order, fill)
