"""Tests of a mean return by the stationary bootstrap and by batch means, and the gate's level.

Two policies are compared by the differences of their returns over the same bars (a paired test), so
common movements of the market cancel.

The bootstrap takes the estimated variance of the mean as known. With few bars and strong
autocorrelation it therefore rejects too often (13% at a level of .05 for an AR(1) process with
coefficient .9 and 300 bars). So the p value is the larger of two: that of the bootstrap, and that
of a t-test of batch means, which accounts for the small number of independent values. With little
autocorrelation or many bars the two agree. scripts/bench/quality/gate_statistics.py measures the
remaining error.

Sources: D. N. Politis and J. P. Romano 1994, "The Stationary Bootstrap"; D. N. Politis and H. White
2004, "Automatic Block-Length Selection for the Dependent Bootstrap", with the correction of A.
Patton, D. N. Politis and H. White 2009; B. Schmeiser 1982, "Batch Size Effects in the Analysis of
Simulation Output" (batch means).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
DRAWS, MOST_DRAWS = 5_000, 100_000  # bootstrap samples: by default, and at most
CHUNK = 500_000  # block lengths drawn at once, which bounds the memory
BATCH_BLOCKS = 3.0  # length of a batch, in expected block lengths of the bootstrap
ALPHA = 0.1  # error probability of all evaluations on one hold-out or panel together


@dataclass(frozen=True)
class Bootstrap:
    """Result of a one-sided test of mean(x) > 0.

    Attributes:
        mean: the sample mean, per bar.
        p: the larger p value of the bootstrap and of the t-test of batch means.
        low: lower end of the 90% bootstrap interval of the mean.
        high: upper end of that interval.
        block: expected length of a block in bars.
        bars: number of values, n.
        batches: number of batches of the t-test, roughly the number of independent values; 0 if
            the values do not vary, so that nothing was tested.
    """

    mean: float
    p: float
    low: float
    high: float
    block: float
    bars: int
    batches: int = 0


def gate_level(look: int) -> float:
    """The gate's significance level of evaluation j = 1, 2, … on one hold-out or panel: 0.1/2^j.

    The levels of all evaluations sum to `ALPHA`, so by Bonferroni's inequality (alpha spending) the
    probability of any false promotion is at most `ALPHA`. Live challengers have levels that shrink
    more slowly: `sweepd.deploy.promotion.betting.log_threshold`.
    """
    return ALPHA / 2.0**look


def draws_for(level: float) -> int:
    """Number of bootstrap samples for a test at this level.

    The smallest possible p value of n samples is 1/(n + 1). So at levels below
    1/(`MOST_DRAWS` + 1) no result is significant.
    """
    # 4/level draws put the smallest p value at about a quarter of the level.
    return DRAWS if level * (DRAWS + 1) >= 1.0 else min(math.ceil(4.0 / level), MOST_DRAWS)


def summed(values: Array, step: int) -> Array:
    """Return sums over `step` consecutive values; a remainder at the beginning is dropped."""
    return np.asarray(values[values.size % step :].reshape(-1, step).sum(axis=1))


def block_length(values: Array) -> float:
    """Optimal expected block length for the mean of (n,) values, in bars; at least 1.

    b = (2·G²/D)^(1/3)·n^(1/3) with G = Σ λ(k/M)·|k|·R(k) and D = 2·(Σ λ(k/M)·R(k))² (Politis and
    White 2004, corrected by Patton et al. 2009), where R(k) is the
    autocovariance at lag k, λ the flat-top window, and M twice the lag after which K
    autocorrelations in a row are insignificant.
    """
    n = values.size
    centred = values - np.mean(values)
    if n < 8 or not np.any(centred):
        return 1.0
    in_a_row = max(5, int(math.log10(n)))
    most = min(math.ceil(math.sqrt(n)) + in_a_row, n - 2)
    covariance = np.array([centred[lag:] @ centred[: n - lag] for lag in range(most + 1)]) / n
    # Each autocorrelation is normalised by the two subseries of its own products, as in Patton's
    # implementation.
    squares = np.concatenate([[0.0], np.cumsum(centred**2)])
    lags = np.arange(most + 1) + 1
    norm = np.sqrt((squares[n] - squares[lags]) * squares[n - lags])
    correlation = np.abs(n * covariance) / np.where(norm > 0.0, norm, 1.0)
    # Insignificant: |ρ(k)| < 2·√(log10(n)/n). The window begins after K of them in a row.
    small = correlation < 2.0 * math.sqrt(math.log10(n) / n)
    quiet = [lag for lag in range(most + 1 - in_a_row) if small[lag : lag + in_a_row].all()]
    window = min(2 * max(quiet[0], 1), most) if quiet else most
    k = np.arange(1, window + 1)
    # λ(t) = 1 for t ≤ 1/2, 2·(1 - t) for 1/2 < t ≤ 1. Sums over k and -k are twice those over k >
    # 0.
    taper = np.where(k / window <= 0.5, 1.0, 2.0 * (1.0 - k / window))
    g = 2.0 * float(np.sum(taper * k * covariance[1 : window + 1]))
    long_run = float(covariance[0] + 2.0 * np.sum(taper * covariance[1 : window + 1]))
    if long_run == 0.0:
        return 1.0
    # With D = 2·(long-run variance)², 2·G²/D = G²/(long-run variance)².
    length = (g**2 / long_run**2) ** (1.0 / 3.0) * n ** (1.0 / 3.0)
    # Patton's upper bound; longer blocks would leave too few of them.
    return float(min(max(length, 1.0), math.ceil(min(3.0 * math.sqrt(n), n / 3.0))))


def bootstrap_means(
    values: Array, block: float, draws: int, rng: np.random.Generator, *, length: int | None = None
) -> Array:
    """Means of stationary bootstrap samples.

    A sample consists of blocks that begin at uniform positions, have geometric lengths and wrap
    around the end of the series; the last block is cut.

    Args:
        values: the series, (n,).
        block: expected length of a block, in values.
        draws: number of samples.
        rng: generator of the samples.
        length: number of values in a sample, by default n.

    Returns:
        (draws,) means.
    """
    n = values.size
    size = n if length is None else length
    # Prefix sums of the series, repeated for wrapping: the sum of a block is one difference.
    total = np.concatenate([[0.0], np.cumsum(np.tile(values, 1 + math.ceil(size / n)))])
    # So many blocks suffice for a sample with high probability (6 standard deviations).
    expected = size / block
    width = min(size, math.ceil(expected + 6.0 * math.sqrt(expected) + 8.0))
    # A geometric number is an exponential one rounded up, and exponential numbers are drawn several
    # times faster. P(length > k) = (1 - 1/block)^k = exp(-rate·k).
    rate = np.float32(-math.log1p(-1.0 / block)) if block > 1.0 else np.float32(math.inf)

    def lengths(rows: int) -> NDArray[np.int64]:
        exponential = rng.standard_exponential((rows, width), dtype=np.float32)
        whole: NDArray[np.int64] = np.maximum(np.ceil(exponential / rate), 1.0).astype(np.int64)
        return whole

    means = np.empty(draws)
    step = max(1, CHUNK // width)
    for first in range(0, draws, step):
        rows = min(step, draws - first)
        ends = np.cumsum(lengths(rows), axis=1)
        # In the rare case that the blocks are too short for a sample, draw more of them.
        while ends[:, -1].min() < size:
            ends = np.concatenate([ends, ends[:, -1:] + np.cumsum(lengths(rows), axis=1)], axis=1)
        ends = np.minimum(ends, size)
        used = np.diff(ends, axis=1, prepend=0)
        starts = rng.integers(0, n, used.shape, dtype=np.int32)
        means[first : first + rows] = np.sum(total[starts + used] - total[starts], axis=1) / size
    return means


def bootstrap_samples(
    values: Array, block: float, draws: int, rng: np.random.Generator, *, length: int
) -> Iterator[Array]:
    """Stationary bootstrap samples: chunks of shape (rows, length), `draws` rows in total."""
    n, places = values.size, np.arange(length)
    step = max(1, CHUNK // length)
    for first in range(0, draws, step):
        shape = (min(step, draws - first), length)
        # A new block begins at each value with probability 1/block.
        is_start = rng.random(shape) < 1.0 / block
        is_start[:, 0] = True
        begun = np.maximum.accumulate(np.where(is_start, places, 0), axis=1)
        starts = np.take_along_axis(rng.integers(0, n, shape), begun, axis=1)
        yield values[(starts + places - begun) % n]


def batch_count(n: int, block: float) -> int:
    """Number of batches for n values: `BATCH_BLOCKS` expected block lengths each; at least 2."""
    return max(2, int(n / (BATCH_BLOCKS * block)))


def batch_means_p(values: Array, batches: int) -> float:
    """One-sided p value of mean > 0 by Student's t-test of batch means (Schmeiser 1982).

    t = m / (s/√b), with m the mean and s the standard deviation of the b batch means, and b - 1
    degrees of freedom. The oldest values that do not fill a batch are left out.

    Args:
        values: the series, (n,).
        batches: number of batches b of equal length, 2 ≤ b ≤ n.
    """
    from scipy.special import stdtr  # takes long to import

    length = values.size // batches
    means = values[values.size - batches * length :].reshape(batches, length).mean(axis=1)
    deviation = float(np.std(means, ddof=1))
    mean = float(np.mean(means))
    # The t statistic of equal batch means is infinite: certain, if they are positive.
    if deviation == 0.0:
        return 0.0 if mean > 0.0 else 1.0
    # P(T ≥ t) = P(T ≤ -t) for Student's distribution, which is symmetric.
    return float(stdtr(batches - 1, -mean / (deviation / math.sqrt(batches))))


def mean_above_zero(values: Array, *, seed: int, draws: int = DRAWS) -> Bootstrap:
    """Test whether the mean of values, such as differences of two policies' returns, is above 0.

    The bootstrap's p value is (1 + #{m* - m ≥ m}) / (draws + 1), with m the mean and m* the
    bootstrapped means: centred at 0, how often are they at least as large as m? Values that do not
    vary have p = 1, or the smallest possible p value if they are positive.

    Args:
        values: the series, (n,).
        seed: of the bootstrap.
        draws: number of bootstrap samples.
    """
    n, smallest = values.size, 1.0 / (draws + 1)
    mean = float(np.mean(values)) if n else 0.0
    if n < 2 or np.ptp(values) == 0.0:
        return Bootstrap(mean, smallest if mean > 0.0 and n >= 2 else 1.0, mean, mean, 1.0, n)
    block = block_length(values)
    means = bootstrap_means(values, block, draws, np.random.default_rng(seed))
    # H0: the mean is 0. Bootstrapped means scatter around the sample mean m, so m* - m has the
    # distribution of the sample mean under H0. Adding 1 to count and draws keeps p above 0 (A. C.
    # Davison and D. V. Hinkley 1997, "Bootstrap Methods and their Application", chapter 4).
    p = (1 + int(np.count_nonzero(means - mean >= mean))) * smallest
    low, high = (float(edge) for edge in np.quantile(means, [0.05, 0.95]))
    batches = batch_count(n, block)
    return Bootstrap(mean, max(p, batch_means_p(values, batches)), low, high, block, n, batches)
