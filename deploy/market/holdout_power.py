"""The power of the hold-out's test: which edges `mean_above_zero` finds on so many bars.

The test is applied to simulated series. Both of its p values fall when all values are raised by the
same number, so each series has a least edge at which the test is significant, and one simulation has
the power for all edges. A series is normal, with the autocorrelation of order 1 that raises the error
of a mean as much as measured: for a factor f of the standard error, ρ = (f² - 1)/(f² + 1).

The deviation of the stationary bootstrap's means is computed, not drawn: it is
(R(0) + 2·Σ b(k)·R(k))/n, with R the sample's autocovariance, p = 1/block and
b(k) = (1 - k/n)·(1 - p)^k + k/n·(1 - p)^(n-k). Means of many values are about normal.

Source: D. N. Politis and J. P. Romano 1994, "The Stationary Bootstrap", section 2 (that variance).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sweepd.deploy.promotion.bootstrap import MOST_DRAWS, batch_count, block_length
from sweepd.envs.crypto.scoring.luck import NORMAL

Array = NDArray[np.float64]
MOST_BARS = 1_000  # simulated: longer hold-outs are simulated by sums of their bars
FEW_BARS = 8  # with fewer, nothing is found
SMALL = 1e-4  # weights of the bootstrap that are left out
SEED = 1


@lru_cache(maxsize=64)
def least_edges(bars: int, factor: float, level: float, series: int) -> Array:
    """Least edges that the test finds, ascending, in standard errors of the hold-out's mean.

    Args:
        bars: in the hold-out.
        factor: by which autocorrelation raises the standard error.
        level: of the test.
        series: how many are simulated.

    Returns:
        (series,) edges; infinite where no p value is as small as the level, or the bars are too few.
    """
    if bars < FEW_BARS or level * (MOST_DRAWS + 1) < 1.0:
        return np.full(series, math.inf)
    step = math.ceil(bars / MOST_BARS)
    count, rho = bars // step, _coefficient(factor, step)
    error = math.sqrt((1.0 + rho) / (1.0 - rho) / count)
    made = _series(np.random.default_rng(SEED), count, rho, series)
    return np.sort([least_edge(values, level) for values in made.T]) / error


def least_edge(values: Array, level: float) -> float:
    """The number that must be added to (n,) values so that their mean is significantly above 0."""
    from scipy.special import stdtrit  # takes long to import

    block = block_length(values)
    batches = batch_count(values.size, block)
    length = values.size // batches
    means = values[values.size - batches * length :].reshape(batches, length).mean(axis=1)
    student = -float(stdtrit(batches - 1, level)) * float(np.std(means, ddof=1))
    return max(
        -NORMAL.inv_cdf(level) * _deviation(values, block) - float(np.mean(values)),
        student / math.sqrt(batches) - float(np.mean(means)),
    )


def _coefficient(factor: float, step: int) -> float:
    """ρ of a series whose values are sums of `step` bars, see the module's docstring."""
    rho = (factor**2 - 1.0) / (factor**2 + 1.0)
    # The variance of such a sum in variances of a bar; bars without autocorrelation have `step`.
    ends = 2.0 * rho * (1.0 - rho**step) / (1.0 - rho) ** 2
    square = step * factor**2 / (step * factor**2 - ends)
    return (square - 1.0) / (square + 1.0)


def _series(random: np.random.Generator, count: int, rho: float, series: int) -> Array:
    """(count, series) values with a variance of 1 and this autocorrelation."""
    values = random.standard_normal((count, series))
    values[1:] *= math.sqrt(1.0 - rho**2)
    if rho != 0.0:
        for bar in range(1, count):
            values[bar] += rho * values[bar - 1]
    return values


def _deviation(values: Array, block: float) -> float:
    """Standard deviation of the means of stationary bootstrap samples."""
    n, kept = values.size, 1.0 - 1.0 / block
    centred = values - np.mean(values)
    # Weights fall with the lag.
    most = min(n - 1, math.ceil(math.log(SMALL) / math.log(kept))) if kept > 0.0 else 0
    lags = np.arange(1, most + 1)
    weights = (1.0 - lags / n) * kept**lags + lags / n * kept ** (n - lags)
    covariance = np.array([centred[lag:] @ centred[: n - lag] for lag in range(most + 1)]) / n
    variance = float(covariance[0] + 2.0 * weights @ covariance[1:]) / n
    return math.sqrt(max(variance, 0.0))
