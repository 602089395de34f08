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
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from sqlalchemy import Connection, Select, select

from sweepd.deploy.registry.database import RegistryDatabase, utc_now
from sweepd.deploy.registry.tables import RecordTable
from sweepd.deploy.trading.brokers.base import Fill
from sweepd.deploy.trading.closed_bar import COLUMNS, ClosedBar
from sweepd.deploy.trading.live.records import (
    ACCOUNT_BARS,
    ACCOUNTS,
    ADJUSTMENTS,
    CERTIFICATES,
    INTENDED,
    ORDERS,
    PARITY_DAYS,
    TRADER_BARS,
    TRADER_EVENTS,
    TRADER_INPUTS,
    TRADERS,
    AccountBar,
    AccountHistory,
    AccountRecord,
    Adjustment,
    Certificate,
    Changes,
    MarketBar,
    OrderRecord,
    ParityDay,
    Trader,
    TraderEvent,
    TraderInput,
)
from sweepd.deploy.trading.live.venue_accounts import named, take_account
from sweepd.envs.support.errors import InputError, RunError

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
        return self._all(TRADERS, TRADERS.select().order_by(TRADERS.c.slot))

    def trader(self, slot: str) -> Trader | None:
        """Return a slot's trader, None if the slot was never traded."""
        with self._database.reading() as connection:
            return TRADERS.get(connection, slot=slot)

    def accounts(self, slot: str) -> list[AccountRecord]:
        """Return a slot's accounts, including retired ones, in the order in which they started."""
        row = ACCOUNTS.c
        query = ACCOUNTS.select(row.slot == slot).order_by(row.since, row.name)
        return self._all(ACCOUNTS, query)

    def account_bars(
        self, slot: str, account: str, *, newest: int | None = None
    ) -> list[AccountBar]:
        """Return an account's lines, oldest first; `newest`: at most that many of the newest."""
        row = ACCOUNT_BARS.c
        query = ACCOUNT_BARS.select(row.slot == slot, row.account == account)
        return self._all(ACCOUNT_BARS, query.order_by(row.time.desc()).limit(newest))[::-1]

    def account_history(self, slot: str, account: str, *, since: int) -> AccountHistory:
        """Return an account's lines from bar `since` on as arrays: fast for years of bars."""
        row = ACCOUNT_BARS.c
        names = AccountHistory.__dataclass_fields__
        query = (
            select(*(row[name] for name in names))
            .where(row.slot == slot, row.account == account, row.time >= since)
            .order_by(row.time)
        )
        with self._database.reading() as connection:
            found = [tuple(line) for line in connection.execute(query)]
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
    ) -> list[OrderRecord]:
        """Return a slot's orders, oldest first.

        Args:
            account: only orders of this account.
            decided: only orders decided at this bar.
            newest: at most that many of the newest.
        """
        row = ORDERS.c
        query = ORDERS.select(row.slot == slot)
        if account is not None:
            query = query.where(row.account == account)
        if decided is not None:
            query = query.where(row.decided == decided)
        query = query.order_by(row.decided.desc(), row.client_id.desc()).limit(newest)
        return self._all(ORDERS, query)[::-1]

    def events(self, slot: str, *, newest: int | None = None) -> list[TraderEvent]:
        """Return the events of a slot's trader, oldest first, at most `newest` of the newest."""
        row = TRADER_EVENTS.c
        query = TRADER_EVENTS.select(row.slot == slot).order_by(row.id.desc()).limit(newest)
        return self._all(TRADER_EVENTS, query)[::-1]

    def adjustments(self, slot: str) -> list[Adjustment]:
        """Return the changes of units that a slot's trader has followed, oldest first."""
        row = ADJUSTMENTS.c
        return self._all(ADJUSTMENTS, ADJUSTMENTS.select(row.slot == slot).order_by(row.id))

    def inputs(self, slot: str, *, first: int = 1) -> list[TraderInput]:
        """Return the events that a slot's trader has seen, oldest first, from number `first` on."""
        row = TRADER_INPUTS.c
        query = TRADER_INPUTS.select(row.slot == slot, row.number >= first)
        return self._all(TRADER_INPUTS, query.order_by(row.number))

    def _all(self, table: RecordTable[Record], query: Select[Any]) -> list[Record]:
        with self._database.reading() as connection:
            return table.read(connection, query)

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
        token, now = secrets.token_hex(8), utc_now()
        with self._database.writing() as connection:
            if venue_account is not None:
                take_account(connection, slot, broker, venue_account)
            before = TRADERS.get(connection, slot=slot)
            # Arguments of a broker of another package may change.
            if before is not None and named(before.broker) != named(broker):
                raise InputError(
                    f"slot {slot!r} has been traded with --broker {before.broker}, which holds its "
                    f"positions; use that broker, or trade with {broker} in another slot"
                )
            trader = Trader(
                slot=slot,
                token=token,
                pid=os.getpid(),
                host=socket.gethostname(),
                broker=broker,
                feed=feed,
                timeframe=timeframe,
                started=now,
                beat=now,
                status="starting",
                venue_account=venue_account,
                last_bar=before.last_bar if before else None,
                halt=before.halt if before else None,
                halt_sells=before.halt_sells if before else False,
                state=before.state if before else {},
            )
            if before is None:
                TRADERS.add(connection, [trader])
            else:
                connection.execute(TRADERS.update(slot=slot).values(vars(trader)))
        return token

    def beat(self, slot: str, token: str, status: str) -> Trader:
        """Write a heartbeat. Returns the trader's row, which says whether it must halt."""
        with self._writing(slot, token) as (connection, trader):
            now = utc_now()
            connection.execute(TRADERS.update(slot=slot).values(beat=now, status=status))
            return replace(trader, beat=now, status=status)

    def commit(self, slot: str, token: str, changes: Changes) -> None:
        """Write all of `changes` or nothing.

        Raises:
            Replaced: another process trades the slot now.
        """
        names = ("last_bar", "status", "state")
        given = {name: getattr(changes, name) for name in names}
        changed = {name: value for name, value in given.items() if value is not None}
        with self._writing(slot, token) as (connection, _):
            now = utc_now()
            connection.execute(TRADERS.update(slot=slot).values(beat=now, **changed))
            for account in changes.accounts:
                # One by one: an account that is retired after its bar is listed twice.
                connection.execute(ACCOUNTS.delete(slot=slot, name=account.name))
                ACCOUNTS.add(connection, [account], slot=slot)
            ACCOUNT_BARS.add(connection, changes.bars, slot=slot)
            ORDERS.add(connection, changes.intents, slot=slot)
            # Results may belong to orders of this transaction.
            for fill in changes.fills:
                _settle(connection, fill)
            for kind, text, bar in changes.events:
                _add_event(connection, slot, kind, text, bar)
            ADJUSTMENTS.add(connection, changes.adjustments, slot=slot, at=now)
            market = (bar for closed in changes.market for bar in _market_bars(*closed))
            TRADER_BARS.add(connection, market, slot=slot)
            if changes.halt is not None:
                _halt(connection, slot, *changes.halt)
            if changes.input is not None:
                TRADER_INPUTS.add(connection, [changes.input], slot=slot, at=now)

    def note(self, slot: str, kind: str, text: str) -> None:
        """Append an event; any process may."""
        with self._database.writing() as connection:
            _add_event(connection, slot, kind, text)

    def halt(self, slot: str, reason: str, *, sells: bool) -> None:
        """Tell the slot's present and later traders to stop trading until `resume`.

        Args:
            sells: sell all positions first.

        Raises:
            InputError: the slot was never traded.
        """
        with self._database.writing() as connection:
            _require(connection, slot)
            _halt(connection, slot, reason, sells)

    def resume(self, slot: str, reason: str) -> None:
        """Let the slot's trader trade again. reason: why, for its events.

        Raises:
            InputError: it is not halted.
        """
        with self._database.writing() as connection:
            trader = _require(connection, slot)
            if trader.halt is None:
                raise InputError(f"slot {slot!r} is not halted")
            _add_event(connection, slot, "resumed", f"{reason}; it was halted: {trader.halt}")
            connection.execute(TRADERS.update(slot=slot).values(halt=None, halt_sells=False))

    @contextmanager
    def _writing(self, slot: str, token: str) -> Iterator[tuple[Connection, Trader]]:
        with self._database.writing() as connection:
            trader = _require(connection, slot)
            # An empty token: `take_account` has stopped this process.
            if not trader.token:
                raise Replaced(
                    f"slot {slot!r}: another slot took over its {trader.broker} account "
                    f"{trader.venue_account}"
                )
            if trader.token != token:
                raise Replaced(
                    f"slot {slot!r} is traded by process {trader.pid} on {trader.host} since "
                    f"{trader.started}"
                )
            yield connection, trader


def _require(connection: Connection, slot: str) -> Trader:
    found = TRADERS.get(connection, slot=slot)
    if found is None:
        slots = connection.scalars(select(TRADERS.c.slot).order_by(TRADERS.c.slot))
        raise InputError(
            f"slot {slot!r} was never traded; traded slots: {', '.join(slots) or 'none'}"
        )
    return found


def _halt(connection: Connection, slot: str, reason: str, sells: bool) -> None:
    connection.execute(TRADERS.update(slot=slot).values(halt=reason, halt_sells=sells))
    _add_event(connection, slot, "halted", reason)


def _add_event(
    connection: Connection, slot: str, kind: str, text: str, bar: int | None = None
) -> None:
    values = {"slot": slot, "at": utc_now(), "bar": bar, "kind": kind, "text": text}
    connection.execute(TRADER_EVENTS.table.insert().values(values))


def _market_bars(tickers: Sequence[str], bar: ClosedBar) -> list[MarketBar]:
    return [
        MarketBar(ticker, bar.time, *(getattr(bar, name)[place].item() for name in COLUMNS))
        for place, ticker in enumerate(tickers)
    ]


def _settle(connection: Connection, fill: Fill) -> None:
    """Write an order's result, which is final."""
    identity = fill.order.client_id
    before = ORDERS.get(connection, client_id=identity)
    if before is None or before.status != INTENDED:
        was = "never stored" if before is None else f"{before.status} already"
        raise RunError(f"order {identity} was {was}")
    connection.execute(ORDERS.update(client_id=identity).values(**OrderRecord.result_of(fill)))


def store_parity(database: RegistryDatabase, slot: str, days: Sequence[ParityDay]) -> None:
    """Replace the slot's stored comparison, in one transaction."""
    with database.writing() as connection:
        connection.execute(PARITY_DAYS.delete(slot=slot))
        PARITY_DAYS.add(connection, days, slot=slot, at=utc_now())


def stored_parity(database: RegistryDatabase, slot: str) -> tuple[list[ParityDay], str | None]:
    """Return the stored comparison of a slot, oldest day first, and when it was computed."""
    query = PARITY_DAYS.select(PARITY_DAYS.c.slot == slot).order_by(PARITY_DAYS.c.day)
    moment = select(PARITY_DAYS.c.at).where(PARITY_DAYS.c.slot == slot).limit(1)
    with database.reading() as connection:
        return PARITY_DAYS.read(connection, query), connection.scalar(moment)


def stored_certificates(
    database: RegistryDatabase, slot: str, *, newest: int | None = None
) -> list[Certificate]:
    """Return a slot's certificates by number; `newest`: at most that many of the newest."""
    row = CERTIFICATES.c
    query = CERTIFICATES.select(row.slot == slot).order_by(row.number.desc()).limit(newest)
    with database.reading() as connection:
        return CERTIFICATES.read(connection, query)[::-1]
