"""Cache of trials: finished ones are kept in memory, others are read only when needed."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Container, Iterator
from contextlib import contextmanager

from optuna.distributions import BaseDistribution, check_distribution_compatibility

# `optuna.storages.get_storage` wraps every RDBStorage in this class.
from optuna.storages._cached_storage import _CachedStorage
from optuna.trial import FrozenTrial, TrialState

from sweepd.optimize.study.database.storage import StudyStorage, TrialWrite
from sweepd.optimize.study.record.keys import is_ours


class StudyCache(_CachedStorage):
    """Optuna's cached storage, with blocks in which the database is read once.

    Otherwise the cache queries the database for every unfinished trial each time that the sampler
    draws a parameter or the pruner judges a trial, and every parameter is a transaction. For use
    from one thread.
    """

    def __init__(self, storage: StudyStorage) -> None:
        super().__init__(storage)
        self._storage = storage
        self._still = self._only_ours = False
        self._ids: dict[str, int] = {}  # of studies, by name
        # Parameters that were set in the block: by trial and name, the stored value and the range.
        self._params: dict[int, dict[str, tuple[float, BaseDistribution]]] = defaultdict(dict)

    @contextmanager
    def read_once(self, study_id: int, *, only_ours: bool = False) -> Iterator[set[int]]:
        """Within the block, trials are as they are at its beginning, but for parameters set in it.

        These are written at its end, in one transaction.

        Args:
            study_id: row id of the study.
            only_ours: leave out trials that other programs finished, so that samplers and pruners
                neither learn from their values nor take their parameters for the search space.

        Yields:
            A set that gets the row ids of the trials that were lost before their parameters were
                written.
        """
        self._read_trials_from_remote_storage(study_id)
        self._still, self._only_ours = True, only_ours
        lost: set[int] = set()
        try:
            yield lost
            if self._params:
                writes = [TrialWrite(own, params=params) for own, params in self._params.items()]
                lost |= self._storage.write(writes)
        finally:
            self._still = self._only_ours = False
            self._params.clear()

    def _read_trials_from_remote_storage(self, study_id: int) -> None:
        if not self._still:
            super()._read_trials_from_remote_storage(study_id)

    def get_study_id_from_name(self, study_name: str) -> int:
        # Every draw and every judgement makes a new `optuna.Study`, which asks for it.
        if study_name not in self._ids:
            self._ids[study_name] = super().get_study_id_from_name(study_name)
        return self._ids[study_name]

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        trials = super().get_all_trials(study_id, deepcopy, states)
        if not self._only_ours:
            return trials
        return [t for t in trials if not t.state.is_finished() or is_ours(t.user_attrs)]

    def get_trial(self, trial_id: int) -> FrozenTrial:
        if not self._still:
            return super().get_trial(trial_id)
        study_id, number = self._trial_id_to_study_id_and_number[trial_id]
        found = self._studies[study_id].trials[number]
        # Optuna's `Trial` changes its copy.
        return found if found.state.is_finished() else copy.deepcopy(found)

    def set_trial_param(
        self,
        trial_id: int,
        param_name: str,
        param_value_internal: float,
        distribution: BaseDistribution,
    ) -> None:
        if not self._still:
            super().set_trial_param(trial_id, param_name, param_value_internal, distribution)
            return
        study_id, number = self._trial_id_to_study_id_and_number[trial_id]
        study = self._studies[study_id]
        if param_name not in study.param_distribution:
            ranges = (trial.distributions.get(param_name) for trial in study.trials.values())
            study.param_distribution[param_name] = next(filter(None, ranges), distribution)
        check_distribution_compatibility(study.param_distribution[param_name], distribution)
        self._params[trial_id][param_name] = param_value_internal, distribution
        # For the draws of the other trials of the batch; it is read again after the block.
        trial = study.trials[number]
        trial.params[param_name] = distribution.to_external_repr(param_value_internal)
        trial.distributions[param_name] = distribution
