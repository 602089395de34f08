"""What a sequence of per-bar returns was worth: one set of numbers for search, gate, back-test and paper trader.

Everything here takes simple returns per bar, r_t = V_t / V_{t-1} - 1, as float64, and bars per year from the
timeframe (a year of 365.25 days), never from the length of the test. The risk-free rate is 0. Standard deviations are
those of a sample (n - 1). Nothing returns NaN: a ratio whose denominator is zero is 0, and `Metrics.reason` says so.

Sources: W. F. Sharpe 1994, "The Sharpe Ratio" (Sharpe and information ratio); F. A. Sortino and L. N. Price 1994,
"Performance Measurement in a Downside Risk Framework"; M. C. Jensen 1968, "The Performance of Mutual Funds in the
Period 1945–1964" (alpha).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from envs.crypto.timeframe import bars_per_year

Array = NDArray[np.float64]

MINIMUM_TRADES = 30
MINIMUM_EXPOSURE = 0.05
ZERO_VARIANCE = "zero variance"
NO_LOSS = "no losing bar"
ROUNDING = 1e-15  # of a ratio of two money values near 1


@dataclass(frozen=True)
class Metrics:
    """Numbers of one path or window.

    sharpe, sortino: annualised, of the returns. equal_weight_sharpe: of equal weight over the same bars.
    max_drawdown, equal_weight_drawdown: largest fall from a peak, as a share of the peak, 0 … 1.
    total_return, equal_weight_return: growth over the whole length, 0.1 = 10 %. annual_return: the same, compounded
        to a year.
    turnover: notional traded per year, in portfolio values. fees: sum over bars of fees paid, each as a share of the
        portfolio's value then.
    trades: fills. hit_rate: share of winning bars among bars with a return. exposure: mean share of the value not in
        cash.
    alpha: Jensen's, per year. beta: against equal weight. information_ratio: the annualised Sharpe ratio of the
        returns in excess of equal weight, which the gate's deflated Sharpe ratio tests.
    excess_growth: difference of log growth from equal weight's, per year. bars: number of returns.
    reason: "" or why a ratio is 0 for want of a denominator.
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
        """Plain numbers and text, for JSON and trial attributes."""
        return asdict(self)


def sharpe(returns: Array, per_year: float) -> float:
    """√per_year · mean(r) / std(r), std with n - 1 (Sharpe 1994). returns: (n,).

    0 where the variance is zero or n < 2.
    """
    deviation = _deviation(returns)
    return math.sqrt(per_year) * float(np.mean(returns)) / deviation if deviation > 0.0 else 0.0


def sortino(returns: Array, per_year: float) -> float:
    """√per_year · mean(r) / √(mean(min(r, 0)²)), target 0, the mean over all bars (Sortino and Price 1994).

    0 where no bar lost.
    """
    if returns.size == 0:
        return 0.0
    downside = math.sqrt(float(np.mean(np.square(np.minimum(returns, 0.0)))))
    return math.sqrt(per_year) * float(np.mean(returns)) / downside if downside > ROUNDING else 0.0


def equity(returns: Array) -> Array:
    """(n + 1,) value of one unit compounded over the returns, starting with 1."""
    return np.concatenate([[1.0], np.cumprod(1.0 + returns)])


def max_drawdown(returns: Array) -> float:
    """max over t of 1 - E_t / max_{s ≤ t} E_s, E the compounded equity from 1 (its start counts as a peak).

    A share, 0 … 1.
    """
    value = equity(returns)
    return float(np.max(1.0 - value / np.maximum.accumulate(value)))


def total_return(returns: Array) -> float:
    """∏(1 + r) - 1 over the whole length."""
    return float(equity(returns)[-1]) - 1.0


def annual_return(returns: Array, per_year: float) -> float:
    """(∏(1 + r))^(per_year / n) - 1, compounded to a year; -1 after a total loss; 0 where there is no bar."""
    if returns.size == 0:
        return 0.0
    final = float(equity(returns)[-1])
    if final <= 0.0:
        return -1.0
    # A few bars with a large gain would overflow when compounded to a year: the exponent is held at e^700, still
    # finite.
    return math.expm1(min(math.log(final) * per_year / returns.size, 700.0))


def hit_rate(returns: Array) -> float:
    """Share of bars with r > 0 among those with r ≠ 0; 0 where there are none."""
    moved = int(np.count_nonzero(returns))
    return int(np.count_nonzero(returns > 0.0)) / moved if moved else 0.0


def alpha_beta(returns: Array, benchmark: Array, per_year: float) -> tuple[float, float]:
    """Jensen's alpha per year and beta: r = α/per_year + β·b + ε by least squares (Jensen 1968).

    β is 0 where the benchmark does not vary.
    """
    if returns.size == 0:
        return 0.0, 0.0
    beta = 0.0
    if _deviation(benchmark) > 0.0:
        centred = benchmark - np.mean(benchmark)
        beta = float(centred @ (returns - np.mean(returns)) / (centred @ centred))
    return per_year * float(np.mean(returns) - beta * np.mean(benchmark)), beta


def information_ratio(returns: Array, benchmark: Array, per_year: float) -> float:
    """√per_year · mean(r - b) / std(r - b) (Sharpe 1994). 0 where the difference does not vary."""
    return sharpe(returns - benchmark, per_year)


def excess_growth(returns: Array, benchmark: Array, per_year: float) -> float:
    """per_year · mean(ln(1 + r) - ln(1 + b)): growth of the value's logarithm over the benchmark's.

    A total loss of either counts as a value of 1e-12, so that the number stays finite.
    """
    if returns.size == 0:
        return 0.0
    floor = 1e-12
    grown = np.log(np.maximum(1.0 + returns, floor)) - np.log(np.maximum(1.0 + benchmark, floor))
    return per_year * float(np.mean(grown))


def summarise(
    returns: Array,
    equal_weight_returns: Array,
    timeframe: str,
    *,
    trades: Array,
    fees: Array,
    notional: Array,
    exposure: Array,
) -> Metrics:
    """All metrics of one path.

    returns, equal_weight_returns: (n,) simple per-bar returns. trades: (n,) fills in the bar. fees, notional: (n,) as
        shares of the portfolio's value. exposure: (n,) share of the value not in cash. Raises ValueError for other
        lengths and for numbers that are not finite.
    """
    r, b, traded, paid, moved, invested = _columns(
        returns=returns,
        equal_weight=equal_weight_returns,
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


@dataclass(frozen=True)
class PathTrades:
    """What a trial traded, joined to paths. All (φ, T) float64.

    returns, equal_weight: simple per-bar returns. trades: fills in the bar. fees, notional: shares of the portfolio's
        value.
    exposure: 1 - cash / value.
    """

    returns: Array
    equal_weight: Array
    trades: Array
    fees: Array
    notional: Array
    exposure: Array

    def summarise(self, timeframe: str) -> list[Metrics]:
        """The metrics of every path, in order."""
        return [
            summarise(
                self.returns[path],
                self.equal_weight[path],
                timeframe,
                trades=self.trades[path],
                fees=self.fees[path],
                notional=self.notional[path],
                exposure=self.exposure[path],
            )
            for path in range(len(self.returns))
        ]


@dataclass(frozen=True)
class Objective:
    """What the sampler is told.

    value: to be maximised. path_scores: one per path. reasons: a line for every path that has something to say.
    """

    value: float
    path_scores: tuple[float, ...]
    reasons: tuple[str, ...]


# By name, the default first: what each takes of a path's metrics. `objective` describes what is made of it.
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
    """mean over paths of a path's score - std_weight · std over paths. name: a key of `OBJECTIVES`, the path's score.

    A path with fewer than 30 trades or a mean exposure under 5 % scores min(0, its score) - 1, with the reason: else,
    in a falling market, "never trade" would win the search. The standard deviation over paths divides by φ (they are
    all the paths there are), so it is 0 for one path.
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
            value = min(0.0, value) - 1.0
        notes = [*idle, metrics.reason] if metrics.reason else idle
        if notes:
            reasons.append(f"path {path}: {'; '.join(notes)}")
        scores.append(value)
    value = float(np.mean(scores)) - std_weight * float(np.std(scores))
    return Objective(value=value, path_scores=tuple(scores), reasons=tuple(reasons))


def _deviation(values: Array) -> float:
    """Sample standard deviation; exactly 0 where the values differ by rounding alone."""
    if values.size < 2:
        return 0.0
    deviation = float(np.std(values, ddof=1))
    return deviation if deviation > max(ROUNDING, 1e-12 * float(np.max(np.abs(values)))) else 0.0


def _columns(**named: Array) -> list[Array]:
    """The arrays as float64, checked to be finite and one number per bar each."""
    columns: list[Array] = []
    for name, values in named.items():
        column = np.asarray(values, dtype=np.float64)
        if column.ndim != 1 or column.shape != (columns[0].shape if columns else column.shape):
            raise ValueError(f"{name} has shape {column.shape}; one number per bar is right")
        finite = np.isfinite(column)
        if not finite.all():
            raise ValueError(
                f"{name} is {column[np.argmin(finite)]} at bar {np.argmin(finite)} of the path"
            )
        columns.append(column)
    return columns
