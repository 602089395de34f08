"""Confidence intervals of results: a value, its bounds, and what was resampled.

A result depends on the seeds of training and on the episodes (or games) that were played. What an
interval holds for follows from which of them would be drawn again:

* seeds that all play the same episodes, as the trials of a study do: `crossed`;
* seeds that play episodes of their own, as fresh seeds do: `over_seeds`;
* two configurations that play the same episodes: `paired`;
* a share, such as the seeds that solve a game or the games won: `clopper_pearson`;
* the ratio of two means over the same episodes: `ratio_of_means`.

The value is the mean: the intervals hold for it. Student's intervals follow from the variance, and
equal values have none. If the range of scores is known, equal values have Gaffke's bounds instead;
otherwise they have no bounds, and the screens say that they are equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
LEVEL = 0.95
SEEDS, EPISODES, BOTH = "seeds", "episodes", "seeds and episodes"
STUDENT, TWO_WAY, GAFFKE, EXACT = "Student", "two-way Student", "Gaffke", "Clopper-Pearson"
FIELLER = "Fieller"
EQUAL = "equal"  # in place of a method: the values are equal, and their range is not known
FEW = 5  # with fewer seeds, the seeds themselves are shown: an interval says little about them
DRAWS = 20_000  # of Gaffke's bounds: their level is then right to 0.001
BLOCKS = 32  # most means of episodes that are kept of an evaluation
# Episodes may add this share to the standard error that the seeds alone cause.
ADDED: Final = 1 / 3
SLACK = 1e-6  # rounding of sums of float32 rewards, as a share of a range or of the largest of them


@dataclass(frozen=True)
class Interval:
    """A value with its confidence interval.

    Attributes:
        value: the mean, or the share.
        low: lower bound; infinite if there are no bounds.
        high: upper bound, likewise.
        resampled: what the interval resamples: "seeds", "episodes", "seeds and episodes", or the
            name that the caller gave. Without it, the bounds say nothing.
        level: confidence of the interval, two-sided.
        method: name of the interval, or `EQUAL`.
    """

    value: float
    low: float
    high: float
    resampled: str
    level: float = LEVEL
    method: str = ""

    @property
    def known(self) -> bool:
        """Whether there are bounds: one value alone has none, nor have equal values as such."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def empty(self) -> bool:
        """Whether it says nothing, as of one value alone."""
        return not self.known and self.method != EQUAL

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data for JSON; bounds that are not known are None."""
        return asdict(self) | ({} if self.known else {"low": None, "high": None})

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Self:
        """Return the interval of `to_dict`."""
        unknown = {"low": -math.inf, "high": math.inf} if found["low"] is None else {}
        return cls(**{**found, **unknown})

    def trusted(self, seeds: int) -> bool:
        """Whether it may be shown of the mean of this many seeds.

        Student's of few seeds does not hold in games that seeds either solve or fail. Gaffke's
        bounds do, and those over the episodes of given seeds. That few seeds are equal is not said:
        the seeds themselves are shown.
        """
        holds = self.method == GAFFKE or self.resampled == EPISODES or seeds >= FEW
        return holds and not self.empty

    @property
    def over(self) -> str:
        """What it holds for: `95% over seeds`, or `equal in all seeds`."""
        equal = self.method == EQUAL
        return f"{'equal in all' if equal else f'{100 * self.level:.4g}% over'} {self.resampled}"

    def between(self, form: str = "{:+.4f}") -> str:
        """Format the interval: `95% over seeds +0.1000 … +0.2000`, or `equal in all seeds`."""
        return self.over if self.method == EQUAL else f"{self.over} {self.bounds(form)}"

    def bounds(self, form: str = "{:+.4f}") -> str:
        """Format the bounds alone: `+0.1000 … +0.2000`, or `none, all equal`."""
        if self.method == EQUAL:
            return "none, all equal"
        return f"{form.format(self.low)} … {form.format(self.high)}"


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


def crossed(
    returns: ArrayLike, limits: tuple[float, float] | None = None, level: float = LEVEL
) -> Interval:
    """Return the mean of seeds that play the same episodes, and its two-way Student interval.

    The variance of the mean is the sum of its components, which are not below 0, and its degrees of
    freedom are Satterthwaite's (F. E. Satterthwaite 1946). One seed: only episodes are resampled,
    so the interval holds for this seed. One episode: only seeds are.

    Args:
        returns: (seeds, episodes) returns; episode e is the same one for all seeds.
        limits: lowest and highest possible return, if they are known.
        level: confidence.
    """
    own = np.asarray(returns, dtype=np.float64)
    count, games = own.shape
    if _equal(own):
        return _of_equal(float(own.mean()), *_drawn(count, games), limits, level)
    if count == 1 or games == 1:
        return _student(own.ravel(), _drawn(count, games)[0], level)
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
            is outside, Student's, which needs scores that are about normal and not all equal.
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


def paired(
    ours: ArrayLike,
    theirs: ArrayLike,
    limits: tuple[float, float] | None = None,
    level: float = LEVEL,
) -> Interval:
    """Return the difference of the means of two configurations that play the same episodes.

    Episodes that are hard for both cancel out, so fewer episodes decide than of separate intervals.
    As in `crossed`, components of the variance are not below 0.

    Args:
        ours: (seeds, episodes) returns.
        theirs: (seeds, episodes) returns of the same episodes; seeds may be another number.
        limits: lowest and highest possible return, if they are known.
        level: confidence.
    """
    one, other = (np.asarray(own, dtype=np.float64) for own in (ours, theirs))
    difference = one.mean(0) - other.mean(0)
    value = float(one.mean() - other.mean())
    fewer, games = min(len(one), len(other)), one.shape[1]
    scale = float(max(np.abs(one).max(), np.abs(other).max()))
    if _equal(one[:, None] - other, scale):
        widest = None if limits is None else (limits[0] - limits[1], limits[1] - limits[0])
        return _of_equal(value, *_drawn(fewer, games), widest, level)
    if fewer == 1:  # the variance of its seeds is not known
        return _student(difference, EPISODES, level, scale)
    seeds = [(float(own.mean(1).var(ddof=1)) / len(own), len(own) - 1) for own in (one, other)]
    if games == 1:
        total = sum(term for term, _ in seeds)
        freedom = max(_satterthwaite(total, seeds), fewer - 1)
        return _around(value, total, freedom, SEEDS, level)
    inner = [
        (_mean_squares(own)[2] / own.size, (len(own) - 1) * (games - 1)) for own in (one, other)
    ]
    rest = sum(term for term, _ in inner)
    luck = float(difference.var(ddof=1)) / games
    by_seed = sum(max(term, least) for (term, _), (least, _) in zip(seeds, inner, strict=True))
    total = by_seed + max(luck, rest) - rest
    freedom = _satterthwaite(total, [*seeds, (luck, games - 1), *inner])
    return _around(value, total, max(freedom, min(fewer, games) - 1), BOTH, level, TWO_WAY)


def ratio_of_means(above: ArrayLike, span: ArrayLike, level: float = LEVEL) -> Interval:
    """Return mean(above) / mean(span) of paired values and its interval (E. C. Fieller 1954).

    The bounds are the ratios r for which Student's interval of `above - r span` has 0 in it. If the
    mean of `span` is not above 0 for certain, at this level, there are no bounds.

    Args:
        above: (n,) numerators, of n episodes.
        span: (n,) denominators of the same episodes.
        level: confidence.
    """
    from scipy.special import stdtrit

    one, other = (np.asarray(own, dtype=np.float64) for own in (above, span))
    count = one.size
    ratio = float(one.mean() / other.mean()) if other.mean() else math.nan
    unknown = Interval(ratio, -math.inf, math.inf, EPISODES, level, FIELLER)
    if count < 2 or other.mean() <= 0.0:
        return unknown
    covariance = np.cov(one, other) / count
    reach = float(stdtrit(count - 1, (1.0 + level) / 2.0)) ** 2
    # (mean(above) - r mean(span))² = reach * variance of that, a quadratic equation in r.
    square = other.mean() ** 2 - reach * covariance[1, 1]
    if square <= 0.0:
        return unknown
    middle = one.mean() * other.mean() - reach * covariance[0, 1]
    rest = one.mean() ** 2 - reach * covariance[0, 0]
    half = math.sqrt(max(0.0, middle**2 - square * rest))
    low, high = (middle - half) / square, (middle + half) / square
    return Interval(ratio, float(low), float(high), EPISODES, level, FIELLER)


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
    if few := few_scores(scores, form):
        parts.append(f"seeds {few}")
        parts += [solved] if solved else []
    return "; ".join(parts)


def few_scores(scores: Sequence[float], form: str = "{:+.4f}") -> str:
    """Return the scores of few seeds as text; "" of one seed, and of so many that they are a list."""
    return ", ".join(form.format(score) for score in scores) if 1 < len(scores) < FEW else ""


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


def _drawn(seeds: int, episodes: int) -> tuple[str, int]:
    """Return what (seeds, episodes) returns resample, and how many of them are independent.

    Returns with a seed or an episode in common are not: of both, those of pairs are that have a
    seed and an episode of their own.
    """
    if seeds == 1:
        return EPISODES, episodes
    return (SEEDS, seeds) if episodes == 1 else (BOTH, min(seeds, episodes))


def _equal(values: Floats, scale: float = 0.0) -> bool:
    """Return whether there are several values, and all are equal to rounding.

    scale: of the numbers that they were computed from, if it is larger than their own.
    """
    scale = max(scale, float(np.abs(values).max()))
    return values.size > 1 and float(np.ptp(values)) <= SLACK * scale


def _of_equal(
    value: float, resampled: str, count: int, limits: tuple[float, float] | None, level: float
) -> Interval:
    """Return the interval of equal values, `count` of which are independent."""
    if limits is None or outside([value], limits) is not None:
        return Interval(value, -math.inf, math.inf, resampled, level, EQUAL)
    bounds = gaffke(np.full(count, value).clip(*limits), limits, level)
    return Interval(value, *bounds, resampled, level, GAFFKE)


def _student(values: Floats, resampled: str, level: float, scale: float = 0.0) -> Interval:
    """Return Student's interval (1908) of the mean of (n,) values; infinite for one value."""
    mean = float(values.mean())
    if _equal(values, scale):
        return _of_equal(mean, resampled, values.size, None, level)
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
