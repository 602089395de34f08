"""Programs with several values and constraints: the gate judges and counts the choice."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sweepd.deploy.programs.bundle import ProgramBundle
from sweepd.deploy.programs.candidates import ProgramStudy
from sweepd.deploy.programs.report import program_report
from sweepd.deploy.promotion.bootstrap import gate_level
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.study import StudyHandle
from sweepd.optimize.worker.trial_run import RunRequest, open_run
from tests.deploy.programs.studies import TEXT, opened, study_of
from tests.deploy.programs.test_promotion import promote, verdicts
from tests.optimize.objectives.command.programs import work_on

BOTH = {"also": ("minimize:cost",), "choose": "balanced"}
COST = TEXT.replace("loss=1.0 - value", "cost=value**2")


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "deployments")


def measured(study: ProgramStudy, trial: int) -> None:
    """Run a trial on fresh seeds, as `sweepd run --trial` does."""
    storage = open_storage(study.storage.url, create=False)
    request = RunRequest(f"{study.name}#{trial}", seeds=5)
    planned = open_run(storage, request, None, torch.device("cpu"), lambda _: None)
    work_on(StudyHandle(storage, planned.name), planned.total)
    storage.engine.dispose()


def test_the_selected_trial_is_judged_by_its_fresh_seeds(
    tmp_path: Path, registry: Registry
) -> None:
    study = study_of(tmp_path / "a", text=COST, trials=5, **BOTH)
    promotion = promote(study, registry)
    assert promotion.outcome == "promoted", promotion.reason
    best = study.best_trial()
    assert best is not None
    choice = promotion.to_dict()["choice"]
    assert (choice["by"], choice["trials"]) == ("rule", [best.number])
    assert choice["complete"] == 5
    assert promotion.champion is not None
    assert registry.bundle(promotion.champion, ProgramBundle).manifest.gate["choice"] == choice
    assert "constraints" not in verdicts(promotion)
    lines = " ".join(program_report(study, promotion).lines)
    assert f"Trial {best.number}: chosen by the study's rule from" in lines


def test_what_a_user_could_see_on_fresh_seeds_counts(tmp_path: Path, registry: Registry) -> None:
    study = study_of(tmp_path / "a", text=COST, trials=4, **BOTH)
    best = study.best_trial()
    assert best is not None
    others = [trial.number for trial in study.complete if trial.number != best.number]
    measured(study, others[0])
    measured(study, others[1])
    study = opened(tmp_path / "a")
    by_rule = promote(study, registry, dry_run=True)
    by_hand = promote(study, registry, others[1], dry_run=True)
    found = []
    for promotion in (by_rule, by_hand):
        assert promotion.chosen is not None
        assert promotion.chosen.score is not None
        found.append(promotion.chosen.score)
    assert [(one.look, one.others) for one in found] == [(1, 0), (2, 2)]
    assert found[0].mean.level == pytest.approx(1.0 - gate_level(1))
    # The selected trial's seeds and those of the other one could be compared before.
    assert found[1].mean.level == pytest.approx(1.0 - gate_level(4))
    lines = " ".join(program_report(study, by_hand).lines)
    assert "2 other configurations of the study had been measured on fresh seeds" in lines
    assert by_hand.to_dict()["choice"]["by"] == "user"


def test_constraints_must_hold_on_fresh_seeds_too(tmp_path: Path, registry: Registry) -> None:
    # In the study 0 is the index of the seed; fresh runs have five of them.
    text = COST.replace("cost=value**2", 'cost=2.0 if "seed-1" in out else 0.0')
    study = study_of(tmp_path / "a", text=text, constraints=("cost<=0.1",))
    promotion = promote(study, registry)
    assert promotion.outcome == "none passes"
    assert verdicts(promotion)["constraints"] == "fail"
    assert "not met on fresh seeds: cost<=0.1 (by 0.3)" in promotion.how_far
    kept = study_of(tmp_path / "b", text=text, constraints=("cost<=0.5",))
    assert verdicts(promote(kept, registry))["constraints"] == "pass"


def test_a_trial_that_breaks_a_constraint_is_refused(tmp_path: Path, registry: Registry) -> None:
    text = COST.replace("cost=value**2", 'cost=float(env["SWEEPD_TRIAL"])')
    study = study_of(tmp_path / "a", text=text, constraints=("cost<=0.0",))
    with pytest.raises(InputError, match=r"--trial 1: it does not meet cost<=0.0 \(by 1\)"):
        promote(study, registry, 1)
