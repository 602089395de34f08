from __future__ import annotations

import gc
import itertools
import json
import math
import multiprocessing
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import optuna
import psutil
import pytest
import sqlalchemy as sa
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState

from sweepd.envs.support.database_file import NETWORK_FILE_SYSTEMS, file_system_of
from sweepd.envs.support.errors import InputError, TryAgainLater
from sweepd.optimize.study.database import opening
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.database.storage import StudyStorage, TrialWrite
from sweepd.optimize.study.database.tables import attempts, workers
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.recovery.heartbeat import Heartbeat
from sweepd.optimize.study.recovery.processes import identity, namespace
from sweepd.optimize.study.recovery.registration import (
    claim_closing,
    leave,
    list_workers,
    register_worker,
)
from sweepd.optimize.study.recovery.stale_trials import recover_stale
from tests.postgres_server import PostgresServer


@pytest.fixture
def study(storage: StudyStorage) -> optuna.Study:
    return optuna.create_study(storage=storage, study_name="s", direction="maximize")


def _id(storage: StudyStorage) -> int:
    return storage.get_study_id_from_name("s")


def _racer(url: str, names: list[str], total: int, out: Any) -> None:
    storage = open_storage(url)
    study = storage.get_study_id_from_name("s")
    taken: list[int] = []
    while True:
        waiting = [t._trial_id for t in storage.get_all_trials(study, states=(TrialState.WAITING,))]
        got = [t for t in waiting[:1] if storage.claim_waiting(study, t, names[0], total)]
        # Two at once: the total is exact where one of them would exceed it.
        got = got or storage.claim_new(study, names[0], total, 2)
        if not got and not waiting:
            break
        taken += got
        for trial_id in got:
            storage.set_trial_state_values(trial_id, TrialState.COMPLETE, [0.0])
    out.put(taken)


def test_concurrent_processes_claim_every_trial_once_and_stop_at_the_total(
    storage: StudyStorage, study: optuna.Study
) -> None:
    for _ in range(8):
        study.enqueue_trial({"x": 1.0})
    context = multiprocessing.get_context("fork")
    out = context.Queue()
    racers = [
        context.Process(target=_racer, args=(storage.url, [f"w{i}"], 20, out)) for i in range(2)
    ]
    for racer in racers:
        racer.start()
    taken = [trial for _ in racers for trial in out.get(timeout=120)]
    for racer in racers:
        racer.join(timeout=60)
    assert len(taken) == len(set(taken)) == 20
    trials = study.get_trials()
    assert [t.number for t in trials] == list(range(20))
    assert {t.state for t in trials} == {TrialState.COMPLETE}


def _opener(url: str, start: Any, out: Any) -> None:
    start.wait()
    try:
        out.put(len(open_storage(url).get_all_studies()))
    except BaseException as error:
        out.put(repr(error))


def test_a_new_database_can_be_opened_by_concurrent_processes(url: str) -> None:
    context = multiprocessing.get_context("fork")
    out, start = context.Queue(), context.Barrier(4)
    openers = [context.Process(target=_opener, args=(url, start, out)) for _ in range(4)]
    for opener in openers:
        opener.start()
    assert [out.get(timeout=60) for _ in openers] == [0] * 4
    for opener in openers:
        opener.join(timeout=60)


@pytest.mark.usefixtures("study")
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_the_check_of_the_token_is_in_the_transaction_of_the_write(storage: StudyStorage) -> None:
    """Between check and write, another connection finds the database locked."""
    [trial_id] = storage.claim_new(_id(storage), "w", 1)
    locked = []

    def probe(*_: Any, **__: Any) -> None:
        other = sqlite3.connect(
            storage.url.removeprefix("sqlite:///"), timeout=0.0, isolation_level=None
        )
        try:
            other.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            locked.append(True)
        finally:
            other.close()

    sa.event.listen(storage.engine, "before_cursor_execute", probe)
    storage.set_trial_user_attr(trial_id, "a", 1)
    assert len(locked) >= 3
    begun = []
    sa.event.listen(storage.engine, "begin", lambda _: begun.append(1))
    storage.set_trial_user_attr(trial_id, "a", 2)
    assert len(begun) == 1


RANGE = FloatDistribution(0.0, 1.0)
WRITES: dict[str, dict[str, Any]] = {
    "params": {"params": {"x": (0.5, RANGE), "y": (1.0, RANGE)}},
    "report": {"report": (2, 0.5), "attributes": {"a": 1}, "system": {"b": 2}},
    "complete": {"end": TrialState.COMPLETE, "values": [1.0, -math.inf], "attributes": {"a": 1}},
    "prune": {"end": TrialState.PRUNED, "attributes": {"a": 1}},
    "fail": {"end": TrialState.FAIL, "attributes": {"a": 1}},
}


class Cut(Exception):
    """Stands for kill -9, after which the database rolls back."""


@contextmanager
def failing_at(storage: StudyStorage, statement: int, error: Exception) -> Iterator[None]:
    """Raise the error once, before this statement; the commit is the last one."""
    left = statement

    def fail(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise error

    events = ("before_cursor_execute", "commit")
    for event in events:
        sa.event.listen(storage.engine, event, fail)
    try:
        yield
    finally:
        for event in events:
            sa.event.remove(storage.engine, event, fail)


def _written(storage: StudyStorage, trial_id: int) -> tuple[FrozenTrial, sa.Row[Any]]:
    """Return what the database has of a trial, without times and tokens."""
    with storage.transaction() as session:
        held = attempts.c.token != ""
        attempt = session.execute(
            sa.select(attempts.c.rung, held).where(attempts.c.trial_id == trial_id)
        ).one()
    trial = storage.get_trial(trial_id)
    trial.datetime_start = trial.datetime_complete = None
    trial._trial_id = trial.number = 0
    return trial, attempt


@pytest.mark.usefixtures("study")
@pytest.mark.parametrize("write", WRITES)
def test_a_write_is_whole_wherever_it_is_cut_off_and_retried_as_a_whole(
    storage: StudyStorage, write: str
) -> None:
    def begun() -> int:
        [trial_id] = storage.claim_new(_id(storage), "w", 100)
        storage.write_one(TrialWrite(trial_id, report=(1, 0.25)))
        return trial_id

    first = begun()
    storage.write_one(TrialWrite(first, **WRITES[write]))
    whole, storage.patience.limit = _written(storage, first), 60.0
    for statement in itertools.count(1):
        trial_id = begun()
        before = _written(storage, trial_id)
        retried = storage.patience.retries
        try:
            with failing_at(storage, statement, Cut()):
                storage.write_one(TrialWrite(trial_id, **WRITES[write]))
        except Cut:
            assert _written(storage, trial_id) == before
        else:
            break
        away = sa.exc.OperationalError("", {}, Exception("the server is away"))
        with failing_at(storage, statement, away):
            storage.write_one(TrialWrite(trial_id, **WRITES[write]))
        assert storage.patience.retries == retried + 1
        assert _written(storage, trial_id) == whole
    assert _written(storage, trial_id) == whole
    assert statement > 3


@pytest.mark.parametrize(
    ("state", "values"),
    [
        (TrialState.COMPLETE, [2.0]),
        (TrialState.COMPLETE, [-math.inf]),
        (TrialState.PRUNED, None),
        (TrialState.FAIL, None),
    ],
)
def test_a_trial_is_written_as_optuna_writes_it(
    storage: StudyStorage, study: optuna.Study, state: TrialState, values: list[float] | None
) -> None:
    ours, theirs = storage.claim_new(_id(storage), "w", 2, 2)
    params = {"x": (0.5, RANGE), "n": (1, CategoricalDistribution((8, 9)))}
    storage.write_one(TrialWrite(ours, params=params))
    trial = optuna.Trial(study, theirs)
    storage.set_trial_param(theirs, "x", 0.5, RANGE)
    storage.set_trial_param(theirs, "n", 1, CategoricalDistribution((8, 9)))
    for rung, value in enumerate((0.25, math.inf, -0.5), start=1):
        storage.write_one(TrialWrite(ours, report=(rung, value)))
        trial.report(value, rung)
    storage.write_one(TrialWrite(theirs, report=(3, -0.5)))
    storage.write_one(TrialWrite(ours, end=state, values=values))
    before = datetime.now()
    study.tell(trial, values, state=state)
    ended = [storage.get_trial(trial_id).datetime_complete for trial_id in (ours, theirs)]
    assert all(end is not None and abs(end - before) < timedelta(minutes=1) for end in ended)
    assert _written(storage, ours) == _written(storage, theirs)


def test_a_stale_attempt_returns_to_waiting_and_one_with_heartbeats_does_not(
    storage: StudyStorage, study: optuna.Study
) -> None:
    dead, alive = storage.claim_new(_id(storage), "w", 3, 2)
    never = study.ask()  # RUNNING, made by plain Optuna: it never beats
    other = open_storage(storage.url)
    assert recover_stale(other, _id(storage), grace=60) == []
    with storage.transaction() as session:
        session.execute(
            attempts.update().where(attempts.c.trial_id == dead).values(beat=attempts.c.beat - 100)
        )
        session.execute(
            attempts.update()
            .where(attempts.c.trial_id == never._trial_id)
            .values(beat=attempts.c.beat - 100)
        )
    back = recover_stale(other, _id(storage), grace=60)
    assert [r.trial_id for r in back] == [dead, never._trial_id]
    states = {t._trial_id: t.state for t in study.get_trials()}
    assert states == {
        dead: TrialState.WAITING,
        alive: TrialState.RUNNING,
        never._trial_id: TrialState.WAITING,
    }
    assert recover_stale(other, _id(storage), grace=60) == []
    assert other.claim_waiting(_id(storage), dead, "n", 3)  # a fresh beat comes with the claim
    assert recover_stale(storage, _id(storage), grace=60) == []


@pytest.mark.usefixtures("study")
def test_a_worker_whose_process_has_ended_holds_no_trials(storage: StudyStorage) -> None:
    dead = register_worker(storage, _id(storage), alongside=False, say=lambda _: None)
    [trial_id] = storage.claim_new(_id(storage), dead, 1)
    with storage.transaction() as session:
        session.execute(workers.update().values(pid=2**22 + 1))
    other = open_storage(storage.url)
    alive = register_worker(other, _id(other), alongside=False, say=lambda _: None)
    assert [r.trial_id for r in recover_stale(other, _id(other), grace=3600)] == [trial_id]
    assert [w.worker for w in list_workers(other, _id(other))] == [alive]


@pytest.mark.usefixtures("study")
def test_the_heartbeat_is_written_and_detects_lost_trials(storage: StudyStorage) -> None:
    name = register_worker(storage, _id(storage), alongside=False, say=lambda _: None)
    kept, lost = storage.claim_new(_id(storage), name, 2, 2)
    with storage.transaction() as session:
        session.execute(attempts.update().values(beat=0.0))
        session.execute(
            attempts.update().where(attempts.c.trial_id == lost).values(token="someone else's")
        )
    heartbeat = Heartbeat(storage, name, interval=60)
    heartbeat.beat()
    assert heartbeat.lost == {lost}
    with storage.transaction() as session:
        beats = dict(session.execute(sa.select(attempts.c.trial_id, attempts.c.beat)).all())
        assert beats[lost] == 0.0
        assert abs(beats[kept] - storage.now(session)) < 10
    leave(storage, name)
    assert list_workers(storage, _id(storage)) == []


@pytest.mark.usefixtures("study")
def test_a_new_worker_asks_the_running_one_to_drain_and_not_a_process_that_reused_its_pid(
    storage: StudyStorage,
) -> None:
    asked: list[str] = []
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import signal, time; signal.signal(15, signal.SIG_DFL); time.sleep(60)",
        ]
    )
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        first = register_worker(storage, _id(storage), alongside=False, say=asked.append)
        with storage.transaction() as session:
            session.execute(
                workers.update()
                .where(workers.c.worker == first)
                .values(pid=child.pid, started=identity(child.pid))
            )
            row = session.execute(sa.select(workers)).one()._asdict()
            session.execute(
                workers.insert().values(
                    **{
                        **row,
                        "worker": "reused",
                        "pid": bystander.pid,
                        "started": f"{namespace()}/1",
                    }
                )
            )
        beside = register_worker(storage, _id(storage), alongside=True, say=asked.append)
        assert asked == []
        assert child.poll() is None
        leave(storage, beside)
        register_worker(
            storage,
            _id(storage),
            alongside=False,
            say=asked.append,
            second_request_after=5,
            give_up_after=20,
        )
        assert child.wait(timeout=20) == -15
        assert str(child.pid) in asked[0]
        assert bystander.poll() is None
    finally:
        for process in (child, bystander):
            process.kill()
            process.wait()


@pytest.mark.usefixtures("study")
def test_a_worker_that_ignores_the_first_request_gets_a_second(storage: StudyStorage) -> None:
    asked: list[str] = []
    code = (
        "import signal, time, os\nn = []\ndef h(*_):\n    n.append(1)\n    len(n) > 1 and "
        "os._exit(7)\nsignal.signal(15, h)\nprint('up', flush=True)\nwhile True: time.sleep(0.05)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        first = register_worker(storage, _id(storage), alongside=False, say=asked.append)
        with storage.transaction() as session:
            session.execute(
                workers.update()
                .where(workers.c.worker == first)
                .values(pid=child.pid, started=identity(child.pid))
            )
        register_worker(
            storage,
            _id(storage),
            alongside=False,
            say=asked.append,
            second_request_after=0.5,
            give_up_after=20,
        )
        assert child.wait(timeout=20) == 7
        assert len(asked) == 2
    finally:
        child.kill()
        child.wait()


@pytest.mark.usefixtures("study")
def test_one_worker_at_a_time_closes_a_study(storage: StudyStorage) -> None:
    one, two = (
        register_worker(storage, _id(storage), alongside=True, say=lambda _: None) for _ in range(2)
    )
    assert claim_closing(storage, _id(storage), one)
    assert not claim_closing(storage, _id(storage), two)
    leave(storage, one)
    assert claim_closing(storage, _id(storage), two)


def test_network_file_systems_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = f"/dev/sda / ext4 rw 0 0\nserver:/x {tmp_path}/far\\040away nfs4 rw 0 0\n"
    assert file_system_of(tmp_path / "far away" / "deep" / "s.db", mounts) == "nfs4"
    assert file_system_of(tmp_path / "s.db", mounts) == "ext4"
    assert "nfs4" in NETWORK_FILE_SYSTEMS
    monkeypatch.setattr("sweepd.envs.support.database_file.file_system_of", lambda _: "nfs4")
    with pytest.raises(InputError, match="network file system"):
        open_storage(storage_url(str(tmp_path / "s.db"), tmp_path))
    assert not (tmp_path / "s.db").exists()


def test_an_unusable_database_is_refused_with_a_message(tmp_path: Path) -> None:
    noise = tmp_path / "noise.db"
    noise.write_bytes(b"no database at all" * 100)
    with pytest.raises(InputError, match="not a database"):
        open_storage(storage_url(str(noise), tmp_path))
    with pytest.raises(InputError, match="does not exist"):
        open_storage(storage_url(str(tmp_path / "none.db"), tmp_path), create=False)
    locked = tmp_path / "locked.db"
    holder = sqlite3.connect(locked, isolation_level=None)
    holder.execute("CREATE TABLE t (x)")
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(InputError, match="locked"):
        open_storage(storage_url(str(locked), tmp_path), busy_timeout=0.2)
    holder.close()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be used"):
        open_storage(storage_url(str(tmp_path / "file" / "s.db"), tmp_path))
    with pytest.raises(InputError, match="use a SQLite file"):
        storage_url("mysql://u:secret@h/d", tmp_path)


def test_passwords_stay_out_of_messages(tmp_path: Path) -> None:
    with pytest.raises(TryAgainLater, match="does not answer now") as refused:
        open_storage(storage_url("postgresql://me:secret@127.0.0.1:1/none", tmp_path))
    assert "secret" not in str(refused.value)


def test_a_server_that_refuses_is_distinguished_from_an_unavailable_one(
    postgresql: PostgresServer,
) -> None:
    for wrong in (postgresql.url.set(database="none"), postgresql.url.set(username="stranger")):
        with pytest.raises(InputError, match="does not exist"):
            open_storage(wrong.render_as_string(hide_password=False))


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_the_database_is_in_wal_mode(storage: StudyStorage) -> None:
    with sqlite3.connect(storage.url.removeprefix("sqlite:///")) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert json.dumps(storage.url)  # a plain URL, no secrets to render


def test_a_storage_that_is_no_longer_used_closes_its_connections(tmp_path: Path) -> None:
    storage = open_storage(storage_url(str(tmp_path / "s.db"), tmp_path))
    storage.get_all_studies()
    assert _open_files(tmp_path)
    del storage
    gc.collect()
    assert not _open_files(tmp_path)


def _open_files(folder: Path) -> list[str]:
    """Return the files of a folder that this process has open."""
    return [file.path for file in psutil.Process().open_files() if Path(file.path).parent == folder]


def test_tables_that_others_create_at_the_same_time_are_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker may lose the race twice: for Optuna's tables, and for those of sweepd."""
    races = [sa.exc.IntegrityError("", None, Exception("exists")) for _ in range(2)]

    def racing(*args: Any, **options: Any) -> StudyStorage:
        if races:
            raise races.pop()
        return StudyStorage(*args, **options)

    monkeypatch.setattr(opening, "StudyStorage", racing)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    assert open_storage(storage_url(str(tmp_path / "s.db"))).get_all_studies() == []
