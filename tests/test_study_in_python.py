"""`import sweepd`: a study that is created, run, read, enqueued to, evaluated and promoted."""

from __future__ import annotations

import ast
import gc
import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
import psutil
import pytest

import sweepd
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.crypto.data.bars import write_bars
from sweepd.envs.crypto.data.demo_market import make_planted_market
from sweepd.optimize.study.record.keys import FLAGS_KEY
from tests.optimize.conftest import SPACE

GAME: dict[str, Any] = {
    "env": "cartpole",
    "budget": 512,
    "rungs": 2,
    "seeds": 2,
    "episodes": 4,
    "n_envs": 4,
    "horizon": 64,
    "slots": 4,
    "threads": 1,
    "gpu": "cpu",
    "look_steps": 16,
    "pruner": "none",
    "fresh_seeds": 0,
}
MARKET: dict[str, Any] = {
    "data_dir": "bars",
    "recipe": "tiny-test",
    "search_space": "tiny.toml",
    "cv": "kfold",
    "groups": 3,
    "holdout": 0.1,
    "budget": 192,
    "rungs": 2,
    "horizon": 16,
    "n_envs": 2,
    "slots": 4,
    "threads": 1,
    "gpu": "cpu",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SWEEPD_STORAGE", raising=False)
    return tmp_path


def test_public_names_are_few_documented_and_typed() -> None:
    assert len(sweepd.__all__) <= 22
    for name in sweepd.__all__:
        assert getattr(sweepd, name).__doc__, name
    tree = ast.walk(ast.parse(Path(sweepd.__file__).read_text()))
    typed = [a.asname for node in tree if isinstance(node, ast.ImportFrom) for a in node.names]
    assert sorted({*typed} - {None}) == sweepd.__all__ == sorted(sweepd._MODULES)
    assert Path(sweepd.__file__).with_name("py.typed").exists()


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'sweepd' has no attribute 'studies'"):
        sweepd.studies  # type: ignore[attr-defined]  # noqa: B018
    assert {*sweepd.__all__} <= {*dir(sweepd)}


def test_a_game_from_study_to_promotion(capsys: pytest.CaptureFixture[str]) -> None:
    study = sweepd.create_study("game", n_trials=2, **GAME)
    assert study.best_trial is None
    assert study.enqueue({"learning_rate": 1e-3}) == 0
    assert study.run()
    frame = study.trials()
    assert list(frame.index) == [0, 1]
    assert (frame["state"] == "COMPLETE").all()
    assert frame.loc[0, "params_learning_rate"] == 1e-3
    assert frame[["scores_0", "scores_1", "metrics_mean", "value"]].notna().all(axis=None)
    assert {str(frame[name].dtype) for name in frame if name.startswith("scores_")} == {"float64"}
    # The first trial's seed, exactly: a float would round it.
    recorded = study.optuna.trials[0].user_attrs["sweepd:seed"]
    assert int(frame["seed"].iloc[0]) == recorded

    seen = sweepd.load_study("game")
    assert seen.best_trial == study.best_trial == frame["value"].idxmax()
    assert seen.status()["done"] == 2
    assert seen.run_dir == study.run_dir
    assert (seen.trial_dir(0) / "members.safetensors").exists()
    listed = sweepd.list_studies()
    assert listed.loc["game", "finished"] == listed.loc["game", "total"] == 2

    policy = sweepd.load_policy(seen)
    assert (policy.trial, len(policy.members), policy.state_dim) == (seen.best_trial, 2, 4)
    action = policy.act(np.zeros(4, np.float32))
    assert action.shape == (1,)
    table = sweepd.evaluate(policy, games=6)
    assert table.loc[0, "games"] == 6
    assert table.equals(sweepd.evaluate(policy, games=6))
    assert not table.equals(sweepd.evaluate(policy, games=6, seed=1))
    # By default the member acts that promotion would choose: the one with the best score.
    best = int(np.argmax([frame.loc[policy.trial, f"scores_{i}"] for i in (0, 1)]))
    assert table.equals(sweepd.evaluate(policy.member(best), games=6))

    limits = {"games": 4, "limit": ["beats-baselines=-1000", "ahead-of-baselines=-1"]}
    dry = sweepd.promote(study, dry_run=True, **limits)
    assert Registry(Path("deployments"), create=True).slots() == []
    promotion = sweepd.promote(study, deployments="elsewhere", trial=policy.trial, games=4)
    assert promotion.to_dict()["trial"] == policy.trial
    assert dry.study == promotion.study == "game"
    assert Path("elsewhere/registry.db").exists()
    with pytest.raises(sweepd.InputError, match="'walk' is neither a slot"):
        sweepd.load_champion("walk", deployments="elsewhere")
    with pytest.raises(sweepd.InputError, match="no registry at nowhere"):
        sweepd.load_champion("cartpole", deployments="nowhere")
    assert not Path("nowhere").exists()

    assert sweepd.promote(study, trial=policy.trial, **limits).outcome == "promoted"
    champion, observation = sweepd.load_champion("cartpole"), np.full(4, 0.1, np.float32)
    assert champion.origin.trial == policy.trial
    assert champion.policy.action(observation) == policy.member(best).action(observation)
    assert sweepd.load_champion().hash == champion.hash
    capsys.readouterr()


def test_a_study_that_is_no_longer_used_leaves_no_open_files(folder: Path) -> None:
    study = sweepd.create_study("game", n_trials=1, **GAME)
    assert study.run()
    del study
    gc.collect()
    left = [file.path for file in psutil.Process().open_files()]
    assert [path for path in left if Path(path).is_relative_to(folder)] == []


def test_the_same_name_joins_and_other_settings_are_refused() -> None:
    study = sweepd.create_study("game", n_trials=1, **GAME)
    assert study.run()
    again = sweepd.create_study("game")
    assert again.run()  # complete already
    assert len(again.trials()) == 1
    assert again.run(2)
    assert len(again.trials()) == 2
    with pytest.raises(sweepd.InputError, match="budget = 512, and now it is 1024"):
        sweepd.create_study("game", budget=1024)
    # As with the command, the flags are recorded.
    flags = study.optuna.user_attrs[FLAGS_KEY]
    assert (flags["env"], flags["budget"], flags["study_name"]) == ("cartpole", 512, "game")


def test_a_market_from_study_to_windows(folder: Path) -> None:
    bars = make_planted_market(3, assets=2, bars=700)
    write_bars(bars, folder / "bars")
    Path("tiny.toml").write_text(SPACE)
    study = sweepd.create_study("market", n_trials=1, **MARKET)
    assert study.run()
    frame = study.trials()
    assert frame[["metrics_sharpe", "scores_0", "scores_2"]].notna().all(axis=None)
    policy = sweepd.load_policy(study)
    assert len(policy.members) == 3
    observation = np.linspace(-1, 1, policy.state_dim, dtype=np.float32)
    members = [member.act(observation) for member in policy.members]
    assert policy.act(observation) == pytest.approx(np.mean(members, axis=0), abs=2e-6)

    times = pd.to_datetime(bars.time, unit="s", utc=True)
    table = sweepd.evaluate(policy, [(times[100], times[200]), (times[200], times[300])])
    assert list(table["bars"]) == [100, 100]
    assert list(table["start"]) == [times[100], times[200]]
    assert list(table["end"]) == [times[199], times[299]]
    text = [(str(times[100].tz_localize(None)), str(times[200]))]
    assert sweepd.evaluate(policy, text).loc[0, "sharpe"] == table.loc[0, "sharpe"]
    for window, said in (
        ((times[200], times[100]), "is empty"),
        ((times[2], times[100]), "begins too early"),
        ((times[500], times[640]), "reaches into the hold-out"),
        (("2150-01-01", "2151-01-01"), "has no bar"),
        (("soon", "later"), "is not a date"),
    ):
        with pytest.raises(sweepd.InputError, match=said):
            sweepd.evaluate(policy, [window])
    # Up to the last bar before the hold-out.
    begin = times[len(times) - 70]
    assert sweepd.evaluate(policy, [(times[500], begin)]).loc[0, "bars"] == 130
    with pytest.raises(sweepd.InputError, match="windows is empty"):
        sweepd.evaluate(policy)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"n_trails": 3}, "did you mean n_trials?"),
        ({"budget": "many"}, "create_study: budget = 'many' should be a whole number"),
        ({"budget": 2.5}, "budget = 2.5 should be a whole number"),
        ({"metrics_port": 70_000}, "metrics_port = 70000 should be at most 65535"),
        ({"demo": "maybe"}, "demo = 'maybe' should be true or false"),
        ({"track": "mlflow"}, "track = 'mlflow' should be a list"),
        ({"runs_dir": 3}, "runs_dir = 3 should be a path"),
        ({"holdout": math.nan}, "holdout = nan should be a finite number"),
        ({"env": object()}, "env = <object object at .*> is no environment"),
        ({"n_envs": "many"}, "--n-envs 'many' is not valid"),
        ({"auto_deploy": True}, "sweepd.promote"),
        ({"max_memory": 3}, "restarts its process"),
        ({"gpu": "all"}, "a process per GPU"),
        ({"env": "bucket-brigade", "scenario": "all"}, "several studies"),
        ({"n_trials": 0}, "--n-trials 0"),
        ({"env": "chess"}, "--env 'chess'"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(sweepd.InputError, match=said):
        sweepd.create_study("s", **settings)
    assert not Path("runs/sweepd.db").exists()


def test_wrong_parameters_studies_and_threads_are_refused() -> None:
    study = sweepd.create_study("game", n_trials=1, **GAME)
    for guess, said in (
        ({"lr": 1.0}, "'lr' is not a parameter of search space 'game'"),
        ({"learning_rat": 1.0}, "did you mean learning_rate?"),
        ({"learning_rate": 7.0}, "lies outside"),
        ({"learning_rate": "fast"}, "must be a number"),
        ({"net_width": 3}, "is not one of"),
    ):
        with pytest.raises(sweepd.InputError, match=said):
            study.enqueue(guess)
    assert study.trials().empty
    reader = sweepd.load_study("game")
    with pytest.raises(sweepd.InputError, match="joins it"):
        reader.run()
    assert reader.enqueue({}) == 0  # from a study that was opened for reading
    with pytest.raises(sweepd.InputError, match="no policy: no trial"):
        sweepd.load_policy(reader)
    with pytest.raises(sweepd.InputError, match="there are: game"):
        sweepd.load_study("other")
    with pytest.raises(sweepd.InputError, match="does not exist"):
        sweepd.list_studies("none.db")
    with pytest.raises(sweepd.InputError, match="did you mean dry_run"):
        sweepd.promote(reader, dry_rum=True)
    with pytest.raises(sweepd.InputError, match="the study is the argument"):
        sweepd.promote(reader, study_name="x")
    errors: list[BaseException] = []

    def run() -> None:
        try:
            study.run()
        except sweepd.RunError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "main thread" in str(errors[0])


def test_trials_of_plain_optuna_are_not_taken_for_ours() -> None:
    """They count, and are listed, but are neither the best trial nor learnt from nor promoted."""
    study = sweepd.create_study("game", n_trials=3, **GAME)
    plain = optuna.load_study(study_name="game", storage=study.storage)
    trial = plain.ask()
    trial.suggest_float("learning_rate", 1e-4, 3e-3, log=True)
    plain.tell(trial, 1e9)
    assert study.run()
    frame = study.trials()
    assert list(frame["ours"]) == [False, True, True]
    assert study.best_trial in (1, 2)
    assert sweepd.load_policy(study).trial == study.best_trial
    with pytest.raises(sweepd.InputError, match="--trial 0 is not a COMPLETE trial"):
        sweepd.promote(study, trial=0)
    # Samplers and pruners do not see it.
    handle = study._handle
    assert [trial.number for trial in handle.trials()] == [0, 1, 2]
    with handle.cached.read_once(handle.study_id, only_ours=True):
        assert [trial.number for trial in handle.trials()] == [1, 2]
