"""What the trials of a search say together about luck: how much their Sharpe ratios differ, how alike their returns
are, and what the chosen one must show to be told from luck.

All Sharpe ratios here are of returns in excess of equal weight (information ratios), per bar. The search shows these
figures while it runs and the gate tests them afterwards, both from the paths that every complete trial stored.
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

from envs.crypto import luck
from envs.crypto.luck import Moments
from envs.support.study_record import TrialRecord

Array = NDArray[np.float64]
PATHS_FILE = "paths.parquet"


@dataclass(frozen=True)
class Deflation:
    """The deflated Sharpe ratio of one trial, or of several that share the capital.

    by_path: DSR per path. path: the median one (of an even number, the lower of the two in the middle), which the
    rest is about: moments of its excess returns; variance and correlation over the trials; luck: SR0, per bar.
    trials, effective: N and N_eff. needed: the Sharpe ratio per bar at which DSR would be .95 with the skewness and
    kurtosis of these returns; record: bars needed at the present one. diversification: what the luck of one trial is
    multiplied by (see `deploy.market.backtests.Combination`).
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
        """DSR of the median path."""
        return self.by_path[self.path]


class TrialReturns:
    """The excess returns of a search's complete trials, reduced to what the deflated Sharpe ratio needs.

    moments: by trial number, one per path (φ). time: (T,) opens of the bars of a path, seconds; empty before the first
    trial.
    """

    def __init__(self) -> None:
        self.moments: dict[int, tuple[Moments, ...]] = {}
        self.time: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._sums: Array = np.empty((0, 0))  # of the trials' standardised returns, (φ, T)
        self._lock = threading.Lock()

    def add(self, number: int, excess: Array, time: NDArray[np.int64]) -> None:
        """Add a trial's (φ, T) excess returns; a trial that was added before changes nothing. Raises ValueError where
        they are on other bars than those of the other trials.
        """
        with self._lock:
            if number in self.moments:
                return
            if not self.moments:
                self.time, self._sums = time, np.zeros(excess.shape)
            elif excess.shape != self._sums.shape or not np.array_equal(time, self.time):
                raise ValueError("its paths are on other bars than those of the other trials")
            self._sums += _standard(excess)
            self.moments[number] = tuple(luck.moments(row) for row in excess)

    @property
    def sharpes(self) -> Array:
        """(n, φ) Sharpe ratios per bar, in the order in which the trials were added."""
        return np.array([[one.sharpe for one in moments] for moments in self.moments.values()])

    @property
    def correlation(self) -> Array:
        """(φ,) mean correlation of two trials' returns, by path, held to 0 … 1."""
        # From one sum over trials: |Σ z|² = n + Σ of ρ over ordered pairs, for unit vectors z.
        n = len(self.moments)
        if n < 2:
            return np.zeros(len(self._sums))
        return np.asarray(np.clip((np.sum(self._sums**2, axis=1) - n) / (n * (n - 1)), 0.0, 1.0))

    def variance(self, path: int) -> float:
        """V: of the trials' Sharpe ratios on a path; with fewer than two of them 1/(T-1), as without any skill."""
        return (
            float(np.var(self.sharpes[:, path], ddof=1))
            if len(self.moments) > 1
            else 1.0 / (len(self.time) - 1)
        )

    def deflate(
        self, moments: Sequence[Moments], trials: int, diversification: Array | None = None
    ) -> Deflation:
        """The deflated Sharpe ratio of a back-test that was chosen from `trials` trials, pruned and failed ones
        included. moments: one per path. diversification: (φ,), of several trials together.
        """
        correlation = self.correlation
        effective = [luck.effective_trials(trials, float(rho)) for rho in correlation]
        spread = np.ones(len(effective)) if diversification is None else diversification
        variances = [self.variance(path) for path in range(len(effective))]
        enlarged = [
            variance * float(ratio) ** 2 for variance, ratio in zip(variances, spread, strict=True)
        ]
        by_path = tuple(
            luck.deflated_sharpe(one, variance, count)
            for one, variance, count in zip(moments, enlarged, effective, strict=True)
        )
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
    """A trial's folder in the study's run directory. attributes: its user attributes."""
    members = TrialRecord.from_attributes(attributes).members
    return f"trial-{number:05d}" if members is None else str(Path(members.path).parent)


def read_columns(path: Path, names: Sequence[str]) -> tuple[dict[str, Array], NDArray[np.int64]]:
    """Columns of the back-test paths that a trial stored, (φ, T) each, and the opens of their bars, (T,) seconds.

    Raises ValueError where the file has no path or its paths are not on one calendar, and OSError where it cannot be
    read.
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
    """(φ, T) returns in excess of equal weight, and (T,) opens. Raises as `read_columns`."""
    columns, time = read_columns(path, ("returns", "equal_weight"))
    return columns["returns"] - columns["equal_weight"], time


def _standard(rows: Array) -> Array:
    """Rows centred, of length 1; those that do not vary are 0, as if uncorrelated with everything."""
    centred = rows - np.mean(rows, axis=1, keepdims=True)
    norm = np.sqrt(np.sum(centred**2, axis=1, keepdims=True))
    flat = norm <= 1e-12 * np.sqrt(np.sum(rows**2, axis=1, keepdims=True))
    return np.where(flat, 0.0, centred / np.where(flat, 1.0, norm))
