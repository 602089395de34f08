"""What a night does next: a pure function of its settings and of its steps that are over.

No clock, file or database: `sweepd.deploy.night.shell` performs what `next_step` says, and writes a
row. A step that is over is never done again; a step without a row is done again from its beginning,
so every step's effect can be repeated.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sweepd.deploy.night.config import NightConfig
from sweepd.deploy.night.records import STEPS, Name, Night, NightOutcome, NightStep, Outcome
from sweepd.envs.support.errors import InputError

MOST_FAILURES: Final = 3  # of one step
LASTS: Final = 20 * 3600.0  # seconds after its start, a night is continued
# A step is of use only after these have been done. A study that was stopped at its deadline is
# judged as it is.
_NEEDS: Final[Mapping[Name, tuple[Name, tuple[Outcome, ...]]]] = {
    "check": ("bars", ("done",)),
    "begin": ("check", ("done",)),
    "study": ("begin", ("done",)),
    "stage": ("study", ("done", "late")),
    "admit": ("stage", ("done",)),
}
LATE: Final = "the night was not over when the next one was due"


@dataclass(frozen=True)
class Perform:
    """Do a step, and write its row. until: seconds since the epoch, when it must end; None: none."""

    step: Name
    until: float | None = None


@dataclass(frozen=True)
class Settle:
    """Write the row of a step that is not done, with the reason."""

    step: Name
    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class Done:
    """The night is over."""

    outcome: NightOutcome


def steps_of(config: NightConfig) -> tuple[Name, ...]:
    """Return the steps that a night with these settings has, in their order."""
    bars, study = config.bars is not None, config.study is not None
    wanted: Mapping[Name, bool] = {
        "bars": config.bars is not None and config.bars.source != "folder",
        "check": bars,
        "begin": study,
        "study": study,
        "stage": study,
        "admit": study,
        "arena": config.arena is not None,
        "defend": config.defend is not None,
        "certify": bars,
    }
    return tuple(name for name in STEPS if wanted.get(name, True))


def next_step(
    config: NightConfig, night: Night, rows: Mapping[Name, NightStep], *, over: bool
) -> Perform | Settle | Done:
    """Return what a night does next.

    Args:
        config: its settings.
        night: its row.
        rows: its steps that are over, by name.
        over: whether the next night is due, see `is_over`.
    """
    wanted = steps_of(config)
    step = next((name for name in wanted if name not in rows), None)
    if step is None:
        return Done(_outcome(rows))
    if night.failures >= MOST_FAILURES:
        return Settle(step, "failed", night.problem or "")
    if step == "report":  # also of a night that is late
        return Perform(step)
    if over:
        return Settle(step, "late", LATE)
    if step in _NEEDS:
        before, outcomes = _NEEDS[step]
        if before in wanted and rows[before].outcome not in outcomes:
            return Settle(step, "skipped", f"{before} was {rows[before].outcome}")
    if step == "stage" and "study" not in rows["study"].facts:  # it was never begun
        return Settle(step, "skipped", f"study was {rows['study'].outcome}")
    if step == "admit" and not (rows["stage"].facts["passes"] or rows["begin"].facts["refit"]):
        return Settle(step, "skipped", rows["stage"].facts["reason"])
    return Perform(step, rows["begin"].facts["deadline"] if step == "study" else None)


def _outcome(rows: Mapping[Name, NightStep]) -> NightOutcome:
    found = {row.outcome for row in rows.values() if row.step != "study" or row.outcome != "late"}
    return "late" if "late" in found else "broken" if found & {"failed", "refused"} else "done"


def is_over(night: Night, nights: Sequence[Night], now: float) -> bool:
    """Return whether a night's time has passed: a later one has begun, or is due.

    Args:
        night: the night.
        nights: all nights of its slot.
        now: seconds since the epoch.
    """
    return now - _seconds(night.started) > LASTS or any(one.night > night.night for one in nights)


def which_nights(nights: Sequence[Night], asked: str | None, now: float) -> list[str]:
    """Return the nights that a start works on, oldest first: earlier ones that it closes, and one.

    That is the night of the present UTC day, or an open one that began less than `LASTS` ago.

    Args:
        nights: all nights of the slot.
        asked: this night only, as 20261128.
        now: seconds since the epoch.

    Raises:
        InputError: `asked` is not a day, or in the future.
    """
    today = f"{dt.datetime.fromtimestamp(now, dt.UTC):%Y%m%d}"
    unfinished = [one for one in nights if one.ended is None]
    if asked is not None:
        _check_day(asked, today)
        return [asked]
    young = [one.night for one in unfinished if not is_over(one, nights, now)]
    chosen = young[-1] if young else today
    return [*(one.night for one in unfinished if one.night < chosen), chosen]


def _check_day(asked: str, today: str) -> None:
    try:
        day = f"{dt.datetime.strptime(asked, '%Y%m%d').replace(tzinfo=dt.UTC):%Y%m%d}"
    except ValueError:
        day = ""
    if day != asked:
        raise InputError(f"--night {asked!r} is not a day; write it as {today}")
    if asked > today:
        raise InputError(f"--night {asked} has not come: today is {today} (UTC)")


def _seconds(moment: str) -> float:
    return dt.datetime.fromisoformat(moment).timestamp()
