"""Selection statistics of a search: the spread and correlation of its trials, and the deflated SR.

All Sharpe ratios here are information ratios: of returns in excess of equal weight, per bar. The
search shows these figures while it runs and the gate tests them afterwards, both from the paths
that every complete trial stored.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweepd.envs.crypto.scoring import luck
from sweepd.envs.crypto.scoring.luck import Moments

Array = NDArray[np.float64]
PATHS_FILE = "paths.parquet"
BLOCKS = 1024  # of a longer path, at least: over them, returns are summed to compare trials


@dataclass(frozen=True)
class Deflation:
    """The deflated Sharpe ratio of one trial, or of several that divide the capital.

    Attributes:
        by_path: DSR per path.
        path: index of the path with the median DSR (`median_path`), to which the other attributes
            refer.
        moments: of the path's excess returns.
        correlation: mean correlation of two trials' returns, over all paths.
        luck: expected ratio of the best of as many trials without skill, per bar.
        trials: N.
        effective: N_eff, the number of independent trials with one evaluation each that need the
            same ratio.
        needed: Sharpe ratio per bar at which DSR would be 0.95, given these returns' error.
        record: bars needed at the present Sharpe ratio.
        diversification: factor on a single trial's ratio
            (`sweepd.deploy.market.backtests.Combination`).
    """

    by_path: tuple[float, ...]
    path: int
    moments: Moments
    correlation: float
    luck: float
    trials: int
    effective: float
    needed: float
    record: float
    diversification: float = 1.0

    @property
    def probability(self) -> float:
        """Return the DSR of the median path."""
        return self.by_path[self.path]


def verdict_text(
    ratio: float, needed: float | None, *, paths: int, trials: int, effective: float
) -> str:
    """Return an information ratio and the one that is needed, in the words of all screens.

    Args:
        ratio: annual information ratio on the median path.
        needed: the least annual ratio with a DSR of 0.95; None or infinite if none suffices.
        paths: number of paths.
        trials: N.
        effective: see `Deflation`.
    """
    where = "its path" if paths == 1 else f"the median of its {paths} paths"
    text = f"an annual information ratio over equal weight of {ratio:+.2f} on {where}; "
    if needed is None or math.isinf(needed):
        return text + "there are too few bars to distinguish any ratio from luck"
    return (
        f"{text}{needed:+.2f} is needed to be distinguished from luck among {trials} trials "
        f"(equivalent to {effective:,.1f} independent ones)"
    )


def median_path(moments: Sequence[Moments], diversification: Array | None = None) -> int:
    """Return the index of the path with the median score, the lower one of two in the middle.

    Its DSR is the median, too. Unlike the DSR, which is 0 for every path of a poor trial, scores
    tell all paths apart, and do not depend on the other trials.

    Args:
        moments: one per path, all of the same number of bars.
        diversification: see `TrialReturns.deflate`.
    """
    factors = np.ones(len(moments)) if diversification is None else diversification
    # Of one number of bars, these ratios are in the order of the scores.
    scores = [one.sharpe / (f * one.error) for one, f in zip(moments, factors, strict=True)]
    # A stable sort, so that ties give the same path on every machine.
    return int(np.argsort(scores, kind="stable")[(len(scores) - 1) // 2])


class TrialReturns:
    """Excess returns of a search's complete trials, reduced to what the DSR needs. Thread-safe.

    Attributes:
        moments: by trial number, one per path (φ).
        time: (T,) opening times of a path's bars, in seconds; empty before the first trial.
    """

    def __init__(self) -> None:
        self.moments: dict[int, tuple[Moments, ...]] = {}
        self.time: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._sums: dict[int, Array] = {}  # by trial number, unit vectors (φ, blocks)
        self._shape: tuple[int, ...] = ()
        self._lock = threading.Lock()

    def add(self, number: int, excess: Array, time: NDArray[np.int64]) -> None:
        """Add a trial's (φ, T) excess returns. A trial that was added before is ignored.

        Raises:
            ValueError: they are on other bars than those of the other trials.
        """
        with self._lock:
            if number in self.moments:
                return
            if not self.moments:
                self.time, self._shape = time, excess.shape
            elif excess.shape != self._shape or not np.array_equal(time, self.time):
                raise ValueError("its paths are on other bars than those of the other trials")
            # Sums over blocks suffice for correlations, so the memory per trial is bounded. They
            # also contain what trials have in common with a delay of some bars.
            edges = np.arange(0, excess.shape[1], max(1, excess.shape[1] // BLOCKS))
            self._sums[number] = _standard(np.add.reduceat(excess, edges, axis=1))
            self.moments[number] = tuple(luck.moments(row) for row in excess)

    @property
    def sharpes(self) -> Array:
        """Return the Sharpe ratios per bar: (n, φ), in the order in which trials were added."""
        return np.array([[one.sharpe for one in moments] for moments in self.moments.values()])

    def deflate(
        self,
        moments: Sequence[Moments],
        trials: int,
        diversification: Array | None = None,
        *,
        evaluations: float = 1.0,
    ) -> Deflation:
        """Return the DSR of a back-test selected from `trials` trials.

        Args:
            moments: one per path.
            trials: all trials of the search, including pruned and failed ones.
            diversification: (φ,), for several trials together.
            evaluations: of a trial, on average (`mean_evaluations`).
        """
        links, correlation = self._links()
        links = luck.extended(links, max(trials, len(links), 1))
        # A search chooses at every rung among what it sees there, so each evaluation is a chance.
        best = luck.best_by_luck(luck.evaluated(links, round(len(links) * evaluations)))
        factors = np.ones(len(moments)) if diversification is None else diversification
        # Dividing the capital lowers the deviation by `factor`, which raises the Sharpe ratio that
        # luck alone shows by the same factor.
        by_path = tuple(
            best.probability(one.score(float(factor)))
            for one, factor in zip(moments, factors, strict=True)
        )
        path = median_path(moments, factors)
        own, factor = moments[path], float(factors[path])
        needed = factor * own.ratio(best.needed)
        return Deflation(
            by_path=by_path,
            path=path,
            moments=own,
            correlation=correlation,
            luck=factor * own.ratio(best.mean),
            trials=trials,
            effective=best.effective,
            needed=needed,
            # Errors fall with the square root of the number of bars.
            record=own.n * (needed / own.sharpe) ** 2 if own.sharpe > 0.0 else math.inf,
            diversification=factor,
        )

    def _links(self) -> tuple[tuple[luck.Link, ...], float]:
        """Return the trials' links in the order of their numbers, and their mean correlation."""
        with self._lock:
            numbers = sorted(self._sums)
            if len(numbers) < 2:
                return (luck.Link(),) * len(numbers), 0.0
            units = np.stack([self._sums[number] for number in numbers], axis=1)
            found = [self.moments[number] for number in numbers]
        correlations = np.mean(units @ units.transpose(0, 2, 1), axis=0)  # over the paths
        n = len(numbers)
        mean = (np.sum(correlations) - np.trace(correlations)) / (n * (n - 1))
        ratios = np.array([np.mean([path.sharpe for path in paths]) for paths in found])
        scores = np.array([np.mean([path.score() for path in paths]) for paths in found])
        return luck.links_of(correlations, ratios, scores), float(mean)


def mean_evaluations(reports: Sequence[int]) -> float:
    """Return the mean number of evaluations of a finished trial, at least 1.

    Args:
        reports: number of rungs that each finished trial has reported; a trial without counts as 1.
    """
    return sum(max(1, count) for count in reports) / len(reports) if reports else 1.0


def read_columns(path: Path, names: Sequence[str]) -> tuple[dict[str, Array], NDArray[np.int64]]:
    """Read columns of the back-test paths that a trial stored.

    Returns:
        The columns, (φ, T) each, and the opening times of their bars, (T,) seconds.

    Raises:
        ValueError: the file has no paths, or they are on different bars.
        KeyError: a column is missing.
        OSError: the file cannot be read.
    """
    import pyarrow as pa  # not at the top: the other functions do not need it
    import pyarrow.parquet

    def numbers(column: Any, kind: Any) -> NDArray[Any]:
        # Arrow's `to_numpy`, and its `read_table`, import pandas, which takes long.
        return np.from_dlpack(column.cast(kind).combine_chunks())

    with pyarrow.parquet.ParquetFile(path) as file:
        table = file.read(columns=["path", "date", *names])
    paths = numbers(table["path"], pa.int64())
    time = numbers(table["date"].cast(pa.timestamp("s", "UTC"), safe=False), pa.int64())
    count = len(np.unique(paths))
    if count == 0 or len(paths) % count:
        raise ValueError(f"{path} has no paths of one length")
    order = np.lexsort((time, paths))
    paths, time = (column[order].reshape(count, -1) for column in (paths, time))
    if not (time == time[0]).all() or not (paths == np.arange(count)[:, None]).all():
        raise ValueError(f"the paths in {path} are not on one calendar")
    filled = {
        name: table[name].fill_null(np.nan) if table[name].null_count else table[name]
        for name in names
    }
    values = {name: numbers(column, pa.float64()) for name, column in filled.items()}
    return {name: one[order].reshape(count, -1) for name, one in values.items()}, time[0]


def read_excess(path: Path) -> tuple[Array, NDArray[np.int64]]:
    """Return (φ, T) returns in excess of equal weight and (T,) times. Raises as `read_columns`."""
    columns, time = read_columns(path, ("returns", "equal_weight"))
    return columns["returns"] - columns["equal_weight"], time


def _standard(rows: Array) -> Array:
    """Centre rows and scale them to unit length.

    Rows that do not vary become 0, that is, uncorrelated with all others.
    """
    centred = rows - np.mean(rows, axis=1, keepdims=True)
    norm = np.sqrt(np.sum(centred**2, axis=1, keepdims=True))
    flat = norm <= 1e-12 * np.sqrt(np.sum(rows**2, axis=1, keepdims=True))
    return np.where(flat, 0.0, centred / np.where(flat, 1.0, norm))
