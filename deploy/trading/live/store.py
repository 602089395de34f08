"""What live traders store in the registry's database: one transaction per closed bar.

One process per slot writes. A trader that starts puts its token into the slot's row, and each of
its transactions checks that the token is still there, so a process that was suspended and replaced
cannot write any more (`Replaced`). Every process may read, and may tell a trader to halt.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar, cast

import numpy as np
from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from sweepd.deploy.registry.database import RegistryDatabase, utc_now
from sweepd.deploy.registry.models import (
    AccountBarRow,
    AccountRow,
    AdjustmentRow,
    MarketBarRow,
    OrderRow,
    TraderEventRow,
    TraderRow,
)
from sweepd.deploy.trading.brokers.base import Fill, Order, Status
from sweepd.deploy.trading.closed_bar import COLUMNS, ClosedBar
from sweepd.deploy.trading.live.records import (
    AccountBar,
    AccountHistory,
    AccountRecord,
    Adjustment,
    Changes,
    OrderLine,
    Trader,
    TraderEvent,
)
from sweepd.deploy.trading.live.venue_accounts import take_account
from sweepd.envs.support.errors import InputError, RunError

INTENDED = "intended"  # status of an order that is committed, and whose result is unknown
Row = TypeVar("Row")
Record = TypeVar("Record")


class Replaced(RunError):
    """Another process trades this slot, or another slot its venue account."""


class TraderStore:
    """The traders' rows in a registry's database."""

    def __init__(self, database: RegistryDatabase) -> None:
        self._database = database

    # ---- reading ----

    def traders(self) -> list[Trader]:
        """Return the traders of all slots that were ever traded, by slot."""
        with self._database.reading() as session:
            rows = session.scalars(select(TraderRow).order_by(TraderRow.slot))
            return [_record(Trader, row) for row in rows]

    def trader(self, slot: str) -> Trader | None:
        """Return a slot's trader, None if the slot was never traded."""
        with self._database.reading() as session:
            row = session.get(TraderRow, slot)
            return None if row is None else _record(Trader, row)

    def accounts(self, slot: str) -> list[AccountRecord]:
        """Return a slot's accounts, including retired ones, in the order in which they started."""
        row = AccountRow
        query = select(row).where(row.slot == slot).order_by(row.since, row.name)
        with self._database.reading() as session:
            return [_record(AccountRecord, one) for one in session.scalars(query)]

    def account_bars(
        self, slot: str, account: str, *, newest: int | None = None
    ) -> list[AccountBar]:
        """Return an account's lines, oldest first; `newest`: at most that many of the newest."""
        row = AccountBarRow
        query = select(row).where(row.slot == slot, row.account == account)
        rows = self._newest(query.order_by(row.time.desc()), newest)
        return [_record(AccountBar, one) for one in rows]

    def account_history(self, slot: str, account: str, *, since: int) -> AccountHistory:
        """Return an account's lines from bar `since` on as arrays: fast for years of bars."""
        row = AccountBarRow
        names = AccountHistory.__dataclass_fields__
        query = (
            select(*(getattr(row, name) for name in names))
            .where(row.slot == slot, row.account == account, row.time >= since)
            .order_by(row.time)
        )
        with self._database.reading() as session:
            # Rows of plain columns: mapped objects would take several times as long.
            found = [tuple(line) for line in session.connection().execute(query)]
        columns = np.array(found, dtype=object).reshape(len(found), len(names)).T
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
        row = OrderRow
        query = select(row).where(row.slot == slot)
        if account is not None:
            query = query.where(row.account == account)
        if decided is not None:
            query = query.where(row.decided == decided)
        rows = self._newest(query.order_by(row.decided.desc(), row.client_id.desc()), newest)
        return [_order_line(one) for one in rows]

    def events(self, slot: str, *, newest: int | None = None) -> list[TraderEvent]:
        """Return the events of a slot's trader, oldest first, at most `newest` of the newest."""
        row = TraderEventRow
        query = select(row).where(row.slot == slot).order_by(row.id.desc())
        return [_record(TraderEvent, one) for one in self._newest(query, newest)]

    def adjustments(self, slot: str) -> list[Adjustment]:
        """Return the changes of units that a slot's trader has followed, oldest first."""
        row = AdjustmentRow
        query = select(row).where(row.slot == slot).order_by(row.id)
        with self._database.reading() as session:
            return [_record(Adjustment, one) for one in session.scalars(query)]

    def _newest(self, query: Select[Row], count: int | None) -> list[Row]:
        """Return the first `count` rows of a query that is ordered newest first, oldest first."""
        with self._database.reading() as session:
            return list(session.scalars(query.limit(count)))[::-1]

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
            return _record(Trader, row)

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
            # Results may belong to orders of this transaction, whose rows must exist first.
            session.flush()
            for fill in changes.fills:
                _settle(session.get_one(OrderRow, fill.order.client_id), fill)
            session.add_all(_event(slot, kind, text, bar) for kind, text, bar in changes.events)
            session.add_all(
                AdjustmentRow(slot=slot, at=utc_now(), **vars(one)) for one in changes.adjustments
            )
            for tickers, bar in changes.market:
                session.add_all(_market_rows(slot, tickers, bar))

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
            # An empty token: `take_account` has stopped this process.
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


def _record(kind: type[Record], row: object) -> Record:
    """Return a dataclass with the row's values of the same names."""
    names = kind.__dataclass_fields__  # type: ignore[attr-defined]
    return kind(**{name: getattr(row, name) for name in names})


def _event(slot: str, kind: str, text: str, bar: int | None = None) -> TraderEventRow:
    return TraderEventRow(slot=slot, at=utc_now(), bar=bar, kind=kind, text=text)


def _market_rows(slot: str, tickers: Sequence[str], bar: ClosedBar) -> list[MarketBarRow]:
    return [
        MarketBarRow(
            slot=slot,
            ticker=ticker,
            time=bar.time,
            **{name: getattr(bar, name)[place].item() for name in COLUMNS},
        )
        for place, ticker in enumerate(tickers)
    ]


def _order_row(slot: str, line: OrderLine) -> OrderRow:
    return OrderRow(
        slot=slot,
        account=line.account,
        **vars(line.order),
        status=INTENDED,
        at=None,
        filled_units=0.0,
        filled_notional=0.0,
        fee=0.0,
        price=0.0,
        reason="",
    )


def _settle(row: OrderRow, fill: Fill) -> None:
    """Write an order's result, which is final."""
    if row.status != INTENDED:
        raise RunError(f"order {row.client_id} was {row.status} already")
    for name in ("status", "at", "fee", "price", "reason"):
        setattr(row, name, getattr(fill, name))
    row.filled_units, row.filled_notional = fill.units, fill.notional


def _order_line(row: OrderRow) -> OrderLine:
    order = _record(Order, row)
    if row.status == INTENDED:
        return OrderLine(row.account, order)
    assert row.at is not None
    fill = Fill(
        order,
        cast(Status, row.status),
        row.at,
        row.filled_units,
        row.filled_notional,
        row.fee,
        row.price,
        row.reason,
    )
    return OrderLine(row.account, order, fill)
