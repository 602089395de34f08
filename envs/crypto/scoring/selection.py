"""Selection statistics of a search: the spread and correlation of its trials, and the deflated SR.

All Sharpe ratios here are information ratios: of returns in excess of equal weight, per bar. The
search shows these figures while it runs and the gate tests them afterwards, both from the paths
that every complete trial stored.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from envs.crypto.scoring import luck
from envs.crypto.scoring.luck import Moments
from envs.support.study_record import TrialRecord

Array = NDArray[np.float64]
PATHS_FILE = "paths.parquet"


@dataclass(frozen=True)
class Deflation:
    """The deflated Sharpe ratio of one trial, or of several that divide the capital.

    Attributes:
        by_path: DSR per path.
        path: index of the path with the median DSR (the lower of the two middle ones if their
            number is even), to which the other attributes refer.
        moments: of the path's excess returns.
        variance: V, over the trials.
        correlation: mean correlation of the trials' returns.
        luck: SR0, per bar.
        trials: N.
        effective: N_eff.
        needed: Sharpe ratio per bar at which DSR would be 0.95, given these returns' skewness and
            kurtosis.
        record: bars needed at the present Sharpe ratio.
        diversification: factor on a single trial's SR0 (`deploy.market.backtests.Combination`).
    """

    by_path: tuple[float, ...]
    path: int
    moments: Moments
    variance: float
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


class TrialReturns:
    """Excess returns of a search's complete trials, reduced to what the DSR needs. Thread-safe.

    Attributes:
        moments: by trial number, one per path (φ).
        time: (T,) opening times of a path's bars, in seconds; empty before the first trial.
    """

    def __init__(self) -> None:
        self.moments: dict[int, tuple[Moments, ...]] = {}
        self.time: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._sums: Array = np.empty((0, 0))  # sum of the trials' standardised returns, (φ, T)
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
                self.time, self._sums = time, np.zeros(excess.shape)
            elif excess.shape != self._sums.shape or not np.array_equal(time, self.time):
                raise ValueError("its paths are on other bars than those of the other trials")
            # The sum of the unit vectors is all that `correlation` needs, so the returns themselves
            # are not kept: memory does not grow with the number of trials.
            self._sums += _standard(excess)
            self.moments[number] = tuple(luck.moments(row) for row in excess)

    @property
    def sharpes(self) -> Array:
        """Return the Sharpe ratios per bar: (n, φ), in the order in which trials were added."""
        return np.array([[one.sharpe for one in moments] for moments in self.moments.values()])

    @property
    def correlation(self) -> Array:
        """Return the mean correlation of two trials' returns by path: (φ,), clipped to 0 … 1.

        For unit vectors z_i, |Σ z_i|² = n + Σ_{i≠j} ρ_ij, so one sum over trials suffices instead
        of all pairs.
        """
        n = len(self.moments)
        if n < 2:
            return np.zeros(len(self._sums))
        return np.asarray(np.clip((np.sum(self._sums**2, axis=1) - n) / (n * (n - 1)), 0.0, 1.0))

    def variance(self, path: int) -> float:
        """Return V, the variance of the trials' Sharpe ratios on a path.

        With fewer than two trials 1 / (T - 1), the variance without any skill.
        """
        return (
            float(np.var(self.sharpes[:, path], ddof=1))
            if len(self.moments) > 1
            else 1.0 / (len(self.time) - 1)
        )

    def deflate(
        self, moments: Sequence[Moments], trials: int, diversification: Array | None = None
    ) -> Deflation:
        """Return the DSR of a back-test selected from `trials` trials.

        Args:
            moments: one per path.
            trials: all trials of the search, including pruned and failed ones.
            diversification: (φ,), for several trials together.
        """
        # N_eff and V are estimated per path, since each path comes from other members.
        correlation = self.correlation
        effective = [luck.effective_trials(trials, float(rho)) for rho in correlation]
        spread = np.ones(len(effective)) if diversification is None else diversification
        variances = [self.variance(path) for path in range(len(effective))]
        # Dividing the capital lowers the deviation by `ratio`, which raises the Sharpe ratio that
        # luck alone shows by the same factor: SR0 · ratio, hence V · ratio².
        enlarged = [
            variance * float(ratio) ** 2 for variance, ratio in zip(variances, spread, strict=True)
        ]
        by_path = tuple(
            luck.deflated_sharpe(one, variance, count)
            for one, variance, count in zip(moments, enlarged, effective, strict=True)
        )
        # A stable sort, so that ties give the same path on every machine.
        path = int(np.argsort(by_path, kind="stable")[(len(by_path) - 1) // 2])
        own, expected = moments[path], luck.luck_sharpe(enlarged[path], effective[path])
        return Deflation(
            by_path=by_path,
            path=path,
            moments=own,
            variance=variances[path],
            correlation=float(correlation[path]),
            luck=expected,
            trials=trials,
            effective=effective[path],
            needed=luck.needed_sharpe(
                own.n, effective[path], enlarged[path], skewness=own.skewness, kurtosis=own.kurtosis
            ),
            record=luck.minimum_track_record(own, expected),
            diversification=float(spread[path]),
        )


def trial_folder(attributes: Mapping[str, Any], number: int) -> str:
    """Return a trial's folder in the study's run directory, given the trial's user attributes."""
    return TrialRecord.from_attributes(attributes).folder(number)


def read_columns(path: Path, names: Sequence[str]) -> tuple[dict[str, Array], NDArray[np.int64]]:
    """Read columns of the back-test paths that a trial stored.

    Returns:
        The columns, (φ, T) each, and the opening times of their bars, (T,) seconds.

    Raises:
        ValueError: the file has no paths, or they are on different bars.
        OSError: the file cannot be read.
    """
    table = pd.read_parquet(path, columns=["path", "date", *names])
    count = int(table["path"].nunique())
    if count == 0 or len(table) % count:
        raise ValueError(f"{path} has no paths of one length")
    table = table.sort_values(["path", "date"], kind="stable")
    time = (
        table["date"]
        .dt.tz_convert(None)
        .to_numpy(dtype="datetime64[s]")
        .astype(np.int64)
        .reshape(count, -1)
    )
    if (
        not (time == time[0]).all()
        or not (table["path"].to_numpy().reshape(count, -1) == np.arange(count)[:, None]).all()
    ):
        raise ValueError(f"the paths in {path} are not on one calendar")
    return {
        name: table[name].to_numpy(dtype=np.float64).reshape(count, -1) for name in names
    }, time[0]


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
