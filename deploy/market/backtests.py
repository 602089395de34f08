"""Statistics of all trials of a study together: their number, their differences, expected luck.

They are computed from the back-test paths that every COMPLETE trial stored, in excess of equal
weight. Annual ratios are ratios per bar times the square root of the number of bars in a year.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.trial import FrozenTrial

from sweepd.deploy.market.rules import Selection
from sweepd.deploy.promotion.overfitting import BLOCKS, Overfitting, cscv
from sweepd.envs.crypto.data.timeframe import bars_per_year
from sweepd.envs.crypto.scoring import luck
from sweepd.envs.crypto.scoring.figures import MEDIAN_RATIO
from sweepd.envs.crypto.scoring.luck import Moments
from sweepd.envs.crypto.scoring.metrics import TRADE_COLUMNS, Metrics, PathTrades
from sweepd.envs.crypto.scoring.selection import PATHS_FILE, Deflation, TrialReturns, read_columns
from sweepd.optimize.study.record.trials import TrialRecord

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Backtest:
    """Statistics of a trial's back-test paths.

    Attributes:
        metrics: one per path.
        moments: of the returns in excess of equal weight, one per path.
        excess: (T,) those returns, mean over paths.
        deviations: standard deviations of those returns per bar, one per path.
    """

    metrics: tuple[Metrics, ...]
    moments: tuple[Moments, ...]
    excess: Array
    deviations: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Combination:
    """Several trials that share the capital, as one back-test of φ paths and T bars.

    Its returns are the trials' returns weighted by share, bar by bar. Its trades are those of the
    trial that traded least on the path, and its fees are those before orders are netted.

    The diversification of a path is D = Σ share·(deviation of a trial's excess return) divided by
    the deviation of the combined excess return; D ≥ 1. The combined Sharpe ratio is D times the
    mean of the trials' ratios weighted by share·deviation. So whatever trials and shares are
    chosen, it is at most D times the ratio of the luckiest of all trials, and D·SR0 is its expected
    maximum under luck.

    Attributes:
        paths: (φ, T) columns.
        time: (T,) opens of the bars, seconds.
        backtest: its statistics.
        diversification: (φ,) D of each path.
    """

    paths: PathTrades
    time: NDArray[np.int64]
    backtest: Backtest
    diversification: Array


@dataclass(frozen=True, eq=False)
class SearchStatistics:
    """A study's trials for the statistics of selection.

    Attributes:
        trials: N, the number of finished trials in any state.
        backtests: of the COMPLETE trials with readable paths, by number.
        unreadable: why the paths of other COMPLETE trials cannot be read, by number.
        returns: the returns of `backtests`.
        timeframe: length of a bar.
        evaluations: of a trial, on average.
    """

    trials: int
    backtests: Mapping[int, Backtest]
    unreadable: Mapping[int, str]
    returns: TrialReturns
    timeframe: str
    evaluations: float = 1.0

    @property
    def bars(self) -> int:
        """T, the number of bars of a path."""
        return len(self.returns.time)

    @property
    def annual(self) -> float:
        """Factor that makes a Sharpe ratio per bar an annual one."""
        return math.sqrt(bars_per_year(self.timeframe))

    @cached_property
    def overfitting(self) -> Overfitting | None:
        """PBO of the trials at the final rung; None with fewer than two trials or too few bars."""
        return self._cscv(1)

    def overfitting_of(self, chosen: int) -> Overfitting | None:
        """PBO if the best `chosen` trials are taken together; None with fewer trials."""
        return self.overfitting if chosen == 1 else self._cscv(chosen)

    def _cscv(self, chosen: int) -> Overfitting | None:
        if len(self.backtests) < max(2, chosen) or self.bars < 2 * BLOCKS:
            return None
        return cscv(
            # CSCV has one series per trial: the mean over its paths.
            np.stack([backtest.excess for backtest in self.backtests.values()], axis=1),
            chosen=chosen,
        )

    def deflate(self, backtest: Backtest, diversification: Array | None = None) -> Deflation:
        """The deflated Sharpe ratio of a back-test that was chosen from these trials.

        Args:
            backtest: the back-test.
            diversification: (φ,) of several trials together, see `Combination`.
        """
        return self.returns.deflate(
            backtest.moments, self.trials, diversification, evaluations=self.evaluations
        )

    def describe(self, trials: Sequence[int], selection: Selection) -> dict[str, Any]:
        """The statistics for JSON.

        Args:
            trials: numbers of the candidate's trials.
            selection: the statistics about the candidate.
        """
        found = selection.overfitting or self.overfitting
        deflation = selection.deflation
        told: dict[str, Any] = {
            "trials": self.trials,
            "evaluations_per_trial": self.evaluations,
            "reached_the_final_rung": len(self.backtests),
            "unreadable": {str(trial): why for trial, why in self.unreadable.items()},
            "bars": self.bars,
            "minimum_backtest_years": luck.minimum_backtest_years(self.trials),
            "pbo": None if found is None else found.pbo,
            "pbo_slope": None if found is None else found.slope,
            "pbo_loss": None if found is None else found.loss,
        }
        if deflation is not None:
            told |= {
                "trial": trials[0],
                "trials_chosen": list(trials),
                "dsr": deflation.probability,
                "dsr_by_path": list(deflation.by_path),
                "median_path": deflation.path,
                MEDIAN_RATIO: self.annual * deflation.moments.sharpe,
                "information_ratio_error": self.annual * deflation.moments.error,
                "luck_information_ratio": self.annual * deflation.luck,
                "needed_information_ratio": self.annual * deflation.needed,
                "effective_trials": deflation.effective,
                "correlation": deflation.correlation,
                "track_record_bars": deflation.record,
                "diversification": deflation.diversification,
            }
        return told


def read_paths(path: Path) -> tuple[PathTrades, NDArray[np.int64]]:
    """Read the back-test paths of a trial; raises like `read_columns`.

    Returns:
        The columns, (φ, T) each, and the opens of the bars, (T,) seconds.
    """
    columns, time = read_columns(path, TRADE_COLUMNS)
    return PathTrades(**columns), time


def read_search(
    complete: Sequence[FrozenTrial],
    finished: int,
    run_dir: Path,
    timeframe: str,
    evaluations: float = 1.0,
) -> SearchStatistics:
    """Read the paths of all COMPLETE trials.

    Args:
        complete: the trials.
        finished: number of finished trials in any state.
        run_dir: folder of the study.
        timeframe: length of a bar.
        evaluations: of a trial, on average.
    """
    backtests: dict[int, Backtest] = {}
    unreadable: dict[int, str] = {}
    returns = TrialReturns()
    for trial in complete:
        try:
            paths, time = read_paths(paths_file(trial, run_dir))
            metrics = tuple(paths.summarise(timeframe))
            excess = paths.returns - paths.equal_weight
            returns.add(trial.number, excess, time)
        except (OSError, ValueError, KeyError) as error:
            unreadable[trial.number] = f"its back-test paths cannot be read: {error}"
            continue
        backtests[trial.number] = Backtest(
            metrics, returns.moments[trial.number], np.mean(excess, axis=0), _deviations(excess)
        )
    return SearchStatistics(finished, backtests, unreadable, returns, timeframe, evaluations)


def combine(
    trials: Sequence[FrozenTrial], shares: Sequence[float], run_dir: Path, timeframe: str
) -> Combination:
    """Combine trials that share the capital into one back-test.

    Raises:
        ValueError: the trials' paths are on different bars.
        OSError: a file of paths cannot be read.
    """
    found = [read_paths(paths_file(trial, run_dir)) for trial in trials]
    if any(not np.array_equal(time, found[0][1]) for _, time in found):
        raise ValueError("the trials' paths are on different bars")
    paths = [one for one, _ in found]

    def weighted(name: str) -> Array:
        return np.asarray(
            sum(share * getattr(one, name) for share, one in zip(shares, paths, strict=True))
        )

    # Trades are evidence for the rule "enough trades"; the sum over trials would overstate it.
    trades = np.stack([one.trades for one in paths])  # (n, φ, T)
    quietest = trades.sum(axis=2).argmin(axis=0)
    whole = PathTrades(
        returns=weighted("returns"),
        equal_weight=paths[0].equal_weight,
        trades=trades[quietest, np.arange(trades.shape[1])],
        fees=weighted("fees"),
        notional=weighted("notional"),
        exposure=weighted("exposure"),
    )
    excess = whole.returns - whole.equal_weight
    # D = Σ share·σ_i / σ of the sum, see `Combination`; 1 if the sum does not vary.
    apart = sum(
        share * np.std(one.returns - one.equal_weight, axis=1)
        for share, one in zip(shares, paths, strict=True)
    )
    together = np.std(excess, axis=1)
    ratio = np.where(together > 0.0, apart / np.where(together > 0.0, together, 1.0), 1.0)
    moments = tuple(luck.moments(row) for row in excess)
    backtest = Backtest(
        tuple(whole.summarise(timeframe)), moments, np.mean(excess, axis=0), _deviations(excess)
    )
    # σ of a weighted sum is at most the weighted sum of the σ, so D < 1 is rounding only.
    return Combination(whole, found[0][1], backtest, np.maximum(ratio, 1.0))


def _deviations(excess: Array) -> tuple[float, ...]:
    return tuple(map(float, np.std(excess, axis=1, ddof=1)))


def paths_file(trial: FrozenTrial, run_dir: Path) -> Path:
    """Return the file of a trial's back-test paths."""
    folder = TrialRecord.from_attributes(trial.user_attrs).folder(trial.number)
    return run_dir / folder / PATHS_FILE
