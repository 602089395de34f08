"""The trader of a slot as a state machine: events in, instructions out.

It reads no clock, database, venue or file, so that the same events lead to the same state and the
same instructions: live, in a replay, in the dry run of a champion, when a record is recomputed, and
in a simulation. `deliver` is the loop of all of them.

Two rules hold:

    No instruction `Commit` means that nothing has changed. So events may be repeated, and only
        those that mattered are stored.
    What leaves the process is committed first, and repeated after a restart: orders (their
        client ids follow from slot, bar and ticker), and changes of the registry.

The slot's own account is read outside, whatever its broker is (`BarClosed.reading`). The accounts of
virtual money, its shadow and the challengers, are traded here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.registry.bundle_files import NAME_DIGITS
from sweepd.deploy.trading.brokers.base import Fill, Order
from sweepd.deploy.trading.closed_bar import ClosedBar
from sweepd.deploy.trading.live.account import Act, Parts, TradingAccount, whole
from sweepd.deploy.trading.live.benchmarks import BenchmarkAccounts
from sweepd.deploy.trading.live.events import (
    Ask,
    BarClosed,
    ChallengersAre,
    ChampionIs,
    Checked,
    Commit,
    Done,
    Effect,
    Event,
    Filled,
    Found,
    Halted,
    Instruction,
    Judged,
    Look,
    Resumed,
    Reviewed,
    Started,
    Submit,
    Tell,
)
from sweepd.deploy.trading.live.hot_swap import Traded, unfit
from sweepd.deploy.trading.live.own_parts import noted_parts
from sweepd.deploy.trading.live.records import (
    CHALLENGER,
    EQUAL_WEIGHT,
    SHADOW,
    SLOT_ACCOUNT,
    AccountRecord,
    Changes,
    OrderRecord,
)
from sweepd.deploy.trading.live.reports import (
    bundle_words,
    note_day,
    note_delay,
    note_risk,
    start_events,
    swap_text,
    trade_text,
    transfer_events,
)
from sweepd.deploy.trading.live.revisions import adjusted, price_factors
from sweepd.deploy.trading.live.slot_accounts import SlotAccounts
from sweepd.deploy.trading.live.staleness import note_age, note_skew
from sweepd.deploy.trading.paper_trader import Entry
from sweepd.deploy.trading.risk import Conditions
from sweepd.deploy.trading.risk_limits import RiskLimits
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.data.timeframe import DAY, bar_end, bar_seconds, later
from sweepd.envs.support.errors import InputError


class Machine:
    """The trader of a slot; `Started` is its first event.

    An exception of `handle` leaves it unusable; another one continues from the record.

    Args:
        slot: the slot.
        library: bundles by hash. It has each bundle before an event names it.
        history: the newest bars as they were seen, in the units of the snapshot, up to the last
            processed one.
        snapshot: what `snapshot` returned, or `record_snapshot`; None for a new slot.
        parts: divides an order into those that the broker accepts.
        dry_run: returns why a new champion fails on the history, None if it does not.
        act: replaces the bundles' policies.

    Attributes:
        state: what is stored for the slot as a whole, a JSON object:

            number         of events that were committed
            halt, sells    why an operator stopped trading, and whether everything is sold
            sold out       whether everything was sold at once for the halt
            champion       hash of the slot's champion
            refused        hash of a champion that could not take over
            missed         bars that were booked without a decision since the last decided one
            undecided      newest bars in a row that came too late to be decided
            stale          whether the feed has had no new bar for too long
            effects        changes of the registry that have not been confirmed
            bars           number of bars in which the traded bundle could trade freely, by hash
            monitor        state of the monitor
            prices, revised, skew, plugins    see the functions that return them
            risk, kept out, day               see `sweepd.deploy.trading.live.reports`

        entry: the newest line of the slot's own account.
        last: open of the last processed bar.
    """

    def __init__(
        self,
        slot: str,
        library: Mapping[str, Bundle],
        history: Bars,
        snapshot: Mapping[str, Any] | None = None,
        *,
        dry_run: Callable[[Bundle, Bars], str | None],
        parts: Parts = whole,
        act: Act | None = None,
    ) -> None:
        self._slot, self._library, self._parts, self._act = slot, library, parts, act
        self._dry_run = dry_run
        self.history, self.last = history, int(history.time[-1])
        self._resumed_from = snapshot or {"state": {}, "accounts": []}
        self.state: dict[str, Any] = {}
        self.entry: Entry
        self._accounts: SlotAccounts | None = None

    @property
    def limits(self) -> RiskLimits:
        """Risk rules of all accounts."""
        return self._options.limits

    @property
    def accounts(self) -> SlotAccounts:
        """The slot's accounts."""
        assert self._accounts is not None, "the machine was not started"
        return self._accounts

    @property
    def own(self) -> TradingAccount:
        """The slot's own account."""
        return self.accounts.own

    def handle(self, event: Event) -> list[Instruction]:
        """Process an event. Returns what the caller must do, in order.

        Raises:
            InputError: a start is refused.
            RunError: the account cannot be traded.
        """
        match event:
            case Started():
                return self._started(event)
            case Found():
                return self._found(event)
            case Filled():
                return self._filled(event)
            case BarClosed():
                return self._bar_closed(event)
            case Reviewed():
                return self._reviewed(event)
            case Halted():
                return self._halted(event)
            case Resumed():
                return self._resumed(event)
            case ChampionIs():
                return self._champion_is(event)
            case ChallengersAre():
                return self._challengers_are(event)
            case Checked():
                return self._checked(event)
            case Judged():
                return self._judged(event)
            case Done():
                return self._done(event)

    def snapshot(self) -> dict[str, Any]:
        """Return the state as a JSON object: with the history, another machine continues."""
        accounts = self.accounts.records()
        if self.own.since is not None:
            accounts += self._benchmarks.records(self.own.since)
        return record_snapshot(self.state, accounts)

    def _commit(
        self, event: Event, changes: Changes, snapshot: Mapping[str, Any] | None = None
    ) -> Commit:
        """Count the event, and return the transaction."""
        self._set(number=self.state.get("number", 0) + 1)
        changes.state = self.state
        return Commit(event, changes, snapshot)

    def _set(self, **values: Any) -> None:
        self.state = self.state | values

    # ---- the start ----

    def _started(self, event: Started) -> list[Instruction]:
        """Resume the accounts, or start them; take over from a lost bundle."""
        before = self._resumed_from if self._accounts is None else self.snapshot()
        self._options = event.options
        self._shorts = event.shorts
        self.state = dict(before["state"])
        records = [AccountRecord(**record) for record in before["accounts"]]
        kept = {record.name: record for record in records if record.retired is None}
        self.last = int(self.history.time[-1])
        bundle = self._library[event.bundle]
        if event.lost is not None:
            problem = self._problem_with(bundle, event.lost)
            if problem is not None:
                raise InputError(event.lost.refused(bundle.name, problem))
        self._accounts = SlotAccounts(
            self._slot, event, self._library, self.history, kept, parts=self._parts, act=self._act
        )
        self._benchmarks = BenchmarkAccounts(kept)
        present = {account.name for account in self.accounts}
        changes = Changes(
            accounts=[
                dataclasses.replace(record, retired="it no longer takes part")
                for record in kept.values()
                if record.kind in (SHADOW, CHALLENGER) and record.name not in present
            ]
        )
        self._note_start(event, changes, continues=SLOT_ACCOUNT in kept)
        if event.bars is not None:
            bars = event.bars
            changes.market += [(bars.tickers, ClosedBar.of(bars, row)) for row in range(len(bars))]
        # Orders for an old bar would trade at prices that the policy never saw.
        self._late = None
        if event.halt is not None:
            self._late = f"not sent before the halt: {event.halt}"
        elif event.now - bar_end(self._timeframe, self.last) > self._max_delay:
            self._late = "the trader was not running when it was due"
        # The simulator fills at the next open, which is still to come: nothing is late there.
        self._late = self._late if event.immediate else None
        asked = [Ask(self.own.open, self._late is not None)] if self.own.open else []
        # A record that an earlier version began can be recomputed from here on.
        first = SLOT_ACCOUNT in kept and self.state.get("number", 0) == 0
        commit = self._commit(event, changes, before if first else None)
        return [commit, *asked, *self._effects()]

    def _note_start(self, event: Started, changes: Changes, *, continues: bool) -> None:
        """Add what is told of a start."""
        # `ChampionIs` precedes the first bar, and a champion that was refused is examined again.
        self._set(champion=None, refused=None)
        if event.lost is not None:
            changes.accounts += self.accounts.records(SLOT_ACCOUNT, SHADOW)
        self.state, troubles = noted_parts(self.state, event.options.plugins, event.immediate)
        told = [
            *start_events(event, self.own.bundle, self.last, continues=continues),
            *(("trouble", sentence) for sentence in troubles),
        ]
        changes.events += [(kind, text, self.last) for kind, text in told]

    def _found(self, event: Found) -> list[Instruction]:
        """Send the orders of an earlier process that are missing, unless it is too late."""
        missing = [order for order in self.own.open if order.client_id in event.missing]
        if self._late is None or not missing:
            return [Submit(missing)]
        unfilled = [Fill(order, "unfilled", order.decided, reason=self._late) for order in missing]
        self.own.hear(unfilled)
        # Nothing is sent; this reads the results of those that arrived.
        return [self._commit(event, self._own_changes(unfilled)), Submit([])]

    # ---- a bar ----

    def _bar_closed(self, event: BarClosed) -> list[Instruction]:
        """Process one closed bar: decide for every account, send, look at the record."""
        assert event.bar is not None
        bar = event.bar.continuing(self.history.close[-1])
        # From here, the UTC day can be recomputed by itself.
        new_day = bar.time // DAY != self.last // DAY
        before = self.snapshot() if new_day else None
        tickers = self.history.tickers
        self.history = bar.appended_to(self.history).slice(1, len(self.history) + 1)
        self._set(prices=dict(zip(tickers, map(float, bar.close), strict=True)))
        # Everything about the bar is one transaction: a restart finds all of it or nothing.
        changes = Changes(last_bar=bar.time, market=[(tickers, bar)])
        delay = event.now - bar_end(self._timeframe, bar.time)
        self.state, changes.events = note_delay(
            self.state, bar.time, delay, self._max_delay, newest=event.newest
        )
        decide = event.newest and delay <= self._max_delay
        # A new champion takes over only at a bar at which it decides itself.
        heir = self._heir(changes) if decide and self.state.get("halt") is None else None
        bundle = self.own.bundle
        self.entry = self.accounts.on_bar(
            event,
            bar,
            self.history,
            lambda halted: self.conditions(event.now, bar, halted=halted),
            changes,
            decide=decide,
            heir=heir,
        )
        self._note_own(bar, bundle, changes)
        self._note_benchmarks_and_day(bar, changes)
        # The monitor judges the champion, so only while it is the traded bundle.
        looks: list[Instruction] = []
        if decide and self.state["champion"] == self.own.bundle.hash:
            looks = self._looks(bar)
        self.last = bar.time
        told = [_trade(fill) for fill in changes.fills if self.own.owns(fill.order)]
        commit = self._commit(event, changes, before)
        return [commit, *told, *self._sent(self.entry.orders), *self._effects(), *looks]

    def _note_own(self, bar: ClosedBar, before: Bundle, changes: Changes) -> None:
        """Add the events of the slot's own account: a new bundle, risk rules, transfers."""
        if self.own.bundle is not before:
            swapped = swap_text(self.own.bundle, bundle_words(before))
            changes.events.append(("swapped", swapped, bar.time))
        self.state, events = note_risk(self.entry, self.state)
        changes.events += [*events, *transfer_events(self.entry, bar, self.history.tickers)]

    def conditions(self, now: float, bar: ClosedBar, *, halted: bool = True) -> Conditions:
        """Return the input of the risk rules; a halt stops the slot's own account alone."""
        age = max(0.0, now - bar_end(self._timeframe, bar.time))
        if not halted:
            return Conditions(now, age)
        return Conditions(now, age, self.state.get("halt"), self.state.get("sells", False))

    def _note_benchmarks_and_day(self, bar: ClosedBar, changes: Changes) -> None:
        """Add the benchmarks' lines, and the summary of a day that has ended."""
        params, since = self.own.bundle.account, self.own.since
        assert since is not None
        tickers = self.history.tickers
        self._benchmarks.on_bar(
            bar, tickers, since, changes, fee=params.fee, slippage=params.slippage
        )
        equal = next(line.value for line in changes.bars if line.account == EQUAL_WEIGHT)
        self.state, events = note_day(changes.bars[0], equal, self.state)
        changes.events += events

    def _heir(self, changes: Changes) -> Bundle | None:
        """Return a new champion that can take over; record once why one cannot."""
        champion = self.state["champion"]
        if champion in (None, self.own.bundle.hash, self.state.get("refused")):
            return None
        bundle = self._library[champion]
        problem = self._problem_with(bundle, Traded.of(self.own.bundle))
        if problem is None:
            return bundle
        self._refuse(champion, problem, changes)
        return None

    def _refuse(self, champion: str, problem: str, changes: Changes) -> None:
        """Record that a champion cannot take over, here and in the slot's history."""
        text = (
            f"{champion[:NAME_DIGITS]} cannot take over; {bundle_words(self.own.bundle)} continues: "
            f"{problem}"
        )
        changes.events.append(("swap refused", text, self.last))
        self._set(refused=champion)
        self._request("swap-refused", champion, text)

    def _problem_with(self, bundle: Bundle, traded: Traded) -> str | None:
        names = {"broker": self._options.broker, "feed": self._options.feed}
        problem = unfit(bundle, traded, **names, shorts=self._shorts)
        return problem or self._dry_run(bundle, self.history)

    def _looks(self, bar: ClosedBar) -> list[Instruction]:
        """Return the looks at the record that may be due, and count the bar."""
        # Bars in which a rule restricts trading do not count as the policy's record.
        bundle, free = self.own.bundle.hash, 0 if self.state.get("risk") else 1
        bars = self.state.get("bars", {}).get(bundle, -1) + free
        self._set(bars={bundle: bars})
        looks = [self._look("monitor")]
        if bar.time // DAY != later(self._timeframe, bar.time) // DAY:  # the last of a day
            looks.append(self._look("tracking"))
        return looks

    def _look(self, judge: Any) -> Instruction:
        bundle, state = self.own.bundle.hash, self.state
        return Look(judge, bundle, state["bars"][bundle], state.get("kept out", []))

    # ---- results, halts, units ----

    def _sent(self, orders: Sequence[Order]) -> list[Instruction]:
        return [Submit(orders)] if orders else []

    def _filled(self, event: Filled) -> list[Instruction]:
        """Note results that were known when the orders were sent."""
        if not event.fills and event.holdings is None:
            return []
        self.own.hear(event.fills)
        if event.holdings is not None:
            self.own.book_sales(event.holdings)
        commit = self._commit(event, self._own_changes(event.fills))
        return [commit, *map(_trade, event.fills)]

    def _own_changes(self, fills: Sequence[Fill]) -> Changes:
        return Changes(fills=list(fills), accounts=[self.own.record()])

    def _halted(self, event: Halted) -> list[Instruction]:
        """Stop; sell everything at once where orders are filled at once, or at the next bar."""
        self._set(halt=event.reason, sells=event.sells)
        changes, orders = Changes(), tuple[Order, ...]()
        if not event.sells:
            self._set(**{"sold out": False})
        elif event.holdings is not None and not self.state.get("sold out", False):
            # Stored with the orders, so that a restart does not sell again.
            self._set(**{"sold out": True})
            prices = self.state.get("prices", {})
            orders = self.own.sell_all(self.last, event.now, event.holdings, prices)
            changes.intents = [OrderRecord.of(SLOT_ACCOUNT, order) for order in orders]
            changes.accounts = [self.own.record()]
        commit = self._commit(event, changes)
        return [commit, Submit(orders, read=True)] if changes.accounts else [commit]

    def _resumed(self, event: Resumed) -> list[Instruction]:
        self._set(halt=None, sells=False, **{"sold out": False})
        return [self._commit(event, Changes())]

    def _reviewed(self, event: Reviewed) -> list[Instruction]:
        """Record how the feed's bars differ from those that were seen, and follow new units."""
        found = event.review
        changes = Changes(
            adjustments=found.adjustments,
            events=[(kind, text, self.last) for kind, text in found.events],
        )
        if not changes.events and found.revised == self.state.get("revised", {}):
            return []
        self._set(revised=found.revised)
        if factors := price_factors(found.adjustments):
            self._follow(found.adjustments, factors, at_start=event.at_start)
            changes.accounts = self.accounts.records()
            if self.own.since is not None:
                changes.accounts += self._benchmarks.records(self.own.since)
        elif found.adjustments:  # of volumes alone
            self.history = adjusted(self.history, found.adjustments)
        if found.alarm is not None:
            text = f"{found.alarm}; trading is halted until: sweepd trader resume {self._slot}"
            changes.events.append(("alert", text, self.last))
            self._halt(found.alarm, changes, sells=False)
        return [self._commit(event, changes)]

    def _follow(
        self, adjustments: Sequence[Any], factors: Mapping[str, float], *, at_start: bool
    ) -> None:
        """Count everything in the units after the adjustments."""
        self.history = adjusted(self.history, adjustments)
        self.accounts.adjust(self.history, factors, at_start=at_start)
        self._benchmarks.adjust(factors, self.history.tickers)
        prices = self.state.get("prices", {})
        self._set(prices={name: price * factors.get(name, 1.0) for name, price in prices.items()})

    def _halt(self, reason: str, changes: Changes, *, sells: bool) -> None:
        """Halt the slot within a transaction, as an operator would."""
        changes.halt = (reason, sells)
        self._set(halt=reason, sells=sells)

    def _checked(self, event: Checked) -> list[Instruction]:
        """Report once that bars are stale or a clock is wrong, and once that they are not."""
        feed, before = self._options.feed, self.state
        self.state, events = note_age(event, before, feed, self._timeframe, self.last)
        self.state, more = note_skew(event, self.state, feed, self._timeframe, self.last)
        if self.state == before:
            return []
        return [self._commit(event, Changes(events=[*events, *more]))]

    # ---- champion and challengers ----

    def _champion_is(self, event: ChampionIs) -> list[Instruction]:
        if event.hash in (self.state["champion"], self.state.get("refused")):
            return []
        changes = Changes()
        self._set(champion=event.hash, refused=None)
        if event.problem is not None:
            self._refuse(event.hash, event.problem, changes)
        return [self._commit(event, changes), *self._effects()]

    def _challengers_are(self, event: ChallengersAre) -> list[Instruction]:
        changes = Changes()
        bundles = [self._library[hash_] for hash_ in event.hashes]
        self.accounts.compete(bundles, self.history, changes)
        return [self._commit(event, changes)] if changes.events else []

    # ---- judges and the registry ----

    def _judged(self, event: Judged) -> list[Instruction]:
        """Note what the monitor found, and stop an account that trades worse than scored."""
        if event.state == self.state.get("monitor", {}) and not event.told:
            return []
        self._set(monitor=event.state)
        changes = Changes(events=[(kind, text, self.last) for kind, text in event.told])
        if event.worse is not None and event.aged:
            self._request("aged", self.own.bundle.hash, event.worse)
        if event.worse is not None and self._options.on_alert == "cash":
            self._to_cash(f"the live monitor: {event.worse}", changes)
        elif event.worse is not None and self._options.on_alert == "rollback":
            self._request("rollback", self.own.bundle.hash, f"the live monitor: {event.worse}")
        return [self._commit(event, changes), *self._effects()]

    def _to_cash(self, why: str, changes: Changes) -> None:
        text = f"sells everything, until: sweepd trader resume {self._slot}"
        changes.events.append(("halted", text, self.last))
        self._halt(why, changes, sells=True)

    def _request(self, kind: str, bundle: str, text: str) -> None:
        """Ask for a change of the registry, from this transaction on until it is confirmed."""
        effect = {"id": f"{self.last}-{kind}", "kind": kind, "bundle": bundle, "text": text}
        self._set(effects=[*self.state.get("effects", []), effect])

    def _effects(self) -> list[Instruction]:
        return [Effect(**effect) for effect in self.state.get("effects", [])]

    def _done(self, event: Done) -> list[Instruction]:
        """Forget an effect that was performed; without a previous champion, sell everything."""
        waiting = self.state.get("effects", [])
        done = [effect for effect in waiting if effect["id"] == event.effect]
        if not done:
            return []
        self._set(effects=[effect for effect in waiting if effect not in done])
        changes = Changes()
        if event.told is not None:
            changes.events.append((*event.told, self.last))
        if event.problem is not None:
            changes.events.append(("alert", f"no rollback: {event.problem}", self.last))
            self._to_cash(done[0]["text"], changes)
        return [self._commit(event, changes)]

    # ---- settings ----

    @property
    def _timeframe(self) -> str:
        return self.history.timeframe

    @property
    def _max_delay(self) -> float:
        chosen = self._options.max_delay
        return bar_seconds(self._timeframe) / 4 if chosen is None else chosen


def deliver(machine: Machine, event: Event, perform: Callable[[Instruction], Event | None]) -> None:
    """Let a machine process an event, and perform its instructions and what their answers cause."""
    for instruction in machine.handle(event):
        answer = perform(instruction)
        if answer is not None:
            deliver(machine, answer, perform)


def record_snapshot(state: Mapping[str, Any], accounts: Sequence[AccountRecord]) -> dict[str, Any]:
    """Return the snapshot of a slot's state and of its accounts' records."""
    return {"state": dict(state), "accounts": [vars(record) for record in accounts]}


def _trade(fill: Fill) -> Tell:
    return Tell("trade", trade_text(fill))
