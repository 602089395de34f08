"""How much of a Sharpe ratio is luck: what the best of many trials shows without any skill.

Everything is per bar, not annualised, unless stated otherwise.

A single record is judged by the standard error of its Sharpe ratio, which accounts for
autocorrelation. The best of a search is judged by simulated searches without skill: `best_by_luck`.
Both are statements under the null hypothesis that no trial has skill. Skewness and kurtosis have no
influence under it: their terms in the variance of a Sharpe ratio vanish for a true ratio of 0.

Sources: M. López de Prado, A. Lipton and V. Zoonekynd 2026, "How to Use the Sharpe Ratio" (the
variance of a Sharpe ratio under the null hypothesis and under autocorrelation); D. H. Bailey and
M. López de Prado 2012, 2014 (probabilistic and deflated Sharpe ratio); E. Lazarus, D. J. Lewis, J.
H. Stock and M. W. Watson 2018, "HAR Inference: Recommendations for Practice" (long-run variance by
cosine weights); D. W. K. Andrews and J. C. Monahan 1992 (prewhitening); D. H. Bailey, J. M.
Borwein, M. López de Prado and Q. J. Zhu 2014, "Pseudo-Mathematics and Financial Charlatanism"
(MinBTL).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
NORMAL = NormalDist()
EULER_GAMMA = 0.5772156649015329
GOLDEN_RATIO = (1.0 + math.sqrt(5.0)) / 2.0
CONFIDENCE = 0.95  # at which a Sharpe ratio counts as above luck
FEWEST_BARS = 8  # with fewer, nothing is significant
MOST_CORRELATED = 0.97  # bound of the coefficient of an autoregression, as in Andrews and Monahan
SEARCHES = 5_000  # simulated ones
CHUNK = 1_000_000  # scores simulated at once
TRACKED = 64  # best trials of a simulated search whose ranks are followed


@dataclass(frozen=True)
class Moments:
    """The Sharpe ratio of n returns, and its error without skill.

    Attributes:
        n: number of returns.
        sharpe: SR, the mean over the standard deviation of a sample (n - 1).
        error: standard error of SR if the true ratio is 0; infinite with too few returns.
        freedom: degrees of freedom ν of the error's estimate.
    """

    n: int
    sharpe: float
    error: float
    freedom: float

    def score(self, factor: float = 1.0) -> float:
        """Return the normal score of SR: standard normal without skill.

        The score has the same p value as t = SR / (factor · error) has in Student's distribution.
        """
        from scipy.special import ndtri, stdtr  # takes long to import

        return -float(ndtri(stdtr(self.freedom, -self.sharpe / (factor * self.error))))

    def reach(self, level: float) -> float:
        """Return half the length of the interval around SR that contains the true ratio.

        Small true ratios are assumed: the error grows by a factor of about 1 + SR²/4.

        Args:
            level: confidence, such as 0.95.
        """
        from scipy.special import stdtrit

        return float(stdtrit(self.freedom, 0.5 + 0.5 * level)) * self.error

    def ratio(self, score: float) -> float:
        """Return the Sharpe ratio that has this score, the inverse of `score`."""
        from scipy.special import stdtrit

        if math.isinf(self.error):
            return math.inf
        return -float(stdtrit(self.freedom, NORMAL.cdf(-score))) * self.error


def moments(returns: Array) -> Moments:
    """Compute SR and its error for (n,) returns.

    Returns that do not vary have SR = 0. With fewer than `FEWEST_BARS` the error is infinite.
    """
    n = returns.size
    if n < FEWEST_BARS:
        return Moments(n, 0.0, math.inf, 1.0)
    # The deviation of a sample, as in the metrics: the score does not depend on it, and the ratio
    # is the one that screens show.
    mean, deviation = float(np.mean(returns)), float(np.std(returns, ddof=1))
    # Constant returns vary by rounding, so the threshold is relative to their size.
    if deviation <= 1e-12 * float(np.max(np.abs(returns))) or deviation == 0.0:
        return without_autocorrelation(n)
    variance, freedom = long_run_variance((returns - mean) / deviation)
    return Moments(n, mean / deviation, math.sqrt(variance / n), freedom)


def without_autocorrelation(n: int, sharpe: float = 0.0) -> Moments:
    """Return the moments of n independent returns: the error is 1/√n."""
    if n < FEWEST_BARS:
        return Moments(n, sharpe, math.inf, 1.0)
    return Moments(n, sharpe, 1.0 / math.sqrt(n), float(_cosines(n)))


def _cosines(n: int) -> int:
    """ν = 0.41 · n^(2/3), as recommended by Lazarus et al."""
    return max(4, int(0.41 * n ** (2.0 / 3.0)))


def long_run_variance(values: Array) -> tuple[float, float]:
    """Estimate n times the variance of the mean of (n,) values with mean 0, and ν.

    Σ_k Cov(x_t, x_{t+k}), estimated as ω/(1 - ρ)². ρ is the coefficient of an autoregression of
    order 1, corrected for its bias of -(1 + 3ρ)/n, and ω the mean square of the first ν cosine
    coefficients of its residuals. For an AR(1) this estimates σ²·(1 + ρ)/(1 - ρ), the factor of
    López de Prado et al. The mean divided by its standard error has about Student's distribution
    with ν degrees of freedom.
    """
    from scipy.fft import dct  # takes long to import

    n = values.size
    rho = float(values[1:] @ values[:-1]) / float(values @ values)
    rho = min(max(rho + (1.0 + 3.0 * rho) / n, -MOST_CORRELATED), MOST_CORRELATED)
    residuals = values[1:] - rho * values[:-1]
    freedom = _cosines(n)
    # The orthonormal transform; its coefficient 0 is the mean.
    waves = dct(residuals, type=2, norm="ortho")[1 : freedom + 1]
    variance = float(np.mean(waves**2)) / (1.0 - rho) ** 2
    # Residuals that do not vary have no error to estimate: then nothing is significant.
    return (variance if variance > 0.0 else math.inf), float(freedom)


@dataclass(frozen=True)
class Link:
    """How a trial depends on an earlier one.

    Attributes:
        correlation: ρ of its returns with those of the most similar earlier trial, 0 … 1: 0 for an
            independent trial, 1 for a copy.
        rank: of that earlier trial among all earlier ones, 0 for the best (`links_of`).
        parent: position of that earlier trial.
    """

    correlation: float = 0.0
    rank: int = 0
    parent: int = 0


def links_of(correlations: Array, ratios: Array, scores: Array) -> tuple[Link, ...]:
    """Find what each trial depends on.

    The rank of a trial is the number of trials with both a higher ratio and a higher score. A
    search may follow either, and the best trial by one of them is often a close second by the
    other. In a simulated search, the second is further behind, so its rank by the wrong measure
    would understate the luck that the search adds up.

    Args:
        correlations: (n, n) of the trials' returns, in the order in which they were made.
        ratios: (n,) their Sharpe ratios.
        scores: (n,) their normal scores (`Moments.score`).
    """
    links = [Link()]
    for own in range(1, len(scores)):
        parent = int(np.argmax(correlations[own, :own]))
        better = (ratios[:own] > ratios[parent]) & (scores[:own] > scores[parent])
        rank = int(np.count_nonzero(better))
        rho = min(max(float(correlations[own, parent]), 0.0), 1.0)
        links.append(Link(rho, rank, parent))
    return tuple(links)


def extended(links: Sequence[Link], trials: int) -> tuple[Link, ...]:
    """Add links for trials whose returns are not known, such as pruned ones.

    They depend on earlier ones as the known ones do: a link is repeated, with the same relative
    rank, in proportion to the share 1 - ρ² of its trial's variance that is not its parent's. So
    copies of a trial do not make the unknown trials count as copies, too. Without two known trials
    that differ, the unknown ones are independent.
    """
    known = list(enumerate(links))[1:]
    shares = np.cumsum([1.0 - link.correlation**2 for _, link in known])
    every = list(links[:trials]) or [Link()][:trials]
    while len(every) < trials:
        count = len(every)
        if not known or shares[-1] == 0.0:
            every.append(Link())
            continue
        # Multiples of the golden ratio, without their integer part, fill the interval evenly.
        turn = (count - len(links) + 1) * GOLDEN_RATIO % 1.0
        at, link = known[int(np.searchsorted(shares, turn * shares[-1], side="right"))]
        every.append(_later(link, at, count))
    return tuple(every)


def evaluated(links: Sequence[Link], evaluations: int) -> tuple[Link, ...]:
    """Add links for the evaluations of trials at earlier rungs.

    They depend on each other as the trials do, so the trials' links are repeated in turn.
    """
    known = list(enumerate(links))[1:]
    every = list(links)
    while len(every) < evaluations:
        count = len(every)
        at, link = known[(count - len(links)) % len(known)] if known else (1, Link())
        every.append(_later(link, at, count))
    return tuple(every)


def _later(link: Link, at: int, count: int) -> Link:
    """Return a link of trial `at` for trial `count`, with the same relative rank."""
    # The middle of what was one of `at` places: the first of one is the median of many.
    rank, parent = ((place + 0.5) * count / at for place in (link.rank, link.parent))
    return Link(link.correlation, int(rank), int(parent))


@dataclass(frozen=True, eq=False)
class BestByLuck:
    """Scores of the best trial of simulated searches without skill.

    Attributes:
        scores: ascending.
    """

    scores: Array

    def probability(self, score: float) -> float:
        """Return the share of searches whose best trial has a lower score.

        One minus the p value (1 + #{best ≥ score})/(searches + 1), so it is never 1.
        """
        below = int(np.searchsorted(self.scores, score, side="left"))
        return below / (len(self.scores) + 1)

    @property
    def mean(self) -> float:
        """The expected score of the best."""
        return float(np.mean(self.scores))

    @property
    def needed(self) -> float:
        """The lowest score whose probability is at least `CONFIDENCE`."""
        count = math.ceil(CONFIDENCE * (len(self.scores) + 1))
        return float(np.nextafter(self.scores[count - 1], math.inf))

    @property
    def effective(self) -> float:
        """N_eff, the number of independent trials that need the same score.

        Solved for N: Φ(needed)^N = CONFIDENCE.
        """
        return math.log(CONFIDENCE) / math.log1p(-NORMAL.cdf(-self.needed))


@lru_cache(maxsize=64)
def best_by_luck(links: tuple[Link, ...]) -> BestByLuck:
    """Simulate searches that proceed as this one did, on trials without skill.

    The score of trial k is ρ · (score of the earlier trial) + √(1 - ρ²) · (a new standard normal
    number). A search decides by ranks: good trials lead to similar ones. So the earlier trial is
    the one that has the same rank at that time in the simulated search. A search that varies its
    best trial therefore adds up luck in the simulation, too. Each trial can only raise the best,
    and a copy (ρ = 1) changes nothing.

    The dependence on one earlier trial is kept, that on others is lost. So trials that are alike
    without being derived from each other count as less alike than they are, which overstates their
    luck. Ranks are followed among the best `TRACKED` trials; for another rank, the earlier trial is
    the same as in the search.

    Args:
        links: one per trial, in the order in which they were made; at least one.
    """
    random = np.random.default_rng(len(links))  # the same trials give the same figures everywhere
    # In chunks, which bounds the memory.
    size = min(SEARCHES, max(1, CHUNK // len(links)))
    sizes = [min(size, SEARCHES - start) for start in range(0, SEARCHES, size)]
    return BestByLuck(np.sort(np.concatenate([_bests(links, one, random) for one in sizes])))


def _bests(links: Sequence[Link], searches: int, random: np.random.Generator) -> Array:
    """Return (searches,) scores of the best trial, see `best_by_luck`."""
    scores = random.standard_normal((len(links), searches))
    top = np.full((TRACKED, searches), -np.inf)  # each column descending
    for own, link in enumerate(links):
        scores[own] *= math.sqrt(1.0 - link.correlation**2)
        if own and link.correlation > 0.0:
            parent = top[link.rank] if link.rank < TRACKED else scores[link.parent]
            scores[own] += link.correlation * parent
        # Insert into the sorted columns: those that are lower move down by one place.
        used = min(own + 1, TRACKED)
        moved = np.minimum(top[: used - 1], scores[own])
        top[:used] = np.maximum(top[:used], np.concatenate([scores[own][None], moved]))
    best: Array = top[0]
    return best


def expected_maximum(trials: float) -> float:
    """Return about the expected maximum of N independent standard normal numbers.

        (1 - γ) · Φ⁻¹(1 - 1/N) + γ · Φ⁻¹(1 - 1/(N·e)),  γ the Euler-Mascheroni constant

    0 for N < 2.
    """
    if trials < 2.0:
        return 0.0
    # The maximum of N standard normals tends to a Gumbel distribution, whose location and scale are
    # these quantiles (scale = second - first) and whose mean is location + γ · scale.
    first, second = (
        NORMAL.inv_cdf(1.0 - 1.0 / trials),
        NORMAL.inv_cdf(1.0 - 1.0 / (trials * math.e)),
    )
    return (1.0 - EULER_GAMMA) * first + EULER_GAMMA * second


def minimum_backtest_years(trials: float, annual_sharpe: float = 1.0) -> float:
    """Return MinBTL, in years of data.

    With less data, the best of N trials without skill is expected to show that annual Sharpe ratio.

        MinBTL = (expected_maximum(N) / SR)²
    """
    # Over y years, the annual Sharpe ratio of a trial without skill is N(0, 1/y), so the best of N
    # is expected at expected_maximum(N) / √y: solved for y.
    return (expected_maximum(trials) / annual_sharpe) ** 2


def planned_sharpe(bars: int, trials: int) -> float:
    """Return the Sharpe ratio (per bar) that the best of N independent trials needs.

    The returns are independent, too. The probability that the best of N trials without skill is
    lower is `CONFIDENCE`: Φ(score)^N = CONFIDENCE. Infinite if there are too few bars.
    """
    score = NORMAL.inv_cdf(CONFIDENCE ** (1.0 / max(trials, 1)))
    return without_autocorrelation(bars).ratio(score)
