"""How long a sampler takes to draw a trial's parameters, by the number of finished trials.

Each study has finished trials with random parameters of the space for CartPole and random values;
in the race, one in three repeats an earlier trial's parameters. The trials are drawn through
`sweepd.optimize.study.search`, as a worker does, from a storage in memory. `median` and `worst` are
of `--draws` draws in milliseconds of processor time: between two draws a trial is finished, so the
race fits its kernel now and then. The times include Python's garbage collections. TPE is Optuna's,
with the same trials.
"""

from __future__ import annotations

import sweepd.envs  # noqa: F401  # before NumPy: OpenBLAS reads its number of threads once

# isort: split

import gc
import time
import warnings
from typing import Any

import numpy as np
import optuna
import torch
from optuna.samplers import RandomSampler
from optuna.storages import InMemoryStorage
from optuna.study import StudyDirection
from optuna.trial import TrialState, create_trial

from scripts.bench.harness import benchmark_parser, print_machine, save_results
from sweepd.optimize.study.record.configurations import RACE, Selection
from sweepd.optimize.study.sampling import race  # noqa: F401  # as a worker does before its first draw
from sweepd.optimize.study.search import Search
from sweepd.optimize.study.space.parsing import load_space
from sweepd.optimize.study.space.subject import Subject

STUDY = "ask"
SAMPLERS = ("tpe", RACE)


def filled(search: Search, finished: int) -> tuple[InMemoryStorage, int]:
    """Return a storage with a study of that many finished trials, and the study's row id."""
    rng = np.random.default_rng(0)
    storage = InMemoryStorage()
    study_id = storage.create_new_study([StudyDirection.MAXIMIZE], STUDY)
    drawing = optuna.create_study(sampler=RandomSampler(seed=0))
    earlier: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for number in range(finished):
        if number % 3 == 2:
            params, distributions = earlier[int(rng.integers(len(earlier)))]
        else:
            trial = drawing.ask()
            params, distributions = search.space.suggest(trial), trial.distributions
            earlier.append((params, distributions))
        value = float(np.log(params["learning_rate"]) + rng.normal())
        template = create_trial(value=value, params=params, distributions=distributions)
        storage.create_new_trial(study_id, template)
    return storage, study_id


def draw_times(sampler: str, finished: int, draws: int) -> dict[str, float]:
    """Return the median and the longest time of a draw, in milliseconds."""
    space = load_space("game", Subject("cartpole"), None)
    search = Search(
        space, sampler=sampler, pruner="none", rungs=10, seed=0, selection=Selection(True, 10)
    )
    storage, study_id = filled(search, finished)
    rng, times = np.random.default_rng(1), []
    for _ in range(draws + 1):
        trial_id = storage.create_new_trial(study_id)
        number = storage.get_trial_number_from_id(trial_id)
        began = time.process_time()
        search.draw(storage, STUDY, trial_id, number, None, 2 * finished)
        times.append(1000.0 * (time.process_time() - began))
        storage.set_trial_state_values(trial_id, TrialState.COMPLETE, [float(rng.normal())])
    # The first draw of a process reads all trials and fits the kernel.
    return {"median": float(np.median(times[1:])), "worst": max(times[1:]), "first": times[0]}


def main(argv: list[str] | None = None) -> int:
    parser = benchmark_parser(__doc__ or "", threads=1)
    parser.add_argument("--trials", type=int, nargs="+", default=[100, 1000, 5000])
    parser.add_argument("--draws", type=int, default=40)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    gc.freeze()  # as a worker does: a collection does not scan the objects of the imported modules
    machine, found = print_machine(), {}
    for finished in options.trials:
        for sampler in SAMPLERS:
            own = found[f"{sampler}-{finished}"] = draw_times(sampler, finished, options.draws)
            numbers = ", ".join(f"{name} {ms:6.1f}" for name, ms in own.items())
            print(f"{finished:6,} trials, {sampler:4}: {numbers} ms", flush=True)
        ratio = found[f"tpe-{finished}"]["median"] / found[f"{RACE}-{finished}"]["median"]
        print(f"{finished:6,} trials: a draw of TPE takes {ratio:.1f} times as long as the race's")
    save_results(options.save, {"machine": machine, "milliseconds": found})
    return 0
