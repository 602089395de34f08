"""What needs a person's attention now: traders, failed promotions and workers, with what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from deploy.dashboard.formatting import seconds_of
from deploy.dashboard.health import Health
from deploy.dashboard.monitor_view import LEVELS as VERDICTS
from deploy.dashboard.severity import BAD, WARNING
from deploy.trading.live.queries import EventFilter, EventRecord, Records
from deploy.trading.live.records import Trader
from envs.crypto.data.timeframe import DAY

RECENT_DAYS = 7  # how long an event without an end is shown
TO_DO: Mapping[str, str] = {
    "not running": "Start it again: sweepd trade {slot} with its options, or its systemd unit. It "
    "continues from the database; missed bars are booked without decisions.",
    "silent": "Look at its log and at its machine. If the process hangs, end it and start it again: "
    "sweepd trade {slot} with its options.",
    "stopped": "To trade again: sweepd trade {slot} with its options.",
    "late": "Compare the feed with its source and look at the trader's log. It continues by itself "
    "when bars arrive.",
    "clock": "Set its clock, and let a service keep it: timedatectl set-ntp true",
    "halted": "Find the reason in the events. To continue: sweepd trader resume {slot}",
    "stale": "Check the network and the feed's source. Trading continues by itself with the next "
    "bar.",
    "risk": "The rule ends by itself (see the text). To trade without it, restart the trader with "
    "other --risk options.",
    "monitor": "Compare live and scored returns on the overview. To go back: sweepd rollback {slot}; "
    "to stop: sweepd trader halt {slot}",
    "trouble": "The trader retries by itself. If this repeats, check the network, the keys and the "
    "database.",
    "untradable": "Its position stays as it is. Promote a bundle without this ticker.",
    "refused": "See which rules failed: sweepd registry show {slot}, or the study's report of the "
    "gate.",
    "swap refused": "The old champion continues. Roll back or promote another trial: sweepd "
    "rollback {slot}",
    "worker": "Start another one: sweepd train or its systemd unit. Its trials continue from their "
    "last checkpoints.",
    "stale worker": "Look at its log. Other workers take over its trials when it is dead.",
    "failure": "See the trial's reason on the page of the study.",
}


@dataclass(frozen=True)
class Alert:
    """Something that needs attention.

    level: bad or warning. subject: slot or study. title: in a few words. since: UTC text or None.
    link: the page with more.
    """

    level: str
    subject: str
    title: str
    text: str
    todo: str
    link: str
    since: str | None = None


def slot_alerts(
    records: Records, trader: Trader | None, slot: str, state: Health, now: float
) -> list[Alert]:
    """Return the alerts of a slot.

    Args:
        records: stored events.
        trader: None if the slot was never traded.
        slot: its name.
        state: of its trader.
        now: seconds since the epoch.
    """
    found: list[Alert] = []

    def add(level: str, key: str, title: str, text: str, since: str | None = None) -> None:
        link = _link("/" if since is None else "/events", slot=slot)
        found.append(Alert(level, slot, title, text, TO_DO[key].format(slot=slot), link, since))

    if state.level in (BAD, WARNING) and state.state in TO_DO:
        text = " ".join(one for one in state.sentences if not one.startswith("Halted"))
        if state.state != "halted":
            add(state.level, state.state, state.state, text)
    newest = _newest(records, slot)
    if trader is not None:
        if trader.halt is not None:
            event = newest.get("halted")
            add(BAD, "halted", "halted", trader.halt, event.at if event else None)
        for reason in trader.state.get("risk") or []:
            add(WARNING, "risk", "a risk rule restricts trading", str(reason))
        verdict = trader.state.get("monitor") or {}
        if VERDICTS.get(str(verdict.get("verdict"))) == BAD:
            add(BAD, "monitor", str(verdict["verdict"]), str(verdict.get("text", "")))
        elif verdict.get("strays"):
            event = newest.get("alert")
            add(BAD, "monitor", "strays from the simulator", event.text if event else "")
    found += _of_events(newest, slot, now)
    return found


def _of_events(newest: Mapping[str, EventRecord], slot: str, now: float) -> list[Alert]:
    """Return the alerts that follow from the newest event of each kind."""

    def alert(level: str, kind: str, title: str, *ends: str) -> list[Alert]:
        event = newest.get(kind)
        if event is None or any(newest[end].at > event.at for end in ends if end in newest):
            return []
        if kind != "stale" and now - seconds_of(event.at) > RECENT_DAYS * DAY:
            return []
        todo = TO_DO[kind].format(slot=slot)
        link = _link("/events", slot=slot)
        return [Alert(level, slot, title, event.text, todo, link, event.at)]

    return [
        *alert(BAD, "stale", "the feed is stale", "fresh", "started"),
        *alert(BAD, "swap refused", "a new champion cannot take over", "swapped"),
        *alert(BAD, "untradable", "a ticker is no longer traded"),
        *alert(WARNING, "trouble", "the trader had trouble"),
        *alert(WARNING, "refused", "a promotion failed", "promoted"),
    ]


def _newest(records: Records, slot: str) -> dict[str, EventRecord]:
    return {
        kind: event
        for kind in records.event_kinds(slot)
        for event in records.events(EventFilter(slot, [kind]), limit=1)
    }


def study_alerts(found: Mapping[str, Any]) -> list[Alert]:
    """Return the alerts of a study, from its progress."""
    name = str(found["study"])
    link = _link("/training", study=name)
    alerts = [
        Alert(BAD, name, "the study is unhealthy", str(text), TO_DO[key], link)
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
            TO_DO["worker"],
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
