"""What all trials of a study say together: how many there were, how much they differ, and what luck alone would show.

From the paths that every COMPLETE trial stored, in excess of equal weight. Annual figures are per bar ones times the
root of the bars of a year.
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

from deploy.promotion.overfitting import BLOCKS, Overfitting, cscv
from envs.crypto import luck
from envs.crypto.luck import Moments
from envs.crypto.metrics import Metrics, PathTrades
from envs.crypto.selection import PATHS_FILE, Deflation, TrialReturns, read_columns, trial_folder
from envs.crypto.timeframe import bars_per_year

Array = NDArray[np.float64]
PATH_COLUMNS = ("returns", "equal_weight", "trades", "fees", "notional", "exposure")


@dataclass(frozen=True, eq=False)
class Backtest:
    """A trial's back-test paths in figures.

    metrics, moments: one per path, the latter of its returns in excess of equal weight. excess: (T,) those returns,
    mean over paths.
    """

    metrics: tuple[Metrics, ...]
    moments: tuple[Moments, ...]
    excess: Array


@dataclass(frozen=True, eq=False)
class Combination:
    """Several trials that share the capital, as one back-test: share times return of each, summed bar by bar. Trades
    are those of the trial that traded least, and fees those before netting.

    paths, time: (φ, T) and (T,), as `read_paths` gives them. diversification: (φ,) by path, D = Σ share·deviation of a
    trial's excess return / deviation of the whole's, at least 1. Whatever trials and shares are chosen, the whole's
    Sharpe ratio is their mean, weighted by share·deviation, times D, so never above D times that of the luckiest of all
    trials: D·SR0 is what luck shows.
    """

    paths: PathTrades
    time: NDArray[np.int64]
    backtest: Backtest
    diversification: Array


@dataclass(frozen=True, eq=False)
class SearchStatistics:
    """A study's trials as the statistics of selection see them.

    trials: N, all that finished in any way. backtests: by number, of the COMPLETE trials whose paths could be read.
    unreadable: by number, why a COMPLETE trial's could not. returns: those of `backtests`. timeframe: of the bars.
    """

    trials: int
    backtests: Mapping[int, Backtest]
    unreadable: Mapping[int, str]
    returns: TrialReturns
    timeframe: str

    @property
    def bars(self) -> int:
        """T, bars of a path."""
        return len(self.returns.time)

    @property
    def annual(self) -> float:
        """What makes a Sharpe ratio per bar an annual one."""
        return math.sqrt(bars_per_year(self.timeframe))

    @cached_property
    def sharpes(self) -> Array:
        """(n, φ) Sharpe ratios of excess returns per bar, in the order of `backtests`."""
        return self.returns.sharpes

    @cached_property
    def overfitting(self) -> Overfitting | None:
        """PBO over the trials that reached the final rung; None for fewer than two, or too few bars."""
        return self._cscv(1)

    def overfitting_of(self, chosen: int) -> Overfitting | None:
        """The same where the best `chosen` trials are taken together; None, too, for fewer than these."""
        return self.overfitting if chosen == 1 else self._cscv(chosen)

    def _cscv(self, chosen: int) -> Overfitting | None:
        if len(self.backtests) < max(2, chosen) or self.bars < 2 * BLOCKS:
            return None
        return cscv(
            np.stack([backtest.excess for backtest in self.backtests.values()], axis=1),
            chosen=chosen,
        )

    def deflation(self, number: int) -> Deflation | None:
        """The deflated Sharpe ratio of a trial; None where its paths could not be read."""
        backtest = self.backtests.get(number)
        return None if backtest is None else self.deflate(backtest)

    def deflate(self, backtest: Backtest, diversification: Array | None = None) -> Deflation:
        """The deflated Sharpe ratio of a back-test that was chosen from these trials. diversification: (φ,), of several
        trials together.
        """
        return self.returns.deflate(backtest.moments, self.trials, diversification)

    def describe(
        self,
        trials: Sequence[int] = (),
        deflation: Deflation | None = None,
        overfitting: Overfitting | None = None,
    ) -> dict[str, Any]:
        """The figures for JSON. trials: those that they are to be about, and what is known of them."""
        found = overfitting or self.overfitting
        told: dict[str, Any] = {
            "trials": self.trials,
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
                "sharpe": self.annual * deflation.moments.sharpe,
                "skewness": deflation.moments.skewness,
                "kurtosis": deflation.moments.kurtosis,
                "luck_sharpe": self.annual * deflation.luck,
                "needed_sharpe": self.annual * deflation.needed,
                "effective_trials": deflation.effective,
                "correlation": deflation.correlation,
                "sharpe_deviation": self.annual * math.sqrt(deflation.variance),
                "track_record_bars": deflation.record,
                "diversification": deflation.diversification,
            }
        return told


def read_paths(path: Path) -> tuple[PathTrades, NDArray[np.int64]]:
    """The back-test paths that a trial stored, (φ, T) arrays, and the opens of their bars, (T,) seconds. Raises as
    `read_columns`.
    """
    columns, time = read_columns(path, PATH_COLUMNS)
    return PathTrades(**columns), time


def read_search(
    complete: Sequence[FrozenTrial], finished: int, run_dir: Path, timeframe: str
) -> SearchStatistics:
    """Read the paths of all COMPLETE trials. finished: trials that ended in any way. run_dir: the study's."""
    backtests: dict[int, Backtest] = {}
    unreadable: dict[int, str] = {}
    returns = TrialReturns()
    for trial in complete:
        try:
            paths, time = read_paths(_paths_file(trial, run_dir))
            metrics = tuple(paths.summarise(timeframe))
            excess = paths.returns - paths.equal_weight
            returns.add(trial.number, excess, time)
        except (OSError, ValueError, KeyError) as error:
            unreadable[trial.number] = f"its back-test paths cannot be read: {error}"
            continue
        backtests[trial.number] = Backtest(
            metrics, returns.moments[trial.number], np.mean(excess, axis=0)
        )
    return SearchStatistics(finished, backtests, unreadable, returns, timeframe)


def combine(
    trials: Sequence[FrozenTrial], shares: Sequence[float], run_dir: Path, timeframe: str
) -> Combination:
    """Trials that share the capital, as one back-test. Raises ValueError or OSError where their paths cannot be read or
    do not fit together.
    """
    found = [read_paths(_paths_file(trial, run_dir)) for trial in trials]
    if any(not np.array_equal(time, found[0][1]) for _, time in found):
        raise ValueError("the trials' paths are on different bars")
    paths = [one for one, _ in found]

    def weighted(name: str) -> Array:
        return np.asarray(
            sum(share * getattr(one, name) for share, one in zip(shares, paths, strict=True))
        )

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
    apart = sum(
        share * np.std(one.returns - one.equal_weight, axis=1)
        for share, one in zip(shares, paths, strict=True)
    )
    together = np.std(excess, axis=1)
    ratio = np.where(together > 0.0, apart / np.where(together > 0.0, together, 1.0), 1.0)
    moments = tuple(luck.moments(row) for row in excess)
    backtest = Backtest(tuple(whole.summarise(timeframe)), moments, np.mean(excess, axis=0))
    return Combination(whole, found[0][1], backtest, np.maximum(ratio, 1.0))


def _paths_file(trial: FrozenTrial, run_dir: Path) -> Path:
    return run_dir / trial_folder(trial.user_attrs, trial.number) / PATHS_FILE
