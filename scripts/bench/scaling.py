"""Scaling of training: steps/s and memory by environments per member and by slots.

Also the quality of the automatic number of environments. The environment is the crypto one of
`trainers.py` (seven assets, synthetic bars). Each point runs in a separate process, which reports
its peak resident memory minus that at its start. Points are measured in rounds; medians are shown.

    num_envs   one member, 1 to 65,536 environments, horizon 16, minibatch up to 4,096, 1 epoch
    slots      1 to 256 members of 32 environments, horizon 64, minibatch 512, 2 epochs
    choice     the choice of `--n-envs auto` for a study of ten folds with three networks, against
               an exhaustive search within the same bounds

Required: from each point to the next, steps/s must not fall by more than a tenth below those of the
fastest point so far.

    python scripts/bench/scaling.py [num_envs] [slots] [choice]
        [--save scripts/bench/results/scaling.json]
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from harness import (
    benchmark_parser,
    idle_machine,
    load_results,
    paired_runs,
    print_machine,
    save_results,
    steps_per_second,
)
from trainers import Cell, market, ours

NUM_ENVS = tuple(4**power for power in range(9))
SLOTS = (1, 2, 4, 8, 10, 16, 32, 64, 128, 256)
WIDTHS = (64, 128, 256)
CHOICE_SPACE = """
name = "choice"
version = 1
[shape]
net_width = {{ value = {width} }}
net_depth = {{ value = 2 }}
minibatch = {{ value = 512 }}
epochs = {{ value = 4 }}
"""
CHOICE_BUDGET = 2_000_000  # steps per fold, which limits the environments to about 312
TOLERANCE = 0.9


def env_cell(num_envs: int) -> Cell:
    """Return the cell of one member with that many environments."""
    return Cell("crypto", num_envs, min(4096, 16 * num_envs), 128, 16, 1, members=1)


def slot_cell(slots: int) -> Cell:
    """Return the cell of that many members."""
    return Cell("crypto", 32, 512, 128, 64, 2, members=slots)


def resident() -> int:
    """Return the peak resident memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


def measure(cell: Cell, threads: int, seconds: float, answer: Connection) -> None:
    """Measure (steps per second, bytes) in this process and send them."""
    torch.set_num_threads(threads)
    before = resident()
    trainer = ours(cell, 0)
    trainer.rollout()
    answer.send((steps_per_second(trainer.rollout, seconds), resident() - before))


def alone(cell: Cell, threads: int, seconds: float) -> tuple[float, int]:
    """Run `measure` in a separate process; (0, 0) if it died, for example out of memory."""
    # Forked, so that the market is already loaded. That is safe because this process never runs
    # torch on more than one thread.
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=measure, args=(cell, threads, seconds, send))
    process.start()
    send.close()
    try:
        speed, memory = receive.recv()
    except EOFError:
        speed, memory = 0.0, 0
    process.join()
    return speed, memory


def sweep(name: str, cells: dict[int, Cell], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure all points in rounds; print and return their medians."""
    points: dict[int, list[tuple[float, int]]] = {size: [] for size in cells}
    with idle_machine():
        for _ in range(args.runs):
            for size, cell in cells.items():
                points[size].append(alone(cell, args.threads, args.seconds))
    print(f"\n{name:>8} {'steps/s':>12} {'MiB':>8} {'per env':>10}   of the fastest before")
    rows, fastest = [], 0.0
    for size, found in points.items():
        speed = statistics.median(one[0] for one in found)
        memory = statistics.median(one[1] for one in found)
        envs = cells[size].members * cells[size].num_envs
        ratio = speed / fastest if fastest else 1.0
        mark = "" if ratio >= TOLERANCE else "  LESS"
        print(
            f"{size:>8,} {speed:>12,.0f} {memory / 2**20:>8,.0f} {memory / envs / 1024:>6,.0f} KiB "
            f"  {ratio:.2f}{mark}"
        )
        rows.append(
            {
                name: size,
                "steps_per_second": speed,
                "bytes": memory,
                "over_fastest_before": ratio,
                "runs": found,
            }
        )
        fastest = max(fastest, speed)
    return rows


def choice(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Compare the automatic choice with all powers of two and the bounds, for three networks."""
    from studies import study_in

    from optimize.study.fit import fewest_envs, most_envs
    from optimize.worker.measure import Bench, measure_num_envs

    torch.set_num_threads(args.threads)
    rows = []
    for width in args.widths:
        with tempfile.TemporaryDirectory() as folder:
            request = {"budget": CHOICE_BUDGET, "n_envs": 8, "horizon": 64, "pruner": "none"}
            space = CHOICE_SPACE.format(width=width)
            handle, experiment = study_in(Path(folder), market().bars, request, space)
            bench = Bench(experiment)
        chosen, lines = measure_num_envs(bench, lambda _: None)
        limits = (CHOICE_BUDGET, 64, handle.space.minibatches)
        fewest, most = fewest_envs(*limits), most_envs(*limits)
        sizes = sorted(
            {size for power in range(17) if fewest <= (size := 2**power) <= most}
            | {fewest, most, chosen}
        )
        measured = {
            size: lambda size=size, bench=bench: bench.measure(size).steps_per_second
            for size in sizes
        }
        runs = paired_runs(measured, args.runs)
        speeds = {size: statistics.median(values) for size, values in runs.items()}
        best = max(speeds, key=lambda size: speeds[size])
        share = speeds[chosen] / speeds[best]
        print(
            f"\n{width}x{width}, {handle.spec.slots} members: "
            + ", ".join(f"{n} {v:,.0f}" for n, v in speeds.items())
        )
        print(f"  chosen {chosen}, best {best}: {share:.1%} of the best (goal 90%)", flush=True)
        rows.append(
            {
                "width": width,
                "chosen": chosen,
                "best": best,
                "share": share,
                "runs": runs,
                "choosing": lines,
            }
        )
    return rows


def main(argv: list[str]) -> None:
    """Run the requested parts; results of other parts in the file are kept."""
    parser = benchmark_parser(__doc__, threads=2)
    parser.add_argument("parts", nargs="*", default=["num_envs", "slots", "choice"])
    parser.add_argument("--largest", type=int, default=65_536, help="largest number measured")
    parser.add_argument(
        "--widths",
        type=int,
        nargs="+",
        default=list(WIDTHS),
        help="widths of the networks in `choice`",
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="minimum time per measurement")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    content = load_results(args.save)
    found = print_machine(threads=args.threads)
    market()
    for part in args.parts:
        if part == "choice":
            rows = choice(args)
        elif part == "num_envs":
            rows = sweep(part, {n: env_cell(n) for n in NUM_ENVS if n <= args.largest}, args)
        elif part == "slots":
            rows = sweep(part, {n: slot_cell(n) for n in SLOTS if n <= args.largest}, args)
        else:
            parser.error(f"part {part!r} is none of num_envs, slots, choice")
        content[part] = {"machine": found, "rows": rows}
        save_results(args.save, content)


if __name__ == "__main__":
    main(sys.argv[1:])
