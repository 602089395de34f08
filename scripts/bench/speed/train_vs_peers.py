"""PPO training speed: ours against ElegantRL, Stable-Baselines3, CleanRL's style and compiled peers.

All train on the same environments with the same sizes and parameters. Figures are environment steps
per second over a grid of cells (num_envs x minibatch x network). Ours trains the members (folds)
together, and its steps are summed over them. A peer trains one at a time, in one process with all
threads and in two concurrent processes with half of the threads each. Full rollouts are timed:
exploration, advantages, update. Medians of paired runs. Peers run in processes of their own, with
MKL in its default mode. A run continues if its results file is given again.

    python -m scripts.bench run train_vs_peers --save scripts/bench/results/train_vs_peers.json
    python -m scripts.bench run train_vs_peers --grid --save …     all cells (hours)
    python -m scripts.bench run train_vs_peers --peers leanrl \\
        --save scripts/bench/results/train_vs_leanrl.json          needs a C++ compiler
    python -m scripts.bench run train_vs_peers --peers jax-vmap jax-map \\
        --save scripts/bench/results/train_vs_jax.json             after pip install jax optax

What is compiled counts from the second rollout on; the seconds before it, with the compilation from
an empty cache, are printed beside.

On a busy machine, `--cpu-time` uses the processor time of one thread instead. --stop-after ends the
run after that many seconds, between two cells.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from scripts.bench.harness import (
    CLOCKS,
    benchmark_parser,
    load_results,
    machine,
    median_ratio,
    paired_runs,
    parse_with_clock,
    print_machine,
    save_results,
    steps_per_second,
)
from scripts.bench.peers import PeerProcesses, serve
from scripts.bench.speed.peak import peaks
from scripts.bench.speed.roofline import operations
from scripts.bench.speed.trainers import COMPILED_PEERS, PARAMS, PEERS, TRAINERS, Cell, make_env

NUM_ENVS, MINIBATCHES, WIDTHS = (1, 12, 256, 2048), (64, 256, 1024, 4096), (64, 128, 256)
OURS = ("ours", "torch")  # with native kernels (where they can be compiled), and without
TRANSITIONS, SHORTEST = 4096, 16  # per rollout (or a multiple), and minimum horizon
EPOCHS = 2
# Goals: ours with all members against the fastest peer, by network and minibatch.
GOALS = {
    64: {64: 20.0, 256: 9.0, 1024: 5.5},
    128: {64: 9.0, 256: 6.0, 1024: 4.0},
    256: {64: 5.0, 256: 3.5, 1024: 3.0},
}
COMPILED_GOALS = {64: 3.0, 128: 2.5, 256: 2.0}  # against the fastest compiled peer, by network
PAIR = " pair"  # of the names of peers in two concurrent processes
PAIR_GOAL = 1.3  # everywhere, against the fastest peer in two concurrent processes


def cell_of(task: str, num_envs: int, minibatch: int, width: int, members: int) -> Cell:
    """Make a cell of the grid. Its rollouts consist of full minibatches for any number of envs."""
    horizon = max(SHORTEST, math.lcm(TRANSITIONS, num_envs) // num_envs)
    return Cell(task, num_envs, minibatch, width, horizon, EPOCHS, members=members)


def default_cells(task: str, members: int) -> list[Cell]:
    """Return the cells with goals at 256 envs, and one cell at each other number of envs."""
    goals = [
        cell_of(task, 256, minibatch, width, members)
        for width in WIDTHS
        for minibatch in (64, 256, 1024)
    ]
    return goals + [cell_of(task, num_envs, 256, 128, members) for num_envs in (1, 12, 2048)]


class Results:
    """Results in a file that is updated after each cell."""

    def __init__(self, path: Path | None, stop_after: float) -> None:
        self.path = path
        self.content = load_results(path)
        self.cells: dict[str, Any] = self.content.setdefault("speed", {})
        self._stop = time.monotonic() + stop_after

    def missing(self, keys: list[Cell]) -> Iterator[Cell]:
        """Yield the cells without a result until the time is up."""
        for key in keys:
            if str(key) in self.cells:
                continue
            if time.monotonic() > self._stop:
                print("stopped; the same command continues here")
                return
            yield key

    def add(self, key: str, value: dict[str, Any]) -> None:
        """Store a result."""
        self.cells[key] = value | {"machine": machine()}
        save_results(self.path, self.content)


def prepare(name: str, cell: dict[str, Any]) -> Callable[[], int]:
    """Return the rollouts of a trainer, for `peers.serve`."""
    return TRAINERS[name](Cell(**cell))


def operations_per_step(cell: Cell) -> float:
    """Return the floating-point operations that an environment step's training needs."""
    env = make_env(cell, 1)
    shape = cell.shape(env, 1)
    return operations(shape, env) / shape.samples


def measure_cell(
    cell: Cell,
    peers: list[str],
    processes: dict[str, PeerProcesses],
    runs: int,
    seconds: float,
    clock: str,
) -> dict[str, Any]:
    """Measure all trainers in turn.

    Args:
        cell: the sizes.
        peers: their names.
        processes: that run them, by what is added to the name of the peer.
        runs: measurements of each.
        seconds: minimum time of a measurement.
        clock: of `harness.CLOCKS`.
    """
    rollouts = {name: TRAINERS[name](cell) for name in OURS}
    for rollout in rollouts.values():
        rollout()
    contenders: dict[str, Callable[[], float]] = {
        name: functools.partial(steps_per_second, rollout, seconds, CLOCKS[clock])
        for name, rollout in rollouts.items()
    }
    mode, prepared = None, {}
    for suffix, process in processes.items():
        for name in peers:
            began = time.perf_counter()
            mode = process.prepare(name, asdict(cell))
            prepared[name + suffix] = time.perf_counter() - began
            contenders[name + suffix] = functools.partial(process.measure, name, seconds, clock)
    speeds = paired_runs(contenders, runs, clock)

    def over(names: list[str]) -> float:
        best = [max(values) for values in zip(*(speeds[name] for name in names), strict=True)]
        return median_ratio(speeds["ours"], best)

    result: dict[str, Any] = {
        "cell": asdict(cell),
        "clock": clock,
        "peers_mkl": mode,
        "seconds_to_prepare": prepared,
        "runs": speeds,
        "ours_over_best": over(peers),
        "ours_over_torch": median_ratio(speeds["ours"], speeds["torch"]),
        "operations_per_step": operations_per_step(cell),
        "peak_gflops": max(peaks(torch.device("cpu"), seconds).values()) / 1e9,
    }
    if PAIR in processes:
        result["ours_over_best_pair"] = over([name + PAIR for name in peers])
    return result


def speed(args: argparse.Namespace, clock: str) -> int:
    """Measure the cells and print each with its goal. Returns the number of missed goals."""
    cells: list[Cell] = []
    for task in args.tasks:
        if args.grid or args.num_envs or args.minibatch or args.width:
            grid = itertools.product(
                args.num_envs or NUM_ENVS, args.minibatch or MINIBATCHES, args.width or WIDTHS
            )
            cells += [cell_of(task, *sizes, args.members) for sizes in grid]
        else:
            cells += default_cells(task, args.members)
    results = Results(args.save, args.stop_after)
    with tempfile.TemporaryDirectory() as cache:
        environment = {"TORCHINDUCTOR_CACHE_DIR": cache}
        processes = {"": PeerProcesses(__name__, args.threads, environment=environment)}
        if args.threads >= 2 and not args.no_pair:
            processes[PAIR] = PeerProcesses(__name__, args.threads // 2, 2, environment)
        for cell in results.missing(cells):
            made = measure_cell(cell, args.peers, processes, args.runs, args.seconds, clock)
            results.add(str(cell), made)
        for process in processes.values():
            process.close()
    print(
        f"steps/s, medians of {args.runs} paired runs of at least {args.seconds:g} s; ours summed "
        "over the members"
    )
    missed = 0
    for cell in cells:
        found = results.cells.get(str(cell))
        if found is None:
            continue
        goal = GOALS.get(cell.width, {}).get(cell.minibatch, PAIR_GOAL)
        if set(args.peers) <= set(COMPILED_PEERS):
            goal = COMPILED_GOALS.get(cell.width, PAIR_GOAL)
        missed += found["ours_over_best"] < goal
        missed += found.get("ours_over_best_pair", PAIR_GOAL) < PAIR_GOAL
        print(f"\n{cell} (load {found['machine']['load']})")
        print(
            "  "
            + ", ".join(
                f"{name} {statistics.median(values):,.0f}" for name, values in found["runs"].items()
            )
        )
        pairs = (
            f", in two concurrent processes {found['ours_over_best_pair']:.1f}x (goal {PAIR_GOAL:g}x)"
            if "ours_over_best_pair" in found
            else ""
        )
        print(f"  ours is {found['ours_over_best']:.1f}x the best peer (goal {goal:g}x){pairs}")
        if prepared := found.get("seconds_to_prepare"):
            waits = (f"{name} {seconds:.0f} s" for name, seconds in prepared.items())
            print(f"  until the first rollout had ended: {', '.join(waits)}")
        print(f"  native kernels are {found['ours_over_torch']:.2f}x as fast as torch's")
        own = statistics.median(found["runs"]["ours"]) * found["operations_per_step"] / 1e9
        peak = found["peak_gflops"]
        print(
            f"  {own:.0f} GFLOP/s, {own / peak:.0%} of the processor's peak; the goal needs "
            f"{own / peak * goal / found['ours_over_best']:.0%}"
        )
    return missed


def main(argv: list[str]) -> int:
    """Measure. Returns the number of missed goals."""
    parser = benchmark_parser(__doc__, threads=2)
    parser.add_argument("as_peer", nargs="?", choices=["as-peer"], help=argparse.SUPPRESS)
    parser.add_argument(
        "--tasks", nargs="+", choices=sorted(PARAMS), default=["crypto", "cartpole"]
    )
    parser.add_argument("--peers", nargs="+", choices=PEERS + COMPILED_PEERS, default=list(PEERS))
    parser.add_argument("--members", type=int, default=10, help="members trained together by ours")
    parser.add_argument("--grid", action="store_true", help="all cells, not only those with goals")
    parser.add_argument("--num-envs", type=int, nargs="+", help="only these of the grid")
    parser.add_argument("--minibatch", type=int, nargs="+", help="only these of the grid")
    parser.add_argument(
        "--width", type=int, nargs="+", help="only these of the grid (both hidden layers)"
    )
    parser.add_argument("--runs", type=int, default=5, help="paired repetitions")
    parser.add_argument("--seconds", type=float, default=0.5, help="minimum time per measurement")
    parser.add_argument("--no-pair", action="store_true", help="skip the two concurrent processes")
    parser.add_argument("--stop-after", type=float, default=float("inf"), help="seconds")
    args, clock = parse_with_clock(parser, argv)
    if args.as_peer:
        serve(prepare)
        return 0
    print_machine()
    return speed(args, clock)
