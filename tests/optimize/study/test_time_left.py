"""The time that is left of simulated studies, against what they then take."""

from __future__ import annotations

import math
import random

import pytest

from sweepd.optimize.study.insight import time_left
from sweepd.optimize.study.insight.time_left import Pace, seconds_left, work_left
from sweepd.optimize.study.record.specs import StudySpec
from tests.optimize.objectives.test_game_study import make_spec


def spec_of(**changes: object) -> StudySpec:
    """Ten rungs of ten rollouts of 100 steps; programs of ten members."""
    sizes = {"budget": 10_000, "rungs": 10, "num_envs": 10, "horizon": 10, "slots": 10}
    return make_spec(**sizes, trials_per_batch=10, **changes)


class Simulation:
    """A worker whose programs take one second a rollout, full or not.

    Args:
        spec: of the study.
        total: trials.
        pruned: share of the trials that are pruned at each rung.
        warm_up: seconds before the first rollout.
        evaluation: seconds of an evaluation.
    """

    def __init__(
        self, spec: StudySpec, total: int, pruned: float, warm_up: float, evaluation: float
    ) -> None:
        self.spec, self.total, self.pruned, self.evaluation = spec, total, pruned, evaluation
        self.now = warm_up
        self.trials: list[tuple[str, int]] = []
        self.seen: list[tuple[float, float]] = []  # time, seconds left
        self.pace, self.rng = Pace(), random.Random(0)
        self.steps_per_trial = spec.rollouts * spec.transitions

    def run(self) -> None:
        """Train all trials."""
        while len(self.trials) < self.total:
            size = min(self.spec.trials_per_batch, self.total - len(self.trials))
            first = len(self.trials)
            self.trials += [("RUNNING", 0)] * size
            batch = list(range(first, first + size))
            for rung in range(1, self.spec.rungs + 1):
                if not batch:
                    break
                self.look(0.0)
                for rollout in range(1, 11):
                    self.now += 1.0
                    self.pace.count(10 * 100)
                    self.look(rollout * 10 * 100)
                self.now += self.evaluation
                self.pace.evaluated()
                batch = self.judge(batch, rung)

    def judge(self, batch: list[int], rung: int) -> list[int]:
        """Return the trials that go on."""
        for number in batch:
            last = rung == self.spec.rungs
            out = not last and self.rng.random() < self.pruned
            self.trials[number] = ("COMPLETE" if last else "PRUNED" if out else "RUNNING", rung)
        return [number for number in batch if self.trials[number][0] == "RUNNING"]

    def look(self, since: float) -> None:
        """Note the seconds that are left now."""
        work = work_left(self.trials, self.spec, self.total, self.steps_per_trial)
        self.seen.append((self.now, seconds_left(work, since, self.pace.value())))


@pytest.mark.parametrize(
    ("total", "pruned", "evaluation"),
    [(40, 0.0, 0.0), (24, 0.0, 5.0), (8, 0.0, 0.0), (100, 0.15, 2.0), (60, 0.25, 1.0)],
)
def test_the_time_left_of_a_simulated_study(
    monkeypatch: pytest.MonkeyPatch, total: int, pruned: float, evaluation: float
) -> None:
    """It is silent at first, never far from what the study takes, and right at the end."""
    made = Simulation(spec_of(), total, pruned, 300.0, evaluation)
    monkeypatch.setattr(time_left.time, "monotonic", lambda: made.now)
    made.run()
    end, begin = made.now, 300.0
    known = [(at, left) for at, left in made.seen if not math.isnan(left)]
    first, latest = known[0], known[-1]
    assert 10.0 <= first[0] - begin <= 20.0 + evaluation, "not before a rung was evaluated"
    for at, left in known:
        slack = 0.05 * (end - begin)
        assert left <= 1.7 * (end - at) + slack
        assert left >= 0.55 * (end - at) - slack
    if not pruned:
        assert all(left == pytest.approx(end - at, rel=0.2, abs=8) for at, left in known)
        assert latest[1] == pytest.approx(0.0, abs=1.0)


def test_a_long_first_rung_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time_left.time, "monotonic", lambda: now)
    pace = Pace()
    assert pace.value() == 0.0
    for _ in range(8):
        now += 10.0
        pace.count(100)
        assert pace.value() == (pytest.approx(10.0) if now > 65.0 else 0.0)
    now += 70.0  # an evaluation
    assert pace.value() == pytest.approx(5.0, rel=0.05)
    pace.rest()
    now += 10_000.0  # a pause
    assert pace.value() == 0.0
    pace.count(100)
    assert pace.value() == pytest.approx(10.0 / 1.9, rel=0.1), "the pause does not count"


def test_pruned_trials_and_partial_programs_are_expected() -> None:
    spec = spec_of()
    steps = spec.rollouts * spec.transitions
    assert work_left([], spec, 20, steps) == 20 * steps
    assert work_left([], spec, 12, steps) == 20 * steps, "two trials take as long as ten"
    assert work_left([("COMPLETE", 10)] * 12, spec, 12, steps) == 0.0
    half = [("PRUNED", 1)] * 50 + [("RUNNING", 1)] * 50
    expected = work_left(half, spec, 150, steps)
    assert expected < work_left([("RUNNING", 1)] * 50, spec, 100, steps)
    # Trials that another program finished, without rungs, say nothing about pruning.
    assert work_left([("COMPLETE", 0)] * 5, spec, 15, steps) == 10 * steps
    folds = spec_of(seeds=4)
    assert work_left([], folds, 10, 4 * steps) == 40 * steps
    assert seconds_left(0.0, 0.0, 0.0) == 0.0
    assert math.isnan(seconds_left(5.0, 0.0, 0.0))
