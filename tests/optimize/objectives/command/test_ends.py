"""How programs end: with their worker, by signals and kills. Nothing is left of them."""

from __future__ import annotations

import fcntl
import functools
import json
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from sweepd.optimize.cli import train as train_command
from sweepd.optimize.cli.pause import pause
from sweepd.optimize.objectives.command import supervisor
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.record.trials import TrialRecord
from sweepd.optimize.study.study import StudyHandle
from sweepd.optimize.worker.worker import WorkerOptions
from tests.optimize.conftest import Running
from tests.optimize.objectives.command.programs import PYTHON, alive, pids, program
from tests.optimize.study_files import open_handle, wait_for

# It reports 30 steps, continues from its checkpoint, and starts a process in a session of its own.
TEXT = """
import subprocess
out, kept = env["SWEEPD_OUT"], env["SWEEPD_CHECKPOINT_DIR"] + "/step"
orphan = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]
child = subprocess.Popen(orphan, start_new_session=True)
open(out + "/pids", "a").write(f"{os.getpid()} {child.pid}\\n")
step = int(open(kept).read()) if os.path.exists(kept) else 0
while step < 30:
    step += 1
    report(step, params["lr"] * step)
    open(kept + ".new", "w").write(str(step))
    os.replace(kept + ".new", kept)
    time.sleep(0.02)
"""


def nothing_left(folder: Path) -> bool:
    return not any(map(alive, pids(folder)))


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Start `sweepd train` on a program with this text, in the test's folder."""
    (tmp_path / "space.toml").write_text("[params]\nlr = { low = 0.0, high = 1.0 }\n")
    started: list[Running] = []

    def start(text: str = TEXT, *flags: object) -> Running:
        env = f"command:{program(tmp_path, text)}"
        words = ["train", "--env", env, "--search-space", "space.toml", "--study-name", "s"]
        words += ["--sampler", "random", "--seeds", "1", "--fresh-seeds", "0", *map(str, flags)]
        started.append(Running(words, tmp_path, tmp_path / f"output-{len(started)}.txt"))
        return started[-1]

    yield start
    for running in started:
        running.process.kill()
        running.process.join()
    wait_for(lambda: nothing_left(tmp_path), 5.0)


def begun(folder: Path, count: int = 1) -> bool:
    """This many programs have reported something."""
    logs = folder.glob("runs/*/trial-*/seed-*/attempt-*.log")
    return sum(b"step" in log.read_bytes() for log in logs) >= count


def results(handle: StudyHandle) -> list[tuple[Any, ...]]:
    return [(t.number, t.state, t.params, t.value, t.intermediate_values) for t in handle.trials()]


def starts(handle: StudyHandle, number: int = 0) -> list[int]:
    found = TrialRecord.from_attributes(handle.trials()[number].user_attrs).starts
    assert found is not None
    return list(found[0])


FLAGS = ("--n-trials", 3, "--jobs", 2, "--trials-per-batch", 2, "--budget", 30, "--rungs", 3)
FLAGS += ("--pruner", "none")


def test_a_study_that_is_killed_equals_one_that_is_not(
    tmp_path: Path, train: Callable[..., Running]
) -> None:
    for signum in (signal.SIGKILL, signal.SIGINT):
        attempts = len(list(tmp_path.glob("runs/*/trial-*/seed-*/attempt-*.log")))
        running = train(TEXT, *FLAGS)
        wait_for(lambda: begun(tmp_path, attempts + 1))  # noqa: B023 -- called at once
        before = time.monotonic()
        running.signal(signum)
        running.process.join()
        assert running.process.exitcode == (-signal.SIGKILL if signum == signal.SIGKILL else 0)
        wait_for(lambda: nothing_left(tmp_path), 5.0)
        assert time.monotonic() - before < 8.0
    out = train(TEXT, *FLAGS).finish()
    assert "resumes from rung" in out or "requeued" in out
    killed = open_handle(tmp_path)
    assert len(starts(killed)) > 1
    assert starts(killed)[1] > 1  # it went on from its own checkpoint
    (tmp_path / "runs").rename(tmp_path / "killed")
    train(TEXT, *FLAGS).finish()
    whole = open_handle(tmp_path)
    stored = StudyHandle(open_storage(storage_url(None, tmp_path / "killed"), create=False), "s")
    assert results(stored) == results(whole)


EXCLUSIVE = """
import fcntl
lock = open(env["SWEEPD_CHECKPOINT_DIR"] + "/lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
open(env["SWEEPD_OUT"] + "/pids", "a").write(f"{os.getpid()}\\n")
for step in range(1, 500 if "attempt-1." in env["SWEEPD_REPORTS"] else 4):
    report(step, step)
    time.sleep(0.05)
"""


def test_a_program_ends_when_another_worker_takes_its_trial(
    tmp_path: Path, train: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty = functools.partial(WorkerOptions, beat_seconds=0.2, grace_seconds=1.0)
    monkeypatch.setattr(train_command, "WorkerOptions", hasty)
    suspended = train(EXCLUSIVE, "--n-trials", 1)
    wait_for(lambda: begun(tmp_path))
    wait_for(lambda: stopped_without_a_lock(suspended, tmp_path))
    [first] = pids(tmp_path)
    out = train(EXCLUSIVE, "--n-trials", 1, "--alongside").finish()
    assert "requeued, its worker died" in out
    assert not alive(first)  # though its own worker could not end it
    suspended.signal(signal.SIGCONT)
    assert "its copy here is dropped" in suspended.finish()
    [trial] = open_handle(tmp_path).trials()
    assert (trial.state.name, trial.value) == ("COMPLETE", 3.0)
    assert starts(open_handle(tmp_path)) == [1, 1]


def stopped_without_a_lock(running: Running, folder: Path) -> bool:
    """Stop the process, or let it go on if it holds the database's lock, as nobody could write."""
    running.signal(signal.SIGSTOP)
    path = make_url(storage_url(None, folder / "runs")).database
    assert path
    database = sqlite3.connect(path, timeout=0.2)
    try:
        database.execute("BEGIN IMMEDIATE")
        return True
    except sqlite3.OperationalError:
        running.signal(signal.SIGCONT)
        return False
    finally:
        database.close()


def test_a_lock_of_another_machine_is_respected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_LOCK_SECONDS", 0.1)
    with (tmp_path / supervisor.LOCK).open("w") as file:
        file.write(str(os.getpid()))  # there, it is that of the supervisor
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        assert not supervisor.lock(str(tmp_path))
    assert supervisor.lock(str(tmp_path))


def test_a_killed_supervisor_leaves_nothing_and_costs_no_trial(
    tmp_path: Path, train: Callable[..., Running]
) -> None:
    running = train(TEXT, "--n-trials", 1)
    wait_for(lambda: begun(tmp_path) and len(pids(tmp_path)) == 2)
    program_id, orphan = pids(tmp_path)
    parent = int(Path(f"/proc/{program_id}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(parent, signal.SIGKILL)
    wait_for(lambda: not alive(program_id) and not alive(orphan), 5.0)
    running.finish()
    handle = open_handle(tmp_path)
    assert [trial.state.name for trial in handle.trials()] == ["COMPLETE"]
    assert len(starts(handle)) == 2


def test_a_program_that_ignores_sigterm_is_killed_after_the_grace_period(
    tmp_path: Path, train: Callable[..., Running]
) -> None:
    text = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + TEXT.replace("0.02", "60")
    running = train(text, "--n-trials", 1, "--job-grace", 0.5)
    wait_for(lambda: begun(tmp_path))
    running.signal(signal.SIGTERM)
    assert "requeued at step 1 of" in running.finish(seconds=10.0)
    assert nothing_left(tmp_path)
    assert [trial.state.name for trial in open_handle(tmp_path).trials()] == ["WAITING"]


def test_a_program_may_save_its_work_when_it_is_asked_to_end(
    tmp_path: Path, train: Callable[..., Running]
) -> None:
    text = """
kept = env["SWEEPD_CHECKPOINT_DIR"] + "/saved"
def save(*_):
    open(kept, "w").write("7")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
report(int(open(kept).read()) if os.path.exists(kept) else 1, 1)
if not os.path.exists(kept): time.sleep(60)
"""
    running = train(text, "--n-trials", 1)
    wait_for(lambda: begun(tmp_path))
    running.signal(signal.SIGINT)
    running.finish(seconds=10.0)
    train(text, "--n-trials", 1).finish()
    assert starts(open_handle(tmp_path)) == [1, 7]


def test_a_paused_study_ends_its_programs(tmp_path: Path, train: Callable[..., Running]) -> None:
    running = train(TEXT.replace("0.02", "60"), "--n-trials", 1)
    wait_for(lambda: begun(tmp_path))
    pause("s", None, tmp_path / "runs", 30.0, "")
    assert nothing_left(tmp_path)
    assert not running.ended


def test_a_second_signal_ends_worker_and_programs_at_once(
    tmp_path: Path, train: Callable[..., Running]
) -> None:
    text = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + TEXT.replace("0.02", "60")
    running = train(text, "--n-trials", 1, "--job-grace", 60)
    wait_for(lambda: begun(tmp_path))
    running.signal(signal.SIGINT)
    wait_for(lambda: "SIGINT" in running.output.read_text())
    running.signal(signal.SIGINT)
    running.process.join(5.0)
    assert running.process.exitcode == 128 + signal.SIGINT
    wait_for(lambda: nothing_left(tmp_path), 5.0)


# -- the supervisor alone


def supervised(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """A supervisor without limits, of a program of these words, or of `own.py`."""
    own = [*PYTHON.split(), supervisor.__file__, "30", "0", "0", str(folder / "log")]
    return subprocess.Popen(
        [*own, *(words or [*PYTHON.split(), str(folder / "own.py")])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def status(process: subprocess.Popen[bytes]) -> int:
    """Wait for the program's end; return its status."""
    assert process.stdout is not None
    outcome = json.loads(process.stdout.read())
    assert process.wait(5) == 0
    assert outcome["limit"] == ""
    return int(outcome["status"])


@pytest.mark.parametrize("own", [False, True])
def test_a_stop_reaches_all_that_a_program_has_started(tmp_path: Path, *, own: bool) -> None:
    text = f"""
import subprocess, sys, time
text = "import time\\nwhile True: print(1, flush=True); time.sleep(0.01)"
subprocess.Popen([sys.executable, "-I", "-S", "-c", text], start_new_session={own})
time.sleep(60)
"""
    (tmp_path / "own.py").write_text(text)
    process = supervised(tmp_path)
    log = tmp_path / "log"
    wait_for(lambda: log.exists() and log.stat().st_size > 4, 5.0)
    assert process.stdin is not None
    process.stdin.write(supervisor.STOP)
    process.stdin.flush()
    time.sleep(0.1)
    size = log.stat().st_size
    time.sleep(0.1)
    assert log.stat().st_size == size
    process.stdin.write(supervisor.CONTINUE)
    process.stdin.flush()
    wait_for(lambda: log.stat().st_size > size, 5.0)
    process.stdin.write(supervisor.STOP + supervisor.TERMINATE)
    process.stdin.flush()
    assert status(process) == -signal.SIGTERM


def test_what_a_program_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    text = """
import subprocess, sys
for own in (False, True):
    words = [sys.executable, "-I", "-S", "-c", "import os, time; os.fork(); time.sleep(600)"]
    child = subprocess.Popen(words, start_new_session=own)
    print(child.pid, flush=True)
"""
    (tmp_path / "own.py").write_text(text)
    assert status(supervised(tmp_path)) == 0
    left = [int(pid) for pid in (tmp_path / "log").read_text().split()]
    assert len(left) == 2
    assert not any(map(alive, left))


def test_a_program_has_the_usual_signals_and_no_input(tmp_path: Path) -> None:
    script = "cat; ps -o sid= $$; yes | head -1; echo ${PIPESTATUS[0]} $$"
    assert status(supervised(tmp_path, "bash", "-c", script)) == 0
    sid, line, ended = (tmp_path / "log").read_text().splitlines()
    # 141: `yes` was ended by SIGPIPE, as in a terminal.
    assert (line, ended) == ("y", f"141 {sid.strip()}")


def test_a_program_that_cannot_be_executed_says_so(tmp_path: Path) -> None:
    (tmp_path / "none").touch(0o644)
    assert status(supervised(tmp_path, str(tmp_path / "none"))) == 127
    assert "none cannot be started: Permission denied" in (tmp_path / "log").read_text()
