"""A live session of a slot's trader: from one start to the next end or error.

The session is the shell of a `Machine`: it turns what clock, feed, broker and registry say into
events, and performs the machine's instructions. Each event that changed the machine is stored as it
was seen, in the transaction of what follows from it.

After a kill at any instant, a new session reads the last of these transactions, asks the broker
about orders with unknown results by their client ids, and continues: no order is sent twice, and
none is lost. Bars that were missed are booked without decisions; the trader decides only at the
newest bar, and not if that ended too long ago.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import suppress

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.registry.bundle_files import NAME_DIGITS
from sweepd.deploy.registry.records import ChampionMoved
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.arena.entrants import Entrants
from sweepd.deploy.trading.brokers.base import AccountState, Broker, require_paper
from sweepd.deploy.trading.feeds import SETTLE_SECONDS, Feed, RecordedFeed
from sweepd.deploy.trading.live.clock import Clock
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
    TraderOptions,
    content,
)
from sweepd.deploy.trading.live.hot_swap import LostBundle, Traded, mismatch
from sweepd.deploy.trading.live.machine import Machine, deliver, record_snapshot
from sweepd.deploy.trading.live.monitor import Monitor
from sweepd.deploy.trading.live.queries import Records
from sweepd.deploy.trading.live.recorded_run import DRY_RUN_BARS, dry_run
from sweepd.deploy.trading.live.records import (
    SHADOW,
    SLOT_ACCOUNT,
    STOPPED,
    AccountRecord,
    Trader,
    TraderInput,
)
from sweepd.deploy.trading.live.revisions import price_factors, review
from sweepd.deploy.trading.live.seen_bars import start_feed
from sweepd.deploy.trading.live.staleness import is_stale
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.deploy.trading.live.venue import Venue
from sweepd.deploy.trading.paper_trader import bars_needed
from sweepd.envs.crypto.data.timeframe import bar_end, closed_since, format_time, later
from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.supervisor import Supervisor

LATE_SECONDS = 5.0  # pause between polls for a bar that is late


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
        day_over: called when a day is over, so that it can be certified; it must not wait.

    Attributes:
        machine: the trader's state and its decisions.
        polls: number of polls that were completed.

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
        day_over: Callable[[], None] = lambda: None,
    ) -> None:
        self._options, self._registry, self._clock, self._tell = options, registry, clock, tell
        self._supervisor, self._day_over = supervisor, day_over
        self._slot, self._store = slot, TraderStore(registry.database)
        records = [one for one in self._store.accounts(slot) if one.retired is None]
        own = next((one for one in records if one.name == SLOT_ACCOUNT), None)
        # Continue with the bundle that holds the positions; a newer champion takes over at a bar.
        bundle, lost = bundle_to_trade(registry, slot)
        self._feed, broker = make_feed(bundle), make_broker(bundle)
        require_paper(options.broker, type(broker))
        if own is None:
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
        self.polls = 0
        self._status = "starting"
        self._venue = Venue(broker, bundle, make_broker)
        self._monitor = Monitor(slot, registry, self._store, SHADOW if broker.immediate else None)
        self._library = {bundle.hash: bundle}
        self._entrants = Entrants(slot, registry, self._library, options.arena)
        self._start(bundle, lost, records, own)

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
        self._obey(self._heartbeat())
        bars = self._feed.poll(self._clock.now())
        machine = self.machine
        found = review(machine.history, self._feed.again, machine.state.get("revised", {}))
        self._deliver(Reviewed(found))
        if bars:
            self._deliver(self._champion())
        for bar in bars:
            self._venue.follow(machine.own.bundle)
            reading = self._venue.reading(bar, self._feed.tickers)
            newest = bar is bars[-1]
            self._deliver(BarClosed(self._clock.now(), newest, reading, bar))
            self._status = f"processed the bar of {format_time(bar.time)}"
        if bars:
            self._deliver(ChallengersAre(self._challengers(machine.own.bundle)))
        self._check_clocks(asked=bool(bars))
        self.polls += 1

    # ---- events ----

    def _start(
        self,
        bundle: Bundle,
        lost: LostBundle | None,
        records: list[AccountRecord],
        own: AccountRecord | None,
    ) -> None:
        """Read the bars, and start the machine where the last session's ended."""
        trader, broker = self._heartbeat(), self._venue.broker
        challengers, now = self._challengers(bundle), self._clock.now()
        traded = [self._library[hash_] for hash_ in (bundle.hash, *challengers)]
        needed = max(map(bars_needed, traded)) + DRY_RUN_BARS
        seen = start_feed(
            self._feed,
            Records(self._registry.database),
            trader,
            self._store.adjustments(self._slot),
            needed=needed,
            now=now,
        )
        snapshot = record_snapshot(trader.state, records)
        self.machine = Machine(
            self._slot, self._library, seen.history, snapshot, dry_run=dry_run, parts=broker.parts
        )
        started = Started(
            now=now,
            options=_plain(self._options),
            bundle=bundle.hash,
            lost=lost,
            immediate=broker.immediate,
            shorts=broker.shorts,
            untradable=dict(broker.untradable),
            holdings=broker.account() if own is None else None,
            challengers=challengers,
            history=len(seen.history),
            halt=trader.halt,
            bars=seen.unstored,
        )
        # Virtual money continues from the record before orders are sent again.
        if own is not None:
            self._venue.restore(AccountState(**own.state["holdings"]))
        self._deliver(started)
        self._deliver(Reviewed(seen.review, at_start=True))
        self._check_clocks(asked=True)

    def _obey(self, trader: Trader) -> None:
        """Tell the machine of a halt, or of its end."""
        state, broker = self.machine.state, self._venue.broker
        changed = (trader.halt, trader.halt_sells) != (state.get("halt"), state.get("sells", False))
        if trader.halt is None:
            if changed:
                self._deliver(Resumed())
            return
        # As soon as orders are filled; with other brokers, the next bar sells.
        holds = self.machine.own.since is not None and not state.get("sold out", False)
        sells = trader.halt_sells and holds and broker.fills_now()
        if changed or sells:
            holdings = broker.account() if sells else None
            self._deliver(Halted(self._clock.now(), trader.halt, trader.halt_sells, holdings))

    def _champion(self) -> ChampionIs:
        """Return the slot's champion, which is loaded unless it was refused already."""
        champion = self._registry.slot(self._slot).champion
        assert champion is not None
        if champion in self._library or champion == self.machine.state.get("refused"):
            return ChampionIs(champion)
        try:
            self._library[champion] = self._registry.bundle(champion, Bundle)
        except InputError as error:
            return ChampionIs(champion, str(error))
        return ChampionIs(champion)

    def _challengers(self, champion: Bundle) -> tuple[str, ...]:
        """Return the hashes of the bundles that trade beside the champion, in order of entry."""
        return tuple(one.hash for one in self._entrants.of(champion))

    def _check_clocks(self, *, asked: bool) -> None:
        """Tell the machine the feed's age and, if the feed was asked for bars, other clocks."""
        now, last, skew = self._clock.now(), self.machine.last, None
        age = self._feed.age(now)
        if is_stale(age, self._feed.timeframe, last):
            self._status = f"no new bar for {closed_since(self._feed.timeframe, last, now)} bars"
        # The market's time of recorded bars is another one.
        if asked and not isinstance(self._feed, RecordedFeed):
            found = [self._feed.skew(now)]
            with suppress(RunError):  # without an answer, nothing is known
                found.append(self._venue.broker.clock_skew())
            skew = max((one for one in found if one is not None), key=abs, default=None)
        self._deliver(Checked(now, age, skew))

    # ---- instructions ----

    def _deliver(self, event: Event) -> None:
        deliver(self.machine, event, self._perform)

    def _perform(self, instruction: Instruction) -> Event | None:
        """Perform an instruction. Returns the answer, if there is one."""
        broker = self._venue.broker
        match instruction:
            case Commit():
                self._commit(instruction)
            case Submit(orders, read):
                self._venue.follow(self.machine.own.bundle)
                fills = self._venue.submit(orders)
                return Filled(fills, broker.account() if read else None)
            case Ask(orders, final):
                missing = broker.adopt(orders, final=final)
                return Found(tuple(order.client_id for order in missing))
            case Look():
                return self._look(instruction)
            case Effect():
                return self._change_registry(instruction)
            case _:
                self._tell(instruction.kind, instruction.text)
        return None

    def _commit(self, instruction: Commit) -> None:
        event, changes, machine = instruction.event, instruction.changes, self.machine
        changes.input = TraderInput(
            number=machine.state["number"],
            bar=machine.last,
            kind=type(event).__name__,
            content=content(event),
            snapshot=None if instruction.snapshot is None else dict(instruction.snapshot),
        )
        self._store.commit(self._slot, self._token, changes)
        if instruction.snapshot is not None:
            self._day_over()
        if isinstance(event, Reviewed):
            self._venue.adjust(price_factors(event.review.adjustments))
        for kind, text, _ in changes.events:
            self._tell(kind, text)

    def _look(self, look: Look) -> Judged:
        bundle, state = self._library[look.bundle], self.machine.state.get("monitor", {})
        if look.judge == "tracking":
            return self._monitor.check_tracking(bundle, look, state)
        return self._monitor.evaluate(bundle, look, state)

    def _change_registry(self, effect: Effect) -> Done:
        """Perform an effect."""
        if effect.kind == "aged":
            return self._mark_aged(effect)
        if effect.kind == "swap-refused":
            self._registry.note(self._slot, effect.kind, effect.text, effect.bundle)
            return Done(effect.id)
        try:
            left, back = self._registry.rollback(
                self._slot, effect.text, Bundle, expected=effect.bundle
            )
        except ChampionMoved:  # by an earlier process, or by somebody else
            return Done(effect.id)
        except InputError as error:
            return Done(effect.id, problem=str(error))
        told = f"from {left[:NAME_DIGITS]} to {back[:NAME_DIGITS]}"
        return Done(effect.id, ("rolled back", told))

    def _mark_aged(self, effect: Effect) -> Done:
        """Record once that the champion has aged, which lowers the bar for its challengers."""
        kinds = ["aged", "promoted", "rolled-back"]
        [*_, newest] = self._registry.events(self._slot, kinds=kinds, newest=1)
        if newest.bundle != effect.bundle or newest.kind == "aged":
            return Done(effect.id)
        self._registry.note(self._slot, "aged", effect.text, effect.bundle)
        text = "the champion has aged: a challenger that is not behind may replace it"
        return Done(effect.id, ("monitor", text))

    def _heartbeat(self) -> Trader:
        return self._store.beat(self._slot, self._token, self._status)

    def _until_next(self) -> float:
        """Return the seconds to wait before the next poll."""
        # A market with hours is waited for over nights and weekends.
        frame = self._feed.timeframe
        closes = bar_end(frame, later(frame, self.machine.last))
        due = closes + SETTLE_SECONDS - self._clock.now()
        return min(due if due > 0.0 else LATE_SECONDS, self._clock.patience)


def bundle_to_trade(registry: Registry, slot: str) -> tuple[Bundle, LostBundle | None]:
    """Return the bundle with which a session begins.

    That is the one that holds the positions; without positions, or if it cannot be loaded any more,
    the champion.

    Returns:
        The bundle, and the one from which it takes over, None if that is the same.

    Raises:
        InputError: it cannot be loaded.
    """
    champion = registry.require(slot).champion
    assert champion is not None
    accounts = TraderStore(registry.database).accounts(slot)
    hash_ = next((one.bundle for one in accounts if one.name == SLOT_ACCOUNT), champion)
    assert hash_ is not None
    try:
        return registry.bundle(hash_, Bundle), None
    except InputError as error:
        market = registry.market(hash_)
        if hash_ == champion or market is None:
            raise
        why = str(error)
    try:
        bundle = registry.bundle(champion, Bundle)
    except InputError as error:
        raise InputError(f"{why}; the champion cannot be loaded, either: {error}") from None
    held = next(one.state["trader"]["accounts"] for one in accounts if one.name == SLOT_ACCOUNT)
    shorts = any(units < 0.0 for book in held["books"] for units in book["units"])
    lost = LostBundle(*market, shorts, hash_[:NAME_DIGITS], why)
    if problem := mismatch(Traded.of(bundle), lost):
        raise InputError(lost.refused(bundle.name, problem))
    return bundle, lost


def _plain(options: TraderOptions) -> TraderOptions:
    """Return the options without what a subclass adds."""
    names = [field.name for field in dataclasses.fields(TraderOptions)]
    return TraderOptions(**{name: getattr(options, name) for name in names})
