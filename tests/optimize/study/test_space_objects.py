"""Search spaces as Python objects: entries, distributions of Optuna's, functions of a trial."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

import sweepd
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.space.objects import space_text
from sweepd.optimize.study.space.parsing import load_space, parse_space
from sweepd.optimize.study.space.subject import MARKET_PPO, CommandSubject, Subject

PROGRAM = CommandSubject("command:true", "command")
GAME = Subject("cartpole", "ppo")

FORMS = {
    "helpers": {
        "learning_rate": sweepd.log_float(1e-5, 1e-2, start=1e-3),
        "share": sweepd.uniform_float(0, 1, step=0.25),
        "layers": sweepd.choice([2, 3]),
        "width": sweepd.log_int(8, 128),
        "rows": sweepd.uniform_int(2, 8, step=2, off=0),
    },
    "tuples": {"a": (0.1, 2), "b": (1, 64), "c": (1e-4, 1.0, "log"), "d": ["x", "y"], "e": 3},
    "optuna": {
        "a": FloatDistribution(0.5, 2.0),
        "b": IntDistribution(1, 8),
        "c": IntDistribution(8, 64, log=True),
        "d": CategoricalDistribution(["x", "y"]),
        "e": FloatDistribution(0.0, 1.0, step=0.5),
    },
    "numpy": {"a": (np.float64(0.5), np.float64(2.0)), "b": [np.int64(1), np.int64(2)]},
}
EXPECTED: dict[str, dict[str, Any]] = {
    "helpers": {
        "learning_rate": {"low": 1e-5, "high": 1e-2, "log": True, "start": 1e-3},
        "share": {"low": 0.0, "high": 1.0, "step": 0.25},
        "layers": {"choices": [2, 3]},
        "width": {"low": 8, "high": 128, "log": True},
        "rows": {"low": 2, "high": 8, "step": 2, "off": 0},
    },
    "tuples": {
        "a": {"low": 0.1, "high": 2},
        "b": {"low": 1, "high": 64},
        "c": {"low": 1e-4, "high": 1.0, "log": True},
        "d": {"choices": ["x", "y"]},
        "e": {"value": 3},
    },
    "optuna": {
        "a": {"low": 0.5, "high": 2.0},
        "b": {"low": 1, "high": 8},
        "c": {"low": 8, "high": 64, "log": True},
        "d": {"choices": ["x", "y"]},
        "e": {"low": 0.0, "high": 1.0, "step": 0.5},
    },
    "numpy": {"a": {"low": 0.5, "high": 2.0}, "b": {"choices": [1, 2]}},
}


@pytest.mark.parametrize("form", FORMS)
def test_a_space_from_objects_equals_one_from_a_file(form: str) -> None:
    text = space_text(FORMS[form])
    space = load_space(text, PROGRAM)
    described = {"name": "params", "version": 1, "params": EXPECTED[form]}
    assert space == parse_space(described, PROGRAM)
    assert parse_space(space.to_dict(), PROGRAM) == space


def test_names_of_our_trainers_find_their_tables() -> None:
    given = {"learning_rate": (1e-4, 1e-3, "log"), "net_width": [32, 64], "length": (0.4, 0.6)}
    tables = load_space(space_text(given), GAME).tables
    assert {table: list(own) for table, own in tables.items()} == {
        "shape": ["net_width"],
        "ppo": ["learning_rate"],
        "env": ["length"],
    }
    whole = {"ppo": {"learning_rate": (1e-4, 1e-3, "log")}, "study": {"budget": 10_000}}
    space = load_space(space_text(whole), GAME)
    assert space.study == {"budget": 10_000}
    assert space.tables["ppo"]["learning_rate"].log
    assert load_space(space_text({"ppo": {"clip": [0.1, 0.2]}}), MARKET_PPO).tables["ppo"]
    with pytest.raises(InputError, match=r"--search-space: learning_rat is .*mean learning_rate"):
        load_space(space_text({"learning_rat": (0.1, 0.2)}), GAME)


def test_a_function_of_a_trial_is_recorded() -> None:
    def space(trial: Any) -> None:
        optimizer = trial.suggest_categorical("optimizer", ["adam", "sgd"])
        rate = trial.suggest_float("rate", 1e-5, 1e-1, log=True)
        assert trial.suggest_float("rate", 1e-5, 1e-1, log=True) == rate
        trial.suggest_int("layers", 1, 4)
        trial.suggest_int("width", 8, 64, step=8)
        trial.suggest_float("drop", 0, 0.5, step=0.1)
        trial.suggest_float("fixed", 2, 2)
        assert optimizer in ("adam", "sgd")

    assert json.loads(space_text(space)) == {
        "optimizer": {"choices": ["adam", "sgd"]},
        "rate": {"low": 1e-5, "high": 1e-1, "log": True},
        "layers": {"low": 1, "high": 4},
        "width": {"low": 8, "high": 64, "step": 8},
        "drop": {"low": 0.0, "high": 0.5, "step": 0.1},
        "fixed": {"value": 2.0},
    }


def conditional(trial: Any) -> None:
    if trial.suggest_categorical("optimizer", ["adam", "sgd"]) == "sgd":
        trial.suggest_float("momentum", 0.0, 1.0)


def dependent(trial: Any) -> None:
    trial.suggest_int("inner", 1, trial.suggest_int("outer", 2, 8))


def twice(trial: Any) -> None:
    trial.suggest_int("a", 1, 2)
    trial.suggest_int("a", 1, 3)


def reports(trial: Any) -> None:
    trial.report(1.0, 1)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (conditional, "'momentum' depends on other parameters, .* no conditions"),
        (dependent, "'inner' depends on other parameters"),
        (twice, "'a' is suggested twice"),
        (reports, "only trial.suggest_…; it used trial.report"),
        (lambda trial: None, "suggests nothing"),  # noqa: ARG005
        (lambda trial: trial.suggest_int("a", 1.5, 3), "1.5 is no whole number"),
        (lambda trial: 1 / 0, "raises ZeroDivisionError"),  # noqa: ARG005
        ({"a": ("x", "y")}, r"a = \('x', 'y'\) is not a parameter; give sweepd.log_float"),
        ({"a": (1, 2, 3)}, "a = .* is not a parameter"),
        ({"a": object()}, "is not a parameter"),
        ({"a": [object()]}, "neither a number nor text"),
    ],
)
def test_what_cannot_be_a_space_is_refused(space: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        space_text(space)


def test_wrong_numbers_are_refused_where_they_are_given() -> None:
    with pytest.raises(InputError, match=r"1.5 is no whole number; sweepd.uniform_float"):
        sweepd.uniform_int(1.5, 3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="a range has no stop; it has low, high, step"):
        sweepd.log_float(1, 3, stop=2)
    with pytest.raises(InputError, match=r"--search-space: \[params\] a low = 2.0, high = 1.0"):
        load_space(space_text({"a": sweepd.uniform_float(2, 1)}), PROGRAM)
    with pytest.raises(InputError, match=r"--search-space {learning_rate: 1}: this is no JSON"):
        load_space("{learning_rate: 1}", PROGRAM)


def test_the_names_for_spaces_import_nothing_heavy() -> None:
    code = "import sys, sweepd; sweepd.log_float(1, 2); print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "optuna", "pydantic"} & set(found.stdout.split())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SWEEPD_STORAGE", raising=False)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_a_study_from_python_is_joined_by_a_file_and_the_reverse() -> None:
    """The stored space is that of the file: neither side sees a difference."""
    env = "command:true {lr}"
    study = sweepd.create_study("s", env=env, search_space={"lr": sweepd.log_float(1e-4, 1e-2)})
    Path("space.toml").write_text("[params]\nlr = { low = 1e-4, high = 1e-2, log = true }\n")
    sweepd.create_study("s", env=env, search_space="space.toml")
    sweepd.create_study("t", env=env, search_space="space.toml")
    again = sweepd.create_study("t", env=env, search_space={"lr": (1e-4, 1e-2, "log")})
    assert again.run_dir != study.run_dir
    with pytest.raises(InputError, match=r"space.params.lr.high = 0.01, and now it is 0.1"):
        sweepd.create_study("s", search_space={"lr": (1e-4, 1e-1, "log")})
    with pytest.raises(InputError, match=r"{lr} is not known; there are rate"):
        sweepd.create_study("u", env=env, search_space={"rate": (1e-4, 1e-1, "log")})
