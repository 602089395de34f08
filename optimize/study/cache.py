"""Finished trials kept in memory, and the unfinished ones read no oftener than needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from optuna.storages._cached_storage import (
    _CachedStorage,
)  # what optuna.storages.get_storage makes of any RDBStorage

from optimize.study.storage import StudyStorage


class StudyCache(_CachedStorage):
    """Optuna's cache, which asks the database for every unfinished trial whenever anybody wants to see trials: the
    sampler for each parameter, the pruner for each trial of a batch. For a caller in one thread.
    """

    def __init__(self, storage: StudyStorage) -> None:
        super().__init__(storage)
        self._still = False

    @contextmanager
    def read_once(self, study_id: int) -> Iterator[None]:
        """Within the block, trials are what they are at its beginning."""
        self._read_trials_from_remote_storage(study_id)
        self._still = True
        try:
            yield
        finally:
            self._still = False

    def _read_trials_from_remote_storage(self, study_id: int) -> None:
        if not self._still:
            super()._read_trials_from_remote_storage(study_id)
