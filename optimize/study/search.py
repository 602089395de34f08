"""The search's decisions: which parameters a trial gets, which trials are pruned, which is best.

A decision depends on the trials in the study's storage and on the study's seed alone, not on the
process that makes it. The storage is any of Optuna's: `scripts/bench/search/search_replay.py` makes
the same decisions on recorded learning curves, with a storage in memory.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import optuna
from optuna.pruners import NopPruner
from optuna.samplers import BaseSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.storages import BaseStorage

from sweepd.envs.core.seeds import derive_seed
from sweepd.optimize.study.record.configurations import RACE, Selection
from sweepd.optimize.study.sampling.cube import Cube
from sweepd.optimize.study.sampling.prior import Known
from sweepd.optimize.study.sampling.pruners import make_pruner
from sweepd.optimize.study.sampling.samplers import make_sampler
from sweepd.optimize.study.space.search_space import SearchSpace

if TYPE_CHECKING:
    from sweepd.optimize.study.sampling.race import Race


class Search:
    """Sampler and pruner of one study.

    Args:
        space: the search space.
        sampler: see `samplers.make_sampler`.
        pruner: see `pruners.make_pruner`.
        rungs: number of rungs of a trial.
        seed: the study's seed.
        selection: how trials are compared.
        prior: configurations of earlier studies, which the race learns from.
    """

    def __init__(
        self,
        space: SearchSpace,
        *,
        sampler: str,
        pruner: str,
        rungs: int,
        seed: int,
        selection: Selection,
        prior: Sequence[Known] = (),
    ) -> None:
        self.space, self.seed = space, seed
        self.pruner = make_pruner(pruner, rungs)
        self.prunes = not isinstance(self.pruner, NopPruner)  # not where trials have several values
        self._sampler, self._selection, self._prior = sampler, selection, prior
        self._shared_space = IntersectionSearchSpace(include_pruned=True)

    @functools.cached_property
    def _race(self) -> Race:
        from sweepd.optimize.study.sampling.race import Race  # imports scipy, which takes long

        observe, blocks = self._selection.observed, self._selection.blocks
        return Race(Cube(self.space), self.seed, observe, self._prior, blocks)

    def shape_known(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the shape parameters among `params`."""
        return {name: params[name] for name in self.space.shape_names if name in params}

    def draw(
        self,
        storage: BaseStorage,
        study_name: str,
        trial_id: int,
        number: int,
        shape: Mapping[str, Any] | None,
        total: int,
    ) -> tuple[optuna.Trial, dict[str, Any]]:
        """Draw the parameters of a RUNNING trial that it does not have yet.

        Args:
            storage: where the study is.
            study_name: name of the study.
            trial_id: row id of the trial.
            number: number of the trial.
            shape: shape parameters that are given, as those of the trial's batch are.
            total: number of trials that the study shall have.

        Returns:
            The trial, and all its parameters as Optuna stores them.
        """
        # One sampler per trial, seeded by its number: proposals depend on the study's history, not
        # on the process that asks.
        seed = derive_seed(self.seed, "sampler", number)
        start = self.space.start
        fixed = {**(start if number == 0 else {}), **(shape or {})}
        sampler: BaseSampler
        if self._sampler == RACE:
            sampler = self._race.sampler(seed, total, fixed)
        else:
            sampler = make_sampler(self._sampler, seed, fixed, self._shared_space, start)
        # A new Study object, since a reused one shows its sampler the trials of its last `ask`.
        study = optuna.load_study(
            study_name=study_name, storage=storage, sampler=sampler, pruner=self.pruner
        )
        # An enqueued parameter out of range warns here; `SearchSpace.validate` refuses it.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trial = optuna.Trial(study, trial_id)
            return trial, self.space.suggest(trial)

    def judge(self, trials: Sequence[optuna.Trial | None]) -> list[bool]:
        """Return for each trial whether it is pruned at the rung that it has reported.

        Call it after all trials of the batch have reported. None: a trial outside a study, which
        is not pruned.
        """
        if not self.prunes:
            return [False] * len(trials)
        return [
            trial is not None
            and self.pruner.prune(trial.study, trial.storage.get_trial(trial._trial_id))
            for trial in trials
        ]
