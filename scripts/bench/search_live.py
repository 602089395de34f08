"""Searches on live training, with equal wall-clock on the same cores: what do they choose, and when?

Every search gets `--minutes` on a task and `--cores` cores. The configuration that it had selected
at each moment is trained again on `--fresh` seeds that the search has not seen, and its policies
play `--games` episodes, the same for all searches. Two outcomes: the score of the last selection,
and the time until the selection of the moment had a mean score of at least the task's level.

    random, race, tpe   `sweepd train` as a process: random with the flags of the race, the race of
                        `--sampler auto`, and TPE with the default flags. The race divides its
                        trials by `--n-trials`: it gets the number that `random` finished on the
                        task with the same seed, so run `random` first, or give `--trials`.
    zoo, asha, pbt      `live_peers.py`: rl-baselines3-zoo, and Ray Tune

PufferLib's sweep is left out: its package is source only and requires older NumPy and Gymnasium.

The versions of the peers are in `PACKAGES`; another version is an error. Install sweepd and those
packages into a virtual environment and name it: `--peer-python zoo=DIR/bin/python`. LunarLander
requires `gymnasium[box2d]`.

    python scripts/bench/search_live.py --folder DIR --save scripts/bench/results/search_live.json
    python scripts/bench/search_live.py --smoke

Every finished search of a task is saved, and so is every score. The same command continues.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import torch
from harness import benchmark_parser, load_results, machine, print_machine, save_results
from learning import bars_of
from live_tasks import HOLDOUT, TASKS, TIMEFRAME, score_of

import sweepd
from envs.core.streams import derive_seed
from envs.crypto.data.bars import write_bars
from envs.crypto.params import EnvParams
from envs.support.errors import InputError
from optimize.study.database.opening import open_storage, storage_url
from optimize.study.study import StudyHandle

ROOT = Path(__file__).resolve().parents[2]
# Ray Tune's processes import the modules of the benchmarks by name.
PYTHONPATH = os.pathsep.join((str(ROOT), str(Path(__file__).parent)))
STUDY = "live"
RACE = ("--seeds", "1", "--rungs", "10", "--pruner", "none")
OURS: dict[str, tuple[str, ...]] = {  # flags of `sweepd train`
    "random": ("--sampler", "random", *RACE),
    "race": ("--sampler", "race", *RACE),
    "tpe": ("--sampler", "tpe"),
}
SB3 = {"stable-baselines3": "2.9.2", "gymnasium": "1.4.0"}
PACKAGES: dict[str, dict[str, str]] = {  # of the peers
    "zoo": SB3 | {"rl_zoo3": "2.9.2", "optuna": "5.0.0"},
    "asha": SB3 | {"ray": "2.60.0"},
    "pbt": SB3 | {"ray": "2.60.0"},
}
ENOUGH = 1_000_000  # trials that no search finishes
GRACE = 60.0  # seconds for the end of a process


@dataclass(frozen=True)
class Selected:
    """A change of the selection during a search.

    Attributes:
        seconds: since the start of the search's process.
        key: of the configuration, as JSON.
        value: by which it was selected.
        trial: number of its trial, in a study of sweepd.
    """

    seconds: float
    key: str
    value: float
    trial: int | None = None


class Search:
    """One search on one task with one seed, in a folder of its own."""

    def __init__(self, task: str, name: str, seed: int, options: argparse.Namespace) -> None:
        self.task, self.name, self.seed, self.options = task, name, seed, options
        self.steps = options.steps or TASKS[task].steps
        self.folder = options.folder / task / f"{name}-{seed}"

    def run(self, trials: int) -> int:
        """Run the search until its time is up. Returns the number of finished trials."""
        raise NotImplementedError

    def selections(self) -> list[Selected]:
        """Return the changes of the selection, in order of time."""
        raise NotImplementedError

    def scores(self, chosen: Selected) -> list[float]:
        """Train a configuration on the fresh seeds, and return a score for each."""
        raise NotImplementedError

    def call(self, command: list[str], seconds: float | None = None) -> str:
        """Run a process on the search's cores. One that exceeds its time is stopped.

        Args:
            command: the command line.
            seconds: until SIGTERM; None: until it ends.

        Raises:
            InputError: it failed.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "log.txt").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": PYTHONPATH},
                text=True,
                start_new_session=True,
            )
            try:
                out, _ = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                process.terminate()
                out = _ended(process)
                return out
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

    def _sweepd(self, *arguments: str) -> list[str]:
        return [sys.executable, str(ROOT / "sweepd.py"), *arguments, *self._place()]

    def _place(self) -> tuple[str, ...]:
        return ("--storage", str(self.folder / "sweepd.db"), "--runs-dir", str(self.folder))

    def run(self, trials: int) -> int:
        """See `Search.run`."""
        market: tuple[str, ...] = ()
        if self.task == "planted":
            bars = self.options.folder / "planted-bars"
            if not bars.exists():
                write_bars(bars_of("planted", 0), bars)
            market = ("--data-dir", str(bars), "--timeframe", TIMEFRAME, "--holdout", str(HOLDOUT))
        if self.folder.exists():
            raise InputError(
                f"{self.folder} holds a search that was stopped: remove it, its clock is lost"
            )
        self.folder.mkdir(parents=True)
        (self.folder / "began").write_text(datetime.now().isoformat())
        flags = [*TASKS[self.task].flags, *market, *OURS[self.name], "--study-name", STUDY]
        flags += ["--n-trials", str(trials), "--budget", str(self.steps), "--no-auto-deploy"]
        flags += ["--seed", str(self.seed), "--threads", str(self.options.cores), "--gpu", "cpu"]
        self.call(self._sweepd("train", *flags), 60.0 * self.options.minutes)
        return sum(trial.state.is_finished() for trial in self._study(STUDY).trials())

    def _study(self, name: str) -> StudyHandle:
        url = storage_url(str(self.folder / "sweepd.db"))
        return StudyHandle(open_storage(url), name)

    def selections(self) -> list[Selected]:
        """See `Search.selections`: the study's own rule, applied to what had finished."""
        study = self._study(STUDY)
        began = datetime.fromisoformat((self.folder / "began").read_text())
        limit = began + timedelta(minutes=self.options.minutes)
        ended = sorted(
            (
                trial
                for trial in study.trials()
                # A worker that was stopped may still end a trial.
                if trial.datetime_complete and trial.datetime_complete <= limit
            ),
            key=lambda trial: trial.datetime_complete or began,
        )
        found: list[Selected] = []
        for count in range(1, len(ended) + 1):
            best = study.spec.selection.best(ended[:count])
            if best is None:
                continue
            key = json.dumps(best.best_trial.params, sort_keys=True)
            moment = ended[count - 1].datetime_complete or began
            if not found or found[-1].key != key:
                seconds = (moment - began).total_seconds()
                found.append(Selected(seconds, key, best.value, best.best_trial.number))
        return found

    def scores(self, chosen: Selected) -> list[float]:
        """See `Search.scores`."""
        name = f"fresh-{chosen.trial}"
        self.call(
            self._sweepd(
                *("run", "--trial", f"{STUDY}#{chosen.trial}", "--study-name", name),
                *("--seeds", str(self.options.fresh), "--gpu", "cpu"),
            )
        )
        run = sweepd.load_study(name, str(self.folder / "sweepd.db"), self.folder)
        found = []
        for trial in self._study(name).trials():
            if trial.state.name != "COMPLETE":
                continue
            policy = sweepd.load_policy(run, trial.number)
            market = self.task == "planted"
            for member in policy.members:
                score = score_of(
                    self.task,
                    member.act_batch,
                    self.options.games,
                    0,
                    env_params=EnvParams(**policy.env_params) if market else None,
                    max_lookback=getattr(policy.spec, "max_lookback", None),
                )
                found.append(score)
        return found


class PeerSearch(Search):
    """A search of another project, through `live_peers.py` in the peer's Python."""

    @property
    def history(self) -> Path:
        """File of the results."""
        return self.folder / "history.jsonl"

    def _peer(self, part: str, *arguments: str) -> list[str]:
        python = peer_python(self.name, self.options)
        script = str(Path(__file__).with_name("live_peers.py"))
        return [python, script, part, "--task", self.task, "--steps", str(self.steps), *arguments]

    def run(self, trials: int) -> int:  # noqa: ARG002
        """See `Search.run`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.history.unlink(missing_ok=True)
        seconds = 60.0 * self.options.minutes
        arguments = ["--search", self.name, "--seed", str(self.seed), "--seconds", str(seconds)]
        arguments += ["--workers", str(self.options.cores), "--out", str(self.history)]
        self.call(self._peer("search", *arguments), seconds + GRACE)
        return len(self._results())

    def _results(self) -> list[dict[str, Any]]:
        """Return the results within the time, in order of time."""
        if not self.history.exists():
            return []
        lines = [json.loads(line) for line in self.history.read_text().splitlines()]
        limit = 60.0 * self.options.minutes
        return sorted(
            (line for line in lines if line["seconds"] <= limit), key=lambda line: line["seconds"]
        )

    def selections(self) -> list[Selected]:
        """See `Search.selections`: the highest value so far."""
        found: list[Selected] = []
        for line in self._results():
            if math.isfinite(line["value"]) and (not found or line["value"] > found[-1].value):
                found.append(Selected(line["seconds"], json.dumps(line["schedule"]), line["value"]))
        return found

    def scores(self, chosen: Selected) -> list[float]:
        """See `Search.scores`."""
        fresh = [
            str(derive_seed(self.seed, "fresh", index) % 2**31)
            for index in range(self.options.fresh)
        ]
        out = self.call(
            self._peer(
                *("score", "--schedule", chosen.key, "--fresh", *fresh),
                *("--games", str(self.options.games)),
            )
        )
        return [float(score) for score in json.loads(out.splitlines()[-1])]


def first_above(
    search: Search, level: float, known: dict[str, list[float]]
) -> tuple[float | None, list[float]]:
    """Return when the selection first reached the level, and the scores of the last selection.

    Args:
        search: a finished search.
        level: mean score on the fresh seeds.
        known: scores by configuration, to which those that are missing are added. Selections
            between the first that reaches the level and the last are not trained.
    """
    selections, reached = search.selections(), None
    for chosen in selections:
        if reached is None or chosen is selections[-1]:
            if chosen.key not in known:
                known[chosen.key] = search.scores(chosen)
            if reached is None and mean_of(known[chosen.key]) >= level:
                reached = chosen.seconds
    return reached, known[selections[-1].key] if selections else []


def mean_of(scores: list[float]) -> float:
    """Return the mean; minus infinity without scores, or if a run diverged."""
    mean = sum(scores) / len(scores) if scores else -math.inf
    return mean if math.isfinite(mean) else -math.inf


def peer_python(name: str, options: argparse.Namespace) -> str:
    """Return the interpreter of a peer's virtual environment."""
    given = dict(pair.partition("=")[::2] for pair in options.peer_python)
    return str(given.get(name, sys.executable))


def check(options: argparse.Namespace) -> None:
    """Refuse what would fail after the first hours.

    Raises:
        InputError: a package is missing or has another version, or a name is unknown.
    """
    if options.folder is None and not options.smoke:
        raise InputError("give --folder: the scores are computed from the files of the searches")
    for pair in options.peer_python:
        name, _, path = pair.partition("=")
        if name not in PACKAGES or not Path(path).is_file():
            raise InputError(
                f"--peer-python {pair}: give NAME=PATH with a name of {', '.join(PACKAGES)} and "
                "the path of a Python"
            )
    if "lunarlander" in options.tasks and importlib.util.find_spec("Box2D") is None:
        raise InputError('lunarlander needs Box2D: pip install "gymnasium[box2d]"')
    for name in options.searches:
        if name in PACKAGES:
            _check_versions(name, peer_python(name, options))


def _check_versions(name: str, python: str) -> None:
    """Compare the versions of a peer's packages with `PACKAGES`."""
    wanted = PACKAGES[name]
    code = (
        "import importlib.metadata as m, json, sys\n"
        "names = {d.metadata['Name'].lower().replace('_', '-'): d.version "
        "for d in m.distributions()}\n"
        "print(json.dumps({n: names.get(n.lower().replace('_', '-')) for n in sys.argv[1:]}))"
    )
    done = subprocess.run([python, "-c", code, *wanted], capture_output=True, text=True)
    found = json.loads(done.stdout) if done.returncode == 0 else {}
    for package, version in wanted.items():
        if found.get(package) != version:
            raise InputError(
                f"{name} needs {package} {version} in {python}, which has "
                f"{found.get(package) or 'none'}: pip install {package}=={version}, or name "
                f"another environment: --peer-python {name}=PATH"
            )


def trials_of(
    name: str, seed: int, own: dict[str, dict[str, Any]], options: argparse.Namespace
) -> int:
    """Return `--n-trials` of a search, of the task whose results are given.

    Raises:
        InputError: the race has no number.
    """
    if name != "race":
        return options.trials if options.smoke else ENOUGH
    if options.trials:
        return int(options.trials)
    counted = own.get(f"random-{seed}", {}).get("trials")
    if not counted:
        raise InputError(
            "race needs the number of trials that fit into its time: run random first, or give "
            "--trials"
        )
    return int(counted)


def measure(options: argparse.Namespace, content: dict[str, Any]) -> None:
    """Run what is missing, and save after every search and its scores."""
    for task in options.tasks:
        own = content["tasks"].setdefault(task, {})
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            for name in options.searches:
                found = own.get(f"{name}-{seed}", {})
                kind = OurSearch if name in OURS else PeerSearch
                search = kind(task, name, seed, options)
                if "trials" not in found:
                    began = time.time()
                    described = machine()
                    trials = search.run(trials_of(name, seed, own, options))
                    found = {"trials": trials, "seconds": time.time() - began}
                    found |= {"machine": described, "load_after": os.getloadavg()[0]}
                    own[f"{name}-{seed}"] = found
                    save_results(options.save, content)
                if "scores" not in found and not options.search_only:
                    score(search, found)
                    save_results(options.save, content)
                    print_result(task, name, seed, found)


def score(search: Search, found: dict[str, Any]) -> None:
    """Add the outcomes of a finished search."""
    selections = search.selections()
    level = TASKS[search.task].level
    known: dict[str, list[float]] = {}
    reached, scores = first_above(search, level, known)
    found["selections"] = [
        {"seconds": one.seconds, "value": one.value, "scores": known.get(one.key)}
        for one in selections
    ]
    found |= {"level": level, "seconds_to_level": reached, "scores": scores}
    found["chosen"] = json.loads(selections[-1].key) if selections else None


def print_result(task: str, name: str, seed: int, found: dict[str, Any]) -> None:
    """Print the outcomes of one search."""
    reached = found["seconds_to_level"]
    when = "never" if reached is None else f"after {reached:,.0f} s"
    print(
        f"{task:12} {name:7} seed {seed}: {mean_of(found['scores']):10.2f} on "
        f"{len(found['scores'])} fresh seeds, {found['trials']} trials, level {found['level']:g} "
        f"{when}",
        flush=True,
    )


def shrink(options: argparse.Namespace) -> None:
    """Set the sizes of `--smoke`: every step once, with figures that mean nothing."""
    options.tasks, options.seeds = options.tasks or ["cartpole"], 1
    options.searches = options.searches or ["random"]
    options.minutes, options.steps, options.trials = 2.0, 2_048, 4
    options.games, options.fresh = 4, 2


def main(argv: list[str] | None = None) -> int:
    parser = benchmark_parser(__doc__ or "")
    searches = (*OURS, *PACKAGES)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, help="default: all")
    parser.add_argument("--searches", nargs="+", choices=searches, help="default: all")
    parser.add_argument("--minutes", type=float, default=20.0, help="of each search")
    parser.add_argument("--seeds", type=int, default=3, help="searches of a kind on a task")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--fresh", type=int, default=3, help="seeds that a selection is scored on")
    parser.add_argument("--games", type=int, default=100, help="episodes of a score")
    parser.add_argument("--steps", type=int, help="of a full run; default: the task's")
    parser.add_argument("--trials", type=int, help="of the race; default: as random finished")
    parser.add_argument("--cores", type=int, default=2, help="threads, or processes of a peer")
    parser.add_argument("--folder", type=Path, help="of the searches' files; keep it to continue")
    parser.add_argument(
        "--peer-python", nargs="+", default=[], metavar="NAME=PATH", help="Python of a peer"
    )
    parser.add_argument("--search-only", action="store_true", help="score in a later run")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, under a minute")
    options = parser.parse_args(argv)
    if options.smoke:
        shrink(options)
    options.tasks = options.tasks or list(TASKS)
    options.searches = options.searches or list(searches)
    torch.set_num_threads(1)
    content = load_results(options.save)
    names = ("minutes", "fresh", "games", "steps", "cores", "trials")
    settings = {name: getattr(options, name) for name in names}
    with tempfile.TemporaryDirectory() as temporary:
        try:
            if content.get("settings", settings) != settings:
                raise InputError(
                    f"--save {options.save} has results of other settings: {content['settings']}"
                )
            check(options)
            options.folder = (options.folder or Path(temporary)).resolve()
            content.setdefault("tasks", {})
            content |= {"machine": print_machine(), "settings": settings, "packages": PACKAGES}
            measure(options, content)
        except InputError as error:
            print(error, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
