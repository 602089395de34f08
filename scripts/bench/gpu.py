"""A GPU at the predecessor's problem size: utilisation, and the extrapolated time of 500 trials.

The task: observation 498, 7 assets, two hidden layers of 1,024, minibatch 4,096, 8 epochs. A trial
has 10 folds of 125,000 steps, and its folds are evaluated at 4 rungs. The engine trains as many
members at once as fill the GPU (--members and --num-envs, set by hand). Measured are

    steady state    environment steps per second over at least --seconds: rollouts and updates
    share of peak   operations per second (counted as in roofline.py) over those of the fastest
                    matrix product of the same precision in the same run
    split           env, policy, update, optimizer, other
    card            utilisation and memory during the run, as reported by the driver
    evaluation      one pass of all members over their test groups

The time of 500 trials without pruning is EXTRAPOLATED from these. The predecessor reports "< 20
hours at 75-85% utilisation" on a GPU with 16 GB. --curves also trains the same members in full
precision and prints the mean rewards of both, since a precision that learns worse is no speed-up.

    python scripts/bench/gpu.py --device cuda [--precision tf32] [--save FILE]
    python scripts/bench/gpu.py --device cpu --width 64 --members 2 --seconds 2 --bars 2000  # test
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import replace
from typing import Any, Self

import torch
from harness import benchmark_parser, load_results, print_machine, save_results
from roofline import now, operations, peak, split

from agents.algorithms.ppo import PPO, PPOParams, Shape
from agents.networks.precision import PRECISIONS, set_precision
from envs.crypto.data.bars import Bars
from envs.crypto.data.demo_market import make_demo_market
from envs.crypto.env import CryptoEnv
from envs.crypto.features import Recipe, get_recipe, register_recipe
from envs.crypto.market import Market, make_market, observation_normaliser
from envs.crypto.params import EnvParams
from envs.support.periodic_thread import PeriodicThread
from optimize.worker.telemetry import GpuMeter, GpuUse

ASSETS, LOOKBACK, COLUMNS = 7, 7, 68  # 1 + 3 * 7 of the portfolio and 7 * 68 of the market: 498
TRIALS, FOLDS, STEPS, RUNGS, GROUPS = 500, 10, 125_000, 4, 5
PREDECESSOR_HOURS = 20.0


class CardWatch:
    """Samples the GPU's utilisation and memory twice a second while the block runs."""

    def __init__(self, device: torch.device) -> None:
        self._meter = GpuMeter(device)
        self._thread = PeriodicThread(self._read, 0.5, "card")
        self.readings: list[GpuUse] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.stop()

    def _read(self) -> None:
        reading = self._meter.read()
        if reading is not None:
            self.readings.append(reading)

    def summary(self) -> dict[str, float] | None:
        """Return the means, or None if the driver reports nothing."""
        if not self.readings:
            return None
        return {
            "utilisation": statistics.mean(reading.share for reading in self.readings),
            "memory_gib": max(reading.used for reading in self.readings) / 2**30,
            "memory_total_gib": self.readings[0].total / 2**30,
        }


def predecessor_market(bars: int) -> Market:
    """Make a synthetic market with as many feature columns as the predecessor's."""
    default = get_recipe("default")

    def compute(given: Bars) -> Any:
        return default.compute(given)[:, :COLUMNS]

    names = tuple(f"column_{index}" for index in range(COLUMNS))
    recipe = register_recipe(Recipe("predecessor-size", 1, default.memory, (), names, compute))
    return make_market(make_demo_market(0, assets=ASSETS, bars=bars), recipe.name)


def program(args: argparse.Namespace, market: Market) -> tuple[PPO, CryptoEnv]:
    """Make a program with all its members, and its environment."""
    device = torch.device(args.device)
    params = EnvParams(lookback=LOOKBACK)
    windows = [(market.first_bar(LOOKBACK), market.length - 1)]
    env = CryptoEnv(
        market, [params] * args.members, [windows] * args.members, args.num_envs, device=device
    )
    shape = Shape(
        state_dim=env.state_dim,
        action_dim=env.action_dim,
        slots=args.members,
        net_width=args.width,
        minibatch=min(args.minibatch, args.num_envs * args.horizon),
        num_envs=args.num_envs,
        horizon=args.horizon,
        epochs=args.epochs,
    )
    ppo = PPO(shape, device)
    if args.no_graphs:
        ppo.recorder = None
    normaliser = observation_normaliser(market, windows, LOOKBACK, LOOKBACK)
    for slot in range(args.members):
        ppo.add_member(
            slot, replace(PPOParams(), learning_rate=args.learning_rate), slot, 10_000, *normaliser
        )
    ppo.begin(env.reset(list(range(args.members))))
    return ppo, env


def evaluation_seconds(args: argparse.Namespace, market: Market, ppo: PPO) -> float:
    """Time one pass of all members over two test groups each, on a part of the bars."""
    first, bars = market.first_bar(LOOKBACK), market.length - 1
    length = (bars - first) // GROUPS
    windows = [[(first, first + length), (first + length, first + 2 * length)]] * args.members
    env = CryptoEnv.for_windows(
        market, EnvParams(lookback=LOOKBACK), windows, device=torch.device(args.device)
    )
    act, obs = ppo.act_fn(), env.reset(0)
    measured = min(length, 200)
    for step in range(measured + 5):
        if step == 5:
            start = now(ppo.device)
        obs = env.step(act(obs)).obs
    return (now(ppo.device) - start) / measured * length


def curves(args: argparse.Namespace, market: Market) -> dict[str, list[float]]:
    """Return the mean reward per rollout, in full precision and in the given precision."""
    found = {}
    for name in dict.fromkeys(("fp32", args.precision)):
        set_precision(name, torch.device(args.device))
        ppo, env = program(args, market)
        found[name] = [float(stats.reward.mean()) for stats in ppo.train(env, args.curves)]
    return found


def main(arguments: list[str]) -> None:
    """Measure, print and save."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", choices=list(PRECISIONS), default="fp32")
    parser.add_argument(
        "--members", type=int, default=100, help="members trained together: 10 trials of 10 folds"
    )
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--horizon", type=int, default=128)
    parser.add_argument("--width", type=int, default=1024, help="width of both hidden layers")
    parser.add_argument("--minibatch", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument(
        "--no-graphs", action="store_true", help="launch gradient steps without a CUDA graph"
    )
    parser.add_argument("--bars", type=int, default=24_000)
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="minimum length of the steady state"
    )
    parser.add_argument(
        "--curves", type=int, default=0, metavar="ROLLOUTS", help="compare its learning with fp32"
    )
    args = parser.parse_args(arguments)
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        sys.exit(
            "gpu.py: torch sees no card here; --device cpu tries the script at a small --width"
        )
    market = predecessor_market(args.bars)
    set_precision(args.precision, torch.device(args.device))
    found = print_machine(args.device)

    ppo, env = program(args, market)
    per_iteration, steps = operations(ppo.shape, env), ppo.shape.slots * ppo.shape.samples
    best = peak(ppo.device, min(args.seconds / 10, 3.0))
    ppo.train(env, 2)  # warm-up
    with CardWatch(ppo.device) as watch:
        iterations, start = 0, now(ppo.device)
        while now(ppo.device) - start < args.seconds:
            ppo.train(env, 1)
            iterations += 1
        seconds = now(ppo.device) - start
    best = max(best, peak(ppo.device, min(args.seconds / 10, 3.0)))
    parts = split(ppo, env, 1)
    evaluation = evaluation_seconds(args, market, ppo)
    rate = iterations * steps / seconds
    training_hours = TRIALS * FOLDS * STEPS / rate / 3600
    evaluation_hours = evaluation * RUNGS * TRIALS * FOLDS / args.members / 3600
    result = {
        "observation": env.state_dim,
        "steps_per_second": rate,
        "seconds_measured": seconds,
        "tflops": iterations * per_iteration / seconds / 1e12,
        "peak_tflops": best / 1e12,
        "share_of_peak": iterations * per_iteration / seconds / best,
        "split": parts,
        "card": watch.summary(),
        "evaluation_seconds": evaluation,
        "hours_for_500_trials": training_hours + evaluation_hours,
        "of_which_evaluation": evaluation_hours,
    }
    print(
        f"observation {env.state_dim}, {args.width}x{args.width}, {args.members} members x "
        f"{args.num_envs} envs x "
        f"{args.horizon} steps, minibatch {ppo.shape.minibatch}, {args.epochs} epochs, "
        f"{args.precision}"
    )
    print(
        f"{rate:,.0f} steps/s over {seconds:.0f} s; {result['tflops']:.2f} of "
        f"{result['peak_tflops']:.2f} Tflop/s, "
        f"{result['share_of_peak']:.0%} of the peak"
    )
    print("  ".join(f"{phase} {share:.1%}" for phase, share in parts.items()))
    card = result["card"]
    print(
        f"card: {card['utilisation']:.0%} busy, {card['memory_gib']:.1f} of "
        f"{card['memory_total_gib']:.0f} GiB"
        if card
        else "card: not told"
    )
    print(
        f"{TRIALS} trials of {FOLDS} folds x {STEPS:,} steps, EXTRAPOLATED: "
        f"{60 * training_hours:,.1f} min of training + "
        f"{60 * evaluation_hours:,.1f} min of evaluation (the predecessor: < "
        f"{PREDECESSOR_HOURS:.0f} hours)"
    )
    if args.curves:
        compared = curves(args, market)
        result["curves"] = compared
        print(
            "mean reward by rollout: "
            + "; ".join(f"{k} " + " ".join(f"{v:+.4f}" for v in vs) for k, vs in compared.items())
        )
    setup = {name: value for name, value in vars(args).items() if name != "save"}
    kept = load_results(args.save) or []
    save_results(args.save, [*kept, {"machine": found, "setup": setup, **result}])


if __name__ == "__main__":
    main(sys.argv[1:])
