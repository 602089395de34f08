"""Does training work? Three markets with a known answer, with the project's defaults.

oracle: the demo market without its edge, with features that leak the next day's return. Any working
learner beats equal weight in every test group.

planted: log prices with a mean-reverting part (standard deviation 4%, φ = 0.97), visible only
through the ordinary features. It must earn more than its fees.

shuffled: the planted market with its returns in random order. There is nothing to learn, so results
must not suggest any.

Each seed is a separate market with ten members (CPCV of 5 groups, 2 tested), trained on their
folds' training bars and evaluated on their test groups: deterministic, with all costs, without
positions at first. The figure is the annual log growth in excess of equal weight, averaged over the
members that test a group.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch

from scripts.bench.harness import benchmark_parser, print_machine, save_results
from scripts.bench.quality.leak import leaking_recipe
from sweepd.agents.algorithms.ppo import PPO, PPOParams, Shape
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.data.demo_market import make_demo_market, make_planted_market, shuffled
from sweepd.envs.crypto.data.timeframe import bars_per_year
from sweepd.envs.crypto.env import CryptoEnv
from sweepd.envs.crypto.market import make_market, observation_normaliser
from sweepd.envs.crypto.params import EnvParams
from sweepd.envs.crypto.scoring.evaluate import trade_windows
from sweepd.envs.crypto.scoring.metrics import excess_growth
from sweepd.envs.crypto.splits import CrossValidation, make_splits

ASSETS, BARS, TIMEFRAME = 5, 24_000, "1h"
LEAK_BARS = 24
SIZES = ("net_width", "net_depth", "entity_width", "minibatch", "epochs", "horizon", "num_envs")
# Allows about 100 updates in a budget of 200,000 steps, as a study's automatic choice requires.
NUM_ENVS = 32
STEPS = {"oracle": 100_000, "planted": 200_000, "shuffled": 200_000}
PLANTED_GOAL = 1.0  # per year, in every seed
# Per year, in every seed. Holding only cash gains a little through equal weight's volatility drag.
SHUFFLED_LIMIT = 0.5


def recipe_of(kind: str) -> str:
    """Return the recipe's name. The leaking recipe is registered only by this script."""
    return leaking_recipe("leaked-oracle", LEAK_BARS, 10.0) if kind == "oracle" else "default"


def bars_of(kind: str, seed: int, assets: int = ASSETS) -> Bars:
    """Make the market of one seed."""
    if kind == "oracle":
        return make_demo_market(seed, assets=assets, bars=BARS, timeframe=TIMEFRAME, edge=0.0)
    bars = make_planted_market(seed, assets=assets, bars=BARS, timeframe=TIMEFRAME)
    return shuffled(bars, seed) if kind == "shuffled" else bars


@dataclass(frozen=True)
class Outcome:
    """Result of one seed.

    Attributes:
        by_group: annual excess of each test group, averaged over the members that test it.
    """

    kind: str
    seed: int
    excess: float
    by_group: list[float]
    worst: float
    exposure: float
    trades_per_bar: float
    steps_per_second: float

    def passed(self) -> bool:
        """Whether this market's requirement is met."""
        if self.kind == "oracle":
            return min(self.by_group) > 0.0
        return (
            self.excess >= PLANTED_GOAL if self.kind == "planted" else self.excess < SHUFFLED_LIMIT
        )


def learn(
    kind: str,
    seed: int,
    assets: int,
    steps: int,
    env_params: EnvParams,
    params: PPOParams,
    sizes: dict[str, Any],
) -> Outcome:
    """Train one member per fold and trade their test groups."""
    market = make_market(bars_of(kind, seed, assets), recipe_of(kind))
    first = market.first_bar(env_params.lookback)
    splits = make_splits(
        market.length,
        TIMEFRAME,
        CrossValidation(),
        first_bar=first,
        holdout=0.15,
        lookback=env_params.lookback,
        memory=market.memory,
    )
    members = len(splits.folds)
    env = CryptoEnv(
        market, [env_params] * members, [fold.train for fold in splits.folds], sizes["num_envs"]
    )
    shape = Shape.for_env(env, **sizes)
    rollouts = steps // shape.samples
    ppo = PPO(shape)
    for fold in splits.folds:
        lookback = env_params.lookback
        normaliser = observation_normaliser(market, fold.train, lookback, lookback)
        ppo.add_member(
            fold.index, params, derive_seed("learning", seed, fold.index), rollouts, *normaliser
        )
    ppo.begin(env.reset([derive_seed("learning env", seed, fold.index) for fold in splits.folds]))
    start = time.perf_counter()
    ppo.train(env, rollouts)
    speed = members * rollouts * shape.samples / (time.perf_counter() - start)
    if any(ppo.diverged):
        raise SystemExit(f"{kind}, seed {seed}: members diverged: {ppo.diverged}")

    tests = CryptoEnv.for_windows(
        market, env_params, [splits.test_windows(fold) for fold in splits.folds]
    )
    trades = trade_windows(tests, ppo.act_fn())
    per_year = bars_per_year(TIMEFRAME)
    cells: dict[int, list[float]] = {}
    groups = [group for fold in splits.folds for group in fold.test_groups]
    for row, group in enumerate(groups):
        length = int(trades.lengths[row])
        excess = excess_growth(
            trades.returns[row, :length], trades.equal_weight[row, :length], per_year
        )
        cells.setdefault(group, []).append(excess)
    every = [value for values in cells.values() for value in values]
    bars = float(trades.lengths.sum())
    return Outcome(
        kind=kind,
        seed=seed,
        excess=float(np.mean(every)),
        by_group=[float(np.mean(cells[group])) for group in sorted(cells)],
        worst=min(every),
        exposure=float(trades.exposure.sum()) / bars,
        trades_per_bar=float(trades.trades.sum()) / bars,
        steps_per_second=speed,
    )


def main(argv: list[str]) -> int:
    """Train on all markets and print. Returns 1 if a requirement is missed."""
    parser = benchmark_parser(__doc__, threads=2)
    parser.add_argument("--only", choices=sorted(STEPS), help="one of the markets")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--steps",
        type=int,
        help="steps per member, instead of " + ", ".join(f"{k} {v:,}" for k, v in STEPS.items()),
    )
    parser.add_argument("--assets", type=int, default=ASSETS)
    parser.add_argument("--lookback", type=int, default=EnvParams().lookback)
    for field in fields(Shape):
        if field.name in SIZES:
            default = NUM_ENVS if field.name == "num_envs" else field.default
            parser.add_argument("--" + field.name.replace("_", "-"), type=int, default=default)
    for name, default in PPOParams():
        parser.add_argument("--" + name.replace("_", "-"), type=type(default), default=default)
    parser.add_argument("--action-scale", type=float, default=EnvParams().action_scale)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    params = PPOParams(**{name: getattr(args, name) for name in PPOParams.model_fields})
    sizes = {name: getattr(args, name) for name in SIZES}
    env_params = EnvParams(action_scale=args.action_scale, lookback=args.lookback)
    found = print_machine()
    outcomes = []
    columns = {
        "market": -10,
        "seed": 5,
        "excess/year": 13,
        "per test group": 42,
        "worst": 8,
        "exposure": 10,
    }
    columns |= {"trades/bar": 12, "steps/s": 10}
    print(
        "".join(
            name.rjust(size) if size > 0 else name.ljust(-size) for name, size in columns.items()
        )
    )
    for kind in [args.only] if args.only else STEPS:
        for seed in range(args.seeds):
            one = learn(
                kind, seed, args.assets, args.steps or STEPS[kind], env_params, params, sizes
            )
            outcomes.append(one)
            groups = " ".join(f"{value:+.2f}" for value in one.by_group)
            print(
                f"{kind:10}{seed:>5}{one.excess:>+13.2f}{groups:>42}{one.worst:>+8.2f}"
                f"{one.exposure:>10.2f}{one.trades_per_bar:>12.2f}"
                f"{one.steps_per_second:>10,.0f}  "
                f"{'as it should be' if one.passed() else 'MISSED'}",
                flush=True,
            )
    saved = {
        "machine": found,
        "ppo": dict(params),
        "sizes": sizes,
        "action_scale": args.action_scale,
        "steps": args.steps or STEPS,
        "outcomes": [{**asdict(one), "passed": one.passed()} for one in outcomes],
    }
    save_results(args.save, saved)
    return int(not all(one.passed() for one in outcomes))
