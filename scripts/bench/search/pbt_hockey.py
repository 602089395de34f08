"""Population-based training on hockey beside single trials of the same steps: who plays better?

A population (`--search pbt`) and as many single trials (`--sampler random`) have the same search
space, the same seeds, initial hyperparameters and numbers of steps: they differ by the copies alone.
The trial that each search selects then plays games that no search has played, against the scripted
players and against the other search's selected trial. Its value in the search is flattered by the
selection; these games are not.

The clock is processor time of the worker's thread. `population` is the share of it that a population
spends in games against each other and in copies.

    python -m scripts.bench run pbt_hockey --save scripts/bench/results/pbt_hockey.json

Finished seeds are saved; the same command continues.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scripts.bench.harness import benchmark_parser, load_results, print_machine, save_results
from scripts.bench.studies import NAME, work
from sweepd.agents.policy.duels import FrozenEntrant
from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.members import Member, load_members
from sweepd.envs.games.pairings import play_pairs, scripted_entrants
from sweepd.envs.games.phase_files import read_opponents
from sweepd.envs.games.registry import get_game
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.record.keys import CHANGES_KEY
from sweepd.optimize.worker.freeze import open_study

SPACE = """
name = "pbt_hockey"
version = 1
[shape]
net_width = { value = 64 }
net_depth = { value = 2 }
minibatch = { value = 1024 }
epochs = { value = 4 }
[ppo]
learning_rate = { low = 1e-4, high = 3e-3, log = true }
one_minus_gamma = { low = 5e-3, high = 0.05, log = true }
gae_lambda = { low = 0.9, high = 1.0 }
clip = { low = 0.1, high = 0.3 }
entropy_coef = { low = 3e-4, high = 0.03, log = true }
value_coef = { low = 0.25, high = 1.0 }
[env]
closeness = { value = 1.0 }
"""
OPPONENTS = "weak=0.1,strong=0.7,past=0.2"
SEARCHES: dict[str, dict[str, Any]] = {
    "pbt": {"search": "pbt"},
    "random": {"sampler": "random", "pruner": "none"},
}
GAME_SEED = 2**31 - 1  # of the games after the searches


def run_search(
    name: str, seed: int, args: argparse.Namespace, folder: Path
) -> tuple[dict[str, Any], Member]:
    """Run a search in a folder; return its figures, and the player of the selected trial."""
    (folder / "space.toml").write_text(SPACE)
    settings: dict[str, Any] = {
        **SEARCHES[name],
        "env": "hockey",
        "objective": "points",
        "search_space": str(folder / "space.toml"),
        "curriculum": read_opponents(OPPONENTS),
        "budget": args.steps,
        "rungs": args.rungs,
        "episodes": args.episodes,
        "n_envs": args.envs,
        "horizon": 32,
        "seeds": 1,
        "n_trials": args.trials,
        "trials_per_batch": args.trials,
        "slots": args.trials,
        "seed": seed,
        "threads": 1,
    }
    request = Request(**settings, given=frozenset(settings))
    handle, trainer = open_study(
        open_storage(storage_url(None, folder)),
        NAME,
        request,
        torch.device("cpu"),
        folder,
        {},
        lambda _: None,
    )
    worker, seconds = work(handle, trainer.experiment, args.trials, clock=time.thread_time)
    best = handle.best_trial()
    assert best is not None
    complete = [trial for trial in handle.trials() if trial.value is not None]
    figures = {
        "seconds": seconds,
        "shares": {phase: own / seconds for phase, own in worker.phases.seconds.items()},
        "values": [trial.value for trial in complete],
        "curves": [list(trial.intermediate_values.values()) for trial in complete],
        "selected": best.number,
        "copies": sum(len(trial.user_attrs.get(CHANGES_KEY, ())) for trial in handle.trials()),
    }
    [player] = load_members(handle.trial_dir(best.number) / "members.safetensors")
    return figures, player


def play(players: dict[str, Member], games: int) -> dict[str, dict[str, float]]:
    """Return the selected players' points in new games, by player and opponent."""
    game = get_game("hockey")
    params = game.params()
    entrants = [FrozenEntrant(name, FrozenPolicy([own])) for name, own in players.items()]
    every = [*entrants, *scripted_entrants(game, params)]
    names = [name for entrant in every for name in entrant.names]
    pairs = [(one, other) for one in range(len(entrants)) for other in range(one + 1, len(every))]
    found = play_pairs(game, params, every, pairs, -(-games // 2), GAME_SEED)
    points: dict[str, dict[str, float]] = {name: {} for name in players}
    for (one, other), own in zip(pairs, found.points.mean((1, 2)).tolist(), strict=True):
        points[names[one]][names[other]] = own
        if names[other] in points:
            points[names[other]][names[one]] = 1.0 - own
    return points


def measure(args: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Run a seed's searches, and the games of their selected players."""
    own: dict[str, Any] = {}
    players = {}
    for name in SEARCHES:
        with tempfile.TemporaryDirectory() as folder:
            own[name], players[name] = run_search(name, seed, args, Path(folder))
        print(line(name, own[name]), flush=True)
    return own | {"points": play(players, args.games)}


def line(name: str, found: dict[str, Any]) -> str:
    """Return the figures of a search as text."""
    values = np.array(found["values"])
    return (
        f"{name:8}points of the trials: best {values.max():.3f}, median {np.median(values):.3f}, "
        f"worst {values.min():.3f}; {found['copies']} copies; {found['seconds']:.0f} s, of which "
        f"games of the population {found['shares'].get('population', 0.0):.1%}"
    )


def main(argv: list[str]) -> None:
    """Search, play, print and save."""
    parser = benchmark_parser(__doc__ or "", threads=1)
    parser.add_argument("--trials", type=int, default=8, help="members of the population")
    parser.add_argument("--steps", type=int, default=1_048_576, help="of every trial")
    parser.add_argument("--rungs", type=int, default=10)
    parser.add_argument("--envs", type=int, default=256)
    parser.add_argument("--episodes", type=int, default=64, help="of an evaluation and opponent")
    parser.add_argument("--games", type=int, default=1000, help="of a pair after the searches")
    parser.add_argument("--seeds", type=int, default=1, help="searches of a kind")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    described = print_machine()
    content = load_results(args.save) or {"machine": described, "seeds": {}}
    for seed in range(args.seeds):
        if str(seed) not in content["seeds"]:
            content["seeds"][str(seed)] = measure(args, seed)
            save_results(args.save, content)
    for seed, own in content["seeds"].items():
        for name, points in own["points"].items():
            shown = ", ".join(f"{value:.3f} against {other}" for other, value in points.items())
            print(f"seed {seed}, {name}: {shown}")
