"""Which worker trains which population."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.database.storage import StudyStorage
from sweepd.optimize.study.population import changes_at, claim_population
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.record.keys import rung_key
from sweepd.optimize.study.sampling.evolution import Fitness
from sweepd.optimize.study.space.parsing import parse_space
from sweepd.optimize.study.space.subject import Subject
from sweepd.optimize.study.study import StudyHandle, create_study
from tests.optimize.objectives.test_game_study import make_spec
from tests.optimize.study_files import finish

SPACE = {
    "name": "s",
    "version": 1,
    "shape": {"net_width": {"choices": [8, 16, 32, 64]}},
    "ppo": {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}},
    "env": {},
}
SIZE, TOTAL = 4, 8


@pytest.fixture
def handles(tmp_path: Path) -> list[StudyHandle]:
    """The same study, opened by two workers."""
    space = parse_space(SPACE, Subject("cartpole")).to_dict()
    own = {"trials_per_batch": SIZE, "rungs": 3}
    spec = make_spec(search="pbt", sampler="random", space=space, seeds=1, **own)
    url = storage_url(None, tmp_path / "runs")
    assert create_study(open_storage(url), "s", spec, tmp_path / "runs", {})
    return [StudyHandle(open_storage(url), "s") for _ in range(2)]


def ask(handle: StudyHandle, worker: str, total: int = TOTAL) -> list[int]:
    return [plan.number for plan in claim_population(handle, SIZE, worker, total)]


def put_back(handle: StudyHandle, numbers: list[int]) -> None:
    for trial in handle.trials():
        if trial.number in numbers:
            handle.put_back(trial._trial_id)


def test_workers_train_different_populations_of_one_shape_each(handles: list[StudyHandle]) -> None:
    assert ask(handles[0], "a") == [0, 1, 2, 3]
    assert ask(handles[1], "b") == [4, 5, 6, 7]
    assert ask(handles[1], "b") == []
    trials = handles[0].trials()
    for start in (0, SIZE):
        assert len({t.params["net_width"] for t in trials[start : start + SIZE]}) == 1
    put_back(handles[1], [4, 5, 6, 7])
    put_back(handles[0], [0, 1])
    assert ask(handles[1], "b") == [4, 5, 6, 7]  # the first one is still in training
    put_back(handles[0], [2, 3])
    before = {t.number: t.params for t in trials}
    assert ask(handles[0], "a") == [0, 1, 2, 3]
    assert {t.number: t.params for t in handles[0].trials()} == before


def test_finished_members_leave_their_population(handles: list[StudyHandle]) -> None:
    assert ask(handles[0], "a", SIZE) == [0, 1, 2, 3]
    handles[0].fail(handles[0].trials()[1]._trial_id, "diverged")
    put_back(handles[0], [0, 2, 3])
    assert ask(handles[1], "b", SIZE) == [0, 2, 3]
    for trial in handles[1].trials():
        if not trial.state.is_finished():
            finish(handles[1], trial._trial_id, 1.0)
    assert ask(handles[0], "a", SIZE) == []


def test_workers_that_create_a_population_at_the_same_time_give_it_back(
    handles: list[StudyHandle], monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = StudyStorage.claim_new

    def interleaved(self: StudyStorage, *arguments: Any) -> list[int]:
        monkeypatch.undo()
        claim(handles[1].storage, handles[1].study_id, "b", TOTAL)
        return claim(self, *arguments)

    monkeypatch.setattr(StudyStorage, "claim_new", interleaved)
    assert ask(handles[0], "a") == []
    # The other worker's trial is in the first population.
    assert ask(handles[0], "a") == [4, 5, 6, 7]
    put_back(handles[1], [0])
    assert ask(handles[1], "b") == [0, 1, 2, 3]
    assert [t.state for t in handles[0].trials()] == [TrialState.RUNNING] * 8


def test_changes_depend_on_the_reports_alone(handles: list[StudyHandle]) -> None:
    plans = claim_population(handles[0], SIZE, "a", SIZE)
    for plan in plans:
        handles[0].storage.set_trial_user_attrs(plan.trial_id, {rung_key(1): [1.0]})
        handles[0].report(plan, 1, float(plan.number))
    found = changes_at(handles[0], 3, 1)
    assert list(found) == [0]
    assert found[0].source == 3
    assert changes_at(handles[1], 0, 1) == found
    handles[0].record_change(plans[0], found[0])
    handles[0].record_change(plans[0], found[0])
    assert len(plans[0].changes) == 1
    assert changes_at(handles[1], 0, 1) == found
    # From the next rung on, the trial has the new parameters.
    for plan in plans:
        handles[0].storage.set_trial_user_attrs(plan.trial_id, {rung_key(2): [1.0]})
        handles[0].report(plan, 2, -float(plan.number))
    [(number, change)] = changes_at(handles[0], 0, 2).items()
    assert (number, change.source) == (3, 0)
    rate = change.params["learning_rate"] / found[0].params["learning_rate"]
    assert rate != change.params["learning_rate"] / plans[0].params["learning_rate"]
    # After the last rung, nothing is trained on.
    for plan in plans:
        handles[0].storage.set_trial_user_attrs(plan.trial_id, {rung_key(3): [1.0]})
        handles[0].report(plan, 3, float(plan.number))
    assert changes_at(handles[1], 0, 3) == {}


def test_changes_follow_the_fitness_where_it_is_recorded(handles: list[StudyHandle]) -> None:
    plans = claim_population(handles[0], SIZE, "a", SIZE)
    for plan in plans:
        handles[0].storage.set_trial_user_attrs(plan.trial_id, {rung_key(1): [1.0]})
        handles[0].report(plan, 1, float(plan.number))
    known = {plan.trial_id: Fitness(0.75 - plan.number / 8, plan.number / 8) for plan in plans}
    known[plans[2].trial_id] = Fitness(0.5, 0.0)
    known[plans[1].trial_id] = Fitness(0.75, 0.5)
    assert not handles[0].record_fitness(1, known)
    [(number, change)] = changes_at(handles[1], 0, 1).items()
    assert (number, change.source) == (2, 1)
