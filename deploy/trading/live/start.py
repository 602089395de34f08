"""Start a live trader from the command's flags: broker, feed and clock."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console

from sweepd.deploy.market.bundle import Bundle, alpaca_symbols
from sweepd.deploy.market.scoring import bars_of, first_decision, in_order, unseen_window
from sweepd.deploy.promotion.sections import SYNTHETIC
from sweepd.deploy.registry.records import Slot
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.brokers.alpaca import COIN_ORDERS, SHARE_ORDERS, AlpacaBroker
from sweepd.deploy.trading.brokers.alpaca_api import PAPER_URL
from sweepd.deploy.trading.brokers.base import Broker
from sweepd.deploy.trading.brokers.sim import sim_broker
from sweepd.deploy.trading.certificates.certifier import Certifier
from sweepd.deploy.trading.feeds import Feed, LiveFeed, RecordedFeed
from sweepd.deploy.trading.live.clock import Clock, FastClock, LeapingClock
from sweepd.deploy.trading.live.events import TraderOptions
from sweepd.deploy.trading.live.notify import NoticeKind, Notifier
from sweepd.deploy.trading.live.own_parts import (
    make_own_broker,
    make_own_feed,
    own_part_words,
    own_parts,
    recorded_parts,
)
from sweepd.deploy.trading.live.runner import ending_on_signals, keep_trading, only_one, waits
from sweepd.deploy.trading.live.session import LiveSession, bundle_to_trade
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.deploy.trading.risk import RiskRules
from sweepd.envs.crypto.data.alpaca import alpaca_keys, alpaca_source
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.data.sources import CcxtSource, Source
from sweepd.envs.crypto.data.timeframe import bar_end, format_time, has_hours, parse_moment
from sweepd.envs.support.errors import InputError, RunError, TryAgainLater
from sweepd.envs.support.supervisor import Supervisor

TRADERS = "traders"  # the folder of locks, within the deployments folder
# Events that are sent as notifications, and their kinds.
NOTICES: Mapping[str, NoticeKind] = {
    "trade": "trade",
    "swapped": "promotion",
    "promoted": "promotion",
    "rolled back": "rollback",
    "day": "daily",
    **dict.fromkeys(("alert", "halted", "risk", "stale", "fresh", "swap refused"), "alert"),
    **dict.fromkeys(("transfer", "untradable", "trouble", "adjusted", "clock"), "alert"),
}


@dataclass(frozen=True)
class LiveFlags(TraderOptions):
    """What a user asked for; see `sweepd trade --help`."""

    url: str | None = None
    speed: float = 0.0
    data_dir: Path | None = None
    since: str | None = None
    cash: float | None = None


def trade_live(slot: str | None, registry: Registry, flags: LiveFlags, console: Console) -> None:
    """Trade a slot until a signal ends it.

    Args:
        slot: the slot; None: the only one with a champion.
        registry: the registry that holds it.
        flags: options of the command.
        console: the terminal.

    Raises:
        InputError: flags are wrong or contradict each other, or the first start of a slot failed.
        TryAgainLater: errors persist, or a slot that has traded before cannot start.
    """
    found = registry.require(slot)
    _check(flags)
    trader = TraderStore(registry.database).trader(found.name)
    try:
        _trade(found, registry, flags, console)
    except InputError as error:
        # Its positions are open, and what worked before may work again: a folder is mounted, or a
        # file written. A supervisor does not restart a process that reports wrong input.
        if trader is None or trader.last_bar is None or trader.broker != flags.broker:
            raise
        raise TryAgainLater(
            f"{error}. Slot {found.name!r} has traded before, so this may pass: exit code 75"
        ) from error


def _trade(found: Slot, registry: Registry, flags: LiveFlags, console: Console) -> None:
    """See `trade_live`."""
    name, stop = found.name, threading.Event()

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True, markup=False)

    bundle, _ = bundle_to_trade(registry, name)
    own = own_parts(flags.broker, flags.feed)
    flags = replace(flags, plugins=recorded_parts(own))
    for kind, one in flags.plugins.items():
        say(own_part_words(kind, one))
    parts = TraderParts(name, registry, flags, bundle, say, stop)
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
            notifier.notify(NOTICES[kind], f"sweepd {name}: {kind}", text, name)

    def note(problem: str) -> None:
        with suppress(RunError):  # the database may be out of reach, too
            TraderStore(registry.database).note(name, "trouble", problem)
        notifier.notify(NOTICES["trouble"], f"sweepd {name}: trouble", problem, name)

    # The days of recorded bars are over within moments, so they are certified by command only.
    day_over = (lambda: None) if flags.feed == "recorded" else Certifier(registry, name)

    def make_session() -> LiveSession:
        return LiveSession(
            name,
            flags,
            registry,
            make_broker=parts.broker,
            make_feed=parts.feed,
            clock=parts.clock(),
            tell=tell,
            supervisor=Supervisor(),
            day_over=day_over,
        )

    try:
        with only_one(registry.folder / TRADERS, name), ending_on_signals(stop):
            keep_trading(make_session, stop, say, note)
    finally:
        notifier.close()
    say(f"{name}: stopped; the same command continues from here")


class TraderParts:
    """Broker, feed and clock of a slot's sessions, as the command's flags ask for them.

    Args:
        slot: the slot.
        registry: the registry that holds it.
        flags: options of the command.
        bundle: the one that is traded, which defines where a replay of recorded bars starts.
        say: receives messages for the terminal.
        stop: ends all waiting when set.

    Raises:
        InputError: recorded bars cannot be read, or leave nothing to trade.
    """

    def __init__(
        self,
        slot: str,
        registry: Registry,
        flags: LiveFlags,
        bundle: Bundle,
        say: Callable[[str], None],
        stop: threading.Event,
    ) -> None:
        self._slot, self._registry, self._flags = slot, registry, flags
        self._own = own_parts(flags.broker, flags.feed)
        self._say, self._stop = say, stop
        self._store = TraderStore(registry.database)
        self._recorded: Bars | None = None
        if flags.feed == "recorded":
            self._recorded = bars_of(bundle, self._folder(bundle))
            # Chosen once, so that sessions after an error continue the same market's time.
            self._start = self._first_moment(bundle, self._recorded)

    def clock(self) -> Clock:
        """Return a session's clock."""
        if self._recorded is None:
            return Clock(self._stop)
        if self._flags.speed:
            return FastClock(self._start, self._flags.speed, self._stop)
        return LeapingClock(self._start, self._stop)

    def broker(self, bundle: Bundle) -> Broker:
        """Return the broker of the slot's account."""
        if self._flags.broker == "sim":
            return sim_broker(bundle, self._flags.cash)
        if own := self._own.get("broker"):
            return make_own_broker(own, bundle, self._say, waits(self._stop))
        if bundle.account.allow_short:
            raise InputError(
                f"--broker alpaca trades fractions of coins and shares, which cannot be sold short "
                f"there, and bundle {bundle.name} was trained with --allow-short: use --broker sim"
            )
        symbols, keys = self._symbols(bundle), alpaca_keys("--broker alpaca")
        shares = has_hours(bundle.manifest.timeframe)
        return AlpacaBroker(
            symbols,
            SHARE_ORDERS if shares else COIN_ORDERS,
            key=keys.key,
            secret=keys.secret,
            fee=0.0 if shares else bundle.account.fee,  # shares are traded without a commission
            url=self._flags.url or PAPER_URL,
            sleep=waits(self._stop),
        )

    def feed(self, bundle: Bundle) -> Feed:
        """Return the source of the slot's bars."""
        if self._recorded is not None:
            return RecordedFeed(in_order(self._recorded, bundle))
        say, sleep, name = self._say, waits(self._stop), self._flags.feed
        if own := self._own.get("feed"):
            return make_own_feed(own, bundle, say, sleep)
        tickers, timeframe = bundle.manifest.tickers, bundle.manifest.timeframe
        if name == "folder":
            folder = self._folder(bundle)
            return LiveFeed.of_folder(folder, tickers, timeframe, say=say, sleep=sleep)
        source: Source
        symbols: Mapping[str, str] = {}
        if name == "alpaca":
            source, symbols = (
                alpaca_source(timeframe, sleep=sleep, notice=say),
                self._symbols(bundle),
            )
        else:
            source = CcxtSource(name, sleep=sleep, notice=say)
        trader = self._store.trader(self._slot)
        begun = trader is not None and trader.feed == name
        return LiveFeed.of_source(
            source, tickers, timeframe, symbols=symbols, say=say, sleep=sleep, begun=begun
        )

    def _symbols(self, bundle: Bundle) -> Mapping[str, str]:
        """Return Alpaca's symbols of the bundle's tickers; report different names."""
        symbols = alpaca_symbols(bundle)
        others = [
            f"{ticker} as {symbol}"
            for ticker, symbol in symbols.items()
            if symbol not in (ticker, ticker.removesuffix("/USD"))
        ]
        if others:
            self._say(f"traded symbols differ from the training data: {', '.join(others)}")
        return symbols

    def _folder(self, bundle: Bundle) -> Path:
        folder = self._flags.data_dir or self._registry.data_dir(bundle.hash)
        if folder is None:
            raise InputError(
                f"--data-dir is needed with --feed {self._flags.feed}: name the folder of bars"
            )
        return folder

    def _first_moment(self, bundle: Bundle, bars: Bars) -> float:
        """Return the start of a replay: where the slot stopped, --from, or the first unseen bar."""
        trader = self._store.trader(self._slot)
        if trader is not None and trader.last_bar is not None:
            return float(bar_end(bars.timeframe, trader.last_bar))
        if self._flags.since is not None:
            first = int(np.searchsorted(bars.time, parse_moment(self._flags.since, "--from")))
        else:
            unseen = unseen_window(bars, bundle.last_seen, first_decision(bundle))
            first = len(bars) if unseen is None else unseen[0]
        if first >= len(bars):
            raise InputError(
                f"the data ends at {format_time(int(bars.time[-1]))} and leaves nothing to trade; "
                "give newer bars with --data-dir, or an earlier --from"
            )
        return float(bars.time[first])


def _check(flags: LiveFlags) -> None:
    """Refuse flags that contradict each other."""
    own_parts(flags.broker, flags.feed)
    if flags.url is not None and flags.broker != "alpaca":
        raise InputError("--url is for --broker alpaca")
    if flags.cash is not None and flags.broker != "sim":
        raise InputError("--cash is for --broker sim; a venue's account has its own cash")
    if flags.feed != "recorded" and (flags.speed or flags.since):
        raise InputError(f"--speed and --from are for --feed recorded, not for --feed {flags.feed}")
    if not math.isfinite(flags.speed):
        raise InputError("--speed must be finite; 0 is as fast as possible")
