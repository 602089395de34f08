"""Samplers and pruners by name, and the pruner for batches of trials.

Optuna's `SuccessiveHalvingPruner` records a trial's position at a rung when it judges it, so the
first trial of a batch would compete with fewer trials than the last one. `RungPruner` uses reported
values only, so the order does not matter.
"""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Mapping
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.pruners import BasePruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, PartialFixedSampler, RandomSampler, TPESampler
from optuna.search_space import IntersectionSearchSpace

from envs.support.errors import InputError
from optimize.study.cma import CMASampler

SAMPLERS = ("tpe", "random", "cmaes")
PRUNERS = ("hyperband", "median", "none")


class RungPruner(BasePruner):
    """Hyperband's brackets (Li et al. 2018, JMLR 18) with successive halving by reported values.

    A trial's bracket b follows from its number; it is judged from rung b + 1 on. At a rung it
    continues if it is among the best ⌈n / eta⌉ of the n trials that reported there. Nothing is
    pruned while fewer than `least` trials have reported, or at the last rung.

    Args:
        rungs: number of rungs of a trial.
        eta: reduction factor of successive halving.
        least: number of reports from which trials are pruned.
    """

    def __init__(self, rungs: int, eta: float = 2.0, least: int = 4) -> None:
        self.rungs, self.eta, self.least = rungs, eta, least
        self.brackets = max(1, min(3, rungs - 1))

    def bracket(self, number: int) -> int:
        """Return the bracket of a trial, 0 … brackets - 1.

        Lower brackets prune earlier and have more trials, as in Hyperband.
        """
        shares = [self.eta ** (self.brackets - 1 - b) for b in range(self.brackets)]
        at = zlib.crc32(str(number).encode()) / 2**32 * sum(shares)
        for b, share in enumerate(shares):
            at -= share
            if at < 0:
                return b
        return self.brackets - 1

    def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:
        """Return whether the trial is pruned at the last rung that it has reported."""
        rung = trial.last_step
        if rung is None or rung >= self.rungs or rung <= self.bracket(trial.number):
            return False
        values = [
            t.intermediate_values[rung]
            for t in study.get_trials(deepcopy=False)
            if rung in t.intermediate_values
        ]
        values = sorted((v for v in values if math.isfinite(v)), reverse=True)
        if len(values) < self.least:
            return False
        return trial.intermediate_values[rung] < values[math.ceil(len(values) / self.eta) - 1]


def make_pruner(name: str, rungs: int) -> BasePruner:
    """Return a pruner by name. Raises InputError for an unknown one."""
    if name == "hyperband":
        return RungPruner(rungs)
    if name == "median":
        return MedianPruner(n_startup_trials=4)
    if name == "none":
        return NopPruner()
    raise InputError(f"--pruner {name!r} is not known; choose one of {', '.join(PRUNERS)}")


class SharedSpaceTPE(TPESampler):
    """Optuna's multivariate TPE with a search space that samplers share.

    Every trial has its own sampler. Without the shared `space`, each would compute the intersection
    of all trials' parameters again.

    Args:
        seed: seed of the sampler.
        space: one object per study.
    """

    def __init__(self, seed: int, space: IntersectionSearchSpace) -> None:
        super().__init__(multivariate=True, constant_liar=True, seed=seed)
        self._shared = space

    def infer_relative_search_space(
        self,
        study: optuna.Study,
        trial: optuna.trial.FrozenTrial,  # noqa: ARG002 -- Optuna's signature
    ) -> dict[str, BaseDistribution]:
        return {
            name: d
            for name, d in self._shared.calculate(study, use_cache=True).items()
            if not d.single()
        }


def make_sampler(
    name: str,
    seed: int,
    fixed: Mapping[str, Any] | None = None,
    space: IntersectionSearchSpace | None = None,
    start: Mapping[str, Any] | None = None,
) -> BaseSampler:
    """Return a sampler by name.

    Args:
        name: one of `SAMPLERS`.
        seed: any non-negative integer.
        fixed: parameters with a fixed value.
        space: shared search space of the study.
        start: parameters at which the search starts.

    Raises:
        InputError: the name is unknown.
    """
    sampler: BaseSampler
    if name == "tpe":
        sampler = SharedSpaceTPE(
            seed % 2**32, space or IntersectionSearchSpace(include_pruned=True)
        )
    elif name == "cmaes":
        sampler = CMASampler(
            seed % 2**32, space or IntersectionSearchSpace(include_pruned=True), start or {}
        )
    elif name == "random":
        sampler = RandomSampler(seed=seed % 2**32)
    else:
        raise InputError(f"--sampler {name!r} is not known; choose one of {', '.join(SAMPLERS)}")
    if fixed:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = PartialFixedSampler(dict(fixed), sampler)
    return sampler
