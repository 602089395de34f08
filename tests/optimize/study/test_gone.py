"""Other programs finish or take trials during training, or delete study, database or folder."""

from __future__ import annotations

import errno
import functools
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import optuna
import pytest
import sqlalchemy as sa
from optuna.trial import TrialState

from sweepd.envs.support.errors import RunError
from sweepd.optimize.cli import train as train_command
from sweepd.optimize.objectives.members.trainer import Trainer
from sweepd.optimize.study.database.gone import StudyGone
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.database.storage import StudyStorage, TrialLost, TrialWrite
from sweepd.optimize.study.database.tables import attempts, workers
from sweepd.optimize.study.pause import PauseWatch, pause_study
from sweepd.optimize.study.record.keys import UID_KEY
from sweepd.optimize.study.recovery import heartbeat as heartbeats
from sweepd.optimize.study.recovery.heartbeat import Heartbeat
from sweepd.optimize.study.recovery.registration import list_workers, register_worker
from sweepd.optimize.study.recovery.stale_trials import recover_stale
from sweepd.optimize.study.recovery.stall import Progress
from sweepd.optimize.study.study import Plan, StudyHandle
from sweepd.optimize.worker.reporting import TrialReporter
from sweepd.optimize.worker.worker import Worker, WorkerOptions
from tests.optimize.conftest import Running, Sweepd
from tests.optimize.study_files import count, hold, open_handle, training_begun, wait_for

ENDLESS = ("--budget", 200_000, "--pruner", "none", "--sampler", "random")


def _make_study(storage: StudyStorage, uid: str) -> int:
    study = optuna.create_study(storage=storage.url, study_name="s", direction="maximize")
    study.set_user_attr(UID_KEY, uid)
    storage.known_as(study._study_id, "s", uid)
    return study._study_id


def _rows(storage: StudyStorage) -> int:
    with storage.transaction() as session:
        tables = (attempts, workers)
        return sum(
            session.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
            for table in tables
        )


def _plain(storage: StudyStorage) -> optuna.Study:
    """The study in a script that uses only Optuna."""
    return optuna.load_study(study_name="s", storage=storage.url)


def _age(storage: StudyStorage, seconds: float) -> None:
    with storage.transaction() as session:
        session.execute(
            attempts.update().where(attempts.c.beat > 0).values(beat=attempts.c.beat - seconds)
        )


# -- trials


@pytest.mark.parametrize("fate", ["told", "put back", "deleted"])
def test_a_trial_that_another_program_changed_is_lost_and_not_written_to(
    storage: StudyStorage, fate: str
) -> None:
    study = _make_study(storage, "a")
    name = register_worker(storage, study, alongside=False, say=lambda _: None)
    changed, kept = storage.claim_new(study, name, 2, 2)
    plain = _plain(storage)
    if fate == "told":
        plain.tell(0, 1.0)
    elif fate == "put back":
        plain._storage.set_trial_state_values(changed, TrialState.WAITING)
    else:
        with storage.transaction() as session:
            session.execute(sa.text(f"DELETE FROM trials WHERE trial_id = {changed}"))
    for write in (
        lambda: storage.set_trial_user_attr(changed, "a", 1),
        lambda: storage.set_trial_user_attrs(changed, {"a": 1}),
        lambda: storage.set_trial_intermediate_value(changed, 1, 0.5),
        lambda: storage.set_trial_state_values(changed, TrialState.COMPLETE, [2.0]),
        lambda: storage.write_one(TrialWrite(changed, report=(1, 0.5))),
        lambda: storage.write_one(TrialWrite(changed, end=TrialState.COMPLETE, values=[2.0])),
    ):
        with pytest.raises(TrialLost):
            write()
    heartbeat = Heartbeat(storage, name, interval=60)
    heartbeat.beat()
    assert heartbeat.lost == {changed}
    said = {
        "told": "was set to COMPLETE by another program",
        "put back": "was given to another worker",
    }
    assert storage.give_up(changed) == said.get(fate, "was deleted")
    assert list(storage.held()) == [kept]
    storage.set_trial_state_values(kept, TrialState.COMPLETE, [3.0])
    with storage.transaction() as session:
        assert session.execute(sa.select(attempts.c.token)).scalars().all() in (["", ""], [""])


def test_a_trial_taken_by_a_plain_optuna_script_gets_a_first_heartbeat(
    storage: StudyStorage,
) -> None:
    study = _make_study(storage, "a")
    [trial] = storage.claim_new(study, "w", 1)
    other = open_storage(storage.url)
    for _ in range(2):
        _age(storage, 1000)
        if trial in storage.held():
            storage.set_trial_state_values(trial, TrialState.WAITING)
        assert _plain(storage).ask()._trial_id == trial
        assert recover_stale(other, study, grace=60) == []
        _age(storage, 50)
        assert recover_stale(other, study, grace=60) == []
        _age(storage, 50)  # plain scripts do not beat
        assert [r.trial_id for r in recover_stale(other, study, grace=60)] == [trial]
    assert storage.claim_waiting(study, trial, "w", 1)
    assert recover_stale(other, study, grace=60) == []


def test_an_attempt_released_by_an_older_version_is_not_stale(storage: StudyStorage) -> None:
    """The worker and its last heartbeat are still in the row."""
    study = _make_study(storage, "a")
    [trial] = storage.claim_new(study, "w", 1)
    storage.set_trial_state_values(trial, TrialState.WAITING)
    with storage.transaction() as session:
        session.execute(attempts.update().values(worker="w", beat=1000.0))
    assert _plain(storage).ask()._trial_id == trial
    assert recover_stale(open_storage(storage.url), study, grace=60) == []


# -- studies


def test_a_deleted_study_is_detected_and_leaves_no_rows(storage: StudyStorage) -> None:
    study = _make_study(storage, "a")
    name = register_worker(storage, study, alongside=False, say=lambda _: None)
    [trial] = storage.claim_new(study, name, 5)
    with Heartbeat(storage, name, interval=60) as heartbeat:
        optuna.delete_study(study_name="s", storage=storage.url)
        heartbeat.try_beat()
        assert heartbeat.gone is not None
        assert "study 's' was deleted" in str(heartbeat.gone)
        for use in (
            lambda: storage.claim_new(study, name, 5),
            lambda: storage.claim_waiting(study, trial, name, 5),
            lambda: recover_stale(storage, study),
            lambda: register_worker(storage, study, alongside=False, say=lambda _: None),
        ):
            with pytest.raises(StudyGone):
                use()
        with pytest.raises(TrialLost):
            storage.set_trial_user_attr(trial, "a", 1)
    open_storage(storage.url)  # where ids are not used again, rows are deleted at the next opening
    assert _rows(storage) == 0


def test_a_recreated_study_inherits_nothing(storage: StudyStorage) -> None:
    old = _make_study(storage, "a")
    name = register_worker(storage, old, alongside=False, say=lambda _: None)
    for _ in range(3):
        assert storage.claim_new(old, name, 3)
    with storage.transaction() as session:
        session.execute(attempts.update().values(rung=7, beat=1.0))
    heartbeat = Heartbeat(storage, name, interval=60)
    with heartbeat:
        other = open_storage(storage.url)  # before, since opening deletes what is left over
        optuna.delete_study(study_name="s", storage=storage.url)
        new = _make_study(other, "b")
        assert list_workers(other, new) == []
        for _ in range(2):
            _plain(other).enqueue_trial({})
        waiting = [t._trial_id for t in other.get_all_trials(new)]
        assert other.claim_waiting(new, waiting[0], "w", 5)
        [third] = other.claim_new(new, "w", 5)
        with other.transaction() as session:
            found = sa.select(attempts.c.trial_id, attempts.c.rung).where(
                attempts.c.trial_id.in_([*waiting, third])
            )
            rungs = dict(session.execute(found).all())
        assert rungs == {waiting[0]: 0, third: 0}
        # The worker of the deleted study neither joins the new one nor comes back into its list.
        heartbeat.try_beat()
        assert heartbeat.gone is not None
        with pytest.raises(StudyGone):
            storage.claim_new(old, name, 9)
        assert list_workers(other, new) == []
    assert {t.state for t in other.get_all_trials(new)} == {TrialState.RUNNING, TrialState.WAITING}


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_rows_of_a_database_without_triggers_are_deleted_when_it_is_opened(
    storage: StudyStorage,
) -> None:
    study = _make_study(storage, "a")
    register_worker(storage, study, alongside=False, say=lambda _: None)
    assert storage.claim_new(study, "w", 1)
    with closing(sqlite3.connect(storage.url.removeprefix("sqlite:///"))) as older:
        for (trigger,) in older.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall():
            older.execute(f"DROP TRIGGER {trigger}")
        older.commit()
    optuna.delete_study(study_name="s", storage=storage.url)
    assert _rows(storage) == 2
    assert _rows(open_storage(storage.url)) == 0


def test_a_worker_whose_record_was_deleted_writes_it_again(storage: StudyStorage) -> None:
    study = _make_study(storage, "a")
    name = register_worker(storage, study, alongside=True, say=lambda _: None)
    with Heartbeat(storage, name, interval=60) as heartbeat:
        [before] = list_workers(storage, study)
        with storage.transaction() as session:
            session.execute(workers.delete())
        heartbeat.beat()
        [again] = list_workers(storage, study)
    assert (again.worker, again.pid, again.started) == (name, before.pid, before.started)


def test_workers_on_other_machines_are_forgotten_after_an_hour_without_heartbeats(
    storage: StudyStorage,
) -> None:
    study = _make_study(storage, "a")
    for age in (1800, 7200):
        name = register_worker(storage, study, alongside=True, say=lambda _: None)
        with storage.transaction() as session:
            own = workers.update().where(workers.c.worker == name)
            session.execute(own.values(host="elsewhere", beat=workers.c.beat - age))
    recover_stale(storage, study)
    [left] = list_workers(storage, study)
    assert 1700 < left.beat_age < 1900


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("how", ["deleted", "moved", "replaced"])
def test_a_deleted_or_replaced_database_file_is_detected(
    storage: StudyStorage, tmp_path: Path, how: str
) -> None:
    study = _make_study(storage, "a")
    name = register_worker(storage, study, alongside=False, say=lambda _: None)
    [trial] = storage.claim_new(study, name, 1)
    with Heartbeat(storage, name, interval=60) as heartbeat:
        if how == "moved":
            (tmp_path / "s.db").rename(tmp_path / "t.db")
        else:
            for file in tmp_path.glob("s.db*"):
                file.unlink()
        if how == "replaced":
            _make_study(open_storage(storage.url), "b")
        heartbeat.try_beat()
        assert heartbeat.gone is not None
        said = "replaced by another file" if how == "replaced" else "deleted or moved"
        assert f"{tmp_path / 's.db'} was {said}" in str(heartbeat.gone)
        for use in (
            lambda: storage.claim_new(study, name, 1),
            lambda: storage.set_trial_user_attr(trial, "a", 1),
            lambda: storage.set_trial_state_values(trial, TrialState.WAITING),
        ):
            with pytest.raises(StudyGone):
                use()
        storage.engine.dispose()
        with pytest.raises(StudyGone):
            storage.get_all_studies()
        assert (tmp_path / "s.db").exists() == (how == "replaced")


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_file_that_cannot_be_inspected_does_not_count_as_deleted(
    storage: StudyStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = _make_study(storage, "a")
    name = register_worker(storage, study, alongside=False, say=lambda _: None)
    path, stat = Path(storage.url.removeprefix("sqlite:///")), os.stat

    def failing(file: object, *arguments: object, **named: object) -> os.stat_result:
        if file == path:
            raise OSError(errno.EIO, "Input/output error")
        return stat(file, *arguments, **named)  # type: ignore[call-overload, no-any-return]

    with Heartbeat(storage, name, interval=60) as heartbeat:
        monkeypatch.setattr(os, "stat", failing)
        beaten = heartbeat.beaten
        heartbeat.try_beat()
        [trial] = storage.claim_new(study, name, 1)
        monkeypatch.undo()
        assert heartbeat.gone is None
        assert heartbeat.beaten > beaten
        assert list(storage.held()) == [trial]


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_system_errors_do_not_end_the_threads_of_heartbeat_and_pause(
    storage: StudyStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = _make_study(storage, "a")
    name = register_worker(storage, study, alongside=False, say=lambda _: None)
    said = []

    def full(text: str) -> None:
        said.append(text)
        raise OSError(errno.ENOSPC, "No space left on device")

    def too_many_files() -> dict[str, int]:
        raise OSError(errno.EMFILE, "Too many open files")

    with (
        Heartbeat(storage, name, 0.01, Progress(0.0), full) as heartbeat,
        PauseWatch(storage, study, 0.01) as pause,
    ):
        wait_for(lambda: said)
        beaten = heartbeat.beaten
        wait_for(lambda: heartbeat.beaten > beaten)  # although the stall could not be logged
        with monkeypatch.context() as patch:
            patch.setattr(heartbeats, "memory_counters", too_many_files)
            wait_for(lambda: "Too many open files" in heartbeat.last_error)
            patch.setattr(storage, "transaction", too_many_files)
            time.sleep(0.1)
        wait_for(lambda: not heartbeat.last_error)
        pause_study(storage, study)
        wait_for(lambda: pause.paused)


# -- workers


@pytest.fixture
def attentive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers send heartbeats and check for a pause five times a second."""
    monkeypatch.setattr(
        train_command, "WorkerOptions", functools.partial(WorkerOptions, beat_seconds=0.2)
    )


def _ended_with_a_sentence(worker: Running) -> str:
    out = worker.finish(1)
    assert "Traceback" not in out
    return out


@pytest.mark.slow
@pytest.mark.usefixtures("attentive")
def test_other_trials_of_a_batch_continue_after_a_program_finishes_one(
    market: Path, sweepd: Sweepd, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(monkeypatch, Trainer, "advance", market)
    worker = sweepd("train", "--n-trials", 3, "--pruner", "none", "--sampler", "random")
    wait_for((market / "advance.reached").exists)
    handle = open_handle(market)
    handle.study.tell(1, state=TrialState.FAIL)
    (market / "advance.go").touch()
    out = worker.finish()
    assert "trial 1 was set to FAIL by another program meanwhile; its copy here is dropped" in out
    trials = handle.trials()
    assert [t.state for t in trials] == [TrialState.COMPLETE, TrialState.FAIL, TrialState.COMPLETE]
    assert [t.number for t in trials if t.user_attrs.get("sweepd:reason")] == []
    assert count(market, "SELECT count(*) FROM sweepd_attempts WHERE token != ''") == 0
    assert not list(handle.trial_dir(1).glob("checkpoint-*"))


@pytest.mark.slow
@pytest.mark.parametrize("step", ["report", "end"])
def test_another_program_may_finish_a_trial_at_any_step_of_a_rung(
    market: Path, sweepd: Sweepd, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The change happens just before the worker's own step."""
    real: Callable[..., object] = getattr(TrialReporter, step)

    def tell_first(own: TrialReporter, *arguments: object) -> object:
        handle = own.handle
        if (
            handle.trials()[0].state == TrialState.RUNNING
            and handle.trials()[0].intermediate_values.get(2) is not None
        ):
            optuna.load_study(study_name="s", storage=handle.storage.url).tell(0, 0.0)
        return real(own, *arguments)

    monkeypatch.setattr(TrialReporter, step, tell_first)
    out = sweepd("train", "--n-trials", 2, "--pruner", "none", "--sampler", "random").finish()
    assert "trial 0 was set to COMPLETE by another program" in out
    assert {t.state for t in open_handle(market).trials()} == {TrialState.COMPLETE}
    assert open_handle(market).trials()[0].value == 0.0


@pytest.mark.slow
@pytest.mark.usefixtures("attentive")
def test_a_deleted_study_ends_its_worker_with_a_sentence(market: Path, sweepd: Sweepd) -> None:
    worker = sweepd("train", "--n-trials", 3, *ENDLESS)
    wait_for(lambda: training_begun(market))
    optuna.delete_study(study_name="s", storage=f"sqlite:///{market}/runs/sweepd.db")
    out = _ended_with_a_sentence(worker)
    assert (
        "study 's' was deleted from its database while this process worked on it: this worker stops"
        in out
    )
    assert "another worker" not in out
    for table in (
        "trials",
        "studies",
        "sweepd_attempts",
        "sweepd_workers",
        "trial_user_attributes",
    ):
        assert count(market, f"SELECT count(*) FROM {table}") == 0


@pytest.mark.slow
def test_a_study_may_be_deleted_at_any_step_of_a_rung(
    market: Path, sweepd: Sweepd, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in ("report", "end"):
        with monkeypatch.context() as patch:
            real: Callable[..., object] = getattr(TrialReporter, step)

            def delete_first(
                own: TrialReporter, *arguments: object, real: Callable[..., object] = real
            ) -> object:
                optuna.delete_study(study_name="s", storage=own.handle.storage.url)
                return real(own, *arguments)

            patch.setattr(TrialReporter, step, delete_first)
            out = _ended_with_a_sentence(sweepd("train", "--n-trials", 2, "--pruner", "none"))
        assert "study 's' was deleted" in out, step
        assert count(market, "SELECT count(*) FROM sweepd_attempts") == 0


@pytest.mark.slow
@pytest.mark.usefixtures("attentive")
def test_a_worker_whose_database_is_deleted_with_everything_stops_and_writes_nothing(
    market: Path, sweepd: Sweepd
) -> None:
    worker = sweepd("train", "--n-trials", 3, *ENDLESS)
    wait_for(lambda: training_begun(market))
    shutil.rmtree(market / "runs")
    out = _ended_with_a_sentence(worker)
    assert f"the database {market}/runs/sweepd.db was deleted or moved" in out
    assert "requeued" not in out
    assert not (market / "runs").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("attentive")
def test_a_deleted_folder_is_reported_and_recreated(
    market: Path, sweepd: Sweepd, monkeypatch: pytest.MonkeyPatch
) -> None:
    rung = Worker._finish_rung

    def delete_once(own: Worker, *arguments: object) -> object:
        if not (market / "deleted").exists() and own.telemetry.done:
            (market / "deleted").touch()
            own.records.wait()
            shutil.rmtree(own.handle.run_dir)
        return rung(own, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Worker, "_finish_rung", delete_once)
    out = sweepd("train", "--n-trials", 2, "--trials-per-batch", 1, "--pruner", "none").finish()
    handle = open_handle(market)
    assert f"the folder {handle.run_dir} was deleted; the files of 1 complete trial are lost" in out
    assert {t.state for t in handle.trials()} == {TrialState.COMPLETE}
    assert [(handle.trial_dir(n) / "members.safetensors").exists() for n in range(2)] == [
        False,
        True,
    ]


@pytest.mark.slow
def test_a_worker_ends_only_at_the_total(
    market: Path, sweepd: Sweepd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker puts a trial back between this one's request and its check of the total."""
    sweepd("train", "--n-trials", 1, "--trials-per-batch", 1).finish()
    open_handle(market).study.enqueue_trial({})
    ask, asked = StudyHandle.ask_batch, []

    def nothing_at_first(handle: StudyHandle, *arguments: object) -> list[Plan]:
        asked.append(1)
        return [] if len(asked) == 1 else ask(handle, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(StudyHandle, "ask_batch", nothing_at_first)
    sweepd("train", "--n-trials", 2, "--trials-per-batch", 1).finish()
    assert [t.state.is_finished() for t in open_handle(market).trials()] == [True, True]


def test_a_deleted_study_is_a_run_error() -> None:
    assert issubclass(StudyGone, RunError)
