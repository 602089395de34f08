"""Searches replayed on tabulated learning curves: what is their choice worth on fresh seeds?

A search asks for a configuration, gets its learning curve on one seed up to a part of the budget,
and pays that part. Every search may pay for 96 full runs. The choice is scored by the mean final
performance on the seeds that were not used, scaled to 0 … 1 for each task, and averaged over
repetitions with other random numbers. The nearest unused configuration of the table stands for the
one that a sampler asks for.

`--data` is a folder of tables (`search_tables.py`). The searches:

    race           a study of sweepd with the flags of `--sampler auto` on a CPU; decisions are made
                   by the functions of the worker
    tpe            the same with the flags of `--sampler tpe`
    random-…       the best of random configurations, with 3 seeds or one
    optuna-…       Optuna's samplers and pruners
    smac           SMAC3, where it is installed

For comparison, `best` is the best configuration of a table, and `best of 96` the expected best of
96 random ones, as if noise did not exist. Population-based training does not apply: a table has no
curve of a run whose hyperparameters change.

Results are merged into the file of `--save`: repetitions that it has already are not replayed
again. A run that was ended by `--minutes` or by Ctrl-C is continued by the same command. The
figures do not depend on the machine.

    python -m scripts.bench run search_replay --data DIR --save scripts/bench/results/search_replay.json
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import statistics
import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import torch
from optuna.pruners import HyperbandPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, CmaEsSampler, TPESampler

from scripts.bench.harness import benchmark_parser, load_results, print_machine, save_results
from scripts.bench.search.search_studies import DaemonStudy, OptunaStudy, Run, Smac
from scripts.bench.search.search_tables import Table, load_tables
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.support.errors import InputError


def _tpe(seed: int) -> BaseSampler:
    return TPESampler(multivariate=True, seed=seed)


def _cmaes(seed: int) -> BaseSampler:
    return CmaEsSampler(seed=seed)


def _asha() -> SuccessiveHalvingPruner:
    return SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)


def _hyperband() -> HyperbandPruner:
    return HyperbandPruner(min_resource=1, max_resource=10, reduction_factor=3)


COST = 96.0  # full runs that a search may pay for
SEARCHES: Mapping[str, DaemonStudy | OptunaStudy | Smac] = {
    "race": DaemonStudy("race", "none", seeds=1, rungs=10, trials_per_batch=10),
    "tpe": DaemonStudy(),
    "random-32x3": DaemonStudy("random", "none", seeds=3),
    "random-96x1": DaemonStudy("random", "none", seeds=1),
    "optuna-tpe": OptunaStudy(_tpe),
    "optuna-tpe-hyperband": OptunaStudy(_tpe, _hyperband),
    "optuna-tpe-asha": OptunaStudy(_tpe, _asha),
    "optuna-cmaes": OptunaStudy(_cmaes),
    "smac": Smac(),
}
Samples = dict[str, list[float]]  # score on fresh seeds, value of the selection, cost


def replay(table: Table, name: str, repetition: int, seed: int) -> dict[str, float]:
    """Replay one repetition of a search."""
    own = derive_seed(seed, table.name, name, repetition)
    run = Run(table, np.random.default_rng(own), COST)
    choice = SEARCHES[name].choose(run, own % 2**32)
    # A search without any result has nothing to deploy.
    fresh = 0.0 if choice is None else run.fresh(choice.config)
    selected = 0.0 if choice is None else choice.value
    return {"fresh": fresh, "selected": selected, "cost": COST - run.left}


def mean_row(tasks: Mapping[str, Samples]) -> dict[str, float]:
    """Return the means over tasks, the standard error, and the fewest repetitions of a task.

    The standard error is NaN where a task has a single repetition.
    """
    own = list(tasks.values())
    few = min(len(one["fresh"]) for one in own)
    errors = [
        statistics.variance(one["fresh"]) / len(one["fresh"]) if few > 1 else math.nan
        for one in own
    ]
    means = {
        name: statistics.fmean(statistics.fmean(one[name]) for one in own)
        for name in ("fresh", "selected", "cost")
    }
    error = math.sqrt(sum(errors)) / len(own)
    return {"tasks": len(own), "repetitions": few, **means, "standard_error": error}


def expected_best(truth: np.ndarray, count: int) -> float:
    """Return the expected highest of `count` values that are drawn without replacement."""
    ordered, total = np.sort(truth), math.comb(len(truth), count)
    ways = [math.comb(place, count - 1) / total for place in range(len(ordered))]
    return float(np.dot(ways, ordered))


def names_to_replay(only: list[str] | None) -> list[str]:
    """Return the searches of `--only`, by default all that are installed."""
    installed = importlib.util.find_spec("smac") is not None
    for name in only or ():
        if name not in SEARCHES:
            raise InputError(f"--only {name} is not known; choose of {', '.join(SEARCHES)}")
        if name == "smac" and not installed:
            raise InputError("--only smac needs the package smac: pip install smac")
    return [name for name in SEARCHES if (name in only if only else name != "smac" or installed)]


def replay_all(
    tables: list[Table], names: list[str], content: dict[str, Any], options: argparse.Namespace
) -> None:
    """Bring all searches to `--repetitions`, one round over the tasks after the other.

    Saves after every round, and ends early after `--minutes` of processor time.
    """
    for name in names:
        own = content["searches"].setdefault(name, {})
        for repetition in range(options.repetitions):
            for table in tables:
                samples: Samples = own.setdefault(
                    table.name, {"fresh": [], "selected": [], "cost": []}
                )
                if len(samples["fresh"]) > repetition:
                    continue
                if time.process_time() > 60.0 * options.minutes:
                    return
                for figure, value in replay(table, name, repetition, options.seed).items():
                    samples[figure].append(value)
            content["means"][name] = mean_row(own)
            save_results(options.save, content)
        row = content["means"][name]
        print(
            f"{name:20} {row['fresh']:.3f} ±{row['standard_error']:.3f} on fresh seeds, selected "
            f"by {row['selected']:.3f}, cost {row['cost']:4.1f}, {row['repetitions']:4} x "
            f"{row['tasks']} tasks",
            flush=True,
        )


def main(argv: list[str] | None = None) -> int:
    parser = benchmark_parser(__doc__ or "", threads=1)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the tables")
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help="default: all of the folder")
    parser.add_argument("--only", nargs="+", metavar="SEARCH", help="default: all")
    parser.add_argument("--repetitions", type=int, default=10, help="per task")
    parser.add_argument("--minutes", type=float, default=60.0, help="of processor time, then end")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    try:
        names = names_to_replay(options.only)
        tables = load_tables(options.data, options.tasks)
        machine, content = print_machine(), load_results(options.save)
        if content.get("seed", options.seed) != options.seed:
            raise InputError(f"--save {options.save} has results of --seed {content['seed']}")
        best = {table.name: float(table.truth.max()) for table in tables}
        of_random = {t.name: expected_best(t.truth, min(int(COST), len(t.truth))) for t in tables}
        content = {
            "machine": machine,
            "seed": options.seed,
            "best": content.get("best", {}) | best,
            f"best of {COST:g}": content.get(f"best of {COST:g}", {}) | of_random,
            "means": content.get("means", {}),
            "searches": content.get("searches", {}),
        }
        replay_all(tables, names, content, options)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    for name, found in (("best", best), (f"best of {COST:g}", of_random)):
        print(f"{name:20} {statistics.fmean(found.values()):.3f}")
    save_results(options.save, content)
    return 0
