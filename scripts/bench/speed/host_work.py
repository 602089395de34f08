"""A worker's host work on a small study, and how often it writes to the study's database.

A study of CartPole with 16 environments, 12 trials of ten rungs without pruning, in a new SQLite
file, by the real worker in this process. Host work is all but training and evaluation: asking,
reports, files and the rest. That of the main thread delays training; other threads write
checkpoints and curves meanwhile. A write is a transaction of the main thread that changes
the database. The medians over `--runs` studies; the first one also imports modules. With
`--cpu-time`, shares are of the process's processor time, and those of other threads are known.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy as sa
import torch

from scripts.bench.harness import benchmark_parser, parse_with_clock, print_machine, save_results
from scripts.bench.studies import NAME, work
from sweepd.optimize.objectives.members.trainer import Trainer
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.worker.freeze import open_study

TRAINING = ("training", "evaluation")


class Writes:
    """Counts the transactions of the main thread that change the database.

    Args:
        engine: of the database.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self.count, self._changed = 0, False
        sa.event.listen(engine, "before_cursor_execute", self._executed)
        sa.event.listen(engine, "commit", self._committed)

    def _executed(self, _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            self._changed |= statement.startswith(("INSERT", "UPDATE", "DELETE"))

    def _committed(self, _: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            self.count += self._changed
            self._changed = False


def run_study(folder: Path, budget: int, trials: int, threads: int, clock: str) -> dict[str, Any]:
    """Return seconds by phase, and writes per trial, of one study. clock: see `harness.CLOCKS`."""
    storage = open_storage(storage_url(None, folder))
    request = Request(
        env="cartpole",
        objective="return",
        search_space="game",
        budget=budget,
        n_envs=16,
        pruner="none",
        threads=threads,
    )
    handle, run = open_study(
        storage, NAME, request, torch.device("cpu"), folder, {}, lambda _: None
    )
    assert isinstance(run, Trainer)
    writes = Writes(storage.engine)
    began = time.process_time()
    own = time.thread_time if clock == "processor" else time.perf_counter
    worker, main_thread = work(handle, run.experiment, trials, clock=own)
    all_threads = time.process_time() - began
    storage.engine.dispose()
    phases = {name: spent for name, spent, _ in worker.phases.shares(main_thread)}
    host = sum(spent for name, spent in phases.items() if name not in TRAINING)
    seconds = all_threads if clock == "processor" else main_thread
    shares = {"host_share": host / seconds}
    if clock == "processor":
        shares["other_threads_share"] = (all_threads - main_thread) / seconds
    return {
        **shares,
        "seconds": seconds,
        "phases": phases,
        "host_seconds_per_trial": host / trials,
        "writes_per_trial": writes.count / trials,
    }


def main(argv: list[str]) -> None:
    """Measure, print and save."""
    parser = benchmark_parser(__doc__, threads=1)
    parser.add_argument("--runs", type=int, default=3, help="studies")
    parser.add_argument("--trials", type=int, default=12, help="trials of a study")
    parser.add_argument("--budget", type=int, default=60_000, help="steps of a trial")
    args, clock = parse_with_clock(parser, argv)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    described = print_machine()
    runs = []
    for _ in range(args.runs):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(run_study(Path(folder), args.budget, args.trials, args.threads, clock))
    names = [name for name in runs[0] if name not in ("phases", "seconds")]
    found = {name: statistics.median(run[name] for run in runs) for name in names}
    print(f"host work: {found['host_share']:.1%} of the {clock} time", end="")
    if "other_threads_share" in found:
        print(f", and {found['other_threads_share']:.1%} in other threads", end="")
    print(f"\nper trial: {found['host_seconds_per_trial']:.3f} s of host work, ", end="")
    print(f"{found['writes_per_trial']:.1f} writes to the database")
    for name, spent in sorted(runs[-1]["phases"].items(), key=lambda row: -row[1]):
        print(f"  {name:12}{spent / runs[-1]['seconds']:>8.2%}   (last study)")
    save_results(args.save, {**found, "clock": clock, "runs": runs, "machine": described})
