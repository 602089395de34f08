"""Searches without a model, replayed on a table for all repetitions at once.

A schedule draws random configurations and trains them in rounds. The best ones by their mean over
seeds at the end of a round continue with more seeds or a larger share of the budget. The last round
keeps one, which is the choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from search_tables import Floats, Table, check_seeds

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Chosen:
    """What searches chose, one entry per repetition.

    Attributes:
        fresh: mean final performance on the seeds that were not used.
        selected: the value by which the choice was made.
        cost: training in full runs.
    """

    fresh: Floats
    selected: Floats
    cost: Floats


@dataclass(frozen=True)
class Round:
    """keep: configurations that continue. seeds: trained so far. share: of the budget."""

    keep: int
    seeds: int = 1
    share: float = 1.0


@dataclass(frozen=True)
class Schedule:
    """A search in rounds.

    Attributes:
        count: configurations at the beginning.
        rounds: what is trained and kept.
        told: whether an oracle names the truth at the end of each round instead of noisy values.
        best: whether the configurations are the table's best ones instead of random ones.
    """

    count: int
    rounds: Sequence[Round]
    told: bool = False
    best: bool = False

    def run(self, table: Table, rng: np.random.Generator, repetitions: int) -> Chosen:
        """Replay the search. A table with fewer configurations is drawn as a whole."""
        draws = _Draws(table, rng, repetitions, self.count, best=self.best)
        return draws.chosen(*draws.play(draws.everyone(), self.rounds, told=self.told))


@dataclass(frozen=True)
class Hyperband:
    """Hyperband (Li et al. 2018) with one seed and random configurations.

    Its brackets, successive halving from 1/9, 1/3 and 1 of the budget on, are repeated while a
    whole bracket is affordable. The choice is the best full run.
    """

    budget: int = 96
    brackets: Sequence[tuple[int, Sequence[Round]]] = field(
        default=(
            (9, (Round(3, share=1 / 9), Round(1, share=1 / 3), Round(1))),
            (5, (Round(1, share=1 / 3), Round(1))),
            (3, (Round(1),)),
        )
    )

    def run(self, table: Table, rng: np.random.Generator, repetitions: int) -> Chosen:
        """Replay the search. It ends early where the table has no unused configurations."""
        draws = _Draws(table, rng, repetitions, len(table.curves))
        everyone = draws.everyone()
        at, cost = 0, 0.0
        full: list[Ints] = []
        while True:
            count, rounds = self.brackets[len(full) % len(self.brackets)]
            wanted = _cost(count, rounds)
            if at + count > everyone.shape[1] or cost + wanted > self.budget + 1e-9:
                break
            full.append(draws.play(everyone[:, at : at + count], rounds)[0])
            at, cost = at + count, cost + wanted
        winners = np.stack(full, axis=1)
        values = draws.values(winners, 1, 1.0)
        best = np.argmax(values, axis=1)
        rows = np.arange(repetitions)
        return draws.chosen(winners[rows, best], values[rows, best], 1, cost)


class _Draws:
    """Random configurations with their seeds in a random order, for each repetition."""

    def __init__(
        self,
        table: Table,
        rng: np.random.Generator,
        repetitions: int,
        count: int,
        *,
        best: bool = False,
    ) -> None:
        configs, seeds = table.curves.shape[:2]
        self.table, self.rows = table, np.arange(repetitions)[:, None]
        if best:
            order = np.tile(np.argsort(-table.truth), (repetitions, 1))
        else:
            order = np.argsort(rng.random((repetitions, configs)), axis=1)
        self.configs = order[:, :count]
        order = np.argsort(rng.random((*self.configs.shape, seeds)), axis=2)
        self.curves = table.curves[self.configs[:, :, None], order]

    def everyone(self) -> Ints:
        return np.tile(np.arange(self.configs.shape[1]), (len(self.rows), 1))

    def values(self, which: Ints, seeds: int, share: float) -> Floats:
        """Return means over the first seeds at a share of the budget, shaped as `which`."""
        at = self.table.checkpoint(share)
        return np.asarray(self.curves[self.rows, which, :seeds, at].mean(-1))

    def play(
        self, which: Ints, rounds: Sequence[Round], *, told: bool = False
    ) -> tuple[Ints, Floats, int, float]:
        """Return the configuration that is left, its value, its seeds, and the cost."""
        cost = _cost(which.shape[1], rounds)
        check_seeds(self.table, rounds[-1].seeds)
        for each in rounds:
            values = self.values(which, each.seeds, each.share)
            if told:
                values = self.table.truth[self.configs[self.rows, which]]
            order = np.argsort(-values, axis=1, kind="stable")[:, : each.keep]
            which = np.take_along_axis(which, order, axis=1)
            values = np.take_along_axis(values, order, axis=1)
        return which[:, 0], values[:, 0], rounds[-1].seeds, cost

    def chosen(self, which: Ints, selected: Floats, seeds: int, cost: float) -> Chosen:
        fresh = self.curves[self.rows[:, 0], which, seeds:, -1].mean(-1)
        return Chosen(fresh, selected, np.full(len(fresh), cost))


def _cost(count: int, rounds: Sequence[Round]) -> float:
    """Return the training of a schedule in full runs."""
    cost, seeds, share = 0.0, 0, 0.0
    for each in rounds:
        # The seeds so far go on to the new share, and further seeds begin.
        cost += count * (seeds * (each.share - share) + (each.seeds - seeds) * each.share)
        count, seeds, share = min(count, each.keep), each.seeds, each.share
    return cost
