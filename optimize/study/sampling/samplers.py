"""Samplers by name."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, PartialFixedSampler, RandomSampler, TPESampler
from optuna.search_space import IntersectionSearchSpace

from sweepd.envs.support.plugins import construct, resolve
from sweepd.optimize.study.record.configurations import RACE
from sweepd.optimize.study.sampling.cma import CMASampler

SAMPLERS = (RACE, "tpe", "random", "cmaes")
AUTO = "auto"  # the best of them for the kind of study, chosen when the study is created


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
        name: one of `SAMPLERS`, or that of a plugin (`sweepd.envs.support.plugins`), a subclass of
            Optuna's `BaseSampler`. A plugin without the argument `seed` has its own random numbers.
        seed: any non-negative integer.
        fixed: parameters with a fixed value.
        space: shared search space of the study.
        start: parameters at which the search starts.

    Raises:
        InputError: the name is unknown, or the plugin cannot be imported or constructed.
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
        plugin = resolve("sampler", name, (AUTO, *SAMPLERS), BaseSampler)
        with _experimental():
            sampler = construct("sampler", plugin, seed=seed % 2**32)
    if fixed:
        with _experimental():
            sampler = PartialFixedSampler(dict(fixed), sampler)
    return sampler


@contextmanager
def _experimental() -> Iterator[None]:
    """Return a context without Optuna's warnings that something is experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield
