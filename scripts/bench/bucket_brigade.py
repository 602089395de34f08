"""Bucket Brigade: games per second with random actions, and the scores of the baseline players.

Speed: full environment steps (randomness, rules, rewards, observations, new games) with a random
action per agent and night, for 64 to 32,768 parallel games. Medians of --repeats runs, per second
of wall time and of processor time, which other processes affect less. The goal is 50,000 games a
second on 2 cores, at about 13 nights per game.

Scores: each baseline player's mean team return against a recorded one of 3,000 games
(bucket_brigade_baselines.json in --reference, optional), in standard errors of the difference; and
the team reward per night against published figures (n = 1000).

    python scripts/bench/bucket_brigade.py [--threads 2] [--repeats 7] [--games 12000]
        [--reference FOLDER] [--save scripts/bench/results/bucket_brigade.json]
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import benchmark_parser, print_machine, save_results

from envs.core.sizing import cpu_count
from envs.games.bucket_brigade.game import BucketBrigade
from envs.games.bucket_brigade.players import ScriptedPolicy
from envs.games.bucket_brigade.scenarios import scenario
from envs.games.play import EpisodeResults, play_episodes

GOAL = 50_000
SIZES = (64, 512, 2048, 8192, 32768)
REFERENCE = Path(__file__).resolve().parents[3] / "shared" / "reference"
# Published team reward per night over 1,000 games, with 95% intervals of about ± 6.
PUBLISHED = {
    ("random", "default"): 251.2,
    ("random", "easy"): 355.1,
    ("random", "hard"): 124.7,
    ("random", "early_containment"): 297.2,
    ("random", "rest_trap"): 302.9,
    ("random", "chain_reaction"): 227.4,
    ("random", "overcrowding"): 120.2,
    ("random", "minimal_specialization"): -87.7,
    ("specialist", "minimal_specialization"): -28.4,
    ("specialist", "rest_trap"): 386.6,
}
PUBLISHED_ERROR = 6.0 / 1.96


def speed(name: str, games: int, seconds: float, repeats: int, *, scaled: bool) -> dict[str, Any]:
    """Measure games per second: nights per second over the mean number of nights per game."""
    env = BucketBrigade(scenario(name), games * 4, scaled=scaled)
    env.reset(0)
    generator = torch.Generator().manual_seed(0)
    every_action = torch.cartesian_prod(*(torch.arange(options) for options in env.action_dims))
    obs = torch.empty(env.num_envs, env.state_dim)

    def run(nights: int) -> None:
        for night in range(nights):
            if night % 16 == 0:
                env.draw(16)
            chosen = torch.randint(0, len(every_action), (env.num_envs,), generator=generator)
            env.step(every_action.index_select(0, chosen), out=obs)

    run(32)
    began = time.perf_counter()
    run(16)
    nights = max(16, 16 * math.ceil(seconds / (time.perf_counter() - began)))
    length = float(play(name, "random", 2000).lengths.mean())
    by_clock, by_processor = [], []
    for _ in range(repeats):
        began, used = time.perf_counter(), time.process_time()
        run(nights)
        by_clock.append(games * nights / length / (time.perf_counter() - began))
        by_processor.append(games * nights / length / (time.process_time() - used))
    env.check()
    rate = statistics.median(by_clock)
    return {
        "scenario": name,
        "observations": "scaled" if scaled else "raw",
        "games": games,
        "nights_per_game": length,
        "games_per_second": rate,
        "slowest": min(by_clock),
        "fastest": max(by_clock),
        "games_per_processor_second": statistics.median(by_processor),
        "agent_steps_per_second": rate * length * 4,
    }


def play(name: str, player: str, games: int) -> EpisodeResults:
    """Play one game per team of identical players."""
    params = scenario(name)
    env = BucketBrigade(params, games * params.num_agents)
    env.reset(1)
    return play_episodes(env, ScriptedPolicy(player, env.encoder, 2), seats=params.num_agents)


def score(name: str, player: str, games: int, recorded: dict[str, Any] | None) -> dict[str, Any]:
    """Measure a player's score and compare it with known figures."""
    played = play(name, player, games)
    returns, nights = played.returns[0], played.lengths[0]
    per_night = returns / nights
    row: dict[str, Any] = {
        "scenario": name,
        "player": player,
        "games": games,
        "team_return": float(returns.mean()),
        "standard_error": float(returns.std(ddof=1) / math.sqrt(games)),
        "nights": float(nights.mean()),
        "per_night": float(returns.sum() / nights.sum()),
        "per_night_error": float(per_night.std(ddof=1) / math.sqrt(games)),
    }
    if recorded is not None:
        row |= {"recorded": recorded["team_return"], "recorded_nights": recorded["mean_len"]}
        difference = row["team_return"] - recorded["team_return"]
        row["errors_apart"] = difference / math.hypot(row["standard_error"], recorded["se"])
    if (player, name) in PUBLISHED:
        row["published_per_night"] = PUBLISHED[player, name]
    return row


def print_score(row: dict[str, Any]) -> None:
    known = (
        f"{row['recorded']:>10,.1f} {row['errors_apart']:>+7.2f}" if "recorded" in row else " " * 18
    )
    published = f"{row['published_per_night']:>10.1f}" if "published_per_night" in row else ""
    print(
        f"{row['scenario']:>24} {row['player']:>12} {row['team_return']:>10,.1f} "
        f"{row['standard_error']:>6.1f} {known} "
        f"{row['nights']:>7.2f} {row['per_night']:>8.1f} {published}",
        flush=True,
    )


def scores(games: int, reference: Path) -> list[dict[str, Any]]:
    """Print and return the scores of all recorded and published players."""
    path = reference / "bucket_brigade_baselines.json"
    recorded = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    if not recorded:
        print(f"{path} is not here: without the recorded scores")
    wanted = {(row["policy"], row["scenario"]): row for row in recorded}
    rows = []
    print(f"{'':>24} {'':>12} {'return':>10} {'error':>6} {'recorded':>10} {'errors':>7}", end=" ")
    print(f"{'nights':>7} {'a night':>8} {'published':>10}")
    for player, name in sorted({*wanted, *PUBLISHED}, key=lambda key: (key[1], key[0])):
        rows.append(score(name, player, games, wanted.get((player, name))))
        print_score(rows[-1])
    apart = np.array([row["errors_apart"] for row in rows if "errors_apart" in row])
    if len(apart):
        print(
            f"{len(apart)} recorded means: {np.abs(apart).max():.2f} standard errors apart at most"
        )
    known = [row for row in rows if "published_per_night" in row]
    away = [
        (row["per_night"] - row["published_per_night"])
        / math.hypot(PUBLISHED_ERROR, row["per_night_error"])
        for row in known
    ]
    print(f"{len(away)} published figures: {np.abs(away).max():.2f} standard errors apart at most")
    return rows


def main(arguments: list[str]) -> None:
    parser = benchmark_parser(__doc__, threads=cpu_count())
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="approximate time per run")
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=list(SIZES), help="numbers of parallel games"
    )
    parser.add_argument(
        "--games", type=int, default=12000, help="games per baseline player; 0 skips the scores"
    )
    parser.add_argument("--reference", type=Path, default=REFERENCE)
    args = parser.parse_args(arguments)

    torch.set_num_threads(args.threads)
    found = print_machine()
    print(f"random play, medians of {args.repeats} runs of {args.seconds:g} s")
    print(
        f"{'':>20} {'obs':>7} {'games':>7} {'games/s':>10} {'slowest':>10} {'fastest':>10}", end=" "
    )
    print(f"{'per cpu s':>10} {'nights':>7} {'agent steps/s':>14}")
    speeds = []
    kinds = [("default", games, True) for games in args.sizes]
    largest = max(args.sizes)
    for name, games, scaled in [
        *kinds,
        ("default", largest, False),
        ("default_continuous", largest, True),
    ]:
        row = speed(name, games, args.seconds, args.repeats, scaled=scaled)
        speeds.append(row)
        names = ("games_per_second", "slowest", "fastest", "games_per_processor_second")
        rates = " ".join(f"{row[which]:>10,.0f}" for which in names)
        print(
            f"{name:>20} {row['observations']:>7} {games:>7,} {rates} "
            f"{row['nights_per_game']:>7.2f} "
            f"{row['agent_steps_per_second']:>14,.0f}",
            flush=True,
        )
    best = max(row["games_per_second"] for row in speeds)
    print(f"at best {best:,.0f} games/s, {best / GOAL:.2f} of the goal of {GOAL:,}")
    content: dict[str, Any] = {"machine": found, "goal": GOAL, "speed": speeds}
    if args.games:
        content["scores"] = scores(args.games, args.reference)
    save_results(args.save, content)


if __name__ == "__main__":
    main(sys.argv[1:])
