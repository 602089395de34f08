"""Metrics of a sequence of per-bar returns, used by search, gate, back-test and paper trader.

Inputs are simple returns per bar, r_t = V_t / V_{t-1} - 1, as float64. Bars per year follow from
the timeframe (a year has 365.25 days, or the sessions of a calendar), never from the length of the
test. The risk-free rate is 0. Standard deviations are those of a sample (n - 1). No metric is NaN:
a ratio with a zero denominator is 0, and `Metrics.reason` says so.

Sources: W. F. Sharpe 1994, "The Sharpe Ratio" (Sharpe and information ratio); F. A. Sortino and
L. N. Price 1994, "Performance Measurement in a Downside Risk Framework"; M. C. Jensen 1968, "The
Performance of Mutual Funds in the Period 1945–1964" (alpha).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray

from sweepd.envs.crypto.data.timeframe import bars_per_year

Array = NDArray[np.float64]

MINIMUM_TRADES = 30
MINIMUM_EXPOSURE = 0.05
ZERO_VARIANCE = "zero variance"
NO_LOSS = "no losing bar"
LOG_FLOOR = 1e-12  # of a value ratio
ROUNDING = 1e-15  # rounding error of a ratio of two money values near 1


@dataclass(frozen=True)
class Metrics:
    """Metrics of one path or window. Fractions are 0 … 1, returns are fractions (0.1 is 10%).

    Attributes:
        sharpe: annualised Sharpe ratio of the returns.
        sortino: annualised Sortino ratio of the returns.
        max_drawdown: largest fall from a peak, as a fraction of the peak.
        total_return: growth over the whole length.
        annual_return: the same, compounded to a year.
        turnover: notional traded per year, in portfolio values.
        fees: sum of the fees of all bars, each as a fraction of the portfolio's value at that time.
        trades: number of filled orders.
        hit_rate: fraction of bars with a gain among bars with a return other than 0.
        exposure: mean fraction of the value that is not in cash.
        alpha: Jensen's alpha against equal weight, per year.
        beta: beta against equal weight.
        information_ratio: annualised Sharpe ratio of the returns in excess of equal weight, which
            the gate's deflated Sharpe ratio tests.
        excess_growth: log growth minus that of equal weight, per year.
        equal_weight_sharpe: Sharpe ratio of equal weight over the same bars.
        equal_weight_return: total return of equal weight.
        equal_weight_drawdown: maximum drawdown of equal weight.
        bars: number of returns.
        reason: why a ratio has no denominator and is 0; "" otherwise.
    """

    sharpe: float
    sortino: float
    max_drawdown: float
    total_return: float
    annual_return: float
    turnover: float
    fees: float
    trades: int
    hit_rate: float
    exposure: float
    alpha: float
    beta: float
    information_ratio: float
    excess_growth: float
    equal_weight_sharpe: float
    equal_weight_return: float
    equal_weight_drawdown: float
    bars: int
    reason: str

    def to_dict(self) -> dict[str, float | int | str]:
        """Return the metrics as a dict for JSON and trial attributes."""
        return asdict(self)


def sharpe(returns: Array, per_year: float) -> float:
    """Return the annualised Sharpe ratio of (n,) returns (Sharpe 1994).

        √per_year · mean(r) / std(r),  std with n - 1

    0 if the variance is zero or n < 2.
    """
    # Mean and variance both grow with time if returns are uncorrelated, hence the factor √per_year.
    deviation = _deviation(returns)
    return math.sqrt(per_year) * float(np.mean(returns)) / deviation if deviation > 0.0 else 0.0


def sortino(returns: Array, per_year: float) -> float:
    """Return the annualised Sortino ratio with target 0 (Sortino and Price 1994).

        √per_year · mean(r) / √(mean(min(r, 0)²)),  means over all bars

    0 if no bar lost.
    """
    if returns.size == 0:
        return 0.0
    # The downside deviation counts bars without a loss as 0, hence the mean over all bars.
    downside = math.sqrt(float(np.mean(np.square(np.minimum(returns, 0.0)))))
    return math.sqrt(per_year) * float(np.mean(returns)) / downside if downside > ROUNDING else 0.0


def equity(returns: Array) -> Array:
    """Return the (n + 1,) value of one unit compounded over the returns, starting with 1."""
    return np.concatenate([[1.0], np.cumprod(1.0 + returns)])


def max_drawdown(returns: Array) -> float:
    """Return the maximum drawdown, a fraction from 0 to 1.

        max over t of 1 - E_t / max_{s ≤ t} E_s

    with E the compounded equity from 1. The start counts as a peak.
    """
    # `accumulate` gives the highest value so far, the peak that each fall is measured from.
    value = equity(returns)
    return float(np.max(1.0 - value / np.maximum.accumulate(value)))


def total_return(returns: Array) -> float:
    """Return ∏(1 + r) - 1 over the whole length."""
    return float(equity(returns)[-1]) - 1.0


def annual_return(returns: Array, per_year: float) -> float:
    """Return (∏(1 + r))^(per_year / n) - 1: -1 after a total loss, 0 without bars."""
    if returns.size == 0:
        return 0.0
    final = float(equity(returns)[-1])
    if final <= 0.0:
        return -1.0
    # Compounding a large gain of a few bars to a year would overflow: the exponent is limited to
    # 700, since e^700 is still finite.
    return math.expm1(min(math.log(final) * per_year / returns.size, 700.0))


def hit_rate(returns: Array) -> float:
    """Return the fraction of bars with r > 0 among those with r ≠ 0; 0 if there are none."""
    # Bars spent in cash have a return of exactly 0 and are neither hits nor misses.
    moved = int(np.count_nonzero(returns))
    return int(np.count_nonzero(returns > 0.0)) / moved if moved else 0.0


def alpha_beta(returns: Array, benchmark: Array, per_year: float) -> tuple[float, float]:
    """Return Jensen's alpha per year and beta (Jensen 1968).

    Least squares of r = α / per_year + β · b + ε. β is 0 if the benchmark does not vary.
    """
    if returns.size == 0:
        return 0.0, 0.0
    beta = 0.0
    if _deviation(benchmark) > 0.0:
        # β = cov(b, r) / var(b); the factors 1 / (n - 1) cancel.
        centred = benchmark - np.mean(benchmark)
        beta = float(centred @ (returns - np.mean(returns)) / (centred @ centred))
    return per_year * float(np.mean(returns) - beta * np.mean(benchmark)), beta


def information_ratio(returns: Array, benchmark: Array, per_year: float) -> float:
    """Return √per_year · mean(r - b) / std(r - b) (Sharpe 1994); 0 if r - b does not vary."""
    return sharpe(returns - benchmark, per_year)


def log_returns(returns: Array) -> Array:
    """Return log(1 + r), with a floor so that a total loss has a finite logarithm."""
    return np.asarray(np.log(np.maximum(1.0 + returns, LOG_FLOOR)))


def excess_growth(returns: Array, benchmark: Array, per_year: float) -> float:
    """Return per_year · mean(ln(1 + r) - ln(1 + b)), the annual log growth over the benchmark's.

    A total loss of either counts as a factor of 1e-12 in that bar, which keeps the result finite.
    """
    if returns.size == 0:
        return 0.0
    # Log growth, unlike the mean of simple returns, is what compounds: over a path it sums to the
    # log of the final value.
    grown = log_returns(returns) - log_returns(benchmark)
    return per_year * float(np.mean(grown))


def summarise(
    returns: Array,
    equal_weight: Array,
    timeframe: str,
    *,
    trades: Array,
    fees: Array,
    notional: Array,
    exposure: Array,
) -> Metrics:
    """Compute all metrics of one path of n bars.

    Args:
        returns: (n,) simple returns per bar.
        equal_weight: (n,) those of equal weight.
        timeframe: of the bars.
        trades: (n,) orders filled in the bar.
        fees: (n,) as fractions of the portfolio's value.
        notional: (n,) as fractions of the portfolio's value.
        exposure: (n,) fraction of the value that is not in cash.

    Raises:
        ValueError: lengths differ, or a number is not finite.
    """
    r, b, traded, paid, moved, invested = _columns(
        returns=returns,
        equal_weight=equal_weight,
        trades=trades,
        fees=fees,
        notional=notional,
        exposure=exposure,
    )
    per_year = bars_per_year(timeframe)
    n = r.size
    own, equal = sharpe(r, per_year), sharpe(b, per_year)
    alpha, beta = alpha_beta(r, b, per_year)
    reason = ""
    # Zero variance also means that no ratio exists, so it takes precedence.
    if _deviation(r) == 0.0:
        reason = ZERO_VARIANCE
    elif not np.any(r < -ROUNDING):
        reason = NO_LOSS
    return Metrics(
        sharpe=own,
        sortino=sortino(r, per_year),
        max_drawdown=max_drawdown(r),
        total_return=total_return(r),
        annual_return=annual_return(r, per_year),
        turnover=per_year * float(np.mean(moved)) if n else 0.0,
        fees=float(np.sum(paid)),
        trades=round(float(np.sum(traded))),
        hit_rate=hit_rate(r),
        exposure=float(np.mean(invested)) if n else 0.0,
        alpha=alpha,
        beta=beta,
        information_ratio=information_ratio(r, b, per_year),
        excess_growth=excess_growth(r, b, per_year),
        equal_weight_sharpe=equal,
        equal_weight_return=total_return(b),
        equal_weight_drawdown=max_drawdown(b),
        bars=n,
        reason=reason,
    )


@dataclass(frozen=True, eq=False)
class BarTrades:
    """Trading per bar: float64 arrays of one shape, (..., bars).

    Attributes:
        returns: simple returns per bar.
        equal_weight: those of equal weight.
        trades: orders filled in the bar.
        fees: as fractions of the portfolio's value at the previous close.
        notional: traded value, likewise.
        exposure: 1 - cash / value at the bar's close.
    """

    returns: Array
    equal_weight: Array
    trades: Array
    fees: Array
    notional: Array
    exposure: Array

    def before_fees(self) -> Self:
        """Return the same trades with the fees added back; slippage remains.

        Fees are fractions of the value at the previous close, as returns are.
        """
        free = np.zeros_like(self.fees)
        return dataclasses.replace(self, returns=self.returns + self.fees, fees=free)


# The arguments of `summarise`, too.
TRADE_COLUMNS = tuple(field.name for field in fields(BarTrades))


class PathTrades(BarTrades):
    """A trial's trading, joined to φ back-test paths of T bars. All arrays are (φ, T)."""

    def summarise(self, timeframe: str) -> list[Metrics]:
        """Compute the metrics of every path, in order."""
        return [
            summarise(
                timeframe=timeframe, **{name: getattr(self, name)[path] for name in TRADE_COLUMNS}
            )
            for path in range(len(self.returns))
        ]


@dataclass(frozen=True)
class Objective:
    """The value that the sampler maximises, and its parts.

    Attributes:
        value: the objective.
        path_scores: one score per path.
        reasons: a line for every path whose score needs a comment.
    """

    value: float
    path_scores: tuple[float, ...]
    reasons: tuple[str, ...]


# A path's score by the objective's name; the first one is the default. `objective` aggregates them.
OBJECTIVES: Mapping[str, Callable[[Metrics], float]] = {
    "information-ratio": lambda metrics: metrics.information_ratio,  # what the gate tests
    "sharpe-difference": lambda metrics: metrics.sharpe - metrics.equal_weight_sharpe,
    "sharpe": lambda metrics: metrics.sharpe,
    "sortino": lambda metrics: metrics.sortino,
}
DEFAULT_OBJECTIVE = "information-ratio"


def objective(
    paths: PathTrades, timeframe: str, name: str = DEFAULT_OBJECTIVE, *, std_weight: float = 0.1
) -> Objective:
    """Compute a trial's objective: mean over paths of the score - std_weight · std over paths.

    A path with fewer than 30 trades or a mean exposure under 5% scores min(0, its score) - 1, with
    a reason. Otherwise, in a falling market, a policy that never trades would win the search. The
    standard deviation divides by φ, because these are all paths and not a sample; it is 0 for one.

    Args:
        paths: the trial's paths.
        timeframe: of the bars.
        name: the path's score, a key of `OBJECTIVES`.
        std_weight: weight of the standard deviation.
    """
    score = OBJECTIVES[name]
    scores, reasons = [], []
    for path, metrics in enumerate(paths.summarise(timeframe)):
        value = score(metrics)
        idle = []
        if metrics.trades < MINIMUM_TRADES:
            idle.append(f"{metrics.trades} trades, fewer than {MINIMUM_TRADES}")
        if metrics.exposure < MINIMUM_EXPOSURE:
            idle.append(f"exposure {metrics.exposure:.1%}, under {MINIMUM_EXPOSURE:.0%}")
        if idle:
            # At most -1, which is below any path that traded and broke even; a loss makes it worse.
            value = min(0.0, value) - 1.0
        notes = [*idle, metrics.reason] if metrics.reason else idle
        if notes:
            reasons.append(f"path {path}: {'; '.join(notes)}")
        scores.append(value)
    # Penalise trials whose result depends on the path, that is, on the data trained on. Paths share
    # the bars they are tested on, so their spread is not caused by the market.
    value = float(np.mean(scores)) - std_weight * float(np.std(scores))
    return Objective(value=value, path_scores=tuple(scores), reasons=tuple(reasons))


def _deviation(values: Array) -> float:
    """Return the sample standard deviation; exactly 0 if values differ only by rounding."""
    if values.size < 2:
        return 0.0
    deviation = float(np.std(values, ddof=1))
    # The threshold is relative to the values' size, since constant returns of 1% differ by more
    # rounding than returns of 0.
    return deviation if deviation > max(ROUNDING, 1e-12 * float(np.max(np.abs(values)))) else 0.0


def _columns(**named: Array) -> list[Array]:
    """Convert the arrays to float64 and check that they are finite and of one length."""
    columns: list[Array] = []
    for name, values in named.items():
        column = np.asarray(values, dtype=np.float64)
        if column.ndim != 1 or column.shape != (columns[0].shape if columns else column.shape):
            raise ValueError(f"{name} has shape {column.shape}; expected one number per bar")
        finite = np.isfinite(column)
        if not finite.all():
            raise ValueError(
                f"{name} is {column[np.argmin(finite)]} at bar {np.argmin(finite)} of the path"
            )
        columns.append(column)
    return columns
