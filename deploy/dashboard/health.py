"""Whether a slot's trader is well: does it live, does it follow the bars, may it trade."""

from __future__ import annotations

import dataclasses
import socket
from dataclasses import dataclass
from typing import Literal

import psutil

from deploy.dashboard.words import seconds_of, span
from deploy.promotion.findings import SYNTHETIC
from deploy.trading.live.store import Trader
from deploy.trading.live.venue_accounts import SILENT_SECONDS
from envs.crypto.timeframe import bar_seconds

QUIET_SECONDS = 15.0  # without a beat before its pid is looked up: a beat proves more than a pid
RECORDED = "recorded"  # the feed of a replay
LATE_BARS = 2  # that have closed since the last one acted on: one may just be on its way
Level = Literal["good", "warning", "bad", "none"]


@dataclass(frozen=True)
class Health:
    """How a trader is. state: a word or two; level: how bad that is (none: there is no trader). sentences: why.

    beat_age: seconds since its last sign of life. bars_behind: bars that have closed since the last one it acted on;
    None where that means nothing, as with recorded bars. synthetic: the champion was trained on a made-up market.
    """

    state: str
    level: Level
    sentences: list[str]
    beat_age: float | None = None
    bars_behind: int | None = None
    synthetic: bool = False


def health(trader: Trader | None, now: float, *, slot: str, synthetic: bool = False) -> Health:
    """now: seconds since the epoch. synthetic: the champion was trained on a made-up market."""
    found = _health(trader, now, slot)
    return (
        dataclasses.replace(found, sentences=[SYNTHETIC, *found.sentences], synthetic=True)
        if synthetic
        else found
    )


def _health(trader: Trader | None, now: float, slot: str) -> Health:
    if trader is None:
        return Health(
            "never traded",
            "none",
            [f"Slot {slot} was never traded: sweepd trade {slot} starts it."],
        )
    age = max(0.0, now - seconds_of(trader.beat))
    behind = (
        None
        if is_replay(trader) or trader.last_bar is None
        else _behind(trader.last_bar, trader.timeframe, now)
    )
    found: list[tuple[str, Level, str]] = []
    if trader.status.startswith("stopped"):
        found.append(
            (
                "stopped",
                "warning",
                f"The trader was stopped {span(age)} ago; no process trades this slot.",
            )
        )
    elif age > QUIET_SECONDS and is_gone(trader):
        found.append(
            (
                "not running",
                "bad",
                f"The trader does not run: its process {trader.pid} ended, {span(age)} ago at most.",
            )
        )
    elif age > SILENT_SECONDS:
        found.append(
            (
                "silent",
                "bad",
                f"No sign of life for {span(age)} from process {trader.pid} on {trader.host}; what is "
                "shown is old.",
            )
        )
    if trader.halt is not None:
        sold = " It sells everything first." if trader.halt_sells else ""
        found.append(
            (
                "halted",
                "warning",
                f"Halted: {trader.halt}.{sold} sweepd trader resume {slot} ends that.",
            )
        )
    if behind is not None and behind >= LATE_BARS and not found:
        text = f"{behind} bars of {trader.timeframe} have closed since the last one acted on."
        found.append(("late", "warning", text))
    if not found:
        return Health(
            "trading", "good", [f"Last sign of life {span(age)} ago: {trader.status}."], age, behind
        )
    level = max((level for _, level, _ in found), key=_rank)
    return Health(found[0][0], level, [text for *_, text in found], age, behind)


def is_replay(trader: Trader) -> bool:
    """Whether its bars are recorded ones, whose age says nothing."""
    return trader.feed == RECORDED


def is_gone(trader: Trader) -> bool:
    """Whether no process has its pid on a machine of this host name. Another container of that name may have it."""
    return trader.host == socket.gethostname() and not psutil.pid_exists(trader.pid)


def _behind(last_bar: int, timeframe: str, now: float) -> int:
    return max(0, int((now - last_bar) // bar_seconds(timeframe)) - 1)


def _rank(level: Level) -> int:
    return ("none", "good", "warning", "bad").index(level)
