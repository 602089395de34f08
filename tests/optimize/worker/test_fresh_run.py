"""A worker trains the selection of a complete study on fresh seeds."""

from __future__ import annotations

import io
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from optuna.trial import TrialState
from rich.console import Console

import sweepd as package
from sweepd.deploy.games.candidates import GameStudy, read_candidate
from sweepd.deploy.games.selection import selection_sentence
from sweepd.deploy.promotion.studies import find_study
from sweepd.envs.support.errors import InputError
from sweepd.optimize.cli.status import study_status
from sweepd.optimize.objectives.games.experiment import GameExperiment
from sweepd.optimize.objectives.members.trainer import Trainer
from sweepd.optimize.study.record.trials import TrialRecord
from sweepd.optimize.study.study import StudyHandle, create_study
from sweepd.optimize.worker.lifecycle import work
from sweepd.optimize.worker.worker import WorkerOptions
from tests.optimize.conftest import Running
from tests.optimize.objectives.test_game_study import make_spec
from tests.optimize.study.test_race_study import RESULTS, fill, spec
from tests.optimize.study_files import killed_at_checkpoint, make_handle, open_handle

CLOSE = [
    "train",
    "--study-name",
    "s",
    "--n-trials",
    "6",
    "--gpu",
    "cpu",
    "--no-auto-deploy",
    "--fresh-seeds",
    "2",
]


class Output(io.StringIO):
    """Text that interrupts the process once a line contains some words."""

    def __init__(self, interrupt_at: str = "") -> None:
        super().__init__()
        self.interrupt_at = interrupt_at

    def write(self, text: str) -> int:
        done = super().write(text)
        if self.interrupt_at and self.interrupt_at in text:
            self.interrupt_at = ""
            signal.raise_signal(signal.SIGINT)
        return done


def filled(folder: Path, sampler: str = "race") -> StudyHandle:
    """A complete study whose results were not trained."""
    handle = fill(make_handle(folder, spec(sampler, horizon=64, budget=4096)))
    handle.run_dir.mkdir(parents=True, exist_ok=True)
    return handle


@pytest.fixture
def race(tmp_path: Path) -> StudyHandle:
    return filled(tmp_path)


def close(handle: StudyHandle, fresh: int = 2, output: Output | None = None) -> tuple[bool, str]:
    """Let a worker close a study whose trials are all finished."""
    output = output or Output()
    experiment = GameExperiment(handle.spec, torch.device("cpu"))
    options = WorkerOptions(len(handle.trials()), fresh_seeds=fresh)
    done = work(handle, Trainer(experiment), options, Console(file=output, width=300))
    return done, output.getvalue()


def run_of(handle: StudyHandle, trial: int) -> StudyHandle:
    return StudyHandle(handle.storage, f"{handle.name}-run{trial}")


def names(handle: StudyHandle) -> list[str]:
    return sorted(study.study_name for study in handle.storage.get_all_studies())


def weights(handle: StudyHandle) -> bytes:
    return (handle.trial_dir(0) / "members.safetensors").read_bytes()


def test_the_selection_is_measured_once_and_shown(race: StudyHandle) -> None:
    done, said = close(race)
    assert done
    run = run_of(race, 2)
    [trial] = run.trials()
    record = TrialRecord.from_attributes(trial.user_attrs)
    assert len(record.scores or ()) == 2
    assert record.learner_params is not None
    assert record.learner_params["learning_rate"] == 1e-3
    assert run.spec.seed != race.spec.seed
    assert len(race.trials()) == len(RESULTS)
    assert "measuring the selection of s, trial 2, on 2 fresh seeds (study s-run2)" in said
    shown = f"which the selection has not seen: mean {trial.value:+.4f}"
    assert shown in said
    fresh = study_status(race)["best"]["fresh"]
    assert (fresh["study"], fresh["seeds"], fresh["value"]) == ("s-run2", 2, trial.value)
    before = weights(run)
    done, said = close(race)
    assert done
    assert shown in said
    assert "measuring" not in said
    assert names(race) == ["s", "s-run2"]
    assert weights(run) == before


def test_another_selection_is_measured_too(race: StudyHandle) -> None:
    close(race)
    fill(race, ((1e-2, 9.5), (1e-2, 9.0)))  # three seeds, and a higher mean
    done, said = close(race)
    assert done
    assert "trial 6, on 2 fresh seeds (study s-run6)" in said
    assert study_status(race)["best"]["fresh"]["study"] == "s-run6"


def test_a_study_without_a_race_is_measured_too(tmp_path: Path) -> None:
    handle = filled(tmp_path, "tpe")
    _, said = close(handle)
    assert "best trial's configuration on 2 fresh seeds" in said
    assert names(handle) == ["s", "s-run1"]


def test_an_interrupted_measurement_is_continued_with_the_same_numbers(
    race: StudyHandle, tmp_path: Path
) -> None:
    done, said = close(race, output=Output("training trial 0"))
    assert not done
    assert "SIGINT: ending the training here" in said
    assert "stopped by a signal" in said
    assert "best configuration" not in said
    [trial] = run_of(race, 2).trials()
    assert trial.state == TrialState.WAITING
    assert not race.storage.get_all_trials(race.study_id, states=(TrialState.RUNNING,))
    done, said = close(race)
    assert done
    assert "best configuration on 2 fresh seeds" in said
    whole = filled(tmp_path / "whole")
    close(whole)
    assert weights(run_of(race, 2)) == weights(run_of(whole, 2))
    assert np.isfinite(run_of(race, 2).trials()[0].value or np.nan)


def test_a_killed_measurement_is_continued(race: StudyHandle, tmp_path: Path) -> None:
    with killed_at_checkpoint("runs/*/trial-*/checkpoint-*", every_rollout=True):
        Running(CLOSE, tmp_path, tmp_path / "first.txt").finish(-signal.SIGKILL)
    [trial] = run_of(race, 2).trials()
    assert trial.state == TrialState.RUNNING
    said = Running(CLOSE, tmp_path, tmp_path / "second.txt").finish()
    assert "best configuration on 2 fresh seeds" in said
    assert [t.state for t in run_of(open_handle(tmp_path), 2).trials()] == [TrialState.COMPLETE]


def test_workers_that_end_together_train_it_once(race: StudyHandle, tmp_path: Path) -> None:
    words = [*CLOSE, "--alongside"]
    both = [Running(words, tmp_path, tmp_path / f"{i}.txt") for i in range(2)]
    for running in both:
        assert "best configuration on 2 fresh seeds" in running.finish()
    [trial] = run_of(race, 2).trials()
    assert trial.state == TrialState.COMPLETE
    assert names(race) == ["s", "s-run2"]


@pytest.mark.parametrize(
    ("environment", "fresh", "origin"),
    [
        ("cartpole", 0, None),
        ("cartpole", 2, {"study": "other", "trial": 0}),  # a training run itself
        ("bucket-brigade", 2, None),
    ],
)
def test_other_studies_are_not_measured(
    environment: str, fresh: int, origin: dict[str, Any] | None, tmp_path: Path
) -> None:
    made = make_spec(environment)
    handle = make_handle(tmp_path, made)
    if origin is not None:
        create_study(handle.storage, "o", made, tmp_path / "runs", {}, origin)
        handle = StudyHandle(handle.storage, "o")
    before = names(handle)
    fill(handle, ((1e-3, 1.0),))
    done, said = close(handle, fresh)
    assert done
    assert "measuring" not in said
    assert names(handle) == before


def test_a_run_of_another_kind_keeps_its_name(race: StudyHandle) -> None:
    runs = race.run_dir.parent
    create_study(race.storage, "s-run2", spec("random"), runs, {}, {"study": "t", "trial": 2})
    done, said = close(race)
    assert done
    assert "the selection is not measured on 2 fresh seeds: study 's-run2' is not this run" in said
    assert "on fresh seeds: not measured; sweepd run --trial s#2" in said


def test_promotion_records_both_values(race: StudyHandle) -> None:
    def read(trial: int) -> Any:
        found = GameStudy(find_study("s", race.storage.url, race.run_dir.parent))
        return read_candidate(found.asked(trial)[0], found).selection

    assert selection_sentence(read(2)) == (
        "Its configuration was selected by the mean of 3 trials, +6.0000 (seeds +8.0000, +6.0000, "
        "+4.0000), difference to the second best -2.5000 (too few seeds for an interval); on fresh "
        "seeds it was not measured."
    )
    close(race)
    best = study_status(race)["best"]
    not_kept = ("trial", "params", "metrics", "schedule")
    assert read(0) == {name: own for name, own in best.items() if name not in not_kept}
    assert "; on 2 fresh seeds, its mean is" in selection_sentence(read(2))
    assert read(1) is None  # of another configuration


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"env": "crypto", "data_dir": "bars"},
            "--fresh-seeds is for games and commands, and --env is crypto",
        ),
        ({"env": "bucket-brigade"}, "--fresh-seeds 5 is for games of one player"),
        ({"env": "cartpole", "fresh_seeds": -1}, "--fresh-seeds -1 must be at least 0"),
    ],
)
def test_where_it_has_no_effect_it_is_refused(
    settings: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=sentence):
        package.create_study("s", **{"fresh_seeds": 5, "runs_dir": tmp_path} | settings)
