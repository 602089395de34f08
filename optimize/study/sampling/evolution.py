"""Population-based training: which members of a population go on from which others, and how.

After every rung but the last, the worst quarter of a population goes on with the weights of members
of the best quarter, and with their hyperparameters changed a little (truncation selection and
perturbation of Jaderberg et al., 2017, https://arxiv.org/abs/1711.09846). The decisions depend on
the study's seed, the recorded values and fitness, and the recorded hyperparameters alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sweepd.envs.core.seeds import derive_seed
from sweepd.optimize.study.record.configurations import PBT
from sweepd.optimize.study.sampling.cube import Axis, Cube
from sweepd.optimize.study.sampling.ranges import Range, ends
from sweepd.optimize.study.space.search_space import SearchSpace

FEWEST = 4  # members of a population: the smallest number that has a quarter
SHARE = 4  # one member in so many is replaced, and as many are copied
RESAMPLED = 0.25  # probability that a hyperparameter is drawn again
FACTORS = (0.8, 1.2)  # of a hyperparameter with a logarithmic scale
STEP = 0.1  # of another hyperparameter, as a share of its range


@dataclass(frozen=True)
class Change:
    """What a trial goes on with after a rung.

    Attributes:
        rung: the rung (1 …).
        source: number of the trial whose weights it takes.
        params: its parameters from then on, as Optuna stores them.
    """

    rung: int
    source: int
    params: dict[str, Any]

    def to_record(self) -> dict[str, Any]:
        """Return the change as JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Fitness:
    """What copies follow in a game of two seats, in which a value shows a part of the strength.

    Members that all lose to the scripted players, or all beat them, differ in games against each
    other. Points in these games alone would reward any cycle of responses, in which the population
    gets no stronger. So both count equally.

    Attributes:
        population: mean points of the member against the other members of its population.
        anchors: mean points against the game's scripted players; None of a game without them.
    """

    population: float
    anchors: float | None = None

    @property
    def value(self) -> float:
        """The mean of both, 0 to 1."""
        return self.population if self.anchors is None else (self.population + self.anchors) / 2

    def to_record(self) -> dict[str, Any]:
        """Return the fitness as JSON, with its value."""
        return {"value": self.value, **asdict(self)}


def changes_of(record: Sequence[Mapping[str, Any]] | None) -> list[Change]:
    """Return the changes that are recorded of a trial, by rung; none of other trials."""
    return [Change(int(c["rung"]), int(c["source"]), dict(c["params"])) for c in record or ()]


def params_after(rung: int, params: Mapping[str, Any], changes: Sequence[Change]) -> dict[str, Any]:
    """Return a trial's parameters after a rung. params: those that it began with."""
    made = [change.params for change in changes if change.rung <= rung]
    return dict(made[-1] if made else params)


def decide(
    space: SearchSpace,
    seed: int,
    rung: int,
    values: Mapping[int, float],
    params: Mapping[int, Mapping[str, Any]],
) -> dict[int, Change]:
    """Return the changes of a population at a rung, by the number of the trial.

    A trial whose value is not lower than that of its source keeps its weights. In games of two
    seats, the values are those of `Fitness`.

    Args:
        space: the search space.
        seed: of the study.
        rung: the rung that the trials have reported.
        values: what they are compared by, by number.
        params: the parameters with which they reached the rung, by number.
    """
    ranked = sorted(values, key=lambda number: (-values[number], number))
    quarter = len(ranked) // SHARE
    if not quarter:  # most of the population has diverged
        return {}
    best, worst = ranked[:quarter], ranked[-quarter:]
    found = {}
    for number in sorted(worst):
        random = np.random.default_rng(derive_seed(seed, PBT, rung, number))
        source = best[int(random.random() * quarter)]
        if values[source] > values[number]:
            found[number] = Change(rung, source, perturbed(space, params[source], random))
    return found


def perturbed(
    space: SearchSpace, params: Mapping[str, Any], random: np.random.Generator
) -> dict[str, Any]:
    """Return parameters near others.

    With probability `RESAMPLED`, a hyperparameter of the algorithm is drawn again. Otherwise a
    number with a logarithmic scale is multiplied by one of `FACTORS`, another number moves by
    `STEP` of its range, and a choice stays. Numbers stay in their range. The shape, switches, and
    what a member keeps throughout its training (`Hyperparameters.of_the_run`) stay.
    """
    learner = space.subject.learner
    new = dict(params)
    for axis in Cube(space).axes:
        if axis.name in space.tables[learner.table] and axis.name not in learner.params.of_the_run:
            again, place, up = random.random(3)  # always three, so that axes do not disturb others
            if axis.name in params:  # otherwise it is switched off
                new[axis.name] = _moved(
                    axis, params[axis.name], place if again < RESAMPLED else None, up=bool(up < 0.5)
                )
    return new


def _moved(axis: Axis, value: Any, place: float | None, *, up: bool) -> Any:
    """Return another value of a hyperparameter. place: its position if it is drawn again."""
    own = axis.distribution
    if place is not None:
        return axis.value(float(axis.spread(np.array([place]))[0]))
    if not isinstance(own, Range):
        return value
    if own.log:
        low, high = ends(own)
        reach = math.log(FACTORS[up]) / (high - low)
    else:
        reach = STEP if up else -STEP
    moved = axis.value(min(max(axis.place({axis.name: value}) + reach, 0.0), 1.0))
    if moved == value and own.step is not None:  # a grid too coarse for so small a step
        moved = min(max(value + (own.step if up else -own.step), own.low), own.high)
    return moved


@dataclass(frozen=True)
class Stretch:
    """A part of a schedule.

    Attributes:
        rung: the rung after which it begins, 0 for the beginning of the training.
        trial: the trial that trained with it.
        params: the parameters, as Optuna stores them.
    """

    rung: int
    trial: int
    params: dict[str, Any]


def schedule(
    number: int, params: Mapping[int, Mapping[str, Any]], changes: Mapping[int, Sequence[Change]]
) -> list[Stretch]:
    """Return the parameters that led to a trial's weights, from the beginning on.

    Weights were copied, so earlier stretches may be those of other trials.

    Args:
        number: of the trial.
        params: the parameters with which each trial began, by number.
        changes: the recorded changes of each trial, by number.
    """
    found: list[Stretch] = []
    before = math.inf
    while True:
        last = [change for change in changes.get(number, ()) if change.rung < before]
        if not last:
            return [Stretch(0, number, dict(params[number])), *reversed(found)]
        found.append(Stretch(last[-1].rung, number, dict(last[-1].params)))
        before, number = last[-1].rung, last[-1].source
