"""`sweepd run --trial STUDY#N`: a training run with the exact parameters of a trial."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from optuna.trial import TrialState
from typer.testing import CliRunner

import sweepd
import sweepd.commands
from sweepd.deploy.market.candidates import MarketStudy, study_search
from sweepd.deploy.promotion.studies import find_study
from sweepd.envs.crypto.data.bars import write_bars
from sweepd.envs.crypto.data.demo_market import make_planted_market
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.intervals import over_seeds
from sweepd.optimize.objectives.members.weights import initial_actors
from sweepd.optimize.objectives.outlook import study_outlook
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.objectives.table import objective_of
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.record.trials import TrialRecord
from sweepd.optimize.study.study import Plan, StudyHandle
from sweepd.optimize.worker.trial_run import RunRequest
from tests.test_study_in_python import GAME, MARKET


def actors_of(handle: StudyHandle) -> list[Any]:
    """Return the actors that a trial of a study starts from."""
    kind = objective_of(handle.spec.environment)
    bars = kind.load_recorded_bars(handle.spec, None, print)
    trainer = kind.open(handle.spec, bars, torch.device("cpu"), print, Request())
    plan = Plan(0, 0, {}, handle.space.resolve({}), 1)
    return initial_actors(handle, trainer.actors_of, plan)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SWEEPD_STORAGE", raising=False)
    return tmp_path


def run(*words: str) -> str:
    command = ["run", *words, "--gpu", "cpu"]
    result = CliRunner().invoke(sweepd.commands.build_app(), command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def refuse(*words: str) -> str:
    with pytest.raises(InputError) as refused:
        run(*words)
    return str(refused.value)


def handle_of(name: str) -> StudyHandle:
    return StudyHandle(open_storage(storage_url(None, Path("runs"))), name)


def test_a_game_is_trained_longer_with_new_seeds_and_exact_numbers() -> None:
    study = sweepd.create_study("game", n_trials=2, **GAME)
    study.run()
    said = run("--trial", "game#1", "--budget", "2x", "--seeds", "3")
    assert "to ask for promotion: sweepd promote --study-name game-run1" in said
    source, handle = handle_of("game"), handle_of("game-run1")
    [trial], chosen = handle.trials(), source.trials()[1]
    ours = TrialRecord.from_attributes(trial.user_attrs)
    theirs = TrialRecord.from_attributes(chosen.user_attrs)
    # Every number of the trial, to the last bit.
    assert (ours.learner_params, ours.shape) == (theirs.learner_params, theirs.shape)
    assert ours.env_params == theirs.env_params
    assert ours.seed != theirs.seed
    assert len(ours.scores or ()) == 3
    assert (handle.spec.budget, handle.spec.rungs) == (1024, 4)

    found = json.loads((handle.run_dir / "run.json").read_text())
    assert found["origin"] == {"study": "game", "trial": 1, "value": chosen.value}
    assert [rung["steps"] for rung in found["rungs"]] == [256, 512, 768, 1024]
    last = found["rungs"][-1]
    assert last["seeds"] == list(ours.scores or ())
    assert last["low"] < last["mean"] < last["high"]
    assert (handle.run_dir / "learning_curves.png").stat().st_size > 5_000

    # The same command continues or reports it; another budget is refused.
    run("--trial", "game#1", "--budget", "2x", "--seeds", "3")
    assert len(handle_of("game-run1").trials()) == 1
    assert "budget = 1024, and now it is 1536" in refuse(
        "--trial", "game#1", "--budget", "3x", "--seeds", "3"
    )
    assert "not this run" in refuse("--trial", "game#0", "--study-name", "game-run1")

    # Its files are a study for `train --config`, with the same numbers.
    flags = tomllib.loads((handle.run_dir / "train.toml").read_text())
    assert flags["n-trials"] == 1
    config = str(handle.run_dir / "train.toml")
    words = ["train", "--config", config, "--study-name", "again", "--gpu", "cpu"]
    CliRunner().invoke(
        sweepd.commands.build_app(), [*words, "--no-auto-deploy"], catch_exceptions=False
    )
    [again] = handle_of("again").trials()
    assert again.value == trial.value
    assert TrialRecord.from_attributes(again.user_attrs).learner_params == theirs.learner_params

    assert sweepd.promote(sweepd.load_study("game-run1"), games=4, dry_run=True).complete == 1


@pytest.mark.parametrize("algo", ["d3qn", "elegantrl:ppo"])
@pytest.mark.extra
def test_other_algorithms(algo: str) -> None:
    settings = GAME | {"algo": algo, "budget": 256, "rungs": 1, "horizon": 16}
    sweepd.create_study("game", n_trials=1, **settings).run()
    assert "cannot start from the weights" in refuse("--trial", "game", "--from-weights")
    run("--trial", "game", "--seeds", "2")
    [trial] = handle_of("game-run0").trials()
    record = TrialRecord.from_attributes(trial.user_attrs)
    theirs = TrialRecord.from_attributes(handle_of("game").trials()[0].user_attrs)
    assert record.learner_params == theirs.learner_params
    assert len(record.scores or ()) == 2


def test_a_market_runs_one_trial_per_seed_and_counts_where_it_was_chosen(folder: Path) -> None:
    write_bars(make_planted_market(3, assets=2, bars=700), folder / "bars")
    from tests.optimize.conftest import SPACE

    Path("tiny.toml").write_text(SPACE)
    sweepd.create_study("market", n_trials=3, pruner="none", **MARKET).run()
    run("--trial", "market", "--seeds", "2")
    source = handle_of("market")
    best = sweepd.load_study("market").best_trial
    handle = handle_of(f"market-run{best}")
    theirs = TrialRecord.from_attributes(source.trials()[best or 0].user_attrs)
    records = [TrialRecord.from_attributes(trial.user_attrs) for trial in handle.trials()]
    assert len({record.seed for record in records} | {theirs.seed}) == 3
    for record in records:
        assert record.learner_params == theirs.learner_params
        assert record.env_params == theirs.env_params
    found = json.loads((handle.run_dir / "run.json").read_text())
    values = [trial.intermediate_values[2] for trial in handle.trials()]
    last, interval = found["rungs"][-1], over_seeds(values)
    assert last["seeds"] == values
    assert (last["low"], last["high"]) == (interval.low, interval.high)
    assert (last["resampled"], last["interval"]) == ("seeds", "Student")
    # The gate and the outlook count the trials among which the best was chosen.
    study = MarketStudy(find_study(handle.name, storage_url(None, Path("runs"))))
    assert (study.finished, study.chosen_from) == (2, 3)
    assert study_search(study).trials == 5
    assert (study_outlook(handle, 2) or {})["trials"] == 5

    # From the weights of the trial: the first evaluation is of other networks.
    run("--trial", "market", "--seeds", "1", "--from-weights", "--study-name", "warm")
    run("--trial", "market", "--seeds", "1", "--study-name", "cold")
    warm, cold = handle_of("warm"), handle_of("cold")
    assert warm.spec == cold.spec
    assert warm.trials()[0].value != cold.trials()[0].value
    assert len(actors_of(warm)) == 3
    assert actors_of(cold) == []
    (source.trial_dir(best or 0) / "members.safetensors").write_bytes(b"other")
    with pytest.raises(InputError, match="have been changed"):
        actors_of(warm)


def test_an_unfinished_trial_of_a_game_is_trained_once_it_has_been_evaluated() -> None:
    sweepd.create_study("game", n_trials=1, **GAME).run()
    source = handle_of("game")
    [complete] = source.trials()
    for values in ({}, {1: 5.0}):
        source.storage.create_new_trial(
            source.study_id,
            optuna.trial.create_trial(
                state=TrialState.RUNNING,
                params=complete.params,
                distributions=complete.distributions,
                intermediate_values=values,
            ),
        )
    assert "no complete trial 1" in refuse("--trial", "game#1")
    assert "the files of trial 2 are not here" in refuse("--trial", "game#2", "--from-weights")
    run("--trial", "game#2", "--seeds", "2")
    [trial] = handle_of("game-run2").trials()
    ours, theirs = (TrialRecord.from_attributes(t.user_attrs) for t in (trial, complete))
    assert (ours.learner_params, ours.shape) == (theirs.learner_params, theirs.shape)
    found = json.loads((handle_of("game-run2").run_dir / "run.json").read_text())
    assert found["origin"]["value"] is None


def test_wrong_runs_are_refused() -> None:
    sweepd.create_study("game", n_trials=1, **GAME).run()
    for words, said in (
        (["--trial", "none"], "there are: game"),
        (["--trial", "game#7"], "no complete trial 7"),
        (["--trial", "game", "--budget", "ten"], "neither a number of steps nor a multiple"),
        (["--trial", "game", "--budget", "0x"], "must be at least 1"),
        (["--trial", "game", "--budget", "0.1x"], "give at least"),
        (["--trial", "game", "--seeds", "0"], "--seeds 0"),
        (["--trial", "game", "--out", "x"], "--trial and --out exclude each other"),
        (["run.toml", "--trial", "game"], "--trial and CONFIG exclude each other"),
        (["--budget", "10x"], "--budget is for --trial STUDY#NUMBER"),
        ([], "name a CONFIG file"),
    ):
        assert said in refuse(*words), words
    assert list(sweepd.list_studies().index) == ["game"]


def test_the_interval_is_that_of_students_t() -> None:
    found = over_seeds([1.0, 2.0, 3.0, 4.0])
    # 2.5 ± 3.182446 * 1.290994 / 2, from a printed table of t.
    assert (found.low, found.high) == pytest.approx((0.445740, 4.554260), abs=1e-5)
    assert not over_seeds([1.0]).known
    assert RunRequest("a").seeds == 5
