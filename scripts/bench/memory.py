"""Resident memory of one worker process over hundreds of trials: it must not grow.

Tiny trials (two assets of the demo market, 3 folds, two widths and two minibatches in turn, so that programs are made
and given up again) through the real worker, with everything it writes. The resident set is printed every 25 trials;
what counts is its growth from a third of the way on, when every library is loaded and every buffer has been needed.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
from pathlib import Path

import optuna
import psutil
import torch
from machine import machine, machine_line
from rich.console import Console
from studies import study_in, work

from envs.crypto.demo_market import make_demo_market
from envs.crypto.splits import CrossValidation
from envs.files import write_atomic
from optimize.telemetry import Telemetry

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
ALLOWED = 5.0  # MiB per 100 trials: the sampler remembers finished trials, about 20 kB each


class Watch(Telemetry):
    """Prints the resident set whenever another `every` trials are finished."""

    def __init__(self, name: str, every: int) -> None:
        super().__init__(Console(quiet=True), name, torch.device("cpu"))
        self.every, self.count = every, 0
        self.samples: list[tuple[int, float]] = []

    def finished(self, count: int) -> None:
        super().finished(count)
        self.count += count
        if self.count % self.every == 0:
            gc.collect()
            resident = psutil.Process().memory_info().rss / 2**20
            self.samples.append((self.count, resident))
            print(f"{self.count:>6} trials {resident:>9.1f} MiB resident", flush=True)


def slope(samples: list[tuple[int, float]]) -> float:
    """MiB per 100 trials: least squares through the samples."""
    mean_x, mean_y = (sum(column) / len(samples) for column in zip(*samples, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    return 100.0 * sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread


def main(argv: list[str]) -> None:
    """Run, print, and save where asked to. Exit code 1 where memory grows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--every", type=int, default=25)
    parser.add_argument("--save", type=Path, help="write the results to this JSON file")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    print(machine_line(machine()))
    request = {
        "budget": 512, "rungs": 2, "n_envs": 4, "horizon": 16, "slots": 6, "trials_per_batch": 4, "holdout": 0.05,
        "cv": CrossValidation("kfold", groups=3),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        handle, experiment = study_in(Path(folder), make_demo_market(0, assets=2, bars=4_000), request, SPACE)
        watch = Watch(handle.name, args.every)
        _, seconds = work(handle, experiment, args.trials, watch)
    late = [sample for sample in watch.samples if sample[0] >= args.trials / 3]
    growth = slope(late)
    verdict = "does not grow" if growth <= ALLOWED else "GROWS"
    print(
        f"{args.trials} trials in {seconds:.0f} s: from trial {late[0][0]} on {growth:+.1f} MiB per 100 trials "
        f"({late[0][1]:.0f} to {late[-1][1]:.0f} MiB); at most {ALLOWED:g} are allowed: it {verdict}"
    )
    if args.save:
        result = {"machine": machine(), "samples": watch.samples, "mib_per_100_trials": growth, "seconds": seconds}
        write_atomic(args.save, json.dumps(result, indent=1) + "\n")
    sys.exit(growth > ALLOWED)


if __name__ == "__main__":
    main(sys.argv[1:])
