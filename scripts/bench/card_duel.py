"""Random legal moves per second of the card duel, and where the time of a move goes.

A move is drawn from the masks, choice by choice, as a policy draws it; then it is checked and
played, and the next player's observation is read. The time of each part is measured alone.

    python scripts/bench/card_duel.py [--threads 1 2] [--repeats 5] [--seconds 1]
        [--save scripts/bench/results/card_duel.json]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from harness import benchmark_parser, print_machine, save_results
from hockey import OperationCount
from torch import Tensor

from envs.core.sizing import cpu_count
from envs.games.card_duel.constants import Action
from envs.games.card_duel.game import CardDuel, CardDuelParams
from envs.games.card_duel.layout import Board
from envs.games.card_duel.masks import PACKED, legal_actions, pack
from envs.games.card_duel.observation import SIZE
from envs.games.card_duel.players import PLAYERS

GOAL, GOAL_GAMES, MASK_GOAL = 150_000, 4_096, 128
SIZES = (256, 1_024, 4_096, 16_384)
HORIZON = 16  # moves for which random numbers are drawn at once


class Play:
    """An environment with games at all stages, and what random play needs."""

    def __init__(self, games: int) -> None:
        self.env = CardDuel([CardDuelParams()], games)
        self.obs = self.env.reset(0)
        self.memory = torch.zeros(games, 0)
        self.generator = torch.Generator().manual_seed(0)
        self.moves(160)

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


def speed(games: int, threads: int, repeats: int, seconds: float) -> dict[str, Any]:
    """Measure moves per second, of all games together."""
    torch.set_num_threads(threads)
    play = Play(games)
    began = time.perf_counter()
    play.moves(HORIZON)
    count = HORIZON * max(1, round(seconds / (time.perf_counter() - began)))
    clock, processor = [], []
    for _ in range(repeats):
        began, used = time.perf_counter(), time.process_time()
        play.moves(count)
        clock.append(count * games / (time.perf_counter() - began))
        processor.append(count * games / (time.process_time() - used))
    play.env.check()
    return {
        "games": games,
        "threads": threads,
        "moves_per_second": statistics.median(clock),
        "slowest": min(clock),
        "fastest": max(clock),
        "moves_per_processor_second": statistics.median(processor),
    }


def parts(games: int, seconds: float) -> list[dict[str, Any]]:
    """Measure the parts of a move one by one, with one thread."""
    torch.set_num_threads(1)
    play = Play(games)
    env, uniforms = play.env, play.draw()
    state, for_move = env._state, env._uniforms[0, :, : env.uniforms_per_move].contiguous()
    for_start = env._uniforms[0, :, : env.uniforms_per_start].contiguous()
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
    found = []
    for name, call in calls.items():
        share = HORIZON if "per move" in name else 1
        with OperationCount() as count:
            call()
        # Processor time, on which the load of the machine has less influence.
        made, began = 0, time.process_time()
        while time.process_time() - began < seconds:
            call()
            made += 1
        found.append(
            {
                "part": name,
                "microseconds": 1e6 * (time.process_time() - began) / made / share,
                "operations": sum(count.names.values()) / share,
                "bytes_per_game": count.bytes / games / share,
                "most": [(one, number // share) for one, number in count.names.most_common(6)],
            }
        )
    return found


def kinds_of_moves(games: int, moves: int) -> dict[str, float]:
    """Return the share of each type of action in random play."""
    play, found = Play(games), Counter[int]()
    for _ in range(moves):
        action = play.choose(play.draw()[0])
        play.env.step(action, out=play.obs)
        found.update(action[:, 0].tolist())
    return {kind.name: found[kind] / games / moves for kind in Action}


def main(arguments: list[str]) -> None:
    parser = benchmark_parser(__doc__)
    both = sorted({1, min(2, cpu_count())})
    parser.add_argument("--threads", type=int, nargs="+", default=both, help="torch threads")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="approximate time per run")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="games")
    args = parser.parse_args(arguments)

    found = print_machine()
    print(f"an observation has {SIZE} bytes, all masks {PACKED} of at most {MASK_GOAL}")
    print(f"{'games':>7} {'threads':>8} {'moves/s':>10} {'slowest':>10} {'fastest':>10}", end=" ")
    print(f"{'per cpu s':>10}")
    speeds = []
    for games in args.sizes:
        for threads in args.threads:
            row = speed(games, threads, args.repeats, args.seconds)
            speeds.append(row)
            names = ("moves_per_second", "slowest", "fastest", "moves_per_processor_second")
            rates = " ".join(f"{row[name]:>10,.0f}" for name in names)
            print(f"{games:>7,} {threads:>8} {rates}", flush=True)
    reached = [row["moves_per_second"] for row in speeds if row["games"] == GOAL_GAMES]
    if reached:
        share = max(reached) / GOAL
        print(f"{share:.2f} of the goal of {GOAL:,} moves/s at {GOAL_GAMES:,} games")
    shares = kinds_of_moves(256, 200)
    print(", ".join(f"{name} {share:.1%}" for name, share in shares.items()))
    print(f"where the time goes at {GOAL_GAMES:,} games, 1 thread")
    timed = parts(GOAL_GAMES, args.seconds)
    for row in timed:
        most = ", ".join(f"{count} {name}" for name, count in row["most"])
        print(
            f"{row['part']:>30} {row['microseconds']:>8,.0f} us {row['operations']:>5.0f} "
            f"operations {row['bytes_per_game']:>8,.0f} bytes per game; {most}",
            flush=True,
        )
    results = {"machine": found, "goal": GOAL, "speed": speeds, "kinds": shares, "parts": timed}
    save_results(args.save, results)


if __name__ == "__main__":
    main(sys.argv[1:])
