"""Learning against Stable-Baselines3 at equal steps: PPO, SAC and D3QN (there DQN), 8 seeds each.

`sb3_rows.py` has the rows: environments of Gymnasium, MuJoCo, Box2D, MiniGrid and PettingZoo, and
the settings of Stable-Baselines3's model zoo for them, with `VecNormalize` where the zoo has it.

    ours  trial 0 of a study on the environment: the included search space and the defaults of
          `sweepd train`, the same for all environments. The seeds are members of one program. Where
          --n-envs is automatic, its lower limit.
    sb3   one run per seed, in a process of its own with one thread of torch and MKL's default mode.

At the end, every seed plays ten episodes of its own, without exploration; in some rows also with
actions that are drawn from its policy. Its score is their mean return (of all agents together). After
every tenth of the steps it plays one, for the curves; Stable-Baselines3 fewer times where its
rollouts are longer. A seed solves an environment if its score reaches the threshold.

The rule: we are **behind** in a row if our scores have the lower ranks, and the exact two-sided
permutation test of the sum of ranks (Mann and Whitney, with ties) has p < 0.05; **ahead** if they
have the higher ones; else **level**. p is not corrected for the number of rows, so among 20 level
rows, one would be expected to be ahead or behind by luck.

Every finished program (ours) and seed (sb3) is added to the file of --save at once, and a run that
is repeated continues there. Both sides may run at the same time. --with, --running-scale,
--fixed-scale and --n-envs change our side, whose results then have a name of their own in the file.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from scipy.stats import rankdata

from scripts.bench.harness import (
    benchmark_parser,
    load_results,
    machine,
    processor_seconds,
    save_results,
)
from scripts.bench.peers import answer, run_apart
from scripts.bench.quality.sb3_curves import draw
from scripts.bench.quality.sb3_rows import ROWS, Row, row_of
from sweepd.envs.games.pairings import SAMPLED
from sweepd.envs.games.parameters import game_params
from sweepd.envs.games.scaling import STEPS
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.intervals import clopper_pearson
from sweepd.optimize.cli.study_request import make_request
from sweepd.optimize.objectives.games.experiment import GameExperiment
from sweepd.optimize.objectives.members.trainer import MemberTraining, Trainer
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.fit import fewest_envs
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.record.specs import GameSpec
from sweepd.optimize.study.settings.study import StudySettings
from sweepd.optimize.study.space.parsing import load_space
from sweepd.optimize.study.space.search_space import SearchSpace, Settings
from sweepd.optimize.study.space.subject import Subject
from sweepd.optimize.study.study import Plan
from sweepd.optimize.worker.freeze import open_study

SEEDS, LOOKS, EPISODES = 8, 10, 10
SIDES = ("ours", "sb3")
BEYOND_NOISE = 0.05
DETERMINISTIC = "deterministic"


@dataclasses.dataclass(frozen=True)
class Changes:
    """What our side has in place of the defaults.

    Attributes:
        values: of parameters of the shape or the algorithm, by name.
        running_scale: whether the scale of observations follows the members' own play; None: as in
            a study.
        num_envs: environments per member; None: as in a study.
    """

    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    running_scale: bool | None = None
    num_envs: int | None = None

    @property
    def side(self) -> str:
        """The name of our side with these changes."""
        parts = [f"{name}={value}" for name, value in sorted(self.values.items())]
        if self.running_scale is not None:
            parts.append("running scale" if self.running_scale else "fixed scale")
        if self.num_envs is not None:
            parts.append(f"{self.num_envs} envs")
        return ", ".join(["ours", *parts])


def ours(row: Row, seeds: Sequence[int], changes: Changes) -> dict[str, Any]:
    """Train all seeds in one program.

    Returns:
        runs, by seed, with steps, scores and curve as of `sb3_runs.train`; the settings of all;
        processor seconds of all together; machine.
    """
    spec, space = _study(row, seeds, changes)
    settings = _settings(space, changes)
    experiment = GameExperiment(spec, torch.device("cpu"))
    trainer = Trainer(experiment)
    training = trainer.start(Plan(0, 0, {}, settings, spec.seed))
    curves: list[list[tuple[int, float]]] = [[] for _ in seeds]
    plays: dict[str, Sequence[float]] = {}
    seconds = 0.0
    for rung in range(1, LOOKS + 1):
        began = processor_seconds()
        trainer.advance([training])
        seconds += processor_seconds() - began
        scores = _evaluate(trainer, training)
        if rung == LOOKS and row.sampled:
            trainer.experiment = GameExperiment(
                dataclasses.replace(spec, play="sampled"), experiment.device
            )
            plays[SAMPLED] = _evaluate(trainer, training)
        training.rung = rung
        for curve, score in zip(curves, scores, strict=True):
            curve.append((spec.rung_end(rung) * spec.transitions, score))
    plays[DETERMINISTIC] = scores
    runs = {
        str(seed): {
            "steps": curve[-1][0],
            "scores": {play: own[member] for play, own in plays.items()},
            "curve": curve,
        }
        for member, (seed, curve) in enumerate(zip(seeds, curves, strict=True))
    }
    described = {
        **dataclasses.asdict(settings),
        "num_envs": spec.num_envs,
        "horizon": spec.horizon,
        "running_scale": trainer.program(training)[1].shape.running_scale,
    }
    return {"runs": runs, "settings": described, "seconds": seconds, "machine": machine()}


def _evaluate(trainer: Trainer, training: MemberTraining) -> Sequence[float]:
    """Return the members' scores."""
    (found,) = trainer.evaluate([training])
    if found is None:
        sys.exit(training.fault)
    return found.scores


def _study(row: Row, seeds: Sequence[int], changes: Changes) -> tuple[GameSpec, SearchSpace]:
    """Return spec and space of a study as `sweepd train` creates it, for whole rollouts."""
    flags = StudySettings(
        env=row.environment,
        algo=row.algorithm,
        budget=row.steps,
        seeds=len(seeds),
        episodes=EPISODES,
        look_steps=STEPS,
        rungs=LOOKS,
        sampler="random",
        pruner="none",  # so that only the last evaluation is a full one
        seed=seeds[0],
        slots=max(2, len(seeds)),
        n_trials=1,
        trials_per_batch=1,
        threads=1,
    )
    request = make_request(flags, frozenset({"budget"}))
    preset = load_space("game", Subject(row.environment, row.algorithm))
    automatic = fewest_envs(row.steps, request.horizon, preset.minibatches)
    num_envs = changes.num_envs or request.n_envs or automatic
    rollout = num_envs * request.horizon
    budget = max(LOOKS, row.steps // rollout) * rollout
    request = dataclasses.replace(request, n_envs=num_envs, budget=budget)
    with tempfile.TemporaryDirectory() as folder:
        storage = open_storage(storage_url(None, Path(folder)))
        handle, _ = open_study(
            storage, "bench", request, torch.device("cpu"), Path(folder), {}, lambda _: None
        )
        spec, space = handle.spec, handle.space
    assert isinstance(spec, GameSpec)
    running = spec.running_scale if changes.running_scale is None else changes.running_scale
    # Its own episodes make a seed's score independent of the others'. No flag for several agents.
    return dataclasses.replace(spec, running_scale=running, own_episodes=True), space


def _settings(space: SearchSpace, changes: Changes) -> Settings:
    """Return the settings of trial 0, with these changes.

    Raises:
        InputError: a name is neither a parameter of the shape nor of the algorithm.
    """
    settings = space.resolve(space.start)
    tables = {"shape": settings.shape, space.subject.learner.table: settings.learner}
    for name, value in changes.values.items():
        table = next((table for table in tables if name in space.subject.names(table)), None)
        if table is None:
            known = ", ".join(sorted({n for t in tables for n in space.subject.names(t)}))
            raise InputError(
                f"--with {name}: {space.subject.algorithm} has no such parameter; there are {known}"
            )
        tables[table][name] = value
    return settings


def peer_run(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run of Stable-Baselines3, in a process of its own."""
    from scripts.bench.quality.sb3_runs import train

    return train(row_of(request["row"]), request["seed"], request["looks"], request["episodes"])


def compare(found: Mapping[str, Any], row: Row) -> dict[str, Any]:
    """Return by kind of play the summaries of both sides, p and the verdict of the rule."""
    compared = {}
    for play in (DETERMINISTIC, *((SAMPLED,) if row.sampled else ())):
        sides = {
            side: [run["scores"][play] for run in found[side]["runs"].values()] for side in SIDES
        }
        p, higher = permutation_test(*sides.values())
        verdict = "level" if p >= BEYOND_NOISE else "ahead" if higher else "behind"
        summaries = {side: summary(scores, row.solved) for side, scores in sides.items()}
        compared[play] = {**summaries, "p": p, "verdict": verdict}
    return compared


def permutation_test(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, bool]:
    """Return the exact two-sided p of the sum of our ranks, and whether ours are the higher ones."""
    ranks = rankdata([*ours, *theirs])
    sums = np.array([sum(chosen) for chosen in itertools.combinations(ranks, len(ours))])
    away = float(ranks[: len(ours)].sum() - sums.mean())
    # Ranks are multiples of a half; their mean is rounded.
    return float((np.abs(sums - sums.mean()) >= abs(away) - 1e-6).mean()), away > 0


def summary(scores: Sequence[float], solved: float | None) -> dict[str, Any]:
    """Return median and range of the seeds' scores, and how many reach the threshold."""
    described: dict[str, Any] = {
        "seeds": len(scores),
        "median": statistics.median(scores),
        "worst": min(scores),
        "best": max(scores),
    }
    if solved is not None:
        reached = sum(score >= solved for score in scores)
        share = clopper_pearson(reached, len(scores))
        described |= {"solved": reached, "share_low": share.low, "share_high": share.high}
    return described


class Results:
    """The results file, to which several processes may add."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._content: dict[str, Any] = {}

    def row(self, name: str, row: Row) -> dict[str, Any]:
        """Return what is known of a row, by side; nothing if it was another row."""
        self._content = load_results(self._path) or self._content
        found: dict[str, Any] = self._content.get("rows", {}).get(name, {})
        return found.get("sides", {}) if found.get("row") == described(row) else {}

    def add(self, name: str, row: Row, side: str, changed: Mapping[str, Any]) -> dict[str, Any]:
        """Add to a side's entries, its runs by seed; return the row's sides."""
        if self._path is None:
            return self._add(name, row, side, changed)
        with FileLock(f"{self._path}.lock"):
            return self._add(name, row, side, changed)

    def _add(self, name: str, row: Row, side: str, changed: Mapping[str, Any]) -> dict[str, Any]:
        sides = self.row(name, row)
        own = sides.get(side, {"runs": {}})
        sides[side] = {**own, **changed, "runs": {**own["runs"], **changed["runs"]}}
        entry = {"row": described(row), "sides": sides}
        counts = {len(sides.get(both, {"runs": ()})["runs"]) for both in SIDES}
        if len(counts) == 1 and 0 not in counts:
            entry["comparison"] = compare(sides, row)
        rows = self._content.get("rows", {}) | {name: entry}
        ordered = {known: rows[known] for known in ROWS if known in rows}
        self._content = {"episodes": EPISODES, "rows": ordered}
        save_results(self._path, self._content)
        return sides


def described(row: Row) -> dict[str, Any]:
    """Return a row as it is in the file: what our side has only where it has something."""
    content: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(row)))
    return {key: v for key, v in content.items() if v or key not in ("ours", "num_envs")}


def report(name: str, row: Row, side: str, runs: Mapping[str, Any]) -> None:
    """Print the scores of a side so far, sorted."""
    for play in next(iter(runs.values()))["scores"]:
        scores = [run["scores"][play] for run in runs.values()]
        sampled = ", sampled" if play == SAMPLED else ""
        found = summary(scores, row.solved)
        solved = f", {found['solved']} of {len(scores)} solve it" if "solved" in found else ""
        print(
            f"{name}, {side}{sampled}, {row.steps:,} steps: median {found['median']:.2f}{solved}; "
            f"{' '.join(f'{score:.2f}' for score in sorted(scores))}",
            flush=True,
        )


def main(argv: list[str]) -> None:
    if argv[:1] == ["as-peer"]:
        answer(peer_run)
        return
    args = _parse(argv)
    torch.set_num_threads(1)
    results = Results(args.save)
    changes = Changes(game_params(None, args.values), args.running_scale, args.n_envs)
    seeds = list(range(args.first_seed, args.first_seed + args.seeds))
    for name, side in itertools.product(args.only, [args.side] if args.side else SIDES):
        row = ROWS[name]
        if args.steps:
            row = dataclasses.replace(row, steps=args.steps)
        own = changes.side if side == "ours" else side
        known = results.row(name, row).get(own, {"runs": {}})["runs"]
        missing = [seed for seed in seeds if str(seed) not in known]
        if side == "ours" and missing:
            applied = dataclasses.replace(
                changes,
                values={**row.ours, **changes.values},
                num_envs=changes.num_envs or row.num_envs,
            )
            known = results.add(name, row, own, ours(row, seeds, applied))[own]["runs"]
        elif side == "sb3":
            for seed in missing:
                request = {"row": described(row), "seed": seed, "looks": LOOKS}
                run = run_apart(__name__, request | {"episodes": EPISODES})
                known = results.add(name, row, own, {"runs": {str(seed): run}})[own]["runs"]
                print(f"{name}, seed {seed}: {run['scores']}, {run['seconds']:.0f} s", flush=True)
        report(name, row, own, known)
    if args.picture:
        draw(load_results(args.save)["rows"], args.picture)


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = benchmark_parser(__doc__)
    add = parser.add_argument
    add("--only", metavar="ROW,…", help=f"rows of {', '.join(ROWS)}; default: all")
    add("--side", choices=SIDES, help="default: both")
    add("--seeds", type=int, default=SEEDS, help="number of seeds")
    add("--first-seed", type=int, default=0)
    add("--steps", type=int, help="steps in every row, to try the script")
    add("--picture", type=Path, metavar="PNG", help="draw the curves of the default settings")
    ours = parser.add_argument_group("our side")
    ours.add_argument(
        "--with",
        dest="values",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="parameters of the shape or the algorithm that differ from trial 0",
    )
    scale = ours.add_mutually_exclusive_group()
    for name, running in (("running", True), ("fixed", False)):
        scale.add_argument(
            f"--{name}-scale",
            dest="running_scale",
            action="store_const",
            const=running,
            help=f"{name} scale of observations",
        )
    ours.add_argument("--n-envs", type=int, help="environments per seed")
    args = parser.parse_args(argv)
    args.only = args.only.split(",") if args.only else list(ROWS)
    unknown = sorted(set(args.only) - set(ROWS))
    if unknown:
        parser.error(f"--only {unknown[0]} is no row; choose of {', '.join(ROWS)}")
    if args.picture and not args.save:
        parser.error("--picture draws the file of --save; give both")
    for flag in ("seeds", "steps", "n_envs"):
        number = getattr(args, flag)
        if number is not None and number < 1:
            parser.error(f"--{flag.replace('_', '-')} {number} must be at least 1")
    return args
