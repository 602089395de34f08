"""Nights made by hand, as rows: a quiet one, an eventful one and a broken one."""

from __future__ import annotations

from typing import Any

import numpy as np

from sweepd.deploy.night.facts import AccountLine, NightFacts, SlotRows, TraderFact, night_facts
from sweepd.deploy.night.records import Night, NightStep, Outcome
from sweepd.deploy.registry.arena_rows import ArenaDay, ArenaEntry, EntryKind, Reign
from sweepd.deploy.registry.records import Event
from sweepd.envs.crypto.data.timeframe import DAY

SLOT, NIGHT = "crypto-1h", "20261128"
STARTED = "2026-11-28T01:30:00.000Z"
MIDNIGHT = 20_785 * DAY  # 2026-11-28
CHAMPION, RIVAL, YOUNG, FORMER = ("c" * 64, "a" * 64, "b" * 64, "f" * 64)
CONFIG: dict[str, Any] = {
    "slot": SLOT,
    "bars": {"dir": "data/live", "timeframe": "1h", "tickers": ["BTC/USD", "ETH/USD"]},
    "study": {"n_trials": 40, "hours": 6.0},
    "disk": {"gb": 20.0, "studies": 14},
    "report": {"notify": True, "folder": "reports"},
}
FINDINGS = [
    {"name": "path-trades", "value": 212.0, "verdict": "pass"},
    {"name": "deflated-sharpe", "value": 0.412, "verdict": "fail"},
    {"name": "pbo", "value": 0.55, "verdict": "fail"},
]
STAGED: dict[str, Any] = {
    "study": f"{SLOT}-{NIGHT}",
    "trial": 17,
    "objective": 1.2345,
    "control": 0.8,
    "passes": False,
    "findings": FINDINGS,
    "reason": "deflated-sharpe is 0.412, > 0.95 is needed",
}
SECONDS = {"bars": 12.0, "check": 3.0, "begin": 0.4, "study": 20_412.0, "stage": 41.0}
KINDS = {"studies": 180_000_000, "bundles": 9_300_000, "reports": 2_100_000, "bars": 4_000_000}


def step(name: str, outcome: Outcome = "done", **facts: Any) -> NightStep:
    return NightStep(SLOT, NIGHT, name, STARTED, _seconds(name, outcome), outcome, facts)


def _seconds(name: str, outcome: Outcome) -> float:
    return SECONDS.get(name, 0.8) if outcome in ("done", "late") else 0.1


def night() -> Night:
    return Night(SLOT, NIGHT, "token", CONFIG, STARTED)


def account(name: str, kind: str, drift: float, seed: int) -> AccountLine:
    random = np.random.default_rng(seed)
    time = np.arange(MIDNIGHT - 40 * DAY, MIDNIGHT, 3600)
    growth = np.exp(np.cumsum(random.normal(drift, 0.002, len(time))))
    growth /= growth[0]
    return AccountLine(name, kind, time, growth, float(10_000.0 * growth[-1]))


def slot_rows(**changes: Any) -> SlotRows:
    usual: dict[str, Any] = {
        "champion": CHAMPION,
        "reign": Reign(SLOT, 3, CHAMPION, "2026-10-02T01:41:00.000Z", "entry 2 won by E = 91.4"),
        "accounts": [
            account("account", "account", 1e-4, 1),
            account("shadow", "shadow", 1.1e-4, 2),
            account("equal weight", "benchmark", 4e-5, 3),
        ],
        "disks": [
            {"kinds": KINDS | {"studies": 176_000_000}, "free": 81_000_000_000},
            {"kinds": KINDS, "free": 80_000_000_000},
        ],
        "trader": TraderFact("waiting for the bar", None, 4.0),
    }
    return SlotRows(**usual | changes)


def entry(number: int, bundle: str, kind: EntryKind, days: int) -> ArenaEntry:
    admitted = f"2026-{11 if days < 28 else 10:02d}-{28 - days % 28:02d}T02:00:00.000Z"
    since = MIDNIGHT - days * DAY
    return ArenaEntry(SLOT, 3, number, bundle, kind, admitted, since, 0.01, 0.01)


def record(bundle: str, days: int, slope: float, seed: int) -> list[ArenaDay]:
    random = np.random.default_rng(seed)
    log_e = np.cumsum(random.normal(slope, 0.15, days))
    return [
        ArenaDay(
            SLOT,
            3,
            bundle,
            MIDNIGHT + (place - days) * DAY,
            24 * (place + 1),
            float(value),
            float(-value),
            float(value / 50.0),
            float(40.0 * slope),
        )
        for place, value in enumerate(log_e)
    ]


def quiet() -> NightFacts:
    steps = [
        step("bars"),
        step("check"),
        step("begin", study=f"{SLOT}-{NIGHT}", total=40),
        step("study", study=f"{SLOT}-{NIGHT}", finished=40, total=40),
        step("stage", **STAGED),
        step("admit", "skipped", reason=STAGED["reason"]),
        step("arena"),
        step("certify", days=1, alarming=0),
        step("disk"),
    ]
    return night_facts(night(), steps, slot_rows())


def eventful() -> NightFacts:
    late = "31 of 40 trials were finished at the deadline"
    why = "its objective is +1.2345, that of trial 0 +0.8000; a seat is free"
    judged = STAGED | {"passes": True, "reason": "met"}
    judged["findings"] = [
        {"name": "deflated-sharpe", "value": 0.961, "verdict": "pass"},
        {"name": "pbo", "value": 0.12, "verdict": "pass"},
    ]
    steps = [
        step("bars"),
        step("check"),
        step("begin", study=f"{SLOT}-{NIGHT}", total=40),
        step("study", "late", study=f"{SLOT}-{NIGHT}", finished=31, total=40, reason=late),
        step("stage", **judged),
        step("admit", challenger={"bundle": YOUNG, "reason": why}, reason=why),
        step("arena"),
        step("disk"),
    ]
    events = [
        Event(SLOT, "refused", "2026-11-28T01:40:00.000Z", None, None, "not told", None),
        Event(SLOT, "promoted", "2026-11-27T02:00:00.000Z", RIVAL, None, "an earlier night", None),
        Event(
            SLOT, "challenger", "2026-11-28T07:21:00.000Z", YOUNG, None, f"trial 17; {why}", None
        ),
        Event(
            SLOT,
            "promoted",
            "2026-11-28T07:22:00.000Z",
            CHAMPION,
            FORMER,
            "entry 2 reached E = 241.1, 240 was needed",
            None,
        ),
    ]
    seats = [
        entry(1, FORMER, "former", 52),
        entry(2, RIVAL, "challenger", 34),
        entry(3, YOUNG, "challenger", 0),
        entry(0, CHAMPION, "refit", 9),
    ]
    days = record(FORMER, 52, -0.04, 5) + record(RIVAL, 34, 0.18, 6) + record(CHAMPION, 9, 0.01, 7)
    return night_facts(night(), steps, slot_rows(events=events, entries=seats, days=days))


def broken() -> NightFacts:
    reason = "BTC/USD has <no> bar at 2026-11-27 04:00 | *twice*, and `rm`"
    steps = [
        step("bars"),
        step("check", "refused", reason=reason),
        step("begin", "skipped", reason="check was refused"),
        step("study", "skipped", reason="begin was skipped"),
        step("arena", "failed", reason="the registry cannot be used: database is locked"),
    ]
    trader = TraderFact("stopped", "drawdown <b>of 20%</b>", 40_000.0)
    disks = [
        {"kinds": {"studies": 19_000_000_000}, "free": 5_000_000_000},
        {"kinds": {"studies": 19_400_000_000}, "free": 4_500_000_000},
    ]
    return night_facts(night(), steps, slot_rows(trader=trader, disks=disks, accounts=()))


NIGHTS = {"quiet": quiet, "eventful": eventful, "broken": broken}
