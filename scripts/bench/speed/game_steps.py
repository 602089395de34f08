"""Steps per second of the included games at random play, in whole environments.

A step of one game counts once, whatever the number of its seats: a step of laser hockey, a legal
move of the card duel (drawn from the masks, choice by choice, as a policy draws it), a night of
Bucket Brigade. Random numbers, rules, rewards, observations and new games are included.

Games with native code make paired runs with it and without it. Rates are medians of `--repeats`
runs: on one thread, per second of processor time, which other processes hardly affect; on several,
per second of wall-clock time. The goals are stated at 4,096 games.

    python -m scripts.bench run game_steps [--games hockey card-duel] [--threads 1] [--repeats 5]
        [--seconds 1] [--save scripts/bench/results/game_steps.json]
"""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Callable
from typing import Any

import torch

from scripts.bench.harness import (
    CLOCKS,
    benchmark_parser,
    median_ratio,
    paired_runs,
    print_machine,
    save_results,
    steps_per_second,
    torch_only,
)
from sweepd.envs.core.vec_env import VecEnv
from sweepd.envs.games.bucket_brigade.game import BucketBrigade
from sweepd.envs.games.bucket_brigade.scenarios import scenario
from sweepd.envs.games.card_duel.game import CardDuel, CardDuelParams
from sweepd.envs.games.card_duel.players import PLAYERS
from sweepd.envs.games.hockey.game import Hockey, HockeyParams
from sweepd.envs.native.threads import torch_on_one

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


# Unit of a step, goal in steps per second and thread, maker.
GAMES = {
    "hockey": ("steps", 1_500_000, hockey),
    "card-duel": ("moves", 500_000, card_duel),
    "bucket-brigade": ("nights", 1_000_000, bucket_brigade),
}


class Player:
    """Plays one of the games at random."""

    def __init__(self, name: str, games: int) -> None:
        self.env, self._step = GAMES[name][2](games)
        self._games = games
        for _ in range(OPENING // AHEAD):
            self.run()

    def run(self) -> int:
        """Make `AHEAD` steps, and return how many in all games."""
        self.env.draw(AHEAD)
        for _ in range(AHEAD):
            self._step()
        return AHEAD * self._games

    def rate(self, seconds: float, clock: str) -> float:
        """Return steps per second."""
        with torch_on_one(self.env.native):
            return steps_per_second(self.run, seconds, CLOCKS[clock])


def measure(name: str, games: int, repeats: int, seconds: float) -> dict[str, Any]:
    """Return a row of the results."""
    players = {"rates": Player(name, games)}
    if players["rates"].env.native:
        with torch_only():
            players["torch_rates"] = Player(name, games)
    threads = torch.get_num_threads()
    clock = "processor" if threads == 1 else "wall"
    rates = paired_runs(
        {kind: functools.partial(own.rate, seconds, clock) for kind, own in players.items()},
        repeats,
        clock,
    )
    for player in players.values():
        player.env.check()
    unit, goal, _ = GAMES[name]
    row = {"game": name, "unit": unit, "goal": goal * threads, "games": games}
    row |= {"rate": statistics.median(rates["rates"])}
    if "torch_rates" in rates:
        row |= {"torch_rate": statistics.median(rates["torch_rates"])}
        row |= {"over_torch": median_ratio(rates["rates"], rates["torch_rates"])}
    return row | rates


def main(argv: list[str]) -> None:
    parser = benchmark_parser(__doc__, threads=1)
    parser.add_argument("--games", nargs="+", choices=list(GAMES), default=list(GAMES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="least time of a run")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="games at once")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    content: dict[str, Any] = {"machine": print_machine(), "rows": []}
    for name in args.games:
        for games in args.sizes:
            row = measure(name, games, args.repeats, args.seconds)
            content["rows"].append(row)
            said = f"{name:>14} {games:>7,} games: {row['rate']:>11,.0f} {row['unit']}/s"
            if games == GOAL_GAMES:
                said += f" ({row['rate'] / row['goal']:.2f} of the goal)"
            if "torch_rate" in row:
                said += f", torch {row['torch_rate']:,.0f} ({row['over_torch']:.1f} times)"
            print(said, flush=True)
    save_results(args.save, content)
