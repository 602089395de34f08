"""Studies with `--search pbt`: copies between trials, kills at any instant, schedules, refusals."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from optuna.trial import TrialState

from sweepd.agents.engine.description import unpacked
from sweepd.optimize.objectives.members.trainer import Trainer
from sweepd.optimize.study.population import schedule_record, trial_schedule
from sweepd.optimize.study.record.keys import CHANGES_KEY
from sweepd.optimize.study.sampling.evolution import changes_of
from sweepd.optimize.worker import records
from sweepd.optimize.worker.evolution import Evolution
from tests.extra import with_extra
from tests.optimize.conftest import Running
from tests.optimize.study_files import numbers, open_handle, wait_for

SPACE = """
name = "tiny"
version = 1
[shape]
net_width = { choices = [8, 16] }
net_depth = { value = 1 }
minibatch = { value = 32 }
epochs = { value = 1 }
[ppo]
learning_rate = { low = 1e-3, high = 1e-1, log = true }
clip = { low = 0.1, high = 0.3 }
initial_log_std = { low = -1.0, high = 0.0 }
target_kl = { low = 0.005, high = 0.05, log = true, off = 0.0 }
"""
FLAGS = (
    *("--env", "cartpole", "--search-space", "tiny.toml", "--study-name", "s", "--gpu", "cpu"),
    *("--budget", 256, "--rungs", 4, "--n-envs", 4, "--horizon", 16, "--threads", 1),
    *("--episodes", 2, "--look-steps", 4, "--slots", 4),
)
PBT = (*FLAGS, "--search", "pbt", "--n-trials", 8, "--trials-per-batch", 8)
Start = Callable[..., Running]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("output")


def run(folder: Path, output: Path, *words: object) -> Running:
    folder.mkdir(exist_ok=True)
    (folder / "tiny.toml").write_text(SPACE)
    return Running([str(word) for word in words], folder, output)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, outputs: Path) -> Path:
    """A study that was never interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    text = run(folder, outputs / "whole.txt", "train", *PBT).finish()
    assert "--search pbt" in text
    assert "goes on with the weights of trial" in text
    assert "schedule of trial" in text
    return folder


@pytest.fixture
def start(tmp_path: Path, outputs: Path) -> Iterator[Start]:
    started: list[Running] = []

    def begin(*words: object) -> Running:
        name = f"{tmp_path.name}-{len(started)}.txt"
        started.append(run(tmp_path, outputs / name, *words))
        return started[-1]

    yield begin
    for running in started:
        running.process.kill()
        running.process.join()


def everything(folder: Path) -> dict[int, Any]:
    """What must not depend on interruptions: numbers, weights, changes and schedules."""
    handle, found = open_handle(folder), numbers(folder)
    for trial in handle.trials():
        found[trial.number]["changes"] = trial.user_attrs.get(CHANGES_KEY)
        path = handle.trial_dir(trial.number) / "schedule.json"
        found[trial.number]["schedule"] = path.read_text()
    return found


def kill(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def after(function: Callable[..., Any], calls: int) -> Callable[..., Any]:
    """The function, after whose nth call the process is killed."""
    made = [0]

    def counted(*arguments: Any, **named: Any) -> Any:
        result = function(*arguments, **named)
        made[0] += 1
        if made[0] == calls:
            kill()
        return result

    return counted


def test_copies_are_recorded_and_followed(whole: Path) -> None:
    handle = open_handle(whole)
    trials = handle.trials()
    assert [t.state for t in trials] == [TrialState.COMPLETE] * 8
    assert len({t.params["net_width"] for t in trials}) == 1
    made = {t.number: changes_of(t.user_attrs.get(CHANGES_KEY)) for t in trials}
    assert sum(map(len, made.values())) >= 3
    for trial in trials:
        rungs = [change.rung for change in made[trial.number]]
        assert rungs == sorted(set(rungs))
        assert set(rungs) <= {1, 2, 3}
        for change in made[trial.number]:
            better = trials[change.source].intermediate_values[change.rung]
            assert better > trial.intermediate_values[change.rung]
        recorded = json.loads((handle.trial_dir(trial.number) / "schedule.json").read_text())
        assert recorded == schedule_record(handle, trial.number)
        last = trial_schedule(handle, trial.number)[-1].params
        used = trial.user_attrs["sweepd:ppo_params"]  # those of the last rung
        assert used["learning_rate"] == last["learning_rate"]
        assert used["clip"] == last["clip"]
        assert used["initial_log_std"] == last["initial_log_std"]


# The instants of a rung's changes: before the record, between two records, before and after the
# weights move, and with some of the rung's checkpoints written.
INSTANTS: dict[str, tuple[Any, str, int]] = {
    "before the record": (Evolution, "change", 0),
    "after a record": (None, "record_change", 1),
    "after the records": (Trainer, "inherit", 0),
    "after the copies": (Evolution, "change", 2),
    "some checkpoints": (records, "write_checkpoint", 12),
}


@pytest.mark.parametrize("instant", with_extra(INSTANTS, set(INSTANTS) - {"after a record"}))
def test_a_kill_at_any_instant_changes_no_number(
    instant: str, whole: Path, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sweepd.optimize.study.study import StudyHandle

    owner, name, calls = INSTANTS[instant]
    owner = owner or StudyHandle
    monkeypatch.setattr(owner, name, after(getattr(owner, name), calls) if calls else kill)
    start("train", *PBT).finish(-signal.SIGKILL)
    monkeypatch.undo()
    start("train", *PBT).finish()
    assert everything(tmp_path) == everything(whole)


@pytest.mark.extra
def test_kill_9_and_sigterm_at_random_change_no_number(
    whole: Path, start: Start, tmp_path: Path
) -> None:
    for signum in (signal.SIGKILL, signal.SIGTERM):
        worker = start("train", *PBT)
        before = set(tmp_path.glob("runs/*/trial-*/checkpoint-*"))
        wait_for(
            lambda own=worker, b=before: (  # type: ignore[misc]
                set(tmp_path.glob("runs/*/trial-*/checkpoint-*")) - b or own.ended
            )
        )
        worker.signal(signum)
        worker.finish(-signum if signum == signal.SIGKILL else 0)
    start("train", *PBT).finish()
    assert everything(tmp_path) == everything(whole)


def test_a_lost_checkpoint_starts_the_population_again(
    whole: Path, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Evolution, "change", after(Evolution.change, 3))
    start("train", *PBT).finish(-signal.SIGKILL)
    monkeypatch.undo()
    [lost] = tmp_path.glob("runs/*/trial-00002/checkpoint-*")
    lost.unlink()
    text = start("train", *PBT).finish()
    assert "the population starts again" in text
    assert everything(tmp_path) == everything(whole)


def test_a_schedule_is_trained_on_fresh_seeds(whole: Path, outputs: Path) -> None:
    handle = open_handle(whole)
    number = max((t.number for t in handle.trials()), key=lambda n: len(trial_schedule(handle, n)))
    stretches = trial_schedule(handle, number)
    assert len(stretches) > 1
    text = run(
        whole, outputs / "run.txt", "run", "--trial", f"s#{number}", "--seeds", 2, "--gpu", "cpu"
    ).finish()
    assert "with the schedule of its weights" in text
    assert "train.toml" not in text
    ran = type(handle)(handle.storage, f"s-run{number}")
    [trial] = ran.trials()
    changes = changes_of(trial.user_attrs[CHANGES_KEY])
    assert [change.rung for change in changes] == [stretch.rung for stretch in stretches[1:]]
    for change, stretch in zip(changes, stretches[1:], strict=True):
        assert change.source == 0
        assert change.params["learning_rate"] == stretch.params["learning_rate"]
    used = trial.user_attrs["sweepd:ppo_params"]
    assert used["learning_rate"] == stretches[-1].params["learning_rate"]
    refused = {
        ("--budget", "2x"): "leave --budget out",
        ("--from-weights",): "begins with new networks",
    }
    for words, why in refused.items():
        asked = ("run", "--trial", f"s#{number}", "--study-name", "x", "--gpu", "cpu", *words)
        said = run(whole, outputs / "no.txt", *asked).finish(2)
        assert why in said


def test_status_and_export_show_the_schedule(whole: Path, outputs: Path) -> None:
    status = run(whole, outputs / "a.txt", "status", "--study-name", "s", "--json").finish()
    [found] = json.loads(status)
    handle = open_handle(whole)
    assert found["best"]["schedule"] == schedule_record(handle, found["best"]["trial"])
    shown = run(whole, outputs / "b.txt", "status", "--study-name", "s").finish()
    assert "of hyperparameters on the way to its weights" in shown
    run(whole, outputs / "c.txt", "studies", "export", "s", "--out", "s.csv").finish()
    frame = pd.read_csv(whole / "s.csv", index_col="number")
    for number, text in frame["schedule"].items():
        assert json.loads(text) == schedule_record(handle, int(str(number)))


REFUSED: dict[str, tuple[tuple[object, ...], str]] = {
    "market": (("--env", "crypto"), "which PBO and the deflated Sharpe ratio do not account for"),
    "team": (("--env", "bucket-brigade"), "is neither, with 4 seats"),
    "league": (("--env", "hockey", "--opponents", "league"), "complete at the same time"),
    "algorithm": (("--algo", "elegantrl:ppo"), "needs --algo ppo, sac or d3qn"),
    "sampler": (("--sampler", "cmaes"), "works with --sampler random"),
    "race": (("--sampler", "race"), "works with --sampler random"),
    "pruner": (("--pruner", "median"), "works with --pruner none"),
    "prior": (("--prior", "other"), "leave --prior out"),
    "first trials": (("--try-first", "other#0"), "leave --try-first out"),
    "rungs": (("--rungs", 1), "at least 2"),
    "total": (("--n-trials", 12), "not a multiple of the population's 8 trials"),
    "population": (("--trials-per-batch", 2), "at least 4"),
    "unknown": (("--search", "genetic"), "choose one of trials, pbt"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_done_is_refused(case: str, outputs: Path, tmp_path: Path) -> None:
    flags, why = REFUSED[case]
    merged = dict(zip(PBT[::2], PBT[1::2], strict=True))
    merged |= dict(zip(flags[::2], flags[1::2], strict=True))
    if merged["--env"] != "cartpole" or "--algo" in merged:
        del merged["--search-space"]
    if merged["--env"] == "crypto":
        merged = {k: v for k, v in merged.items() if k not in ("--episodes", "--look-steps")}
    words = [word for pair in merged.items() for word in pair]
    text = run(tmp_path, outputs / "refused.txt", "train", *words).finish(2)
    assert why in text
    assert not list(tmp_path.glob("runs/s-*"))
    assert len(text.strip().splitlines()) <= 2


def test_spaces_without_anything_to_change_are_refused(outputs: Path, tmp_path: Path) -> None:
    cases = {
        "[ppo]\nclip = { value = 0.2 }\n[env]\nlength = { low = 0.4, high = 0.6 }": "[env] length",
        "[ppo]\ninitial_log_std = { low = -1.0, high = 0.0 }": "nothing to change",
    }
    for tables, why in cases.items():
        (tmp_path / "other.toml").write_text(f'name = "o"\nversion = 1\n{tables}\n')
        words = ["other.toml" if word == "tiny.toml" else word for word in PBT]
        assert why in run(tmp_path, outputs / "space.txt", "train", *words).finish(2)


def test_other_commands_refuse_a_study_of_populations(whole: Path, outputs: Path) -> None:
    cases = (
        (("enqueue", "s", "learning_rate=0.01"), "drawn together"),
        (("train", *PBT[:-2], "--n-trials", 12), "not a multiple"),
    )
    for words, why in cases:
        assert why in run(whole, outputs / "other.txt", *words).finish(2)
    other = [word if word != "s" else "t" for word in FLAGS]
    narrow = ["narrow:s" if word == "tiny.toml" else word for word in other]
    for extra, base in ((("--prior", "s", "--sampler", "race"), other), ((), narrow)):
        text = run(whole, outputs / "other.txt", "train", *base, "--n-trials", 4, *extra).finish(2)
        assert "changed their hyperparameters" in text


def test_the_copied_weights_are_the_sources_to_the_bit(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "write_checkpoint", after(records.write_checkpoint, 16))
    start("train", *PBT).finish(-signal.SIGKILL)  # 8 at rung 1, 8 at rung 2
    handle = open_handle(tmp_path)
    states = {}
    for trial in handle.trials():
        paths = sorted(handle.trial_dir(trial.number).glob("checkpoint-*-r002-*"))
        if paths:
            states[trial.number] = records.read_checkpoint(paths[-1]).members[0].learner or {}
    copied = [
        (trial.number, change)
        for trial in handle.trials()
        for change in changes_of(trial.user_attrs.get(CHANGES_KEY))
        if change.rung == 2 and {trial.number, change.source} <= set(states)
    ]
    assert copied
    for number, change in copied:
        own, source = states[number], states[change.source]
        values = "critic.value_avg", "critic.value_std"
        for name in ("weights", "adam_m", "adam_v", "adam_step", *values):
            assert torch.equal(own[name], source[name])
        assert not torch.equal(own["stream"], source["stream"])
        assert unpacked(own)["params"] != unpacked(source)["params"]
