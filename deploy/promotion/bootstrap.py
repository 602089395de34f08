"""Whether a mean return is above zero, by the stationary bootstrap and by batch means, and how sure a look at a
hold-out must be.

Paired: two policies are compared by their difference over the same bars, so what moves both cancels.

The bootstrap takes the estimated variance of the mean as known. Where returns are correlated from bar to bar and bars
are few, that rejects far too often (13 % at .05 for an AR(1) of .9 and 300 bars). So p is the larger of two: the
bootstrap's, and that of a t-test of batch means, which knows how few independent values it has. With little
autocorrelation or many bars the two agree. scripts/bench/gate_statistics.py measures what error remains.

Sources: D. N. Politis and J. P. Romano 1994, "The Stationary Bootstrap"; D. N. Politis and H. White 2004, "Automatic
Block-Length Selection for the Dependent Bootstrap", with the correction of A. Patton, D. N. Politis and H. White 2009;
B. Schmeiser 1982, "Batch Size Effects in the Analysis of Simulation Output" (batch means).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
DRAWS, MOST_DRAWS = 5_000, 100_000
CHUNK = 500_000  # block lengths drawn at once
BATCH_BLOCKS = 3.0  # bars of a batch, in expected block lengths of the bootstrap
ALPHA = 0.1  # for all looks at one hold-out or panel together


@dataclass(frozen=True)
class Bootstrap:
    """A test of mean(x) > 0.

    mean: per bar. p: one-sided, the larger of the bootstrap's (the share of bootstrapped means that differ from `mean`
    by as much as it differs from 0) and that of the t-test of batch means. low, high: the 90 % bootstrap interval of
    the mean. block: expected length of a block in bars. bars: n. batches: of the t-test, about as many independent
    values as the bars count as; 0 where nothing was tested.
    """

    mean: float
    p: float
    low: float
    high: float
    block: float
    bars: int
    batches: int = 0


def gate_level(look: int) -> float:
    """0.1/2^j: the p at which the gate tests look number j (1 …) at one hold-out or panel. The levels of all looks add
    up to 0.1. `deploy.trading.live.comparison.arena_level` is that of a live challenger, and shrinks more slowly.
    """
    return ALPHA / 2.0**look


def draws_for(level: float) -> int:
    """How many bootstrapped means a test at this level needs: the smallest p of n of them is 1/(n + 1). At levels below
    1/(`MOST_DRAWS` + 1) no mean is significant.
    """
    return DRAWS if level * (DRAWS + 1) >= 1.0 else min(math.ceil(4.0 / level), MOST_DRAWS)


def block_length(values: Array) -> float:
    """The expected block length, in bars, that suits the mean of (n,) values best; at least 1.

    (2·G²/D)^(1/3)·n^(1/3), with G = Σ λ(k/M)·|k|·R(k), D = 2·(Σ λ(k/M)·R(k))², the flat-top window λ, and M twice the
    lag after which K autocorrelations in a row are insignificant.
    """
    n = values.size
    centred = values - np.mean(values)
    if n < 8 or not np.any(centred):
        return 1.0
    in_a_row = max(5, int(math.log10(n)))
    most = min(math.ceil(math.sqrt(n)) + in_a_row, n - 2)
    covariance = np.array([centred[lag:] @ centred[: n - lag] for lag in range(most + 1)]) / n
    # Each correlation is normed by the parts that it was made of, a bar short of its lag (as Patton does).
    squares = np.concatenate([[0.0], np.cumsum(centred**2)])
    lags = np.arange(most + 1) + 1
    norm = np.sqrt((squares[n] - squares[lags]) * squares[n - lags])
    correlation = np.abs(n * covariance) / np.where(norm > 0.0, norm, 1.0)
    small = correlation < 2.0 * math.sqrt(math.log10(n) / n)
    quiet = [lag for lag in range(most + 1 - in_a_row) if small[lag : lag + in_a_row].all()]
    window = min(2 * max(quiet[0], 1), most) if quiet else most
    k = np.arange(1, window + 1)
    taper = np.where(k / window <= 0.5, 1.0, 2.0 * (1.0 - k / window))
    g = 2.0 * float(np.sum(taper * k * covariance[1 : window + 1]))
    long_run = float(covariance[0] + 2.0 * np.sum(taper * covariance[1 : window + 1]))
    if long_run == 0.0:
        return 1.0
    length = (g**2 / long_run**2) ** (1.0 / 3.0) * n ** (1.0 / 3.0)
    return float(min(max(length, 1.0), math.ceil(min(3.0 * math.sqrt(n), n / 3.0))))


def bootstrap_means(
    values: Array, block: float, draws: int, rng: np.random.Generator, *, length: int | None = None
) -> Array:
    """(draws,) means of stationary bootstrap samples of (n,) values: blocks that begin anywhere, of geometric length
    with mean `block`, wrapped around the end, the last one cut so that a sample has `length` values (default n).
    """
    n = values.size
    size = n if length is None else length
    # The sum of a block is one difference.
    total = np.concatenate([[0.0], np.cumsum(np.tile(values, 1 + math.ceil(size / n)))])
    expected = size / block
    width = min(size, math.ceil(expected + 6.0 * math.sqrt(expected) + 8.0))
    # A geometric number is an exponential one rounded up, which is drawn several times faster.
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
    """The samples themselves, a few rows (…, length) at a time, `draws` in all."""
    n, places = values.size, np.arange(length)
    step = max(1, CHUNK // length)
    for first in range(0, draws, step):
        shape = (min(step, draws - first), length)
        anew = rng.random(shape) < 1.0 / block
        anew[:, 0] = True
        begun = np.maximum.accumulate(np.where(anew, places, 0), axis=1)
        starts = np.take_along_axis(rng.integers(0, n, shape), begun, axis=1)
        yield values[(starts + places - begun) % n]


def batch_count(n: int, block: float) -> int:
    """Batches of a t-test of n values, each `BATCH_BLOCKS` expected block lengths long; at least 2."""
    return max(2, int(n / (BATCH_BLOCKS * block)))


def batch_means_p(values: Array, batches: int) -> float:
    """One-sided p of mean > 0 of (n,) values, n ≥ batches ≥ 2: Student's t of the means of so many batches of equal
    length, with batches - 1 degrees of freedom. The oldest values that fill no batch are left out.
    """
    from scipy.special import stdtr  # takes long to import

    length = values.size // batches
    means = values[values.size - batches * length :].reshape(batches, length).mean(axis=1)
    deviation = float(np.std(means, ddof=1))
    mean = float(np.mean(means))
    if deviation == 0.0:
        return 0.0 if mean > 0.0 else 1.0
    return float(stdtr(batches - 1, -mean / (deviation / math.sqrt(batches))))


def mean_above_zero(values: Array, *, seed: int, draws: int = DRAWS) -> Bootstrap:
    """Test whether the mean of (n,) values, such as the differences of two policies' returns, is above 0.

    The bootstrap's p is (1 + #{m* - mean ≥ mean}) / (draws + 1), m* the bootstrapped means. Values that do not vary
    have p = 1 unless they are positive: then there is no doubt, and p is the smallest there is.
    """
    n, smallest = values.size, 1.0 / (draws + 1)
    mean = float(np.mean(values)) if n else 0.0
    if n < 2 or np.ptp(values) == 0.0:
        return Bootstrap(mean, smallest if mean > 0.0 and n >= 2 else 1.0, mean, mean, 1.0, n)
    block = block_length(values)
    means = bootstrap_means(values, block, draws, np.random.default_rng(seed))
    p = (1 + int(np.count_nonzero(means - mean >= mean))) * smallest
    low, high = (float(edge) for edge in np.quantile(means, [0.05, 0.95]))
    batches = batch_count(n, block)
    return Bootstrap(mean, max(p, batch_means_p(values, batches)), low, high, block, n, batches)
