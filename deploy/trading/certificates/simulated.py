"""The slot's own account with the simulated broker, beside the machine that is computed again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sweepd.deploy.trading.brokers.base import AccountState, Order
from sweepd.deploy.trading.closed_bar import ClosedBar
from sweepd.deploy.trading.live.account import TradingAccount
from sweepd.deploy.trading.live.events import BarClosed, Reviewed, Started
from sweepd.deploy.trading.live.machine import Machine
from sweepd.deploy.trading.live.records import SLOT_ACCOUNT, AccountBar, AccountRecord, Changes
from sweepd.deploy.trading.live.revisions import price_factors
from sweepd.deploy.trading.live.venue import Venue
from sweepd.envs.crypto.data.bars import Bars


class Simulator:
    """The slot's own account with the simulated broker.

    It decides at the bars at which the account decided, hands over to a new champion at the same
    bars, receives the same transfers, and obeys the same halts and risk rules.

    Args:
        slot: the slot.
        machine: the trader: before the first bar with `kept`, after it with `line`.
        line: the recorded account's at its first bar, whose holdings it starts with.
        kept: the account's record, from which it continues instead.
    """

    def __init__(
        self,
        slot: str,
        machine: Machine,
        *,
        line: AccountBar | None = None,
        kept: AccountRecord | None = None,
    ) -> None:
        self._slot = slot
        self._account = self._made(machine)
        self._venue = Venue.virtual(machine.own.bundle)
        if kept is not None:
            self._account.resume(machine.history, _unfilled(kept))
            holdings, tickers = self._account.holdings, self._account.bundle.manifest.tickers
            held = AccountState.of(holdings.cash, tickers, holdings.units_of(tickers))
            self._venue.restore(held)
            self._venue.submit(self._account.open)
        else:
            assert line is not None
            self._venue.restore(AccountState(line.cash, line.units))
            before = machine.history.slice(0, len(machine.history) - 1)
            self._account.start(before, self._venue.broker.account())

    def on_bar(self, machine: Machine, event: BarClosed) -> float:
        """Process the machine's newest bar. Returns the value at its close, quote units."""
        bundle, entry = machine.own.bundle, machine.entry
        bar = ClosedBar.of(machine.history, len(machine.history) - 1)
        reading = self._venue.reading(bar, machine.history.tickers, entry.flow)
        made = self._account.on_bar(
            bar,
            machine.history,
            reading,
            machine.conditions(event.now, bar),
            Changes(),
            decide=entry.action is not None,
            heir=None if bundle.hash == self._account.bundle.hash else bundle,
        )
        self._venue.follow(bundle)
        self._venue.submit(made.orders)
        return float(made.value)

    def follow(self, history: Bars, event: Reviewed) -> None:
        """Follow a change of units."""
        if factors := price_factors(event.review.adjustments):
            self._account.adjust(history, factors)
            self._venue.adjust(factors)

    def restart(self, machine: Machine, event: Started) -> None:
        """Continue with the settings of a new process."""
        kept = self._account.record()
        tickers = None if event.lost is None else event.lost.tickers
        self._account = self._made(machine)
        self._account.resume(machine.history, kept, tickers)
        self._venue.follow(machine.own.bundle)

    def _made(self, machine: Machine) -> TradingAccount:
        return TradingAccount(
            self._slot,
            SLOT_ACCOUNT,
            SLOT_ACCOUNT,
            machine.own.bundle,
            limits=machine.limits,
            any_account=True,
        )


def growth(before: float, value: float, flow: float) -> float:
    """Return the return of a bar, a fraction, from its value before and after, and its transfers."""
    return (value - flow) / before - 1.0 if before > 0.0 else 0.0


def _unfilled(kept: AccountRecord) -> AccountRecord:
    """Return a record in which the orders that its venue has filled at once are still open."""
    state = kept.state
    orders = [*state["open"], *(fill["order"] for fill in state["settled"])]
    return replace(kept, state={**state, "open": _joined(orders), "settled": []})


def _joined(orders: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one order for the parts of each: the simulated broker takes orders of any size."""
    by_ticker: dict[str, list[Order]] = defaultdict(list)
    for one in orders:
        by_ticker[one["ticker"]].append(Order(**one))
    return [
        vars(
            replace(
                parts[0],
                units=sum(one.units for one in parts),
                notional=sum(one.notional for one in parts),
                whole=any(one.whole for one in parts),
            )
        )
        for parts in by_ticker.values()
    ]
