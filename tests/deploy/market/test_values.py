"""Markets with several values and constraints: which trial the gate judges, and what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from optuna.trial import TrialState

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.market.candidates import open_study, study_search
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.support.errors import InputError
from tests.deploy.builders import FakeStudy
from tests.deploy.market.test_promote import run, shown

BOTH = {"also": ("minimize:max_drawdown",), "choose": "balanced"}
LIMIT = "max_drawdown<=0.3"


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "deployments")


def traded(folder: Path) -> FakeStudy:
    """Four trials: the highest ratio, the balanced one, one that is dominated, the least drawdown."""
    fake = FakeStudy(folder, **BOTH)
    found = ((3.0, 0.9), (2.6, 0.2), (2.0, 0.5), (1.0, 0.1))
    for number, (value, drawdown) in enumerate(found):
        fake.add(value, fake.contrarian(1.0 + 0.01 * number), further=[drawdown])
    return fake


def test_the_selected_trial_of_the_frontier_is_the_candidate(
    tmp_path: Path, registry: Registry
) -> None:
    fake = traded(tmp_path)
    promotion = run(fake, registry)
    assert promotion.outcome == "promoted", promotion.reason
    assert promotion.chosen is not None
    assert promotion.chosen.candidate.trials == (1,)
    choice = promotion.to_dict()["choice"]
    assert (choice["by"], choice["selected"]) == ("rule", 1)
    assert (choice["frontier"], choice["complete"]) == (3, 4)
    text = " ".join(shown(fake, registry, promotion).split())
    assert "Trial 1: chosen by the study's rule from 3 trials on the frontier of 4 compl" in text
    assert "--choose balanced" in text
    # All trials count as looked at, whichever of them was chosen.
    assert study_search(open_study(fake.name, fake.storage)).trials == 4
    assert promotion.champion is not None
    manifest = registry.bundle(promotion.champion, Bundle).manifest
    assert manifest.gate["choice"] == choice
    assert manifest.origin.objective_value == 2.6
    # Nothing else is judged in its place: the other trials are other choices.
    assert [one.candidate.trials for one in promotion.candidates] == [(1,)]


def test_every_choice_of_the_user_is_a_counted_evaluation(
    tmp_path: Path, registry: Registry
) -> None:
    fake = traded(tmp_path)
    first = run(fake, registry, dry_run=True)
    other = run(fake, registry, dry_run=True, trial=0)
    assert [one.chosen.look.number for one in (first, other)] == [1, 2]  # type: ignore[union-attr]
    excess = [
        next(own for own in one.chosen.findings if own.name == "holdout-excess").limit  # type: ignore[union-attr]
        for one in (first, other)
    ]
    assert excess[1] == excess[0] / 2
    choice = other.to_dict()["choice"]
    assert (choice["by"], choice["selected"], choice["trials"]) == ("user", 1, [0])
    text = " ".join(shown(fake, registry, other).split())
    assert "Trial 0: chosen by the user; the study's rule selects trial 1 from 3 trials" in text
    # The same choice again is the same evaluation.
    again = run(fake, registry, dry_run=True, trial=0)
    assert again.chosen is not None
    assert again.chosen.look is not None
    assert again.chosen.look.number == 2


def test_a_trial_that_breaks_a_constraint_is_refused(tmp_path: Path, registry: Registry) -> None:
    fake = FakeStudy(tmp_path, constraints=(LIMIT,))
    fake.add(1.9, fake.contrarian(), violations={LIMIT: 0.0})
    fake.add(2.0, fake.contrarian(), violations={LIMIT: 0.1})
    fake.add(9.0, fake.idle(), state=TrialState.PRUNED)
    with pytest.raises(
        InputError, match=r"--trial 1: it does not meet max_drawdown<=0.3 \(by 0.1\)"
    ):
        run(fake, registry, trial=1)
    with pytest.raises(InputError, match="--trial 2 is not a COMPLETE trial"):
        run(fake, registry, trial=2)
    promotion = run(fake, registry)
    assert promotion.chosen is not None
    assert promotion.chosen.candidate.trials == (0,)
    assert promotion.complete == 2
    assert "choice" not in promotion.to_dict()
    # The trial that cannot be chosen was a trial of the search, with its paths.
    search = study_search(open_study(fake.name, fake.storage))
    assert (search.trials, sorted(search.backtests)) == (3, [0, 1])


def test_a_study_whose_trials_all_break_constraints_has_no_candidate(
    tmp_path: Path, registry: Registry
) -> None:
    fake = FakeStudy(tmp_path, constraints=(LIMIT,))
    fake.add(1.9, fake.contrarian(), violations={LIMIT: 0.2})
    promotion = run(fake, registry)
    assert promotion.outcome == "no candidate"
    assert promotion.reason == f"none of the study's 1 complete trials meets {LIMIT}"


def test_an_ensemble_has_the_first_trials_by_the_rule(tmp_path: Path, registry: Registry) -> None:
    fake = traded(tmp_path)
    promotion = run(fake, registry, ensemble=2, first_stage=True)
    assert promotion.chosen is not None
    # By the distance to the best of both values.
    assert promotion.chosen.candidate.trials[0] == 1
    assert promotion.to_dict()["choice"]["by"] == "rule"
