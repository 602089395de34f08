"""Evidence of why a worker died, and what it means for its trials."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy as sa
from optuna.trial import TrialState

from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.database.storage import StudyStorage
from sweepd.optimize.study.database.tables import workers
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.record.keys import ATTEMPTS_KEY, CHECKPOINT_KEY
from sweepd.optimize.study.recovery import deaths, stale_trials
from sweepd.optimize.study.recovery.deaths import (
    KEPT_WITHOUT_EVIDENCE,
    MAX_DEATHS,
    Death,
    add_note,
    counted,
    has_stacks,
    is_suspect,
    memory_counters,
    ran_out_of_memory,
    read_crash,
)
from sweepd.optimize.study.recovery.heartbeat import Heartbeat
from sweepd.optimize.study.recovery.processes import namespace
from sweepd.optimize.study.recovery.registration import register_worker
from sweepd.optimize.study.recovery.stale_trials import Recovered, crash_file, recover_stale

CRASH = """
import os, signal, sys, threading
from pathlib import Path
from sweepd.optimize.study.recovery.deaths import CrashFile

def crash():
    os.kill(os.getpid(), getattr(signal, sys.argv[2]))

with CrashFile(Path(sys.argv[1])) as file:
    file.training([3, 4])
    if sys.argv[3] == "main":
        crash()
    elif sys.argv[3] == "other":
        import ctypes
        threading.Thread(target=lambda: ctypes.string_at(0)).start()
        threading.Event().wait(20)
"""


@pytest.mark.parametrize(
    ("name", "where", "what", "trials"),
    [
        ("SIGSEGV", "main", "Segmentation fault in crash (<string>:", (3, 4)),
        ("SIGABRT", "main", "Aborted in crash (<string>:", (3, 4)),
        ("SIGSEGV", "other", "Segmentation fault in string_at (", ()),
        ("SIGKILL", "main", "", None),
        ("SIGQUIT", "main", "", None),
    ],
)
def test_a_crash_file_names_the_crash_and_the_trials_in_training(
    tmp_path: Path, name: str, where: str, what: str, trials: tuple[int, ...] | None
) -> None:
    path = tmp_path / "crashes" / "w.txt"
    ended = subprocess.run([sys.executable, "-c", CRASH, str(path), name, where], timeout=60)
    assert ended.returncode < 0
    crash = read_crash(path)
    if trials is None:
        assert crash is None
        assert path.exists()
        assert has_stacks(path) == ("in crash" in path.read_text()) == (name == "SIGQUIT")
        return
    assert crash is not None
    assert crash.what.startswith(what)
    assert crash.trials == trials


def test_a_process_that_exits_normally_leaves_no_crash_file(tmp_path: Path) -> None:
    path = tmp_path / "crashes" / "w.txt"
    subprocess.run(
        [sys.executable, "-c", CRASH, str(path), "SIGSEGV", "nowhere"], check=True, timeout=60
    )
    assert not path.exists()
    assert read_crash(path) is None
    path.write_text("no JSON\nFatal Python error: Bus error\n\n")
    crash = read_crash(path)
    assert crash is not None
    assert crash.trials == ()


def _group(folder: Path, kills: int) -> None:
    (folder / "memory.events").write_text(f"low 0\nhigh 0\nmax 3\noom 1\noom_kill {kills}\n")


def test_the_counter_of_the_control_group_decides_that_of_the_machine_for_some_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deaths, "_group_of", lambda _: str(tmp_path))
    monkeypatch.setattr(deaths, "boot_id", lambda: "b")
    monkeypatch.setattr(deaths, "memory_kills", lambda: 7)
    _group(tmp_path, 2)
    before = memory_counters()
    assert before == {
        "boot": "b",
        "memory_kills": 7,
        "control_group": [str(tmp_path), tmp_path.stat().st_ino, 2],
    }
    assert not ran_out_of_memory(before, 1.0)
    monkeypatch.setattr(deaths, "memory_kills", lambda: 8)
    assert not ran_out_of_memory(before, 1.0), "another group's process"
    _group(tmp_path, 3)
    assert ran_out_of_memory(before, 1e6)
    elsewhere = {
        **before,
        "control_group": [str(tmp_path / "gone"), 1, 0],
    }  # a container that was made again
    assert ran_out_of_memory(elsewhere, 10.0)
    assert not ran_out_of_memory(elsewhere, 1e6)
    assert not ran_out_of_memory({**before, "boot": "another"}, 1.0)
    assert not ran_out_of_memory({}, 1.0)


def test_a_new_checkpoint_resets_the_deaths_that_count() -> None:
    together, alone, killed = (
        Death("x", frozenset({1, 2})),
        Death("x", frozenset({1})),
        Death("killed"),
    )
    history: list[dict[str, Any]] = []
    for death in (killed, together, killed, alone, alone):
        history = add_note(history, death.note(1, None))
    assert [entry.get("evidence") for entry in history] == [
        None,
        "in company",
        None,
        "alone",
        "alone",
    ]
    assert counted(history, None) == 2
    assert is_suspect({ATTEMPTS_KEY: history})
    checkpoint = {"rollouts": 30}
    assert counted(history, checkpoint) == 0
    assert not is_suspect({ATTEMPTS_KEY: history, CHECKPOINT_KEY: checkpoint})
    history = add_note(history, alone.note(1, checkpoint))
    assert counted(history, checkpoint) == 1
    assert "evidence" not in alone.note(2, None), "another trial than those in training"
    assert not is_suspect({})


def test_a_long_history_keeps_the_evidence_and_counts_the_rest() -> None:
    history = add_note([], Death("x", frozenset({1})).note(1, None))
    for number in range(1000):
        history = add_note(history, Death(f"killed {number}").note(1, None))
    assert len(history) == KEPT_WITHOUT_EVIDENCE + 1
    assert history[0]["evidence"] == "alone"
    assert history[1]["earlier"] == 1000 - KEPT_WITHOUT_EVIDENCE
    assert history[-1]["how"] == "killed 999"


@pytest.fixture
def storage(tmp_path: Path) -> StudyStorage:
    opened = open_storage(storage_url(str(tmp_path / "s.db"), tmp_path))
    optuna.create_study(storage=opened, study_name="s")
    return opened


def _die(storage: StudyStorage, trials: list[int], in_training: list[int]) -> str:
    """Record a dead worker that holds these trials and was training some of them.

    Returns:
        Its name.
    """
    study = storage.get_study_id_from_name("s")
    name = register_worker(storage, study, alongside=True, say=lambda _: None)
    for trial_id in trials:
        assert storage.claim_waiting(study, trial_id, name, 9)
    heartbeat = Heartbeat(storage, name, interval=60)
    heartbeat.info = {"trials": in_training}
    heartbeat.beat()
    with storage.transaction() as session:
        session.execute(
            workers.update().where(workers.c.worker == name).values(started=f"{namespace()}/1")
        )
    for trial_id in trials:
        storage.drop(trial_id)
    return name


@pytest.mark.parametrize("evidence", ["crash", "memory", "none"])
def test_deaths_count_only_with_evidence_and_alone(
    storage: StudyStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evidence: str
) -> None:
    study = storage.get_study_id_from_name("s")
    frozen = optuna.trial.create_trial(state=TrialState.WAITING)
    suspect, mate, asked = (storage.create_new_trial(study, frozen) for _ in range(3))
    monkeypatch.setattr(stale_trials, "ran_out_of_memory", lambda *_: evidence == "memory")
    (tmp_path / "crashes").mkdir()

    def die(trials: list[int], in_training: list[int]) -> dict[int, Recovered]:
        name = _die(storage, trials, in_training)
        text = f'{{"trials": {in_training}, "thread": 1}}\n'
        text += (
            "Fatal Python error: Bus error\n\nStack (most recent call first):\n"
            if evidence == "crash"
            else ""
        )
        crash_file(tmp_path, name).write_text(text)
        found = {taken.trial_id: taken for taken in recover_stale(storage, study, run_dir=tmp_path)}
        assert crash_file(tmp_path, name).exists() == (evidence == "crash")
        return found

    found = die([suspect, mate, asked], [0, 1])
    assert {t: r.deaths for t, r in found.items()} == {suspect: 0, mate: 0, asked: 0}
    suspects = [is_suspect(t.user_attrs) for t in storage.get_all_trials(study)]
    assert suspects == ([False] * 3 if evidence == "none" else [True, True, False])
    for death in range(1, MAX_DEATHS + 1):
        [taken] = die([suspect], [0]).values()
        assert taken.deaths == (0 if evidence == "none" else death)
        assert taken.quarantined == (taken.deaths == MAX_DEATHS)
    states = [t.state for t in storage.get_all_trials(study)]
    if evidence == "none":
        assert states == [TrialState.WAITING] * 3
        return
    assert states == [TrialState.FAIL, TrialState.WAITING, TrialState.WAITING]
    reason = storage.get_trial(suspect).user_attrs["sweepd:reason"]
    assert reason.startswith(f"quarantined: {MAX_DEATHS} workers died while they trained it alone")
    assert ("Bus error" if evidence == "crash" else "for lack of memory") in reason
    with storage.transaction() as session:
        assert session.execute(sa.select(sa.func.count()).select_from(workers)).scalar_one() == 0


def test_deaths_count_against_all_trials_of_a_population(
    storage: StudyStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = storage.get_study_id_from_name("s")
    frozen = optuna.trial.create_trial(state=TrialState.WAITING)
    members = [storage.create_new_trial(study, frozen) for _ in range(2)]
    monkeypatch.setattr(stale_trials, "ran_out_of_memory", lambda *_: True)
    for death in range(1, MAX_DEATHS + 1):
        _die(storage, members, [0, 1])
        found = recover_stale(storage, study, run_dir=tmp_path, populations=True)
        assert [one.deaths for one in found] == [death] * 2
        assert [one.quarantined for one in found] == [death == MAX_DEATHS] * 2
    for trial in storage.get_all_trials(study):
        assert trial.state == TrialState.FAIL
        reason = trial.user_attrs["sweepd:reason"]
        assert reason.startswith("quarantined: 3 workers died while they trained it in its popul")
