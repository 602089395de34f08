"""CMA-ES as a sampler whose state is the study's history."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.trial import FrozenTrial, TrialState

from envs.support.study_record import CMA_GENERATION_KEY

SIGMA = 0.25  # of the first generation, where every range has the width 1
Range = FloatDistribution | IntDistribution


class CMASampler(BaseSampler):
    """CMA-ES (Hansen, "The CMA evolution strategy: a tutorial", 2016) by the package `cmaes`, over the ranges that all
    trials have; what is no range is drawn at random, and so is everything before the first trial is complete.

    Every call runs the strategy again on the values of the complete generations; each trial records its generation. So
    every process proposes the same, and only numbers are stored. (Optuna's own sampler
    keeps a pickle in the database, which would have to be trusted.) Trials that are asked for together, or while others
    run, are of one generation; the first ones of it that are complete, by number, are its population.

    seed: of this trial's draw. space: of one study, and kept as long as it. start: the mean of the first generation, by
    parameter; the middle of the range for a parameter that is not in it.
    """

    def __init__(self, seed: int, space: IntersectionSearchSpace, start: Mapping[str, Any]) -> None:
        self._seed, self._shared, self._start = seed, space, start
        self._random = RandomSampler(seed=seed)

    def infer_relative_search_space(
        self,
        study: optuna.Study,
        trial: FrozenTrial,  # noqa: ARG002
    ) -> dict[str, BaseDistribution]:
        shared = self._shared.calculate(study, use_cache=True)
        return {
            name: d for name, d in sorted(shared.items()) if isinstance(d, Range) and not d.single()
        }

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        ranges = {name: d for name, d in search_space.items() if isinstance(d, Range)}
        if len(ranges) < 2:  # the strategy needs two
            return {}
        complete = [
            t
            for t in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
            if _covers(t, ranges)
        ]
        strategy = _replay(complete, ranges, self._start, self._seed)
        if (
            CMA_GENERATION_KEY not in trial.system_attrs
        ):  # a trial that was asked for before, and put back, keeps what it drew
            study._storage.set_trial_system_attr(
                trial._trial_id, CMA_GENERATION_KEY, strategy.generation
            )
        return {
            name: _value(d, x) for (name, d), x in zip(ranges.items(), strategy.ask(), strict=True)
        }

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        return self._random.sample_independent(study, trial, param_name, param_distribution)


def _replay(
    complete: Sequence[FrozenTrial],
    ranges: Mapping[str, Range],
    start: Mapping[str, Any],
    seed: int,
) -> Any:
    """The strategy after all generations that are over; it draws by `seed`."""
    from cmaes import CMA

    count = len(ranges)
    bounds = np.array([[0.0, 1.0]] * count)
    mean = [_share(own, start[name]) if name in start else 0.5 for name, own in ranges.items()]
    strategy = CMA(np.array(mean), SIGMA, bounds=bounds, seed=seed % 2**32)
    while True:
        own = [
            t for t in complete if t.system_attrs.get(CMA_GENERATION_KEY) == strategy.generation
        ][: strategy.population_size]
        if len(own) < strategy.population_size:
            return strategy
        strategy.tell([(_point(t.params, ranges), -float(t.value or 0.0)) for t in own])


def _covers(trial: FrozenTrial, ranges: Mapping[str, Range]) -> bool:
    return all(name in trial.params for name in ranges)


def _ends(of: Range) -> tuple[float, float]:
    """Of a range, on the scale that it is drawn on; half a step more where it is of integers, so that all are alike."""
    half = of.step / 2 if isinstance(of, IntDistribution) else 0.0
    low, high = of.low - half, of.high + half
    return (math.log(low), math.log(high)) if of.log else (low, high)


def _point(params: Mapping[str, Any], ranges: Mapping[str, Range]) -> NDArray[np.float64]:
    """(ranges,) numbers from 0 to 1."""
    return np.array([_share(own, params[name]) for name, own in ranges.items()])


def _share(of: Range, value: float) -> float:
    """The place of a value in its range, from 0 to 1."""
    low, high = _ends(of)
    return float(((math.log(value) if of.log else value) - low) / (high - low))


def _value(of: Range, share: float) -> float | int:
    """The value at a share of the range."""
    low, high = _ends(of)
    value = low + float(share) * (high - low)
    value = math.exp(value) if of.log else value
    if of.step is not None:
        value = of.low + round((value - of.low) / of.step) * of.step
    value = min(max(value, of.low), of.high)
    return int(value) if isinstance(of, IntDistribution) else value
