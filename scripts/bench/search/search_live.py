"""Searches on live training, with equal wall-clock on the same cores: what do they choose, and when?

Every search gets `--minutes` on a task and `--cores` cores. The configuration that it had selected
at a moment is trained again on `--fresh` seeds that the search has not seen, and its policies play
`--games` episodes, the same for all searches. Two outcomes: the score of the last selection, and
the time until the selection of the moment had a mean score of at least the task's level. The clock
starts with the search's process: imports and the start of Ray count.

    random, race, tpe   `sweepd train` as a process: random with the flags of the race, the race of
                        `--sampler auto`, and TPE with the default flags. As a user would who does
                        not know how many trials fit into the time: --n-trials is out of reach, and
                        SIGTERM ends the study.
    zoo, asha, pbt      `live_peers.py`: rl-baselines3-zoo, and Ray Tune

PufferLib's sweep is left out: its package is source only and requires older NumPy and Gymnasium.

The versions of the peers are in `PACKAGES`; another version is an error. Install sweepd and those
packages into a virtual environment and name it: `--peer-python zoo=DIR/bin/python`. LunarLander
requires `gymnasium[box2d]`.

    python -m scripts.bench run search_live --folder DIR --save scripts/bench/results/search_live.json
    python -m scripts.bench run search_live --smoke

Every finished search of a task is saved, and so is every score. The same command continues. Where
scores are missing, the table has a lower bound of the time: that of the first selection without a
score. Tasks may have different `--minutes` and `--steps` in one file, but all searches of a task
have the same.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from scripts.bench.harness import (
    benchmark_parser,
    load_results,
    machine,
    print_machine,
    save_results,
)
from scripts.bench.search.live_searches import (
    OURS,
    PEERS,
    Search,
    Selected,
    make_search,
    peer_python,
)
from scripts.bench.search.live_table import lines, table
from scripts.bench.search.live_tasks import TASKS
from sweepd.envs.support.errors import InputError

SB3 = {"stable-baselines3": "2.9.2", "gymnasium": "1.4.0"}
PACKAGES: dict[str, dict[str, str]] = {  # of the peers
    "zoo": SB3 | {"rl_zoo3": "2.9.2", "optuna": "5.0.0"},
    "asha": SB3 | {"ray": "2.60.0"},
    "pbt": SB3 | {"ray": "2.60.0"},
}


def _groups(keys: Sequence[str], size: int) -> list[list[str]]:
    return [list(keys[first : first + size]) for first in range(0, len(keys), size)]


def reached(
    selections: Sequence[Selected], level: float, known: Mapping[str, list[float]]
) -> tuple[float | None, bool]:
    """Return when the selection first reached a level.

    Args:
        selections: the changes of the selection.
        level: mean score on the fresh seeds.
        known: scores by configuration, some of which may be missing.

    Returns:
        The seconds and True; or False with those before which it was not reached, None if it never
        was.
    """
    for one in selections:
        if one.key not in known:
            return one.seconds, False
        if mean_of(known[one.key]) >= level:
            return one.seconds, True
    return None, False


def mean_of(scores: Sequence[float]) -> float:
    """Return the mean; minus infinity without scores, or if a run diverged."""
    mean = sum(scores) / len(scores) if scores else -math.inf
    return mean if math.isfinite(mean) else -math.inf


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


def settings_of(task: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return what all searches of a task share."""
    names = ("minutes", "fresh", "games", "cores")
    return {name: getattr(options, name) for name in names} | {
        "steps": options.steps or TASKS[task].steps,
        "level": TASKS[task].level,
    }


def check_settings(options: argparse.Namespace, content: dict[str, Any]) -> None:
    """Refuse to add results to those of other settings.

    Raises:
        InputError: a task has results of other settings.
    """
    for task in options.tasks:
        settings = settings_of(task, options)
        if content["settings"].setdefault(task, settings) != settings:
            raise InputError(
                f"--save {options.save} has results of {task} with other settings: "
                f"{content['settings'][task]}"
            )


def measure(options: argparse.Namespace, content: dict[str, Any]) -> None:
    """Run what is missing, and save after every search and its scores."""
    for task in options.tasks:
        own = content["tasks"].setdefault(task, {})
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            for name in options.searches:
                found = own.get(f"{name}-{seed}", {})
                search = make_search(task, name, seed, options)
                if "trials" not in found:
                    began = time.time()
                    described = machine()
                    trials = search.run()
                    found = {"trials": trials, "seconds": time.time() - began}
                    found |= {"machine": described, "load_after": os.getloadavg()[0]}
                    own[f"{name}-{seed}"] = found
                    save_results(options.save, content)
                if "selections" not in found:
                    record(task, search.selections(), found, {})
                    save_results(options.save, content)
                if not (options.search_only or is_scored(found)):
                    for _ in score(search, found):
                        save_results(options.save, content)
                    print_result(task, name, seed, found)


def is_scored(found: Mapping[str, Any]) -> bool:
    """Return whether further scores of a search cannot change its outcomes."""
    return "scores" in found and (found["exact"] or found["seconds_to_level"] is None)


def score(search: Search, found: dict[str, Any]) -> Iterator[None]:
    """Train selected configurations until the outcomes are known.

    The last selection and the earliest ones come first. Once one has reached the level, the others
    are left out.

    Args:
        search: a finished search.
        found: its results so far, to which the scores are added. Scores that it has are kept.

    Yields:
        After every group of configurations.
    """
    selections = search.selections()
    known = {
        one.key: own["scores"]
        for one, own in zip(selections, found["selections"], strict=True)
        if own["scores"] is not None
    }
    keys = dict.fromkeys(one.key for one in (*selections[-1:], *selections))
    missing = [key for key in keys if key not in known]
    found.setdefault("seconds_of_scores", 0.0)
    for group in _groups(missing, search.group):
        began = time.time()
        known.update(zip(group, search.scores(group), strict=True))
        found["seconds_of_scores"] += time.time() - began
        record(search.task, selections, found, known)
        yield
        if is_scored(found):
            break


def record(
    task: str,
    selections: Sequence[Selected],
    found: dict[str, Any],
    known: Mapping[str, list[float]],
) -> None:
    """Add to the results of a finished search what the known scores say."""
    level = TASKS[task].level
    found["selections"] = [
        {"seconds": one.seconds, "value": one.value, "scores": known.get(one.key)}
        for one in selections
    ]
    when, exact = reached(selections, level, known)
    found |= {"level": level, "seconds_to_level": when, "exact": exact}
    scores = known.get(selections[-1].key) if selections else []
    if scores is not None:
        mean = mean_of(scores)
        found |= {"scores": scores, "score": mean if math.isfinite(mean) else None}
        found["chosen"] = json.loads(selections[-1].key) if selections else None


def print_result(task: str, name: str, seed: int, found: dict[str, Any]) -> None:
    """Print the outcomes of one search."""
    when = found["seconds_to_level"]
    print(
        f"{task:12} {name:7} seed {seed}: {mean_of(found['scores']):10.2f} on "
        f"{len(found['scores'])} fresh seeds, {found['trials']} results, "
        f"{len(found['selections'])} selections, level {found['level']:g} "
        f"{'never' if when is None else f'after {when:,.0f} s'}, scored in "
        f"{found['seconds_of_scores']:,.0f} s",
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
    searches = (*OURS, *PEERS)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, help="default: all")
    parser.add_argument("--searches", nargs="+", choices=searches, help="default: all")
    parser.add_argument("--minutes", type=float, default=20.0, help="of each search")
    parser.add_argument("--seeds", type=int, default=3, help="searches of a kind on a task")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--fresh", type=int, default=3, help="seeds that a selection is scored on")
    parser.add_argument("--games", type=int, default=100, help="episodes of a score")
    parser.add_argument("--steps", type=int, help="of a full run; default: the task's")
    parser.add_argument("--cores", type=int, default=2, help="threads, or processes of a peer")
    parser.add_argument("--folder", type=Path, help="of the searches' files; keep it to continue")
    parser.add_argument(
        "--peer-python", nargs="+", default=[], metavar="NAME=PATH", help="Python of a peer"
    )
    parser.add_argument("--search-only", action="store_true", help="score in a later run")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, under a minute")
    parser.set_defaults(trials=None)
    options = parser.parse_args(argv)
    if options.smoke:
        shrink(options)
    options.tasks = options.tasks or list(TASKS)
    options.searches = options.searches or list(searches)
    torch.set_num_threads(1)
    content = load_results(options.save)
    for part in ("settings", "tasks"):
        content.setdefault(part, {})
    with tempfile.TemporaryDirectory() as temporary:
        try:
            check_settings(options, content)
            check(options)
            options.folder = (options.folder or Path(temporary)).resolve()
            content |= {"machine": print_machine(), "packages": PACKAGES}
            measure(options, content)
        except InputError as error:
            print(error, file=sys.stderr)
            return 2
    limits = {task: 60.0 * own["minutes"] for task, own in content["settings"].items()}
    content["table"] = table(content["tasks"], limits, ours=OURS)
    save_results(options.save, content)
    print("\n".join(lines(content["table"])))
    return 0
