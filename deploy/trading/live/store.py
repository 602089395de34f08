"""What live traders store in the registry's database: one transaction per closed bar.

One process per slot writes. A trader that starts puts its token into the slot's row, and each of
its transactions checks that the token is still there, so a process that was suspended and replaced
cannot write any more (`Replaced`). Every process may read, and may tell a trader to halt.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select
from sqlalchemy.orm import Session

from deploy.registry.database import RegistryDatabase, utc_now
from deploy.registry.models import SLOT_ACCOUNT as SLOT_ACCOUNT
from deploy.registry.models import STOPPED as STOPPED
from deploy.registry.models import AccountBarRow, AccountRow, OrderRow, TraderEventRow, TraderRow
from deploy.trading.brokers.base import Fill, Order, Side, Status
from deploy.trading.live.venue_accounts import take_account
from envs.support.errors import InputError, RunError

AccountKind = Literal["account", "shadow", "challenger", "benchmark"]
SHADOW: Final = "shadow"
CHALLENGER: Final = "challenger"
BENCHMARK: Final = "benchmark"
INTENDED = "intended"  # status of an order that is committed, and whose result is unknown
Event = tuple[str, str, int | None]  # kind, text, and open of the bar


class Replaced(RunError):
    """Another process trades this slot, or another slot its venue account."""


@dataclass(frozen=True)
class Trader:
    """The trader of a slot.

    status: what it is doing, in a few words.
    last_bar: open of the last processed bar, seconds since the epoch.
    started, beat: UTC text; beat is the last heartbeat.
    halt: why it must not trade, None if it may; halt_sells: it sells everything first.
    state: what is stored for the slot as a whole, not for one account.
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
    state: dict[str, Any]


@dataclass(frozen=True)
class AccountRecord:
    """An account of a slot as the database stores it.

    kind: `account` is the slot's own, which trades the champion with the broker; `shadow` does the
        same in the simulator; a `challenger`, named by its bundle, and a `benchmark` trade virtual
        money.
    since: open of its first bar, at whose close it started.
    retired: why it no longer trades, None while it does.
    state: what it needs to resume after a restart.
    """

    name: str
    kind: AccountKind
    bundle: str | None
    since: int
    retired: str | None
    state: dict[str, Any]


@dataclass(frozen=True)
class AccountBar:
    """An account's line for the closed bar that opened at `time`; money in quote units.

    value, cash: at the close.
    flow: net transfers in the bar; included in the value, but not a gain.
    fees, notional, trades, unfilled: of the orders due in the bar.
    dropped: number of orders of the close that were not sent.
    crossed: what changed hands between an ensemble's trials at the close.
    units, action: by ticker, at the close; action is None if nothing was decided.
    """

    account: str
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
class AccountHistory:
    """Lines of an account as arrays of shape (n,), oldest first; fields as in `AccountBar`."""

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
    """An order of an account and its result, None while that is unknown."""

    account: str
    order: Order
    fill: Fill | None = None


@dataclass(frozen=True)
class TraderEvent:
    """An event of a trader at `at` (UTC text); `bar` is the open of the bar it is about."""

    id: int
    slot: str
    at: str
    bar: int | None
    kind: str
    text: str


@dataclass
class Changes:
    """What one transaction writes; None leaves a value as it is.

    accounts, state: replace what is stored.
    intents: orders that will be sent after the transaction.
    fills: results of orders.
    """

    last_bar: int | None = None
    status: str | None = None
    state: dict[str, Any] | None = None
    accounts: list[AccountRecord] = field(default_factory=list)
    bars: list[AccountBar] = field(default_factory=list)
    intents: list[OrderLine] = field(default_factory=list)
    fills: list[Fill] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


class TraderStore:
    """The traders' rows in a registry's database."""

    def __init__(self, database: RegistryDatabase) -> None:
        self._database = database

    # ---- reading ----

    def traders(self) -> list[Trader]:
        """Return the traders of all slots that were ever traded, by slot."""
        with self._database.reading() as session:
            rows = session.scalars(select(TraderRow).order_by(TraderRow.slot))
            return [_trader(row) for row in rows]

    def trader(self, slot: str) -> Trader | None:
        """Return a slot's trader, None if the slot was never traded."""
        with self._database.reading() as session:
            row = session.get(TraderRow, slot)
            return None if row is None else _trader(row)

    def accounts(self, slot: str) -> list[AccountRecord]:
        """Return a slot's accounts, including retired ones, in the order in which they started."""
        query = (
            select(AccountRow)
            .where(AccountRow.slot == slot)
            .order_by(AccountRow.since, AccountRow.name)
        )
        names = AccountRecord.__dataclass_fields__
        with self._database.reading() as session:
            return [
                AccountRecord(**{name: getattr(row, name) for name in names})
                for row in session.scalars(query)
            ]

    def account_bars(
        self, slot: str, account: str, *, since: int | None = None, newest: int | None = None
    ) -> list[AccountBar]:
        """Return an account's lines, oldest first.

        Args:
            since: only bars that opened then or later.
            newest: at most that many of the newest.
        """
        row = AccountBarRow
        query = select(row).where(row.slot == slot, row.account == account)
        if since is not None:
            query = query.where(row.time >= since)
        names = AccountBar.__dataclass_fields__
        with self._database.reading() as session:
            rows = session.scalars(query.order_by(row.time.desc()).limit(newest))
            return [AccountBar(**{name: getattr(row, name) for name in names}) for row in rows][
                ::-1
            ]

    def account_history(self, slot: str, account: str, *, since: int) -> AccountHistory:
        """Return an account's lines from bar `since` on as arrays: fast for years of bars."""
        row = AccountBarRow
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
            .where(row.slot == slot, row.account == account, row.time >= since)
            .order_by(row.time)
        )
        with self._database.reading() as session:
            found = [tuple(line) for line in session.connection().execute(query)]
        columns = np.array(found, dtype=object).reshape(len(found), 8).T
        value, cash, flow, fees, notional = columns[1:6].astype(np.float64)
        time, trades = columns[[0, 6]].astype(np.int64)
        return AccountHistory(time, value, cash, flow, fees, notional, trades, columns[7])

    def orders(
        self,
        slot: str,
        *,
        account: str | None = None,
        decided: int | None = None,
        newest: int | None = None,
    ) -> list[OrderLine]:
        """Return a slot's orders, oldest first.

        Args:
            account: only orders of this account.
            decided: only orders decided at this bar.
            newest: at most that many of the newest.
        """
        query = select(OrderRow).where(OrderRow.slot == slot)
        if account is not None:
            query = query.where(OrderRow.account == account)
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
        """Return the events of a slot's trader, or of all traders, oldest first.

        Args:
            after: only events with a larger id.
            newest: at most that many of the newest.
        """
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
        self, slot: str, *, broker: str, feed: str, timeframe: str, venue_account: str | None = None
    ) -> str:
        """Become the slot's trader; an earlier process can no longer write.

        Args:
            venue_account: the venue's name of the account, None for virtual money.

        Returns:
            The token that writing needs.

        Raises:
            InputError: the slot was traded with another broker, or `take_account` refuses.
        """
        token = secrets.token_hex(8)
        with self._database.writing() as session:
            if venue_account is not None:
                take_account(session, slot, broker, venue_account)
            row = session.get(TraderRow, slot)
            if row is None:
                row = TraderRow(
                    slot=slot, last_bar=None, halt=None, halt_sells=False, state={}, broker=broker
                )
                session.add(row)
            elif row.broker != broker:
                raise InputError(
                    f"slot {slot!r} has been traded with --broker {row.broker}, which holds its "
                    f"positions; use that broker, or trade with {broker} in another slot"
                )
            row.venue_account = venue_account
            row.token, row.pid, row.host = token, os.getpid(), socket.gethostname()
            row.feed, row.timeframe, row.status = feed, timeframe, "starting"
            row.started = row.beat = utc_now()
        return token

    def beat(self, slot: str, token: str, status: str) -> Trader:
        """Write a heartbeat. Returns the trader's row, which says whether it must halt."""
        with self._writing(slot, token) as (_, row):
            row.beat, row.status = utc_now(), status
            return _trader(row)

    def commit(self, slot: str, token: str, changes: Changes) -> None:
        """Write all of `changes` or nothing.

        Raises:
            Replaced: another process trades the slot now.
        """
        with self._writing(slot, token) as (session, row):
            row.beat = utc_now()
            for name in ("last_bar", "status", "state"):
                if getattr(changes, name) is not None:
                    setattr(row, name, getattr(changes, name))
            for record in changes.accounts:
                session.merge(AccountRow(slot=slot, **vars(record)))
            session.add_all(AccountBarRow(slot=slot, **vars(bar)) for bar in changes.bars)
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
        """Tell the slot's present and later traders to stop trading until `resume`.

        Args:
            sells: sell all positions first.

        Raises:
            InputError: the slot was never traded.
        """
        with self._database.writing() as session:
            row = _require(session, slot)
            row.halt, row.halt_sells = reason, sells
            session.add(_event(slot, "halted", reason))

    def resume(self, slot: str) -> None:
        """Let the slot's trader trade again.

        Raises:
            InputError: it is not halted.
        """
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
                    f"slot {slot!r}: another slot took over its {row.broker} account "
                    f"{row.venue_account}"
                )
            if row.token != token:
                raise Replaced(
                    f"slot {slot!r} is traded by process {row.pid} on {row.host} since "
                    f"{row.started}"
                )
            yield session, row


def _require(session: Session, slot: str) -> TraderRow:
    row = session.get(TraderRow, slot)
    if row is None:
        known = (
            ", ".join(session.scalars(select(TraderRow.slot).order_by(TraderRow.slot))) or "none"
        )
        raise InputError(f"slot {slot!r} was never traded; traded slots: {known}")
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
        account=line.account,
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
    """Write an order's result, which is final."""
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
        return OrderLine(row.account, order)
    assert row.at is not None
    status: Status = "filled" if row.status == "filled" else "unfilled"
    fill = Fill(
        order, status, row.at, row.filled_units, row.filled_notional, row.fee, row.price, row.reason
    )
    return OrderLine(row.account, order, fill)
