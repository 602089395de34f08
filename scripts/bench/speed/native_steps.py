"""PPO with recurrent networks or images: environment steps per second with native kernels and in torch.

Full rollouts of 16 steps are timed, with 2 epochs of minibatches: several members in one program, whose
steps are summed.

    recurrent   on the crypto environment (7 assets, 110 columns) and CartPole: two hidden layers, and a
                GRU or LSTM of the same width; minibatches of sequences of 16 steps
    images      on noise (`pictures.py`) as large as Atari's and MinAtar's images: two convolutions, and
                two hidden layers

    ours          with native kernels
    torch         the same without them (SWEEPD_KERNELS=torch)
    feed-forward  recurrent: the two hidden layers alone, with native kernels

    python -m scripts.bench run native_steps recurrent --cpu-time \\
        --save scripts/bench/results/recurrent_steps.json
    python -m scripts.bench run native_steps images --cpu-time --members 4 --envs 16 --minibatch 64 \\
        --save scripts/bench/results/image_steps.json
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
from typing import Any

from scripts.bench.harness import (
    CLOCKS,
    benchmark_parser,
    median_ratio,
    medians,
    paired_runs,
    parse_with_clock,
    print_machine,
    save_results,
    steps_per_second,
)
from scripts.bench.speed.trainers import Cell, ours, ours_torch
from sweepd.agents.networks.recurrence import GATES

HORIZON, EPOCHS = 16, 2
GOAL = 1.3  # ours against torch
IMAGES = ((4, 84, 84), (4, 10, 10))


def measure(cell: Cell, runs: int, seconds: float, clock: str) -> dict[str, Any]:
    """Measure all contenders in turn.

    Args:
        cell: task and sizes.
        runs: measurements of each.
        seconds: minimum time of a measurement.
        clock: of `harness.CLOCKS`.
    """
    rollouts = {"ours": ours(cell), "torch": ours_torch(cell)}
    if cell.recurrent:
        rollouts["feed-forward"] = ours(dataclasses.replace(cell, recurrent=""))
    for rollout in rollouts.values():
        rollout()
    contenders = {
        name: functools.partial(steps_per_second, rollout, seconds, CLOCKS[clock])
        for name, rollout in rollouts.items()
    }
    speeds = paired_runs(contenders, runs, clock)
    ratio = median_ratio(speeds["ours"], speeds["torch"])
    return {
        "cell": dataclasses.asdict(cell),
        "clock": clock,
        "runs": speeds,
        "ours_over_torch": ratio,
    }


def cells(layers: str, args: argparse.Namespace) -> list[Cell]:
    """Return what is measured of recurrent networks or images."""
    tasks: list[tuple[str, dict[str, Any]]] = (
        [("images", {"image": image}) for image in IMAGES]
        if layers == "images"
        else [(task, {"recurrent": cell}) for task in ("crypto", "cartpole") for cell in GATES]
    )
    return [
        Cell(task, args.envs, args.minibatch, width, HORIZON, EPOCHS, members=args.members, **own)
        for task, own in tasks
        for width in args.widths
    ]


def main(argv: list[str]) -> int:
    """Measure all cells. Returns 1 if a goal is missed, else 0."""
    parser = benchmark_parser(__doc__, threads=2)
    parser.add_argument("layers", choices=["recurrent", "images"], help="what is measured")
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128], help="of all layers")
    parser.add_argument("--envs", type=int, default=256, help="environments per member")
    parser.add_argument("--minibatch", type=int, default=256, help="transitions per member")
    parser.add_argument("--members", type=int, default=10, help="members trained together")
    parser.add_argument("--runs", type=int, default=5, help="paired repetitions")
    parser.add_argument("--seconds", type=float, default=1.0, help="minimum time per measurement")
    args, clock = parse_with_clock(parser, argv)
    content: dict[str, Any] = {"machine": print_machine(), "goal": GOAL, "results": []}
    missed = 0
    for cell in cells(args.layers, args):
        found = measure(cell, args.runs, args.seconds, clock)
        rates = ", ".join(f"{name} {x:,.0f}" for name, x in medians(found["runs"]).items())
        ratio = found["ours_over_torch"]
        what = cell.recurrent or "x".join(map(str, cell.image or ()))
        print(f"{what} on {cell}: {rates} steps/s; {ratio:.1f}x torch", flush=True)
        missed += ratio < GOAL
        content["results"].append(found)
        save_results(args.save, content)
    return int(missed > 0)
