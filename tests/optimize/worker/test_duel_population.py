"""Populations of games of two seats: fitness, what is copied, and kills at any instant."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from sweepd.optimize.objectives.games import experiment
from sweepd.optimize.objectives.members.trainer import Trainer
from sweepd.optimize.study.record.keys import CHANGES_KEY, fitness_key
from sweepd.optimize.study.sampling.evolution import changes_of
from sweepd.optimize.study.study import StudyHandle
from sweepd.optimize.worker import records
from tests.extra import with_extra
from tests.optimize.conftest import Running
from tests.optimize.objectives.test_game_study import make_experiment, plan
from tests.optimize.study_files import open_handle
from tests.optimize.worker.test_batch import advance_to
from tests.optimize.worker.test_evolution import SPACE as FAST
from tests.optimize.worker.test_evolution import Start, after, everything, kill

# With rates at which some members stay weak.
SPACE = FAST.replace("low = 1e-3, high = 1e-1", "low = 3e-5, high = 1e-2")
PHASES = [
    {
        "share": 0.6,
        "opponents": {"idle": 0.5, "past": 0.25, "self": 0.25},
        "until": {"opponent": "idle", "win_rate": 0.6, "games": 10},
    },
    {"share": 0.4, "opponents": {"coin": 0.5, "past": 0.5}, "env": {"length": 6}},
]
PBT = (
    *("--env", "tests.optimize.objectives.duel_game:DUEL", "--search-space", "tiny.toml"),
    *("--study-name", "s", "--gpu", "cpu", "--budget", 512, "--rungs", 4, "--n-envs", 4),
    *("--horizon", 16, "--threads", 1, "--episodes", 4, "--look-steps", 4, "--slots", 6),
    *("--play", "sampled"),
    *("--phases", json.dumps(PHASES), "--past-interval", 1, "--past-size", 2),
    *("--search", "pbt", "--n-trials", 8, "--trials-per-batch", 8),
)
STATE = ("opponents_past", "opponents_past_counters", "phases_began", "phases_window")


def run(folder: Path, output: Path, *words: object) -> Running:
    folder.mkdir(exist_ok=True)
    (folder / "tiny.toml").write_text(SPACE)
    return Running([str(word) for word in words], folder, output)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("output")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, outputs: Path) -> Path:
    """A study that was never interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    assert "goes on with the weights" in run(folder, outputs / "w.txt", "train", *PBT).finish()
    return folder


@pytest.fixture
def start(tmp_path: Path, outputs: Path) -> Iterator[Start]:
    started: list[Any] = []

    def begin(*words: object) -> Any:
        output = outputs / f"{tmp_path.name}-{len(started)}.txt"
        started.append(run(tmp_path, output, *words))
        return started[-1]

    yield begin
    for running in started:
        running.process.kill()
        running.process.join()


def fitness(handle: StudyHandle, rung: int) -> dict[int, Any]:
    return {trial.number: trial.user_attrs[fitness_key(rung)] for trial in handle.trials()}


def all_numbers(folder: Path) -> dict[int, Any]:
    handle, found = open_handle(folder), everything(folder)
    for rung in range(1, 5):
        for number, own in fitness(handle, rung).items():
            found[number][f"fitness {rung}"] = own
    return found


def test_the_copies_follow_the_recorded_fitness(whole: Path) -> None:
    handle = open_handle(whole)
    trials = handle.trials()
    copies, against_values = 0, 0
    for rung in range(1, 5):
        found = fitness(handle, rung)
        # Every game has one point, which both seatings of a deal share.
        assert np.mean([own["population"] for own in found.values()]) == pytest.approx(0.5)
        for trial in trials:
            own = found[trial.number]
            assert own["anchors"] == trial.intermediate_values[rung]
            assert own["value"] == (own["population"] + own["anchors"]) / 2
    for trial in trials:
        for change in changes_of(trial.user_attrs.get(CHANGES_KEY)):
            found = fitness(handle, change.rung)
            ranked = sorted(found, key=lambda one: (-found[one]["value"], one))
            assert change.source in ranked[:2]
            assert trial.number in ranked[-2:]
            assert found[change.source]["value"] > found[trial.number]["value"]
            values = trials[change.source].intermediate_values, trial.intermediate_values
            against_values += values[0][change.rung] <= values[1][change.rung]
            copies += 1
    assert copies >= 3
    # The trial is selected by the study's objective, whose value no company changes.
    best = handle.best()
    assert best is not None
    assert best.value == max(trial.value for trial in trials if trial.value is not None)


def test_the_export_has_the_fitness(whole: Path, outputs: Path) -> None:
    run(whole, outputs / "e.txt", "studies", "export", "s", "--out", "s.csv").finish()
    frame = pd.read_csv(whole / "s.csv", index_col="number")
    known = fitness(open_handle(whole), 4)
    assert {number: json.loads(own) for number, own in frame["fitness"].items()} == known


# Before and in the games of a rung, between the record of the fitness and that of the changes, after
# the copies, with some of the rung's checkpoints written, and after the last rung's fitness.
INSTANTS: dict[str, tuple[Any, str, int]] = {
    "before the games": (Trainer, "fitness", 0),
    "after the games": (Trainer, "fitness", 2),
    "after the record": (StudyHandle, "record_fitness", 1),
    "after a copy": (Trainer, "inherit", 1),
    "some checkpoints": (records, "write_checkpoint", 12),
    "after the last record": (StudyHandle, "record_fitness", 4),
    "some trials ended": (records.Records, "complete", 3),
}


@pytest.mark.parametrize(
    "instant", with_extra(INSTANTS, set(INSTANTS) - {"after the record", "some checkpoints"})
)
def test_a_kill_at_any_instant_changes_no_number(
    instant: str, whole: Path, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, calls = INSTANTS[instant]
    monkeypatch.setattr(owner, name, after(getattr(owner, name), calls) if calls else kill)
    start("train", *PBT).finish(-signal.SIGKILL)
    monkeypatch.undo()
    start("train", *PBT).finish()
    assert all_numbers(tmp_path) == all_numbers(whole)


def test_a_signal_during_the_games_of_a_population_changes_no_number(
    whole: Path, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play, calls = experiment.judge_population, []

    def interrupted(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return play(*arguments, **named)

    monkeypatch.setattr(experiment, "judge_population", interrupted)
    assert "stopped by a signal" in start("train", *PBT).finish()
    monkeypatch.undo()
    assert not any(fitness_key(2) in t.user_attrs for t in open_handle(tmp_path).trials())
    start("train", *PBT).finish()
    assert all_numbers(tmp_path) == all_numbers(whole)


def test_past_selves_phases_and_results_are_copied_with_the_weights(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "write_checkpoint", after(records.write_checkpoint, 16))
    start("train", *PBT).finish(-signal.SIGKILL)  # 8 at rung 1, 8 at rung 2
    handle, states = open_handle(tmp_path), {}
    for trial in handle.trials():
        paths = sorted(handle.trial_dir(trial.number).glob("checkpoint-*-r002-*"))
        if paths:
            states[trial.number] = records.read_checkpoint(paths[-1]).members[0].env or {}
    copied = [
        (states[trial.number], states[change.source])
        for trial in handle.trials()
        for change in changes_of(trial.user_attrs.get(CHANGES_KEY))
        if change.rung == 2 and {trial.number, change.source} <= set(states)
    ]
    assert copied
    for own, source in copied:
        results = [name for name in own if name.startswith("results_")]
        assert len(results) == 3
        for name in (*STATE, "opponents_shares", "opponents_first", *results):
            assert torch.equal(own[name], source[name]), name
        assert own["opponents_past"].numel()
        assert not torch.equal(own["stream"], source["stream"])
        assert any(not torch.equal(own[name], source[name]) for name in ("seat", "opponent", "age"))


def test_the_schedule_of_a_population_is_trained_on_fresh_seeds(whole: Path, outputs: Path) -> None:
    handle = open_handle(whole)
    [number] = [t.number for t in handle.trials() if CHANGES_KEY in t.user_attrs][:1]
    words = ("run", "--trial", f"s#{number}", "--seeds", 2, "--gpu", "cpu")
    assert "with the schedule of its weights" in run(whole, outputs / "r.txt", *words).finish()
    [trial] = type(handle)(handle.storage, f"s-run{number}").trials()
    assert trial.value is not None
    assert fitness_key(1) not in trial.user_attrs


@pytest.mark.parametrize("environment", ["kuhn", "hockey"])
def test_fitness_does_not_depend_on_the_division_into_programs(environment: str) -> None:
    """Games in turns with a memory, and continuous actions; two members per trial, drawn actions."""
    found = []
    for slots in (4, 10):
        made = make_experiment(
            environment, objective="points", slots=slots, episodes=6, play="sampled", seeds=2
        )
        trainer = Trainer(made)
        plans = [plan(number) for number in range(5)]
        if environment == "kuhn":
            for own in plans:
                own.settings.shape.update(recurrent="gru", bptt=4)
        trainings = [trainer.start(own) for own in plans]
        advance_to(trainer, trainings, 1)
        reached = list(zip(trainings, trainer.evaluate(trainings), strict=True))
        first = trainer.fitness(reached)
        assert first == trainer.fitness(reached)
        assert first is not None
        found.append([own.population for own in first])
        assert (first[0].anchors is None) == (environment == "kuhn")
    assert len(set(found[0])) > 1
    assert found[0] == pytest.approx(found[1])
