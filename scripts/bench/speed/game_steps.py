"""Steps per second of the included games at random play, in whole environments.

A step of one game counts once, whatever the number of its seats: a step of laser hockey, a legal
move of the card duel (drawn from the masks, choice by choice, as a policy draws it), a night of
Bucket Brigade. Random numbers, rules, rewards, observations and new games are included.

Rates are per second of processor time on one thread, which other processes hardly affect, and
medians of `--repeats` runs. The goals are stated at 4,096 games.

    python -m scripts.bench run game_steps [--games hockey card-duel] [--repeats 5] [--seconds 1]
        [--save scripts/bench/results/game_steps.json]
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from scripts.bench.harness import benchmark_parser, print_machine, save_results, steps_per_second
from sweepd.envs.core.vec_env import VecEnv
from sweepd.envs.games.bucket_brigade.game import BucketBrigade
from sweepd.envs.games.bucket_brigade.scenarios import scenario
from sweepd.envs.games.card_duel.game import CardDuel, CardDuelParams
from sweepd.envs.games.card_duel.players import PLAYERS
from sweepd.envs.games.hockey.game import Hockey, HockeyParams

GOAL_GAMES = 4_096
SIZES = (256, 1_024, GOAL_GAMES, 16_384)
AHEAD = 16  # steps for which random numbers are drawn at once
OPENING = 160  # steps after which games are at all stages
SEED = 0

Step = Callable[[], None]


def hockey(games: int) -> tuple[VecEnv, Step]:
    """Return games and a function that makes a step of all of them."""
    env = Hockey([HockeyParams()], 2 * games)
    obs = env.reset(SEED)
    generator = torch.Generator().manual_seed(SEED)
    size = AHEAD, env.num_envs, env.action_dim
    actions = 2.0 * torch.rand(size, generator=generator) - 1.0
    order = itertools.cycle(actions)

    def step() -> None:
        env.step(next(order), out=obs)

    return env, step


def card_duel(games: int) -> tuple[VecEnv, Step]:
    """Return games and a function that makes a move in all of them."""
    env, player = CardDuel([CardDuelParams()], games), PLAYERS["random"]
    obs, memory = env.reset(SEED), torch.zeros(games, 0)
    generator = torch.Generator().manual_seed(SEED)

    def move() -> None:
        size = env.num_envs, player.uniforms
        uniforms = torch.rand(size, dtype=torch.float64, generator=generator)
        env.step(player.act(obs, memory, uniforms, env.action_mask)[0], out=obs)

    return env, move


def bucket_brigade(games: int) -> tuple[VecEnv, Step]:
    """Return games and a function that plays a night of all of them."""
    params = scenario("default")
    env = BucketBrigade(params, games * params.num_agents)
    obs = env.reset(SEED)
    generator = torch.Generator().manual_seed(SEED)
    every_action = torch.cartesian_prod(
        *(torch.arange(options) for options in env.spec.action_dims)
    )

    def night() -> None:
        chosen = torch.randint(0, len(every_action), (env.num_envs,), generator=generator)
        env.step(every_action.index_select(0, chosen), out=obs)

    return env, night


# Unit of a step, goal in steps per second (Bucket Brigade: 50,000 games of 13.2 nights), maker.
GAMES = {
    "hockey": ("steps", 300_000, hockey),
    "card-duel": ("moves", 150_000, card_duel),
    "bucket-brigade": ("nights", 660_000, bucket_brigade),
}


def rate(name: str, games: int, repeats: int, seconds: float) -> list[float]:
    """Return the steps per processor second of several runs."""
    env, step = GAMES[name][2](games)

    def run() -> int:
        env.draw(AHEAD)
        for _ in range(AHEAD):
            step()
        return AHEAD * games

    for _ in range(OPENING // AHEAD):
        run()
    rates = [steps_per_second(run, seconds, time.process_time) for _ in range(repeats)]
    env.check()
    return rates


def main(argv: list[str]) -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--games", nargs="+", choices=list(GAMES), default=list(GAMES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="least time of a run")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="games at once")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    content: dict[str, Any] = {"machine": print_machine(), "rows": []}
    for name in args.games:
        unit, goal, _ = GAMES[name]
        for games in args.sizes:
            rates = rate(name, games, args.repeats, args.seconds)
            middle = statistics.median(rates)
            row = {"game": name, "unit": unit, "goal": goal, "games": games, "rate": middle}
            content["rows"].append(row | {"rates": rates})
            asked = f" ({middle / goal:.2f} of the goal)" if games == GOAL_GAMES else ""
            print(f"{name:>14} {games:>7,} games: {middle:>11,.0f} {unit}/s{asked}", flush=True)
    save_results(args.save, content)
