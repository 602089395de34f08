"""Identity of a recorded pid: containers with one host name, cloned machines, restarts."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import optuna
import psutil
import pytest

from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.database.storage import StudyStorage
from sweepd.optimize.study.database.tables import workers
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.recovery import processes
from sweepd.optimize.study.recovery.processes import identity, is_running, namespace, started
from sweepd.optimize.study.recovery.registration import (
    WorkerRecord,
    claim_closing,
    list_workers,
    register_worker,
)
from sweepd.optimize.study.recovery.stale_trials import recover_stale

UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
# Registers as a worker, claims a trial, prints its pid, and runs until its input ends.
CONTAINER = """
import json, os, signal, sys
from sweepd.optimize.study.recovery.stale_trials import recover_stale
from sweepd.optimize.study.recovery.registration import list_workers, register_worker
from sweepd.optimize.study.database.opening import open_storage
storage = open_storage(sys.argv[1])
study = storage.get_study_id_from_name("s")
signal.signal(signal.SIGTERM, lambda *_: os._exit(99))
name = register_worker(storage, study, alongside=False, say=print)
[alive] = [w.alive for w in list_workers(storage, study) if w.worker == name]
seen = len(recover_stale(storage, study))
[trial] = storage.claim_new(study, name, 9)
found = {"name": name, "trial": trial, "pid": os.getpid(), "alive": alive, "recovered": seen}
print(json.dumps(found), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def storage(tmp_path: Path) -> StudyStorage:
    storage = open_storage(storage_url(str(tmp_path / "s.db"), tmp_path))
    optuna.create_study(storage=storage, study_name="s", direction="maximize")
    return storage


def _can_unshare() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0


def test_a_process_is_identified_by_its_start_time() -> None:
    own = identity(os.getpid())
    assert is_running(os.getpid(), own) is True
    assert is_running(os.getpid(), f"{namespace()}/1") is False  # the pid was used again
    child = subprocess.Popen([sys.executable, "-c", "pass"], stdout=subprocess.DEVNULL)
    recorded = identity(child.pid)
    child.wait()
    assert is_running(child.pid, recorded) is False


@pytest.mark.parametrize(
    "recorded", ["another-boot:4026531836/7", "", "boot-id:123", "another-boot/5"]
)
def test_the_state_of_a_process_in_another_namespace_is_unknown(recorded: str) -> None:
    assert is_running(os.getpid(), recorded) is None


def test_a_process_that_exists_but_cannot_be_read_is_not_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with /proc mounted with hidepid, where other accounts' processes don't show."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        recorded = identity(child.pid)
        read = Path.read_text

        def hidden(path: Path, *arguments: str, **named: str) -> str:
            if str(path) == f"/proc/{child.pid}/stat":
                raise FileNotFoundError(path)
            return read(path, *arguments, **named)

        def nobody(pid: int) -> None:
            raise psutil.NoSuchProcess(pid)

        monkeypatch.setattr(Path, "read_text", hidden)
        monkeypatch.setattr(psutil, "Process", nobody)
        assert started(child.pid) == ""
        assert is_running(child.pid, recorded) is None
    finally:
        child.kill()
        child.wait()
    assert is_running(child.pid, recorded) is False


def test_without_proc_the_state_of_other_processes_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded = identity(os.getpid())
    monkeypatch.setattr(
        processes.os, "readlink", lambda _: "1"
    )  # the /proc of another PID namespace
    assert namespace() == identity(os.getpid()) == ""
    assert is_running(os.getpid(), recorded) is None
    monkeypatch.setattr(processes.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(processes.uuid, "getnode", lambda: 0x0242AC110002)
    assert namespace() == "Darwin:0242ac110002"
    monkeypatch.setattr(
        processes.uuid, "getnode", lambda: 1 << 40
    )  # made up, another one in every process
    assert namespace() == ""


def _recorded_elsewhere(
    storage: StudyStorage, change: Callable[[dict[str, object]], None]
) -> tuple[int, int]:
    """A worker that holds a trial, whose record is then changed. Returns the ids of study and
    trial.
    """
    study = storage.get_study_id_from_name("s")
    name = register_worker(storage, study, alongside=False, say=lambda _: None)
    [trial] = storage.claim_new(study, name, 1)
    values: dict[str, object] = {
        "pid": 2**22 + 1,
        "started": f"{namespace()}/1",
        "host": socket.gethostname(),
    }
    change(values)
    with storage.transaction() as session:
        session.execute(workers.update().values(**values))
    return study, trial


@pytest.mark.parametrize(
    "change",
    [
        {"started": f"{namespace().rpartition(':')[0]}:1/1"},
        {"started": "another-boot:4026531836/1"},
        {"started": "another-boot:1234"},
        {"host": "another-host"},
    ],
    ids=["container", "clone", "older version", "host"],
)
def test_only_the_grace_period_decides_about_workers_in_other_namespaces(
    storage: StudyStorage, change: dict[str, object]
) -> None:
    study, trial = _recorded_elsewhere(storage, lambda values: values.update(change))
    other = open_storage(storage.url)
    assert recover_stale(other, study, grace=3600) == []
    [seen] = list_workers(other, study)
    assert seen.alive is None
    assert not seen.is_here
    with storage.transaction() as session:
        session.execute(workers.update().values(state="closing"))
    new = register_worker(other, study, alongside=False, say=lambda _: None)
    assert not claim_closing(other, study, new)  # it may be at work
    time.sleep(0.01)
    assert [r.trial_id for r in recover_stale(other, study, grace=0.001)] == [trial]


def test_the_same_record_in_this_namespace_is_that_of_a_dead_worker(storage: StudyStorage) -> None:
    study, trial = _recorded_elsewhere(storage, lambda _: None)
    assert [r.trial_id for r in recover_stale(open_storage(storage.url), study, grace=3600)] == [
        trial
    ]


@pytest.mark.slow
@pytest.mark.skipif(not _can_unshare(), reason="PID namespaces need root")
def test_containers_with_equal_host_names_do_not_touch_each_others_trials_and_processes(
    storage: StudyStorage,
) -> None:
    study = storage.get_study_id_from_name("s")
    own = register_worker(storage, study, alongside=False, say=lambda _: None)
    held = storage.claim_new(study, own, 9)
    containers: list[subprocess.Popen[str]] = []
    try:
        said = []
        for _ in range(2):
            command = [*UNSHARE, sys.executable, "-c", CONTAINER, storage.url]
            containers.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            stdout = containers[-1].stdout
            assert stdout is not None
            said.append(json.loads(stdout.readline()))
            held.append(said[-1]["trial"])
        assert [s["pid"] for s in said] == [1, 1]
        assert [s["alive"] for s in said] == [True, True]
        assert [s["recovered"] for s in said] == [0, 0]
        assert recover_stale(open_storage(storage.url), study) == []
        seen = {w.worker: w.alive for w in list_workers(storage, study)}
        assert seen == {own: True, said[0]["name"]: None, said[1]["name"]: None}
        # A new worker can ask none of the three: two are in other namespaces, one is itself.
        asked: list[str] = []
        register_worker(storage, study, alongside=False, say=asked.append, give_up_after=0.5)
        assert asked == []
        assert [c.poll() for c in containers] == [None, None]
        assert {t.state.name for t in storage.get_all_trials(study)} == {"RUNNING"}
    finally:
        for container in containers:
            container.kill()
            container.communicate()


def test_workers_are_recorded_with_the_namespace_of_their_pid(storage: StudyStorage) -> None:
    study = storage.get_study_id_from_name("s")
    register_worker(storage, study, alongside=False, say=lambda _: None)
    [seen] = list_workers(storage, study)
    assert seen == WorkerRecord(
        seen.worker,
        socket.gethostname(),
        os.getpid(),
        identity(os.getpid()),
        False,
        "starting",
        seen.beat_age,
        {},
    )
    assert seen.alive is True
