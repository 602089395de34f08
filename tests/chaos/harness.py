"""Workers of one study that are killed and suspended at random, and an audit of what they leave behind.

A worker is a forked process that runs `sweepd train` on a tiny study. Some are killed by the clock, some by their own
hand at a random write: before a file is synced, before it gets its name, before and after a transaction commits. Some
are suspended for longer than the grace period and come back. Meanwhile every worker leaves a trail of what it trains,
under which token, so that the audit sees whether a trial was ever trained twice at once.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import torch
from optuna.trial import FrozenTrial, TrialState

from agents.policy.frozen import load_members
from envs.crypto.data.bars import write_bars
from envs.crypto.data.demo_market import make_planted_market
from envs.crypto.study_data import load_study_bars
from optimize.cli import train as train_command
from optimize.experiments.crypto import CryptoExperiment
from optimize.study.storage import open_storage
from optimize.study.study import Plan, StudyHandle
from optimize.study.tables import attempts
from optimize.worker.batch import Trainer
from optimize.worker.worker import Worker, WorkerOptions
from tests.optimize.conftest import SPACE, TRAIN, run_command

BEAT, GRACE = 0.2, 1.5
BUDGET = 960  # environment steps of a trial
GIVE_UP = 1200.0  # seconds for a study that takes one minute on a machine of one's own
WAYS = ("clock", "sync", "name", "commit", "committed", "suspend")
FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)


@dataclass
class Figures:
    """What a chaos run came to. problems: sentences; empty where every promise held."""

    rounds: int = 0
    trials: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    suspended: int = 0
    retrained: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


def prepare(folder: Path) -> None:
    """The tiny market and the tiny space."""
    write_bars(make_planted_market(3, assets=2, bars=700), folder / "bars")
    (folder / "tiny.toml").write_text(SPACE)


def run_chaos(
    folder: Path,
    url: str,
    *,
    kills: int,
    trials: int = 12,
    at_once: int = 3,
    seed: int = 0,
    seconds: float = 3600.0,
    say: Callable[[str], None] = print,
) -> Figures:
    """Studies of so many trials, one after the other, until so many workers were killed; each study is audited.

    url: of the database. at_once: workers at a time. seconds: after which no new study is begun.
    """
    figures, rng, began = Figures(), random.Random(seed), time.monotonic()
    while sum(figures.kills.values()) < kills and time.monotonic() - began < seconds:
        name = f"r{figures.rounds}"
        _round(folder, url, name, trials, at_once, kills, rng, figures)
        figures.rounds += 1
        figures.trials += trials
        run_one(folder, url, name, trials)  # it finds nothing to train, and tidies up
        figures.problems += audit(folder, url, name, trials, figures)
        say(
            f"study {name}: {trials} trials, {sum(figures.kills.values())} kills and {figures.suspended} suspensions "
            f"so far, problems: {figures.problems or 'none'}"
        )
    figures.seconds = time.monotonic() - began
    return figures


# -- workers and what befalls them


def run_one(folder: Path, url: str, name: str, trials: int, budget: int = BUDGET) -> None:
    """One more worker, which nobody disturbs."""
    process = _start(
        folder, url, name, trials, folder / "trails" / f"{name}-last.txt", "none", 0, budget
    )
    process.join()


def run_evictions(
    folder: Path,
    url: str,
    *,
    kills: int,
    trials: int = 24,
    at_once: int = 2,
    interval: tuple[float, float] = (3.0, 10.0),
    budget: int = 20_000,
    seed: int = 0,
    say: Callable[[str], None] = print,
) -> Figures:
    """One study whose workers are killed in turn, one every so many seconds, and left alone after so many kills.

    interval: shortest and longest seconds between two kills. budget: environment steps of a trial, enough that a batch
    takes longer than a worker lives.
    """
    figures, rng, began, name = (
        Figures(rounds=1, trials=trials),
        random.Random(seed),
        time.monotonic(),
        f"r{seed}",
    )
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
                words = trail.with_suffix(".out").read_text().strip().splitlines()[-1:]
                figures.problems.append(
                    f"a worker of study {name} ended with exit code {process.exitcode}: {words}"
                )
        if len(alive) < at_once and not over:
            trail = folder / "trails" / f"{name}-{started}.txt"
            alive.append((_start(folder, url, name, trials, trail, "evict", seed, budget), trail))
            started += 1
        if (
            time.monotonic() > next_kill
            and figures.kills["evict"] < kills
            and len(alive) == at_once
        ):
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
    run_one(folder, url, name, trials, budget)
    figures.problems += audit(folder, url, name, trials, figures)
    return figures


def _start(
    folder: Path,
    url: str,
    name: str,
    trials: int,
    trail: Path,
    way: str,
    seed: int,
    budget: int = BUDGET,
) -> BaseProcess:
    words = [
        "train",
        *TRAIN,
        "--study-name",
        name,
        "--n-trials",
        str(trials),
        "--storage",
        url,
        "--alongside",
        "--budget",
        str(budget),
        "--seed",
        name.removeprefix("r"),
    ]
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_worker, args=(words, folder, trail, way, seed))
    process.start()
    return process


def _round(
    folder: Path,
    url: str,
    name: str,
    trials: int,
    at_once: int,
    kills: int,
    rng: random.Random,
    figures: Figures,
) -> None:
    """One study from its first worker to its last, with a fate for each worker until there were enough kills."""
    alive: list[tuple[BaseProcess, str, float]] = []
    (folder / "trails").mkdir(exist_ok=True)
    started = 0
    give_up = time.monotonic() + GIVE_UP
    while True:
        for process, way, until in list(alive):
            if process.is_alive() and way == "clock" and time.monotonic() > until:
                assert process.pid is not None
                os.kill(process.pid, signal.SIGKILL)
                process.join()
            if process.is_alive():
                continue
            alive.remove((process, way, until))
            if process.exitcode == -signal.SIGKILL:
                figures.kills[way] += 1
            elif process.exitcode:
                figures.problems.append(
                    f"a worker of study {name} ended with exit code {process.exitcode}"
                )
            elif not alive and _over(url, name, trials):
                return
        if time.monotonic() > give_up:
            figures.problems.append(f"study {name} was not done after {GIVE_UP:.0f} s")
            for process, _, _ in alive:
                process.kill()
            return
        if len(alive) < at_once and not _over(url, name, trials):
            way = (
                rng.choice(WAYS)
                if sum(figures.kills.values()) + len(alive) < kills + at_once
                else "none"
            )
            figures.suspended += way == "suspend"
            trail = folder / "trails" / f"{name}-{started}.txt"
            process = _start(folder, url, name, trials, trail, way, rng.randrange(2**31))
            alive.append((process, way, time.monotonic() + rng.uniform(0.2, 4.0)))
            started += 1
        elif not alive and _over(url, name, trials):
            return
        time.sleep(0.02)


def _over(url: str, name: str, trials: int) -> bool:
    with contextlib.suppress(Exception):  # not there yet
        storage = open_storage(url, create=False)
        try:
            states = [t.state for t in StudyHandle(storage, name).trials()]
        finally:
            # A worker that is forked while a connection to the SQLite file is open here takes this process's lock for
            # its own, holds none, and loses its commits when this process closes the file and deletes the WAL.
            storage.remove_session()
            storage.engine.dispose()
        return len(states) == trials and all(state.is_finished() for state in states)
    return False


def _worker(words: list[str], folder: Path, trail: Path, way: str, seed: int) -> None:
    """The life of one worker."""
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
    """Append (nanoseconds, trial id, token) for every trial in hand after every rollout."""
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    progress = Worker._progress
    before = time.monotonic()

    def noted(own: Worker, steps: int) -> None:
        nonlocal before
        asleep, before = time.monotonic() - before > GRACE, time.monotonic()
        if asleep:  # what was trained was trained before; whether it goes on is what matters
            progress(own, steps)
            return
        lost = own.heartbeat.lost
        lines = [
            f"{time.monotonic_ns()} {trial} {token}\n"
            for trial, token in own.handle.storage.held().items()
            if trial not in lost
        ]
        os.write(file, "".join(lines).encode())
        progress(own, steps)

    Worker._progress = noted  # type: ignore[method-assign]


def _sabotage(way: str, rng: random.Random) -> None:
    """Have this process kill or suspend itself at a random one of the moments that `way` names."""
    left = rng.randrange(2, 60 if way in ("commit", "committed") else 12)

    def strike(*_: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            if way == "suspend":
                # Somebody has to wake it up again.
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
        Worker._progress = before(Worker._progress)  # type: ignore[method-assign]


# -- the audit


def audit(folder: Path, url: str, name: str, trials: int, figures: Figures) -> Iterator[str]:
    """Every broken promise of a finished study, as a sentence."""
    handle = StudyHandle(open_storage(url, create=False), name, folder / "runs")
    found = handle.trials()
    if [t.number for t in found] != list(range(trials)):
        yield f"study {name} has the trials {[t.number for t in found]}, not {trials} of them"
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
    yield from _files(handle, found)
    yield from _not_as_alone(handle, found, figures)


def _trained_twice(folder: Path, name: str) -> Iterator[str]:
    """Two attempts at one trial that were at work at the same time."""
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
                yield f"the trial with id {trial} of {name} was trained twice at once for {(last - first) / 1e9:.2f} s"


def _files(handle: StudyHandle, found: list[FrozenTrial]) -> Iterator[str]:
    """Files that are missing, damaged or left over."""
    for trial in found:
        folder = handle.trial_dir(trial.number)
        left = [path.name for path in folder.glob("checkpoint-*")] + [
            path.name for path in folder.glob(".*.tmp*")
        ]
        if left:
            yield f"trial {trial.number} of {handle.name} left {', '.join(left)} behind"
        if trial.state != TrialState.COMPLETE:
            continue
        recorded = trial.user_attrs["sweepd:members"]
        content = (handle.run_dir / recorded["path"]).read_bytes()
        if hashlib.sha256(content).hexdigest() != recorded["sha256"]:
            yield f"the members of trial {trial.number} of {handle.name} are not those that were recorded"
        if not (folder / "equity.png").read_bytes().endswith(b"IEND\xaeB`\x82"):
            yield f"the picture of trial {trial.number} of {handle.name} is cut short"


def _not_as_alone(handle: StudyHandle, found: list[FrozenTrial], figures: Figures) -> Iterator[str]:
    """Trials whose numbers differ from those of the same trial left alone, in any bit."""
    torch.set_num_threads(1)
    experiment = CryptoExperiment(
        handle.spec, load_study_bars(handle.spec.data), torch.device("cpu")
    )
    for trial in [t for t in found if t.state in FINISHED]:
        trainer = Trainer(
            experiment, stop=lambda: False, progress=lambda _: None, say=lambda _: None
        )
        settings = handle.space.resolve(trial.params)
        training = trainer.start(
            Plan(-1, trial.number, trial.params, settings, trial.user_attrs["sweepd:seed"])
        )
        alone: dict[int, float] = {}
        for rung in range(1, len(trial.intermediate_values) + 1):
            trainer.advance([training], lambda t: t.rung + 1)
            (evaluation,) = trainer.evaluate([training])
            assert evaluation is not None
            training.rung = rung
            alone[rung] = evaluation.value
        figures.retrained += 1
        same = alone == trial.intermediate_values
        if trial.state == TrialState.COMPLETE:
            same = same and evaluation.final == trial.value
            members = load_members(handle.run_dir / trial.user_attrs["sweepd:members"]["path"])
            actors = trainer.actors(training)
            same = same and all(
                torch.equal(own[key], other[key])
                for own, other in zip(actors, members, strict=True)
                for key in own
            )
        if not same:
            yield f"trial {trial.number} of {handle.name} has other numbers than the same trial left alone"
