"""`sweepd studies` and `sweepd enqueue`, and what optuna-dashboard reads of trials."""

from __future__ import annotations

import json
from pathlib import Path

import optuna
import pandas as pd
import pytest
from optuna.trial import TrialState
from typer.testing import CliRunner

from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.recovery.registration import leave, register_worker
from sweepd.optimize.study.study import StudyHandle
from tests.optimize.conftest import search_app

GAME = {
    "env": "cartpole",
    "budget": 512,
    "rungs": 1,
    "seeds": 2,
    "episodes": 4,
    "n-envs": 4,
    "horizon": 64,
    "slots": 4,
    "threads": 1,
    "gpu": "cpu",
    "look-steps": 16,
    "fresh-seeds": 0,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def say(*words: str) -> str:
    result = CliRunner().invoke(search_app(), list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def train(name: str, trials: int, *flags: str) -> None:
    given = {**GAME, "study-name": name, "n-trials": trials}
    words = [word for flag, value in given.items() for word in (f"--{flag}", str(value))]
    say("train", *words, *flags)


def test_studies_are_listed_compared_exported_and_deleted() -> None:
    train("one", 1)
    train("two", 2, "--seed", "3", "--episodes", "5")
    listed = json.loads(say("studies", "list", "--json"))
    assert [(row["study"], row["finished"], row["total"]) for row in listed] == [
        ("two", 2, 2),
        ("one", 1, 1),
    ]
    said = say("studies", "list")
    assert said.index("│ two") < said.index("│ one")
    assert "2 of 2" in said

    compared = json.loads(say("studies", "compare", "one", "two", "--json"))
    assert compared["one"]["complete"] == 1
    assert compared["two"]["best"] >= compared["two"]["median"] >= compared["two"]["worst"]
    assert compared["one"]["params_learning_rate"] > 0
    said = say("studies", "compare", "one", "two")
    assert "set up with" in said
    assert "seed" in said
    assert "not comparable" not in said
    train("other", 1, "--env-param", "length=1.0")
    assert json.loads(say("studies", "compare", "one", "other", "--json"))["other"]["complete"] == 1
    assert "not comparable: the studies differ in env" in say("studies", "compare", "one", "other")
    with pytest.raises(InputError, match="at least two"):
        say("studies", "compare", "one", "one")

    for file, read in (("t.csv", pd.read_csv), ("sub/t.parquet", pd.read_parquet)):
        assert "2 trials" in say("studies", "export", "two", "--out", file)
        table = read(file).reset_index()
        assert list(table["number"]) == [0, 1]
        assert {"value", "params_learning_rate", "metrics_mean", "scores_1"} <= set(table)
    with pytest.raises(InputError, match=r"must end in \.csv or \.parquet"):
        say("studies", "export", "two", "--out", "t.xlsx")

    storage = open_storage(storage_url(None, Path("runs")))
    handle = StudyHandle(storage, "two")
    worker = register_worker(storage, handle.study_id, alongside=False, say=print)
    with pytest.raises(InputError, match="has a worker at"):
        say("studies", "delete", "two", "--yes")
    leave(storage, worker)
    with pytest.raises(InputError, match="give --yes to delete study two with 2 trials"):
        say("studies", "delete", "two")
    assert handle.run_dir.exists()
    say("studies", "delete", "two", "--yes")
    assert not handle.run_dir.exists()
    kept = StudyHandle(storage, "one").run_dir
    say("studies", "delete", "one", "--yes", "--keep-files")
    assert kept.exists()
    assert [row["study"] for row in json.loads(say("studies", "list", "--json"))] == ["other"]


def test_parameters_are_enqueued() -> None:
    train("one", 1)
    assert "trial 1 of one" in say("enqueue", "one", "learning_rate=0.002", "net_width=64")
    say("enqueue", "one")
    train("one", 3)
    handle = StudyHandle(open_storage(storage_url(None, Path("runs"))), "one")
    trials = handle.trials()
    assert trials[1].params["learning_rate"] == 0.002
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 3

    train("two", 1)
    say("enqueue", "two", "--from-study", "one", "--best", "2")
    waiting = StudyHandle(open_storage(storage_url(None, Path("runs"))), "two").trials()[1:]
    # The third trial is a further seed of one of the two configurations.
    best = [one.best_trial for one in handle.spec.selection.configurations(trials)]
    assert len(best) == 2
    assert [trial.system_attrs["fixed_params"] for trial in waiting] == [t.params for t in best]
    train("two", 3)
    done = StudyHandle(open_storage(storage_url(None, Path("runs"))), "two").trials()[1:]
    assert [trial.params for trial in done] == [trial.params for trial in best]
    # The gate counts the other study's trials, once.
    for source in ("one", "two"):
        say("enqueue", "two", "--from-study", source, "--best", "1")
    assert StudyHandle(open_storage(storage_url(None, Path("runs"))), "two").chosen_from == 3

    for words, said in (
        (["learning_rate"], "'learning_rate' is not a parameter; write NAME=VALUE"),
        (["lr=1"], "'lr' is not a parameter of search space"),
        (["learning_rate=9"], "lies outside"),
        (["learning_rate=true"], "must be a number"),
        (["clip=0.2", "--from-study", "one"], "exclude each other"),
        (["--from-study", "none"], "there are: one, two"),
    ):
        with pytest.raises(InputError, match=said):
            say("enqueue", "one", *words)
    assert len(StudyHandle(open_storage(storage_url(None, Path("runs"))), "one").trials()) == 3


def test_metrics_and_scores_are_scalars_for_optuna() -> None:
    train("one", 1)
    study = optuna.load_study(study_name="one", storage=storage_url(None, Path("runs")))
    assert study.metric_names == ["return"]
    attributes = study.trials[0].user_attrs
    for name, value in attributes["sweepd:metrics"].items():
        assert attributes[name] == value
    assert [attributes["seed_score_0"], attributes["seed_score_1"]] == attributes[
        "sweepd:seed_scores"
    ]
    frame = study.trials_dataframe()
    assert frame["user_attrs_mean"].dtype == "float64"
    assert "value_return" in frame  # the metric's name
