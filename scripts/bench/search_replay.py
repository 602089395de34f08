"""Searches replayed on tabulated learning curves: what is their choice worth on fresh seeds?

A search asks for a configuration, gets its learning curve on one seed up to a part of the budget,
and pays that part. Every search may pay for 96 full runs; with another `--cost`, only studies are
replayed. The choice is scored by the mean final performance on the seeds that were not used, scaled
to 0 … 1 for each task, and averaged over repetitions with other random numbers. The nearest unused
configuration of the table stands for the one that a sampler asks for.

`--data` is a folder of tables (`search_tables.py`). The searches:

    random-32x3, random-96x1   the best of random configurations, with 3 seeds or one
    racing                     64 configurations with 1 seed, the best 16 with 2, the best 4 with 6
    halving-racing             160 configurations to 20 % of the budget, 80 to 50 %, 32 to the end,
                               and the best 6 with 5 seeds
    hyperband                  random configurations, one seed, from 1/9 of the budget on
    sweepd…                    a study of sweepd: sampler, pruner, rungs, seeds and batches of
                               trials as the worker uses them; `sweepd` has the default flags,
                               and `sweepd-race` those of `--sampler auto` on a CPU; for
                               `sweepd-race-open`, --n-trials is out of reach
    optuna…, smac              Optuna's samplers and pruners; SMAC3, where it is installed
    oracle…                    ceilings, see below

The ceilings: `oracle-32`, `-96` and `-160` know which of that many random configurations is the
best, as if noise did not exist. `oracle-best-16x6` and `-32x3` propose the table's best
configurations, and have to choose among them by as many noisy seeds. `best` is the table's best.

Population-based training does not apply: a table has no curve of a run whose hyperparameters
change.

Results are merged into the file of `--save`: repetitions that it has already are not replayed
again. A run that was ended by `--minutes` or by Ctrl-C is continued by the same command.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import torch
from harness import benchmark_parser, load_results, print_machine, save_results
from optuna.pruners import HyperbandPruner, SuccessiveHalvingPruner
from optuna.samplers import CmaEsSampler, GPSampler, TPESampler
from search_schedules import Chosen, Hyperband, Round, Schedule
from search_studies import DaemonStudy, OptunaStudy, Run, Smac
from search_tables import Floats, Table, load_tables

from envs.core.streams import derive_seed
from envs.support.errors import InputError


def _tpe(seed: int) -> TPESampler:
    return TPESampler(multivariate=True, seed=seed)


def _gp(seed: int) -> GPSampler:
    return GPSampler(seed=seed, deterministic_objective=False)


def _cmaes(seed: int) -> CmaEsSampler:
    return CmaEsSampler(seed=seed)


def _asha() -> SuccessiveHalvingPruner:
    return SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)


def _hyperband() -> HyperbandPruner:
    return HyperbandPruner(min_resource=1, max_resource=10, reduction_factor=3)


COST = 96.0  # full runs that a search may pay for
# Cheap for all repetitions at once.
SCHEDULES: Mapping[str, Schedule | Hyperband] = {
    "random-32x3": Schedule(32, (Round(1, seeds=3),)),
    "random-96x1": Schedule(96, (Round(1),)),
    "racing": Schedule(64, (Round(16), Round(4, seeds=2), Round(1, seeds=6))),
    "halving-racing": Schedule(
        160, (Round(80, share=0.2), Round(32, share=0.5), Round(6), Round(1, seeds=5))
    ),
    "hyperband": Hyperband(),
    "oracle-32": Schedule(32, (Round(1, seeds=3),), told=True),
    "oracle-96": Schedule(96, (Round(1),), told=True),
    "oracle-160": Schedule(160, (Round(32, share=0.5), Round(1)), told=True),
    "oracle-best-16x6": Schedule(16, (Round(1, seeds=6),), best=True),
    "oracle-best-32x3": Schedule(32, (Round(1, seeds=3),), best=True),
}
STUDIES: Mapping[str, DaemonStudy | OptunaStudy | Smac] = {
    "sweepd": DaemonStudy(),
    "sweepd-race": DaemonStudy("race", "none", seeds=1, rungs=10, trials_per_batch=10),
    "sweepd-race-open": DaemonStudy(
        "race", "none", seeds=1, rungs=10, trials_per_batch=10, open_ended=True
    ),
    "sweepd-tpe-32x3": DaemonStudy(pruner="none", seeds=3),
    "sweepd-tpe-96x1": DaemonStudy(pruner="none", seeds=1),
    "sweepd-random-32x3": DaemonStudy("random", "none", seeds=3),
    "sweepd-cmaes-96x1": DaemonStudy("cmaes", "none", seeds=1),
    "optuna-tpe-32x3": OptunaStudy(_tpe, seeds=3),
    "optuna-tpe-96x1": OptunaStudy(_tpe),
    "optuna-tpe-asha": OptunaStudy(_tpe, _asha),
    "optuna-tpe-hyperband": OptunaStudy(_tpe, _hyperband),
    "optuna-gp-32x3": OptunaStudy(_gp, seeds=3),
    "optuna-gp-96x1": OptunaStudy(_gp),
    "optuna-cmaes-96x1": OptunaStudy(_cmaes),
    "smac": Smac(),
}


def replay_study(table: Table, name: str, repetition: int, seed: int, cost: float) -> Chosen:
    """Replay one repetition of a study."""
    own = derive_seed(seed, table.name, name, repetition)
    run = Run(table, np.random.default_rng(own), cost)
    choice = STUDIES[name].choose(run, own % 2**32)
    # A search without any result has nothing to deploy.
    fresh = 0.0 if choice is None else run.fresh(choice.config)
    selected = 0.0 if choice is None else choice.value
    return Chosen(*(np.array([number]) for number in (fresh, selected, cost - run.left)))


@dataclass
class Tally:
    """Results of one search on one task.

    Attributes:
        repetitions: number of them.
        mean: score of the choice on fresh seeds.
        sd: standard deviation of the score over repetitions.
        selected: mean of the value by which the choice was made.
        cost: mean training in full runs.
    """

    repetitions: int = 0
    mean: float = 0.0
    sd: float = 0.0
    selected: float = 0.0
    cost: float = 0.0

    @property
    def error(self) -> float:
        """Standard error of the mean; NaN of a single repetition."""
        if self.repetitions < 2:
            return math.nan
        return self.sd / math.sqrt(self.repetitions - 1)

    def add(self, chosen: Chosen) -> None:
        """Include further repetitions."""
        before, new = self.repetitions, len(chosen.fresh)
        self.repetitions = before + new

        def merged(old: float, values: Floats) -> float:
            return float(old * before + values.sum()) / self.repetitions

        squares = merged(self.sd**2 + self.mean**2, chosen.fresh**2)
        self.mean = merged(self.mean, chosen.fresh)
        self.sd = max(0.0, squares - self.mean**2) ** 0.5
        self.selected = merged(self.selected, chosen.selected)
        self.cost = merged(self.cost, chosen.cost)


Tallies = dict[str, dict[str, Tally]]  # by search and task


def replay(table: Table, name: str, done: int, options: argparse.Namespace) -> Chosen:
    """Replay the next repetitions of a search: all that are missing, or one of a study."""
    if name in STUDIES:
        return replay_study(table, name, done, options.seed, options.cost)
    rng = np.random.default_rng(derive_seed(options.seed, table.name, name, done))
    return SCHEDULES[name].run(table, rng, options.repetitions - done)


def replay_all(
    tables: list[Table],
    names: list[str],
    tallies: Tallies,
    options: argparse.Namespace,
    save: Callable[[], None],
) -> None:
    """Bring all searches to `--repetitions`, one round over the tasks after the other.

    Saves after every round, and ends early after `--minutes` of processor time.
    """
    wanted = options.repetitions
    for name in names:
        own = tallies.setdefault(name, {})
        while missing := [
            t for t in tables if own.setdefault(t.name, Tally()).repetitions < wanted
        ]:
            for table in missing:
                if time.process_time() > 60.0 * options.minutes:
                    return
                tally = own[table.name]
                tally.add(replay(table, name, tally.repetitions, options))
            save()
        print_row(name, row_of(own))


def row_of(own: Mapping[str, Tally]) -> dict[str, float]:
    """Return the means over tasks, the standard error, and the fewest repetitions of a task.

    The standard error is NaN where a task has a single repetition.
    """
    done, count = list(own.values()), len(own)
    return {
        "tasks": count,
        "repetitions": min(tally.repetitions for tally in done),
        "mean": sum(tally.mean for tally in done) / count,
        "standard_error": sum(t.error**2 for t in done) ** 0.5 / count,
        "selected": sum(tally.selected for tally in done) / count,
        "cost": sum(tally.cost for tally in done) / count,
    }


def print_row(name: str, row: Mapping[str, float]) -> None:
    """Print the means of one search."""
    print(
        f"{name:20} {row['mean']:.3f} ±{row['standard_error']:.3f} on fresh seeds, selected by "
        f"{row['selected']:.3f}, cost {row['cost']:4.1f}, {row['repetitions']:4} x "
        f"{row['tasks']} tasks",
        flush=True,
    )


def report(tables: list[Table], tallies: Tallies, saved: dict[str, Any]) -> dict[str, Any]:
    """Return the content of the results file."""
    done = {
        name: {task: tally for task, tally in own.items() if tally.repetitions}
        for name, own in tallies.items()
    }
    return {
        "best": {**saved.get("best", {}), **{t.name: float(t.truth.max()) for t in tables}},
        "means": {name: row_of(own) for name, own in done.items() if own},
        "searches": {
            name: {task: asdict(tally) for task, tally in own.items()}
            for name, own in done.items()
            if own
        },
    }


def names_to_replay(options: argparse.Namespace) -> list[str]:
    """Return the searches of `--only`, by default all that are installed."""
    names = [*SCHEDULES, *STUDIES] if options.cost == COST else [*STUDIES]
    installed = importlib.util.find_spec("smac") is not None
    if not options.only:
        return [name for name in names if name != "smac" or installed]
    for name in options.only:
        if name not in names:
            raise InputError(f"--only {name} is not known; choose of {', '.join(names)}")
        if name == "smac" and not installed:
            raise InputError("--only smac needs the package smac: pip install smac")
    return [name for name in names if name in options.only]


def main(argv: list[str] | None = None) -> int:
    parser = benchmark_parser(__doc__ or "", threads=1)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the tables")
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help="default: all of the folder")
    parser.add_argument("--only", nargs="+", metavar="SEARCH", help="default: all")
    parser.add_argument("--repetitions", type=int, default=200, help="per task")
    parser.add_argument("--minutes", type=float, default=10.0, help="of processor time, then end")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cost", type=float, default=COST, help="full runs of a study")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    try:
        names = names_to_replay(options)
        tables = load_tables(options.data, options.tasks)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    machine = print_machine()
    saved = load_results(options.save)
    settings = {"cost": options.cost, "seed": options.seed}
    if saved.get("settings", settings) != settings:
        print(f"--save {options.save} has results of other settings: {saved['settings']}")
        return 2
    tallies: Tallies = {
        name: {task: Tally(**own) for task, own in tasks.items()}
        for name, tasks in saved.get("searches", {}).items()
    }

    def save() -> None:
        content = {"machine": machine, "settings": settings, **report(tables, tallies, saved)}
        save_results(options.save, content)

    try:
        replay_all(tables, names, tallies, options, save)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{'best of the tables':20} {np.mean([t.truth.max() for t in tables]):.3f}")
    save()
    return 0


if __name__ == "__main__":
    sys.exit(main())
