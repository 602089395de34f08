"""Learning curves on Kuhn and Leduc poker: the exact NashConv of what was trained.

curves: every variant trains three seeds with the settings of a study's first trial. After every
part of the steps, the NashConv is computed exactly (`agents/policy/exact.py`): the sum over both
seats of what a best response gains, in chips per game; 0 only in an equilibrium.

  sampled        of every seed, which draws its actions from its policy, as in training
  deterministic  of every seed, which takes its most probable actions
  snapshots      of the mixture of the seed's policies after all parts so far, equally weighted
  seeds          of the mixture of the seeds' sampled policies, equally weighted

Seconds are processor time of all seeds together, without the exact values.

draw: draws a file of curves, and those of OpenSpiel's algorithms (`poker_peers.py`) if there are
any.

    python scripts/bench/poker.py curves [--games kuhn leduc] [--only both-seats] [--steps 4000000]
        [--save scripts/bench/results/poker_curves.json]
    python scripts/bench/poker.py draw FILE.json PICTURE.png [--peers FILE.json]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from first_trial import first_trial
from harness import benchmark_parser, load_results, print_machine, save_results
from poker_peers import PEERS

from agents.networks.weights import StateDict
from agents.policy.duels import FrozenEntrant
from agents.policy.exact import Plans, mixed, nash_conv, plans
from agents.policy.frozen import FrozenPolicy
from envs.games.game_tree import GameTree, game_tree
from envs.games.registry import get_game
from optimize.study.space.parsing import load_space
from optimize.study.space.subject import Subject

GOALS = {"kuhn": 0.02, "leduc": 0.3}  # NashConv of a sampled policy
SEEDS, PARTS = 3, 20
# By name: what it is called in the picture, and the shares of its opponents; None: the present
# policy has both seats.
VARIANTS: dict[str, tuple[str, dict[str, float] | None]] = {
    "both-seats": ("self-play at both seats", None),
    "past": ("self 50%, past selves 50%", {"self": 0.5, "past": 0.5}),
}


def learn(name: str, variant: str, asked: int | None) -> dict[str, Any]:
    """Train one variant of one game; return its curves."""
    steps = asked or int(load_space("game", Subject(name)).study["budget"])
    title, opponents = VARIANTS[variant]
    phases = None if opponents is None else [{"opponents": opponents}]
    game = get_game(name)
    tree = game_tree(game, game.params())
    trainer, training = first_trial(name, phases, steps, seeds=SEEDS, parts=PARTS, episodes=100)
    snapshots: list[list[Plans]] = [[] for _ in range(SEEDS)]
    curves: list[dict[str, Any]] = []
    seconds = 0.0
    for part in range(1, PARTS + 1):
        began = time.process_time()
        trainer.advance([training])
        seconds += time.process_time() - began
        training.rung = part
        found = exact_values(tree, trainer.actors(training), snapshots)
        entry = {"steps": steps * part // PARTS, "seconds": round(seconds), **found}
        curves.append(entry)
        print(
            f"{name} {variant} {entry['steps']:>10,} steps, {seconds:5.0f} s  "
            + "  ".join(f"{kind}: {words(entry[kind])}" for kind in found),
            flush=True,
        )
    reached = statistics.median(curves[-1]["sampled"])
    verdict = "reached" if reached <= GOALS[name] else "not reached"
    print(f"{name} {variant}: median {reached:.4f}; the goal of {GOALS[name]} is {verdict}")
    return {"title": title, "goal": GOALS[name], "curves": curves}


def exact_values(
    tree: GameTree, actors: Sequence[StateDict], snapshots: Sequence[list[Plans]]
) -> dict[str, Any]:
    """Return the NashConvs of all kinds; append the sampled policies to the snapshots."""
    kinds: dict[str, list[Plans]] = {"sampled": [], "deterministic": []}
    for seed, actor in enumerate(actors):
        behaviours = FrozenEntrant(f"seed {seed}", FrozenPolicy([actor])).behaviours()
        for kind, own in kinds.items():
            own.append(plans(tree, behaviours[kind]))
        snapshots[seed].append(kinds["sampled"][-1])
    found: dict[str, Any] = {
        kind: [nash_conv(tree, own) for own in every] for kind, every in kinds.items()
    }
    found["snapshots"] = [nash_conv(tree, equally(own)) for own in snapshots]
    found["seeds"] = nash_conv(tree, equally(kinds["sampled"]))
    return found


def equally(members: Sequence[Plans]) -> Plans:
    return mixed(members, [1.0 / len(members)] * len(members))


def words(found: float | Sequence[float]) -> str:
    return " ".join(f"{own:.4f}" for own in (found if isinstance(found, list) else [found]))


def draw(results: Mapping[str, Any], peers: Mapping[str, Any], picture: Path) -> None:
    """Draw the median of the seeds and their range, by variant, one panel per game.

    Args:
        results: what `curves` saved.
        peers: what `poker_peers.py` saved; may be empty.
        picture: the file to write.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.4), dpi=110)
    for index, (name, variants) in enumerate(results["games"].items()):
        axes = figure.add_axes((0.07 + 0.38 * index, 0.13, 0.3, 0.77))
        for variant in variants.values():
            steps = [entry["steps"] / 1e6 for entry in variant["curves"]]
            for kind, style in (("sampled", "-"), ("snapshots", ":")):
                seeds = [entry[kind] for entry in variant["curves"]]
                middle = [statistics.median(own) for own in seeds]
                (line,) = axes.plot(steps, middle, style, label=f"{variant['title']}, {kind}")
                low, high = [min(own) for own in seeds], [max(own) for own in seeds]
                axes.fill_between(steps, low, high, alpha=0.12, color=line.get_color())
        for peer in peers.get("games", {}).get(name, {}).values():
            found = [(own["decisions"] / 1e6, own["nash_conv"]) for own in peer["curves"]]
            axes.plot(*zip(*found, strict=True), "--", linewidth=1.2, label=peer["title"])
        if peers:
            # The peers' curves have points at 1,000, 2,000, 5,000, … decisions.
            axes.set_xscale("log")
        axes.axhline(GOALS[name], color="black", linewidth=0.8)
        axes.set_yscale("log")
        axes.set_title(f"{name}: NashConv, goal {GOALS[name]}")
        axes.set_xlabel("million steps per seed")
        axes.grid(alpha=0.3)
        if not index:
            figure.legend(*axes.get_legend_handles_labels(), loc="center right", fontsize=7)
    figure.savefig(picture)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    shared = benchmark_parser("", threads=1)
    curves = commands.add_parser("curves", parents=[shared], conflict_handler="resolve")
    curves.add_argument("--steps", type=int, help="per seed; default: the space's budget")
    curves.add_argument("--games", choices=list(GOALS), nargs="+", default=list(GOALS))
    curves.add_argument("--only", choices=list(VARIANTS), nargs="+", default=["both-seats"])
    drawing = commands.add_parser("draw")
    drawing.add_argument("results", type=Path)
    drawing.add_argument("picture", type=Path)
    drawing.add_argument("--peers", type=Path, default=PEERS, help="curves of OpenSpiel's")
    args = parser.parse_args(arguments)
    if args.command == "draw":
        draw(load_results(args.results), load_results(args.peers), args.picture)
        return
    torch.set_num_threads(args.threads)
    found = print_machine()
    # Variants may be run one after the other, into one file.
    results = load_results(args.save) or {"games": {}}
    for name in args.games:
        for variant in args.only:
            own = learn(name, variant, args.steps) | {"machine": found}
            results["games"].setdefault(name, {})[variant] = own
            save_results(args.save, results)


if __name__ == "__main__":
    main(sys.argv[1:])
