"""Steps per second of the crypto environment with random actions, for 1 to 16,384 environments.

Seven assets of the synthetic demo market, the default features, lookback 1 (an observation of 110
numbers), one member with default parameters. In paired runs, it also measures a lower bound of the
memory traffic: gathering the next bar's prices and the observation's features, and nothing else.
The ratio shows the cost of the rules.

    python scripts/bench/env_steps.py [--threads 2] [--repeats 7] [--seconds 0.5]
        [--save scripts/bench/results/env_steps.json]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from harness import benchmark_parser, median_ratio, paired_runs, print_machine, save_results

from envs.core.sizing import cpu_count
from envs.crypto.data.demo_market import make_demo_market
from envs.crypto.env import CryptoEnv
from envs.crypto.market import Market, make_market
from envs.crypto.params import EnvParams

SIZES = (1, 4, 16, 64, 256, 640, 1024, 4096, 16384)


def stepper(market: Market, num_envs: int) -> tuple[Callable[[int], None], int]:
    """Return a function that steps an environment n times, and the observation's size."""
    env = CryptoEnv(market, EnvParams(), [(market.first_bar(1), market.length - 1)], num_envs)
    env.reset(0)
    obs = torch.empty(num_envs, env.state_dim)
    actions = torch.rand(16, num_envs, env.action_dim) * 2.0 - 1.0

    def run(steps: int) -> None:
        env.draw(steps)
        for step in range(steps):
            env.step(actions[step % 16], out=obs)

    return run, env.state_dim


def mover(market: Market, num_envs: int) -> Callable[[int], None]:
    """Return a function that only gathers the prices and features of n steps."""
    tables = market.tables()
    assets, columns = market.assets, market.feature_count
    obs = torch.empty(num_envs, 1 + 3 * assets + columns)
    features = obs[:, 1 + 3 * assets :]
    prices = torch.empty(2 * assets, num_envs, dtype=torch.float64)
    bars = torch.randint(market.first_bar(1), market.length - 200, (num_envs,))

    def run(steps: int) -> None:
        for step in range(steps):
            bar = bars + step % 168
            torch.gather(tables.prices, 1, bar.expand(2 * assets, -1), out=prices)
            torch.index_select(tables.features, 0, bar, out=features)

    return run


def steps_for(run: Callable[[int], None], seconds: float) -> int:
    """Return about how many steps take that long."""
    steps = 8
    run(steps)
    while True:
        began = time.perf_counter()
        run(steps)
        taken = time.perf_counter() - began
        if taken > seconds / 8:
            return max(8, round(steps * seconds / taken))
        steps *= 2


def rate(run: Callable[[int], None], steps: int) -> float:
    """Return steps per second."""
    began = time.perf_counter()
    run(steps)
    return steps / (time.perf_counter() - began)


def measure(market: Market, num_envs: int, repeats: int, seconds: float) -> dict[str, Any]:
    """Measure both in paired runs at one size."""
    run, observation = stepper(market, num_envs)
    move = mover(market, num_envs)
    steps, moves = steps_for(run, seconds), steps_for(move, seconds / 2)
    rates = paired_runs(
        {"step": lambda: rate(run, steps), "move": lambda: rate(move, moves)}, repeats
    )
    speeds = [value * num_envs for value in rates["step"]]
    return {
        "num_envs": num_envs,
        "observation": observation,
        "steps_per_second": statistics.median(speeds),
        "slowest": min(speeds),
        "fastest": max(speeds),
        "microseconds_per_step": 1e6 * num_envs / statistics.median(speeds),
        "share_of_moving_limit": median_ratio(rates["step"], rates["move"]),
    }


def main(arguments: list[str]) -> None:
    parser = benchmark_parser(__doc__, threads=cpu_count())
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="approximate time per run")
    parser.add_argument("--assets", type=int, default=7)
    parser.add_argument("--bars", type=int, default=20_000)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    args = parser.parse_args(arguments)

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    market = make_market(make_demo_market(0, assets=args.assets, bars=args.bars))
    found = print_machine()
    print(
        f"{args.assets} assets, {args.bars:,} bars; medians of {args.repeats} paired runs of "
        f"{args.seconds:g} s"
    )
    print(
        f"{'envs':>7} {'env steps/s':>14} {'slowest':>12} {'fastest':>12} {'us/step':>9} "
        f"{'of the moving limit':>20}"
    )
    results = []
    for num_envs in args.sizes:
        row = measure(market, num_envs, args.repeats, args.seconds)
        results.append(row)
        print(
            f"{num_envs:>7,} {row['steps_per_second']:>14,.0f} {row['slowest']:>12,.0f} "
            f"{row['fastest']:>12,.0f} "
            f"{row['microseconds_per_step']:>9,.0f} {row['share_of_moving_limit']:>20.1%}",
            flush=True,
        )
    content = {"machine": found, "assets": args.assets, "bars": args.bars, "results": results}
    save_results(args.save, content)


if __name__ == "__main__":
    main(sys.argv[1:])
