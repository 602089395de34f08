"""Steps per second of laser hockey at random play, and where the time of a step goes.

Both seats of every game are observed, and actions change in every step. A step's tensor operations
are counted, with the bytes that they read and write; the time of each part is measured alone.

    python scripts/bench/hockey.py [--threads 1 2] [--repeats 5] [--seconds 1]
        [--save scripts/bench/results/hockey.json]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from harness import benchmark_parser, print_machine, save_results
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from envs.core.sizing import cpu_count
from envs.games.hockey import game as hockey
from envs.games.hockey.game import Hockey, HockeyParams
from envs.games.hockey.players import PLAYERS

GOAL, GOAL_GAMES = 300_000, 4_096
SIZES = (256, 1_024, 4_096, 16_384)


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


def make(games: int) -> tuple[Hockey, Tensor, Tensor]:
    """Return an environment in the middle of its games, actions of 16 steps, and a buffer."""
    env = Hockey([HockeyParams()], 2 * games)
    env.reset(0)
    generator = torch.Generator().manual_seed(0)
    actions = 2.0 * torch.rand(16, 2 * games, env.action_dim, generator=generator) - 1.0
    return env, actions, torch.empty(2 * games, env.state_dim)


def steps(env: Hockey, actions: Tensor, obs: Tensor, count: int) -> None:
    for step in range(count):
        if step % 16 == 0:
            env.draw(16)
        env.step(actions[step % 16], out=obs)


def speed(games: int, threads: int, repeats: int, seconds: float) -> dict[str, Any]:
    """Measure steps per second: one step of one game counts once, though two seats act."""
    torch.set_num_threads(threads)
    env, actions, obs = make(games)
    steps(env, actions, obs, 32)
    began = time.perf_counter()
    steps(env, actions, obs, 16)
    count = 16 * max(1, round(seconds / (time.perf_counter() - began)))
    clock, processor = [], []
    for _ in range(repeats):
        began, used = time.perf_counter(), time.process_time()
        steps(env, actions, obs, count)
        clock.append(count * games / (time.perf_counter() - began))
        processor.append(count * games / (time.process_time() - used))
    env.check()
    return {
        "games": games,
        "threads": threads,
        "steps_per_second": statistics.median(clock),
        "slowest": min(clock),
        "fastest": max(clock),
        "steps_per_processor_second": statistics.median(processor),
    }


def parts(games: int, seconds: float) -> list[dict[str, Any]]:
    """Measure the parts of a step one by one, with one thread."""
    torch.set_num_threads(1)
    env, actions, obs = make(games)
    steps(env, actions, obs, 48)
    env.draw(16)
    state, uniforms = env._state, env._uniforms[0]
    legal = env._legal(actions[0]).view(games, env.seats, -1)
    controls = legal.float().permute(2, 1, 0).contiguous()
    unpacked = hockey._unpacked(state)
    player = PLAYERS["strong"]
    memory = torch.zeros(games, 1)
    calls: dict[str, Callable[[], object]] = {
        "a step": lambda: env.step(actions[0], out=obs),
        "  random numbers": lambda: env.draw(1),
        "  checking actions": lambda: env._legal(actions[0]),
        "  rules and physics": lambda: hockey.play(unpacked, controls, keep_mode=True),
        "  rules with rewards and layout": lambda: env.move(state, legal, uniforms[:, :0]),
        "  observing": lambda: env.see(state),
        "  new games": lambda: env.start(uniforms[:, : env.uniforms_per_start]),
        "a scripted player": lambda: player.act(obs[::2], memory, uniforms[:, :1]),
    }
    found = []
    for name, call in calls.items():
        with OperationCount() as count:
            call()
        # Processor time, on which the load of the machine has less influence.
        made, began = 0, time.process_time()
        while time.process_time() - began < seconds:
            call()
            made += 1
        found.append(
            {
                "part": name,
                "microseconds": 1e6 * (time.process_time() - began) / made,
                "operations": sum(count.names.values()),
                "bytes_per_game": count.bytes / games,
                "most": count.names.most_common(6),
            }
        )
    return found


def main(arguments: list[str]) -> None:
    parser = benchmark_parser(__doc__)
    both = sorted({1, min(2, cpu_count())})
    parser.add_argument("--threads", type=int, nargs="+", default=both, help="torch threads")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="approximate time per run")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="games")
    args = parser.parse_args(arguments)

    found = print_machine()
    print(f"{'games':>7} {'threads':>8} {'steps/s':>10} {'slowest':>10} {'fastest':>10}", end=" ")
    print(f"{'per cpu s':>10}")
    speeds = []
    for games in args.sizes:
        for threads in args.threads:
            row = speed(games, threads, args.repeats, args.seconds)
            speeds.append(row)
            names = ("steps_per_second", "slowest", "fastest", "steps_per_processor_second")
            rates = " ".join(f"{row[name]:>10,.0f}" for name in names)
            print(f"{games:>7,} {threads:>8} {rates}", flush=True)
    reached = [row["steps_per_second"] for row in speeds if row["games"] == GOAL_GAMES]
    if reached:
        share = max(reached) / GOAL
        print(f"{share:.2f} of the goal of {GOAL:,} steps/s at {GOAL_GAMES:,} games")
    print(f"where the time goes at {GOAL_GAMES:,} games, 1 thread")
    shares = parts(GOAL_GAMES, args.seconds)
    for row in shares:
        most = ", ".join(f"{count} {name}" for name, count in row["most"])
        print(
            f"{row['part']:>30} {row['microseconds']:>8,.0f} us {row['operations']:>5} operations "
            f"{row['bytes_per_game']:>8,.0f} bytes per game; {most}",
            flush=True,
        )
    save_results(args.save, {"machine": found, "goal": GOAL, "speed": speeds, "parts": shares})


if __name__ == "__main__":
    main(sys.argv[1:])
