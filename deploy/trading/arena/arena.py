"""The rules of the arena: who gets a seat, and what follows from the record. Pure functions.

Challengers trade on virtual money beside the champion, and only bars that came after a challenger's
entry decide. `sweepd.deploy.promotion.betting` has the test, and
`sweepd.deploy.trading.arena.judge_arena` reads the record and performs what is decided here.

A challenger becomes champion in one of two ways. Its E reaches the threshold of its entry, at any
time. Or the monitor has found that the champion earns less than it was scored with (it has aged),
and the challenger has been at least level with it for two weeks. A refit, which is the champion
trained on newer bars, takes over after two weeks in which no harm was shown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sweepd.deploy.promotion.betting import bound, log_capital, log_threshold, relative_returns
from sweepd.deploy.registry.arena_rows import REFIT, ArenaDay, ArenaEntry
from sweepd.envs.crypto.data.timeframe import DAY, bars_per_year
from sweepd.envs.crypto.scoring.metrics import log_returns

Array = NDArray[np.float64]
Times = NDArray[np.int64]
TRIAL_DAYS = 14  # before a refit, or a challenger of an aged champion, may take over
LOST = math.log(20.0)  # log E of the test for "worse" that ends a challenge: a level of 5%
MARGIN = 0.1  # a year: what a refit may cost before that counts as harm
TURNOVER = (0.5, 2.0)  # a refit's turnover over that of the champion
EXPOSURE = 0.2  # difference of a refit's mean exposure


@dataclass(frozen=True)
class ArenaRules:
    """Who gets a seat.

    seats: at most so many, refits not counted.
    term: days after which a seat may be given to another.
    spacing: days between two entries, or near-copies of one study would take the first numbers.
    """

    seats: int = 8
    term: int = 56
    spacing: int = 7


@dataclass(frozen=True)
class Rounds:
    """What a seated bundle and the champion earned in the bars that count, (n,) each.

    ends: when each bar closed, seconds. own, champion: simple returns.
    """

    ends: Times
    own: Array
    champion: Array


@dataclass(frozen=True)
class Conduct:
    """How a refit trades beside the champion.

    turnover: its turnover over that of the champion. exposure: difference of their mean exposures.
    """

    turnover: float
    exposure: float

    @property
    def alike(self) -> bool:
        """Whether it is the same strategy by both."""
        return TURNOVER[0] <= self.turnover <= TURNOVER[1] and abs(self.exposure) <= EXPOSURE


@dataclass(frozen=True)
class Standing:
    """A seat and its newest day, None before the first. conduct: of a refit."""

    entry: ArenaEntry
    day: ArenaDay | None = None
    conduct: Conduct | None = None

    @property
    def days(self) -> int:
        """Whole days since the entry."""
        return 0 if self.day is None else (self.day.day + DAY - self.entry.since) // DAY

    @property
    def log_e(self) -> float:
        """Log of E; 0 before the first day."""
        return 0.0 if self.day is None else self.day.log_e

    @property
    def over(self) -> float:
        """Log of E over its threshold; 0 or more wins."""
        return self.log_e - log_threshold(self.entry.number)


@dataclass(frozen=True)
class Promotion:
    """A seated bundle that shall become champion, and why."""

    entry: ArenaEntry
    why: str


@dataclass(frozen=True)
class Withdrawal:
    """A seated bundle that shall leave, and why."""

    entry: ArenaEntry
    why: str


@dataclass(frozen=True)
class Judgement:
    """What follows from a day."""

    promotion: Promotion | None
    withdrawals: tuple[Withdrawal, ...]


def day_rows(entry: ArenaEntry, rounds: Rounds, until: int, timeframe: str) -> list[ArenaDay]:
    """Return the record at the end of each UTC day that is over and has bars, oldest first.

    Args:
        entry: the entry.
        rounds: all bars since it.
        until: when the newest bar of the slot closed; days that end later are not over.
        timeframe: of the bars.
    """
    year = bars_per_year(timeframe)
    own, champion = rounds.own, rounds.champion
    gained = relative_returns(own, champion)
    lost, best = relative_returns(champion, own), entry.best / (1.0 + entry.best)
    if entry.kind == REFIT:
        # Counted in the champion's units, so that a margin per bar can be taken off.
        lost, best = -gained - MARGIN / year, entry.best + MARGIN / year
    log_e, log_loss = log_capital(gained, bound(entry.worst)), log_capital(lost, bound(best))
    relative = np.cumsum(log_returns(own) - log_returns(champion))
    count = np.arange(1, len(gained) + 1)
    mean = np.cumsum(gained) / count
    deviation = np.sqrt(np.maximum(np.cumsum(gained**2) / count - mean**2, 0.0))
    ratio = np.divide(mean, deviation, out=np.zeros_like(mean), where=deviation > 1e-12)
    # A bar that closes at midnight is the last of its day.
    days = (rounds.ends - 1) // DAY * DAY
    ended = np.flatnonzero((np.append(days[1:], until) > days) & (days + DAY <= until))
    return [
        ArenaDay(
            entry.slot,
            entry.reign,
            entry.bundle,
            int(days[row]),
            int(count[row]),
            float(log_e[row]),
            float(log_loss[row]),
            float(relative[row]),
            float(math.sqrt(year) * ratio[row]),
        )
        for row in ended
    ]


def judge(standings: Sequence[Standing], *, aged: bool) -> Judgement:
    """Return what follows from the newest days.

    Args:
        standings: all seats.
        aged: whether the monitor has found that the champion earns less than scored.
    """
    leaving = tuple(
        Withdrawal(one.entry, why) for one in standings if (why := _why_withdrawn(one)) is not None
    )
    gone = {one.entry.bundle for one in leaving}
    staying = [one for one in standings if one.entry.bundle not in gone]
    rivals = [one for one in staying if one.entry.kind != REFIT]
    best = max(rivals, key=lambda one: one.over, default=None)
    if best is not None and best.over >= 0.0:
        why = f"E = {_shown(best.log_e)} of {_shown(log_threshold(best.entry.number))}"
        return Judgement(Promotion(best.entry, f"won in the arena: {why}, {_ahead(best)}"), leaving)
    level = [one for one in rivals if aged and one.days >= TRIAL_DAYS and one.log_e >= 0.0]
    if level:
        best = max(level, key=lambda one: one.log_e)
        why = f"the champion has aged, and it is not behind: E = {_shown(best.log_e)}"
        return Judgement(Promotion(best.entry, f"{why}, {_ahead(best)}"), leaving)
    for one in staying:
        alike = one.conduct is not None and one.conduct.alike
        if one.entry.kind == REFIT and one.days >= TRIAL_DAYS and alike:
            why = f"a refit of the champion, no harm shown, {_ahead(one)}"
            return Judgement(Promotion(one.entry, why), leaving)
    return Judgement(None, leaving)


def gives_way(
    standings: Sequence[Standing], newest: int | None, last_bar: int, rules: ArenaRules
) -> tuple[bool, ArenaEntry | None]:
    """Return whether a challenger may enter now, and the entry whose seat it takes.

    A free seat is taken first, then that of the smallest E among those that have had their term;
    never that of the largest E of all.

    Args:
        standings: all seats.
        newest: open of the newest bar at the last entry of the reign, None before the first.
        last_bar: open of the newest bar.
        rules: the rules.
    """
    if newest is not None and last_bar - newest < rules.spacing * DAY:
        return False, None
    seated = [one for one in standings if one.entry.kind != REFIT]
    if len(seated) < rules.seats:
        return True, None
    leader = max(seated, key=lambda one: one.log_e, default=None)
    served = [one for one in seated if one is not leader and one.days >= rules.term]
    smallest = min(served, key=lambda one: one.log_e, default=None)
    return (False, None) if smallest is None else (True, smallest.entry)


def _why_withdrawn(one: Standing) -> str | None:
    if one.day is None:
        return None
    if one.day.log_e == -math.inf:
        limit = 2.0 * bound(one.entry.worst)
        return f"lost in the arena: a bar cost more than {limit:.1%} on the champion"
    if one.day.log_loss >= LOST:
        than = "the champion"
        if one.entry.kind == REFIT:
            than += f" by more than {MARGIN:.0%} a year"
        return f"lost in the arena: worse than {than}, E = {_shown(one.day.log_loss)} of 20"
    return None


def _ahead(one: Standing) -> str:
    relative = 0.0 if one.day is None else one.day.relative
    return f"{math.expm1(relative):+.2%} against the champion in {one.days} days"


def _shown(log_value: float) -> str:
    return f"{math.exp(log_value):.3g}" if log_value < 700.0 else f"e^{log_value:.0f}"
