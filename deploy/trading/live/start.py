"""Start a live trader from the command's flags: broker, feed and clock."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console

from deploy.market.bundle import Bundle, format_time, parse_moment
from deploy.market.scoring import bars_of, first_decision, in_order, unseen_window
from deploy.promotion.findings import SYNTHETIC
from deploy.registry.registry import Registry
from deploy.trading.brokers.alpaca import PAPER_URL, AlpacaBroker
from deploy.trading.brokers.base import Broker
from deploy.trading.brokers.sim import sim_broker
from deploy.trading.feeds import Feed, LiveFeed, RecordedFeed
from deploy.trading.live.clock import Clock, FastClock, LeapingClock
from deploy.trading.live.monitor import OnAlert
from deploy.trading.live.notify import NoticeKind, Notifier
from deploy.trading.live.runner import ending_on_signals, keep_trading, only_one
from deploy.trading.live.session import LiveSession, TraderOptions
from deploy.trading.live.store import TraderStore
from deploy.trading.risk import RiskLimits, RiskRules
from envs.crypto.data.bars import Bars
from envs.crypto.data.sources import AlpacaSource, CcxtSource, Source
from envs.crypto.data.timeframe import bar_seconds
from envs.support.errors import InputError, RunError
from envs.support.supervisor import Supervisor

MOST_CLOCK_SKEW = 5.0
# Events that are sent as notifications, and their kinds.
NOTICES: Mapping[str, NoticeKind] = {
    "trade": "trade",
    "swapped": "promotion",
    "promoted": "promotion",
    "rolled back": "rollback",
    "day": "daily",
    **dict.fromkeys(("alert", "halted", "risk", "stale", "fresh", "swap refused"), "alert"),
    **dict.fromkeys(("transfer", "untradable", "trouble"), "alert"),
}


@dataclass(frozen=True)
class LiveFlags:
    """What a user asked for; see `sweepd trade --help`."""

    feed: str = "alpaca"
    broker: str = "sim"
    url: str | None = None
    speed: float = 0.0
    arena: int = 0
    on_alert: OnAlert = "alert"
    limits: RiskLimits = field(default_factory=RiskLimits)
    data_dir: Path | None = None
    since: str | None = None
    cash: float | None = None
    any_account: bool = False


def trade_live(slot: str | None, registry: Registry, flags: LiveFlags, console: Console) -> None:
    """Trade a slot until a signal ends it.

    Args:
        slot: the slot; None: the only one with a champion.
        registry: the registry that holds it.
        flags: options of the command.
        console: the terminal.

    Raises:
        InputError: flags are wrong or contradict each other.
        TryAgainLater: errors persist.
    """
    found = registry.require(slot)
    assert found.champion is not None
    _check(flags)
    stop = threading.Event()

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True, markup=False)

    bundle = registry.bundle(found.champion, Bundle)
    recorded = _recorded_bars(registry, bundle, flags) if flags.feed == "recorded" else None
    start = (
        None if recorded is None else _first_moment(registry, found.name, bundle, recorded, flags)
    )
    options = TraderOptions(
        slot=found.name,
        broker=flags.broker,
        feed=flags.feed,
        limits=flags.limits,
        any_account=flags.any_account,
        arena=flags.arena,
        on_alert=flags.on_alert,
    )
    if bundle.manifest.data.synthetic:
        say(SYNTHETIC)
    for words in RiskRules(flags.limits).words:
        say(f"risk rule: {words}")

    notifier = Notifier.from_environment(os.environ, say)
    if notifier.words:
        say(f"notifications: {notifier.words}")

    def tell(kind: str, text: str) -> None:
        say(f"{kind}: {text}")
        if kind in NOTICES:
            notifier.notify(NOTICES[kind], f"sweepd {found.name}: {kind}", text)

    def note(problem: str) -> None:
        with suppress(RunError):  # the database may be out of reach, too
            TraderStore(registry.database).note(found.name, "trouble", problem)
        notifier.notify(NOTICES["trouble"], f"sweepd {found.name}: trouble", problem)

    def make_session() -> LiveSession:
        return LiveSession(
            options,
            registry,
            make_broker=lambda traded: make_broker(traded, flags, say, stop),
            make_feed=lambda traded: make_feed(
                traded, registry, flags, recorded, say, stop, slot=found.name
            ),
            clock=_clock(flags.speed, start, stop),
            tell=tell,
            supervisor=Supervisor(),
        )

    try:
        with only_one(registry.folder / "traders", found.name), ending_on_signals(stop):
            keep_trading(make_session, stop, say, note)
    finally:
        notifier.close()
    say(f"{found.name}: stopped; the same command continues from here")


def make_broker(
    bundle: Bundle, flags: LiveFlags, say: Callable[[str], None], stop: threading.Event
) -> Broker:
    """Return the broker of the slot's account."""
    if flags.broker == "sim":
        return sim_broker(bundle, flags.cash)
    symbols = _symbols(bundle, "alpaca", say)
    key, secret = (os.environ.get(name, "") for name in ("APCA_API_KEY_ID", "APCA_API_SECRET_KEY"))
    if not key or not secret:
        raise InputError(
            "--broker alpaca needs the keys of a paper account in APCA_API_KEY_ID and "
            "APCA_API_SECRET_KEY"
        )
    broker = AlpacaBroker(
        symbols,
        key=key,
        secret=secret,
        fee=bundle.account.fee,
        url=flags.url or PAPER_URL,
        sleep=_waiting(stop),
    )
    skew = broker.clock_skew()
    if abs(skew) > MOST_CLOCK_SKEW:
        say(
            f"Alpaca's clock is {skew:+.0f} s ahead of this machine's, so bars would be requested "
            "at the wrong time: set this machine's clock"
        )
    return broker


def make_feed(
    bundle: Bundle,
    registry: Registry,
    flags: LiveFlags,
    recorded: Bars | None,
    say: Callable[[str], None],
    stop: threading.Event,
    *,
    slot: str,
) -> Feed:
    """Return the source of the slot's bars."""
    manifest = bundle.manifest
    tickers, timeframe = manifest.tickers, manifest.timeframe
    if recorded is not None:
        return RecordedFeed(in_order(recorded, bundle))
    sleep = _waiting(stop)
    if flags.feed == "folder":
        return LiveFeed.of_folder(
            _folder(registry, bundle, flags), tickers, timeframe, say=say, sleep=sleep
        )
    source: Source
    begun = any(
        trader.feed == flags.feed
        for trader in TraderStore(registry.database).traders()
        if trader.slot == slot
    )
    if flags.feed == "alpaca":
        source, symbols = AlpacaSource(sleep=sleep, notice=say), _symbols(bundle, "alpaca", say)
    else:
        source, symbols = CcxtSource(flags.feed, sleep=sleep, notice=say), {}
    return LiveFeed.of_source(
        source, tickers, timeframe, symbols=symbols, say=say, sleep=sleep, begun=begun
    )


def _check(flags: LiveFlags) -> None:
    if flags.broker not in ("sim", "alpaca"):
        raise InputError(f"--broker {flags.broker}: it must be sim or alpaca")
    if flags.url is not None and flags.broker != "alpaca":
        raise InputError("--url is for --broker alpaca")
    if flags.cash is not None and flags.broker != "sim":
        raise InputError("--cash is for --broker sim; a venue's account has its own cash")
    if flags.feed != "recorded" and (flags.speed or flags.since):
        raise InputError(f"--speed and --from are for --feed recorded, not for --feed {flags.feed}")
    if not math.isfinite(flags.speed):
        raise InputError("--speed must be finite; 0 is as fast as possible")


def _symbols(bundle: Bundle, venue: str, say: Callable[[str], None]) -> Mapping[str, str]:
    """Return the venue's symbols of the bundle's tickers; report different names."""
    symbols = bundle.manifest.symbols.get(venue)
    if symbols is None:
        synthetic = "its market is synthetic; use --feed recorded"
        why = synthetic if bundle.manifest.data.synthetic else "they were unknown when it was made"
        raise InputError(f"bundle {bundle.name} has no symbols for {venue}: {why}")
    others = [f"{ticker} as {symbol}" for ticker, symbol in symbols.items() if symbol != ticker]
    if others:
        say(f"traded symbols differ from the training data: {', '.join(others)}")
    return symbols


def _folder(registry: Registry, bundle: Bundle, flags: LiveFlags) -> Path:
    folder = flags.data_dir or registry.data_dir(bundle.hash)
    if folder is None:
        raise InputError(f"--data-dir is needed with --feed {flags.feed}: name the folder of bars")
    return folder


def _recorded_bars(registry: Registry, bundle: Bundle, flags: LiveFlags) -> Bars:
    return bars_of(bundle, _folder(registry, bundle, flags))


def _first_moment(
    registry: Registry, slot: str, bundle: Bundle, bars: Bars, flags: LiveFlags
) -> float:
    """Return the start of a replay: where the slot stopped, --from, or the first unseen bar."""
    seconds = bar_seconds(bars.timeframe)
    trader = TraderStore(registry.database).trader(slot)
    if trader is not None and trader.last_bar is not None:
        return float(trader.last_bar + seconds)
    if flags.since is not None:
        first = int(np.searchsorted(bars.time, parse_moment(flags.since, "--from")))
    else:
        unseen = unseen_window(bars, bundle.last_seen, first_decision(bundle))
        first = len(bars) if unseen is None else unseen[0]
    if first >= len(bars):
        raise InputError(
            f"the data ends at {format_time(int(bars.time[-1]))} and leaves nothing to trade; give "
            "newer bars with --data-dir, or an earlier --from"
        )
    return float(bars.time[first])


def _waiting(stop: threading.Event) -> Callable[[float], None]:
    """Return a sleep that ends when the trader should end."""

    def wait(seconds: float) -> None:
        stop.wait(seconds)

    return wait


def _clock(speed: float, start: float | None, stop: threading.Event) -> Clock:
    if start is None:
        return Clock(stop)
    return FastClock(start, speed, stop) if speed else LeapingClock(start, stop)
