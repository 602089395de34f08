"""The searches of `search_live.py`: how one is run, what it had selected when, and what that scores."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial, TrialState, create_trial

import sweepd
from scripts.bench.harness import ROOT
from scripts.bench.quality.learning import bars_of
from scripts.bench.search.live_tasks import HOLDOUT, TASKS, TIMEFRAME, score_of
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.crypto.data.bars import write_bars
from sweepd.envs.crypto.params import EnvParams
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.enqueue import enqueue
from sweepd.optimize.study.record.configurations import latest, leading
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.record.specs import GameSpec
from sweepd.optimize.study.space.search_space import SearchSpace
from sweepd.optimize.study.study import StudyHandle, create_study

STUDY, FRESH = "live", "fresh"
ENDLESS = 1_000_000  # trials that no search finishes: the time ends it
RACE = ("--rungs", "10", "--pruner", "none")
OURS: dict[str, tuple[str, ...]] = {  # flags of `sweepd train`
    # First, so that what is measured once per machine and cached counts as its time.
    "race": ("--sampler", "race", *RACE),
    "random": ("--sampler", "random", *RACE),
    "tpe": ("--sampler", "tpe"),
}
PEERS = ("zoo", "asha", "pbt")
GRACE = 60.0  # seconds for the end of a process


@dataclass(frozen=True)
class Selected:
    """A change of the selection during a search.

    Attributes:
        seconds: since the start of the search's process.
        key: of the configuration, as JSON.
        value: by which it was selected.
    """

    seconds: float
    key: str
    value: float


class Search:
    """One search on one task with one seed, in a folder of its own.

    Attributes:
        group: configurations that are scored together.
    """

    group: int

    def __init__(self, task: str, name: str, seed: int, options: argparse.Namespace) -> None:
        self.task, self.name, self.seed, self.options = task, name, seed, options
        self.steps = options.steps or TASKS[task].steps
        self.folder = options.folder / task / f"{name}-{seed}"
        self.seconds = 60.0 * options.minutes

    def run(self) -> int:
        """Run the search until its time is up. Returns the number of results.

        Raises:
            InputError: it failed, or its folder holds one that was stopped.
        """
        raise NotImplementedError

    def selections(self) -> list[Selected]:
        """Return the changes of the selection, in order of time."""
        raise NotImplementedError

    def scores(self, keys: Sequence[str]) -> list[list[float]]:
        """Train configurations on the fresh seeds, and return a score for each seed."""
        raise NotImplementedError

    def make_folder(self) -> None:
        """Make the search's folder.

        Raises:
            InputError: it exists.
        """
        if self.folder.exists():
            raise InputError(
                f"{self.folder} holds a search that was stopped: remove it, its clock is lost"
            )
        self.folder.mkdir(parents=True)

    def call(self, command: list[str], seconds: float | None = None) -> str:
        """Run a process on the search's cores, and return what it prints.

        Args:
            command: the command line.
            seconds: until SIGTERM; None: until it ends.

        Raises:
            InputError: it failed.
        """
        with (self.folder / "log.txt").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                text=True,
                start_new_session=True,
            )
            try:
                out, _ = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                process.terminate()
                return _ended(process)
            except BaseException:
                process.terminate()
                _ended(process)
                raise
        if process.returncode != 0:
            raise InputError(f"{' '.join(command[:4])} … failed: see {self.folder / 'log.txt'}")
        return out


def _ended(process: subprocess.Popen[str]) -> str:
    """Wait for a process that was asked to end, then kill it and what it has started."""
    try:
        out, _ = process.communicate(timeout=GRACE)
    except subprocess.TimeoutExpired:
        out = ""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return out


class OurSearch(Search):
    """A study of sweepd, through the command line."""

    group = 3  # with 3 fresh seeds each, about a batch of trials

    def _train(self, study: str, trials: int, *flags: str) -> list[str]:
        return [
            *(sys.executable, "-m", "sweepd", "train", *flags, "--study-name", study),
            *("--n-trials", str(trials), "--no-auto-deploy", "--gpu", "cpu"),
            *("--storage", str(self.folder / "sweepd.db"), "--runs-dir", str(self.folder)),
        ]

    def run(self) -> int:
        """See `Search.run`."""
        more: tuple[str, ...] = ()
        if self.task == "planted":
            bars = self.options.folder / "planted-bars"
            if not bars.exists():
                write_bars(bars_of("planted", 0), bars)
            more = ("--data-dir", str(bars), "--timeframe", TIMEFRAME, "--holdout", str(HOLDOUT))
        elif self.name != "tpe":
            more = ("--seeds", "1")
        self.make_folder()
        flags = [*TASKS[self.task].flags, *more, *OURS[self.name], "--budget", str(self.steps)]
        flags += ["--seed", str(self.seed), "--threads", str(self.options.cores)]
        (self.folder / "began").write_text(datetime.now().isoformat())
        trials = self.options.trials or ENDLESS
        self.call(self._train(STUDY, trials, *flags), self.seconds)
        return sum(trial.state.is_finished() for trial in self._study(STUDY).trials())

    def _study(self, name: str) -> StudyHandle:
        url = storage_url(str(self.folder / "sweepd.db"))
        return StudyHandle(open_storage(url), name, self.folder)

    def selections(self) -> list[Selected]:
        """See `Search.selections`: the study's own rule, applied to what had finished."""
        study = self._study(STUDY)
        began = datetime.fromisoformat((self.folder / "began").read_text())
        limit = began + timedelta(seconds=self.seconds)
        ended = sorted(
            (
                trial
                for trial in study.trials()
                # A worker that was stopped may still end a trial.
                if trial.datetime_complete and trial.datetime_complete <= limit
            ),
            key=lambda trial: trial.datetime_complete or began,
        )
        found = self._leading(study, ended[0].datetime_complete or limit if ended else limit)
        for count in range(1, len(ended) + 1):
            best = study.spec.selection.best(ended[:count])
            if best is None:
                continue
            moment = ended[count - 1].datetime_complete or began
            _select(found, (moment - began).total_seconds(), best.best_trial, best.value)
        return found

    def _leading(self, study: StudyHandle, until: datetime) -> list[Selected]:
        """Return the leading trials before one was complete, as `sweepd status` showed them.

        The time of an evaluation is that of its curves for TensorBoard, which are written after it.
        """
        reports = sorted(
            (event.wall_time, trial.number, trial, event.step)
            for trial in study.trials()
            for event in _evaluations(study.run_dir / "tensorboard" / f"trial-{trial.number:05d}")
            if datetime.fromtimestamp(event.wall_time) < until
        )
        began = datetime.fromisoformat((self.folder / "began").read_text()).timestamp()
        found: list[Selected] = []
        rungs = {
            study.spec.rung_end(rung) * study.spec.transitions: rung
            for rung in range(1, study.spec.rungs + 1)
        }
        seen: dict[int, FrozenTrial] = {}
        for moment, number, trial, step in reports:
            rung = rungs[step]
            values = {r: v for r, v in trial.intermediate_values.items() if r <= rung}
            seen[number] = create_trial(
                state=TrialState.RUNNING,
                params=trial.params,
                distributions=trial.distributions,
                intermediate_values=values,
            )
            seen[number].number = number
            ahead = leading(seen.values())
            if ahead is not None:
                _select(found, moment - began, ahead, latest(ahead))
        return found

    def scores(self, keys: Sequence[str]) -> list[list[float]]:
        """See `Search.scores`: trials of another study with the search's settings, in batches."""
        study = self._fresh_study()
        trials = [
            [
                enqueue(study.storage, study.study_id, study.space, guess(study.space, key))
                for _ in range(self.options.fresh)
            ]
            for key in keys
        ]
        self.call(self._train(FRESH, trials[-1][-1] + 1))
        run = sweepd.load_study(FRESH, str(self.folder / "sweepd.db"), self.folder)
        complete = {trial.number for trial in study.trials() if trial.state.name == "COMPLETE"}
        return [
            [self._score(run, one) if one in complete else math.nan for one in numbers]
            for numbers in trials
        ]

    def _fresh_study(self) -> StudyHandle:
        """Return the study of fresh seeds; create it at first."""
        source = self._study(STUDY)
        if not (self.folder / "fresh").exists():
            changes: dict[str, Any] = {"sampler": "random", "pruner": "none"}
            changes["seed"] = derive_seed(self.seed, "fresh") % 2**31
            if isinstance(source.spec, GameSpec):
                changes["seeds"] = 1
            spec = dataclasses.replace(source.spec, **changes)
            create_study(source.storage, FRESH, spec, self.folder, {})
            (self.folder / "fresh").touch()
        return self._study(FRESH)

    def _score(self, run: sweepd.Study, trial: int) -> float:
        policy = sweepd.load_policy(run, trial)
        [member] = policy.members
        return score_of(
            self.task,
            member.act_batch,
            self.options.games,
            0,
            env_params=EnvParams(**policy.env_params) if self.task == "planted" else None,
            max_lookback=getattr(policy.spec, "max_lookback", None),
        )


def _select(found: list[Selected], seconds: float, trial: FrozenTrial, value: float) -> None:
    """Append a trial's configuration unless it is selected already."""
    key = json.dumps(trial.params, sort_keys=True)
    if not found or found[-1].key != key:
        found.append(Selected(seconds, key, value))


def _evaluations(folder: Path) -> list[Any]:
    """Return the events of a trial's evaluations, with `wall_time` and `step`."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    if not folder.exists():
        return []
    events = EventAccumulator(str(folder)).Reload()
    tags = [tag for tag in events.Tags()["scalars"] if tag.startswith("test/over_")]
    return [event for tag in tags for event in events.Scalars(tag)]


def guess(space: SearchSpace, key: str) -> dict[str, Any]:
    """Return the parameters of a key as `enqueue` takes them: switches are values that are off."""
    params = json.loads(key)
    return {own.name: own.resolve(params) for own in space.dimensions if own.value is None}


class PeerSearch(Search):
    """A search of another project, through `live_peers.py` in the peer's Python."""

    group = 2  # with 3 fresh seeds each, six runs: three per core

    @property
    def history(self) -> Path:
        """File of the results."""
        return self.folder / "history.jsonl"

    def _peer(self, part: str, *arguments: str) -> list[str]:
        python = peer_python(self.name, self.options)
        common = ["--task", self.task, "--steps", str(self.steps)]
        module = "scripts.bench.search.live_peers"
        return [
            python,
            "-m",
            module,
            part,
            *common,
            "--workers",
            str(self.options.cores),
            *arguments,
        ]

    def run(self) -> int:
        """See `Search.run`."""
        self.make_folder()
        arguments = ["--search", self.name, "--seed", str(self.seed), "--out", str(self.history)]
        arguments += ["--seconds", str(self.seconds), "--began", str(time.time())]
        self.call(self._peer("search", *arguments), self.seconds + GRACE)
        return len(self._results())

    def _results(self) -> list[dict[str, Any]]:
        """Return the results within the time, in order of time."""
        if not self.history.exists():
            return []
        lines = [json.loads(line) for line in self.history.read_text().splitlines()]
        return sorted(
            (line for line in lines if line["seconds"] <= self.seconds),
            key=lambda line: line["seconds"],
        )

    def selections(self) -> list[Selected]:
        """See `Search.selections`: the trial with the highest latest value, the earlier in a tie.

        A schedule of Ray Tune may be the beginning of a run. The fresh runs continue it with its
        last parameters.
        """
        found: list[Selected] = []
        latest: dict[int | str, tuple[float, str]] = {}
        for line in self._results():
            value = line["value"] if math.isfinite(line["value"]) else -math.inf
            latest[line["trial"]] = value, json.dumps(line["schedule"])
            value, schedule = max(latest.values(), key=lambda one: one[0])
            key = json.dumps(merged(json.loads(schedule)))
            if value > -math.inf and (not found or found[-1].key != key):
                found.append(Selected(line["seconds"], key, value))
        return found

    def scores(self, keys: Sequence[str]) -> list[list[float]]:
        """See `Search.scores`."""
        fresh = range(self.options.fresh)
        seeds = [str(derive_seed(self.seed, "fresh", index) % 2**31) for index in fresh]
        schedules = self.folder / "schedules.json"
        schedules.write_text(f"[{','.join(keys)}]")
        arguments = ["--schedules", str(schedules), "--fresh", *seeds]
        out = self.call(self._peer("score", *arguments, "--games", str(self.options.games)))
        found: list[list[float]] = json.loads(out.splitlines()[-1])
        return found


def merged(schedule: list[list[Any]]) -> list[list[Any]]:
    """Return a schedule whose equal neighbours are one part, and whose last part ends the run.

    Schedules that train the same are then equal.
    """
    parts: list[list[Any]] = []
    for share, params in schedule:
        if parts and parts[-1][1] == params:
            parts[-1] = [share, params]
        else:
            parts.append([share, params])
    return [*parts[:-1], [1.0, parts[-1][1]]]


def peer_python(name: str, options: argparse.Namespace) -> str:
    """Return the interpreter of a peer's virtual environment."""
    given = dict(pair.partition("=")[::2] for pair in options.peer_python)
    return str(given.get(name, sys.executable))


def make_search(task: str, name: str, seed: int, options: argparse.Namespace) -> Search:
    """Return a search by name."""
    return (OurSearch if name in OURS else PeerSearch)(task, name, seed, options)
