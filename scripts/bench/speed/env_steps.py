"""Steps per second of the crypto environment and of CartPole with random actions.

With 1 to 16,384 environments: the native step beside the torch step, in paired runs. One member
with default parameters; crypto-short allows short positions. Crypto has seven assets of the
synthetic demo market, the default features and lookback 1 (an observation of 110 numbers). There,
the runs also measure a lower bound of the memory traffic: gathering the next bar's prices and the
observation's features by torch, and nothing else. The ratio shows the cost of the rules.

    python -m scripts.bench run env_steps [--env crypto cartpole crypto-short] [--threads 2]
        [--repeats 7] [--seconds 0.5] [--save scripts/bench/results/env_steps.json]
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from typing import Any

import torch

from scripts.bench.harness import (
    benchmark_parser,
    median_ratio,
    paired_runs,
    print_machine,
    save_results,
    steps_per_second,
)
from sweepd.envs.core.sizing import cpu_count
from sweepd.envs.core.vec_env import VecEnv
from sweepd.envs.crypto.data.demo_market import make_demo_market
from sweepd.envs.crypto.env import CryptoEnv
from sweepd.envs.crypto.market import Market, make_market
from sweepd.envs.crypto.native import choice as crypto
from sweepd.envs.crypto.params import EnvParams
from sweepd.envs.games.cartpole import CartPole, CartPoleParams
from sweepd.envs.games.native import cartpole

ENVS = ("crypto", "cartpole", "crypto-short")
AHEAD = 64  # steps for which random numbers are drawn at once
SIZES = (1, 4, 16, 64, 256, 640, 1024, 4096, 16384)


def make_env(name: str, market: Market, num_envs: int, *, native: bool) -> VecEnv:
    """Make one of the environments with one member."""
    if name == "cartpole":
        return CartPole(CartPoleParams(), num_envs, native=native)
    window = (market.first_bar(1), market.length - 1)
    params = EnvParams(allow_short=name == "crypto-short")
    return CryptoEnv(market, params, [window], num_envs, native=native)


def stepper(env: VecEnv) -> Callable[[], int]:
    """Return a function that steps an environment `AHEAD` times, and returns the number of rows."""
    env.reset(0)
    rows = env.num_envs
    obs = torch.empty(rows, env.state_dim)
    if env.if_discrete:
        actions = torch.randint(env.action_dim, (16, rows))
    else:
        actions = torch.rand(16, rows, env.action_dim) * 2.0 - 1.0

    def run() -> int:
        env.draw(AHEAD)
        for step in range(AHEAD):
            env.step(actions[step % 16], out=obs)
        return AHEAD * rows

    return run


def mover(market: Market, num_envs: int) -> Callable[[], int]:
    """Return a function that only gathers the prices and features of `AHEAD` steps."""
    tables = market.tables()
    assets, columns = market.assets, market.feature_count
    obs = torch.empty(num_envs, 1 + 3 * assets + columns)
    features = obs[:, 1 + 3 * assets :]
    prices = torch.empty(2 * assets, num_envs, dtype=torch.float64)
    bars = torch.randint(market.first_bar(1), market.length - 200, (num_envs,))

    def run() -> int:
        for step in range(AHEAD):
            bar = bars + step
            torch.gather(tables.prices, 1, bar.expand(2 * assets, -1), out=prices)
            torch.index_select(tables.features, 0, bar, out=features)
        return AHEAD * num_envs

    return run


def measure(
    name: str, market: Market, num_envs: int, repeats: int, seconds: float
) -> dict[str, Any]:
    """Measure all contenders in paired runs at one size."""
    kinds = {"native": True, "torch": False}
    envs = {kind: make_env(name, market, num_envs, native=on) for kind, on in kinds.items()}
    runs = {kind: stepper(env) for kind, env in envs.items()}
    if name == "crypto":
        runs["move"] = mover(market, num_envs)
    if name == "crypto-short":
        runs["without"] = stepper(make_env("crypto", market, num_envs, native=True))
    for run in runs.values():
        run()
    contenders: dict[str, Callable[[], float]] = {
        kind: functools.partial(steps_per_second, run, seconds) for kind, run in runs.items()
    }
    rates = paired_runs(contenders, repeats)
    speeds = rates["native"]
    row = {
        "env": name,
        "num_envs": num_envs,
        "observation": envs["native"].state_dim,
        "steps_per_second": statistics.median(speeds),
        "slowest": min(speeds),
        "fastest": max(speeds),
        "microseconds_per_step": 1e6 * num_envs / statistics.median(speeds),
        "torch_steps_per_second": statistics.median(rates["torch"]),
        "over_torch": median_ratio(speeds, rates["torch"]),
    }
    if "move" in rates:
        row["share_of_moving_limit"] = median_ratio(speeds, rates["move"])
    if "without" in rates:
        row["over_long_only"] = median_ratio(speeds, rates["without"])
    return row


def show(row: dict[str, Any]) -> None:
    """Print one line of the table."""
    share = row.get("share_of_moving_limit", row.get("over_long_only"))
    print(
        f"{row['env']:>12} {row['num_envs']:>7,} {row['steps_per_second']:>12,.0f} "
        f"{row['slowest']:>12,.0f} {row['fastest']:>12,.0f} {row['microseconds_per_step']:>9,.1f} "
        f"{row['torch_steps_per_second']:>12,.0f} {row['over_torch']:>8.2f}x "
        + ("" if share is None else f"{share:>19.1%}"),
        flush=True,
    )


def main(arguments: list[str]) -> None:
    parser = benchmark_parser(__doc__, threads=cpu_count())
    parser.add_argument("--env", choices=ENVS, nargs="+", default=list(ENVS))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="approximate time per run")
    parser.add_argument("--assets", type=int, default=7)
    parser.add_argument("--bars", type=int, default=20_000)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    args = parser.parse_args(arguments)

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    market = make_market(make_demo_market(0, assets=args.assets, bars=args.bars))
    native = {"crypto": crypto.STEP.status(), "cartpole": cartpole.STEP.status()}
    found = print_machine() | {"native": native}
    print(f"native steps: {'; '.join(native.values())}")
    print(
        f"crypto: {args.assets} assets, {args.bars:,} bars; medians of {args.repeats} paired runs "
        f"of {args.seconds:g} s"
    )
    print(
        f"{'env':>12} {'envs':>7} {'steps/s':>12} {'slowest':>12} {'fastest':>12} {'us/step':>9} "
        f"{'torch':>12} {'ratio':>9} {'of the moving limit':>19}"
        " (crypto-short: of long only)"
    )
    results = []
    for name in args.env:
        for num_envs in args.sizes:
            results.append(measure(name, market, num_envs, args.repeats, args.seconds))
            show(results[-1])
    content = {"machine": found, "assets": args.assets, "bars": args.bars, "results": results}
    save_results(args.save, content)
