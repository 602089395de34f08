"""The fraction of the processor's peak that training reaches.

The engine trains 10 members on the crypto environment (synthetic bars). Each repetition times whole
training iterations, rollouts and updates, and the peak (`peak.py`): the highest rate of
single-precision operations of torch's products, oneDNN's and a loop in registers, best of the whole
run. One further iteration is profiled by timing the engine's own calls:

    env                 stepping the environment
    policy forward      choosing actions, and values for the advantages
    update products     gradient steps: gathers, losses, forward and backward passes; of native
                        kernels, with the optimizer
    optimizer           clipping and Adam
    other               advantages, permutations, the rest

Operations are counted from shapes: 2 per multiplication with a weight, as often as the algorithm
needs it (one actor pass per step, one critic pass per transition; per epoch and transition one
forward pass, one product for the weights' gradients and, except in the first layer, one for the
inputs'). Biases, activation functions, normalisation and Adam are not counted. So 100% cannot be
reached.

    python -m scripts.bench run roofline [--save scripts/bench/results/roofline.json]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch

from scripts.bench.harness import benchmark_parser, idle_machine, print_machine, save_results
from scripts.bench.speed.peak import peaks
from sweepd.agents.algorithms.ppo import PPO, PPOParams, Shape
from sweepd.agents.algorithms.sample_programs import now
from sweepd.agents.native.choice import Evaluator
from sweepd.agents.networks.optimizer import Adam
from sweepd.envs.core.vec_env import VecEnv
from sweepd.envs.crypto.data.demo_market import make_demo_market
from sweepd.envs.crypto.env import CryptoEnv
from sweepd.envs.crypto.market import Market, make_market, observation_normaliser
from sweepd.envs.crypto.params import EnvParams

PHASES = ("env", "policy forward", "update products", "optimizer", "other")


def operations(shape: Shape, env: VecEnv) -> float:
    """Return the floating-point operations of one training iteration of all members."""
    between = (shape.net_depth - 1) * shape.net_width**2
    actor_in, critic_in = shape.state_dim * shape.net_width, shape.obs_dim * shape.net_width
    actor = between + shape.net_width * shape.action_dim
    critic = between + shape.net_width
    ends = (
        -(-shape.horizon // env.bootstrap_interval) + 1
    )  # values of final observations and of the last step
    rollout = shape.samples * (actor_in + actor + critic_in + critic) + ends * shape.num_envs * (
        critic_in + critic
    )
    steps = shape.samples // shape.minibatch * shape.epochs
    update = steps * shape.minibatch * (2 * (actor_in + critic_in) + 3 * (actor + critic))
    return 2.0 * shape.slots * (rollout + update)


def program(
    args: argparse.Namespace, market: Market, width: int, minibatch: int
) -> tuple[PPO, CryptoEnv]:
    """Make a program with all its members, and its environment."""
    device = torch.device(args.device)
    longest = args.largest_lookback or args.lookback
    windows = [(market.first_bar(longest), market.length - 1)]
    env = CryptoEnv(
        market,
        [EnvParams(lookback=args.lookback)] * args.members,
        [windows] * args.members,
        args.num_envs,
        max_lookback=longest,
        device=device,
    )
    shape = Shape.for_env(
        env, net_width=width, minibatch=minibatch, horizon=args.horizon, epochs=args.epochs
    )
    ppo = PPO(shape, device)
    normaliser = observation_normaliser(market, windows, args.lookback, longest)
    for slot in range(args.members):
        ppo.add_member(slot, PPOParams(), slot, 1_000_000, *normaliser)
    ppo.begin(env.reset(list(range(args.members))))
    return ppo, env


def split(ppo: PPO, env: CryptoEnv, iterations: int) -> dict[str, float]:
    """Return each phase's fraction of the time, by wrapping the engine's calls in timers."""
    spent = dict.fromkeys(PHASES, 0.0)
    places: list[tuple[Any, str, str]] = [
        (env, "step", "env"),
        (env, "draw", "env"),
        (env, "final_obs", "env"),
        (Evaluator, "__call__", "policy forward"),
        (PPO, "_train_native", "update products"),
        (PPO, "_minibatch", "update products"),
        (Adam, "apply", "optimizer"),
    ]

    def bracketed(function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start, within = now(ppo.device), sum(spent.values())
            result = function(*args, **kwargs)
            # Without the phases of the calls within this one.
            spent[phase] += now(ppo.device) - start - (sum(spent.values()) - within)
            return result

        return call

    before = [(place, name, getattr(place, name)) for place, name, _ in places]
    for (place, name, phase), (_, _, function) in zip(places, before, strict=True):
        setattr(place, name, bracketed(function, phase))
    try:
        start = now(ppo.device)
        ppo.train(env, iterations)
        total = now(ppo.device) - start
    finally:
        for place, name, function in before:
            if place is env:
                delattr(place, name)
            else:
                setattr(place, name, function)
    spent["other"] = total - sum(spent.values())
    return {phase: seconds / total for phase, seconds in spent.items()}


def measure(args: argparse.Namespace, market: Market, width: int, minibatch: int) -> dict[str, Any]:
    """Measure one network and minibatch: speed per repetition, peak and split."""
    ppo, env = program(args, market, width, minibatch)
    per_iteration = operations(ppo.shape, env)
    ppo.train(env, 1)
    speeds, splits, found = [], [], peaks(ppo.device, args.seconds / 2)
    for _ in range(args.repeats):
        iterations, start = 0, now(ppo.device)
        while now(ppo.device) - start < args.seconds:
            ppo.train(env, 1)
            iterations += 1
        speeds.append(iterations * per_iteration / (now(ppo.device) - start))
        splits.append(split(ppo, env, 1))
        again = peaks(ppo.device, args.seconds / 2)
        found = {name: max(rate, again[name]) for name, rate in found.items()}
    best = max(found.values())
    shares = [speed / best for speed in speeds]
    return {
        "network": [width, width],
        "minibatch": minibatch,
        "observation": env.state_dim,
        "operations_per_iteration": per_iteration,
        "peak_gflops": best / 1e9,
        "peaks_gflops": {name: rate / 1e9 for name, rate in found.items()},
        "steps_per_second": statistics.median(speeds)
        / per_iteration
        * ppo.shape.slots
        * ppo.shape.samples,
        "share_of_peak": statistics.median(shares),
        "runs": shares,
        "split": {phase: statistics.median(one[phase] for one in splits) for phase in PHASES},
    }


def main(arguments: list[str]) -> None:
    """Measure, print and save."""
    parser = benchmark_parser(__doc__, threads=2)
    parser.add_argument("--members", type=int, default=10, help="G, members trained together")
    parser.add_argument("--num-envs", type=int, default=64, help="environments per member")
    parser.add_argument("--horizon", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument(
        "--widths", type=int, nargs="+", default=[256, 128], help="widths of both hidden layers"
    )
    parser.add_argument("--minibatches", type=int, nargs="+", default=[2048, 4096])
    parser.add_argument("--assets", type=int, default=7)
    parser.add_argument(
        "--lookback",
        type=int,
        default=5,
        help="bars in an observation; 5 bars of 7 assets are 462 numbers",
    )
    parser.add_argument(
        "--largest-lookback",
        type=int,
        default=0,
        help="bars to which observations are padded (default: --lookback); the products that native "
        "kernels leave out are counted, too",
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="minimum time per repetition")
    args = parser.parse_args(arguments)
    torch.set_num_threads(args.threads)
    market = make_market(make_demo_market(0, assets=args.assets, bars=8_000))
    found = print_machine(args.device)
    names = ("members", "num_envs", "horizon", "epochs", "assets", "lookback", "device")
    names += ("largest_lookback",) if args.largest_lookback else ()
    setup = {name: getattr(args, name) for name in names}
    print(", ".join(f"{name} {value}" for name, value in setup.items()))
    print(
        f"medians of {args.repeats} repetitions; peak: the highest of the run's rates, single "
        "precision"
    )
    print(
        f"{'network':>9} {'minibatch':>9} {'obs':>5} {'steps/s':>10} {'peak GF/s':>10} "
        f"{'share':>7}  " + "  ".join(PHASES)
    )
    results = []
    for width in args.widths:
        for minibatch in args.minibatches:
            with idle_machine():
                row = measure(args, market, width, minibatch)
            results.append(row)
            parts = "  ".join(f"{row['split'][phase]:>{len(phase)}.1%}" for phase in PHASES)
            print(
                f"{width:>4}x{width:<4} {minibatch:>9,} {row['observation']:>5} "
                f"{row['steps_per_second']:>10,.0f} "
                f"{row['peak_gflops']:>10.0f} {row['share_of_peak']:>7.1%}  {parts}",
                flush=True,
            )
    save_results(args.save, {"machine": found, "setup": setup, "results": results})
