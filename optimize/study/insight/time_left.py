"""The time that a study still needs, from the rungs that its trials have reached."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable

from sweepd.optimize.study.record.rows import FINISHED
from sweepd.optimize.study.record.specs import StudySpec

PRIOR_TRIALS = 2.0  # weight of all rungs together in the share of one rung, in trials
MEMORY_SECONDS = 1800.0  # over which the pace of training is averaged
EVIDENCE_SECONDS = 5.0  # of training before a pace is known, if a rung was evaluated in them
LONG_SECONDS = 60.0  # of training before a pace is known without an evaluated rung


def members_of(spec: StudySpec, steps_per_trial: int) -> int:
    """Return the number of members of a trial."""
    return max(1, round(steps_per_trial / (spec.rollouts * spec.transitions)))


def whole_programs(members: float, slots: int) -> int:
    """Return members in whole programs: a program takes as long with empty slots as without."""
    return math.ceil(members / slots - 1e-9) * slots


def work_left(
    reached: Iterable[tuple[str, int]], spec: StudySpec, total: int, steps_per_trial: int
) -> float:
    """Return the environment steps that are expected until the study is complete.

    They are those of whole programs, see `whole_programs`. At every rung, as large a share of the
    trials is expected to go on as went on so far. Nothing is assumed about the pruner, so before
    the first trial is judged all are expected to go on.

    Args:
        reached: state (as in Optuna) and highest rung of every trial.
        spec: the study's spec.
        total: finished trials of the complete study.
        steps_per_trial: environment steps of a trial that is not pruned.
    """
    rungs = spec.rungs
    ends = [0, *(spec.rung_end(rung) for rung in range(1, rungs + 1))]
    members = members_of(spec, steps_per_trial)
    counts = Counter(reached)
    done = sum(count for (state, _), count in counts.items() if state in FINISHED)
    went_on, stopped = [0] * rungs, [0] * rungs  # when judged at rung 1 …
    under_way = Counter[int]()  # by rung
    for (state, highest), count in counts.items():
        trains = state in ("RUNNING", "WAITING")
        for rung in range(1, min(highest + trains, rungs)):
            went_on[rung] += count
        if trains:
            under_way[min(highest, rungs)] += count
        elif state in ("PRUNED", "FAIL") and 0 < highest < rungs:
            stopped[highest] += count
    judged = sum(went_on) + sum(stopped)
    share = sum(went_on) / judged if judged else 1.0
    goes_on = [
        (on + PRIOR_TRIALS * share) / (on + off + PRIOR_TRIALS)
        for on, off in zip(went_on, stopped, strict=True)
    ]
    batches = [(1, rung, trials) for rung, trials in under_way.items()]  # number, rung, trials
    new, size = max(0, total - done - under_way.total()), spec.trials_per_batch
    batches += [(new // size, 0, size), (1, 0, new % size)]
    left = 0.0
    for number, begun, size in batches:
        stays = 1.0  # probability that a trial is still in training
        for rung in range(begun, rungs):
            stays *= goes_on[rung] if rung > begun else 1.0
            any_left = 1.0 - (1.0 - stays) ** size
            if any_left:
                steps = (ends[rung + 1] - ends[rung]) * spec.transitions
                trials = size * stays / any_left
                left += number * steps * any_left * whole_programs(trials * members, spec.slots)
    return left


def seconds_left(work: float, since: float, pace: float) -> float:
    """Return the seconds left; NaN if the pace is not known.

    Args:
        work: see `work_left`.
        since: steps that were made since those rungs were reached.
        pace: of all workers together, see `Pace`.
    """
    if work == 0.0:
        return 0.0
    return max(0.0, work - since) / pace if pace > 0.0 else math.nan


class Pace:
    """Steps per second over the last half hour, as `work_left` counts them.

    Evaluations, and what happens between two batches, are included.

    The time until the first rollout is left out: most of it is spent on measuring and compiling,
    which happens once.
    """

    def __init__(self) -> None:
        self._steps = self._seconds = 0.0  # both fade with age
        self._measured = 0.0
        self._evaluated = False
        self._at: float | None = None  # time of the last count; None while nothing is in training

    def count(self, steps: float) -> None:
        """Count the steps of a rollout that has just ended."""
        now = time.monotonic()
        if self._at is not None:  # else the rollout's beginning is not known
            passed = now - self._at
            kept = math.exp(-passed / MEMORY_SECONDS)
            self._steps = kept * self._steps + steps
            self._seconds = kept * self._seconds + passed
            self._measured += passed
        self._at = now

    def rest(self) -> None:
        """Stop the clock until the next rollout ends."""
        if self._at is not None:
            self.count(0.0)
        self._at = None

    def evaluated(self) -> None:
        """Note that a rung was evaluated."""
        self._evaluated |= self._measured > 0.0

    def value(self) -> float:
        """Return the pace; 0 while nothing is in training or too little was measured."""
        if self._at is None:
            return 0.0
        passed = time.monotonic() - self._at
        enough = EVIDENCE_SECONDS if self._evaluated else LONG_SECONDS
        if not self._steps or self._measured + passed < enough:
            return 0.0
        kept = math.exp(-passed / MEMORY_SECONDS)
        return kept * self._steps / (kept * self._seconds + passed)
