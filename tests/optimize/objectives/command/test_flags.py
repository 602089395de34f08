"""`sweepd train --env command:…`: what is refused, and what a new study is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import sweepd as package
from sweepd.envs.support.errors import InputError
from sweepd.optimize.cli.status import study_status
from sweepd.optimize.study.record.specs import CommandSpec, StudySpec
from sweepd.optimize.study.settings.setting import declared
from sweepd.optimize.study.settings.study import StudySettings
from tests.optimize.conftest import search_app
from tests.optimize.objectives.command.programs import PYTHON, program
from tests.optimize.study_files import open_handle

SPACE = '[params]\nlr = { low = 0.0, high = 1.0 }\nkind = { choices = ["a b", "c"] }\n'
ENV = f"command:{PYTHON} program.py"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    program(tmp_path, "report(1, params['lr'])")
    (tmp_path / "space.toml").write_text(SPACE)
    return tmp_path


def run(*words: object) -> str:
    """Run a command in this process; return what it printed. Raises what the command raised."""
    result = CliRunner().invoke(search_app(), [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def train(*flags: object, env: str = ENV, space: str | None = "space.toml") -> str:
    where = [] if space is None else ["--search-space", space]
    return run("train", "--env", env, *where, "--study-name", "s", "--fresh-seeds", 0, *flags)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--algo", "sac"], "--algo has no effect on commands"),
        (["--gpu", "0"], "--gpu has no effect on commands"),
        (["--n-envs", "4"], "--n-envs has no effect"),
        (["--episodes", "4"], "--episodes is for games, and --env is command:"),
        (["--fee", "0.1"], "--fee is for --env crypto, and --env is command:"),
        (["--search", "pbt"], "sweepd cannot copy the weights of a program"),
        (["--objective", "return"], "choose value"),
        (["--rungs", "3"], "--rungs 3 needs --budget"),
        (["--pruner", "median"], "--pruner median needs --rungs of at least 2"),
        (["--rungs", "5", "--budget", "3"], "give at least --budget 5"),
        (["--smoke"], "--smoke is not for commands"),
        (["--jobs", "0"], "--jobs 0 must be at least 1"),
    ],
)
def test_flags_without_effect_are_refused_before_anything_is_written(
    folder: Path, flags: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        train(*flags)
    assert not list(folder.glob("runs/s-*"))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (None, "--search-space is missing: .*\\[params\\]"),
        ("wide", "neither a preset"),
        ("[params]\n", r"\[params\] is missing or empty"),
        ("[ppo]\nlr = { value = 1 }", r"unknown key 'ppo'; a space has name, version, \[params\]"),
        ('[params]\n"a-b" = { value = 1 }', "'a-b' must be letters"),
        ("[params]\nseed = { value = 1 }", r"\[params\] seed is a name that sweepd sets"),
        ("[params]\nlr = { value = [1] }", "must be a finite number, text, true or false"),
        ("[params]\nlr = { low = 2, high = 1 }", "low < high"),
        (
            "[params]\na = { low = 1, high = 2, off = 0 }\na_on = { value = 1 }",
            "a_on is the switch of a",
        ),
        (f"{SPACE}[study]\nhorizon = 3", r"\[study\] horizon has no effect on commands"),
        (f"{SPACE}[timeframe.1h.params]\nlr = {{ value = 1 }}", "unknown key 'timeframe'"),
    ],
)
def test_spaces_that_do_not_fit_are_refused(folder: Path, space: str | None, message: str) -> None:
    name = space
    if space is not None and "[" in space:
        name = "own.toml"
        (folder / name).write_text(space)
    with pytest.raises(InputError, match=f"(?s){message}"):
        train(space=name)
    assert not list(folder.glob("runs/s-*"))


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("command:", "names no program"),
        ("command:no-such-program {lr} {kind}", "no program 'no-such-program'"),
        (f"{ENV} {{lrr}} {{kind}}", "did you mean {lr}?"),
        (f"{ENV} {{lr}}", r"\[params\] kind has no effect"),
    ],
)
def test_commands_that_do_not_fit_are_refused(folder: Path, env: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        train(env=env)
    assert not list(folder.glob("runs/s-*"))
    shown = (
        "" if "program" in message else run("doctor", "--env", env, "--search-space", "space.toml")
    )
    assert "program" in message or "fix command" in shown


def test_a_study_joins_by_its_name_and_says_how_to_make_it_again(folder: Path) -> None:
    space = f"{SPACE}[study]\nbudget = 9\nrungs = 3\n"
    (folder / "own.toml").write_text(space)
    said = train("--n-trials", 2, "--jobs", 3, "--job-minutes", 1, space="own.toml")
    handle = open_handle(folder)
    spec = handle.spec
    assert isinstance(spec, CommandSpec)
    assert StudySpec.from_json(spec.to_json()) == spec
    assert (spec.sampler, spec.pruner, spec.seeds, spec.rungs) == ("race", "hyperband", 1, 3)
    assert (spec.budget, spec.job_minutes, spec.trials_per_batch) == (9, 1.0, 2)
    [line] = [line for line in said.splitlines() if "to reproduce this study" in line]
    for flag in ("--budget 9", "--rungs 3", "--job-minutes 1.0", f"--env '{ENV}'"):
        assert flag in line
    assert "--algo" not in line
    assert "gate: the selected parameters are judged by their values on seeds that no trial" in said
    # Others join it by its name; another limit is another study.
    assert "joining study s" in run("train", "--study-name", "s", "--n-trials", 3)
    assert len(handle.trials()) == 3
    with pytest.raises(InputError, match=r"job_minutes = 1\.0, and now it is 2\.0"):
        run("train", "--study-name", "s", "--job-minutes", 2)
    (folder / "own.toml").write_text(space.replace("1.0", "2.0"))
    with pytest.raises(InputError, match=r"space\.params\.lr\.high = 1\.0, and now it is 2\.0"):
        train(space="own.toml")


def test_without_rungs_a_batch_is_as_large_as_the_jobs(folder: Path) -> None:
    train("--n-trials", 4, "--jobs", 3)
    spec = open_handle(folder).spec
    assert (spec.rungs, spec.pruner, spec.trials_per_batch, spec.slots) == (1, "none", 3, 1)


def test_screens_of_a_study_say_what_it_is(folder: Path) -> None:
    train("--n-trials", 1)
    handle = open_handle(folder)
    found = study_status(handle)
    assert found["about"] == f"{ENV}, 1 seed"
    assert found["gate"] == {"judged_by": "fresh seeds"}
    assert "the selected parameters are judged by their values on seeds" in run("status")
    assert ENV[:20] in run("studies", "list")
    assert "ok  command" in run("doctor", "--env", ENV, "--search-space", "space.toml")
    with pytest.raises(InputError, match="sweepd profile is not for commands"):
        run("profile", "--env", ENV, "--search-space", "space.toml")
    run("enqueue", "s", "lr=0.25", "kind=c")
    run("train", "--study-name", "s", "--n-trials", 2)
    assert handle.trials()[1].value == 0.25


def test_a_study_in_python() -> None:
    settings = {"env": ENV, "search_space": "space.toml", "n_trials": 2, "fresh_seeds": 2}
    study = package.create_study("python", **settings)
    assert study.run()
    assert set(study.trials()) >= {"params_lr", "params_kind", "metrics_mean"}
    best = study.status()["best"]
    assert best["fresh"]["seeds"] == 2
    flags = ("--seeds", 3, "--study-name", "again", "--jobs", 2)
    out = run("run", "--trial", f"python#{study.best_trial}", *flags)
    assert "2 programs at once" in out
    again = package.load_study("again")
    assert again.status()["best"]["params"] == {}
    shown = json.loads((again.trial_dir(0) / "params.json").read_text())
    assert shown["lr"] == study.trials()["params_lr"][study.best_trial]


def test_the_settings_of_commands_are_in_the_reference() -> None:
    names = {"jobs", "job_memory", "job_minutes", "job_grace"}
    assert names <= declared(StudySettings).keys()
    assert {name for name in names if declared(StudySettings)[name].fixes} == {
        "job_memory",
        "job_minutes",
    }
