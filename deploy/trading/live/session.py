"""A live session of a slot's trader: from one start to the next end or error.

A bar takes one path:

    run            waits, and calls `poll`
    poll           asks the feed for closed bars
    _on_bar        processes one bar:
      TradingAccount.on_bar   per account: book fills, mark, judge risk, decide
      _commit                 results, lines, states and the orders to send, in one transaction
      TradingAccount.send     per account: send the orders
      _commit                 results that are known at once
      _evaluate               monitor and arena, when they are due

After a kill at any instant, a new session reads the last of these transactions, asks the broker
about orders with unknown results by their client ids, which follow from slot, bar and ticker, and
continues: no order is sent twice, and none is lost. Bars that were missed are booked without
decisions; the trader decides only at the newest bar, and not if that ended too long ago.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.registry.bundle_files import NAME_DIGITS
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.brokers.base import Broker, Order, require_paper
from sweepd.deploy.trading.brokers.sim import sim_broker
from sweepd.deploy.trading.closed_bar import ClosedBar
from sweepd.deploy.trading.feeds import SETTLE_SECONDS, Feed, RecordedFeed
from sweepd.deploy.trading.flows import Flow
from sweepd.deploy.trading.live.account import TradingAccount
from sweepd.deploy.trading.live.arena import Arena, challenger_name
from sweepd.deploy.trading.live.benchmarks import BenchmarkAccounts
from sweepd.deploy.trading.live.clock import Clock
from sweepd.deploy.trading.live.feed_watch import FeedWatch
from sweepd.deploy.trading.live.hot_swap import (
    DRY_RUN_BARS,
    LostBundle,
    Traded,
    bundle_to_trade,
    problem_with,
)
from sweepd.deploy.trading.live.monitor import Monitor, OnAlert
from sweepd.deploy.trading.live.own_parts import noted_parts
from sweepd.deploy.trading.live.queries import Records
from sweepd.deploy.trading.live.records import (
    CHALLENGER,
    EQUAL_WEIGHT,
    SHADOW,
    SLOT_ACCOUNT,
    STOPPED,
    UNDECIDED_BARS,
    AccountKind,
    AccountRecord,
    Adjustment,
    Changes,
    Event,
    OrderRecord,
    Trader,
)
from sweepd.deploy.trading.live.reports import note_day, note_risk, trade_text, transfer_events
from sweepd.deploy.trading.live.revisions import (
    Review,
    adjusted,
    adjusted_order,
    price_factors,
    review,
)
from sweepd.deploy.trading.live.seen_bars import start_feed
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.deploy.trading.paper_trader import Entry
from sweepd.deploy.trading.risk import Conditions
from sweepd.deploy.trading.risk_limits import RiskLimits
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.data.timeframe import DAY, bar_end, bar_seconds, format_time, later
from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.supervisor import Supervisor

LATE_SECONDS = 5.0  # pause between polls for a bar that is late


@dataclass(frozen=True)
class TraderOptions:
    """How a slot is traded.

    broker, feed: names, which the database stores.
    limits: risk rules of every account.
    any_account: accept an account whose value is far from what the bundle was trained with.
    max_delay: seconds after a bar's end in which its orders may be sent; default: a quarter bar.
    arena: number of challengers that trade on virtual money.
    on_alert: reaction to an account that trades worse than scored.
    plugins: what is recorded of a broker and a feed of another package, by kind.
    """

    broker: str = "sim"
    feed: str = "alpaca"
    limits: RiskLimits = field(default_factory=RiskLimits)
    any_account: bool = False
    max_delay: float | None = None
    arena: int = 0
    on_alert: OnAlert = "alert"
    plugins: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class LiveSession:
    """Trades a slot until it ends or an error occurs; a new session continues from the database.

    Args:
        slot: the slot.
        options: how it is traded.
        registry: the registry that holds it.
        make_broker: called once with the traded bundle.
        make_feed: called once with the traded bundle.
        clock: the market's time.
        tell: receives kind and text of every event.
        supervisor: the service manager that is told that the process is alive.

    Raises:
        InputError: it cannot start.
        Replaced: another process trades the slot now.
        TryAgainLater, RunError: broker, feed or database are out of reach.
    """

    def __init__(
        self,
        slot: str,
        options: TraderOptions,
        registry: Registry,
        *,
        make_broker: Callable[[Bundle], Broker],
        make_feed: Callable[[Bundle], Feed],
        clock: Clock,
        tell: Callable[[str, str], None],
        supervisor: Supervisor,
    ) -> None:
        self._options, self._registry, self._clock, self._tell = options, registry, clock, tell
        self._supervisor = supervisor
        self._slot, self._store = slot, TraderStore(registry.database)
        kept = {one.name: one for one in self._store.accounts(slot) if one.retired is None}
        # Continue with the bundle that holds the positions; a newer champion takes over at a bar.
        bundle, lost = bundle_to_trade(registry, slot)
        self._timeframe = bundle.manifest.timeframe
        quarter = bar_seconds(self._timeframe) / 4
        self._max_delay = quarter if options.max_delay is None else options.max_delay
        self._feed, broker = make_feed(bundle), make_broker(bundle)
        require_paper(options.broker, type(broker))
        if SLOT_ACCOUNT not in kept:
            for ticker, why in broker.untradable.items():
                raise InputError(
                    f"{ticker}: {why}; promote a bundle without it, or trade with --broker sim"
                )
        self._token = self._store.take_over(
            slot,
            broker=options.broker,
            feed=options.feed,
            timeframe=bundle.manifest.timeframe,
            venue_account=broker.venue_account,
        )
        self.polls = 0  # polls that were completed
        self._refused: str | None = None  # hash of a champion that could not take over
        self._watch = FeedWatch(self._feed, options.feed, broker)
        self._status = "starting"
        trader = self._heartbeat()
        self._history: Bars  # the newest bars as they were seen, in the present units
        self._state: dict[str, Any] = dict(trader.state)
        self._own = self._account(
            SLOT_ACCOUNT, SLOT_ACCOUNT, bundle, broker, options.any_account, make_broker
        )
        self._accounts = [self._own]  # the slot's own account stays the first
        simulator = None
        if broker.immediate:
            simulator = SHADOW
            virtual = sim_broker(bundle, broker.account().cash)
            self._accounts.append(self._account(SHADOW, SHADOW, bundle, virtual))
        self._simulated = simulator or SLOT_ACCOUNT  # the account challengers are compared with
        self._monitor = Monitor(slot, registry, self._store, options.on_alert, simulator)
        self._arena = Arena(slot, registry, self._store, options.arena)
        self._accounts += map(self._challenger, self._arena.entrants(bundle))
        self._benchmarks = BenchmarkAccounts(kept)
        self._start(kept, trader, lost)

    def run(self) -> None:
        """Trade until the clock's `stop` is set, or recorded bars end."""
        self._supervisor.ready(f"{self._slot}: {self._status}")
        while not self._clock.stop.is_set():
            self.poll()
            self._supervisor.alive(lambda: f"{self._slot}: {self._status}")
            if isinstance(self._feed, RecordedFeed) and self._feed.over:
                break
            self._clock.wait(self._until_next())
        self._status = STOPPED
        self._heartbeat()

    def poll(self) -> None:
        """Obey a halt, and process the bars that have closed since the last poll."""
        trader = self._heartbeat()
        self._obey(trader)
        bars = self._feed.poll(self._clock.now())
        found = review(self._history, self._feed.again, self._state.get("revised", {}))
        self._history = adjusted(self._history, found.adjustments)
        self._follow(found, self._accounts)
        trader = trader if found.alarm is None else self._heartbeat()
        for bar in bars:
            delay, newest = self._clock.now() - bar_end(self._timeframe, bar.time), bars[-1] is bar
            late = delay > self._max_delay
            if newest:
                undecided = self._state.get("undecided", 0) + 1 if late else 0
                self._state = self._state | {"undecided": undecided}
            self._on_bar(bar, trader, decide=newest and not late)
            if newest and late and undecided == UNDECIDED_BARS:
                self._event(
                    "alert",
                    f"{undecided} bars in a row came too late to be decided, the last one "
                    f"{delay:,.0f} s after its end, and the limit is {self._max_delay:,.0f} s: "
                    "check this machine's clock and the feed, or set --max-delay",
                )
        if len(bars) > 1:
            self._event(
                "caught up", f"{len(bars) - 1} missed bars were booked; nothing was traded in them"
            )
        self._watch_feed(asked=bool(bars))
        self.polls += 1

    # ---- a bar ----

    def _on_bar(self, bar: ClosedBar, trader: Trader, *, decide: bool) -> None:
        """Process one closed bar: decide for every account, commit, send, commit the results."""
        history = self._history
        bar = bar.continuing(history.close[-1])
        self._history = bar.appended_to(history).slice(1, len(history) + 1)
        prices = dict(zip(self._feed.tickers, map(float, bar.close), strict=True))
        self._state = self._state | {"prices": prices}
        # A new champion takes over only at a bar at which it decides itself.
        heir = self._heir() if decide and trader.halt is None else None
        # Everything about the bar is one transaction: a restart finds all of it or nothing.
        changes = Changes(last_bar=bar.time, market=[(self._feed.tickers, bar)])
        orders = self._decide(bar, trader, changes, heir=heir, decide=decide)
        self._note_benchmarks_and_day(bar, changes)
        changes.state = self._state
        self._status = f"processed the bar of {format_time(bar.time)}"
        self._commit(changes)  # before anything is sent: a restart finds every order here
        self._last = bar.time
        fills = [fill for account, sent in orders for fill in account.send(sent)]
        # A kill before this commit is repaired by `_recover`, which asks the broker.
        if fills:
            self._commit(Changes(fills=fills))
        for fill in changes.fills + fills:
            if self._own.owns(fill.order):
                self._tell("trade", trade_text(fill))
        if decide:
            self._evaluate(bar)

    def _decide(
        self, bar: ClosedBar, trader: Trader, changes: Changes, *, heir: Bundle | None, decide: bool
    ) -> list[tuple[TradingAccount, tuple[Order, ...]]]:
        """Let every account process the bar. Returns the orders to send, by account."""
        orders: list[tuple[TradingAccount, tuple[Order, ...]]] = []
        transfer = Flow()  # into the slot's own account; the shadow repeats it
        for account in list(self._accounts):
            before = account.bundle
            try:
                entry = account.on_bar(
                    bar,
                    self._history,
                    self._conditions(bar, trader, account),
                    changes,
                    decide=decide,
                    heir=None if account.kind == CHALLENGER else heir,
                    transfer=transfer if account.kind == SHADOW else None,
                )
            # A challenger that fails retires; the slot's own account must not be affected.
            except RunError as error:
                if account.kind != CHALLENGER:
                    raise
                self._retire(account, str(error), changes)
                continue
            orders.append((account, entry.orders))
            if account is self._own:
                transfer = entry.flow
                self._note_own(bar, entry, before, changes)
        return orders

    def _conditions(self, bar: ClosedBar, trader: Trader, account: TradingAccount) -> Conditions:
        """Return the input of the risk rules; an operator's halt does not stop challengers."""
        now, end = self._clock.now(), bar_end(self._timeframe, bar.time)
        halted = account.kind != CHALLENGER
        return Conditions(
            now, max(0.0, now - end), trader.halt if halted else None, trader.halt_sells and halted
        )

    def _note_own(self, bar: ClosedBar, entry: Entry, before: Bundle, changes: Changes) -> None:
        """Add the events of the slot's own account: a new bundle, risk rules, transfers."""
        if self._own.bundle is not before:
            text = (
                f"{_words(self._own.bundle)} takes over from {_words(before)}, with the present "
                "positions"
            )
            changes.events.append(("swapped", text, bar.time))
        self._state, events = note_risk(entry, self._state)
        changes.events += events
        changes.events += transfer_events(entry, bar, self._feed.tickers)

    def _note_benchmarks_and_day(self, bar: ClosedBar, changes: Changes) -> None:
        """Add the benchmarks' lines, and the summary of a day that has ended."""
        params, since = self._own.bundle.account, self._own.since
        assert since is not None
        self._benchmarks.on_bar(
            bar, self._feed.tickers, since, changes, fee=params.fee, slippage=params.slippage
        )
        equal = next(line.value for line in changes.bars if line.account == EQUAL_WEIGHT)
        self._state, events = note_day(changes.bars[0], equal, self._state)
        changes.events += events

    # ---- the start ----

    def _start(
        self, kept: dict[str, AccountRecord], trader: Trader, lost: LostBundle | None
    ) -> None:
        """Resume the accounts from the record, or start them; take over from a lost bundle."""
        needed = max(account.trader.bars_needed for account in self._accounts) + DRY_RUN_BARS
        adjustments = self._store.adjustments(self._slot)
        seen = start_feed(
            self._feed,
            Records(self._registry.database),
            trader,
            adjustments,
            needed=needed,
            now=self._clock.now(),
        )
        self._history = seen.history
        self._last = int(seen.history.time[-1])
        resumed = [account for account in self._accounts if account.name in kept]
        if lost is not None:
            problem = self._problem_with(self._own.bundle, lost)
            if problem is not None:
                raise InputError(lost.refused(self._own.bundle.name, problem))
        for account in resumed:
            before = None if lost is None or account.kind == CHALLENGER else lost.tickers
            account.resume(seen.history, kept[account.name], before)
        for account in self._accounts:
            if account not in resumed:
                account.start(seen.history)
        present = {account.name for account in self._accounts}
        for record in kept.values():
            if record.kind == CHALLENGER and record.name not in present:
                gone = replace(record, retired="it no longer takes part")
                self._commit(Changes(accounts=[gone]))
        if trader.last_bar is not None:
            self._recover(trader, adjustments)
        if lost is not None:
            self._note_takeover(lost)
        self._follow(seen.review, resumed)
        text = f"{_words(self._own.bundle)} starts with broker {self._options.broker}"
        if trader.last_bar is not None:
            text = f"continues after the bar of {format_time(trader.last_bar)}"
        new = seen.unstored
        self._state, events = self._watch.clock(self._last, self._clock.now(), self._state)
        self._state, more = noted_parts(self._state, self._options.plugins, self._own.broker)
        events += [("trouble", sentence, self._last) for sentence in more]
        changes = Changes(state=self._state, events=[("started", text, self._last), *events])
        changes.market += [(new.tickers, ClosedBar.of(new, row)) for row in range(len(new))]
        self._commit(changes)
        if trader.last_bar is not None:
            for ticker, why in self._own.broker.untradable.items():
                self._event(
                    "untradable",
                    f"{ticker}: {why} any more; its position stays, and the other tickers are "
                    "traded",
                )

    def _recover(self, trader: Trader, adjustments: Sequence[Adjustment]) -> None:
        """Look up the results of orders of an earlier process, and send those that are missing."""
        # Orders for an old bar would trade at prices that the policy never saw.
        late = None
        if trader.halt is not None:
            late = f"not sent before the halt: {trader.halt}"
        elif self._clock.now() - bar_end(self._timeframe, self._last) > self._max_delay:
            late = "the trader was not running when it was due"
        since = [one for one in adjustments if one.time == self._last]
        lines = [
            adjusted_order(line, since)
            for line in self._store.orders(self._slot, decided=self._last)
        ]
        fills = [
            fill
            for account in self._accounts
            for fill in account.recover(
                [line for line in lines if line.account == account.name], late=late
            )
        ]
        if fills:
            self._store.commit(self._slot, self._token, Changes(fills=fills))

    def _note_takeover(self, lost: LostBundle) -> None:
        """Record that the accounts of a bundle that cannot be loaded trade the champion."""
        name = _words(self._own.bundle)
        text = f"{name} takes over from {lost.name}, with the present positions"
        why = f"{lost.why}; the champion takes over at the start, not at a bar"
        moved = [account.record() for account in self._accounts if account.kind != CHALLENGER]
        events: list[Event] = [("alert", why, self._last), ("swapped", text, self._last)]
        self._commit(Changes(accounts=moved, events=events))

    def _follow(self, found: Review, accounts: Sequence[TradingAccount]) -> None:
        """Record how the feed's bars differ from those that were seen, and follow new units.

        Args:
            found: the differences; the history follows them already.
            accounts: those that hold amounts in the earlier units.
        """
        self._state = self._state | {"revised": found.revised}
        if found.alarm is not None:
            self._store.halt(self._slot, found.alarm, sells=False)
        factors = price_factors(found.adjustments)
        events: list[Event] = [(kind, text, self._last) for kind, text in found.events]
        changes = Changes(adjustments=found.adjustments, events=events)
        if factors:
            for account in accounts:
                account.adjust(self._history, factors)
            self._benchmarks.adjust(factors, self._feed.tickers)
            changes.accounts = [one.record() for one in accounts if one.since is not None]
            if self._own.since is not None:
                changes.accounts += self._benchmarks.records(self._own.since)
            prices = self._state.get("prices", {})
            self._state = self._state | {
                "prices": {name: price * factors.get(name, 1.0) for name, price in prices.items()}
            }
        if found.alarm is not None:
            text = f"{found.alarm}; trading is halted until: sweepd trader resume {self._slot}"
            events.append(("alert", text, self._last))
        if events:
            changes.state = self._state
            self._commit(changes)

    # ---- arena and monitor ----

    def _evaluate(self, bar: ClosedBar) -> None:
        """After a bar: run the monitor and the arena if due, and update the challengers."""
        bundle, told = self._own.bundle, list[tuple[str, str]]()
        # Arena and monitor judge the champion, so only while it is the traded bundle.
        if self._registry.slot(self._slot).champion == bundle.hash:
            challengers = [one for one in self._accounts if one.kind == CHALLENGER]
            arena, news = self._arena.judge(
                self._simulated, bundle, challengers, bar.time, self._state.get("arena", {})
            )
            # Bars in which a rule restricts trading do not count as the policy's record.
            free = 0 if self._state.get("risk") else 1
            traded = self._state.get("bars", {}).get(bundle.hash, -1) + free
            monitor, more = self._monitor.evaluate(
                bundle, traded, self._state.get("monitor", {}), self._state.get("kept out", [])
            )
            if bar.time % DAY == DAY - bar_seconds(self._timeframe):
                monitor, strays = self._monitor.check_tracking(bundle, monitor)
                more = [*more, *strays]
            told = [*news, *more]
            self._state = self._state | {
                "arena": arena,
                "monitor": monitor,
                "bars": {bundle.hash: traded},
            }
        changes = Changes(state=self._state, events=[(kind, text, bar.time) for kind, text in told])
        self._update_challengers(changes)
        self._commit(changes)

    def _update_challengers(self, changes: Changes) -> None:
        """Retire challengers that no longer take part; start new ones at the next bar."""
        wanted = {challenger_name(one): one for one in self._arena.entrants(self._own.bundle)}
        present = {one.name: one for one in self._accounts if one.kind == CHALLENGER}
        for name, account in present.items():
            if name not in wanted:
                self._retire(account, "withdrawn, or replaced by other challengers", changes)
        for name in wanted.keys() - present.keys():
            account = self._challenger(wanted[name])
            if account.trader.bars_needed <= len(self._history):
                account.start(self._history)
                self._accounts.append(account)
                changes.events.append(
                    ("arena", f"{name} trades as a challenger from now on", self._last)
                )

    def _challenger(self, bundle: Bundle) -> TradingAccount:
        return self._account(challenger_name(bundle), CHALLENGER, bundle, sim_broker(bundle))

    def _account(
        self,
        name: str,
        kind: AccountKind,
        bundle: Bundle,
        broker: Broker,
        any_account: bool = True,
        remake: Callable[[Bundle], Broker] = sim_broker,
    ) -> TradingAccount:
        return TradingAccount(
            self._slot,
            name,
            kind,
            bundle,
            broker,
            limits=self._options.limits,
            any_account=any_account,
            remake=remake,
        )

    def _retire(self, account: TradingAccount, why: str, changes: Changes) -> None:
        self._accounts.remove(account)
        if account.since is not None:
            changes.accounts.append(account.record(retired=why))
        changes.events.append(("arena", f"{account.name} retires: {why}", self._last))

    # ---- halts, champions, data ----

    def _obey(self, trader: Trader) -> None:
        """Sell everything at once for a halt that sells; with other brokers the next bar sells."""
        sold = self._state.get("sold out", False)
        if trader.halt is None or not trader.halt_sells:
            self._state = self._state | {"sold out": False}
        elif not sold and self._own.broker.immediate and self._own.since is not None:
            # Stored with the orders, so that a restart does not sell again.
            self._state = self._state | {"sold out": True}
            prices = self._state.get("prices", {})
            orders = self._own.orders_to_sell_all(self._last, self._clock.now(), prices)
            intents = [OrderRecord.of(SLOT_ACCOUNT, order) for order in orders]
            self._commit(Changes(state=self._state, intents=intents))
            fills = self._own.send(orders)
            self._own.book_sales()
            self._commit(Changes(fills=fills, accounts=[self._own.record()]))

    def _heir(self) -> Bundle | None:
        """Return a new champion that can take over; record once why one cannot."""
        champion = self._registry.slot(self._slot).champion
        if champion == self._own.bundle.hash:
            self._refused = None  # if it is promoted again, it is examined again
            return None
        if champion in (None, self._refused):
            return None
        assert champion is not None
        try:
            bundle = self._registry.bundle(champion, Bundle)
            problem = self._problem_with(bundle, Traded.of(self._own.bundle))
        except InputError as error:
            problem = str(error)
        if problem is None:
            return bundle
        self._refused = champion
        text = (
            f"{champion[:NAME_DIGITS]} cannot take over; {_words(self._own.bundle)} continues: "
            f"{problem}"
        )
        self._event("swap refused", text)
        self._registry.note(self._slot, "swap-refused", text, champion)
        return None

    def _problem_with(self, bundle: Bundle, traded: Traded) -> str | None:
        names = {"broker": self._options.broker, "feed": self._options.feed}
        shorts = self._own.broker.shorts
        return problem_with(bundle, traded, self._history, **names, shorts=shorts)

    def _watch_feed(self, *, asked: bool) -> None:
        """Report a feed without new bars and, if it was asked for bars, a clock that differs."""
        now = self._clock.now()
        status, events = self._watch.age(self._last, now)
        self._status = status or self._status
        if asked:
            self._state, more = self._watch.clock(self._last, now, self._state)
            events += more
        if events:
            self._commit(Changes(state=self._state, events=events))

    # ---- the database ----

    def _heartbeat(self) -> Trader:
        return self._store.beat(self._slot, self._token, self._status)

    def _event(self, kind: str, text: str) -> None:
        self._commit(Changes(events=[(kind, text, self._last)]))

    def _commit(self, changes: Changes) -> None:
        self._store.commit(self._slot, self._token, changes)
        for kind, text, _ in changes.events:
            self._tell(kind, text)

    def _until_next(self) -> float:
        """Return the seconds to wait before the next poll."""
        # A market with hours is waited for over nights and weekends.
        closes = bar_end(self._timeframe, later(self._timeframe, self._last))
        due = closes + SETTLE_SECONDS - self._clock.now()
        return min(due if due > 0.0 else LATE_SECONDS, self._clock.patience)


def _words(bundle: Bundle) -> str:
    market = ", synthetic market" if bundle.manifest.data.synthetic else ""
    return f"{bundle.name} (trial {bundle.origin.trial} of {bundle.origin.study}{market})"
