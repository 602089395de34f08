"""The cost of MKL's reproducible mode (`sweepd.envs.support.mkl`) in PPO training on CartPole.

Two single-threaded processes train the same cells in paired runs, one per mode. The figure is the
default mode's processor time over the reproducible mode's, median of the pairs: above 1, the
reproducible mode is faster.

    python -m scripts.bench run reproducible_mode [--pairs 5]
        [--save scripts/bench/results/reproducible_mode.json]
"""

from __future__ import annotations

import functools
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from scripts.bench.harness import ROOT, benchmark_parser, print_machine, save_results
from sweepd.envs.support.mkl import VARIABLE

CELLS = [(width, minibatch) for width in (64, 128) for minibatch in (64, 256, 1024)]


def serve() -> None:
    """Train a cell per line on stdin; print the seconds of processor time."""
    import torch

    torch.set_num_threads(1)
    from sweepd.agents.algorithms.ppo import PPO, PPOParams, Shape
    from sweepd.envs.games.cartpole import CartPole, CartPoleParams
    from sweepd.envs.support.mkl import current_mode

    print(current_mode(), flush=True)

    @functools.cache
    def program(width: int, minibatch: int) -> tuple[PPO, CartPole]:
        slots = 10
        env = CartPole([CartPoleParams()] * slots, 128)
        ppo = PPO(Shape.for_env(env, net_width=width, minibatch=minibatch, horizon=16, epochs=2))
        for slot in range(slots):
            ppo.add_member(slot, PPOParams(), slot, 100, torch.zeros(4), torch.ones(4))
        ppo.begin(env.reset(0))
        return ppo, env

    for line in sys.stdin:
        ppo, env = program(*map(int, line.split()))
        began = time.process_time()
        ppo.train(env, 1)
        print(time.process_time() - began, flush=True)


class Trainer:
    """A process that trains in one mode."""

    def __init__(self, mode: str) -> None:
        environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
        # MKL stays in its default mode if it computes a product before `envs` is imported.
        first = "torch.ones(3, 3) @ torch.ones(3, 3); " if mode == "default" else ""
        code = f"import sys, torch; {first}sys.path.insert(0, {str(ROOT)!r}); "
        code += f"from {__name__} import serve; serve()"
        command = [sys.executable, "-W", "ignore", "-c", code]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.mode = self._read()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def train(self, cell: tuple[int, int]) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{cell[0]} {cell[1]}\n")
        self._process.stdin.flush()
        return float(self._read())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main(argv: list[str]) -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    args = parser.parse_args(argv)
    found = print_machine(threads=1)
    default, reproducible = Trainer("default"), Trainer("reproducible")
    print(
        f"MKL's mode: {default.mode} against {reproducible.mode}; 10 members, 128 envs x 16 steps, "
        "2 epochs"
    )
    results: list[dict[str, Any]] = []
    for cell in CELLS:
        for trainer in (default, reproducible):
            trainer.train(cell)
        ratios = [default.train(cell) / reproducible.train(cell) for _ in range(args.pairs)]
        results.append(
            {
                "width": cell[0],
                "minibatch": cell[1],
                "ratio": statistics.median(ratios),
                "ratios": ratios,
            }
        )
        print(
            f"{cell[0]:>4} x {cell[0]:<4} minibatch {cell[1]:>5}: {statistics.median(ratios):.3f}",
            flush=True,
        )
    for trainer in (default, reproducible):
        trainer.close()
    content = {"machine": found, "modes": [default.mode, reproducible.mode], "results": results}
    save_results(args.save, content)
