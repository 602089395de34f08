"""Training on environments whose steps differ in duration: as they are ready, against all together.

PPO trains one member (rollouts and gradient steps) with the same number of env workers, one for each
of its environments, which wait instead of computing, so that few cores suffice:

- even: every step takes 1 ms;
- uneven: one step in ten, at random, takes 10 ms;
- some slow: one environment in eight takes 10 ms for every step.

`together` steps all environments in every step. `as ready` (--async-envs 1) gives the same numbers
to the bit. `twice as many` (--async-envs 2) has two environments for each, on the same workers.
Figures are environment steps per second of the whole training; ratios to `together` are per round,
medians over rounds.

    python -m scripts.bench run async_envs [--envs 16] [--rounds 5] [--rollouts 4]
        [--save scripts/bench/results/async_envs.json]
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from scripts.bench.harness import (
    benchmark_parser,
    median_ratio,
    medians,
    paired_runs,
    print_machine,
    save_results,
)
from scripts.bench.speed.uneven_env import Uneven
from sweepd.agents.algorithms.ppo import PPO, PPOParams
from sweepd.agents.networks.shape import FEWEST_SLOTS, Shape
from sweepd.envs.external.ready_vec_env import ReadyVecEnv
from sweepd.envs.external.sharded import even_layout
from sweepd.envs.external.sources import FactorySource
from sweepd.envs.external.vec_env import ExternalVecEnv

QUICK, SLOW = 0.001, 0.01  # seconds
KINDS: dict[str, dict[str, Any]] = {
    "even": {"share": 0.0},
    "uneven": {"share": 0.1},
    "some slow": {"share": 0.125, "lasting": True},
}
GOALS = {"even": 0.95, "uneven": 1.5, "some slow": 1.5}  # ratio to `together`
TOGETHER = "together"
TIMES = {TOGETHER: 0, "as ready": 1, "twice as many": 2}  # --async-envs
HORIZON = 64


def make_env(source: FactorySource, times: int, envs: int) -> ExternalVecEnv:
    """Make the environments of a program of one member; the other slots stay empty."""
    if times:
        return ReadyVecEnv(source, FEWEST_SLOTS, times * envs, workers=envs)
    every = FEWEST_SLOTS * envs  # the workers of those of empty slots wait
    return ExternalVecEnv(source, FEWEST_SLOTS, envs, layout=even_layout(every, every, here=False))


def rate(kind: str, times: int, envs: int, rollouts: int) -> float:
    """Measure environment steps per second of training, after one rollout to warm up."""
    source = FactorySource(Uneven, {"quick": QUICK, "slow": SLOW, **KINDS[kind]})
    with contextlib.closing(make_env(source, times, envs)) as env:
        shape = Shape.for_env(env, horizon=HORIZON, minibatch=envs * HORIZON // 4, epochs=4)
        ppo = PPO(replace(shape, async_envs=times))
        ppo.add_member(0, PPOParams(), 0, 100, torch.zeros(4), torch.ones(4))
        env.reset_member(0, 0)
        ppo.begin(env.observe())
        ppo.train(env, 1)
        began = time.perf_counter()
        ppo.train(env, rollouts)
        return rollouts * ppo.shape.samples / (time.perf_counter() - began)


def compare(kind: str, envs: int, rounds: int, rollouts: int) -> dict[str, Any]:
    """Measure all ways in turn, and print their medians."""
    ways: dict[str, Callable[[], float]] = {
        name: partial(rate, kind, times, envs, rollouts) for name, times in TIMES.items()
    }
    rates = paired_runs(ways, rounds)
    ratios = {
        name: median_ratio(own, rates[TOGETHER]) for name, own in rates.items() if name != TOGETHER
    }
    print(f"\n{kind}, {envs} environments (goal: {GOALS[kind]} x)")
    for name, speed in medians(rates).items():
        ratio = f"{ratios[name]:6.2f} x" if name in ratios else ""
        print(f"  {name:<16} {speed:>8,.0f} steps/s  {ratio}", flush=True)
    return {"steps_per_second": medians(rates), "runs": rates, "ratio": ratios, "goal": GOALS[kind]}


def main(argv: list[str]) -> None:
    parser = benchmark_parser(__doc__ or "", threads=1)
    parser.add_argument("--envs", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rollouts", type=int, default=4, help="of each run")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    about = print_machine()
    kinds = {kind: compare(kind, args.envs, args.rounds, args.rollouts) for kind in KINDS}
    save_results(args.save, {"machine": about, "envs": args.envs, "kinds": kinds})
