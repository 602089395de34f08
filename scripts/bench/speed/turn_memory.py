"""Speed of training with memory in games in turns: GRU and LSTM against a network without memory.

One program trains `--members` members by self-play. In a game in turns, memory has a state per game
and player, and minibatches consist of the sequences of one player. Reported are decisions per second
of processor time on one thread, medians of paired runs, and their ratios to no memory, beside the
ratio of the networks' weights, which is that of the arithmetic. The goal is a ratio of 0.3.

    python -m scripts.bench run turn_memory [--games card-duel kuhn leduc] [--repeats 5]
        [--save scripts/bench/results/turn_memory.json]
"""

from __future__ import annotations

import functools
import statistics
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
)
from sweepd.agents.algorithms.ppo import PPO, PPOParams, Shape
from sweepd.envs.games.registry import get_game

GAMES = ("card-duel", "kuhn", "leduc")
MEMORIES = {"none": "", "gru": "gru", "lstm": "lstm"}
GOAL = 0.3  # of the decisions per second without memory
HORIZON, BPTT, MINIBATCH, EPOCHS, WIDTH = 64, 16, 512, 4, 64


class Trainer:
    """Trains members of one kind of network on a game."""

    def __init__(self, name: str, recurrent: str, members: int, num_envs: int) -> None:
        game = get_game(name)
        self.env = game.make([game.params()] * members, num_envs, together=1, device="cpu")
        shape = Shape.for_env(
            self.env,
            slots=members,
            net_width=WIDTH,
            net_depth=2,
            num_envs=num_envs,
            horizon=HORIZON,
            minibatch=MINIBATCH,
            epochs=EPOCHS,
            recurrent=recurrent,
            bptt=BPTT,
        )
        self.ppo = PPO(shape)
        columns = self.env.state_dim
        for slot in range(members):
            self.ppo.add_member(
                slot, PPOParams(), slot, 1_000, torch.zeros(columns), torch.ones(columns)
            )
        self.ppo.begin(self.env.reset(list(range(members))))
        self.run()

    def run(self) -> int:
        """Train for a rollout, and return the decisions of all members."""
        self.ppo.train(self.env, 1)
        return self.ppo.shape.slots * self.ppo.shape.samples

    @property
    def weights(self) -> int:
        """Return the number of a member's weights."""
        return sum(tensor.numel() for net in self.ppo.export_member(0) for tensor in net.values())

    def rate(self, seconds: float) -> float:
        """Return decisions per second of processor time."""
        return steps_per_second(self.run, seconds, CLOCKS["processor"])


def measure(name: str, args: Any) -> dict[str, Any]:
    """Return a row of the results."""
    trainers = {
        kind: Trainer(name, recurrent, args.members, args.num_envs)
        for kind, recurrent in MEMORIES.items()
    }
    rates = paired_runs(
        {kind: functools.partial(own.rate, args.seconds) for kind, own in trainers.items()},
        args.repeats,
        "processor",
    )
    row: dict[str, Any] = {"game": name, "goal": GOAL, "runs": rates}
    for kind, own in rates.items():
        row[kind] = {
            "rate": statistics.median(own),
            "ratio": median_ratio(own, rates["none"]),
            "arithmetic": trainers["none"].weights / trainers[kind].weights,
        }
    return row


def main(argv: list[str]) -> None:
    parser = benchmark_parser(__doc__, threads=1)
    parser.add_argument("--games", nargs="+", choices=GAMES, default=list(GAMES))
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--num-envs", type=int, default=256, help="games of a member")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="least time of a run")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    content: dict[str, Any] = {"machine": print_machine(), "rows": []}
    for name in args.games:
        row = measure(name, args)
        content["rows"].append(row)
        said = [
            f"{kind} {row[kind]['rate']:,.0f} ({row[kind]['ratio']:.2f}, of the arithmetic "
            f"{row[kind]['arithmetic']:.2f})"
            for kind in MEMORIES
        ]
        print(f"{name:>12}: {', '.join(said)} decisions/s (goal {GOAL})", flush=True)
    save_results(args.save, content)
