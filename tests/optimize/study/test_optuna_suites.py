"""Optuna's own suites, which it ships for samplers and storages of third parties.

The race is not among them: it proposes configurations of its study's search space only. CMA-ES takes
no study of several objectives, of which sweepd makes none.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from optuna.samplers import BaseSampler
from optuna.testing.pytest_samplers import (
    BasicSamplerTestCase,
    MultiObjectiveSamplerTestCase,
    RelativeSamplerTestCase,
)

from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.database.storage import StudyStorage
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.sampling.samplers import SharedSpaceTPE, make_sampler
from sweepd.testing import StorageTestCase


class TestTPE(BasicSamplerTestCase, RelativeSamplerTestCase, MultiObjectiveSamplerTestCase):
    @pytest.fixture
    def sampler(self) -> Callable[[], BaseSampler]:
        def made() -> BaseSampler:
            sampler = make_sampler("tpe", 3)
            assert isinstance(sampler, SharedSpaceTPE)
            # The suite asks for relative samples after one trial, which TPE draws after ten.
            sampler._n_startup_trials = 0
            return sampler

        return made


class TestCMA(BasicSamplerTestCase, RelativeSamplerTestCase):
    # CMA-ES moves the numbers only, as Optuna's own does; choices are drawn for each trial alone.
    test_sample_relative_categorical = test_sample_relative_mixed = None  # type: ignore[assignment]

    @pytest.fixture
    def sampler(self) -> Callable[[], BaseSampler]:
        return lambda: make_sampler("cmaes", 3)


class TestRandom(BasicSamplerTestCase, MultiObjectiveSamplerTestCase):
    @pytest.fixture
    def sampler(self) -> Callable[[], BaseSampler]:
        return lambda: make_sampler("random", 3)


class TestStorage(StorageTestCase):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return storage_url(str(tmp_path / "s.db"), tmp_path)

    @pytest.fixture
    def storage(self, url: str) -> StudyStorage:
        return open_storage(url)

    @pytest.fixture
    def again(self, url: str) -> Callable[[], StudyStorage]:
        return lambda: open_storage(url)


class OnPostgreSQL:
    @pytest.fixture
    def url(self, postgresql_database: str) -> str:
        return postgresql_database


@pytest.mark.extra
class TestStorageOnPostgreSQL(OnPostgreSQL, TestStorage):
    pass


class TestOwnLawsOnPostgreSQL(OnPostgreSQL):
    """What Optuna's suite does not ask."""

    storage, again = TestStorage.storage, TestStorage.again
    test_claims = StorageTestCase.test_workers_together_claim_each_trial_once_and_the_exact_total
    test_waiting = StorageTestCase.test_a_waiting_trial_is_not_counted_twice
    test_lost = StorageTestCase.test_every_write_of_a_lost_attempt_is_refused
