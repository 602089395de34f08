"""Decisions per second of PPO on the card duel, end to end: self-play at both seats.

A rollout, its advantages and the gradient steps of all epochs count; a decision is one transition
that is learned from. About 200,000 weights per member (actor and critic, with the item encoder).

    python scripts/bench/duel_training.py [--runs 5] [--members 4 8] [--games 512] [--epochs 2]
        [--policies per-seat] [--save scripts/bench/results/duel_training.json]
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
from harness import benchmark_parser, print_machine, save_results

from agents.algorithms.ppo import PPO, PPOParams, Shape
from agents.networks.shape import POLICIES, SHARED
from envs.games.card_duel.game import CardDuel, CardDuelParams

GOAL = 25_000  # decisions per second
WIDTH, ITEM_WIDTH, HORIZON, MINIBATCH = 128, 12, 32, 2048


def training(members: int, games: int, epochs: int, policies: str) -> tuple[PPO, CardDuel]:
    """Return a program that has trained one rollout, and its environment."""
    env = CardDuel([CardDuelParams()] * members, games)
    shape = Shape.for_env(
        env,
        net_width=WIDTH,
        item_width=ITEM_WIDTH,
        horizon=HORIZON,
        epochs=epochs,
        minibatch=MINIBATCH,
        policies=policies,
    )
    ppo, columns = PPO(shape), env.state_dim
    for slot in range(members):
        params = PPOParams(gamma=1.0)
        ppo.add_member(slot, params, slot, 1000, torch.zeros(columns), torch.ones(columns))
    ppo.begin(env.reset(0))
    ppo.train(env, 1)
    return ppo, env


def main(argv: list[str]) -> None:
    parser = benchmark_parser(__doc__, threads=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--members", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--games", type=int, default=512, help="per member")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--policies", choices=POLICIES, default=SHARED)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    found, rows = print_machine(), []
    for members in args.members:
        ppo, env = training(members, args.games, args.epochs, args.policies)
        decisions = members * ppo.shape.samples
        speeds = []
        for _ in range(args.runs):
            began = time.perf_counter()
            ppo.train(env, 1)
            speeds.append(decisions / (time.perf_counter() - began))
        weights = 2 * ppo.population.flat.shape[-1]
        speed = statistics.median(speeds)
        print(
            f"{members} members, {args.games} games each, {weights:,} weights per member, "
            f"{args.epochs} epochs: {speed:,.0f} decisions/s ({min(speeds):,.0f} to "
            f"{max(speeds):,.0f}), {speed / GOAL:.2f} of the goal",
            flush=True,
        )
        rows.append({"members": members, "weights": weights, "decisions_per_second": speeds})
    sizes = {"games": args.games, "epochs": args.epochs, "horizon": HORIZON, "minibatch": MINIBATCH}
    save_results(args.save, {"machine": found, "goal": GOAL, "sizes": sizes, "rows": rows})


if __name__ == "__main__":
    main(sys.argv[1:])
