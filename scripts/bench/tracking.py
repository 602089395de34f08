"""What `--track` costs a worker: short studies of CartPole with and without trackers, in turn.

CPU seconds are those of the worker's process; the process that sends to the tracker has a low
priority and is not counted. MLflow writes to a local SQLite file, W&B is offline.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

from harness import (
    benchmark_parser,
    median_ratio,
    medians,
    paired_runs,
    print_machine,
    save_results,
)

import sweepd
from optimize.worker.tracked import TrackedStudy


def main(argv: list[str]) -> None:
    """Run the studies, print and save the figures."""
    parser = benchmark_parser(__doc__, threads=1)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--budget", type=int, default=60_000)
    parser.add_argument("--rungs", type=int, default=8)
    parser.add_argument("--trackers", nargs="*", default=["mlflow", "wandb"])
    args = parser.parse_args(argv)
    updates: list[float] = []  # CPU milliseconds of the worker's thread
    update = TrackedStudy.update

    def timed(self: TrackedStudy, trial_id: int) -> None:
        began = time.thread_time()
        update(self, trial_id)
        if self.tracking:
            updates.append(1e3 * (time.thread_time() - began))

    def study(*trackers: str) -> float:
        with tempfile.TemporaryDirectory() as folder:
            store = f"sqlite:///{Path(folder) / 'mlflow.db'}"
            variables = {"MLFLOW_TRACKING_URI": store, "WANDB_MODE": "offline"}
            with mock.patch.dict(os.environ, variables), contextlib.redirect_stdout(io.StringIO()):
                opened = sweepd.create_study(
                    "bench",
                    env="cartpole",
                    runs_dir=folder,
                    n_trials=args.trials,
                    budget=args.budget,
                    rungs=args.rungs,
                    n_envs="16",
                    slots=4,
                    seeds=2,
                    threads=args.threads,
                    gpu="cpu",
                    pruner="none",
                    sampler="random",
                    fresh_seeds=0,
                    track=list(trackers) or None,
                )
                began = time.process_time()
                opened.run()
                return time.process_time() - began

    contenders = {"none": study, **{name: lambda own=name: study(own) for name in args.trackers}}
    with mock.patch.object(TrackedStudy, "update", timed):
        seconds = paired_runs(contenders, args.runs, "processor")
    described = print_machine()
    ratios = {name: median_ratio(seconds[name], seconds["none"]) for name in args.trackers}
    for name, median in medians(seconds).items():
        ratio = f", {ratios[name]:.3f} of that without" if name in ratios else ""
        print(f"{name}: {median:.2f} CPU seconds of the worker{ratio}")
    each = sum(updates) / max(1, len(updates))
    print(f"{each:.2f} CPU ms of the worker per trial and rung ({len(updates)} updates)")
    result = {"cpu_seconds": seconds, "ratios": ratios, "ms_per_update": each}
    save_results(args.save, {**result, "machine": described})


if __name__ == "__main__":
    main(sys.argv[1:])
