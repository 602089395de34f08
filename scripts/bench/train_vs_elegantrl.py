"""Training speed of the population engine against ElegantRL's AgentPPO, in paired runs.

Both have the same crypto environment (synthetic bars, 7 assets, observation of about 110 numbers),
network, minibatch, epochs and transitions per rollout. Ours trains G members together, ElegantRL
one at a time. The figure is environment steps per second, summed over members:

    ours          G members x num_envs envs in one process
    elegant       AgentPPO, the same num_envs, one member at a time
    elegant 1env  AgentPPO with one env and num_envs times the horizon: equal transitions per update
    elegant pair  two concurrent processes of `elegant`, half of the threads each (--threads ≥ 2)

ElegantRL runs as fast as its code allows: exploration under no_grad, no evaluation, no logging. Its
buffer counts steps, so repeat_times is epochs x num_envs, which gives as many minibatches per
transition as ours. Full rollouts are timed: exploration, advantages and update.

Each repetition times all of them in turn; the median of the ratios is reported.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable

import torch
from elegantrl_run import ElegantEnv, make_agent, train_rollout
from harness import benchmark_parser, machine, median_ratio, medians, save_results, steps_per_second

from agents.algorithms.ppo import PPO, PPOParams, Shape
from envs.crypto.data.demo_market import make_demo_market
from envs.crypto.env import CryptoEnv
from envs.crypto.market import Market, make_market, observation_normaliser
from envs.crypto.params import EnvParams

BARS = 8_000


def make_env(market: Market, members: int, num_envs: int) -> CryptoEnv:
    """Make training rows over all bars."""
    first = market.first_bar(1)
    windows = [[(first, market.length - 1)] for _ in range(members)]
    return CryptoEnv(market, [EnvParams()] * members, windows, num_envs)


def normaliser(market: Market) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the normaliser of the same bars."""
    return observation_normaliser(market, [(market.first_bar(1), market.length - 1)], 1, 1)


def shape_of(
    args: argparse.Namespace, env: CryptoEnv, slots: int, num_envs: int, horizon: int
) -> Shape:
    """Return the shape given by the arguments."""
    return Shape(
        state_dim=env.state_dim,
        action_dim=env.action_dim,
        slots=slots,
        net_width=args.width,
        num_envs=num_envs,
        horizon=horizon,
        minibatch=args.minibatch,
        epochs=args.epochs,
    )


def ours(args: argparse.Namespace, market: Market) -> Callable[[], int]:
    """Return a function that trains G members for one rollout and returns its steps."""
    env = make_env(market, args.members, args.num_envs)
    shape = shape_of(args, env, args.members, args.num_envs, args.horizon)
    ppo = PPO(shape)
    for slot in range(args.members):
        ppo.add_member(slot, PPOParams(), slot, 1_000, *normaliser(market))
    ppo.begin(env.reset(list(range(args.members))))

    def rollout() -> int:
        ppo.train(env, 1)
        return shape.slots * shape.samples

    return rollout


def elegant(args: argparse.Namespace, market: Market, num_envs: int) -> Callable[[], int]:
    """Return a function that trains one ElegantRL member for one rollout and returns its steps."""
    env = make_env(market, 1, num_envs)
    env.reset([0])
    horizon = int(args.horizon) * int(args.num_envs) // num_envs
    adapted = ElegantEnv(env)
    torch.manual_seed(0)
    agent = make_agent(
        adapted, shape_of(args, env, 1, num_envs, horizon), PPOParams(), *normaliser(market)
    )

    def rollout() -> int:
        train_rollout(agent, adapted, horizon)
        return horizon * num_envs

    return rollout


def side_by_side(argv: list[str], threads: int) -> float:
    """Return the steps/s of two concurrent processes of this script, summed."""
    command = [sys.executable, __file__, *argv, "--threads", str(threads // 2), "--as-peer"]
    peers = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ
        )
        for _ in range(2)
    ]
    for peer in peers:
        assert peer.stdout is not None
        peer.stdout.readline()  # "ready"
    for peer in peers:
        assert peer.stdin is not None
        peer.stdin.write("go\n")
        peer.stdin.flush()
    return sum(float(peer.communicate()[0]) for peer in peers)


def main(argv: list[str]) -> None:
    """Measure, print and save."""
    parser = benchmark_parser(__doc__, threads=2)
    parser.add_argument(
        "--members", type=int, default=10, help="G, the members trained together by ours"
    )
    parser.add_argument("--num-envs", type=int, default=64, help="environments per member")
    parser.add_argument("--horizon", type=int, default=64)
    parser.add_argument("--minibatch", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--width", type=int, default=128, help="width of both hidden layers")
    parser.add_argument("--assets", type=int, default=7)
    parser.add_argument("--runs", type=int, default=5, help="paired repetitions")
    parser.add_argument("--seconds", type=float, default=4.0, help="minimum time per measurement")
    parser.add_argument("--no-pair", action="store_true", help="skip the two concurrent processes")
    parser.add_argument("--as-peer", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    market = make_market(make_demo_market(0, assets=args.assets, bars=BARS))
    if args.as_peer:
        rollout = elegant(args, market, args.num_envs)
        rollout()
        print("ready", flush=True)
        sys.stdin.readline()
        print(steps_per_second(rollout, args.seconds))
        return

    contenders = {
        "ours": ours(args, market),
        "elegant": elegant(args, market, args.num_envs),
        "elegant 1env": elegant(args, market, 1),
    }
    for rollout in contenders.values():
        rollout()  # warm-up
    speeds: dict[str, list[float]] = {name: [] for name in contenders}
    pair = not args.no_pair and args.threads >= 2
    for run in range(args.runs):
        for name, rollout in contenders.items():
            speeds[name].append(steps_per_second(rollout, args.seconds))
        if pair:
            speeds.setdefault("elegant pair", []).append(side_by_side(argv, args.threads))
        print(
            f"run {run + 1}: "
            + ", ".join(f"{name} {values[-1]:,.0f}" for name, values in speeds.items()),
            flush=True,
        )
    report(args, speeds, make_env(market, 1, 1).state_dim)


def report(args: argparse.Namespace, speeds: dict[str, list[float]], state_dim: int) -> None:
    """Print medians and ratios of ours to each peer, and save."""
    setup = {
        name: getattr(args, name)
        for name in ("members", "num_envs", "horizon", "minibatch", "epochs", "threads", "assets")
    }
    setup |= {
        "network": [args.width, args.width],
        "observation": state_dim,
        "transitions per rollout": args.num_envs * args.horizon,
    }
    result = {
        "setup": setup,
        "machine": machine()
        | {
            "threads": "one process with all threads each; 'elegant pair' is two processes with "
            "half of them each"
        },
        "steps_per_second": medians(speeds),
        "runs": speeds,
        "ours_over": {
            name: median_ratio(speeds["ours"], values)
            for name, values in speeds.items()
            if name != "ours"
        },
    }
    print("\n" + ", ".join(f"{name} {value}" for name, value in setup.items()))
    print(f"{'':14}{'steps/s':>12}{'ours is':>12}   (medians of {args.runs} paired runs)")
    for name, value in result["steps_per_second"].items():
        times = f"{result['ours_over'][name]:.1f}x" if name != "ours" else ""
        print(f"{name:14}{value:>12,.0f}{times:>12}")
    save_results(args.save, result)


if __name__ == "__main__":
    main(sys.argv[1:])
