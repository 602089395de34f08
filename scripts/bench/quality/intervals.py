"""Coverage of the 95 % intervals of game results in simulated games.

A result is the mean over seeds and episodes of a design whose true mean is known:

* noise: nothing depends on the seed; episodes have standard deviation 1;
* game: seeds have standard deviation 1, episodes 4, and their interaction 4;
* solved .5 and .8: a seed scores 500 with this probability, else 0.

For every interval and number of seeds, the share of replicates whose interval contains the true mean.
Equal scores without a known range have no interval, and count as not containing it.
For comparison, the bootstrap of the interquartile mean over seeds alone, which earlier versions
used, and the crossed bootstrap of seeds and episodes (A. B. Owen 2007).

`--pendulum SEEDS` does the same with real returns: it trains this many seeds of Gymnasium's Pendulum
for each of `--budget` steps, with the defaults of `sweepd train`, and lets all of them play `--played`
episodes. Designs are seeds and episodes drawn from this table with replacement, so the table's mean
is the truth. `difference` is that of two such designs with the same episodes: its truth is 0.

`--automatic` prints the number of episodes that new studies choose on the null game, whose steps pay
N(0, 1) whatever is done, and on CartPole.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

import sweepd
from scripts.bench.harness import benchmark_parser, machine, print_machine, save_results
from sweepd.envs.games.tensor_game import State, TensorGame
from sweepd.envs.support.intervals import Interval, crossed, over_seeds, paired
from sweepd.optimize.study.record.keys import FLAGS_KEY

Floats = NDArray[np.float64]
Bounds = tuple[float, float]
# Standard deviations of seeds, episodes and interaction; or the probability of 500.
DESIGNS: dict[str, tuple[float, ...]] = {
    "noise": (0.0, 1.0, 0.0),
    "game": (1.0, 4.0, 4.0),
    "solved .5": (0.5,),
    "solved .8": (0.8,),
}
SEEDS, DRAWS = (3, 5, 10), 1000
ADVANTAGE = 0.3  # of the first of two configurations
PENDULUM = "gym:Pendulum-v1"


class Null(TensorGame):
    """Every step pays N(0, 1), whatever is done."""

    state_dim, action_dim, if_discrete = 1, 2, True
    max_step, uniforms_per_move = 4, 1

    def start(self, uniforms: Tensor) -> State:
        return {"zero": torch.zeros(len(uniforms))}

    def move(self, state: State, action: Tensor, uniforms: Tensor) -> tuple[State, Tensor, Tensor]:  # noqa: ARG002
        reward = torch.special.ndtri(uniforms[:, 0].clamp(1e-9, 1.0 - 1e-9)).float()
        return state, reward, torch.zeros(len(uniforms), dtype=torch.bool)

    def see(self, state: State, *args: Any, **kwargs: Any) -> Tensor:  # noqa: ARG002
        return state["zero"][:, None]


NULL = Null.game()


def draw(
    rng: np.random.Generator, design: tuple[float, ...], seeds: int, episodes: int, *, own: bool
) -> Floats:
    """Return (seeds, episodes) returns. own: whether seeds play episodes of their own."""
    if len(design) == 1:
        solved = rng.random((seeds, 1)) < design[0]
        return np.asarray(np.repeat(500.0 * solved, episodes, axis=1))
    seed, episode, rest = design
    shape = (seeds if own else 1, episodes)
    found = rng.normal(0.0, seed, (seeds, 1)) + rng.normal(0.0, episode, shape)
    return np.asarray(found + rng.normal(0.0, rest, (seeds, episodes)))


def bootstrap_of_seeds(rng: np.random.Generator, returns: Floats) -> Bounds:
    """Return the bootstrap interval of the interquartile mean over seeds."""
    scores = returns.mean(1)
    chosen = np.sort(scores[rng.integers(0, len(scores), (DRAWS, len(scores)))], axis=1)
    out = int(0.25 * len(scores))
    low, high = np.quantile(chosen[:, out : len(scores) - out].mean(1), (0.025, 0.975))
    return float(low), float(high)


def crossed_bootstrap(rng: np.random.Generator, returns: Floats) -> Bounds:
    """Return the bootstrap interval of the mean, seeds and episodes drawn independently."""
    seeds, episodes = (rng.multinomial(n, np.full(n, 1.0 / n), DRAWS) for n in returns.shape)
    means = ((seeds @ returns) * episodes).sum(1) / returns.size
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def bounds_of(found: Interval) -> Bounds:
    return (found.low, found.high) if found.known else (math.nan, math.nan)


def student(rng: np.random.Generator, returns: Floats) -> Bounds:  # noqa: ARG001
    return bounds_of(crossed(returns))


def seeds_alone(
    rng: np.random.Generator,  # noqa: ARG001
    returns: Floats,
    limits: Bounds | None = None,
) -> Bounds:
    return bounds_of(over_seeds(returns.mean(1), limits, draws=DRAWS))


# Name, function, whether seeds play episodes of their own, and whether it needs a known range.
METHODS: tuple[tuple[str, Callable[..., Bounds], bool, bool], ...] = (
    ("bootstrap of seeds, interquartile mean", bootstrap_of_seeds, False, False),
    ("crossed bootstrap", crossed_bootstrap, False, False),
    ("two-way Student", student, False, False),
    ("Student over seeds, own episodes", seeds_alone, True, False),
    ("Gaffke, own episodes", partial(seeds_alone, limits=(0.0, 500.0)), True, True),
)


def coverage(
    method: Callable[..., Bounds],
    design: tuple[float, ...],
    seeds: int,
    episodes: int,
    replicates: int,
    *,
    own: bool,
) -> dict[str, float]:
    """Return the shares of intervals that contain the truth, and of lower and upper bounds."""
    rng = np.random.default_rng(seeds)
    truth = 500.0 * design[0] if len(design) == 1 else 0.0
    bounds = np.array(
        [method(rng, draw(rng, design, seeds, episodes, own=own)) for _ in range(replicates)]
    )
    low, high = bounds[:, 0] <= truth + 1e-9, truth - 1e-9 <= bounds[:, 1]
    both = {"both": low & high, "low": low, "high": high}
    return {name: float(share.mean()) for name, share in both.items()}


def difference(seeds: int, episodes: int, replicates: int) -> float:
    """Return the coverage of paired differences on common episodes in the design `game`."""
    rng, found = np.random.default_rng(seeds), 0
    seed, episode, rest = DESIGNS["game"]
    for _ in range(replicates):
        shared = rng.normal(0.0, episode, (1, episodes))
        one, other = (
            shared + draw(rng, (seed, 0.0, rest), seeds, episodes, own=False) for _ in range(2)
        )
        own = paired(one + ADVANTAGE, other)
        found += own.low <= ADVANTAGE <= own.high
    return found / replicates


def played(seeds: int, episodes: int, budget: int) -> tuple[Floats, dict[str, Any]]:
    """Train Pendulum, and return (seeds, episodes) returns and the hyperparameters."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"seeds": seeds, "episodes": episodes, "budget": budget, "rungs": 1}
        study = sweepd.create_study(
            "pendulum",
            env=PENDULUM,
            n_trials=1,
            runs_dir=Path(folder),
            gpu="cpu",
            threads=1,
            fresh_seeds=0,
            **settings,
        )
        if not study.run():
            raise SystemExit("the training did not end")
        frame = pd.read_parquet(study.trial_dir(0) / "episodes.parquet")
        params = study.status()["best"]["params"]
    table = frame.pivot_table(index="seed", columns="episode", values="return").to_numpy()
    return table, settings | {"params": params}


def resampled(table: Floats, seeds: int, episodes: int, replicates: int) -> dict[str, float]:
    """Return the coverage of the table's mean in designs drawn from it with replacement."""
    rng, truth = np.random.default_rng(seeds), float(table.mean())
    names = (METHODS[0][0], METHODS[2][0], METHODS[3][0], "difference, same episodes")
    found = dict.fromkeys(names, 0)
    for _ in range(replicates):
        rows = rng.integers(0, len(table), (seeds, 1))
        columns = rng.integers(0, table.shape[1], (1, episodes))
        common = table[rows, columns]
        own = table[rows, rng.integers(0, table.shape[1], (seeds, episodes))]
        other = table[rng.integers(0, len(table), (seeds, 1)), columns]
        gap = paired(common + truth, other)
        bounds = (
            bootstrap_of_seeds(rng, common),
            student(rng, common),
            seeds_alone(rng, own),
            (gap.low, gap.high),
        )
        for name, (low, high) in zip(names, bounds, strict=True):
            found[name] += low <= truth <= high
    return {name: count / replicates for name, count in found.items()}


def real(seeds: int, episodes: int, budget: int, size: tuple[int, int]) -> dict[str, Any]:
    """Train Pendulum, and return and print the coverage in designs drawn from its returns."""
    table, trained = played(seeds, episodes, budget)
    designs = [resampled(table, n, *size) for n in SEEDS]
    found = {name: [one[name] for one in designs] for name in designs[0]}
    scores = np.sort(table.mean(1))
    print(f"\n{PENDULUM}, {budget:,} steps: {seeds} seeds, scores {scores.round().tolist()}")
    for name, shares in found.items():
        print(f"{name:40}{'/'.join(f'{100 * share:.0f}' for share in shares):>16}")
    return trained | {"scores": scores.tolist(), "coverage": found}


def automatic() -> dict[str, str]:
    """Return by game the line in which a new study says its number of episodes."""
    found = {}
    for name, env in (("null", f"{__name__}:NULL"), ("cartpole", "cartpole")):
        with tempfile.TemporaryDirectory() as folder:
            study = sweepd.create_study(
                name, env=env, n_trials=1, runs_dir=Path(folder), gpu="cpu", threads=1
            )
            measured = study.optuna.user_attrs[FLAGS_KEY]["measured"]
        [found[name]] = (line for line in measured if line.startswith("episodes: "))
    return found


def main(argv: list[str]) -> int:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--replicates", type=int, default=1500)
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--pendulum", type=int, default=0, metavar="SEEDS", help="0: none")
    parser.add_argument("--played", type=int, default=400, help="episodes per seed of Pendulum")
    parser.add_argument("--budget", type=int, nargs="+", default=[20_000, 50_000], metavar="STEPS")
    parser.add_argument("--automatic", action="store_true", help="numbers of episodes")
    options = parser.parse_args(argv)
    print_machine()
    kept: dict[str, Any] = {"machine": machine(), "replicates": options.replicates}
    size = (options.episodes, options.replicates)
    print(f"\n95 % intervals that contain the truth, in %, for {SEEDS} seeds")
    print(f"{'':40}" + "".join(f"{name:>16}" for name in DESIGNS))
    kept["coverage"] = {}
    for name, method, own, ranged in METHODS:
        rows = kept["coverage"][name] = {}
        for key, design in DESIGNS.items():
            if not ranged or len(design) == 1:
                rows[key] = [coverage(method, design, n, *size, own=own) for n in SEEDS]
        cells = [
            "/".join(f"{100 * one['both']:.0f}" for one in rows[key]) if key in rows else "–"
            for key in DESIGNS
        ]
        print(f"{name:40}" + "".join(f"{cell:>16}" for cell in cells), flush=True)
    kept["difference"] = [difference(n, *size) for n in SEEDS]
    cell = "/".join(f"{100 * share:.0f}" for share in kept["difference"])
    print(f"{'difference, same episodes':40}{'–':>16}{cell:>16}")
    save_results(options.save, kept)
    if options.automatic:
        kept["automatic"] = automatic()
        for name, line in kept["automatic"].items():
            print(f"{name}: {line}")
        save_results(options.save, kept)
    for budget in options.budget if options.pendulum else ():
        found = real(options.pendulum, options.played, budget, size)
        kept.setdefault("pendulum", []).append(found)
        save_results(options.save, kept)
    return 0
