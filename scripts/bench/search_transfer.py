"""Transfer between tasks, replayed on tabulated learning curves: what is an earlier study worth?

For every task, the race is replayed with a quarter, half and all of 96 full runs: without a prior,
with one from the next task that has the same hyperparameters (`related`), and with the same one
with its values negated (`negated`) or permuted (`permuted`), which mislead. The earlier study is a
race of 96 full runs on its task. See `search_replay.py` for the tables and the scores.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import torch
from harness import benchmark_parser, print_machine, save_results
from search_replay import COST
from search_studies import DaemonStudy, Run
from search_tables import Floats, Table, load_tables

from envs.core.streams import derive_seed
from envs.support.errors import InputError
from optimize.study.prior import MOST, known_trials, strongest
from optimize.study.sampling.prior import Known

RACE_STUDY = DaemonStudy("race", "none", seeds=1, rungs=10, trials_per_batch=10)
COSTS = (COST / 4, COST / 2, COST)
PRIORS = ("none", "related", "negated", "permuted")


def earlier_study(source: Table, target: Table, seed: int) -> list[Known]:
    """Return what a race on another task knows of the configurations in a task's space."""
    trials, _ = RACE_STUDY.play(Run(source, np.random.default_rng(seed), COST), seed % 2**32)
    own, _ = known_trials(RACE_STUDY.selection, trials, source.space(), target.space(), 1)
    return strongest(own, MOST)


def changed(known: Sequence[Known], prior: str, seed: int) -> list[Known]:
    """Return the configurations with the values of this kind of prior."""
    values = np.array([one.value for one in known])
    if prior == "negated":
        values = -values
    if prior == "permuted":
        values = np.random.default_rng(seed).permutation(values)
    return [
        dataclasses.replace(one, value=float(value))
        for one, value in zip(known, values, strict=True)
    ]


def score(table: Table, prior: Sequence[Known], cost: float, seed: int) -> float:
    """Return the score on fresh seeds of one replayed study."""
    run = Run(table, np.random.default_rng(seed), cost)
    choice = dataclasses.replace(RACE_STUDY, prior=tuple(prior)).choose(run, seed % 2**32)
    return 0.0 if choice is None else run.fresh(choice.config)


def pairs(tables: Sequence[Table]) -> list[tuple[Table, Table]]:
    """Return each task with the next one that has the same hyperparameters."""

    def names(table: Table) -> frozenset[str]:
        return frozenset(column.name for column in table.columns)

    found = []
    for i, table in enumerate(tables):
        others = [*tables[i + 1 :], *tables[:i]]
        source = next((other for other in others if names(other) == names(table)), None)
        if source is not None:
            found.append((table, source))
    return found


def replay(table: Table, source: Table, repetition: int, seed: int) -> Floats:
    """Return the scores of one repetition, (costs, priors)."""
    own = derive_seed(seed, table.name, "transfer", repetition)
    known = earlier_study(source, table, derive_seed(own, "earlier"))
    scores = np.zeros((len(COSTS), len(PRIORS)))
    for i, cost in enumerate(COSTS):
        for k, prior in enumerate(PRIORS):
            used = [] if prior == "none" else changed(known, prior, own)
            scores[i, k] = score(table, used, cost, own)
    return scores


def report(names: Sequence[str], done: Sequence[Sequence[Floats]]) -> dict[str, Any]:
    """Print the means over tasks, and return them with those of each task.

    The errors are those of the differences from no prior.
    """
    repetitions = min(map(len, done))
    if not repetitions:
        return {"repetitions": 0}
    scores = np.array([own[:repetitions] for own in done])  # task, repetition, cost, prior
    gains = scores - scores[..., :1]
    print(f"{len(done)} tasks x {repetitions} repetitions: score on fresh seeds (difference)")
    means: dict[str, Any] = {}
    for i, cost in enumerate(COSTS):
        own = means[f"{cost:.0f}"] = {}
        for k, prior in enumerate(PRIORS):
            gain = gains[:, :, i, k]
            own[prior] = {
                "mean": float(scores[:, :, i, k].mean()),
                "gain": float(gain.mean()),
                "error": float(gain.std() / max(1, gain.size - 1) ** 0.5),
            }
        parts = [
            f"{prior} {row['mean']:.3f} ({row['gain']:+.3f} ± {row['error']:.3f})"
            for prior, row in own.items()
        ]
        print(f"  {cost:3.0f} runs: " + ", ".join(parts), flush=True)
    tasks = {
        name: own.tolist() for name, own in zip(names, scores.mean(1), strict=True)
    }  # (costs, priors)
    return {"repetitions": repetitions, "priors": list(PRIORS), "means": means, "tasks": tasks}


def main(argv: list[str] | None = None) -> int:
    parser = benchmark_parser(__doc__ or "", threads=1)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the tables")
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help="default: all of the folder")
    parser.add_argument("--repetitions", type=int, default=20, help="per task")
    parser.add_argument("--minutes", type=float, default=10.0, help="of processor time, then end")
    parser.add_argument("--seed", type=int, default=0)
    options: argparse.Namespace = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        found = pairs(load_tables(options.data, options.tasks))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    if not found:
        print("no two of the tasks have the same hyperparameters", file=sys.stderr)
        return 2
    machine = print_machine()
    done: list[list[Floats]] = [[] for _ in found]
    rounds = ((r, i) for r in range(options.repetitions) for i in range(len(found)))
    for repetition, i in rounds:
        if time.process_time() > 60.0 * options.minutes:
            break
        done[i].append(replay(*found[i], repetition, options.seed))
    names = [f"{table.name} after {source.name}" for table, source in found]
    content = {"machine": machine, "seed": options.seed, **report(names, done)}
    save_results(options.save, content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
