"""Searches of other projects, each in a process of its own, started by `search_live.py`.

    zoo       rl-baselines3-zoo's PPO space, with its TPE, median pruner and numbers of evaluations,
              in as many processes as there are cores
    asha, pbt Ray Tune's schedulers with the trainer and the ranges of `zoo`, one core a trial

All train Stable-Baselines3's PPO. `search` writes a line of JSON per result: seconds since
`--began`, the trial, the value by which the search selects, and the schedule of parameters. `score`
trains schedules on fresh seeds and prints the scores.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path

import torch

from scripts.bench.search.live_tasks import TASKS
from scripts.bench.search.live_trainer import History, Schedule, Trainer

STARTUP_TRIALS = 10  # the zoo's default


def zoo_worker(args: argparse.Namespace, database: str, worker: int) -> None:
    """Run trials of a study until the time is up."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from rl_zoo3.hyperparams_opt import sample_ppo_params

    torch.set_num_threads(1)
    history = History(args.out, args.began)
    looks = max(1, args.steps // 100_000)  # as the zoo
    study = optuna.create_study(
        study_name="zoo",
        storage=JournalStorage(JournalFileBackend(database)),
        sampler=optuna.samplers.TPESampler(
            n_startup_trials=STARTUP_TRIALS, seed=1_000 * args.seed + worker, multivariate=True
        ),
        pruner=optuna.pruners.MedianPruner(
            n_startup_trials=STARTUP_TRIALS, n_warmup_steps=looks // 3
        ),
        direction="maximize",
        load_if_exists=True,
    )

    def objective(trial: optuna.Trial) -> float:
        sample_ppo_params(trial, 1, TASKS[args.task].envs, {})
        trainer, value = Trainer(args.task, args.steps, args.seed + trial.number), 0.0
        for look in range(1, looks + 1):
            trainer.continue_to(look / looks, trial.params)
            value = trainer.value()
            trial.report(value, look)
            if look < looks and trial.should_prune():
                raise optuna.TrialPruned
        history.add(value, [(1.0, trial.params)], trial.number)
        return value

    left = args.began + args.seconds - time.time()
    # A run that diverges is a failed trial, as in the zoo.
    study.optimize(objective, timeout=left, catch=(AssertionError, ValueError))


def search_zoo(args: argparse.Namespace) -> None:
    """Run one worker per core."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        database = str(Path(folder) / "journal")
        workers = [
            context.Process(target=zoo_worker, args=(args, database, worker))
            for worker in range(args.workers)
        ]
        for process in workers:
            process.start()
        for process in workers:
            process.join(max(0.0, args.began + args.seconds - time.time()))
        failed = [process.exitcode for process in workers if process.exitcode]
        for process in workers:
            process.terminate()
            process.join()
    if failed:
        sys.exit("a worker of the zoo's search failed: its message is above")


def run_search(args: argparse.Namespace) -> None:
    """Run the search of `--search`."""
    if args.search == "zoo":
        search_zoo(args)
    else:
        from scripts.bench.search.live_ray import (
            search_ray,  # the zoo's environment need not have Ray
        )

        search_ray(args, args.search)


def fresh_score(task: str, steps: int, games: int, schedule: Schedule, seed: int) -> float:
    """Train a schedule on a seed, and return the score; NaN if the run diverges."""
    torch.set_num_threads(1)
    trainer = Trainer(task, steps, seed)
    try:
        trainer.follow(schedule)
        return trainer.score(games, 0)
    except (AssertionError, ValueError):
        return float("nan")


def scores(args: argparse.Namespace) -> list[list[float]]:
    """Return the scores of every schedule on the fresh seeds, `--workers` runs at a time."""
    runs = [
        (args.task, args.steps, args.games, schedule, seed)
        for schedule in json.loads(args.schedules.read_text())
        for seed in args.fresh
    ]
    with multiprocessing.get_context("spawn").Pool(min(args.workers, len(runs))) as pool:
        found = pool.starmap(fresh_score, runs, chunksize=1)
    count = len(args.fresh)
    return [found[first : first + count] for first in range(0, len(found), count)]


def search_or_score(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["search", "score"])
    parser.add_argument("--task", choices=TASKS, required=True)
    parser.add_argument("--search", choices=["zoo", "asha", "pbt"], default="zoo")
    parser.add_argument("--steps", type=int, required=True, help="of one full run")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the search")
    parser.add_argument(
        "--began", type=float, default=time.time(), help="start of the search, seconds of the epoch"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the search")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path, help="JSON lines of the search")
    parser.add_argument("--schedules", type=Path, help="JSON file of the schedules to score")
    parser.add_argument("--fresh", type=int, nargs="+", default=[0], help="seeds to score with")
    parser.add_argument("--games", type=int, default=100, help="episodes to score with")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that are started
    if args.part == "search":
        run_search(args)
        if not args.out.exists():  # a result, too: the search selected nothing
            print(f"{args.search} finished no run in {args.seconds:g} s", file=sys.stderr)
    else:
        print(json.dumps(scores(args)))
    return 0


if __name__ == "__main__":
    sys.exit(search_or_score())
