"""The cost of opponents that are policies: PPO with 128x128 networks on hockey.

Members train against themselves, or half of the time against their past selves, of which 2, 4 or 8
are held; and, to compare, against the scripted weak player, and at both seats with the present
policy (then two rows per game learn). Seat-steps are those that members learn from. All contenders
run in turn, so ratios hold for one load of the machine; processor time is that of all threads.

    python scripts/bench/opponents.py [--runs 5] [--members 8] [--games 512]
        [--save scripts/bench/results/opponents.json]
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable

import torch
from harness import (
    CLOCKS,
    benchmark_parser,
    median_ratio,
    medians,
    paired_runs,
    print_machine,
    save_results,
)

from agents.algorithms.ppo import PPO, PPOParams, Shape
from agents.policy.roster import Roster, Spaces
from envs.games.hockey.game import Hockey, HockeyParams
from envs.games.hockey.players import PLAYERS
from envs.games.opponents import Opponents, Scripted

HORIZON, EPOCHS, MINIBATCH = 16, 4, 1024
GOAL = 60_000  # seat-steps per second
PAST = (2, 4, 8)


def training(
    opponents: Opponents | None, members: int, games: int, clock: Callable[[], float]
) -> Callable[[], float]:
    """Return a function that trains one rollout and returns seat-steps per second."""
    rows = games if opponents else 2 * games
    if opponents is None:
        env = Hockey([HockeyParams()] * members, rows)
    else:
        env = Hockey([HockeyParams()] * members, rows, opponents=opponents)
    shape = Shape.for_env(env, net_width=128, horizon=HORIZON, epochs=EPOCHS, minibatch=MINIBATCH)
    ppo = PPO(shape)
    columns = env.state_dim
    for slot in range(members):
        ppo.add_member(slot, PPOParams(), slot, 1000, torch.zeros(columns), torch.ones(columns))
    ppo.begin(env.reset(0))
    ppo.train(env, 1)  # the cost of past selves does not depend on how many are held

    def run() -> float:
        began = clock()
        ppo.train(env, 1)
        return members * shape.samples / (clock() - began)

    return run


def roster(past: int, members: int, games: int) -> Roster:
    learners = ["self", "past"] if past else ["self"]
    spaces = Spaces(18, 4, discrete=False)
    return Roster(
        members, games, spaces, learners=learners, past_interval=1, past_size=max(past, 1)
    )


def main(argv: list[str]) -> None:
    parser = benchmark_parser(__doc__, threads=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--games", type=int, default=512, help="per member")
    parser.add_argument(
        "--cpu-time", action="store_true", help="measure processor time (on a busy machine)"
    )
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    found = print_machine()
    sizes = (
        f"{args.members} members, {args.games} games each, horizon {HORIZON}, {EPOCHS} epochs, "
        f"minibatch {MINIBATCH}"
    )
    print(sizes)
    clock = "processor" if args.cpu_time else "wall"
    make = functools.partial(training, members=args.members, games=args.games, clock=CLOCKS[clock])
    contenders = {"self": make(roster(0, args.members, args.games))}
    for past in PAST:
        contenders[f"self and {past} past"] = make(roster(past, args.members, args.games))
    contenders["weak"] = make(Scripted({"weak": PLAYERS["weak"]}, args.members))
    contenders["both seats"] = make(None)
    runs = paired_runs(contenders, args.runs, clock)
    ratios = {name: median_ratio(own, runs["self"]) for name, own in runs.items()}
    for name, speed in medians(runs).items():
        shares = f"{ratios[name]:.2f} of self, {speed / GOAL:.2f} of the goal"
        print(f"{name:>16}: {speed:10,.0f} seat-steps/s, {shares}")
    save_results(
        args.save,
        {
            "machine": found,
            "sizes": sizes,
            "goal": GOAL,
            "clock": clock,
            "runs": runs,
            "seat_steps_per_second": medians(runs),
            "ratios": ratios,
        },
    )


if __name__ == "__main__":
    main(sys.argv[1:])
