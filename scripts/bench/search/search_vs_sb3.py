"""The same search with sweepd, and with Optuna and Stable-Baselines3: how long does it take?

Optuna's TPE and median pruner search PPO's hyperparameters on CartPole and LunarLander, with equal
ranges, steps per trial, environments, rollouts, reports and evaluation episodes.

    sb3        `optuna_sb3.py`, a script as a user would write it, in one process (n_jobs=1)
    sb3 x2     the same script in two processes that share the study
    sweepd     `sweepd train` on the same environment of Gymnasium
    tensors    on CartPole: `sweepd train` on its own CartPole in tensors

Every search is a process of its own, and its clock starts with it: imports count. Reported are the
seconds until `--trials` trials are finished (complete or pruned), and until the first complete trial
whose saved policy has a mean return of at least 475 (CartPole) or 200 (LunarLander). Policies of all
searches play the same 100 episodes of the Gymnasium environment, after the search, without
exploration. `selected` is the score of the trial that the search itself chose.

What differs: sweepd trains the trials of a batch together, in one network shape, and judges them
together at a rung; its processes step the environments. It scales observations by random play, and
values by PopArt; Stable-Baselines3 uses `VecNormalize` for observations and rewards. It writes
checkpoints and records, the script only the models of complete trials. Seeds differ.

    python -m scripts.bench run search_vs_sb3 --save scripts/bench/results/search_vs_sb3.json

LunarLander requires `gymnasium[box2d]`. Finished searches are saved; the same command continues.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
import torch
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from torch import Tensor

import sweepd
from scripts.bench.harness import (
    benchmark_parser,
    idle_machine,
    load_results,
    machine,
    print_machine,
    save_results,
)
from scripts.bench.peers import users_environment
from scripts.bench.search.live_tasks import Act, score_of

NAME, DATABASE = "search", "search.db"
# The ranges of `optuna_sb3.py`. Where it has no such parameter, sweepd's own default for games.
SPACE = """
name = "search_vs_sb3"
version = 1
[shape]
net_width = { choices = [64, 128] }
net_depth = { value = 2 }
activation = { value = "tanh" }
minibatch = { choices = [64, 256] }
epochs = { choices = [4, 8] }
[ppo]
learning_rate = { low = 2e-4, high = 2e-3, log = true }
one_minus_gamma = { low = 2e-3, high = 0.02, log = true }
gae_lambda = { low = 0.9, high = 1.0 }
clip = { low = 0.1, high = 0.3 }
entropy_coef = { low = 1e-4, high = 0.03, log = true }
value_coef = { low = 0.25, high = 1.0 }
popart_beta = { value = 0.05 }
"""


@dataclass(frozen=True)
class Task:
    """An environment and the sizes of its searches.

    Attributes:
        env: id of Gymnasium.
        level: mean return that a trial has to reach.
        envs: environments of a trial.
        horizon: steps of each in a rollout.
        steps: environment steps of a trial, whole rollouts in each of the rungs.
        trials: of a search.
        rungs: reports of a trial.
        episodes: of an evaluation.
    """

    env: str
    level: float
    envs: int
    horizon: int
    steps: int
    trials: int
    rungs: int = 4
    episodes: int = 10


TASKS = {
    "cartpole": Task("CartPole-v1", 475.0, 8, 128, 16_384, 12),
    "lunarlander": Task("LunarLander-v3", 200.0, 16, 128, 147_456, 6),
}
PEERS = {"sb3": 1, "sb3 x2": 2}  # processes
OURS = {"sweepd": "gym:{}", "tensors": "cartpole"}  # --env
SEARCHES = (*PEERS, *OURS)


def run_search(name: str, task: Task, seed: int, cores: int, folder: Path) -> dict[str, Any]:
    """Run a search in a folder.

    Returns:
        trials, a list of number, state, value and seconds since the start, in order of their end;
        processor, the seconds of all processes.
    """
    commands = (
        [_sweepd(name, task, seed, cores, folder)]
        if name in OURS
        else [_script(task, seed + 1_000 * one, folder) for one in range(PEERS[name])]
    )
    before, began = _processor_seconds(), datetime.now()
    with (folder / "log.txt").open("w") as log:
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", *command], stdout=log, stderr=log, env=users_environment()
            )
            for command in commands
        ]
        codes = [process.wait() for process in processes]
    if any(codes):
        sys.exit(f"{name} failed:\n{(folder / 'log.txt').read_text()[-2_000:]}")
    used = _processor_seconds() - before
    storage = (
        f"sqlite:///{folder / DATABASE}"
        if name in OURS
        else JournalStorage(JournalFileBackend(str(folder / "journal")))
    )
    study = optuna.load_study(study_name=NAME, storage=storage)
    ended = sorted(
        (trial for trial in study.trials if trial.state.is_finished()),
        key=lambda trial: trial.datetime_complete or began,
    )
    trials = [
        {
            "number": trial.number,
            "state": trial.state.name,
            "value": trial.value if trial.state == TrialState.COMPLETE else None,
            "seconds": ((trial.datetime_complete or began) - began).total_seconds(),
        }
        for trial in ended
    ]
    return {"trials": trials, "processor": used}


def _sweepd(name: str, task: Task, seed: int, cores: int, folder: Path) -> list[str]:
    (folder / "space.toml").write_text(SPACE)
    flags = {
        "env": OURS[name].format(task.env),
        "search-space": folder / "space.toml",
        "sampler": "tpe",
        "pruner": "median",
        "seeds": 1,
        "fresh-seeds": 0,
        "rungs": task.rungs,
        "episodes": task.episodes,
        "budget": task.steps,
        "n-envs": task.envs,
        "horizon": task.horizon,
        "n-trials": task.trials,
        "seed": seed,
        "threads": cores,
        "gpu": "cpu",
        "study-name": NAME,
        "runs-dir": folder,
        "storage": folder / DATABASE,
    }
    words = [str(word) for flag, value in flags.items() for word in (f"--{flag}", value)]
    return ["sweepd", "train", "--no-auto-deploy", *words]


def _script(task: Task, seed: int, folder: Path) -> list[str]:
    own = {key: value for key, value in asdict(task).items() if key != "level"}
    flags = own | {"seed": seed, "folder": folder}
    words = [str(word) for flag, value in flags.items() for word in (f"--{flag}", value)]
    return ["scripts.bench.search.optuna_sb3", *words]


def load_act(name: str, task: Task, folder: Path, number: int) -> Act:
    """Return the deterministic policy of a complete trial."""
    if name in OURS:
        study = sweepd.load_study(NAME, str(folder / DATABASE), folder)
        [member] = sweepd.load_policy(study, number).members
        return member.act_batch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    model = PPO.load(folder / f"{number}.zip", device="cpu")
    scale = VecNormalize.load(str(folder / f"{number}.pkl"), make_vec_env(task.env, 1))

    def act(obs: Tensor) -> Tensor:
        actions, _ = model.predict(scale.normalize_obs(obs.numpy()), deterministic=True)
        return torch.from_numpy(actions)

    return act


def outcomes(
    trials: Sequence[Mapping[str, Any]], level: float, score: Callable[[int], float]
) -> dict[str, Any]:
    """Return what a search reached.

    Args:
        trials: as of `run_search`.
        level: mean return that a trial has to reach.
        score: mean return of a trial's policy, by number.

    Returns:
        seconds, until the last trial was finished; pruned, the number of trials; seconds_to_level,
        None if no trial reached it; selected, the score of the trial with the highest value.
    """
    score = functools.cache(score)
    complete = [trial for trial in trials if trial["value"] is not None]
    reached = (trial["seconds"] for trial in complete if score(trial["number"]) >= level)
    best = max(complete, key=lambda trial: float(trial["value"]), default=None)
    return {
        "seconds": trials[-1]["seconds"],
        "pruned": sum(trial["state"] == "PRUNED" for trial in trials),
        "seconds_to_level": next(reached, None),
        "selected": None if best is None else score(best["number"]),
    }


def measure(args: argparse.Namespace, content: dict[str, Any]) -> None:
    """Run the searches that are missing in the results, and save after each.

    Raises:
        SystemExit: the file has searches of other sizes.
    """
    for name in args.tasks:
        task = sized(TASKS[name], args)
        known = content.setdefault(name, {"task": asdict(task), "searches": {}})
        if known["task"] != asdict(task):
            sys.exit(f"--save {args.save} has searches of {name} with other sizes: {known['task']}")
        for seed, search in itertools.product(range(args.seeds), args.searches):
            key = f"{search}, seed {seed}"
            if key in known["searches"] or (search == "tensors" and name != "cartpole"):
                continue
            known["searches"][key] = found = measure_search(search, name, task, seed, args)
            save_results(args.save, content)
            print(line(name, key, found), flush=True)


def measure_search(
    search: str, name: str, task: Task, seed: int, args: argparse.Namespace
) -> dict[str, Any]:
    """Run a search on the task of that name, and score its policies."""
    described = machine()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with idle_machine():
            found = run_search(search, task, seed, args.threads, folder)

        def score(number: int) -> float:
            return score_of(name, load_act(search, task, folder, number), args.games, 0)

        found |= outcomes(found["trials"], task.level, score)
    return found | {"search": search, "machine": described}


def sized(task: Task, args: argparse.Namespace) -> Task:
    """Return a task with the sizes of the command line."""
    given = {key: getattr(args, key) for key in ("trials", "steps", "rungs", "episodes")}
    return replace(task, **{key: value for key, value in given.items() if value is not None})


def line(task: str, key: str, found: Mapping[str, Any]) -> str:
    """Return the outcomes of a search as text."""
    when, selected = found["seconds_to_level"], found["selected"]
    return (
        f"{task:12}{key:18}{len(found['trials'])} trials ({found['pruned']} pruned) in "
        f"{found['seconds']:.0f} s, level {'never' if when is None else f'after {when:.0f} s'}, "
        f"selected {'none' if selected is None else f'{selected:.1f}'}, "
        f"{found['processor']:.0f} s of processor time"
    )


def ratios(searches: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return by search of ours the time of the fastest peer by our time, in medians of the seeds."""
    times: dict[str, list[float]] = {}
    for found in searches:
        times.setdefault(found["search"], []).append(found["seconds"])
    whole = {name: statistics.median(seconds) for name, seconds in times.items()}
    peers = [whole[name] for name in PEERS if name in whole]
    return {name: min(peers) / whole[name] for name in OURS if name in whole and peers}


def main(argv: list[str]) -> None:
    """Search, print and save."""
    parser = benchmark_parser(__doc__ or "", threads=2)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--searches", nargs="+", choices=SEARCHES, default=list(SEARCHES))
    parser.add_argument("--seeds", type=int, default=1, help="searches of a kind on a task")
    parser.add_argument("--games", type=int, default=100, help="episodes of a policy's score")
    for name in ("trials", "steps", "rungs", "episodes"):
        parser.add_argument(f"--{name}", type=int, help="in place of the tasks'")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    print_machine()
    content = load_results(args.save)
    measure(args, content)
    for name in args.tasks:
        for own, ratio in ratios(content[name]["searches"].values()).items():
            print(f"{name}: {own} needs 1/{ratio:.1f} of the time of the fastest peer")


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
