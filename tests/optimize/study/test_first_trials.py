"""`--try-first`: a new study begins with trials of others, whose studies its gate counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.enqueue import first_trials, refuse_other_first
from sweepd.optimize.study.record.configurations import PBT
from sweepd.optimize.study.study import StudyHandle, create_study
from tests.optimize.study.test_prior_study import RESULTS
from tests.optimize.study.test_race_study import fill, spec
from tests.optimize.study_files import finish, make_handle


@pytest.fixture
def earlier(tmp_path: Path) -> StudyHandle:
    return fill(make_handle(tmp_path, spec("race")), RESULTS)


def new(earlier: StudyHandle, name: str, *words: str, sampler: str = "race") -> StudyHandle:
    own, storage = spec(sampler), earlier.storage
    tried = first_trials(storage, words, own)
    sources = [one.study.as_source() for one in tried]
    first = [one.params for one in tried]
    runs = earlier.run_dir.parent
    assert create_study(storage, name, own, runs, {}, sources=sources, first=first)
    return StudyHandle(storage, name)


@pytest.mark.parametrize("sampler", ["race", "random"])
def test_they_are_trained_first_in_their_order(earlier: StudyHandle, sampler: str) -> None:
    study = new(earlier, "next", "s#1", "s#4", sampler=sampler)
    assert [trial.state.name for trial in study.trials()] == ["WAITING", "WAITING"]
    drawn = []
    for _ in range(3):
        [plan] = study.ask_batch(1, "w", 3)
        drawn.append(plan.params["learning_rate"])
        study.storage.set_trial_user_attrs(plan.trial_id, {"sweepd:seed": 1})
        finish(study, plan.trial_id, 1.0)
    assert drawn[:2] == [1e-2, 1e-5]
    assert [trial.number for trial in study.trials()] == [0, 1, 2]


def test_the_trials_of_their_studies_count_once(earlier: StudyHandle) -> None:
    study = new(earlier, "next", "s#1", "s#4")
    assert study.chosen_from == len(RESULTS)
    [plan] = study.ask_batch(1, "w", 1)
    study.storage.set_trial_user_attrs(plan.trial_id, {"sweepd:seed": 1})
    finish(study, plan.trial_id, 1.0)
    # The ancestors of an ancestor count, too.
    assert new(study, "third", "next#0").chosen_from == len(RESULTS) + 1


def test_what_is_no_trial_is_refused(earlier: StudyHandle) -> None:
    for word, why in {
        "s": "must be STUDY#TRIAL",
        "#3": "must be STUDY#TRIAL",
        "s#x": "must be STUDY#TRIAL",
        "other#0": "the database has no study of sweepd with this name",
        "s#99": "has no complete trial of this number",
    }.items():
        with pytest.raises(InputError, match=why):
            first_trials(earlier.storage, [word], spec("race"))
    changing = make_handle(earlier.run_dir.parent / "pbt", spec("random", search=PBT))
    with pytest.raises(InputError, match="changed their hyperparameters"):
        first_trials(changing.storage, [f"{changing.name}#0"], spec("race"))


def test_a_study_joined_with_other_first_trials_is_refused() -> None:
    refuse_other_first("a", ["s#1"], ["s#1"], "a-2")
    with pytest.raises(InputError, match="created with --try-first s#1, and now it is s#2"):
        refuse_other_first("a", ["s#1"], ["s#2"], "a-2")
    with pytest.raises(InputError, match="created with --try-first none, and now it is s#2"):
        refuse_other_first("a", None, ["s#2"], "a-2")
