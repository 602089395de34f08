"""External faults of workers, one per test; tests/chaos combines them at random."""

from __future__ import annotations

import functools
import multiprocessing
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy as sa
from optuna.trial import TrialState

from sweepd.agents.algorithms.ppo import PPO
from sweepd.envs.support.errors import RunError, TryAgainLater
from sweepd.optimize.cli import launch
from sweepd.optimize.cli import train as train_command
from sweepd.optimize.objectives.members.trainer import Trainer
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.database.tables import attempts
from sweepd.optimize.study.record.database import is_away, open_to_read, storage_url
from sweepd.optimize.study.record.keys import ATTEMPTS_KEY
from sweepd.optimize.study.recovery.deaths import MAX_DEATHS
from sweepd.optimize.study.recovery.heartbeat import Heartbeat
from sweepd.optimize.study.recovery.registration import list_workers, register_worker
from sweepd.optimize.study.recovery.stale_trials import recover_stale
from sweepd.optimize.study.recovery.stall import FACTOR, Progress
from sweepd.optimize.study.study import StudyHandle
from sweepd.optimize.worker.reporting import TrialReporter
from sweepd.optimize.worker.telemetry import Activity
from sweepd.optimize.worker.worker import WorkerOptions
from tests.optimize.conftest import INDEPENDENT, Sweepd
from tests.optimize.study_files import count, killed_at_checkpoint, numbers, open_handle, wait_for

HERE = os.getpid()


@pytest.mark.slow
def test_a_suspended_worker_drops_its_lost_trial_and_takes_another(
    market: Path, sweepd: Sweepd, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = ("--n-trials", 2, "--trials-per-batch", 1, "--budget", 480, *INDEPENDENT)
    sweepd("train", *study, "--runs-dir", "alone/runs").finish()
    monkeypatch.setattr(
        train_command,
        "WorkerOptions",
        functools.partial(WorkerOptions, beat_seconds=0.2, grace_seconds=1.5),
    )
    stepped = Activity.stepped

    def sleep_once(own: Activity, steps: int) -> None:
        stepped(own, steps)
        if not (market / "asleep").exists():
            # Just after a heartbeat, so that the database is not locked during the suspension.
            beaten = own.heartbeat.beaten
            wait_for(lambda: own.heartbeat.beaten != beaten)
            (market / "asleep").touch()
            os.kill(os.getpid(), signal.SIGSTOP)

    monkeypatch.setattr(Activity, "stepped", sleep_once)
    sleeper = sweepd("train", *study, "--alongside")
    wait_for((market / "asleep").exists)
    other = sweepd("train", *study, "--alongside")
    wait_for(
        lambda: "trial 0: requeued, its worker died (no heartbeat for" in other.output.read_text()
    )
    wait_for(lambda: "training trial" in other.output.read_text())
    sleeper.signal(signal.SIGCONT)
    out = sleeper.finish()
    assert "trial 0 was given to another worker meanwhile; its copy here is dropped" in out
    other.finish()
    assert numbers(market) == numbers(market / "alone")


@pytest.mark.slow
def test_a_worker_whose_main_thread_hangs_loses_its_trials(
    market: Path, sweepd: Sweepd, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = ("--n-trials", 2, "--trials-per-batch", 1, "--budget", 480, *INDEPENDENT)
    sweepd("train", *study, "--runs-dir", "alone/runs").finish()
    options = functools.partial(WorkerOptions, beat_seconds=0.2, grace_seconds=1.5)
    stepped = Activity.stepped

    def hang_once(own: Activity, steps: int) -> None:
        stepped(own, steps)
        if not (market / "hangs").exists():
            (market / "hangs").touch()
            wait_for((market / "wake").exists)

    monkeypatch.setattr(Activity, "stepped", hang_once)
    with monkeypatch.context() as patch:
        patch.setattr(train_command, "WorkerOptions", functools.partial(options, stall_seconds=0.5))
        hanging = sweepd("train", *study, "--alongside")
    wait_for((market / "hangs").exists)
    monkeypatch.setattr(train_command, "WorkerOptions", options)
    other = sweepd("train", *study, "--alongside")
    wait_for(
        lambda: "trial 0: requeued, its worker died (no heartbeat for" in other.output.read_text()
    )
    # The worker reports that it is alive, and the line in which it hangs.
    assert "in wait_for (study_files.py:" in hanging.output.read_text()
    assert count(market, "SELECT count(*) FROM sweepd_workers WHERE state = 'stalled'") == 1
    other.finish()
    assert {t.state for t in open_handle(market).trials()} == {TrialState.COMPLETE}
    (market / "wake").touch()
    assert (
        "trial 0 was given to another worker meanwhile; its copy here is dropped"
        in hanging.finish()
    )
    assert numbers(market) == numbers(market / "alone")


def test_the_limit_of_a_stall_grows_with_the_longest_piece_of_work() -> None:
    now = 0.0
    progress = Progress(100.0, lambda: now)
    now = 99.0
    assert not progress.stalled
    progress.mark()
    assert progress.limit == 99.0 * FACTOR
    now += 250.0
    assert not progress.stalled
    now += 50.0
    assert progress.stalled
    progress.mark()
    assert not progress.stalled
    assert progress.limit == 300.0 * FACTOR


@pytest.mark.slow
def test_a_trial_that_always_crashes_its_worker_is_quarantined(
    market: Path, sweepd: Sweepd, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = Trainer.advance

    def deadly(self: Trainer, trainings: Any) -> None:
        if any(training.plan.number == 1 for training in trainings) and os.getpid() != HERE:
            os.kill(os.getpid(), signal.SIGSEGV)
        advance(self, trainings)

    monkeypatch.setattr(Trainer, "advance", deadly)
    study = ("--n-trials", 3, *INDEPENDENT)
    for _ in range(4):  # once with other trials, then alone
        sweepd("train", *study).finish(-signal.SIGSEGV)
    out = sweepd("train", *study).finish()
    assert (
        "trial 1: failed: 3 workers died while they trained it alone "
        "(its process crashed: Segmentation fault" in out
    )
    trials = open_handle(market).trials()
    assert [t.state for t in trials] == [TrialState.COMPLETE, TrialState.FAIL, TrialState.COMPLETE]
    assert (
        "quarantined: 3 workers died while they trained it alone"
        in trials[1].user_attrs["sweepd:reason"]
    )
    history = trials[1].user_attrs[ATTEMPTS_KEY]
    assert [end["evidence"] for end in history] == ["in company", *["alone"] * 3]
    assert all(
        "Segmentation fault in deadly (test_misfortunes.py:" in end["how"] for end in history
    )
    for innocent in (
        trials[0],
        trials[2],
    ):  # suspects after the first death, and trained alone since
        assert [end["evidence"] for end in innocent.user_attrs[ATTEMPTS_KEY]] == ["in company"]
    assert (
        len(list((open_handle(market).run_dir / "crashes").iterdir())) == 4
    )  # the stacks are kept


@pytest.mark.slow
def test_kills_from_outside_never_fail_a_trial(
    market: Path, sweepd: Sweepd, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = Trainer.advance

    def evicted(self: Trainer, trainings: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
        advance(self, trainings)

    study = ("--n-trials", 2, *INDEPENDENT)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "advance", evicted)
        for _ in range(MAX_DEATHS + 2):
            sweepd("train", *study).finish(-signal.SIGKILL)
    out = sweepd("train", *study).finish()
    assert "training trials 0, 1 together" in out, "they are not suspects"
    trials = open_handle(market).trials()
    assert [t.state for t in trials] == [TrialState.COMPLETE] * 2
    for trial in trials:
        history = trial.user_attrs[ATTEMPTS_KEY]
        assert len(history) == MAX_DEATHS + 2
        assert not any("evidence" in end for end in history)
    assert list((open_handle(market).run_dir / "crashes").iterdir()) == []


def test_a_lost_gpu_requeues_the_trials_and_ends_the_worker(
    market: Path, sweepd: Sweepd, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    with monkeypatch.context() as patch:
        patch.setattr(PPO, "train", lost)
        worker = sweepd("train", "--n-trials", 2, "--pruner", "none")
        worker.process.join(120)
        assert worker.process.exitcode == 1
    assert "CUDA error: unspecified launch failure" in worker.output.read_text()
    assert {t.state for t in open_handle(market).trials()} == {TrialState.WAITING}
    sweepd("train", "--n-trials", 2, "--pruner", "none").finish()
    trials = open_handle(market).trials()
    assert {t.state for t in trials} == {TrialState.COMPLETE}
    assert not any(
        ATTEMPTS_KEY in t.user_attrs for t in trials
    )  # a fault of the machine does not count as an attempt


def test_a_trial_that_cannot_be_requeued_does_not_affect_the_others(
    market: Path, sweepd: Sweepd, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_back = StudyHandle.put_back

    def lost(*_: object) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    def fails_once(handle: StudyHandle, trial_id: int) -> None:
        if handle.storage.get_trial(trial_id).number == 0:
            raise RuntimeError("of the release")
        put_back(handle, trial_id)

    monkeypatch.setattr(Trainer, "advance", lost)
    monkeypatch.setattr(StudyHandle, "put_back", fails_once)
    worker = sweepd("train", "--n-trials", 3, "--pruner", "none")
    worker.process.join(120)
    assert "CUDA error: unspecified launch failure" in worker.output.read_text().splitlines()[-1]
    assert [t.state.name for t in open_handle(market).trials()] == ["RUNNING", "WAITING", "WAITING"]


def test_a_trial_that_diverged_while_the_database_was_unavailable_fails_later(
    market: Path, sweepd: Sweepd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint would hide the divergence, as nothing is left to train in the rung."""
    space = (market / "tiny.toml").read_text()
    (market / "tiny.toml").write_text(
        re.sub("learning_rate = .*", "learning_rate = { value = 1e38 }", space)
    )

    def away(*_: object) -> None:
        raise TryAgainLater("the database is away")

    study = ("--n-trials", 1, "--rungs", 1, "--pruner", "none")
    with monkeypatch.context() as patch:
        patch.setattr(TrialReporter, "end", away)
        patch.setattr("sweepd.optimize.worker.lifecycle.leave", lambda *_: None)
        sweepd("train", *study).finish(75)
    out = sweepd("train", *study).finish()
    assert "trial 0 failed: diverged" in out
    [trial] = open_handle(market).trials()
    assert trial.state == TrialState.FAIL


@pytest.mark.slow
def test_without_its_checkpoint_a_trial_restarts_with_the_same_numbers(
    market: Path, sweepd: Sweepd
) -> None:
    study = ("--n-trials", 1, "--budget", 960, *INDEPENDENT, "--runs-dir")
    sweepd("train", *study, "alone/runs").finish()
    for damage in ("gone", "short"):
        checkpoints = f"{damage}/runs/*/trial-00000/checkpoint-*.safetensors"
        with killed_at_checkpoint(checkpoints):
            sweepd("train", *study, f"{damage}/runs").finish(-signal.SIGKILL)
        files = list(market.glob(checkpoints))
        assert files
        for file in files:
            if damage == "gone":
                file.unlink()
            else:
                file.write_bytes(file.read_bytes()[:-10])
        out = sweepd("train", *study, f"{damage}/runs").finish()
        assert "resumes from rung" not in out
        assert numbers(market / damage) == numbers(market / "alone")


def test_heartbeats_use_the_clock_of_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_storage(storage_url(str(tmp_path / "s.db"), tmp_path))
    optuna.create_study(storage=storage, study_name="s")
    study = storage.get_study_id_from_name("s")
    name = register_worker(storage, study, alongside=False, say=lambda _: None)
    [trial] = storage.claim_new(study, name, 1)
    for hours in (-5, 5):
        shifted = time.time() + 3600 * hours
        monkeypatch.setattr(time, "time", lambda at=shifted: at)
        other = open_storage(storage.url)
        assert recover_stale(other, study, grace=60) == []
        Heartbeat(storage, name).beat()
        [seen] = list_workers(other, study)
        assert abs(seen.beat_age) < 30
        with other.transaction() as session:
            (beat,) = session.execute(
                sa.select(attempts.c.beat).where(attempts.c.trial_id == trial)
            ).one()
            assert abs(other.now(session) - beat) < 30


@pytest.mark.parametrize(
    "error",
    [
        sa.exc.OperationalError("x", {}, sqlite3.OperationalError("database is locked")),
        sa.exc.OperationalError("x", {}, sqlite3.OperationalError("database or disk is full")),
        sa.exc.OperationalError("x", {}, sqlite3.OperationalError("unable to open database file")),
        sa.exc.TimeoutError("QueuePool limit of size 5 overflow 10 reached"),
        sa.exc.InterfaceError("x", {}, Exception("connection already closed")),
        sa.exc.DBAPIError("x", {}, Exception("network"), connection_invalidated=True),
    ],
    ids=["locked", "full", "gone", "pool", "closed", "cut"],
)
def test_errors_of_an_unavailable_database_are_recognised(error: Exception) -> None:
    assert is_away(error)


def test_a_reader_of_the_same_file_never_blocks_a_worker(tmp_path: Path) -> None:
    """The dashboard reads in a transaction that sees the state at its beginning."""
    storage = open_storage(storage_url(str(tmp_path / "s.db"), tmp_path), busy_timeout=0.0)
    optuna.create_study(storage=storage, study_name="s")
    study = storage.get_study_id_from_name("s")
    with closing(sqlite3.connect(tmp_path / "s.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM trials").fetchone() == (0,)
        for _ in range(20):
            [trial] = storage.claim_new(study, "w", 100)
            storage.set_trial_intermediate_value(trial, 1, 0.5)
            storage.set_trial_state_values(trial, TrialState.COMPLETE, [1.0])
        assert reader.execute("SELECT count(*) FROM trials").fetchone() == (0,)
    dashboard = open_to_read(storage.url)
    assert len(dashboard.optuna().get_all_trials(study)) == 20


def test_signals_are_forwarded_to_one_process_per_gpu_and_a_failure_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    real = subprocess.Popen

    def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        started.append(command)
        script = (
            "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(0)); "
            "open(sys.argv[1], 'w'); time.sleep(60 * (sys.argv[2] == '0')); sys.exit(3)"
        )
        return real(
            [sys.executable, "-c", script, str(tmp_path / command[-1]), command[-1]], **options
        )

    monkeypatch.setattr(launch.subprocess, "Popen", start)

    def stop() -> None:
        wait_for(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists())
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(RunError, match="the worker on GPU 1 failed"):
        launch.run_on_all(["train"], [["--gpu", "0"], ["--gpu", "1"]])
    thread.join()
    assert started == [
        [sys.executable, "-m", "sweepd", "train", "--gpu", str(index)] for index in range(2)
    ]


COUNTING = """
import os, pathlib, signal, sys, time
mine = pathlib.Path(sys.argv[1])
got = []
for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(signum, lambda *_: got.append(1))
(mine / "begun").touch()
until = time.monotonic() + 60
while not got and time.monotonic() < until:
    time.sleep(0.01)
time.sleep(0.5)
(mine / "signals").write_text(f"{len(got)} {os.getpgrp() == os.getpid()}")
"""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_of_the_terminal_reaches_each_gpus_worker_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signum: int
) -> None:
    """A terminal signals the whole foreground process group."""
    folders = [tmp_path / str(index) for index in range(2)]
    for folder in folders:
        folder.mkdir()
    real = subprocess.Popen

    def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        return real([sys.executable, "-c", COUNTING, str(tmp_path / command[-1])], **options)

    monkeypatch.setattr(launch.subprocess, "Popen", start)

    def parent() -> None:
        os.setsid()
        # Under nohup the tests ignore it, and then it is not forwarded.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        launch.run_on_all(["train"], [["--gpu", "0"], ["--gpu", "1"]])

    process = multiprocessing.get_context("fork").Process(target=parent)
    process.start()
    assert process.pid is not None
    wait_for(lambda: all((folder / "begun").exists() for folder in folders))
    os.killpg(process.pid, signum)
    process.join(60)
    assert process.exitcode == 0
    # Two equal signals may arrive as one. The terminal must not signal the workers' groups.
    assert [(folder / "signals").read_text() for folder in folders] == ["1 True", "1 True"]
