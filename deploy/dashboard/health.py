"""State of a slot's trader: whether it runs, follows the bars and may trade."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import psutil

from sweepd.deploy.dashboard.formatting import seconds_of, span
from sweepd.deploy.dashboard.hints import RECORDED, SlotCommands
from sweepd.deploy.promotion.sections import SYNTHETIC
from sweepd.deploy.trading.live.records import STOPPED, UNDECIDED_BARS, Trader
from sweepd.deploy.trading.live.venue_accounts import SILENT_SECONDS
from sweepd.envs.crypto.data.timeframe import closed_since
from sweepd.envs.support.invocation import program

QUIET_SECONDS = 15.0  # without a heartbeat before the process is looked up
LATE_BARS = 2  # closed since the last processed one: a single one may be in progress
Level = Literal["good", "warning", "bad", "none"]


@dataclass(frozen=True)
class Health:
    """State of a trader.

    state: one or two words.
    level: severity of the state; "none" if there is no trader.
    sentences: reasons.
    findings: name, level and sentence of each thing that is wrong; the first one is the state.
    beat_age: seconds since the last heartbeat.
    bars_behind: bars that have closed since the last processed one; None for recorded bars.
    synthetic: the champion was trained on a synthetic market.
    """

    state: str
    level: Level
    sentences: list[str]
    findings: Sequence[tuple[str, Level, str]] = ()
    beat_age: float | None = None
    bars_behind: int | None = None
    synthetic: bool = False


def health(
    trader: Trader | None, now: float, *, slot: str, synthetic: bool = False, where: str = ""
) -> Health:
    """Return a trader's state.

    Args:
        trader: the trader, None if the slot was never traded.
        now: seconds since the epoch.
        slot: its slot.
        synthetic: the champion was trained on a synthetic market.
        where: flags of the registry, for commands (see `registry_flags`).
    """
    commands = SlotCommands.of(slot, trader, where=where, synthetic=synthetic)
    found = _health(trader, now, commands)
    return (
        dataclasses.replace(found, sentences=[SYNTHETIC, *found.sentences], synthetic=True)
        if synthetic
        else found
    )


def _health(trader: Trader | None, now: float, commands: SlotCommands) -> Health:
    if trader is None:
        return Health("never traded", "none", [never_traded(commands)])
    # The clock of another machine may be ahead.
    age = max(0.0, now - seconds_of(trader.beat))
    behind = (
        None
        if is_replay(trader) or trader.last_bar is None
        else closed_since(trader.timeframe, trader.last_bar, now)
    )
    found: list[tuple[str, Level, str]] = []
    if trader.status.startswith(STOPPED):
        found.append(
            (
                "stopped",
                "warning",
                f"The trader was stopped {span(age)} ago; no process trades this slot.",
            )
        )
    # Sooner than by silence alone, if the process can be looked up here.
    elif age > QUIET_SECONDS and is_gone(trader):
        found.append(
            (
                "not running",
                "bad",
                f"The trader is not running: process {trader.pid} ended at most {span(age)} ago.",
            )
        )
    elif age > SILENT_SECONDS:
        found.append(
            (
                "silent",
                "bad",
                f"No heartbeat for {span(age)} from process {trader.pid} on {trader.host}; the "
                "data shown are old.",
            )
        )
    if trader.halt is not None:
        sold = " Holdings are sold first." if trader.halt_sells else ""
        found.append(
            ("halted", "warning", f"Halted: {trader.halt}.{sold} To continue: {commands.resume}")
        )
    if behind is not None and behind >= LATE_BARS and not found:
        text = f"{behind} bars of {trader.timeframe} have closed since the last processed one."
        found.append(("late", "warning", text))
    undecided = trader.state.get("undecided", 0)
    if undecided >= UNDECIDED_BARS and not found:
        text = f"The last {undecided} bars came too late to be decided: see {program()} trade --help, --max-delay."
        found.append(("late", "warning", text))
    skew = trader.state.get("skew")
    if skew is not None and not trader.status.startswith(STOPPED):
        side = "behind" if skew > 0.0 else "ahead of"
        text = f"The clock of {trader.host} is {span(abs(skew))} {side} that of {trader.feed}."
        found.append(("clock", "warning", text))
    if not found:
        return Health(
            "trading",
            "good",
            [f"Last heartbeat {span(age)} ago: {trader.status}."],
            (),
            age,
            behind,
        )
    # The first finding names the state; the worst one sets its colour.
    level = max((level for _, level, _ in found), key=_rank)
    return Health(found[0][0], level, [text for *_, text in found], found, age, behind)


def never_traded(commands: SlotCommands) -> str:
    """Return the sentence about a slot without a trader."""
    return f"Slot {commands.slot} was never traded. To start: {commands.trade}"


def is_replay(trader: Trader) -> bool:
    """Return whether its bars are recorded, so that their age means nothing."""
    return trader.feed == RECORDED


def is_gone(trader: Trader) -> bool:
    """Return whether its process is gone.

    The process is looked up on a machine of its host name; another container of that name may run
    it.
    """
    return trader.host == socket.gethostname() and not psutil.pid_exists(trader.pid)


def _rank(level: Level) -> int:
    return ("none", "good", "warning", "bad").index(level)
