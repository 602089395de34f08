"""The suite for storages of studies: Optuna's own, and what workers need besides."""

from __future__ import annotations

from collections.abc import Callable

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.storages import BaseStorage
from optuna.testing import pytest_storages
from optuna.trial import TrialState

from sweepd.optimize.study.database.storage import StudyStorage, TrialLost, TrialWrite


class StorageTestCase(pytest_storages.StorageTestCase):
    """Optuna's suite, and the laws by which workers share a study.

    A subclass has a fixture `storage`, a `StudyStorage` on an empty database, and a fixture `again`,
    a function that opens the same database as another process would.
    """

    # Other processes open a storage by its URL: a pickled one would copy what a worker holds.
    test_pickle_storage = None  # type: ignore[assignment]

    @pytest.fixture
    def storage(self) -> BaseStorage:
        """Override it."""
        raise NotImplementedError("a subclass makes the storage")

    @pytest.fixture
    def again(self) -> Callable[[], StudyStorage]:
        """Override it."""
        raise NotImplementedError("a subclass opens the same database again")

    def test_workers_together_claim_each_trial_once_and_the_exact_total(
        self, storage: StudyStorage, again: Callable[[], StudyStorage]
    ) -> None:
        """Trials that wait count, and are claimed first or not at all."""
        study, other = study_on(storage), again()
        study.enqueue_trial({"x": 1.0})
        ids = [trial._trial_id for trial in study.trials]
        claims = [one.claim_waiting(study._study_id, ids[0], "w", 3) for one in (storage, other)]
        assert claims == [True, False], "both workers have claimed the waiting trial"
        made = [one.claim_new(study._study_id, "w", 3) for one in (storage, other, storage, other)]
        assert list(map(len, made)) == [1, 1, 0, 0], "the total is exceeded or not reached"
        assert len({*ids, *made[0], *made[1]}) == len(study.trials) == 3

    def test_trials_claimed_together_have_the_numbers_up_to_the_total(
        self, storage: StudyStorage
    ) -> None:
        """Their row ids come in the order of their numbers, and each is held."""
        study = study_on(storage)
        made = [*storage.claim_new(study._study_id, "w", 5, 2)]
        made += storage.claim_new(study._study_id, "w", 5, 9)
        assert [trial._trial_id for trial in study.trials] == made
        assert [trial.number for trial in study.trials] == [0, 1, 2, 3, 4]
        assert {trial.state for trial in study.trials} == {TrialState.RUNNING}
        assert set(storage.held()) == set(made)

    def test_a_waiting_trial_is_not_counted_twice(self, storage: StudyStorage) -> None:
        """No new trial where those that wait are the total; they may be claimed up to it."""
        study = study_on(storage)
        for x in (1.0, 2.0):
            study.enqueue_trial({"x": x})
        first, second = (trial._trial_id for trial in study.trials)
        assert not storage.claim_new(study._study_id, "w", 2)
        assert storage.claim_waiting(study._study_id, second, "w", 1)
        assert not storage.claim_waiting(study._study_id, first, "w", 1)

    def test_every_write_of_a_lost_attempt_is_refused(
        self, storage: StudyStorage, again: Callable[[], StudyStorage]
    ) -> None:
        """A worker whose trial was given to another one changes nothing of it any more."""
        study = study_on(storage)
        [trial_id] = storage.claim_new(study._study_id, "old", 1)
        trial = optuna.Trial(study, trial_id)
        trial.suggest_float("x", 0, 1)
        trial.report(1.0, 1)
        taker = again()
        taker.set_trial_state_values(trial_id, TrialState.WAITING)  # as a recovery does
        assert taker.claim_waiting(study._study_id, trial_id, "new", 1)
        params = {"y": (0.5, FloatDistribution(0, 1))}
        for write in (
            lambda: trial.report(2.0, 2),
            lambda: trial.set_user_attr("a", 1),
            lambda: trial.suggest_float("y", 0, 1),
            lambda: storage.set_trial_system_attr(trial_id, "b", 1),
            lambda: study.tell(trial, 3.0),
            lambda: storage.set_trial_user_attrs(trial_id, {"a": 1}),
            lambda: storage.write_one(TrialWrite(trial_id, params=params)),
            lambda: storage.write_one(TrialWrite(trial_id, report=(2, 2.0))),
            lambda: storage.write_one(TrialWrite(trial_id, end=TrialState.COMPLETE, values=[3.0])),
        ):
            with pytest.raises(TrialLost):
                write()
        storage.drop(trial_id)
        with pytest.raises(TrialLost):
            study.tell(trial, 3.0)
        frozen = taker.get_trial(trial_id)
        assert frozen.state == TrialState.RUNNING
        assert frozen.intermediate_values == {1: 1.0}
        assert frozen.user_attrs == {}
        assert list(frozen.params) == ["x"]


def study_on(storage: BaseStorage) -> optuna.Study:
    """Return a new study."""
    return optuna.create_study(storage=storage, study_name="laws", direction="maximize")
