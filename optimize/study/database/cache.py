"""Cache of trials: finished ones are kept in memory, others are read only when needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

# `optuna.storages.get_storage` wraps every RDBStorage in this class.
from optuna.storages._cached_storage import _CachedStorage

from optimize.study.database.storage import StudyStorage


class StudyCache(_CachedStorage):
    """Optuna's cached storage, with blocks in which the database is read once.

    Otherwise the cache queries the database for every unfinished trial each time that the sampler
    draws a parameter or the pruner judges a trial. For use from one thread.
    """

    def __init__(self, storage: StudyStorage) -> None:
        super().__init__(storage)
        self._still = False

    @contextmanager
    def read_once(self, study_id: int) -> Iterator[None]:
        """Within the block, trials are as they are at its beginning."""
        self._read_trials_from_remote_storage(study_id)
        self._still = True
        try:
            yield
        finally:
            self._still = False

    def _read_trials_from_remote_storage(self, study_id: int) -> None:
        if not self._still:
            super()._read_trials_from_remote_storage(study_id)
