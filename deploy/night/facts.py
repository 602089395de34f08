"""What the report of a night tells: plain facts, made from the rows that a night left.

A pure function of rows: no clock, file or database. `sweepd.deploy.night.report` words them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweepd.deploy.night.records import Night, NightOutcome, NightStep, Outcome
from sweepd.deploy.promotion.betting import days_until, log_threshold
from sweepd.deploy.registry.arena_rows import ArenaDay, ArenaEntry, Reign
from sweepd.deploy.registry.records import Event
from sweepd.envs.crypto.data.timeframe import DAY

SPANS = {"day": 1, "week": 7, "month": 30}  # of accounts' returns, in days
# Kinds of events that change who trades, or who may.
CHANGES = ("promoted", "rolled-back", "challenger", "withdrawn", "swap-refused")
RECENT = 14  # nights from which the growth of the files is computed


@dataclass(frozen=True)
class StepFact:
    """A step. said: why it ended so, a sentence without its full stop; "" if there is no reason."""

    name: str
    outcome: Outcome
    seconds: float
    said: str


@dataclass(frozen=True)
class StudyFact:
    """The night's study, as far as its steps got.

    Attributes:
        name: of the study.
        finished, total: numbers of trials.
        trial: number of the best one; None if there is none.
        objective: its value.
        control: value of trial 0, which has the champion's parameters; None without one.
        findings: value by name of a rule of the first stage, None if it could not be measured.
        passes: whether the best trial met the first stage; None if it was not judged.
        enters: whether it became a challenger.
        why: why it did, or why not.
    """

    name: str
    finished: int
    total: int
    trial: int | None = None
    objective: float | None = None
    control: float | None = None
    findings: Mapping[str, float | None] | None = None
    passes: bool | None = None
    enters: bool = False
    why: str = ""


@dataclass(frozen=True)
class SeatFact:
    """A bundle with a seat in the arena.

    Attributes:
        bundle: its hash.
        kind: `challenger`, the `former` champion, or a `refit` of the champion.
        number: j in the order of entry; 0 of a refit.
        admitted: UTC text.
        needed: log of what E must reach for it to become champion; None of a refit, which has no
            such threshold.
        day: (n,) starts of UTC days, seconds.
        log_e: (n,) log of E at their ends.
        relative: log growth over the champion's so far; 0 before the first day.
        expected: days until E reaches the threshold if its advantage goes on as it was; infinite
            without an advantage, None of a refit and before the first day.
    """

    bundle: str
    kind: str
    number: int
    admitted: str
    needed: float | None
    day: NDArray[np.int64]
    log_e: NDArray[np.float64]
    relative: float
    expected: float | None

    @property
    def latest(self) -> float:
        """Log of E now; 0 before the first day, since every bet starts with 1."""
        return float(self.log_e[-1]) if len(self.log_e) else 0.0


@dataclass(frozen=True, eq=False)
class AccountLine:
    """An account's growth, (n,) at the closes of the bars that opened at `time` (seconds).

    kind: as of `AccountRecord`. value: at the last of them, quote units.
    """

    name: str
    kind: str
    time: NDArray[np.int64]
    growth: NDArray[np.float64]
    value: float

    def over(self, days: int | None) -> float | None:
        """Return the return over the last days, None: of all; None if it is younger."""
        if not len(self.time):
            return None
        first = 0
        if days is not None:
            since = int(self.time[-1]) - days * DAY
            first = int(np.searchsorted(self.time, since, side="right")) - 1
        if first < 0 or self.growth[first] <= 0.0:
            return None
        return float(self.growth[-1] / self.growth[first] - 1.0)


@dataclass(frozen=True)
class DiskFact:
    """What the nights' files take.

    Attributes:
        kinds: bytes by kind.
        free: bytes left on the disk.
        limit: bytes that the nights' studies may take, [disk] gb.
        per_night: bytes by which they grow per night; None after the first night.
    """

    kinds: Mapping[str, int]
    free: int
    limit: float
    per_night: float | None

    @property
    def nights_left(self) -> float | None:
        """Nights until the limit at this pace; infinite if they do not grow, None if unknown."""
        if self.per_night is None:
            return None
        left = max(0.0, self.limit - self.kinds.get(STUDIES, 0))
        return left / self.per_night if self.per_night > 0.0 else math.inf


STUDIES = "studies"  # the kind of bytes that [disk] gb limits


@dataclass(frozen=True)
class TraderFact:
    """The slot's trader. halt: why it must not trade. silent: seconds since its last heartbeat."""

    status: str
    halt: str | None
    silent: float


@dataclass(frozen=True)
class NightFacts:
    """A night, and how its slot stands after it.

    Attributes:
        slot: the slot.
        night: its UTC day, as 20261128.
        outcome: None while it is not over.
        seconds: from its start to its last step.
        steps: those that are over.
        study: None if the night did not begin one.
        changes: events of the slot since the night began that change who trades.
        champion: hash of the slot's champion.
        reign: number, and when and why it began; None without a champion.
        seats: in the order of entry.
        accounts: the slot's own account, its shadow, equal weight and cash.
        disk: None if the night did not look.
        trader: None if the slot was never traded.
        config: the night's settings, as plain data.
        where: flags that name the registry, each after a space.
    """

    slot: str
    night: str
    outcome: NightOutcome | None
    seconds: float
    steps: tuple[StepFact, ...]
    study: StudyFact | None
    changes: tuple[Event, ...]
    champion: str | None
    reign: Reign | None
    seats: tuple[SeatFact, ...]
    accounts: tuple[AccountLine, ...]
    disk: DiskFact | None
    trader: TraderFact | None
    config: Mapping[str, Any]
    where: str = ""

    @property
    def broken(self) -> tuple[StepFact, ...]:
        """The steps that failed or were refused."""
        return tuple(one for one in self.steps if one.outcome in ("failed", "refused"))


@dataclass(frozen=True)
class SlotRows:
    """Rows about a slot from which the facts are made, besides those of the night.

    disks: facts of the disk steps of all nights, oldest first. where: as of `NightFacts`.
    """

    champion: str | None
    events: Sequence[Event] = ()
    reign: Reign | None = None
    entries: Sequence[ArenaEntry] = ()
    days: Sequence[ArenaDay] = ()
    accounts: Sequence[AccountLine] = ()
    disks: Sequence[Mapping[str, Any]] = ()
    trader: TraderFact | None = None
    where: str = ""


def night_facts(night: Night, steps: Sequence[NightStep], slot: SlotRows) -> NightFacts:
    """Return the facts of a night.

    Args:
        night: its row.
        steps: its steps that are over, in their order.
        slot: the other rows.
    """
    rows: dict[str, Mapping[str, Any]] = {row.step: row.facts for row in steps}
    return NightFacts(
        slot=night.slot,
        night=night.night,
        outcome=night.outcome or _outcome(steps),
        seconds=sum(row.seconds for row in steps),
        steps=tuple(
            StepFact(row.step, row.outcome, row.seconds, _said(row.facts)) for row in steps
        ),
        study=_study(rows),
        changes=tuple(
            event for event in slot.events if event.kind in CHANGES and event.at >= night.started
        ),
        champion=slot.champion,
        reign=slot.reign,
        seats=tuple(
            _seat(entry, [one for one in slot.days if one.bundle == entry.bundle])
            for entry in slot.entries
            if entry.left is None
        ),
        accounts=tuple(slot.accounts),
        disk=_disk(slot.disks, float(night.config["disk"]["gb"]) * 1e9),
        trader=slot.trader,
        config=night.config,
        where=slot.where,
    )


def _outcome(steps: Sequence[NightStep]) -> NightOutcome | None:
    """How a night is ending whose report is its only step left."""
    found = {row.outcome for row in steps if row.step != "study"}
    return "broken" if found & {"failed", "refused"} else "late" if "late" in found else None


def _said(facts: Mapping[str, Any]) -> str:
    return str(facts.get("reason") or "")


def _study(rows: Mapping[str, Mapping[str, Any]]) -> StudyFact | None:
    begun, trained, judged, asked = (
        rows.get(name, {}) for name in ("begin", "study", "stage", "admit")
    )
    if "study" not in begun:
        return None
    findings = judged.get("findings")
    return StudyFact(
        name=begun["study"],
        finished=trained.get("finished", 0),
        total=begun["total"],
        trial=judged.get("trial"),
        objective=judged.get("objective"),
        control=judged.get("control"),
        findings=None if findings is None else {one["name"]: one["value"] for one in findings},
        passes=judged.get("passes"),
        enters=(asked.get("challenger") or {}).get("bundle") is not None,
        why=str(asked.get("reason") or judged.get("reason") or ""),
    )


def _seat(entry: ArenaEntry, days: Sequence[ArenaDay]) -> SeatFact:
    days = sorted(days, key=lambda one: one.day)
    last, needed = (days[-1] if days else None), None
    if entry.kind != "refit":
        needed = log_threshold(entry.number)
    expected = None
    if last is not None and needed is not None:
        expected = days_until(last.ratio, needed - last.log_e) if last.log_e < needed else 0.0
    return SeatFact(
        bundle=entry.bundle,
        kind=entry.kind,
        number=entry.number,
        admitted=entry.admitted,
        needed=needed,
        day=np.array([one.day for one in days], dtype=np.int64),
        log_e=np.array([one.log_e for one in days], dtype=np.float64),
        relative=0.0 if last is None else last.relative,
        expected=expected,
    )


def _disk(disks: Sequence[Mapping[str, Any]], limit: float) -> DiskFact | None:
    found = [one for one in disks if "kinds" in one]
    if not found:
        return None
    recent = [one["kinds"].get(STUDIES, 0) for one in found[-RECENT:]]
    grown = (recent[-1] - recent[0]) / (len(recent) - 1) if len(recent) > 1 else None
    return DiskFact(dict(found[-1]["kinds"]), int(found[-1]["free"]), limit, grown)
