"""Cache of trials: finished ones are kept in memory, others are read only when needed."""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager

# `optuna.storages.get_storage` wraps every RDBStorage in this class.
from optuna.storages._cached_storage import _CachedStorage
from optuna.trial import FrozenTrial, TrialState

from sweepd.optimize.study.database.storage import StudyStorage
from sweepd.optimize.study.record.keys import is_ours


class StudyCache(_CachedStorage):
    """Optuna's cached storage, with blocks in which the database is read once.

    Otherwise the cache queries the database for every unfinished trial each time that the sampler
    draws a parameter or the pruner judges a trial. For use from one thread.
    """

    def __init__(self, storage: StudyStorage) -> None:
        super().__init__(storage)
        self._still = self._only_ours = False

    @contextmanager
    def read_once(self, study_id: int, *, only_ours: bool = False) -> Iterator[None]:
        """Within the block, trials are as they are at its beginning.

        Args:
            study_id: row id of the study.
            only_ours: leave out trials that other programs finished, so that samplers and pruners
                neither learn from their values nor take their parameters for the search space.
        """
        self._read_trials_from_remote_storage(study_id)
        self._still, self._only_ours = True, only_ours
        try:
            yield
        finally:
            self._still = self._only_ours = False

    def _read_trials_from_remote_storage(self, study_id: int) -> None:
        if not self._still:
            super()._read_trials_from_remote_storage(study_id)

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        trials = super().get_all_trials(study_id, deepcopy, states)
        if not self._only_ours:
            return trials
        return [t for t in trials if not t.state.is_finished() or is_ours(t.user_attrs)]
