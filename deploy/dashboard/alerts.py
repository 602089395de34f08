"""What needs a person's attention now: traders, failed promotions and workers, with what to do."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from sweepd.deploy.dashboard.health import Health
from sweepd.deploy.dashboard.hints import SlotCommands
from sweepd.deploy.registry.database import utc_text
from sweepd.deploy.trading.live.queries import EventFilter, EventRecord, Records
from sweepd.deploy.trading.live.records import STRAYS, Trader
from sweepd.envs.crypto.data.timeframe import DAY
from sweepd.envs.support.formatting import counted
from sweepd.envs.support.invocation import program

BAD, WARNING, INFO = "bad", "warning", "none"
LEVELS: Mapping[str, str] = {BAD: "alert", WARNING: "warning", INFO: "information"}
# Events of traders and of the registry; all others are information.
_KINDS: Mapping[str, str] = {
    **dict.fromkeys(("alert", "halted", "stale", "untradable", "rolled back", "swap refused"), BAD),
    **dict.fromkeys(
        ("risk", "trouble", "caught up", "transfer", "cost", "adjusted", "clock"), WARNING
    ),
    **dict.fromkeys(("rolled-back", "swap-refused"), BAD),
    **dict.fromkeys(("refused", "withdrawn", "removed"), WARNING),
}
# Of the live monitor's verdicts.
VERDICTS: Mapping[str, str] = {"as scored": "good", "worse than scored": BAD, "tracking off": BAD}
RECENT_DAYS = 7  # how long an event is shown
MOST_EVENTS = 50  # of a kind
TO_DO: Mapping[str, str] = {
    "not running": "Start it again, with the options of its first start: {commands.trade} (or start its "
    "systemd unit). It continues from the database; missed bars are booked without decisions.",
    "silent": "Look at its log and at its machine. If the process hangs, end it and start it again, "
    "with the options of its first start: {commands.trade}",
    "stopped": "To trade again, with the options of its first start: {commands.trade}",
    "late": "Compare the feed with its source and look at the trader's log. It continues by itself "
    "when bars arrive.",
    "clock": "Set its clock, and let a service keep it: timedatectl set-ntp true",
    "halted": "Find the reason in the events. To continue: {commands.resume}",
    "stale": "Check the network and the feed's source. Trading continues by itself with the next "
    "bar.",
    "risk": "The rule ends by itself (see the text). To trade without it, restart the trader with "
    "other --risk options.",
    "monitor": "Compare live and scored returns on the overview. To go back: {commands.rollback} "
    "– to stop: {commands.halt}",
    "alert": "Look at its time in the events, and compare with the overview.",
    "transfer": "If nobody moved cash or units, look at the orders at the venue.",
    "adjusted": "Compare the units held with those at the venue.",
    "rolled back": "See why the champion was replaced: {commands.show}",
    "trouble": "The trader retries by itself. If this repeats, check the network, the keys and the "
    "database.",
    "untradable": "Its position stays as it is. Promote a bundle without this ticker.",
    "refused": "See which rules failed in the report of the gate, or with {commands.show}",
    "swap refused": "The old champion continues. Roll back or promote another trial: "
    "{commands.rollback}",
    "worker": "Start another one: {program} train --study-name {study} (or start its systemd unit). Its "
    "trials continue from their last checkpoints.",
    "stale worker": "Look at its log. Other workers take over its trials when it is dead.",
    "failure": "See the trial's reason on the page of the study.",
}


@dataclass(frozen=True)
class _Rule:
    """How events of a kind are shown: until one of `ends`, or for some days unless it lasts."""

    kind: str
    title: str
    ends: Sequence[str] = ()
    lasts: bool = False


# Halts, risk rules and clocks have events, too; they are shown from the trader's row while they last.
RULES = (
    _Rule("alert", "an alert of the trader"),
    _Rule("stale", "the feed is stale", ("fresh", "started"), lasts=True),
    _Rule("swap refused", "a new champion cannot take over", ("swapped",)),
    _Rule("rolled back", "the monitor rolled back"),
    _Rule("untradable", "a ticker is no longer traded"),
    _Rule("trouble", "the trader had trouble"),
    _Rule("adjusted", "a ticker is counted in other units"),
    _Rule("transfer", "cash or units were moved"),
    _Rule("refused", "a promotion failed", ("promoted",)),
)


@dataclass(frozen=True)
class Alert:
    """Something that needs attention.

    level: bad or warning. subject: slot or study. title: in a few words. since: UTC text of its
    beginning, None if unknown. link: the page with more.
    """

    level: str
    subject: str
    title: str
    text: str
    todo: str
    link: str
    since: str | None = None


def level_of(kind: str) -> str:
    """Return how serious an event of that kind is."""
    return _KINDS.get(kind, INFO)


def kinds_of(level: str, known: Sequence[str]) -> list[str]:
    """Return which of the known kinds have that level."""
    return [kind for kind in known if level_of(kind) == level]


def slot_alerts(
    records: Records,
    trader: Trader | None,
    slot: str,
    state: Health,
    now: float,
    *,
    where: str = "",
) -> list[Alert]:
    """Return the alerts of a slot.

    Args:
        records: stored events.
        trader: None if the slot was never traded.
        slot: its name.
        state: of its trader.
        now: seconds since the epoch.
        where: flags of the registry, for commands (see `registry_flags`).
    """
    found: list[Alert] = []
    commands = SlotCommands.of(slot, trader, where=where, synthetic=state.synthetic)

    def add(level: str, key: str, title: str, text: str, since: str | None = None) -> None:
        if any(one.text == text for one in found):
            return
        link = _link("/" if since is None else "/events", slot=slot)
        found.append(
            Alert(level, slot, title, text, TO_DO[key].format(commands=commands), link, since)
        )

    def newest(*kinds: str, text: str = "") -> EventRecord | None:
        return next(iter(records.events(EventFilter(slot, kinds, text=text), limit=1)), None)

    def at(*kinds: str, text: str = "") -> str | None:
        event = newest(*kinds, text=text)
        return None if event is None else event.at

    for name, level, text in state.findings:
        if name != "halted":
            add(level, name, name, text, at("clock") if name == "clock" else None)
    if trader is not None:
        if trader.halt is not None:
            add(BAD, "halted", "halted", trader.halt, at("halted"))
        for reason in trader.restrictions:
            add(WARNING, "risk", "a risk rule restricts trading", reason, at("risk"))
        verdict = trader.state.get("monitor") or {}
        if VERDICTS.get(str(verdict.get("verdict"))) == BAD:
            text = str(verdict.get("text", ""))
            add(BAD, "monitor", str(verdict["verdict"]), text, at("alert", text=text))
        if verdict.get("strays") and (event := newest("alert", text=STRAYS)):
            add(BAD, "monitor", STRAYS, event.text, event.at)
    week_ago = utc_text(now - RECENT_DAYS * DAY)
    for rule in RULES:
        after = at(*rule.ends) if rule.ends else None
        first = max(after or "", "" if rule.lasts else week_ago)
        wanted = EventFilter(slot, [rule.kind], first=first)
        events = records.events(wanted, limit=MOST_EVENTS)
        for event in events:
            add(level_of(rule.kind), rule.kind, rule.title, event.text, event.at)
        if len(events) == MOST_EVENTS:
            more = records.count_events(wanted) - MOST_EVENTS
            text = f"{counted(more, 'older event')} of this kind in the last {RECENT_DAYS} days"
            add(level_of(rule.kind), rule.kind, rule.title, text)
    return found


def study_alerts(found: Mapping[str, Any]) -> list[Alert]:
    """Return the alerts of a study, from its progress."""
    name = str(found["study"])
    link = _link("/training", study=name)
    # A study's name may be anything that the shell splits.
    todo = {"program": program(), "study": shlex.quote(name)}
    alerts = [
        Alert(BAD, name, "the study is unhealthy", str(text), TO_DO[key].format(**todo), link)
        for text in found["unhealthy"]
        for key in ["worker" if "no worker" in text else "stale worker"]
    ]
    left = found["done"] < found["total"] and not found["paused"]
    alerts += [
        Alert(
            WARNING,
            name,
            "a worker died",
            f"worker {one['host']}:{one['pid']} is gone; other workers take over its trials",
            TO_DO["worker"].format(**todo),
            link,
        )
        for one in found["workers"]
        if left and one["status"] == "dead"
    ]
    if found["failures"]:
        one = found["failures"][0]
        reason = one["reason"] or "no reason recorded"
        text = f"{found['trials']['FAIL']} failed; trial {one['trial']}: {reason}"
        alerts.append(Alert(WARNING, name, "trials failed", text, TO_DO["failure"], link))
    return alerts


def _link(path: str, **query: str) -> str:
    return f"{path}?{urlencode(query)}"


def sorted_alerts(alerts: Sequence[Alert]) -> list[Alert]:
    """Return the alerts, the worst first."""
    return sorted(alerts, key=lambda alert: (alert.level != BAD, alert.subject))
