"""Random legal moves per second of the card duel, and where the time of a move goes.

A move is drawn from the masks, choice by choice, as a policy draws it; then it is checked and
played, and the next player's observation is read. The time of each part is measured alone.

    python scripts/bench/card_duel.py [--threads 1 2] [--repeats 5] [--seconds 1]
        [--save scripts/bench/results/card_duel.json]
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from harness import print_machine, save_results
from step_speed import GOAL_GAMES, measure_parts, measure_speeds, speed_parser
from torch import Tensor

from envs.games.card_duel.constants import Action
from envs.games.card_duel.game import CardDuel, CardDuelParams
from envs.games.card_duel.layout import Board
from envs.games.card_duel.masks import PACKED, legal_actions, pack
from envs.games.card_duel.observation import SIZE
from envs.games.card_duel.players import PLAYERS

GOAL, MASK_GOAL = 150_000, 128  # moves per second, bytes
HORIZON = 16  # moves for which random numbers are drawn at once
OPENING = 160  # moves after which games are at all stages
KINDS = 256, 200  # games, and moves of each, in which the kinds of actions are counted


class Play:
    """An environment with games at all stages, and what random play needs."""

    def __init__(self, games: int) -> None:
        self.env = CardDuel([CardDuelParams()], games)
        self.obs = self.env.reset(0)
        self.memory = torch.zeros(games, 0)
        self.generator = torch.Generator().manual_seed(0)
        self.moves(OPENING)

    def draw(self) -> Tensor:
        """Draw random numbers of moves, for the game and for the player."""
        self.env.draw(HORIZON)
        size = HORIZON, self.env.num_envs, PLAYERS["random"].uniforms
        return torch.rand(size, dtype=torch.float64, generator=self.generator)

    def choose(self, uniforms: Tensor) -> Tensor:
        return PLAYERS["random"].act(self.obs, self.memory, uniforms, self.env.action_mask)[0]

    def moves(self, count: int) -> None:
        """Play random legal moves in all games."""
        for move in range(count):
            if move % HORIZON == 0:
                uniforms = self.draw()
            self.env.step(self.choose(uniforms[move % HORIZON]), out=self.obs)


def player(games: int) -> Callable[[int], None]:
    """Return a function that plays moves of all games."""
    play = Play(games)

    def run(count: int) -> None:
        play.moves(count)
        play.env.check()

    return run


def parts(seconds: float) -> list[dict[str, Any]]:
    """Measure the parts of a move one by one, with one thread."""
    torch.set_num_threads(1)
    play = Play(GOAL_GAMES)
    env, uniforms = play.env, play.draw()
    state, for_move = env._state, env._uniforms.numbers[0, :, : env.uniforms_per_move].contiguous()
    for_start = env._uniforms.numbers[0, :, : env.uniforms_per_start].contiguous()
    board = Board(state["cells"].t().contiguous())
    legal, mover = legal_actions(board), env.to_move()
    action = play.choose(uniforms[0])
    calls: dict[str, Callable[[], object]] = {
        "a move, per move": lambda: play.moves(HORIZON),
        "  random numbers, per move": play.draw,
        "  rules": lambda: env.move(state, action, for_move),
        "  masks": lambda: legal_actions(board),
        "  choosing": lambda: play.choose(uniforms[0]),
        "  observing": lambda: env.see(state, mover).contiguous(),
        "  new games": lambda: env.start(for_start),
        "packing masks": lambda: pack(legal),
        "a greedy player": lambda: PLAYERS["greedy"].act(
            play.obs, play.memory, uniforms[0], env.action_mask
        ),
    }
    several = {name: HORIZON for name in calls if "per move" in name}
    return measure_parts(calls, seconds, several)


def kinds_of_moves(games: int, moves: int) -> dict[str, float]:
    """Return the share of each type of action in random play."""
    play, found = Play(games), Counter[int]()
    for _ in range(moves):
        action = play.choose(play.draw()[0])
        play.env.step(action, out=play.obs)
        found.update(action[:, 0].tolist())
    return {kind.name: found[kind] / games / moves for kind in Action}


def main(arguments: list[str]) -> None:
    args = speed_parser(__doc__).parse_args(arguments)
    found = print_machine()
    print(f"an observation has {SIZE} bytes, all masks {PACKED} of at most {MASK_GOAL}")
    speeds = measure_speeds(player, "moves", GOAL, args)
    shares = kinds_of_moves(*KINDS)
    print(", ".join(f"{name} {share:.1%}" for name, share in shares.items()))
    timed = parts(args.seconds)
    results = {"machine": found, "goal": GOAL, "speed": speeds, "kinds": shares, "parts": timed}
    save_results(args.save, results)


if __name__ == "__main__":
    main(sys.argv[1:])
