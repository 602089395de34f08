"""Training against a study's league (PSRO) against plain self-play, after equal steps.

Plain self-play spends all steps in one trial. A league spends them in generations: a study whose
trials have one after the other the opponents `league` (`optimize/experiments/study_league.py`), the
first one itself. Both have the settings of the game's first trial, and equally many members per
trial. Steps are decisions of either player: against opponents, a member learns from its own ones,
about half of them.

Games with exact values: NashConv (`agents/policy/exact.py`) after every generation, or as many
steps of self-play, all players sampled:

  plain      of the trial's best member, by its score
  snapshots  of the mixture of that member's policies after all parts so far, equally weighted
  mixture    of the equilibrium of the league's players so far
  exact      of the equilibrium by exact mean returns in place of the games that the league played
  uniform    of all of the league's players so far, equally weighted
  last       of the newest player
  best       the least of the players so far

Other games: points against the best member of plain self-play, against the league's first player
(plain self-play with the steps of one generation) and against the scripted players, over the same
deals in both seatings, with 95 % intervals over deals.

    python scripts/bench/league.py GAME [--steps 4000000] [--generations 6] [--members 2]
        [--studies 1] [--only league half] [--deals 500] [--save scripts/bench/results/league.json]
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from first_trial import first_trial, first_trial_spec
from harness import benchmark_parser, load_results, print_machine, save_results
from rich.console import Console

from agents.policy.duels import FrozenEntrant
from agents.policy.equilibrium import equilibrium
from agents.policy.exact import Plans, expected_returns, mixed, nash_conv, plans
from agents.policy.frozen import FrozenPolicy, Member, load_members
from agents.policy.league import Floats, interval
from envs.core.streams import derive_seed
from envs.games.game_tree import GameTree, game_tree, is_enumerable
from envs.games.pairings import KINDS_OF_PLAY, SAMPLED, Entrant, play_pairs, scripted_entrants
from envs.games.registry import get_game
from envs.support.study_record import GameSpec
from optimize.experiments.games import GameExperiment
from optimize.study.database.opening import open_storage, storage_url
from optimize.study.space.parsing import load_space
from optimize.study.space.subject import Subject
from optimize.study.study import StudyHandle, create_study
from optimize.worker.lifecycle import work
from optimize.worker.worker import WorkerOptions

EPISODES = 200
GOAL = 0.6  # points of the league's champion against plain self-play
VARIANTS = {"league": {"league": 1.0}, "half": {"league": 0.5, "self": 0.5}}


@dataclasses.dataclass(frozen=True)
class Plain:
    """The best member of plain self-play after every part. seconds: processor time."""

    parts: list[Member]
    steps: list[int]
    seconds: float


@dataclasses.dataclass(frozen=True)
class League:
    """The players of a study's league, oldest first.

    Attributes:
        players: their weights.
        payoffs: (players, players), as the league played them.
        steps: all members' steps after every generation, per member.
        seconds: processor time, the league's own games and evaluations included.
    """

    players: list[Member]
    payoffs: Floats
    steps: list[int]
    seconds: float


def train_plain(game: str, steps: int, parts: int, **settings: Any) -> Plain:
    """Train one trial by self-play; the best member is that with the best score at the end."""
    trainer, training = first_trial(game, None, steps, parts=parts, episodes=EPISODES, **settings)
    spec = trainer.experiment.spec
    began, every = time.process_time(), []
    for part in range(1, parts + 1):
        trainer.advance([training])
        training.rung = part
        every.append(trainer.actors(training))
        print(f"{game} plain: part {part} of {parts}", flush=True)
    [found] = trainer.evaluate([training])
    assert found is not None
    best = int(np.argmax(found.scores))
    reached = [spec.rung_end(part) * spec.transitions for part in range(1, parts + 1)]
    return Plain([own[best] for own in every], reached, time.process_time() - began)


def train_league(
    game: str, opponents: Mapping[str, float], steps: int, generations: int, **settings: Any
) -> League:
    """Run a study with a league in a temporary folder, as `sweepd train` does."""
    spec = first_trial_spec(
        game,
        [{"opponents": dict(opponents)}],
        -(-steps // generations),
        parts=1,
        episodes=EPISODES,
        **settings,
    )
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        handle = new_study(Path(folder), spec)
        experiment = GameExperiment(spec, torch.device("cpu"))
        assert work(handle, experiment, WorkerOptions(generations), Console(width=100))
        report = json.loads((handle.run_dir / "league.json").read_text(encoding="utf-8"))
        chosen = [report["member_of_trial"][f"trial {n}"] for n in range(generations)]
        players = [
            load_members(handle.trial_dir(number) / "members.safetensors")[member]
            for number, member in enumerate(chosen)
        ]
        handle.storage.engine.dispose()
    points = np.array(report["points"]["mean"])[:generations, :generations]
    each = spec.rollouts * spec.transitions
    reached = [each * count for count in range(1, generations + 1)]
    return League(players, points - points.T, reached, time.process_time() - began)


def new_study(folder: Path, spec: GameSpec) -> StudyHandle:
    storage = open_storage(storage_url(None, folder))
    assert create_study(storage, "league", spec, folder, {})
    return StudyHandle(storage, "league")


def among(payoffs: Floats, count: int) -> Floats:
    """Return (count,), the equilibrium among the first players."""
    return equilibrium(payoffs[:count, :count]).weights


# -- exact values


def plain_curve(tree: GameTree, plain: Plain) -> list[dict[str, Any]]:
    """Return the NashConvs after every part."""
    known = [sampled(tree, actor) for actor in plain.parts]
    return [
        {
            "steps": steps,
            "plain": nash_conv(tree, known[count - 1]),
            "snapshots": nash_conv(tree, equally(known[:count])),
        }
        for count, steps in enumerate(plain.steps, 1)
    ]


def league_curve(tree: GameTree, league: League) -> list[dict[str, Any]]:
    """Return the NashConvs after every generation."""
    known = [sampled(tree, actor) for actor in league.players]
    alone = [nash_conv(tree, own) for own in known]
    payoffs = exact_payoffs(tree, known)
    return [
        {
            "steps": steps,
            "mixture": nash_conv(tree, mixed(known[:count], among(league.payoffs, count))),
            "exact": nash_conv(tree, mixed(known[:count], among(payoffs, count))),
            "uniform": nash_conv(tree, equally(known[:count])),
            "last": alone[count - 1],
            "best": min(alone[:count]),
            "weights": among(league.payoffs, count).round(4).tolist(),
        }
        for count, steps in enumerate(league.steps, 1)
    ]


def sampled(tree: GameTree, actor: Member) -> Plans:
    behaviours = FrozenEntrant("player", FrozenPolicy([actor]), sampled=True).behaviours()
    return plans(tree, behaviours[SAMPLED])


def exact_payoffs(tree: GameTree, known: Sequence[Plans]) -> Floats:
    """Return (players, players), the row's mean return over both seats."""
    first = np.array(
        [[expected_returns(tree, (own[0], other[1])) for other in known] for own in known]
    )
    return np.asarray(0.5 * (first[:, :, 0] + first[:, :, 1].T))


def equally(members: Sequence[Plans]) -> Plans:
    return mixed(members, [1.0 / len(members)] * len(members))


# -- games against each other


def duels(game: str, plain: Plain, league: League, deals: int, kind: str) -> dict[str, Any]:
    """Play all players against plain self-play, the league's first and the scripted players.

    Args:
        game: its name.
        plain: plain self-play.
        league: the league.
        deals: of every pair, each played in both seatings.
        kind: of play, see `KINDS_OF_PLAY`.

    Returns:
        For the champion (the heaviest player of the equilibrium), the mixture and every single
            player: points against each opponent with the half-width of the interval.
    """
    target = get_game(game)
    params = target.params()
    named = {"plain": plain.parts[-1]}
    named |= {f"generation {index}": own for index, own in enumerate(league.players)}
    entrants: list[Entrant] = [
        FrozenEntrant(name, FrozenPolicy([actor]), sampled=kind == SAMPLED)
        for name, actor in named.items()
    ]
    entrants += scripted_entrants(target, params)
    names = [entrant.names[0] for entrant in entrants]
    opponents = [0, 1, *range(len(named), len(entrants))]
    pairs = [(one, other) for one in range(len(named)) for other in opponents if one != other]
    seed = derive_seed(0, "league against plain self-play", kind)
    found = play_pairs(target, params, entrants, pairs, deals, seed)
    # By pair (deals,): the mean over both seatings of a deal.
    points = {
        (names[one], names[other]): own.mean(-1)
        for (one, other), own in zip(pairs, found.points, strict=True)
    }
    weights = among(league.payoffs, len(league.players))
    generations = names[1 : len(named)]
    for other in opponents:
        versus = names[other]
        # Against itself, a player has half of the points.
        every = [points.get((name, versus), np.full(deals, 0.5)) for name in generations]
        points["mixture", versus] = np.einsum("g,gd->d", weights, np.stack(every))
        points["champion", versus] = every[int(weights.argmax())]
    described: dict[str, Any] = {"weights": weights.round(4).tolist()}
    for (one, versus), own in points.items():
        mean, reach = interval(own)
        described.setdefault(one, {})[versus] = [round(float(mean), 4), round(float(reach), 4)]
    return described


def print_duels(game: str, variant: str, kind: str, found: Mapping[str, Any], deals: int) -> None:
    """Print the points, and whether the champion reaches the goal."""
    for name in ("plain", "champion", "mixture"):
        told = ", ".join(
            f"{100 * mean:.1f} ± {100 * reach:.1f} % against {versus}"
            for versus, (mean, reach) in found[name].items()
        )
        print(f"{game} {variant}, {kind}: {name} has {told}")
    mean, reach = found["champion"]["plain"]
    verdict = "reached" if mean >= GOAL else "not reached"
    print(
        f"{game} {variant}, {kind}: the league's champion has {100 * mean:.1f} ± "
        f"{100 * reach:.1f} % of the points of {2 * deals:,} games against plain self-play after "
        f"equal steps; {100 * GOAL:.0f} % is {verdict}",
        flush=True,
    )


def compare(
    game: str, seed: int, steps: int, only: Sequence[str], deals: int, settings: Mapping[str, int]
) -> Iterator[dict[str, Any]]:
    """Train both sides with one seed; give all results so far after every training."""
    generations, members = settings["generations"], settings["members"]
    target = get_game(game)
    tree = game_tree(target, target.params()) if is_enumerable(target, target.params()) else None
    plain = train_plain(game, steps, generations, seeds=members, seed=seed)
    found: dict[str, Any] = {"seed": seed, "plain": {"seconds": round(plain.seconds)}}
    if tree is not None:
        found["plain"]["curve"] = plain_curve(tree, plain)
        print_curve(game, "plain", found["plain"]["curve"])
    yield found
    for variant in only:
        league = train_league(game, VARIANTS[variant], steps, generations, seeds=members, seed=seed)
        found[variant] = own = {"seconds": round(league.seconds)}
        if tree is not None:
            own["curve"] = league_curve(tree, league)
            print_curve(game, variant, own["curve"])
        else:
            for kind in KINDS_OF_PLAY:
                own[kind] = duels(game, plain, league, deals, kind)
                print_duels(game, variant, kind, own[kind], deals)
        yield found


def print_curve(game: str, variant: str, curve: Sequence[Mapping[str, Any]]) -> None:
    for entry in curve:
        numbers = "  ".join(
            f"{kind} {entry[kind]:.4f}" for kind in entry if kind not in ("steps", "weights")
        )
        print(f"{game} {variant} {entry['steps']:>10,} steps: NashConv {numbers}", flush=True)


def main(argv: list[str]) -> None:
    parser = benchmark_parser(__doc__, threads=1)
    parser.add_argument("game", help="a game in turns: kuhn, leduc, card-duel")
    parser.add_argument("--steps", type=int, help="per member; default: the space's budget")
    parser.add_argument("--generations", type=int, default=6)
    parser.add_argument("--members", type=int, default=2, help="of every trial")
    parser.add_argument("--studies", type=int, default=1, help="with the seeds 0, 1, …")
    parser.add_argument("--only", choices=list(VARIANTS), nargs="+", default=list(VARIANTS))
    parser.add_argument("--deals", type=int, default=500, help="of every pair, in both seatings")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    machine = print_machine()
    steps = args.steps or int(load_space("game", Subject(args.game)).study["budget"])
    settings = {"generations": args.generations, "members": args.members}
    described = {"machine": machine, "steps": steps, "deals": args.deals, **settings}
    studies: list[dict[str, Any]] = []
    for seed in range(args.studies):
        for found in compare(args.game, seed, steps, args.only, args.deals, settings):
            # Read again: another game may have been saved since.
            results = load_results(args.save)
            results[args.game] = described | {"studies": [*studies, found]}
            save_results(args.save, results)
        studies.append(found)


if __name__ == "__main__":
    main(sys.argv[1:])
