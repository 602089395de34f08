"""Kill and suspend workers of a study at random, and audit the finished study.

A worker is a forked process that runs `sweepd train` on a tiny study. Some workers are killed after
a random time. Others kill themselves at a random write: before a file is synced, before it is
renamed, before or after a transaction commits. Others are suspended for longer than the grace
period and then continue. Every worker logs which trials it trains under which tokens, so that the
audit can find trials that two workers trained at the same time.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from optuna.trial import FrozenTrial, TrialState

from sweepd.optimize.cli import train as train_command
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.database.storage import StudyStorage
from sweepd.optimize.study.database.tables import attempts
from sweepd.optimize.study.study import StudyHandle
from sweepd.optimize.worker.telemetry import Activity
from sweepd.optimize.worker.worker import WorkerOptions
from tests.chaos.kinds import Kind
from tests.optimize.conftest import run_command

BEAT, GRACE = 0.2, 1.5
GIVE_UP = 1200.0  # seconds; a study takes about one minute on an idle machine
WAYS = ("clock", "sync", "name", "commit", "committed", "suspend")
FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)


@dataclass
class Figures:
    """Results of a chaos run.

    Attributes:
        rounds: number of studies.
        trials: number of their trials.
        kills: number of killed workers, by way of dying.
        suspended: number of suspended workers.
        retrained: number of trials that were trained again without disturbance, for comparison.
        seconds: duration.
        problems: one sentence for each violated guarantee.
    """

    rounds: int = 0
    trials: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    suspended: int = 0
    retrained: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


def run_chaos(
    folder: Path,
    url: str,
    kind: Kind,
    *,
    kills: int,
    trials: int = 12,
    at_once: int = 3,
    seed: int = 0,
    seconds: float = 3600.0,
    say: Callable[[str], None] = print,
) -> Figures:
    """Run studies one after the other until enough workers were killed, and audit each study.

    Args:
        folder: working directory of the workers.
        url: database.
        kind: of the studies; `Kind.prepare` was called.
        kills: number of workers to kill.
        trials: trials per study.
        at_once: number of concurrent workers.
        seed: seed of the kills.
        seconds: time after which no new study is started.
        say: prints one line.
    """
    figures, rng, began = Figures(), random.Random(seed), time.monotonic()
    while sum(figures.kills.values()) < kills and time.monotonic() - began < seconds:
        name = f"r{figures.rounds}"
        _round(folder, url, kind, name, trials, at_once, kills, rng, figures)
        figures.rounds += 1
        figures.trials += trials
        run_one(
            folder, url, kind, name, trials
        )  # has nothing to train, and completes missing files
        figures.problems += audit(folder, url, kind, name, trials, figures)
        say(
            f"study {name}: {trials} trials; so far {sum(figures.kills.values())} kills, "
            f"{figures.suspended} suspensions, problems: {figures.problems or 'none'}"
        )
    figures.seconds = time.monotonic() - began
    return figures


# -- workers and their ends


def run_one(
    folder: Path, url: str, kind: Kind, name: str, trials: int, flags: Sequence[str] = ()
) -> None:
    """Run one more worker without disturbance."""
    trail = folder / "trails" / f"{name}-last.txt"
    _start(folder, url, kind, name, trials, trail, "none", 0, flags).join()


def run_evictions(
    folder: Path,
    url: str,
    kind: Kind,
    *,
    kills: int,
    trials: int = 24,
    at_once: int = 2,
    interval: tuple[float, float] = (3.0, 10.0),
    budget: int = 20_000,
    seed: int = 0,
    say: Callable[[str], None] = print,
) -> Figures:
    """Run one study whose oldest worker is killed periodically, and audit it.

    Args:
        folder: working directory of the workers.
        url: database.
        kind: of the studies; `Kind.prepare` was called.
        kills: number of workers to kill; after that, the others finish the study.
        trials: trials of the study.
        at_once: number of concurrent workers.
        interval: shortest and longest seconds between two kills.
        budget: environment steps of a trial, enough that a batch takes longer than a worker lives.
        seed: seed of the study and of the kills.
        say: prints one line.
    """
    figures, rng, name = Figures(rounds=1, trials=trials), random.Random(seed), f"r{seed}"
    flags = ("--budget", str(budget))
    began = time.monotonic()
    (folder / "trails").mkdir(exist_ok=True)
    alive: list[tuple[BaseProcess, Path]] = []
    next_kill, started = began + rng.uniform(*interval), 0
    while not (over := _over(url, name, trials)) or alive:
        if time.monotonic() - began > GIVE_UP:
            figures.problems.append(f"study {name} was not done after {GIVE_UP:.0f} s")
            break
        for process, trail in [one for one in alive if not one[0].is_alive()]:
            alive.remove((process, trail))
            if process.exitcode:
                figures.problems.append(_failed(process, trail, name))
        if len(alive) < at_once and not over:
            trail = folder / "trails" / f"{name}-{started}.txt"
            alive.append(
                (_start(folder, url, kind, name, trials, trail, "evict", seed, flags), trail)
            )
            started += 1
        due = time.monotonic() > next_kill and figures.kills["evict"] < kills
        if due and len(alive) == at_once:
            oldest, _ = alive.pop(0)
            oldest.kill()
            oldest.join()
            figures.kills["evict"] += 1
            next_kill = time.monotonic() + rng.uniform(*interval)
            say(f"kill {figures.kills['evict']} after {time.monotonic() - began:.0f} s")
        time.sleep(0.1)
    for process, _ in alive:
        process.kill()
    figures.seconds = time.monotonic() - began
    if figures.kills["evict"] < kills:
        figures.problems.append(f"study {name} was done after {figures.kills['evict']} kills")
    run_one(folder, url, kind, name, trials, flags)
    figures.problems += audit(folder, url, kind, name, trials, figures)
    return figures


def _start(
    folder: Path,
    url: str,
    kind: Kind,
    name: str,
    trials: int,
    trail: Path,
    way: str,
    seed: int,
    flags: Sequence[str] = (),
) -> BaseProcess:
    words = [
        "train",
        *kind.flags,
        "--study-name",
        name,
        "--n-trials",
        str(trials),
        "--storage",
        url,
        "--alongside",
        "--seed",
        name.removeprefix("r"),
        *flags,
    ]
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_worker, args=(words, folder, trail, way, seed))
    process.start()
    return process


def _round(
    folder: Path,
    url: str,
    kind: Kind,
    name: str,
    trials: int,
    at_once: int,
    kills: int,
    rng: random.Random,
    figures: Figures,
) -> None:
    """Run one study to its end. Workers die in random ways until there were enough kills."""
    alive: list[tuple[BaseProcess, Path, str, float]] = []
    (folder / "trails").mkdir(exist_ok=True)
    started = 0
    give_up = time.monotonic() + GIVE_UP
    while True:
        for process, trail, way, until in list(alive):
            if process.is_alive() and way == "clock" and time.monotonic() > until:
                assert process.pid is not None
                os.kill(process.pid, signal.SIGKILL)
                process.join()
            if process.is_alive():
                continue
            alive.remove((process, trail, way, until))
            if process.exitcode == -signal.SIGKILL:
                figures.kills[way] += 1
            elif process.exitcode:
                figures.problems.append(_failed(process, trail, name))
            elif not alive and _over(url, name, trials):
                return
        if time.monotonic() > give_up:
            figures.problems.append(f"study {name} was not done after {GIVE_UP:.0f} s")
            for process, *_ in alive:
                process.kill()
            return
        if len(alive) < at_once and not _over(url, name, trials):
            more = sum(figures.kills.values()) + len(alive) < kills + at_once
            way = rng.choice(WAYS) if more else "none"
            figures.suspended += way == "suspend"
            trail = folder / "trails" / f"{name}-{started}.txt"
            process = _start(folder, url, kind, name, trials, trail, way, rng.randrange(2**31))
            alive.append((process, trail, way, time.monotonic() + rng.uniform(0.2, 4.0)))
            started += 1
        elif not alive and _over(url, name, trials):
            return
        time.sleep(0.05)


def _failed(process: BaseProcess, trail: Path, name: str) -> str:
    """Return the sentence for a worker that ended with an error, with the end of its output."""
    words = trail.with_suffix(".out").read_text().strip().splitlines()[-8:]
    return f"a worker of study {name} ended with exit code {process.exitcode}: {words}"


@contextlib.contextmanager
def opened(url: str) -> Iterator[StudyStorage]:
    """Open the database, and close all connections at the end.

    A worker must not be forked while a connection to the SQLite file is open here: it would inherit
    the connection without its POSIX locks, lose its commits when this process closes the file and
    deletes the WAL, and damage the database.
    """
    storage = open_storage(url, create=False)
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _over(url: str, name: str, trials: int) -> bool:
    with contextlib.suppress(Exception), opened(url) as storage:  # the study may not exist yet
        states = [t.state for t in StudyHandle(storage, name).trials()]
        return len(states) == trials and all(state.is_finished() for state in states)
    return False


def _worker(words: list[str], folder: Path, trail: Path, way: str, seed: int) -> None:
    """Run one worker in this forked process."""
    if way != "evict":
        train_command.WorkerOptions = functools.partial(  # type: ignore[misc, assignment]
            WorkerOptions, beat_seconds=BEAT, grace_seconds=GRACE
        )
    rng = random.Random(seed)
    _leave_a_trail(trail)
    if way not in ("clock", "evict"):
        _sabotage(way, rng)
    run_command(words, folder, trail.with_suffix(".out"))


def _leave_a_trail(path: Path) -> None:
    """After every rollout, append (nanoseconds, trial id, token) of every trial that is held.

    Not where no heartbeat was written for longer than the grace period, since the process was
    suspended, starved of processor time or without the database: then another worker may take the
    trials, and this one drops them at its next heartbeat.
    """
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    stepped = Activity.stepped

    def noted(own: Activity, steps: int) -> None:
        now, heartbeat = time.monotonic_ns(), own.heartbeat
        if now / 1e9 - heartbeat.beaten < GRACE:
            lines = [
                f"{now} {trial} {token}\n"
                for trial, token in heartbeat.storage.held().items()
                if trial not in heartbeat.lost
            ]
            os.write(file, "".join(lines).encode())
        stepped(own, steps)

    Activity.stepped = noted  # type: ignore[method-assign]


def _sabotage(way: str, rng: random.Random) -> None:
    """Make this process kill or suspend itself at a random event of the kind `way`."""
    left = rng.randrange(2, 60 if way in ("commit", "committed") else 12)

    def strike(*_: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            if way == "suspend":
                # Another process has to wake it up again.
                os.system(f"(sleep {2 * GRACE}; kill -CONT {os.getpid()}) >/dev/null 2>&1 &")
                os.kill(os.getpid(), signal.SIGSTOP)
            else:
                os.kill(os.getpid(), signal.SIGKILL)

    def before(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def struck(*arguments: Any, **named: Any) -> Any:
            strike()
            return function(*arguments, **named)

        return struck

    if way == "sync":
        os.fsync = before(os.fsync)
    elif way == "name":
        Path.replace = before(Path.replace)  # type: ignore[method-assign]
    elif way == "commit":
        sa.event.listen(sa.engine.Engine, "commit", strike)
    elif way == "committed":
        sa.event.listen(sa.orm.Session, "after_commit", strike)
    elif way == "suspend":
        Activity.stepped = before(Activity.stepped)  # type: ignore[method-assign]


# -- the audit


def audit(
    folder: Path, url: str, kind: Kind, name: str, trials: int, figures: Figures
) -> Iterator[str]:
    """Yield one sentence for each violated guarantee of a finished study."""
    with opened(url) as storage:
        yield from _audit(
            StudyHandle(storage, name, folder / "runs"), folder, kind, trials, figures
        )


def _audit(
    handle: StudyHandle, folder: Path, kind: Kind, trials: int, figures: Figures
) -> Iterator[str]:
    name = handle.name
    found = handle.trials()
    if [t.number for t in found] != list(range(trials)):
        yield f"study {name} has the trials {[t.number for t in found]} instead of {trials}"
    for trial in found:
        if trial.state not in FINISHED:
            why = trial.user_attrs.get("sweepd:reason", "")
            yield f"trial {trial.number} of {name} is {trial.state.name} ({why})"
    with handle.storage.transaction() as session:
        tokens = session.execute(
            sa.select(attempts.c.trial_id).where(
                attempts.c.token != "", attempts.c.trial_id.in_([t._trial_id for t in found])
            )
        ).all()
    if tokens:
        yield f"trials with the ids {[row[0] for row in tokens]} of {name} are still held"
    yield from _trained_twice(folder, name)
    yield from _left_over(handle, found)
    ended = [trial for trial in found if trial.state in FINISHED]
    yield from kind.damaged(handle, [t for t in ended if t.state == TrialState.COMPLETE])
    for trial in ended:
        figures.retrained += 1
        if not kind.same(handle, trial):
            yield f"trial {trial.number} of {name} has other numbers than when undisturbed"


def _trained_twice(folder: Path, name: str) -> Iterator[str]:
    """Yield the trials that two workers trained at the same time."""
    spans: dict[int, dict[str, tuple[int, int]]] = {}
    for trail in (folder / "trails").glob(f"{name}-*.txt"):
        for line in trail.read_text().splitlines():
            at, trial, token = line.split()
            first, _ = spans.setdefault(int(trial), {}).get(token, (int(at), 0))
            spans[int(trial)][token] = (first, int(at))
    for trial, by_token in spans.items():
        ordered = sorted(by_token.values())
        for (_, last), (first, _) in itertools.pairwise(ordered):
            if first < last:
                yield (
                    f"the trial with id {trial} of {name} was trained by two workers at once for "
                    f"{(last - first) / 1e9:.2f} s"
                )


def _left_over(handle: StudyHandle, found: list[FrozenTrial]) -> Iterator[str]:
    """Yield the trials with files that should have been deleted."""
    for trial in found:
        folder = handle.trial_dir(trial.number)
        left = [path.name for path in folder.glob("checkpoint-*")] + [
            path.name for path in folder.glob(".*.tmp*")
        ]
        if left:
            yield f"trial {trial.number} of {handle.name} still has {', '.join(left)}"
