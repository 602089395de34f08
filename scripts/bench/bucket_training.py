"""Population training on Bucket Brigade: speed, and the score of the trained players.

speed   Episodes (whole games of all seats) per second of population training, rollouts and updates
        included. `--members` policies share games: each plays seats in the others' games. Medians
        of `--runs` timings in the scenario, with the shape given by the flags; also per second of
        processor time, for busy machines.
goals   For each scenario: train a population from the defaults of the preset `game`; optimise the
        heuristic players' parameters with CMA-ES (`--generations` of 8; the result is the best of
        the final distribution's mean and the archetypes, selected on separate games); compare mean
        team returns over `--games` new games: the best member (selected on separate games) in
        self-play, the whole population as one team, all baseline players, and the optimised
        heuristic. All play the same games, so leads of the population are paired. With `--save`,
        the file is updated after every scenario.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import cmaes
import numpy as np
import torch
from harness import benchmark_parser, load_results, print_machine, save_results
from torch import Tensor

from agents.algorithms.ppo import PPO, PPOParams, Shape
from agents.policy.frozen import Member
from agents.policy.league import Players, frozen_players
from envs.core.streams import derive_seed
from envs.core.vec_env import Step
from envs.games.bucket_brigade.game import BucketBrigade
from envs.games.bucket_brigade.observation import ObservationEncoder
from envs.games.bucket_brigade.players import ARCHETYPES, PLAYERS, ScriptedPolicy, Theta, heuristic
from envs.games.bucket_brigade.scenarios import SCENARIOS, BucketParams, scenario
from envs.games.play import play_episodes
from optimize.study.space.parsing import load_space
from optimize.study.space.search_space import Settings
from optimize.study.space.subject import Subject

POPULATION = 8  # population size of CMA-ES
CHOOSING = 500  # games to select the best member; four times as many for the optimised heuristic
Act = Callable[[Tensor], Tensor]


class CountingBrigade(BucketBrigade):
    """Bucket Brigade with a counter of finished games."""

    rows_ended: Tensor | int = 0

    def step(self, action: Tensor, out: Tensor | None = None) -> Step:
        """See `VecEnv.step`."""
        made = super().step(action, out)
        self.rows_ended = self.rows_ended + (made.terminated | made.truncated).sum()
        return made

    @property
    def games_ended(self) -> int:
        """Return the number of games finished so far."""
        return int(self.rows_ended) // self.num_agents


def defaults() -> Settings:
    """Return the settings with which a search of the preset starts."""
    space = load_space("game", Subject("bucket-brigade", "ppo"))
    return space.resolve(space.start)


def population(
    args: argparse.Namespace, params: BucketParams, rollouts: int, **shape: Any
) -> tuple[Any, PPO]:
    """Make an environment in which all members play together, and a program to train them."""
    settings = defaults()
    env = CountingBrigade(
        [params] * args.members, args.games_per_member * params.num_agents, together=args.members
    )
    obs = env.reset([derive_seed(args.seed, "env", member) for member in range(args.members)])
    ppo = PPO(Shape.for_env(env, horizon=args.horizon, **{**settings.shape, **shape}))
    zeros, ones = (
        torch.zeros(env.state_dim),
        torch.ones(env.state_dim),
    )  # scaled observations need no normalisation
    for member in range(args.members):
        ppo.add_member(
            member,
            PPOParams(**settings.learner),
            derive_seed(args.seed, member),
            rollouts,
            zeros,
            ones,
        )
    ppo.begin(obs)
    return env, ppo


def speed(args: argparse.Namespace) -> dict[str, Any]:
    """Time rollouts, `--runs` times."""
    params = scenario(args.scenarios[0])
    env, ppo = population(args, params, 1000, minibatch=args.minibatch, epochs=args.epochs)
    ppo.train(env, 1)
    runs, per_core = [], []
    for _ in range(args.runs):
        before, began, cpu = env.games_ended, time.perf_counter(), time.process_time()
        ppo.train(env, args.rollouts)
        ended = env.games_ended - before
        runs.append(ended / (time.perf_counter() - began))
        per_core.append(ended / (time.process_time() - cpu))
    setup = {
        name: getattr(args, name)
        for name in (
            "members",
            "games_per_member",
            "horizon",
            "minibatch",
            "epochs",
            "rollouts",
            "runs",
        )
    }
    found = {
        "scenario": args.scenarios[0],
        **setup,
        "network": [ppo.shape.net_width] * ppo.shape.net_depth,
    }
    found |= {"episodes_per_second": statistics.median(runs), "all_runs": runs}
    found |= {"episodes_per_core_second": statistics.median(per_core)}
    print(", ".join(f"{name} {value}" for name, value in setup.items()))
    each = f"{found['episodes_per_core_second']:,.0f} per second of a core"
    print(f"{found['episodes_per_second']:,.0f} episodes/s, {each} (medians of {args.runs})")
    return found


# ---- goals ----


def train(args: argparse.Namespace, params: BucketParams) -> list[Member]:
    """Train a population and return its actors."""
    env, ppo = population(args, replace(params, **defaults().env), args.rollouts)
    ppo.train(env, args.rollouts)
    return [ppo.export_member(member)[0] for member in range(args.members)]


def team_returns(params: BucketParams, teams: Sequence[Act], games: int, seed: int) -> np.ndarray:
    """Return (teams, games) returns. All teams play the same games, with all seats."""
    env = BucketBrigade([params] * len(teams), games * params.num_agents)
    env.reset([seed] * len(teams))

    def act(obs: Tensor) -> Tensor:
        return torch.cat(
            [team(rows) for team, rows in zip(teams, obs.chunk(len(teams)), strict=True)]
        )

    return play_episodes(env, act, params.num_agents).returns


def mixed(players: Players, agents: int) -> Act:
    """Return a team of all players: in game g, seat s is player g + s."""

    def act(obs: Tensor) -> Tensor:
        count = len(players.names)
        game, seat = torch.arange(len(obs)) // agents, torch.arange(len(obs)) % agents
        order = ((game + seat) % count).argsort(stable=True)
        actions = torch.empty(len(obs), 3, dtype=torch.int64)
        actions[order] = players.act(obs[order])
        return actions

    return act


def evolve(
    args: argparse.Namespace, params: BucketParams, seen: ObservationEncoder
) -> tuple[Theta, list[float]]:
    """Optimise the heuristic players' parameters with CMA-ES.

    Returns the parameters and the mean team return of each generation.
    """
    first = np.array(
        [0.9, 0.9, 0.6, 0.1]
    )  # start between the firefighter and the hero, the best archetypes
    search = cmaes.CMA(
        first, 0.2, bounds=np.array([[0.0, 1.0]] * 4), population_size=POPULATION, seed=args.seed
    )
    course = []
    for generation in range(args.generations):
        seed = derive_seed(args.seed, "evolution", generation)
        asked = [search.ask() for _ in range(POPULATION)]
        teams = [
            ScriptedPolicy(heuristic(Theta(*x)), seen, derive_seed(seed, index))
            for index, x in enumerate(asked)
        ]
        scores = team_returns(params, teams, args.games // 16, seed).mean(1)
        search.tell([(x, -score) for x, score in zip(asked, scores, strict=True)])
        course.append(float(scores.mean()))
    found = [Theta(*search.mean.clip(0.0, 1.0).tolist()), *ARCHETYPES.values()]
    seed = derive_seed(args.seed, "evolution")
    teams = [
        ScriptedPolicy(heuristic(theta), seen, derive_seed(seed, index))
        for index, theta in enumerate(found)
    ]
    return found[int(team_returns(params, teams, 4 * CHOOSING, seed).mean(1).argmax())], course


def compare(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """Compare all teams in one scenario."""
    params = scenario(name)
    seen = ObservationEncoder(
        params.num_houses, params.num_agents, 1, scaled=True, device=torch.device("cpu")
    )
    began, cpu = time.perf_counter(), time.process_time()
    members = train(args, params)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    alone = [frozen_players([str(index)], [member]).act for index, member in enumerate(members)]
    scores = team_returns(params, alone, CHOOSING, derive_seed(args.seed, "choosing")).mean(1)
    best = int(scores.argmax())
    theta, course = evolve(args, params, seen)
    everybody = frozen_players([str(index) for index in range(len(members))], members)
    teams = {"best member": alone[best], "population": mixed(everybody, params.num_agents)}
    teams["evolved"] = ScriptedPolicy(heuristic(theta), seen, derive_seed(args.seed, "evolved"))
    teams |= {
        player: ScriptedPolicy(player, seen, derive_seed(args.seed, player)) for player in PLAYERS
    }
    returns = team_returns(
        params, list(teams.values()), args.games, derive_seed(args.seed, "comparison")
    )
    means, errors = returns.mean(1), returns.std(1, ddof=1) / args.games**0.5
    table = {
        team: {"mean": float(mean), "error": float(error)}
        for team, mean, error in zip(teams, means, errors, strict=True)
    }
    leads = returns[list(teams).index("population")] - returns
    for row, lead in zip(table.values(), leads, strict=True):
        row |= {"lead": float(lead.mean()), "lead_error": float(lead.std(ddof=1) / args.games**0.5)}
    transitions = args.rollouts * args.horizon * args.games_per_member * params.num_agents
    print(
        f"{name}: trained in {cpu_seconds:.0f} s of a core ({seconds:.0f} s), {transitions:,} "
        f"steps per member"
    )
    print(
        "  "
        + ", ".join(
            f"{team} {row['mean']:.0f} ± {row['error']:.0f}" for team, row in table.items()
        ),
        flush=True,
    )
    return {
        "teams": table,
        "games": args.games,
        "steps_per_member": transitions,
        "members": args.members,
        "core_seconds": round(cpu_seconds, 1),
        "theta": theta._asdict(),
        "evolution": course,
        "seed": args.seed,
        "member_scores": scores.tolist(),
    }


def goals(args: argparse.Namespace) -> dict[str, Any]:
    """Compare in all requested scenarios and add the results to those in the file."""
    found = load_results(args.save).get("scenarios", {})
    for name in args.scenarios:
        found[f"{name}, {args.members} members"] = compare(args, name)
        save(args, {"scenarios": found})
    print(markdown(found))
    return {"scenarios": found}


def markdown(found: dict[str, Any]) -> str:
    """Format the table for the documentation."""
    lines = [
        "| scenario | population | best member | evolved heuristic | best baseline | lead |",
        "|" + "---|" * 6,
    ]
    for name, compared in sorted(found.items()):
        teams = compared["teams"]
        baseline = max(PLAYERS, key=lambda player: teams[player]["mean"])
        cells = [_cell(teams[team]) for team in ("population", "best member", "evolved", baseline)]
        second = min((teams["evolved"], teams[baseline]), key=lambda row: row["lead"])
        lines.append(
            f"| {name} | {' | '.join(cells)} ({baseline}) | {_cell(second, 'lead', '+,.1f')} |"
        )
    return "\n".join(lines)


def _cell(row: dict[str, float], number: str = "mean", form: str = ",.0f") -> str:
    error = row["error" if number == "mean" else f"{number}_error"]
    return f"{row[number]:{form}} ± {error:{form.lstrip('+')}}"


def save(args: argparse.Namespace, found: dict[str, Any]) -> None:
    """Save and keep the other command's results in the file."""
    save_results(args.save, {**load_results(args.save), **found})


def main(argv: Sequence[str]) -> None:
    """Run a command."""
    parser = benchmark_parser(__doc__, threads=torch.get_num_threads())
    parser.add_argument("command", choices=["speed", "goals"])
    parser.add_argument(
        "--scenarios",
        default="",
        help="comma-separated names; default: default for speed, all for goals",
    )
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--games-per-member", type=int, default=64)
    parser.add_argument("--horizon", type=int, default=32)
    parser.add_argument(
        "--minibatch", type=int, default=1024, help="speed only; goals uses the preset's"
    )
    parser.add_argument("--epochs", type=int, default=2, help="speed only; goals uses the preset's")
    parser.add_argument(
        "--rollouts", type=int, default=0, help="default: 5 per timing in speed, 100 in goals"
    )
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--games", type=int, default=4000)
    parser.add_argument("--generations", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    every = ["default"] if args.command == "speed" else list(SCENARIOS)
    args.scenarios = args.scenarios.split(",") if args.scenarios else every
    args.rollouts = args.rollouts or {"speed": 5, "goals": 100}[args.command]
    torch.set_num_threads(args.threads)
    made = print_machine()
    found = {"speed": speed, "goals": goals}[args.command](args)
    save(args, {**found, f"machine_{args.command}": made})


if __name__ == "__main__":
    main(sys.argv[1:])
