"""Learning curves on hockey, and results of a trained player against the scripted players.

curves: every variant trains three seeds with the settings of a study's first trial, but its own
opponents and phases, for equally many steps. After every tenth of them, the members play
deterministically against both scripted players: 200 games each, half of them at each seat, the
same for all. Seconds are processor time of all seeds together, without evaluations.

draw: draws a file of curves.

skill: plays the members of a trial against both scripted players, with the deterministic policy of
a deployment.

    python scripts/bench/hockey_learning.py curves [--steps 4000000] [--only plain past]
        [--save scripts/bench/results/hockey_curves.json]
    python scripts/bench/hockey_learning.py draw FILE.json PICTURE.png
    python scripts/bench/hockey_learning.py skill runs/STUDY/trial-00000/members.safetensors
        [--games 1000] [--save FILE.json]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from first_trial import first_trial
from harness import benchmark_parser, load_results, print_machine, save_results

from agents.policy.duels import FrozenEntrant
from agents.policy.frozen import FrozenPolicy, load_members
from envs.games.pairings import play_pairs, scripted_entrants, tally
from envs.games.registry import get_game
from optimize.experiments.game_evaluation import GameEvaluation

GAME = "hockey"
SEEDS, PARTS, GAMES = 3, 10, 200
MOSTLY_STRONG = {"weak": 0.1, "strong": 0.9}


def phase(share: float, opponents: Mapping[str, float], **env: Any) -> dict[str, Any]:
    return {"share": share, "opponents": dict(opponents), "env": env}


# By name: what it is called in the picture, and its phases; None: the present policy has both seats.
VARIANTS: dict[str, tuple[str, list[dict[str, Any]] | None]] = {
    "plain": ("strong 90%, weak 10%", [phase(1.0, MOSTLY_STRONG)]),
    "weak-first": (
        "weak for 20%, then as above",
        [phase(0.2, {"weak": 1.0}), phase(0.8, MOSTLY_STRONG)],
    ),
    "drills-first": (
        "shooting 10%, defense 10%, then as above",
        [
            phase(0.1, {"weak": 1.0}, mode="train_shooting"),
            phase(0.1, {"weak": 1.0}, mode="train_defense"),
            phase(0.8, MOSTLY_STRONG),
        ],
    ),
    "past": ("strong 50%, past selves 50%", [phase(1.0, {"strong": 0.5, "past": 0.5})]),
    "past-first": (
        "past selves for 50%, then strong 90%, weak 10%",
        [phase(0.5, {"past": 1.0}), phase(0.5, MOSTLY_STRONG)],
    ),
    "past-only": ("past selves only", [phase(1.0, {"past": 1.0})]),
    "both-seats": ("present policy at both seats", None),
}


def learn(name: str, steps: int) -> dict[str, Any]:
    """Train one variant; return its curves."""
    title, phases = VARIANTS[name]
    trainer, training = first_trial(
        GAME, phases, steps, seeds=SEEDS, parts=PARTS, episodes=GAMES, num_envs=256
    )
    curves: list[dict[str, Any]] = []
    seconds = 0.0
    for part in range(1, PARTS + 1):
        began = time.process_time()
        trainer.advance([training])
        seconds += time.process_time() - began
        (found,) = trainer.evaluate([training])
        assert isinstance(found, GameEvaluation)  # no member diverged
        training.rung = part
        points = found.episodes.returns.reshape(SEEDS, len(found.opponents), -1)
        entry: dict[str, Any] = {"steps": steps * part // PARTS, "seconds": round(seconds)}
        for index, opponent in enumerate(found.opponents):
            tallies = [tally(own[index]) for own in points]
            entry[opponent] = [[one.wins, one.draws, one.losses] for one in tallies]
        curves.append(entry)
        print(f"{name:>12} {entry['steps']:>10,} steps, {seconds:5.0f} s", end="")
        for opponent in found.opponents:
            shares = ", ".join("-".join(map(str, own)) for own in entry[opponent])
            print(f"  {opponent}: {shares}", end="")
        print(flush=True)
    return {"title": title, "curves": curves}


def points_of(counts: list[int]) -> float:
    """Return the share of points of [won, drawn, lost] games."""
    won, drawn, lost = counts
    return (won + 0.5 * drawn) / (won + drawn + lost)


def draw(results: Mapping[str, Any], picture: Path) -> None:
    """Draw the median of the seeds and their range, by variant, against both players."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.4), dpi=110)
    for index, opponent in enumerate(("weak", "strong")):
        axes = figure.add_axes((0.06 + 0.32 * index, 0.13, 0.28, 0.77))
        for variant in results["variants"].values():
            steps = [entry["steps"] / 1e6 for entry in variant["curves"]]
            seeds = [[points_of(own) for own in entry[opponent]] for entry in variant["curves"]]
            middle = [statistics.median(own) for own in seeds]
            (line,) = axes.plot(steps, middle, marker="o", markersize=3, label=variant["title"])
            low, high = [min(own) for own in seeds], [max(own) for own in seeds]
            axes.fill_between(steps, low, high, alpha=0.12, color=line.get_color())
        axes.set_title(f"points against {opponent}")
        axes.set_xlabel("million steps per seed")
        axes.set_ylim(0.0, 1.02)
        axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="center right", fontsize=8)
    figure.savefig(picture)


def skill(members: Path, games: int) -> dict[str, Any]:
    """Play every member against both scripted players, `games` games each."""
    game = get_game(GAME)
    params = game.params()
    own = [
        FrozenEntrant(f"seed {index}", FrozenPolicy([member]))
        for index, member in enumerate(load_members(members))
    ]
    others = scripted_entrants(game, params)
    names = [player.names[0] for player in (*own, *others)]
    pairs = [(i, len(own) + j) for i in range(len(own)) for j in range(len(others))]
    found = play_pairs(game, params, [*own, *others], pairs, games // 2, seed=2**31)
    results: dict[str, Any] = {}
    for (player, other), points in zip(pairs, found.points, strict=True):
        one = tally(points)
        decided = one.wins / max(1, one.wins + one.losses)
        results.setdefault(names[player], {})[names[other]] = [one.wins, one.draws, one.losses]
        print(
            f"{names[player]} against {names[other]}: {one}; {decided:.2%} of the decided games, "
            f"{1 - one.draws / one.games:.1%} not drawn"
        )
    return results


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    shared = benchmark_parser("", threads=2)
    shared_arguments = {"parents": [shared], "conflict_handler": "resolve"}
    curves = commands.add_parser("curves", **shared_arguments)
    curves.add_argument("--steps", type=int, default=4_000_000, help="per seed")
    curves.add_argument("--only", choices=list(VARIANTS), nargs="+", default=list(VARIANTS))
    drawing = commands.add_parser("draw")
    drawing.add_argument("results", type=Path)
    drawing.add_argument("picture", type=Path)
    playing = commands.add_parser("skill", **shared_arguments)
    playing.add_argument("members", type=Path)
    playing.add_argument("--games", type=int, default=1_000)
    args = parser.parse_args(arguments)
    if args.command == "draw":
        draw(load_results(args.results), args.picture)
        return
    torch.set_num_threads(args.threads)
    found = print_machine()
    if args.command == "skill":
        save_results(args.save, {"machine": found, "results": skill(args.members, args.games)})
        return
    # Variants may be run one after the other, into one file.
    results = load_results(args.save) or {"variants": {}}
    for name in args.only:
        results["variants"][name] = learn(name, args.steps) | {"machine": found}
        save_results(args.save, results)


if __name__ == "__main__":
    main(sys.argv[1:])
