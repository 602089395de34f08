"""Training on CartPole with the sizes for which PufferLib 3's speed is known.

1,024 environments, horizon 64, minibatch 32,768, one epoch, Adam; networks with about as many
weights as PufferLib's. Its figures are of another machine with two cores: it has no wheels, and its
build downloads parts. PufferLib's network has one trunk for the policy and the value; ours are two
networks, so hidden layers are narrower for equally many weights.

    python -m scripts.bench run pufferlib_sizes --save scripts/bench/results/pufferlib_sizes.json
"""

from __future__ import annotations

import statistics

import torch

from scripts.bench.harness import (
    benchmark_parser,
    idle_machine,
    machine,
    print_machine,
    save_results,
    steps_per_second,
)
from scripts.bench.speed.trainers import Cell, ours

ENVS, HORIZON, MINIBATCH = 1024, 64, 32_768
# PufferLib's weights and steps per second; layers and width of about as many; goal as a multiple.
SIZES = {1_027: (470_000, 1, 79, 9.0), 16_390: (340_000, 2, 87, 5.0)}


def main(argv: list[str]) -> int:
    """Measure. Returns the number of missed goals."""
    parser = benchmark_parser(__doc__, threads=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="minimum time per measurement")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    print_machine()
    made, missed = {}, 0
    for weights, (theirs, depth, width, goal) in SIZES.items():
        for members in (1, 10):
            cell = Cell(
                "cartpole", ENVS, MINIBATCH, width, HORIZON, 1, depth=depth, members=members
            )
            rollout = ours(cell)
            rollout()
            with idle_machine():
                runs = [steps_per_second(rollout, args.seconds) for _ in range(args.repeats)]
            ratio = statistics.median(runs) / theirs
            missed += ratio < goal
            print(
                f"{weights:,} weights, members: {members}: {ratio * theirs:,.0f} steps/s, "
                f"{ratio:.1f}x PufferLib's {theirs:,} (goal {goal:g}x)",
                flush=True,
            )
            made[f"{weights}, {members}"] = {"runs": runs, "ours_over_pufferlib": ratio}
    save_results(args.save, {"sizes": made, "machine": machine()})
    return missed
