"""A day of a slot's own account, computed again from its record alone.

The machine that traded continues from the state before the day, and processes the day's events
again. Beside it, ledgers and the simulator earn what the account would have earned with other
prices, fees and results: the differences are the causes of a certificate.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.trading.brokers.base import LIQUIDATED, Fill, Order
from sweepd.deploy.trading.certificates.certificate import Decisions, Recomputed, Runs, state_hash
from sweepd.deploy.trading.certificates.day_record import DayRecord, Record, bars_of, own_state
from sweepd.deploy.trading.certificates.simulated import Simulator, growth
from sweepd.deploy.trading.certificates.stored_events import committed, own_event
from sweepd.deploy.trading.closed_bar import ClosedBar
from sweepd.deploy.trading.live.events import BarClosed, Event, Halted, Resumed, Reviewed, Started
from sweepd.deploy.trading.live.machine import Machine
from sweepd.deploy.trading.live.recorded_run import dry_run
from sweepd.deploy.trading.live.records import (
    SLOT_ACCOUNT,
    AccountBar,
    AccountRecord,
    Adjustment,
    Changes,
)
from sweepd.deploy.trading.live.revisions import adjusted, price_factors
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.data.timeframe import format_time
from sweepd.envs.crypto.params import EnvParams
from sweepd.envs.support.errors import InputError, RunError

# What is told of every day explains nothing.
ORDINARY = ("day", "arena", "monitor", "started")
DUST = 1e-9  # of the account's highest value in the day
Change = Literal["prices", "fees", "filled"]
CHANGES: tuple[Change, ...] = ("prices", "fees", "filled")


def bundles_needed(record: DayRecord) -> list[str]:
    """Return the hashes of the bundles that may decide in a day."""
    state = record.state["state"]
    found = [_own_account(record.state)["bundle"]] if record.state["accounts"] else []
    champion = state.get("champion")
    if champion not in (None, state.get("refused")):
        found.append(champion)
    # The tickers of the bars are in the order of the bundle that was started.
    for one in (*record.records["start"], *record.records["inputs"]):
        content = one["content"]
        if one["kind"] == "Started":
            found.append(content["bundle"])
        elif one["kind"] == "ChampionIs" and content["problem"] is None:
            found.append(content["hash"])
    return list(dict.fromkeys(found))


def recompute(record: DayRecord, library: Mapping[str, Bundle]) -> Recomputed:
    """Compute a day again.

    Args:
        record: of the day.
        library: its `bundles_needed`, by hash.

    Raises:
        InputError: it cannot be recomputed.
    """
    try:
        return _Day(record, library).run()
    except RunError as error:
        raise InputError(str(error)) from error


@dataclass
class _Rows:
    """Returns of bars, by run of `Runs`."""

    account: list[float] = field(default_factory=list)
    recorded: list[float] = field(default_factory=list)
    prices: list[float] = field(default_factory=list)
    fees: list[float] = field(default_factory=list)
    filled: list[float] = field(default_factory=list)
    free: list[float] = field(default_factory=list)


class _Day:
    """The recomputation of one day; see `recompute`."""

    def __init__(self, record: DayRecord, library: Mapping[str, Bundle]) -> None:
        self._record, self._library = record, library
        records = record.records
        self._lines = {one["time"]: AccountBar(**one) for one in records["lines"]}
        self._adjustments = [Adjustment(**one) for one in records["adjustments"]]
        self._rows, self._events = _Rows(), list[str]()
        self._bundles = dict[str, None]()
        self._count, self._worst = 0, 0.0
        self._at: int | None = None
        self._ledgers = {change: _Ledger(change) for change in CHANGES}
        self._simulator: Simulator | None = None
        self._before: AccountBar | None = None  # the recorded line of the last bar
        self._values: dict[str, float] = {}  # at the last close, by run
        self._cash, self._largest = 0.0, 0.0  # of the account: at the last close; its highest value
        self._params: EnvParams  # of the bundle that traded last
        self._sold = set[str]()  # client ids of orders whose results are in the state before
        start, *_ = [*records["start"], *records["inputs"]]
        self._bars = self._all_bars(self._bundle(start["content"]["bundle"]).manifest.tickers)

    def run(self) -> Recomputed:
        """Process the day's events, and return what follows from them."""
        for one in self._record.records["start"]:
            self._continue(one)
        for one in self._record.records["inputs"]:
            self._process(one)
        rows = self._rows
        runs = Runs(*(tuple(getattr(rows, name)) for name in _Rows.__dataclass_fields__))
        return Recomputed(
            runs,
            Decisions(count=self._count, worst=self._worst, at=self._at),
            state_hash(own_state(self._machine.snapshot())),
            tuple(self._bundles),
            tuple(self._events),
        )

    # ---- starts ----

    def _continue(self, one: Record) -> None:
        """Continue the process that was started before the day, in the state before the day."""
        event = own_event(one["kind"], one["content"], one["bar"], self._bars)
        assert isinstance(event, Started)
        last = self._record.records["history"][-1]["time"]
        self._load(event, last)
        accounts = self._record.state["accounts"]
        if accounts:
            # It had begun to trade, perhaps with a champion of later.
            event = replace(event, bundle=_own_account(self._record.state)["bundle"], lost=None)
        self._machine.handle(event)
        self._machine.state = dict(self._record.state["state"])
        if accounts:
            self._begin(last)

    def _load(self, event: Started, last: int) -> None:
        """Set the machine's history, up to bar `last`, as the start of a process does."""
        tickers = self._bundle(event.bundle).manifest.tickers
        self._bars = self._all_bars(tickers)
        end = int(np.searchsorted(self._bars.time, last, side="right"))
        if end < event.history:
            raise InputError(
                f"the bars before {format_time(last)} are {end}, and the start had {event.history}"
            )
        history = adjusted(self._bars.slice(end - event.history, end), self._adjustments)
        if not hasattr(self, "_machine"):
            self._machine = Machine(
                self._record.slot,
                self._library,
                history,
                self._record.state,
                dry_run=dry_run,
                parts=_recorded_parts(self._record.records["orders"]),
            )
        self._machine.history = history

    def _begin(self, last: int) -> None:
        """Begin ledgers and simulator with the account before the day."""
        machine, own = self._machine, self._machine.own
        if last not in self._lines:
            raise InputError(f"the account's line of {format_time(last)} is missing")
        self._before = self._lines[last]
        kept = AccountRecord(**_own_account(self._record.state))
        self._simulator = Simulator(self._record.slot, machine, kept=kept)
        self._values = dict.fromkeys(("recorded", *CHANGES, "free"), self._before.value)
        self._cash = own.trader.accounts.cash
        # What a halt sold before the day is in the state before it.
        self._sold = {fill["order"]["client_id"] for fill in kept.state["counted"]}

    # ---- the day ----

    def _process(self, one: Record) -> None:
        """Process an event of the day."""
        event = own_event(one["kind"], one["content"], one["bar"], self._bars)
        if isinstance(event, Started):
            self._load(event, one["bar"])
        elif isinstance(event, BarClosed):
            # What is filled in the bar at which a new champion takes over, the last one ordered.
            self._params = self._machine.own.bundle.account
        changes = committed(self._machine.handle(event))
        self._note(event, changes)
        match event:
            case Started() if self._simulator is not None:
                self._simulator.restart(self._machine, event)
            case Started() if self._record.state["accounts"]:
                self._begin(one["bar"])
            case Reviewed():
                self._adjust(event)
            case BarClosed():
                self._bar_closed(event, changes)

    def _bar_closed(self, event: BarClosed, changes: Changes) -> None:
        """Compare a bar."""
        machine = self._machine
        [again] = [line for line in changes.bars if line.account == SLOT_ACCOUNT]
        line = self._lines.get(again.time)
        if line is None:
            raise InputError(f"the account's line of {format_time(again.time)} is missing")
        self._compare(line, again)
        if line.action is not None:
            self._bundles[machine.own.bundle.hash] = None
        begins = self._simulator is None
        if self._simulator is None:
            self._simulator = Simulator(self._record.slot, machine, line=line)
        bar = ClosedBar.of(machine.history, len(machine.history) - 1)
        fills = [one for one in machine.entry.fills if one.order.client_id not in self._sold]
        values = {"recorded": again.value, "free": self._simulator.on_bar(machine, event)}
        for change, ledger in self._ledgers.items():
            if not begins:
                ledger.on_bar(machine, bar, fills, self._params, self._cash)
            values[change] = again.value + ledger.worth(machine.history.tickers, bar)
        before = self._before
        self._largest = max(self._largest, line.value, 0.0 if before is None else before.value)
        account = 0.0 if before is None else growth(before.value, line.value, line.flow)
        self._rows.account.append(account)
        for name, value in values.items():
            was = self._values.get(name, 0.0)
            # What rounding leaves in an account that was emptied has no return.
            grown = growth(was, value, again.flow) if was > DUST * self._largest else 0.0
            getattr(self._rows, name).append(grown)
        self._before, self._values, self._cash = line, values, again.cash

    def _compare(self, line: AccountBar, again: AccountBar) -> None:
        """Compare a bar's decision."""
        own, other = line.action, again.action
        if own is None and other is None:
            return
        self._count += 1
        worst = 2.0  # one of them decided, or about other tickers
        if own is not None and other is not None and own.keys() == other.keys():
            worst = max(abs(own[name] - other[name]) for name in own)
        if self._at is None or worst > self._worst:
            self._worst, self._at = worst, line.time

    def _adjust(self, event: Reviewed) -> None:
        found = event.review.adjustments
        self._adjustments = [*self._adjustments, *found]
        if self._simulator is not None:
            self._simulator.follow(self._machine.history, event)
        for ledger in self._ledgers.values():
            ledger.adjust(price_factors(found))

    def _note(self, event: Event, changes: Changes) -> None:
        """Note what may explain a difference."""
        told = [(kind, text) for kind, text, _ in changes.events if kind not in ORDINARY]
        match event:
            case Halted():
                told.append(("halted", event.reason))
            case Resumed():
                told.append(("resumed", "trading may go on"))
        self._events += [f"{kind}: {text}" for kind, text in told]

    # ---- records ----

    def _all_bars(self, tickers: Sequence[str]) -> Bars:
        records = self._record.records
        timeframe = next(iter(self._library.values())).manifest.timeframe
        return bars_of([*records["history"], *records["bars"]], timeframe, tickers)

    def _bundle(self, hash_: str) -> Bundle:
        if hash_ not in self._library:
            raise InputError(f"bundle {hash_} is needed")
        return self._library[hash_]


class _Ledger:
    """What the account would hold more, had its orders had other results.

    Transfers, charges for borrowing and the orders themselves are as recorded.

    Args:
        change: the simulator's prices; and its fees; and every order filled.
    """

    def __init__(self, change: Change) -> None:
        self._change = change
        self._cash = 0.0
        self._units: dict[str, float] = defaultdict(float)

    def on_bar(
        self,
        machine: Machine,
        bar: ClosedBar,
        fills: Sequence[Fill],
        params: EnvParams,
        cash: float,
    ) -> None:
        """Book the results of a bar.

        Args:
            machine: after the bar.
            bar: the bar, in the order of the machine's history.
            fills: the results.
            params: fee and slippage of the simulator.
            cash: recorded, at the last close.
        """
        tickers = machine.history.tickers
        if self._change != "prices":  # fees that the venue took later, or beside its fills
            self._cash += machine.entry.flow.cost
        spendable = math.inf if params.allow_short else max(0.0, cash + self._cash)
        for fill in fills:
            if fill.reason == LIQUIDATED:  # by the venue, not an order of the account
                continue
            asset = tickers.index(fill.order.ticker)
            moved, units = self._moved(
                fill, float(bar.open[asset]), params, hole=bool(bar.hole[asset])
            )
            if self._change == "filled" and moved < -spendable:
                moved, units = -spendable, units * spendable / -moved
            spendable += min(moved, 0.0)
            recorded, held = _recorded(fill)
            self._cash += moved - recorded
            self._units[fill.order.ticker] += units - held

    def worth(self, tickers: Sequence[str], bar: ClosedBar) -> float:
        """Return the value at the bar's close, quote units."""
        closes = dict(zip(tickers, bar.close.tolist(), strict=True))
        held = sum(units * closes[name] for name, units in self._units.items())
        return float(self._cash + held)

    def adjust(self, factors: Mapping[str, float]) -> None:
        """Follow a change of units: `factors` of earlier prices, by ticker."""
        for name in self._units:
            self._units[name] /= factors.get(name, 1.0)

    def _moved(
        self, fill: Fill, open_: float, params: EnvParams, *, hole: bool
    ) -> tuple[float, float]:
        """Return the cash and units that an order brings."""
        order, filled = fill.order, fill.status == "filled"
        whole = self._change == "filled"
        if hole or not (filled or whole):
            # The simulator fills nothing in a hole, and takes what a venue did there as it was.
            return (0.0, 0.0) if whole else _recorded(fill)
        rate: float = params.fee
        if self._change == "prices" and fill.notional > 0.0:
            rate = fill.fee / fill.notional
        price = open_ * (1.0 + (params.slippage if order.side == "buy" else -params.slippage))
        if order.side == "sell":
            units = order.units if whole else fill.units
            return units * price * (1.0 - rate), -units
        if order.units > 0.0:  # a cover pays the fee out of what it brings
            units = order.units if whole else fill.units
            return -units * price / (1.0 - rate), units
        notional = order.notional if whole else fill.notional
        return -notional, notional * (1.0 - rate) / price


def _recorded(fill: Fill) -> tuple[float, float]:
    """Return the cash and units that an order brought."""
    if fill.status != "filled":
        return 0.0, 0.0
    if fill.order.side == "sell":
        return fill.notional - fill.fee, -fill.units
    return -fill.notional, fill.units


def _recorded_parts(records: Sequence[Record]) -> Callable[[Order, float], Sequence[Order]]:
    """Return what divides an order as the broker did, of the day's orders."""
    orders = [Order(**one) for one in records]

    def parts(order: Order, _price: float) -> Sequence[Order]:
        prefix = f"{order.client_id}-"
        found = [
            one
            for one in orders
            if one.client_id.startswith(prefix) and one.client_id[len(prefix) :].isdigit()
        ]
        found.sort(key=lambda one: int(one.client_id[len(prefix) :]))
        sums = sum(one.units for one in found), sum(one.notional for one in found)
        return found if found and np.allclose(sums, (order.units, order.notional)) else (order,)

    return parts


def _own_account(state: Record) -> dict[str, Any]:
    [found] = [one for one in state["accounts"] if one["name"] == SLOT_ACCOUNT]
    return dict(found)
