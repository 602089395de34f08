"""What the benchmarks of games' steps share: rates by size, and the parts of a step."""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from harness import benchmark_parser
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from envs.core.sizing import cpu_count

GOAL_GAMES = 4_096  # at which the goals are stated, and the parts are measured
SIZES = (256, 1_024, GOAL_GAMES, 16_384)


class OperationCount(TorchDispatchMode):
    """Counts operations that compute, and the bytes of their arguments and results."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        # A view moves nothing.
        if not func.is_view:
            self.names[func.overloadpacket.__name__] += 1
            leaves = tree_leaves((args, kwargs or {}, made))
            self.bytes += sum(leaf.nbytes for leaf in leaves if isinstance(leaf, Tensor))
        return made


def speed_parser(description: str) -> argparse.ArgumentParser:
    """Make a parser with `--threads`, `--repeats`, `--seconds`, `--sizes` and `--save`."""
    parser = benchmark_parser(description)
    both = sorted({1, min(2, cpu_count())})
    parser.add_argument("--threads", type=int, nargs="+", default=both, help="torch threads")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="approximate time per run")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="games")
    return parser


def measure_speeds(
    make: Callable[[int], Callable[[int], None]], unit: str, goal: int, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Measure and print the rates of all sizes and numbers of threads.

    Args:
        make: returns, for a number of games, a function that plays this many steps of all of them.
        unit: what a step is called, "steps" or "moves".
        goal: rate that is asked for at `GOAL_GAMES` games.
        args: of `speed_parser`.
    """
    print(f"{'games':>7} {'threads':>8} {unit + '/s':>10} {'slowest':>10} {'fastest':>10}", end=" ")
    print(f"{'per cpu s':>10}")
    names = f"{unit}_per_second", "slowest", "fastest", f"{unit}_per_processor_second"
    rows = []
    for games in args.sizes:
        for threads in args.threads:
            torch.set_num_threads(threads)
            clock, processor = _rates(make(games), games, args.repeats, args.seconds)
            rates = statistics.median(clock), min(clock), max(clock), statistics.median(processor)
            rows.append({"games": games, "threads": threads} | dict(zip(names, rates, strict=True)))
            shown = " ".join(f"{rate:>10,.0f}" for rate in rates)
            print(f"{games:>7,} {threads:>8} {shown}", flush=True)
    reached = [row[names[0]] for row in rows if row["games"] == GOAL_GAMES]
    if reached:
        share = max(reached) / goal
        print(f"{share:.2f} of the goal of {goal:,} {unit}/s at {GOAL_GAMES:,} games")
    return rows


def _rates(
    run: Callable[[int], None], games: int, repeats: int, seconds: float
) -> tuple[list[float], list[float]]:
    """Return the rates per second and per processor second of several runs."""
    run(32)
    began = time.perf_counter()
    run(16)
    count = 16 * max(1, round(seconds / (time.perf_counter() - began)))
    clock, processor = [], []
    for _ in range(repeats):
        began, used = time.perf_counter(), time.process_time()
        run(count)
        clock.append(count * games / (time.perf_counter() - began))
        processor.append(count * games / (time.process_time() - used))
    return clock, processor


def measure_parts(
    calls: Mapping[str, Callable[[], object]], seconds: float, steps: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Measure and print the parts of a step at `GOAL_GAMES` games, with the present threads.

    Args:
        calls: the parts by name.
        seconds: approximate time of each.
        steps: numbers of steps of those calls that make several.
    """
    print(f"where the time goes at {GOAL_GAMES:,} games, 1 thread")
    rows = []
    for name, call in calls.items():
        share = steps.get(name, 1)
        with OperationCount() as count:
            call()
        # Processor time, on which the load of the machine has less influence.
        made, began = 0, time.process_time()
        while time.process_time() - began < seconds:
            call()
            made += 1
        row = {
            "part": name,
            "microseconds": 1e6 * (time.process_time() - began) / made / share,
            "operations": sum(count.names.values()) / share,
            "bytes_per_game": count.bytes / GOAL_GAMES / share,
            "most": [(one, number // share) for one, number in count.names.most_common(6)],
        }
        rows.append(row)
        most = ", ".join(f"{number} {one}" for one, number in row["most"])
        print(
            f"{name:>30} {row['microseconds']:>8,.0f} us {row['operations']:>5.0f} operations "
            f"{row['bytes_per_game']:>8,.0f} bytes per game; {most}",
            flush=True,
        )
    return rows
