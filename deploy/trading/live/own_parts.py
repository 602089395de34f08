"""Brokers and feeds of other packages: which are allowed, how they are made, what is recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.trading.brokers.base import Broker, require_paper
from sweepd.deploy.trading.feeds import Feed
from sweepd.envs.crypto.data.sources import ccxt_exchanges
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.plugins import Plugin, changed, construct, described, is_plugin, resolve

BROKERS = ("sim", "alpaca")
FEEDS = ("alpaca", "folder", "recorded")  # besides ccxt's exchanges
Say = Callable[[str], None]
Sleep = Callable[[float], None]


def own_parts(broker: str, feed: str) -> dict[str, Plugin]:
    """Return the broker and the feed, by kind, that other packages provide.

    Nothing is constructed, so a broker that is refused has connected to nothing.

    Raises:
        InputError: a name is unknown, or the broker is none that trades on paper.
    """
    found = {}
    if broker not in BROKERS:
        found["broker"] = resolve("broker", broker, BROKERS, Broker)
        require_paper(broker, found["broker"].made)
    if feed not in FEEDS and is_plugin("feed", feed) and feed not in ccxt_exchanges():
        found["feed"] = resolve("feed", feed)
    return found


def make_own_broker(plugin: Plugin, bundle: Bundle, say: Say, sleep: Sleep) -> Broker:
    """Construct a broker with its arguments, and with what it takes of the bundle's."""
    manifest, account = bundle.manifest, bundle.account
    if account.allow_short and not plugin.made.shorts:
        raise InputError(
            f"--broker {plugin.name} has no short positions, and bundle {bundle.name} was trained "
            "with --allow-short: use --broker sim"
        )
    made: Broker = construct(
        "broker",
        plugin,
        tickers=manifest.tickers,
        cash=account.initial_cash,
        params=account,
        instruments=bundle.instruments,
        timeframe=manifest.timeframe,
        fee=account.fee,
        say=say,
        sleep=sleep,
    )
    return made


def make_own_feed(plugin: Plugin, bundle: Bundle, say: Say, sleep: Sleep) -> Feed:
    """Call a class or function that returns a feed, and check that it is the bundle's."""
    tickers, timeframe = bundle.manifest.tickers, bundle.manifest.timeframe
    flag = f"--feed {plugin.name}"
    if not callable(plugin.made):
        raise InputError(f"{flag}: {plugin.made!r} is neither a class nor a function")
    made = construct("feed", plugin, tickers=tickers, timeframe=timeframe, say=say, sleep=sleep)
    if not isinstance(made, Feed):
        raise InputError(
            f"{flag}: {made!r} is not a Feed, which has tickers, timeframe, again, start, poll, age "
            "and skew (sweepd.deploy.trading.feeds)"
        )
    if (tuple(made.tickers), made.timeframe) != (tuple(tickers), timeframe):
        raise InputError(
            f"{flag} has bars of {', '.join(made.tickers)} at {made.timeframe}, and bundle "
            f"{bundle.name} trades {', '.join(tickers)} at {timeframe}, in this order"
        )
    return made


def recorded_parts(parts: Mapping[str, Plugin]) -> dict[str, dict[str, Any]]:
    """Return what is recorded of a slot's own parts, by kind."""
    recorded: dict[str, dict[str, Any]] = {kind: {**one.identity()} for kind, one in parts.items()}
    if broker := parts.get("broker"):
        recorded["broker"] |= {"paper": broker.made.paper, "arguments": broker.arguments}
    if feed := parts.get("feed"):
        recorded["feed"] |= {"arguments": feed.arguments}
    return recorded


def own_part_words(kind: str, recorded: Mapping[str, Any]) -> str:
    """Return what is said of a broker or feed of another package at the start."""
    paper = f"; paper account: {recorded['paper']}" if "paper" in recorded else ""
    return f"{kind} {described(recorded)}{paper}"


def noted_parts(
    state: Mapping[str, Any], plugins: Mapping[str, Mapping[str, Any]], immediate: bool
) -> tuple[dict[str, Any], list[str]]:
    """Return a slot's state with its own parts, and a sentence for each that has changed.

    Args:
        state: of the slot.
        plugins: as `recorded_parts` returns them.
        immediate: of the slot's broker.
    """
    before, now = state.get("plugins", {}), dict(plugins)
    if own := now.get("broker"):
        now["broker"] = {**own, "immediate": immediate}
    sentences = [
        changed(kind, now[kind]["name"], "it was used here last")
        for kind in ("broker", "feed")
        if kind in before and kind in now and before[kind]["name"] == now[kind]["name"]
        if before[kind] != now[kind]
    ]
    return ({**state, "plugins": now} if before or now else dict(state)), sentences
