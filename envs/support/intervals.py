"""Confidence intervals of results: a value, its bounds, and what was resampled.

A result depends on the seeds of training and on the episodes (or games) that were played. What an
interval holds for follows from which of them would be drawn again:

* seeds that all play the same episodes, as the trials of a study do: `crossed`;
* seeds that play episodes of their own, as fresh seeds do: `over_seeds`;
* two configurations that play the same episodes: `paired`;
* a share, such as the seeds that solve a game or the games won: `clopper_pearson`.

The value is the mean: the intervals hold for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
LEVEL = 0.95
SEEDS, EPISODES, BOTH = "seeds", "episodes", "seeds and episodes"
STUDENT, TWO_WAY, GAFFKE, EXACT = "Student", "two-way Student", "Gaffke", "Clopper-Pearson"
FEW = 5  # with fewer seeds, the seeds themselves are shown: an interval says little about them
DRAWS = 20_000  # of Gaffke's bounds: their level is then right to 0.001
BLOCKS = 32  # most means of episodes that are kept of an evaluation
# Episodes may add this share to the standard error that the seeds alone cause.
ADDED: Final = 1 / 3
SLACK = 1e-6  # of the width of a range of scores: sums of float32 rewards are rounded


@dataclass(frozen=True)
class Interval:
    """A value with its confidence interval.

    Attributes:
        value: the mean, or the share.
        low: lower bound.
        high: upper bound.
        resampled: what the interval resamples: "seeds", "episodes", "seeds and episodes", or the
            name that the caller gave. Without it, the bounds say nothing.
        level: confidence of the interval, two-sided.
        method: name of the interval; empty in records of earlier versions.
    """

    value: float
    low: float
    high: float
    resampled: str
    level: float = LEVEL
    method: str = ""

    @property
    def known(self) -> bool:
        """Whether there are bounds: one value alone has none."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def trusted(self, seeds: int) -> bool:
        """Whether it may be shown of the mean of this many seeds.

        Student's of few seeds does not hold in games that seeds either solve or fail. Gaffke's
        bounds do, and those over the episodes of given seeds.
        """
        return self.known and (self.method == GAFFKE or self.resampled == EPISODES or seeds >= FEW)

    def between(self, form: str = "{:+.4f}") -> str:
        """Format the bounds: `95% over seeds +0.1000 … +0.2000`."""
        bounds = f"{form.format(self.low)} … {form.format(self.high)}"
        return f"{100 * self.level:.4g}% over {self.resampled} {bounds}"


@dataclass(frozen=True)
class Components:
    """Variances of the return of one episode of one seed, see `components`.

    Attributes:
        seed: between seeds, of the mean over all episodes.
        episode: between episodes, of the mean over all seeds.
        interaction: of what is left: it differs by seed and by episode.
    """

    seed: float
    episode: float
    interaction: float

    def episodes(self, seeds: int, added: float = ADDED) -> float:
        """Return the number of episodes that add at most this share to the error of the seeds.

        The variance of the mean of S seeds over E common episodes is `seed / S + episode / E +
        interaction / (S E)`. Infinite if seeds do not differ but episodes do.
        """
        luck = self.episode + self.interaction / seeds
        if luck <= 0.0:
            return 1.0
        allowed = ((1.0 + added) ** 2 - 1.0) * self.seed / seeds
        return luck / allowed if allowed > 0.0 else math.inf


def components(returns: ArrayLike) -> Components:
    """Return the variance components of (seeds, episodes) returns of common episodes.

    Two-way analysis of variance without replication; components below 0 are set to 0 (S. R. Searle,
    G. Casella and C. E. McCulloch 1992, "Variance Components", chapter 4). At least two of each.
    """
    own = np.asarray(returns, dtype=np.float64)
    seeds, episodes, interaction = _mean_squares(own)
    return Components(
        max(0.0, seeds - interaction) / own.shape[1],
        max(0.0, episodes - interaction) / own.shape[0],
        interaction,
    )


def crossed(returns: ArrayLike, level: float = LEVEL) -> Interval:
    """Return the mean of seeds that play the same episodes, and its two-way Student interval.

    The variance of the mean is the sum of its components, which are not below 0, and its degrees of
    freedom are Satterthwaite's (F. E. Satterthwaite 1946). One seed: only episodes are resampled,
    so the interval holds for this seed. One episode: only seeds are.

    Args:
        returns: (seeds, episodes) returns; episode e is the same one for all seeds.
        level: confidence.
    """
    own = np.asarray(returns, dtype=np.float64)
    count, games = own.shape
    if count == 1 or games == 1:
        return _student(own.ravel(), EPISODES if count == 1 else SEEDS, level)
    seeds, episodes, interaction = _mean_squares(own)
    total = max(seeds, interaction) + max(episodes, interaction) - interaction
    terms = [(seeds, count - 1), (episodes, games - 1), (interaction, (count - 1) * (games - 1))]
    freedom = max(_satterthwaite(total, terms), min(count, games) - 1)
    return _around(float(own.mean()), total / own.size, freedom, BOTH, level, TWO_WAY)


def over_seeds(
    scores: ArrayLike,
    limits: tuple[float, float] | None = None,
    level: float = LEVEL,
    draws: int = DRAWS,
) -> Interval:
    """Return the mean of independent scores and its interval.

    Args:
        scores: (seeds,) mean returns of seeds, each over episodes of its own.
        limits: lowest and highest possible score, if they are known. The interval is then
            Gaffke's, which holds for every distribution between them; otherwise, and if a score
            is outside, Student's, which needs scores that are about normal.
        level: confidence.
        draws: see `gaffke`.
    """
    own = np.asarray(scores, dtype=np.float64)
    if limits is not None and outside(own, limits) is None:
        bounds = gaffke(own.clip(*limits), limits, level, draws)
        return Interval(float(own.mean()), *bounds, SEEDS, level, GAFFKE)
    return _student(own, SEEDS, level)


def outside(scores: ArrayLike, limits: tuple[float, float]) -> float | None:
    """Return the score that is farthest outside of limits, None if all are inside."""
    own = np.asarray(scores, dtype=np.float64).ravel()
    beyond = np.maximum(limits[0] - own, own - limits[1])
    worst = int(np.argmax(beyond))
    return float(own[worst]) if beyond[worst] > SLACK * (limits[1] - limits[0]) else None


def gaffke(
    scores: ArrayLike, limits: tuple[float, float], level: float = LEVEL, draws: int = DRAWS
) -> tuple[float, float]:
    """Return the bounds of the mean of independent scores within known limits.

    N. Gaffke 2005, "Three test statistics for a nonparametric one-sided hypothesis on the mean of a
    nonnegative variable": the upper bound is a quantile of the means of the scores and the upper
    limit under uniformly distributed weights; the lower bound likewise. The draws have a fixed
    seed, so the bounds depend on the arguments alone.

    Args:
        scores: (n,) scores.
        limits: lowest and highest possible score.
        level: confidence of both bounds together; each has half of the rest.
        draws: number of weightings.
    """
    own = np.asarray(scores, dtype=np.float64)
    weights = _weights(own.size + 1, draws)
    means, rest = weights[:, :-1] @ own, weights[:, -1]
    low = np.quantile(means + rest * limits[0], (1.0 - level) / 2.0)
    high = np.quantile(means + rest * limits[1], (1.0 + level) / 2.0)
    return float(low), float(high)


def paired(ours: ArrayLike, theirs: ArrayLike, level: float = LEVEL) -> Interval:
    """Return the difference of the means of two configurations that play the same episodes.

    Episodes that are hard for both cancel out, so fewer episodes decide than of separate intervals.

    Args:
        ours: (seeds, episodes) returns.
        theirs: (seeds, episodes) returns of the same episodes; seeds may be another number.
        level: confidence.
    """
    one, other = (np.asarray(own, dtype=np.float64) for own in (ours, theirs))
    value = float(one.mean() - other.mean())
    games = one.shape[1]
    if len(one) == 1 or len(other) == 1:  # their seeds have no known variance
        difference = one.mean(0) - other.mean(0)
        if games > 1:
            return _student(difference, EPISODES, level)
        return Interval(value, -math.inf, math.inf, EPISODES, level, STUDENT)
    seeds, between, freedoms = [], 0.0, []
    for own in (one, other):
        means = own.mean(1)
        seeds.append(float(means.var(ddof=1)) / len(own))
        freedoms.append(len(own) - 1)
    if games == 1:
        terms = list(zip(seeds, freedoms, strict=True))
        freedom = max(_satterthwaite(sum(seeds), terms), min(freedoms))
        return _around(value, sum(seeds), freedom, SEEDS, level)
    inner = []
    for own in (one, other):
        squares = _mean_squares(own)[2] / own.size
        inner.append((squares, (len(own) - 1) * (games - 1)))
        between += squares
    luck = float((one.mean(0) - other.mean(0)).var(ddof=1)) / games
    total = sum(seeds) + luck - between
    if total <= 0.0:  # by luck: episodes matter little
        total = min(sum(seeds), luck)
    terms = [*zip(seeds, freedoms, strict=True), (luck, games - 1), *inner]
    freedom = max(_satterthwaite(total, terms), min(*freedoms, games - 1))
    return _around(value, total, freedom, BOTH, level, TWO_WAY)


def clopper_pearson(
    wins: int, trials: int, level: float = LEVEL, resampled: str = SEEDS
) -> Interval:
    """Return the share `wins / trials` and its exact interval (Clopper and Pearson 1934).

    Args:
        wins: number of successes.
        trials: number of trials; 0 gives the share 0.5 within 0 and 1.
        level: confidence.
        resampled: what the trials are.
    """
    from scipy.special import betaincinv

    tail = (1.0 - level) / 2.0
    low = float(betaincinv(wins, trials - wins + 1, tail)) if wins else 0.0
    high = float(betaincinv(wins + 1, trials - wins, 1.0 - tail)) if wins < trials else 1.0
    return Interval(wins / trials if trials else 0.5, low, high, resampled, level, EXACT)


def between(
    interval: Interval | None,
    scores: Sequence[float],
    solved: str | None = None,
    form: str = "{:+.4f}",
) -> str:
    """Say what a mean over seeds rests on: its interval, and of few seeds the seeds themselves.

    An interval that is not `trusted` is left out.

    Args:
        interval: of the mean; None if it has none.
        scores: of the seeds.
        solved: see `solved_seeds`.
        form: format of a number.
    """
    parts = []
    if interval is not None and interval.trusted(len(scores)):
        parts.append(interval.between(form))
    if 1 < len(scores) < FEW:
        parts.append(f"seeds {', '.join(form.format(score) for score in scores)}")
        parts += [solved] if solved else []
    return "; ".join(parts)


def solved_seeds(scores: Sequence[float], threshold: float) -> str:
    """Say how many seeds reach a score: `4 of 5 solved (95% over seeds 28% … 99%)`."""
    wins = sum(score >= threshold for score in scores)
    share = clopper_pearson(wins, len(scores))
    return f"{wins} of {len(scores)} solved ({share.between('{:.0%}')})"


def block_means(returns: ArrayLike, most: int = BLOCKS) -> Floats:
    """Return what intervals need to know of many episodes: (…, blocks) from (…, episodes).

    Block k summarises every `blocks`-th episode from k on. The mean over blocks is the mean over
    the episodes, and blocks scatter as means of `episodes / blocks` episodes do, so `crossed` and
    `paired` may be applied to them. The same for all seeds with the same number of episodes.
    """
    own = np.asarray(returns, dtype=np.float64)
    count = own.shape[-1]
    blocks = min(most, count)
    mean = own.mean(-1, keepdims=True)
    padded = np.zeros((*own.shape[:-1], -(-count // blocks) * blocks))
    padded[..., :count] = own - mean  # blocks may differ by one episode
    sums = padded.reshape(*own.shape[:-1], -1, blocks).sum(-2)
    return np.asarray(mean + sums * (blocks / count))


def _mean_squares(own: Floats) -> tuple[float, float, float]:
    """Return the mean squares of seeds, episodes and interaction of (seeds, episodes) values."""
    seeds, episodes = own.shape
    rows, columns = own.mean(1), own.mean(0)
    rest = own - rows[:, None] - columns + own.mean()
    interaction = float((rest**2).sum()) / ((seeds - 1) * (episodes - 1))
    return (float(episodes * rows.var(ddof=1)), float(seeds * columns.var(ddof=1)), interaction)


def _satterthwaite(total: float, terms: Sequence[tuple[float, int]]) -> float:
    """Return the degrees of freedom of a variance that is a sum of (term, freedom).

    A term's square exceeds that of its expectation by the factor (freedom + 2) / freedom on
    average; without that bias, few degrees of freedom give intervals that are too wide.
    """
    spread = sum(term**2 / (freedom + 2) for term, freedom in terms)
    return total**2 / spread - 2.0 if spread > 0.0 else 1.0


def _student(values: Floats, resampled: str, level: float) -> Interval:
    """Return Student's interval (1908) of the mean of (n,) values; infinite for one value."""
    mean = float(values.mean())
    if values.size < 2:
        return Interval(mean, -math.inf, math.inf, resampled, level, STUDENT)
    variance = float(values.var(ddof=1)) / values.size
    return _around(mean, variance, values.size - 1, resampled, level)


def _around(
    value: float,
    variance: float,
    freedom: float,
    resampled: str,
    level: float,
    method: str = STUDENT,
) -> Interval:
    from scipy.special import stdtrit

    reach = float(stdtrit(freedom, (1.0 + level) / 2.0)) * math.sqrt(variance)
    return Interval(value, value - reach, value + reach, resampled, level, method)


@lru_cache(maxsize=4)
def _weights(count: int, draws: int) -> Floats:
    """Return weights that sum to 1 and are uniformly distributed, (draws, count)."""
    return np.random.default_rng(0).dirichlet(np.ones(count), draws)
