"""A slot's live trader: one closed bar after another, until it is told to end.

Every bar is one transaction and what follows from it: what became of the last bar's orders, the line of every lane and
the orders about to be sent are committed; then they are sent; then what is known of them at once is committed. After a
kill at any instant a new session finds the last of these transactions, asks the broker about orders whose fate is
unknown (by their client ids, which follow from slot, bar and ticker), and goes on: no bar's orders are sent twice, and
none is lost. Bars that were missed are booked, but nothing is decided at a bar that is no longer the newest, or whose
end is too long ago.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from deploy.market.bundle import Bundle, format_time
from deploy.registry.bundle_files import NAME_DIGITS
from deploy.registry.registry import Registry
from deploy.trading.brokers.base import Broker, Fill, Order
from deploy.trading.brokers.sim import sim_broker
from deploy.trading.feeds import SETTLE_SECONDS, Feed, RecordedFeed
from deploy.trading.flows import Flow, rebased
from deploy.trading.live.arena import CASH, EQUAL_WEIGHT, Benchmark, benchmarks
from deploy.trading.live.clock import Clock
from deploy.trading.live.contest import Contest, lane_name
from deploy.trading.live.hot_swap import DRY_RUN_BARS, problem_with
from deploy.trading.live.lane import TradingLane, lane_trader
from deploy.trading.live.risk import RiskLimits
from deploy.trading.live.store import (
    ACCOUNT,
    STOPPED,
    Changes,
    Lane,
    LaneBar,
    LaneKind,
    OrderLine,
    Trader,
    TraderStore,
)
from deploy.trading.live.watchman import OnAlert, Watchman
from deploy.trading.paper_trader import ClosedBar, Conditions, Entry
from envs.crypto.timeframe import DAY, bar_seconds
from envs.support.errors import InputError, RunError
from envs.support.supervisor import Supervisor

MOST_SPANS = 100  # times in which risk rules kept the account from trading, that are remembered
LATE_SECONDS = 5.0  # how often a bar is asked for that is late
STALE_BARS = 3  # data older than that many bars is an alert
SHADOW: Final = "shadow"
CHALLENGER: Final = "challenger"
BENCHMARK: Final = "benchmark"


@dataclass(frozen=True)
class TraderOptions:
    """How a slot is traded. broker, feed: names, as the database remembers them. limits: risk rules, of every lane.

    any_account: also where the account is far from what the bundle was trained with. max_delay: seconds after a bar's
    end within which its orders may still be sent; by default a quarter of a bar. arena: how many challengers trade
    beside it. on_alert: what follows when it trades worse than scored.
    """

    slot: str
    broker: str
    feed: str
    limits: RiskLimits = field(default_factory=RiskLimits)
    any_account: bool = False
    max_delay: float | None = None
    arena: int = 0
    on_alert: OnAlert = "alert"


class Session:
    """From one start of a slot's trader to its end.

    make_broker, make_feed: called once with the bundle that is traded. tell: told of every event, its kind and text.
    Raises InputError where it cannot start, Replaced where another process now trades the slot, TryAgainLater or
    RunError where broker, feed or database are out of reach; a new session goes on from there.
    """

    def __init__(
        self,
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
        self._slot, self._limits = options.slot, options.limits
        self._store = TraderStore(registry.database)
        champion = registry.require(options.slot).champion
        assert champion is not None
        kept = {lane.name: lane for lane in self._store.lanes(self._slot) if lane.retired is None}
        bundle = registry.bundle(
            kept[ACCOUNT].bundle or champion if ACCOUNT in kept else champion, Bundle
        )
        self._seconds = bar_seconds(bundle.manifest.timeframe)
        self._max_delay = self._seconds / 4 if options.max_delay is None else options.max_delay
        self._feed, broker = make_feed(bundle), make_broker(bundle)
        if ACCOUNT not in kept:
            for ticker, why in broker.untradable.items():
                raise InputError(
                    f"{ticker}: {why}; promote a bundle without it, or trade with --broker sim"
                )
        self._token = self._store.take_over(
            self._slot,
            broker=options.broker,
            feed=options.feed,
            timeframe=bundle.manifest.timeframe,
            account=broker.account_name,
        )
        self.pulses = 0  # looks that came to their end
        self._refused: str | None = None  # the champion that could not take over
        self._stale = False
        self._status = "starting"
        trader = self._read()
        self._state: dict[str, Any] = dict(trader.session)
        self._account = self._lane(ACCOUNT, ACCOUNT, bundle, broker)
        self._lanes = [self._account]
        if broker.immediate:
            self._lanes.append(
                self._lane(SHADOW, SHADOW, bundle, sim_broker(bundle, broker.account().cash))
            )
        simulator = SHADOW if broker.immediate else None
        self._simulated = simulator or ACCOUNT  # the lane that challengers are compared with
        self._watchman = Watchman(self._slot, registry, self._store, options.on_alert, simulator)
        self._contest = Contest(self._slot, registry, self._store, options.arena)
        entrants = {lane_name(one): one for one in self._contest.entrants(bundle)}
        self._lanes += [
            self._lane(name, CHALLENGER, one, sim_broker(one)) for name, one in entrants.items()
        ]
        self._benchmarks: dict[str, Benchmark] = {}
        self._start(kept, trader)

    def run(self) -> None:
        """Trade until the clock's `stop` is set, or recorded bars have come to their end."""
        self._supervisor.ready(f"{self._slot}: {self._status}")
        while not self._clock.stop.is_set():
            self.pulse()
            self._supervisor.alive(lambda: f"{self._slot}: {self._status}")
            if isinstance(self._feed, RecordedFeed) and self._feed.over:
                break
            self._clock.wait(self._until_next())
        self._status = STOPPED
        self._read()

    def pulse(self) -> None:
        """Look once: whether to halt, and which bars have closed."""
        trader = self._read()
        self._obey(trader)
        bars = self._feed.poll(self._clock.now())
        for number, bar in enumerate(bars):
            late = self._clock.now() - (bar.time + self._seconds) > self._max_delay
            self._step(bar, trader, decide=number == len(bars) - 1 and not late)
        if len(bars) > 1:
            self._event(
                "caught up", f"{len(bars) - 1} missed bars were booked; nothing was traded in them"
            )
        self._watch_age()
        self.pulses += 1

    # ---- the start ----

    def _lane(self, name: str, kind: LaneKind, bundle: Bundle, broker: Broker) -> TradingLane:
        anything = self._options.any_account or name != ACCOUNT
        trader = lane_trader(self._slot, name, bundle, any_account=anything, limits=self._limits)
        return TradingLane(self._slot, name, kind, trader, broker)

    def _start(self, kept: dict[str, Lane], trader: Trader) -> None:
        """Take the history, and go on where the slot was left, or begin."""
        needed = max(lane.trader.bars_needed for lane in self._lanes) + DRY_RUN_BARS
        bars = self._feed.start(
            needed, self._clock.now(), trader.last_bar, self._state.get("prices", {})
        )
        self._history, self._last = bars, int(bars.time[-1])
        for lane in self._lanes:
            if lane.name in kept:
                lane.go_on(bars, kept[lane.name])
            else:
                lane.start(bars)
        self._benchmarks = {
            name: Benchmark.restored(lane.state)
            for name, lane in kept.items()
            if lane.kind == BENCHMARK
        }
        for name in (name for name, lane in kept.items() if lane.kind == CHALLENGER):
            if name not in {lane.name for lane in self._lanes}:
                self._commit(
                    Changes(lanes=[replace(kept[name], retired="it no longer takes part")])
                )
        if trader.last_bar is None:
            self._event(
                "started", f"{self._words(self._account.bundle)} begins with {self._options.broker}"
            )
            return
        self._recover(trader)
        self._event("started", f"goes on after the bar of {format_time(trader.last_bar)}")
        for ticker, why in self._account.broker.untradable.items():
            self._event(
                "untradable",
                f"{ticker}: {why} any more; its position stays, and the other tickers are traded",
            )

    def _recover(self, trader: Trader) -> None:
        """Find out about orders that an earlier process left, and send those that never were and still may be."""
        late = None
        if trader.halt is not None:
            late = f"not sent before the halt: {trader.halt}"
        elif self._clock.now() - (self._last + self._seconds) > self._max_delay:
            late = "the trader was away when it should have been sent"
        lines = self._store.orders(self._slot, decided=self._last)
        fills = [
            fill
            for lane in self._lanes
            for fill in lane.recover([line for line in lines if line.lane == lane.name], late=late)
        ]
        if fills:
            self._store.commit(self._slot, self._token, Changes(fills=fills))

    # ---- a bar ----

    def _step(self, bar: ClosedBar, trader: Trader, *, decide: bool) -> None:
        """Act on one closed bar."""
        self._history = bar.after(self._history).slice(1, len(self._history) + 1)
        self._state = self._state | {
            "prices": dict(zip(self._feed.tickers, map(float, bar.close), strict=True))
        }
        heir = self._heir() if decide and trader.halt is None else None
        changes = Changes(last_bar=bar.time, session=self._state)
        transfer = Flow()  # into or out of the account, which is always the first lane
        orders: list[tuple[TradingLane, tuple[Order, ...]]] = []
        for lane in list(self._lanes):
            try:
                entry = self._close_bar(
                    lane, bar, trader, changes, heir=heir, decide=decide, transfer=transfer
                )
            except RunError as error:
                if lane.kind != CHALLENGER:
                    raise
                self._retire(lane, str(error), changes)
                continue
            if lane is self._account:
                transfer = entry.flow
            orders.append((lane, entry.orders))
        self._note_benchmarks(bar, changes)
        self._status = f"acted on the bar of {format_time(bar.time)}"
        self._sum_up_day(bar, changes)
        self._commit(changes)
        self._last = bar.time
        fills = [fill for lane, sent in orders for fill in lane.send(sent)]
        if fills:
            self._commit(Changes(fills=fills))
        self._tell_trades(changes.fills + fills)
        if decide:
            self._look_around(bar)

    def _close_bar(
        self,
        lane: TradingLane,
        bar: ClosedBar,
        trader: Trader,
        changes: Changes,
        *,
        heir: Bundle | None,
        decide: bool,
        transfer: Flow,
    ) -> Entry:
        """Close a bar of one lane. heir: the bundle that takes over the account at this bar, if any. transfer: into or
        out of the account in this bar; the shadow repeats it.
        """
        conditions = self._conditions(bar, trader, lane)
        if lane.kind != SHADOW:
            transfer = Flow()
        own = bar.in_order(self._feed.tickers, lane.bundle.manifest.tickers)
        if heir is None or lane.kind == CHALLENGER:
            entry = lane.close_bar(own, changes, conditions, decide=decide, transfer=transfer)
        else:
            entry = lane.close_bar(own, changes, conditions, decide=False, transfer=transfer)
            left = self._words(lane.bundle)
            lane.hand_over(heir, self._history, self._limits)
            own = bar.in_order(self._feed.tickers, heir.manifest.tickers)
            entry = lane.trader.decide(own, entry, conditions)
            if lane is self._account:
                text = f"{self._words(heir)} takes over from {left}, with the present positions"
                changes.events.append(("swapped", text, bar.time))
        lane.note(own, entry, changes)
        if lane is self._account:
            self._note_risk(entry, changes)
            if entry.flow or entry.flow.cost:
                kind = "transfer" if entry.flow else "cost"
                changes.events.append(
                    (kind, entry.flow.text(self._feed.tickers, bar.close), bar.time)
                )
        return entry

    def _conditions(self, bar: ClosedBar, trader: Trader, lane: TradingLane) -> Conditions:
        """What risk rules look at. An operator's halt stops the account and its shadow; challengers go on."""
        now, end = self._clock.now(), bar.time + self._seconds
        halted = lane.kind != CHALLENGER
        return Conditions(
            now, max(0.0, now - end), trader.halt if halted else None, trader.halt_sells and halted
        )

    def _note_risk(self, entry: Entry, changes: Changes) -> None:
        """Say it when what risk rules have against trading changes, and not at every bar."""
        if entry.action is None or list(entry.risk) == self._state.get("risk", []):
            return
        spans = [list(span) for span in self._state.get("kept out", [])]
        if entry.risk and not self._state.get("risk"):
            spans.append([entry.time, None])
        elif not entry.risk:
            spans[-1][1] = entry.time
        self._state = self._state | {"risk": list(entry.risk), "kept out": spans[-MOST_SPANS:]}
        changes.session = self._state
        changes.events.append(
            ("risk", "; ".join(entry.risk) or "nothing speaks against trading any more", entry.time)
        )

    def _note_benchmarks(self, bar: ClosedBar, changes: Changes) -> None:
        """What equal weight, each ticker held and cash are worth, since the account began."""
        bundle = self._account.bundle
        own = bar.in_order(self._feed.tickers, sorted(self._feed.tickers))
        if self._benchmarks:
            for benchmark in self._benchmarks.values():
                benchmark.next_bar(own.open, own.hole)
        else:
            fee, slippage = bundle.account.fee, bundle.account.slippage
            value = changes.bars[0].value
            self._benchmarks = benchmarks(
                sorted(self._feed.tickers), value, fee=fee, slippage=slippage
            )
        since = self._account.since
        assert since is not None
        for name, benchmark in self._benchmarks.items():
            value = float(benchmark.value(own.close))
            changes.bars.append(
                LaneBar(name, bar.time, None, value, value if name == CASH else 0.0)
            )
            changes.lanes.append(Lane(name, BENCHMARK, None, since, None, benchmark.state()))

    def _sum_up_day(self, bar: ClosedBar, changes: Changes) -> None:
        """One line for the UTC day that ended with the last bar, when the first bar of the next one is done."""
        line = changes.bars[0]
        equal = next(one.value for one in changes.bars if one.lane == EQUAL_WEIGHT)
        before = self._state.get("day")
        today = {
            "day": bar.time // DAY,
            "value": line.value,
            "equal": equal,
            "trades": 0,
            "flow": 0.0,
        }
        if before is None:
            self._state = self._state | {"day": today}
            changes.session = self._state
            return
        base = rebased(before["value"], line.value, line.flow)
        trades, flow = before["trades"] + line.trades, before.get("flow", 0.0) + line.flow
        if before["day"] != today["day"]:
            gained, held = line.value / base - 1 if base > 0.0 else 0.0, equal / before["equal"] - 1
            day, moved = (
                format_time(before["day"] * DAY)[:10],
                f", transfers {flow:+,.2f}" if flow else "",
            )
            text = f"{day}: {line.value:,.2f} ({gained:+.2%}{moved}), equal weight {held:+.2%}, {trades} trades"
            changes.events.append(("day", text, bar.time))
            self._state = self._state | {"day": today}
        elif line.trades or line.flow:
            self._state = self._state | {
                "day": before | {"value": base, "trades": trades, "flow": flow}
            }
        changes.session = self._state

    def _tell_trades(self, fills: Sequence[Fill]) -> None:
        """Say what became of the account's orders."""
        own = f"{self._account.trader.slot}-"
        for fill in fills:
            order = fill.order
            if not order.client_id.startswith(own):
                continue
            if fill.status == "filled":
                text = f"{order.side} {fill.units:.8g} {order.ticker} at {fill.price:,.8g} for {fill.notional:,.2f}"
            else:
                text = f"{order.side} {order.ticker} was not filled"
            self._tell("trade", f"{text}; {fill.reason}" if fill.reason else text)

    # ---- the arena and the monitor ----

    def _look_around(self, bar: ClosedBar) -> None:
        """After a bar is done: the monitor's and the arena's looks that are due, and who takes part from now on."""
        bundle, told = self._account.bundle, list[tuple[str, str]]()
        if self._refused is None and self._registry.slot(self._slot).champion == bundle.hash:
            rivals = [lane for lane in self._lanes if lane.kind == CHALLENGER]
            arena, news = self._contest.judge(
                self._simulated, bundle, rivals, bar.time, self._state.get("arena", {})
            )
            free = 0 if self._state.get("risk") else 1
            traded = self._state.get("bars", {}).get(bundle.hash, -1) + free
            monitor, more = self._watchman.look(
                bundle, traded, self._state.get("monitor", {}), self._state.get("kept out", [])
            )
            if bar.time % DAY == DAY - self._seconds:
                monitor, strays = self._watchman.follow(bundle, monitor)
                more = [*more, *strays]
            told = [*news, *more]
            self._state = self._state | {
                "arena": arena,
                "monitor": monitor,
                "bars": {bundle.hash: traded},
            }
        changes = Changes(
            session=self._state, events=[(kind, text, bar.time) for kind, text in told]
        )
        self._change_rivals(changes)
        self._commit(changes)

    def _change_rivals(self, changes: Changes) -> None:
        """Challengers come and go: begin with new ones at the next bar, and let those go that no longer ask."""
        wanted = {lane_name(one): one for one in self._contest.entrants(self._account.bundle)}
        present = {lane.name: lane for lane in self._lanes if lane.kind == CHALLENGER}
        for name, lane in present.items():
            if name not in wanted:
                self._retire(
                    lane, "it no longer asks for the slot, or others have taken its place", changes
                )
        for name in wanted.keys() - present.keys():
            lane = self._lane(name, CHALLENGER, wanted[name], sim_broker(wanted[name]))
            if lane.trader.bars_needed <= len(self._history):
                lane.start(self._history)
                self._lanes.append(lane)
                changes.events.append(
                    ("arena", f"{name} trades beside the champion from now on", self._last)
                )

    def _retire(self, lane: TradingLane, why: str, changes: Changes) -> None:
        """Let a challenger go."""
        self._lanes.remove(lane)
        if lane.since is not None:
            changes.lanes.append(lane.row(retired=why))
        changes.events.append(("arena", f"{lane.name} retires: {why}", self._last))

    # ---- halts, champions, data ----

    def _obey(self, trader: Trader) -> None:
        """Sell everything at once where the operator said so and the broker can; else the next bar does."""
        sold = self._state.get("sold out", False)
        if trader.halt is None or not trader.halt_sells:
            self._state = self._state | {"sold out": False}
        elif not sold and self._account.broker.immediate and self._account.since is not None:
            self._state = self._state | {"sold out": True}
            orders = self._account.selling_all(self._last, self._clock.now())
            intents = [OrderLine(ACCOUNT, order) for order in orders]
            self._commit(Changes(session=self._state, intents=intents))
            fills = self._account.send(orders)
            self._account.sold_out()
            self._commit(Changes(fills=fills, lanes=[self._account.row()]))

    def _heir(self) -> Bundle | None:
        """The slot's champion where it is another one than is traded, and fit to take over; why it isn't is kept."""
        champion = self._registry.slot(self._slot).champion
        if champion in (None, self._account.bundle.hash, self._refused):
            return None
        assert champion is not None
        try:
            bundle = self._registry.bundle(champion, Bundle)
            problem = problem_with(bundle, self._account.bundle, self._history)
        except InputError as error:
            problem = str(error)
        if problem is None:
            return bundle
        self._refused = champion
        text = f"{champion[:NAME_DIGITS]} cannot take over; {self._words(self._account.bundle)} goes on: {problem}"
        self._event("swap refused", text)
        self._registry.note(self._slot, "swap-refused", text, champion)
        return None

    def _watch_age(self) -> None:
        """Say it once when bars stop coming, and when they come again."""
        age = self._feed.age(self._clock.now())
        stale = age > STALE_BARS * self._seconds
        if stale:
            self._status = f"no new bar for {age / self._seconds:.0f} bars"
        if stale != self._stale:
            self._stale = stale
            kind, text = (
                ("stale", "has no new bar for too long")
                if stale
                else ("fresh", "has new bars again")
            )
            self._event(
                kind,
                f"{self._options.feed} {text}; the last one opened at {format_time(self._last)}",
            )

    # ---- the database ----

    def _read(self) -> Trader:
        return self._store.beat(self._slot, self._token, self._status)

    def _event(self, kind: str, text: str) -> None:
        self._commit(Changes(events=[(kind, text, self._last)]))

    def _commit(self, changes: Changes) -> None:
        self._store.commit(self._slot, self._token, changes)
        for kind, text, _ in changes.events:
            self._tell(kind, text)

    def _until_next(self) -> float:
        """Seconds to wait before the next look."""
        due = self._last + 2 * self._seconds + SETTLE_SECONDS - self._clock.now()
        return min(due if due > 0.0 else LATE_SECONDS, self._clock.patience)

    def _words(self, bundle: Bundle) -> str:
        market = ", synthetic market" if bundle.manifest.data.synthetic else ""
        return f"{bundle.name} (trial {bundle.origin.trial} of {bundle.origin.study}{market})"
