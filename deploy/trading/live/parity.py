"""Parity of a live account with the simulator, day by day, recomputed from what was stored.

Two accounts run over the stored bars, by the code that trades:

* **decisions**: the account as it was recorded. It receives the recorded fills, cash and units of
  every bar, and the policy decides again. A decision that differs means that other bars, another
  policy or another version of the program decided. The return is recomputed, too: a difference
  means that the recorded bars, fills and transfers do not explain the recorded value.
* **simulator**: the same bundles from the same start with the simulated broker, which the tests
  hold to the environment's numbers. Its return differs from the account's by what the venue's fills
  cost, and by what restricted the account: halts and risk rules, which the simulator does not know.

Both decide at the bars at which the account decided, hand over to a new champion at the same bars,
and receive the same transfers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.brokers.base import AccountState, Broker, Fill, Order
from sweepd.deploy.trading.brokers.sim import sim_broker
from sweepd.deploy.trading.closed_bar import ClosedBar
from sweepd.deploy.trading.live.account import TradingAccount
from sweepd.deploy.trading.live.profits import fills_at_once
from sweepd.deploy.trading.live.queries import Records
from sweepd.deploy.trading.live.records import (
    SLOT_ACCOUNT,
    AccountBar,
    Adjustment,
    Changes,
    ParityDay,
    Trader,
)
from sweepd.deploy.trading.live.revisions import adjusted, price_factors
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.deploy.trading.risk import Conditions
from sweepd.deploy.trading.risk_limits import RiskLimits
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.data.timeframe import DAY, bar_end, format_time
from sweepd.envs.support.errors import InputError


class RecordedBroker(Broker):
    """An account whose state and fills are those of the record. Orders are ignored."""

    paper = "a record"
    immediate = False

    def __init__(self, line: AccountBar, *, late_fees: bool) -> None:
        self._late_fees, self._fills = late_fees, list[Fill]()
        self.show(line, [], borrows=False)

    def show(self, line: AccountBar, fills: Sequence[Fill], *, borrows: bool) -> None:
        """Go on to the next bar: its line, and the results of the orders before it.

        borrows: the account may be charged for short positions, which only its fees tell.
        """
        charges = line.fees - sum(fill.fee for fill in fills) if borrows else 0.0
        self._state = AccountState(
            line.cash, line.units, late_fees=self._late_fees, charges=charges
        )
        self._fills = list(fills)

    def account(self) -> AccountState:
        """Return what the account held at the bar's close."""
        return self._state

    def submit(self, orders: Sequence[Order]) -> None:
        """Ignore the orders."""

    def adopt(self, orders: Sequence[Order], *, final: bool = False) -> list[Order]:
        """Return all orders."""
        del final
        return list(orders)

    def fills(self) -> list[Fill]:
        """Return the recorded results since the last call."""
        found, self._fills = self._fills, []
        return found


def parity(
    registry: Registry, slot: str, *, progress: Callable[[int, int], None] = lambda _n, _of: None
) -> list[ParityDay]:
    """Recompute the slot's own account from its record. Returns the days, oldest first.

    Args:
        registry: the registry that holds the slot.
        slot: its name.
        progress: called with the number of bars done and of all bars.

    Raises:
        InputError: the slot was never traded, or its record lacks bars or a bundle.
    """
    store, records = TraderStore(registry.database), Records(registry.database)
    trader, lines = store.trader(slot), store.account_bars(slot, SLOT_ACCOUNT)
    if trader is None or not lines:
        raise InputError(f"slot {slot!r} has no account that was ever traded: sweepd trade {slot}")
    bundles: dict[str, Bundle] = {}

    def bundle_of(line: AccountBar) -> Bundle:
        assert line.bundle is not None
        if line.bundle not in bundles:
            bundles[line.bundle] = registry.bundle(line.bundle, Bundle)
        return bundles[line.bundle]

    first = bundle_of(lines[0])
    bars = records.bars(slot, trader.timeframe, first.manifest.tickers)
    if not len(bars):
        raise InputError(f"the registry does not have the bars of slot {slot!r}")
    replayed = _Replayed(trader, first, bars, lines[0], store.adjustments(slot))
    fills = _fills_by_bar(store, slot)
    days: list[ParityDay] = []
    for number, line in enumerate(lines):
        before = lines[number - 1] if number else None
        booked = [] if before is None else fills.get(before.time, [])
        step = replayed.next(line, before, booked, bundle_of(line))
        if not days or days[-1].day != line.time // DAY * DAY:
            days.append(ParityDay(line.time // DAY * DAY))
        days[-1] = _with(days[-1], step)
        progress(number + 1, len(lines))
    return days


@dataclass(frozen=True)
class _Step:
    """One bar: the difference of the action (None without a decision), and the returns.

    growth, again, simulated: as recorded, recomputed from the record, and of the simulator.
    """

    action: float | None
    growth: float = 0.0
    again: float = 0.0
    simulated: float = 0.0


class _Replayed:
    """The two accounts.

    Args:
        trader: the slot's trader.
        bundle: the one of the first bar.
        bars: all stored bars, in the units in which they were seen.
        line: the account's first line.
        adjustments: changes of units, oldest first.
    """

    def __init__(
        self,
        trader: Trader,
        bundle: Bundle,
        bars: Bars,
        line: AccountBar,
        adjustments: Sequence[Adjustment],
    ) -> None:
        self._timeframe, self._adjustments = trader.timeframe, adjustments
        self._at_once = fills_at_once(trader, SLOT_ACCOUNT)
        self._bars = adjusted(bars, [one for one in adjustments if one.time < line.time])
        self._recorder = RecordedBroker(line, late_fees=trader.broker != "sim")
        simulator = sim_broker(bundle)
        simulator.restore({"cash": line.cash, "units": line.units})
        limits, slot = RiskLimits(), trader.slot
        self._recorded, self._simulated = (
            TradingAccount(
                slot, SLOT_ACCOUNT, SLOT_ACCOUNT, bundle, broker, limits=limits, any_account=True
            )
            for broker in (self._recorder, simulator)
        )
        self._place = int(np.searchsorted(bars.time, line.time))
        needed = self._recorded.trader.bars_needed
        if self._place < needed:
            raise InputError(
                f"the stored bars of slot {slot!r} begin at {format_time(int(bars.time[0]))}, too "
                f"late for the first decision at {format_time(line.time)}"
            )
        for account in (self._recorded, self._simulated):
            account.start(bars.slice(self._place - needed, self._place))
        # Values at the last close: recomputed from the record, and the simulator's.
        self._before = (0.0, 0.0)

    def next(
        self, line: AccountBar, before: AccountBar | None, fills: Sequence[Fill], bundle: Bundle
    ) -> _Step:
        """Process the next bar, whose line is `line`, after that of `before`."""
        bar, end = ClosedBar.of(self._bars, self._place), bar_end(self._timeframe, line.time)
        if bar.time != line.time:
            raise InputError(f"the registry lacks the bar of {format_time(line.time)}")
        factors = {} if before is None else self._follow(before.time, line.time)
        if self._at_once:  # these orders were filled before the change of units
            fills = [fill.adjusted(factors.get(fill.order.ticker, 1.0)) for fill in fills]
        self._recorder.show(line, fills, borrows=self._recorded.bundle.account.allow_short)
        heir = None if bundle.hash == self._recorded.bundle.hash else bundle
        # A new champion begins with the whole history; otherwise, only its tickers matter.
        history = self._bars.slice(0 if heir else self._place, self._place + 1)
        self._place += 1
        decide, conditions = line.action is not None, Conditions(end)
        again = self._recorded.on_bar(bar, history, conditions, Changes(), decide=decide, heir=heir)
        entry = self._simulated.on_bar(
            bar, history, conditions, Changes(), decide=decide, heir=heir, transfer=again.flow
        )
        self._simulated.send(entry.orders)
        own, action = self._recorded.bundle.manifest.tickers, None
        prices = bar.in_order(history.tickers, own).close
        if line.action is not None and again.action is not None:
            recorded = np.array([line.action[ticker] for ticker in own])
            action = float(np.abs(recorded - again.action).max())
        (value, simulated), self._before = self._before, (float(again.value), float(entry.value))
        if before is None:
            return _Step(action)
        return _Step(
            action,
            _growth(before.value, line.value, line.flow),
            _growth(value, float(again.value), float(again.flow.value(own, prices))),
            _growth(simulated, float(entry.value), line.flow),
        )

    def _follow(self, first: int, end: int) -> Mapping[str, float]:
        """Follow the changes of units at first <= time < end, as the trader did.

        Returns:
            Factors of earlier prices, by ticker.
        """
        found = [one for one in self._adjustments if first <= one.time < end]
        factors = price_factors(found)
        if found:
            self._bars = adjusted(self._bars, found)
            history = self._bars.slice(0, self._place)
            for account in (self._recorded, self._simulated):
                account.adjust(history, factors)
        return factors


def _growth(before: float, value: float, flow: float) -> float:
    return (value - flow) / before - 1.0 if before > 0.0 else 0.0


def _with(day: ParityDay, step: _Step) -> ParityDay:
    return replace(
        day,
        bars=day.bars + 1,
        decisions=day.decisions + (step.action is not None),
        action=max(day.action, step.action or 0.0),
        growth=(1.0 + day.growth) * (1.0 + step.growth) - 1.0,
        simulated=(1.0 + day.simulated) * (1.0 + step.simulated) - 1.0,
        bar=max(day.bar, abs(step.growth - step.simulated)),
        unexplained=max(day.unexplained, abs(step.growth - step.again)),
    )


def _fills_by_bar(store: TraderStore, slot: str) -> Mapping[int, list[Fill]]:
    found: dict[int, list[Fill]] = {}
    for line in store.orders(slot, account=SLOT_ACCOUNT):
        if line.fill is not None:
            found.setdefault(line.order.decided, []).append(line.fill)
    return found
