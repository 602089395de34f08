"""CMA-ES sampler that derives its state from the trials of the study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.trial import FrozenTrial, TrialState

from sweepd.optimize.study.record.configurations import broken, first_value
from sweepd.optimize.study.record.keys import CMA_GENERATION_KEY
from sweepd.optimize.study.sampling.ranges import Range, share, value_at

SIGMA = 0.25  # step size of the first generation; every range has the width 1


class CMASampler(BaseSampler):
    """CMA-ES over the ranges that all trials share, computed by the package `cmaes`.

    Hansen, "The CMA Evolution Strategy: A Tutorial" (2016). Parameters that are not ranges are
    drawn at random, and so are all parameters until a trial is complete.

    Each trial records its generation. Every call replays the strategy on the values of the complete
    generations, so that all processes propose the same and only numbers are stored. (Optuna's own
    sampler stores a pickle in the database, which would have to be trusted.) Trials that are asked
    for together, or while others run, belong to one generation; its population consists of the
    first complete ones, by number. Trials that break constraints rank below the others, by how
    much they break them (Deb 2000).

    Args:
        seed: seed of this trial's draw.
        space: shared search space of the study; one object per study.
        start: mean of the first generation by parameter; by default the middle of the range.
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
        # A trial that was put back and is asked for again keeps its generation.
        if CMA_GENERATION_KEY not in trial.system_attrs:
            study._storage.set_trial_system_attr(
                trial._trial_id, CMA_GENERATION_KEY, strategy.generation
            )
        return {
            name: value_at(d, x)
            for (name, d), x in zip(ranges.items(), strategy.ask(), strict=True)
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
    """Return the strategy after all complete generations; `seed` seeds its next draw."""
    from cmaes import CMA

    count = len(ranges)
    bounds = np.array([[0.0, 1.0]] * count)
    mean = [share(own, start[name]) if name in start else 0.5 for name, own in ranges.items()]
    strategy = CMA(np.array(mean), SIGMA, bounds=bounds, seed=seed % 2**32)
    # Each `tell` advances the generation, until one whose population is not complete yet.
    while True:
        own = [
            t for t in complete if t.system_attrs.get(CMA_GENERATION_KEY) == strategy.generation
        ][: strategy.population_size]
        if len(own) < strategy.population_size:
            return strategy
        # Only the order counts. CMA-ES minimizes; the study maximizes.
        ranked = sorted(own, key=lambda t: (broken(t), -(first_value(t) or 0.0)))
        strategy.tell([(_point(t.params, ranges), float(rank)) for rank, t in enumerate(ranked)])


def _covers(trial: FrozenTrial, ranges: Mapping[str, Range]) -> bool:
    return all(name in trial.params for name in ranges)


def _point(params: Mapping[str, Any], ranges: Mapping[str, Range]) -> NDArray[np.float64]:
    """Return the parameters as (ranges,) numbers from 0 to 1."""
    return np.array([share(own, params[name]) for name, own in ranges.items()])
