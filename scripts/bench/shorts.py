"""Does a learner use short positions? A falling market, with and without them.

The planted market (log prices with a mean-reverting part, visible through the ordinary features)
with a steady fall. Per seed one market, its first 70% of the bars for training, the rest for a test
without positions at first. Members of both kinds train in one program from the same seeds; those
with shorts pay the borrow fee. The figures are the annual log growth in the test, of the members'
mean, and of equal weight.

    python scripts/bench/shorts.py [--seeds 3] [--steps 100000] [--fall 1.0] [--borrow-fee 0.1]
        [--save scripts/bench/results/shorts.json]
"""

from __future__ import annotations

import dataclasses
import sys
import time
from typing import Any

import numpy as np
import torch
from harness import benchmark_parser, print_machine, save_results

from agents.algorithms.ppo import PPO, PPOParams, Shape
from envs.core.streams import derive_seed
from envs.crypto.data.bars import Bars
from envs.crypto.data.demo_market import make_planted_market
from envs.crypto.data.timeframe import bars_per_year
from envs.crypto.env import CryptoEnv
from envs.crypto.market import make_market, observation_normaliser
from envs.crypto.params import EnvParams
from envs.crypto.scoring.evaluate import trade_windows

ASSETS, TIMEFRAME = 3, "1h"


def falling_bars(seed: int, bars: int, fall: float) -> Bars:
    """Return the planted market with log prices that fall by `fall` per year."""
    made = make_planted_market(seed, assets=ASSETS, bars=bars, timeframe=TIMEFRAME)
    years = np.arange(bars)[:, None] / bars_per_year(TIMEFRAME)
    level = np.exp(-fall * years)
    names = ("open", "high", "low", "close")
    return dataclasses.replace(made, **{name: getattr(made, name) * level for name in names})


def compare(seed: int, args: Any, kinds: dict[str, EnvParams]) -> dict[str, Any]:
    """Train and test the members of one market; return the annual growth of each kind."""
    market = make_market(falling_bars(seed, args.bars, args.fall))
    first, last = market.first_bar(1), market.length - 1
    split = first + round(0.7 * (last - first))
    train, test = (first, split), (split + market.memory, last)
    params = [own for own in kinds.values() for _ in range(args.members)]
    env = CryptoEnv(market, params, [[train]] * len(params), args.num_envs)
    shape = Shape(
        state_dim=env.state_dim,
        action_dim=env.action_dim,
        slots=len(params),
        num_envs=args.num_envs,
    )
    ppo, rollouts = PPO(shape), max(1, args.steps // shape.samples)
    normaliser = observation_normaliser(market, [train], 1, 1)
    for slot in range(len(params)):
        own_seed = derive_seed("shorts", seed, slot % args.members)
        ppo.add_member(slot, PPOParams(), own_seed, rollouts, *normaliser)
    began = time.perf_counter()
    ppo.begin(env.reset([derive_seed("env", seed, s % args.members) for s in range(len(params))]))
    ppo.train(env, rollouts)
    steps = len(params) * rollouts * shape.samples
    speed = steps / (time.perf_counter() - began)
    trades = trade_windows(
        CryptoEnv.for_windows(market, params, [[test]] * len(params)), ppo.act_fn()
    )
    years = (test[1] - test[0]) / bars_per_year(TIMEFRAME)
    growth = np.log1p(trades.returns).sum(axis=1) / years
    by_kind = growth.reshape(len(kinds), -1).mean(axis=1)
    return {
        "seed": seed,
        **dict(zip(kinds, by_kind.tolist(), strict=True)),
        "equal weight": float(np.log1p(trades.equal_weight[0]).sum() / years),
        "steps_per_second": speed,
    }


def main(argv: list[str]) -> int:
    """Train on all markets and print. Returns 1 if shorts earn less in any."""
    parser = benchmark_parser(__doc__, threads=2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--members", type=int, default=3, help="of each kind")
    parser.add_argument("--steps", type=int, default=100_000, help="per member")
    parser.add_argument("--bars", type=int, default=9_000)
    parser.add_argument("--num-envs", type=int, default=32)
    parser.add_argument("--fall", type=float, default=1.0, help="of log prices, per year")
    parser.add_argument("--borrow-fee", type=float, default=EnvParams().borrow_fee)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    plain = EnvParams(episode_bars=168)
    short = dataclasses.replace(plain, allow_short=True, borrow_fee=args.borrow_fee)
    kinds = {"long only": plain, "with shorts": short}
    found, rows = print_machine(), []
    print(
        f"{'seed':>5}" + "".join(f"{name:>14}" for name in (*kinds, "equal weight")) + "   steps/s"
    )
    for seed in range(args.seeds):
        row = compare(seed, args, kinds)
        rows.append(row)
        figures = "".join(f"{row[name]:>+14.2f}" for name in (*kinds, "equal weight"))
        print(f"{seed:>5}{figures}{row['steps_per_second']:>10,.0f}", flush=True)
    settings = {name: getattr(args, name) for name in ("steps", "bars", "fall", "borrow_fee")}
    save_results(args.save, {"machine": found, **settings, "results": rows})
    return int(any(row["with shorts"] <= row["long only"] for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
