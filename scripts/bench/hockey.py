"""Steps per second of laser hockey at random play, and where the time of a step goes.

Both seats of every game are observed, and actions change in every step. A step's tensor operations
are counted, with the bytes that they read and write; the time of each part is measured alone.

    python scripts/bench/hockey.py [--threads 1 2] [--repeats 5] [--seconds 1]
        [--save scripts/bench/results/hockey.json]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from harness import print_machine, save_results
from step_speed import GOAL_GAMES, measure_parts, measure_speeds, speed_parser
from torch import Tensor

from envs.games.hockey import game as hockey
from envs.games.hockey.game import Hockey, HockeyParams
from envs.games.hockey.players import PLAYERS

GOAL = 300_000  # steps per second


def make(games: int) -> tuple[Hockey, Tensor, Tensor]:
    """Return an environment in the middle of its games, actions of 16 steps, and a buffer."""
    env = Hockey([HockeyParams()], 2 * games)
    env.reset(0)
    generator = torch.Generator().manual_seed(0)
    actions = 2.0 * torch.rand(16, 2 * games, env.action_dim, generator=generator) - 1.0
    return env, actions, torch.empty(2 * games, env.state_dim)


def steps(env: Hockey, actions: Tensor, obs: Tensor, count: int) -> None:
    for step in range(count):
        if step % 16 == 0:
            env.draw(16)
        env.step(actions[step % 16], out=obs)


def player(games: int) -> Callable[[int], None]:
    """Return a function that plays steps: one step of one game counts once, though two seats act."""
    env, actions, obs = make(games)

    def run(count: int) -> None:
        steps(env, actions, obs, count)
        env.check()

    return run


def parts(seconds: float) -> list[dict[str, Any]]:
    """Measure the parts of a step one by one, with one thread."""
    games = GOAL_GAMES
    torch.set_num_threads(1)
    env, actions, obs = make(games)
    steps(env, actions, obs, 48)
    env.draw(16)
    state, uniforms = env._state, env._uniforms.numbers[0]
    legal = env._faults.legal(actions[0]).view(games, env.seats, -1)
    controls = legal.float().permute(2, 1, 0).contiguous()
    unpacked = hockey._unpacked(state)
    player = PLAYERS["strong"]
    memory = torch.zeros(games, 1)
    calls: dict[str, Callable[[], object]] = {
        "a step": lambda: env.step(actions[0], out=obs),
        "  random numbers": lambda: env.draw(1),
        "  checking actions": lambda: env._faults.legal(actions[0]),
        "  rules and physics": lambda: hockey.play(unpacked, controls, keep_mode=True),
        "  rules with rewards and layout": lambda: env.move(state, legal, uniforms[:, :0]),
        "  observing": lambda: env.see(state),
        "  new games": lambda: env.start(uniforms[:, : env.uniforms_per_start]),
        "a scripted player": lambda: player.act(obs[::2], memory, uniforms[:, :1]),
    }
    return measure_parts(calls, seconds, {})


def main(arguments: list[str]) -> None:
    args = speed_parser(__doc__).parse_args(arguments)
    found = print_machine()
    speeds = measure_speeds(player, "steps", GOAL, args)
    shares = parts(args.seconds)
    save_results(args.save, {"machine": found, "goal": GOAL, "speed": speeds, "parts": shares})


if __name__ == "__main__":
    main(sys.argv[1:])
