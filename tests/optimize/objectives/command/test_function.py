"""Studies of a training function in Python: `create_study(objective=train)`, `--env python:…`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest

import sweepd
from sweepd.envs.support.errors import InputError
from sweepd.optimize.objectives.command import function
from sweepd.optimize.objectives.command.function import FunctionObjective
from sweepd.optimize.study.record.keys import FLAGS_KEY
from sweepd.optimize.study.record.trials import TrialRecord
from tests.distributions import install
from tests.optimize.objectives.command.programs import command_study, work_on

TEXT = """
import json, os, time
import optuna
import sweepd

def train(trial):
    lr = trial.suggest_float("lr", 0.0, 1.0)
    units = trial.suggest_int("units", 8, 32, step=8)
    kind = trial.suggest_categorical("kind", ["a", "b"])
    print("trial", trial.number, "seed", trial.seed)
    trial.set_user_attr("units2", 2 * units)
    trial.set_user_attr("words", "of a trial")
    for step in range(1, 4):
        trial.report(lr + step, step)
    return lr + 10

def climbs(trial):
    "Goes on from its checkpoint; says how it ended."
    lr = trial.suggest_float("lr", 0.0, 1.0)
    kept = trial.checkpoint_dir / "step"
    begin = int(kept.read_text()) if kept.exists() else 0
    for step in range(begin + 1, 11):
        trial.report(lr, step)
        kept.write_text(str(step))
        time.sleep(0.03 if step < 5 else 0.3)  # a busy worker needs time to prune at step 5
        if trial.should_prune():
            (trial.out_dir / "asked").touch()
            raise optuna.TrialPruned

def only_returns(trial):
    trial.suggest_float("lr", 0.0, 1.0)
    return 1.0

def several(trial):
    lr = trial.suggest_float("lr", 0.0, 1.0)
    return lr, lr**2

def never_asks(trial):
    trial.report(1.0, 1)
    time.sleep(60)

def asks(trial):
    trial.report(1.0, 1)
    while not trial.should_prune():
        time.sleep(0.01)
    (trial.checkpoint_dir / "saved").touch()
    return 5.0

def raises(trial):
    raise ValueError("no such optimizer")

def prunes_itself(trial):
    trial.report(0.5, 3)
    raise optuna.TrialPruned

def nothing(trial):
    trial.suggest_float("lr", 0.0, 1.0)

def other_range(trial):
    return trial.suggest_float("lr", 0.6, 1.0)

def unknown(trial):
    return trial.suggest_float("rate", 0.0, 1.0)

def conditional(trial):
    if trial.suggest_categorical("kind", ["a", "b"]) == "b":
        trial.suggest_float("lr", 0.0, 1.0)
    trial.report(1.0, 1)

def suggests_nothing(trial):
    trial.report(1.0, 1)

def slow(trial):
    trial.suggest_float("lr", 0.0, 1.0)
    time.sleep(60)

def two(trial, other):
    pass
"""
PARAMS = {"lr": {"low": 0.0, "high": 1.0}}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the module `functions_here`, which this process and others can import."""
    (tmp_path / "functions_here.py").write_text(TEXT)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SWEEPD_STORAGE", raising=False)
    yield tmp_path
    sys.modules.pop("functions_here", None)


@pytest.mark.usefixtures("forked_python")
def test_a_study_of_a_function(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import functions_here  # type: ignore[import-not-found]

    study = sweepd.create_study(objective=functions_here.train, n_trials=2, fresh_seeds=0, seeds=2)
    assert "calling functions_here:train for its search space" in capsys.readouterr().out
    assert (study.name, study._handle.spec.environment) == ("train", "python:functions_here:train")
    assert study._handle.spec.space["params"] == {
        "lr": {"low": 0.0, "high": 1.0},
        "units": {"low": 8, "high": 32, "step": 8},
        "kind": {"choices": ["a", "b"]},
    }
    used = study.optuna.user_attrs[FLAGS_KEY]["plugins"]["function"]
    assert (used["name"], len(used["sha256"])) == ("functions_here:train", 64)
    assert study.run()
    frame = study.trials()
    assert (frame["value"] == frame["params_lr"] + 10).all()
    assert (frame["metrics_units2"] == 2 * frame["params_units"]).all()
    out = study.trial_dir(0) / "seed-1"
    kept = json.loads((out / "out" / "attributes.json").read_text())
    assert kept == {"units2": 2 * frame.loc[0, "params_units"], "words": "of a trial"}
    logs = [(study.trial_dir(0) / f"seed-{i}/attempt-1.log").read_text() for i in (0, 1)]
    assert all(log.startswith("trial 0 seed ") for log in logs)
    assert logs[0] != logs[1]
    reports = (study.trial_dir(0) / "reports.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in reports] == [1, 2, 3, 3] * 2
    # Joined from the command line by the same name; a change is said.
    (folder / "functions_here.py").write_text(f"{TEXT}\n# changed\n")
    words = ["train", "--study-name", "train", "--n-trials", "2", "--fresh-seeds", "0"]
    done = subprocess.run(
        [sys.executable, "-m", "sweepd", *words], capture_output=True, text=True, check=True
    )
    assert "--env python:functions_here:train has changed since study train" in done.stdout
    assert "calling" not in done.stdout


@pytest.mark.usefixtures("forked_python")
def test_a_function_may_return_several_values(folder: Path) -> None:
    import functions_here

    study = sweepd.create_study(
        objective=functions_here.several, also=["minimize:cost"], n_trials=3, fresh_seeds=0, seeds=1
    )
    assert study.run()
    frame = study.trials()
    assert (frame["values_cost"] == frame["params_lr"] ** 2).all()
    assert (frame["value"] == frame["params_lr"]).all()
    assert sorted(study.best_trials) == [0, 1, 2]
    assert study.optuna.directions == [
        optuna.study.StudyDirection.MAXIMIZE,
        optuna.study.StudyDirection.MINIMIZE,
    ]
    handle = command_study(
        folder,
        "",
        environment="python:functions_here:several",
        params=PARAMS,
        constraints=("a<=1",),
    )
    work_on(handle, 1)
    [trial] = handle.trials()
    reason = TrialRecord.from_attributes(trial.user_attrs).reason or ""
    assert "the function returned 2 values, and the study has one" in reason


def test_pruned_functions_are_asked_to_end_and_save(folder: Path) -> None:
    handle = command_study(
        folder,
        "",
        environment="python:functions_here:climbs",
        params=PARAMS,
        budget=10,
        rungs=2,
        pruner="hyperband",
        trials_per_batch=4,
    )
    said = work_on(handle, 4, jobs=4)
    states = {trial.number: trial.state.name for trial in handle.trials()}
    assert set(states.values()) == {"COMPLETE", "PRUNED"}, said
    for number, state in states.items():
        asked = handle.trial_dir(number) / "seed-0" / "out" / "asked"
        assert asked.exists() == (state == "PRUNED")


@pytest.mark.usefixtures("forked_python")
def test_a_function_goes_on_from_its_checkpoint(folder: Path) -> None:
    handle = command_study(
        folder, "", environment="python:functions_here:climbs", params=PARAMS, budget=10
    )
    killed = folder / "killed"

    from sweepd.optimize.objectives.command.run import CommandRun

    class Preempted(CommandRun):
        def _look(self, state: Any) -> None:
            super()._look(state)
            [job] = state.jobs
            if len(job.reports) >= 3 and not killed.exists() and job.alive:
                killed.touch()  # as a machine that is shut down: from outside, not by the worker
                children = Path(f"/proc/{job._supervisor.pid}/task/{job._supervisor.pid}/children")
                os.kill(int(children.read_text().split()[0]), signal.SIGTERM)

    work_on(handle, 1, run=Preempted)
    [trial] = handle.trials()
    assert trial.state.name == "COMPLETE"
    [[first, second]] = TrialRecord.from_attributes(trial.user_attrs).starts or ()
    assert (first, second > 3) == (1, True)


def started(name: str, **params: Any) -> subprocess.Popen[str]:
    """The process of a trial, as a worker starts it."""
    own = {"SWEEPD_PARAMS": json.dumps(params), "SWEEPD_REPORTS": "reports.jsonl"}
    return subprocess.Popen(
        [sys.executable, "-m", "sweepd.function", f"functions_here:{name}"],
        env={**os.environ, **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("only_returns", 0, ""),
        ("raises", 1, "ValueError: no such optimizer\n"),
        ("prunes_itself", 1, "the function raised TrialPruned at step 3 without should_prune()\n"),
        ("nothing", 2, "error: the function neither returned a value nor reported one\n"),
        ("other_range", 2, "lr = 0.5, and the function suggests {'low': 0.6, 'high': 1.0}"),
        ("unknown", 2, "'rate' is suggested, and the search space has only lr: suggest all"),
        ("missing", 2, "functions_here has nothing called 'missing'"),
    ],
)
def test_how_a_function_ends(name: str, code: int, words: str) -> None:
    process = started(name, lr=0.5)
    said, _ = process.communicate(timeout=60)
    assert (process.returncode, words in said) == (code, True), said
    if code == 0:
        assert json.loads(Path("reports.jsonl").read_text()) == {"step": 1, "value": 1.0}


@pytest.mark.parametrize("name", ["asks", "never_asks"])
def test_sigterm_ends_a_function_which_is_started_again(name: str) -> None:
    process = started(name, lr=0.5)
    until = time.monotonic() + 30
    while not Path("reports.jsonl").exists() and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 75
    # What it returns after it was asked to end is no result.
    assert len(Path("reports.jsonl").read_text().splitlines()) == 1
    assert Path("saved").exists() == (name == "asks")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("conditional", "what is suggested for 'lr' depends on other parameters"),
        ("suggests_nothing", "suggests no parameter before its first report"),
        ("raises", "name the parameters with --search-space: .*no such optimizer"),
    ],
)
def test_a_search_space_that_cannot_be_found_is_refused(name: str, words: str) -> None:
    with pytest.raises(InputError, match=f"--env python:functions_here:{name}.*{words}"):
        FunctionObjective(f"python:functions_here:{name}").find_space(print)


def test_a_function_that_does_not_report_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function, "FIND_SECONDS", 5.0)
    said: list[str] = []
    found = FunctionObjective("python:functions_here:slow").find_space(said.append)
    assert json.loads(found) == PARAMS
    assert "has not reported after 5 s; its search space is what it has suggested so far" in said[1]


def test_what_is_no_training_function_is_refused() -> None:
    import functions_here

    with pytest.raises(InputError, match="makes its own environment; leave env out"):
        sweepd.create_study(objective=functions_here.train, env="cartpole")
    with pytest.raises(InputError, match="objective: a lambda has no name"):
        sweepd.create_study(objective=lambda trial: trial.number)
    with pytest.raises(InputError, match="is no function of one argument, the trial"):
        sweepd.create_study(env="python:functions_here:two")
    with pytest.raises(InputError, match="the module functions_here has nothing called 'no'"):
        sweepd.create_study(env="python:functions_here:no")


def test_a_package_can_register_a_training_function(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"registered_kit.py": TEXT}
    install(
        folder / "site", "function-kit", files, {"sweepd.function": {"own": "registered_kit:train"}}
    )
    monkeypatch.syspath_prepend(str(folder / "site"))
    study = sweepd.create_study(env="python:own", n_trials=2, fresh_seeds=0, seeds=1)
    assert (study.name, study._handle.spec.environment) == ("own", "python:own")
    used = study.optuna.user_attrs[FLAGS_KEY]["plugins"]["function"]
    assert (used["module"], used["package"]) == ("registered_kit", "function-kit")
    assert used["version"] == "1.2.3"
    assert study.run()
    frame = study.trials()
    assert (frame["value"] == frame["params_lr"] + 10).all()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nobody", "--env python:'nobody' is not known; name a function of a trial as MODULE:NAME"),
        ('functions_here:train {"a": 1}', "a training function takes no arguments"),
        ("functions_here:train {a", "the arguments are not JSON"),
        ("no_such_module:train", "No module named 'no_such_module'"),
    ],
)
def test_a_function_that_cannot_be_used_is_refused(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        sweepd.create_study(env=f"python:{name}", search_space=PARAMS)
    assert refused.value.exit_code == 2


def test_a_function_is_called_by_hand(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import functions_here

    for name in ("SWEEPD_TRIAL", "SWEEPD_SEED", "SWEEPD_REPORTS"):
        monkeypatch.delenv(name, raising=False)
    trial = sweepd.Trial({"lr": 0.5, "units": 8, "kind": "a"})
    assert functions_here.train(trial) == 10.5
    assert capsys.readouterr().out.splitlines()[1] == '{"step": 1, "value": 1.5, "units2": 16.0}'
    assert (trial.number, trial.seed, trial.user_attrs["units2"]) == (0, 0, 16)
    assert (folder / "attributes.json").exists()


def test_the_process_of_a_function_imports_nothing_heavy() -> None:
    code = "import sys, sweepd.function; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "optuna", "pydantic"} & set(found.stdout.split())
