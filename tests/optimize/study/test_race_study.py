"""Studies with the sampler race: the configuration is selected, shown and promoted."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from sweepd.deploy.promotion.studies import GateStudy, find_study
from sweepd.optimize.cli.status import show, study_status
from sweepd.optimize.study.enqueue import best_guesses
from sweepd.optimize.study.frame import comparison_frame, studies_frame
from sweepd.optimize.study.insight.watch import StudyInsight
from sweepd.optimize.study.record.keys import blocks_key, interval_key
from sweepd.optimize.study.record.specs import MEAN, GameSpec
from sweepd.optimize.study.record.trials import TrialRecord
from sweepd.optimize.study.space.dimension import Dimension
from sweepd.optimize.study.space.search_space import SearchSpace
from sweepd.optimize.study.space.subject import Subject
from sweepd.optimize.study.study import StudyHandle, create_study
from sweepd.optimize.worker.summary import print_summary
from sweepd.optimize.worker.telemetry import Telemetry
from sweepd.optimize.worker.timing import Phases
from tests.optimize.objectives.test_game_study import make_spec
from tests.optimize.study_files import finish, make_handle

METRICS = {
    "mean": 1.0,
    "mean_low": 0.5,
    "mean_high": 1.5,
    "deviation": 1.0,
    "worst": 0.0,
    "length": 9.0,
}
# Learning rate and value by trial: 1e-3 has three seeds and the best mean, 1e-2 the best single one.
RESULTS = ((1e-3, 4.0), (1e-2, 8.5), (1e-3, 8.0), (1e-4, 2.0), (1e-3, 6.0), (1e-4, -14.0))


def spec(sampler: str, **changes: Any) -> GameSpec:
    subject = Subject("cartpole")
    rate = Dimension("learning_rate", low=1e-5, high=1e-1, log=True)
    tables = {"shape": {}, "ppo": {"learning_rate": rate}, "env": {}}
    space = SearchSpace("s", 1, tables, subject).to_dict()
    return make_spec(sampler=sampler, seeds=1, space=space, average=MEAN, **changes)


def fill(handle: StudyHandle, results: tuple[tuple[float, float], ...] = RESULTS) -> StudyHandle:
    for rate, value in results:
        handle.study.enqueue_trial({"learning_rate": rate})
        [plan] = handle.ask_batch(1, "w", 20)
        trial_id = plan.trial_id
        for rung in (1, 2):
            handle.report(plan, rung, value)
            # Episodes that do not matter: the interval is that of the seeds.
            interval = {"value": 1.0, "low": 0.5, "high": 1.5, "resampled": "episodes"}
            own = {blocks_key(rung): [[value] * 4], interval_key(rung): interval}
            handle.storage.set_trial_user_attrs(trial_id, own)
        record = TrialRecord(seed=1, scores=(value,), metrics=METRICS)
        handle.storage.set_trial_user_attrs(trial_id, record.to_attributes(handle.spec))
        finish(handle, trial_id, value)
    return handle


@pytest.fixture
def race(tmp_path: Path) -> StudyHandle:
    handle = fill(make_handle(tmp_path, spec("race")))
    handle.run_dir.mkdir(parents=True, exist_ok=True)
    return handle


def test_the_best_value_of_a_comparison_is_that_of_the_selected_configuration(
    race: StudyHandle,
) -> None:
    """The mean of three seeds was selected; a single seed of another configuration was better."""
    found, [listed] = comparison_frame([race])["s"], studies_frame(race.storage).itertuples()
    assert (found["best"], found["best trial"]) == (6.0, 2)
    assert (listed.best_value, listed.best_trial) == (6.0, 2)
    compared = StudyInsight(race).compared()
    assert (compared["summary"]["best"], compared["summary"]["best_trial"]) == (6.0, 2)
    assert compared["best"]["value"] == 6.0
    assert compared["so_far"][-1]["value"] == 8.5  # the curve is of single trials


def summary(handle: StudyHandle) -> str:
    out = io.StringIO()
    console = Console(file=out, width=200)
    print_summary(handle, console, Telemetry(console, "s", torch.device("cpu")), [], Phases())
    return out.getvalue()


def test_the_best_mean_is_selected_and_its_best_trial_used(race: StudyHandle) -> None:
    best = race.best()
    assert best is not None
    assert (best.value, best.best_trial.number) == (6.0, 2)
    assert best.interval is not None
    assert best.interval.resampled == "seeds and episodes"
    # Student's interval of 4, 6, 8: 4.303 deviations of the mean.
    assert (best.interval.low, best.interval.high) == pytest.approx(
        (6.0 - 4.969, 6.0 + 4.969), abs=1e-3
    )
    row = studies_frame(race.storage).loc["s"]
    assert (row["best_trial"], row["best_value"]) == (2, 6.0)
    guesses = best_guesses(race, race.space, 3)
    assert [guess["learning_rate"] for guess in guesses] == [1e-3, 1e-2, 1e-4]


def test_a_study_with_one_seed_per_trial_says_so(race: StudyHandle) -> None:
    assert race.spec.about == "cartpole, ppo, 1 seed, 512 steps per seed"


def test_other_samplers_select_the_best_trial(tmp_path: Path) -> None:
    handle = fill(make_handle(tmp_path, spec("tpe")))
    best = handle.best_trial()
    assert best is not None
    assert best.number == 1
    assert "best configuration" not in summary(handle)
    found = study_status(handle)["best"]
    assert (found["trials"], found["interval"], found["fresh"]) == ([1], None, None)


def test_promotion_judges_the_trials_of_the_best_configuration_first(race: StudyHandle) -> None:
    found = GateStudy(find_study("s", race.storage.url, race.run_dir.parent))
    assert [trial.number for trial in found.complete] == [2, 4, 0, 1, 3, 5]


def test_summary_and_status_show_the_mean_and_its_interval(race: StudyHandle) -> None:
    found = study_status(race)["best"]
    assert (found["trial"], found["value"], found["trials"]) == (2, 6.0, [0, 2, 4])
    out = io.StringIO()
    Console(file=out, width=200).print(show(study_status(race)))
    words = "difference to the second best -2.5000 (too few seeds for an interval)"
    seeds = "mean of 3 seeds +6.0000 (seeds +8.0000, +6.0000, +4.0000)"
    assert f"trial 2, {seeds}; {words}" in out.getvalue()
    text = summary(race)
    assert f"best configuration: {seeds}, trials" in text
    assert f"{words.replace('best ', 'best, mean of 1 seed (trials 1): ')}" in text
    assert "trials 0, 2, 4; it was selected by this mean minus its standard error" in text
    assert "on fresh seeds: not measured; sweepd run --trial s#2" in text


def test_a_run_with_fresh_seeds_is_shown_beside_the_selection(race: StudyHandle) -> None:
    def run(trial: int, of: str, **changes: Any) -> None:
        name = f"s-run{trial}"
        runs = race.run_dir.parent
        made = spec("random", seed=7, own_episodes=True, **changes)
        assert create_study(race.storage, name, made, runs, {}, {"study": of, "trial": trial})
        fill(StudyHandle(race.storage, name), ((1e-3, 1.0),))

    run(1, "s")  # of another configuration
    run(0, "another study")
    run(4, "s", budget=1024)
    assert study_status(race)["best"]["fresh"] is None
    run(2, "s")
    fresh = study_status(race)["best"]["fresh"]
    assert (fresh["study"], fresh["seeds"], fresh["value"]) == ("s-run2", 1, 1.0)
    assert (fresh["interval"]["low"], fresh["interval"]["high"]) == (0.5, 1.5)
    shown = "mean +1.0000 (95% over episodes +0.5000 … +1.5000), study s-run2"
    assert f"on 1 fresh seed, which the selection has not seen: {shown}" in summary(race)
    out = io.StringIO()
    Console(file=out, width=300).print(show(study_status(race)))
    assert "; on 1 fresh seed mean +1.0000" in out.getvalue()
