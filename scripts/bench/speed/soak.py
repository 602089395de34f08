"""Hundreds of short trials in one study and one worker: database time and memory over time.

    python -m scripts.bench run soak --save scripts/bench/results/soak.json
        --picture docs/images/soak.png

Tiny trials (two assets, 700 bars, 3 folds, 16 trials per batch; two widths and two minibatches, so
that programs are created and freed repeatedly) run through the real worker with all its output. Two
figures must not grow: the time per trial spent in the study (asking, including the sampler;
reporting and judging each rung; telling), and the resident memory after the first third, when all
libraries are loaded and all buffers have been used. Times are given as wall time and as processor
time of the calling thread, which other processes do not affect.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import psutil
import torch
from numpy.typing import NDArray
from rich.console import Console

from scripts.bench.harness import benchmark_parser, machine, print_machine, save_results
from scripts.bench.studies import study_in, work
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.data.demo_market import make_planted_market
from sweepd.envs.crypto.features import Recipe, register_recipe
from sweepd.optimize.study.study import StudyHandle
from sweepd.optimize.worker.telemetry import Telemetry

SPACE = """
name = "tiny"
version = 1
[shape]
net_width = { choices = [16, 32] }
net_depth = { value = 1 }
minibatch = { choices = [32, 64] }
epochs = { value = 1 }
[ppo]
learning_rate = { low = 1e-4, high = 2e-3, log = true }
one_minus_gamma = { low = 0.02, high = 0.08 }
target_kl = { low = 0.005, high = 0.05, log = true, off = 0.0 }
lr_schedule = { choices = ["constant", "linear"] }
[env]
action_scale = { low = 0.1, high = 0.3 }
trailing_stop = { low = 0.02, high = 0.3, off = 0.0 }
"""
ALLOWED_GROWTH = 5.0  # MiB per 100 trials; the sampler keeps about 20 kB per finished trial
ALLOWED_MILLISECONDS = 1000.0  # of the calling thread, per trial
# `_ask_batch`, since workers call `StudyHandle.ask_batch` as a function of the class.
ASKING, TELLING = ("_ask_batch",), ("report_all", "judge", "end_all")
FIELDS = ("trials", "resident_mib", "ask_ms", "ask_cpu_ms", "tell_ms", "tell_cpu_ms", "seconds")


def _last_return(bars: Bars) -> NDArray[np.float64]:
    """Return each asset's last log return, in percent."""
    change = np.zeros_like(bars.close)
    change[1:] = 100.0 * np.log(bars.close[1:] / bars.close[:-1])
    return change


# Features with a short memory need short purges, so that three folds fit into 700 bars.
RECIPE = register_recipe(Recipe("soak", 1, 8, ("last_return",), (), _last_return))
REQUEST: dict[str, Any] = {
    "budget": 256,
    "rungs": 2,
    "n_envs": 4,
    "horizon": 16,
    "slots": 48,
    "trials_per_batch": 16,
    "holdout": 0.1,
    "recipe": RECIPE.name,
    "cv": "kfold",
    "groups": 3,
}


class Clock:
    """Sums up the wall time and thread time of calls to a study's methods and of its records."""

    def __init__(self, handle: StudyHandle) -> None:
        self.spent = dict.fromkeys(("ask_ms", "ask_cpu_ms", "tell_ms", "tell_cpu_ms"), 0.0)
        for kind, names in (("ask", ASKING), ("tell", TELLING)):
            for name in names:
                setattr(handle, name, self._timed(getattr(handle, name), kind))

    def _timed(self, method: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            clock, thread = time.perf_counter(), time.thread_time()
            try:
                return method(*arguments, **named)
            finally:
                self.spent[f"{kind}_ms"] += 1e3 * (time.perf_counter() - clock)
                self.spent[f"{kind}_cpu_ms"] += 1e3 * (time.thread_time() - thread)

        return timed

    def take(self, trials: int) -> dict[str, float]:
        """Return milliseconds per trial since the last call, in which so many were finished."""
        per_trial = {name: value / trials for name, value in self.spent.items()}
        self.spent = dict.fromkeys(self.spent, 0.0)
        return per_trial


class Watch(Telemetry):
    """Takes and prints a sample after every `every` finished trials."""

    def __init__(self, handle: StudyHandle, every: int) -> None:
        super().__init__(Console(quiet=True), handle.name, torch.device("cpu"))
        self.every, self.count, self.clock = every, 0, Clock(handle)
        self.samples: list[dict[str, float]] = []
        self.began = time.perf_counter()

    def finished(self, count: int) -> None:
        super().finished(count)
        self.count += count
        if self.count % self.every == 0:
            gc.collect()
            resident = psutil.Process().memory_info().rss / 2**20
            taken = {name: round(value, 2) for name, value in self.clock.take(self.every).items()}
            since = round(time.perf_counter() - self.began, 1)
            self.samples.append(
                {
                    "trials": self.count,
                    "resident_mib": round(resident, 1),
                    **taken,
                    "seconds": since,
                }
            )
            print("  ".join(f"{name} {self.samples[-1][name]:g}" for name in FIELDS), flush=True)


def slope(points: list[tuple[float, float]]) -> float:
    """Return the least-squares slope of the second coordinate over the first."""
    mean_x, mean_y = (sum(column) / len(points) for column in zip(*points, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread


def median(samples: list[dict[str, float]], kind: str) -> float:
    """Return the median time of asking and telling a trial, in milliseconds."""
    return statistics.median(s[f"ask_{kind}"] + s[f"tell_{kind}"] for s in samples)


def draw(samples: list[dict[str, float]], path: Path) -> None:
    """Draw time and memory over trials."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True)
    at = [s["trials"] for s in samples]
    for name, label in (("ask_cpu_ms", "asking"), ("tell_cpu_ms", "reporting, judging, telling")):
        above.plot(at, [s[name] for s in samples], label=label)
    above.set(
        ylabel="ms of the thread per trial", ylim=(0, None), title="One worker process, one study"
    )
    above.legend(frameon=False)
    below.plot(at, [s["resident_mib"] for s in samples], color="black")
    highest = max(s["resident_mib"] for s in samples)
    below.set(ylabel="resident set, MiB", xlabel="finished trials", ylim=(0, 1.2 * highest))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main(argv: list[str]) -> None:
    """Run, print and save. Exits with 1 if a limit is exceeded."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--every", type=int, default=25)
    parser.add_argument("--picture", type=Path, metavar="PNG", help="draw the results")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    print_machine()
    with tempfile.TemporaryDirectory() as folder:
        handle, experiment = study_in(
            Path(folder), make_planted_market(3, assets=2, bars=700), REQUEST, SPACE
        )
        watch = Watch(handle, args.every)
        with suppress(KeyboardInterrupt):  # on Ctrl-C, report the trials so far
            work(handle, experiment, args.trials, watch)
        seconds = time.perf_counter() - watch.began
    samples = watch.samples
    late = [s for s in samples if s["trials"] >= watch.count / 3]
    tenth = max(1, len(samples) // 10)
    result = {
        "machine": machine(),
        "trials": watch.count,
        "seconds": round(seconds, 1),
        "mib_per_100_trials": round(
            100 * slope([(s["trials"], s["resident_mib"]) for s in late]), 3
        ),
        "ask_and_tell_cpu_ms": {
            "first": median(samples[:tenth], "cpu_ms"),
            "last": median(samples[-tenth:], "cpu_ms"),
        },
        "ask_and_tell_ms": {
            "first": median(samples[:tenth], "ms"),
            "last": median(samples[-tenth:], "ms"),
        },
        "largest_cpu_ms": max(s["ask_cpu_ms"] + s["tell_cpu_ms"] for s in samples),
        "samples": samples,
    }
    print(
        json.dumps(
            {name: value for name, value in result.items() if name not in ("machine", "samples")},
            indent=1,
        )
    )
    save_results(args.save, result)
    if args.picture:
        draw(samples, args.picture)
    grows = result["mib_per_100_trials"] > ALLOWED_GROWTH
    slow = result["largest_cpu_ms"] > ALLOWED_MILLISECONDS
    print(
        f"memory {'GROWS' if grows else 'does not grow'}; asking and telling "
        f"{'TOO SLOW' if slow else 'within bounds'}"
    )
    sys.exit(grows or slow)
