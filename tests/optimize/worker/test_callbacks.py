"""Callbacks of `Study.run`: what is told, in which order, and what an exception does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import sweepd
from sweepd.envs.support.errors import InputError
from tests.optimize.objectives.command.programs import program

TEXT = """
report(1, params["lr"])
report(2, params["lr"])
"""


class Heard(sweepd.Callback):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def on_trial_begin(self, study: sweepd.Study, trial: int, params: Any) -> None:
        self.events.append(("begin", study.name, trial, *params))

    def on_rung(self, study: sweepd.Study, trial: int, rung: int, value: float) -> None:
        state = study.trials().loc[trial, "state"]
        self.events.append(("rung", trial, rung, value, state))

    def on_trial_complete(self, study: sweepd.Study, trial: int, value: float) -> None:
        assert study.trials().loc[trial, "value"] == value
        assert (study.trial_dir(trial) / "manifest.json").exists()
        self.events.append(("complete", trial, value))

    def on_new_best(self, study: sweepd.Study, trial: int, value: float) -> None:
        assert study.best_trial == trial
        self.events.append(("best", trial, value))

    def on_study_complete(self, study: sweepd.Study) -> None:
        self.events.append(("study", study.status()["done"]))


class Faulty(sweepd.Callback):
    """Raises, as users' code may."""

    def on_rung(self, study: sweepd.Study, trial: int, rung: int, value: float) -> None:  # noqa: ARG002
        raise ValueError("a fault of mine")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SWEEPD_STORAGE", raising=False)
    return tmp_path


def test_what_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heard = Heard()
    settings: dict[str, Any] = {
        "env": f"command:{program(folder, TEXT)}",
        "search_space": {"lr": (0.0, 1.0)},
        "sampler": "random",
        "seeds": 1,
        "budget": 2,
        "rungs": 2,
        "pruner": "none",
        "trials_per_batch": 1,
        "fresh_seeds": 2,
    }
    study = sweepd.create_study("s", callbacks=[Faulty(), heard], n_trials=3, **settings)
    assert study.run()
    values = study.trials()["value"]
    expected: list[tuple[Any, ...]] = []
    best = -1.0
    for trial, value in values.items():
        expected += [("begin", "s", trial, "lr")]
        expected += [("rung", trial, rung, value, "RUNNING") for rung in (1, 2)]
        expected += [("complete", trial, value)]
        if value > best:
            best = value
            expected += [("best", trial, value)]
    # Nothing of the run on fresh seeds, which is another study.
    assert heard.events == [*expected, ("study", 3)]
    said = capsys.readouterr().out
    assert said.count("warning: Faulty.on_rung raised ValueError: a fault of mine (") == 6
    # A best trial from before is not new.
    heard.events.clear()
    sweepd.create_study("s", callbacks=[heard]).run()
    assert heard.events == [("study", 3)]
    assert json.dumps(study.optuna.user_attrs["sweepd:flags"]).count("callbacks") == 0


def test_other_objects_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"callbacks\[1\] = .* is no object of a subclass of sweepd"
    ):
        sweepd.create_study("s", env="cartpole", callbacks=[Heard(), print])
