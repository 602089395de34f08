"""The power of the gate of markets: how often it finds a policy that has a given edge.

An **edge** is a mean return in excess of equal weight, after fees, as a share of the capital per
year. The **power** is the share of studies like this one in which a trial with that edge meets the
three statistical rules of the gate: `deflated-sharpe`, `pbo` and `holdout-excess`. The other rules
(trades, drawdown, constant policies, the champion) are taken as met, so the power is an upper bound.
The bias of a search, whose best trial shows more than its edge, is not part of it: an edge is a true
mean, not a measured one.

The tests see means over many bars, which are about normal. So a study is simulated by the means of
its trials over the `BLOCKS` blocks of the PBO:

    mean of trial j over a block, in standard errors = ratio_j · √years / √BLOCKS + error_j · noise

where `ratio_j` is the true annual information ratio, and `error_j` the factor by which
autocorrelation raises the standard error. The noise of the trials is correlated as their returns
are. The trial in question has ratio = edge / tracking error; another one, whose returns have a
correlation ρ with it, has ρ times that ratio: it has as much of the edge as it holds the same
positions. Then

* `deflated-sharpe`: t = (edge + noise) / error of the trial's mean over all blocks must reach the
  quantile of Student's distribution that the gate requires: that of the score which the best of a
  search without skill stays below with a probability of 95% (`sweepd.envs.crypto.scoring.luck`). The
  estimate of the error varies with the same ν degrees of freedom, by about 1/√2ν;
* `pbo`: computed from the blocks by its definition, over `HALVES` of the 12,870 ways to halve them;
* `holdout-excess`: the hold-out's own test, on simulated series of as many bars
  (`sweepd.deploy.market.holdout_power`).

Each simulated study has a least edge, in standard errors, that meets each rule. Doubling the years has
the same effect as multiplying the edge by √2, except that ν grows. So one simulation answers all
questions about a study. `scripts/bench/quality/gate_power.py` compares its answers with studies that
are simulated bar by bar and judged by the gate's own functions.

Sources: D. H. Bailey and M. López de Prado 2014, "The Deflated Sharpe Ratio"; D. H. Bailey, J. M.
Borwein, M. López de Prado and Q. J. Zhu 2017, "The Probability of Backtest Overfitting"; C. R. Harvey
and Y. Liu 2020, "False (and Missed) Discoveries in Financial Economics" (power of a selection among
many strategies by simulated ones with a planted edge); V. Chernozhukov, D. Chetverikov and K. Kato
2013 (noise with the trials' covariance: sums of their returns over short blocks, times normal
numbers).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sweepd.deploy.market.holdout_power import FEW_BARS, least_edges
from sweepd.deploy.promotion.bootstrap import gate_level
from sweepd.deploy.promotion.overfitting import BLOCKS
from sweepd.envs.crypto.data.timeframe import bars_per_year
from sweepd.envs.crypto.scoring.luck import CONFIDENCE, NORMAL, without_autocorrelation

Array = NDArray[np.float64]
PBO_LIMIT = 0.2  # of the rule `pbo`
STUDIES = 400  # simulated ones: a share of them has a standard error of at most 2.5 points
HALVES = 250  # ways to halve the blocks in a simulated study
SHORT_BLOCKS = 512  # sums of returns from which the trials' correlations are taken, at most
GRID = np.linspace(0.0, 12.0, 49)  # edges of which the least one for the PBO is found, in errors
MOST_EDGE = 100.0  # in standard errors of the hold-out: larger ones are not considered
FEWEST = 2  # trials without which there is no PBO
LONGEST = 1_000.0  # times the years of a study: more is no plan


@dataclass(frozen=True, eq=False)
class GatePower:
    """How often the gate finds a trial with an edge.

    A standard error here is that of the mean excess return of a year, per year: the tracking error,
    times a factor for autocorrelation.

    Attributes:
        bars: in a back-test path of cross-validation.
        holdout_bars: in the hold-out.
        year: bars in a year.
        error: standard error of the trial's mean over paths, which the PBO and, about, the hold-out
            see.
        path_error: standard error of one path, which the deflated Sharpe ratio sees.
        needed: normal score that `deflated-sharpe` needs.
        level: of the hold-out's test.
        weights: (short blocks, trials) unit columns; the product of two columns is the correlation
            of the trials.
        inflations: (trials,) factor of every trial's standard error by autocorrelation.
        trial: column of the trial with the edge.
        pbo: limit of the rule `pbo`.
    """

    bars: int
    holdout_bars: int
    year: float
    error: float
    path_error: float
    needed: float
    level: float
    weights: Array
    inflations: Array
    trial: int = 0
    pbo: float = PBO_LIMIT

    @property
    def holdout_years(self) -> float:
        """Length of the hold-out."""
        return self.holdout_bars / self.year

    @property
    def years(self) -> float:
        """Length of all bars, hold-out included."""
        return (self.bars + self.holdout_bars) / self.year

    def probability(self, edge: float, stretch: float = 1.0) -> float:
        """The share of studies that find an edge.

        Args:
            edge: mean excess return per year.
            stretch: length of such a study, in lengths of this one.
        """
        from scipy.special import stdtrit  # takes long to import

        path_years = stretch * self.bars / self.year
        freedom = without_autocorrelation(int(stretch * self.bars)).freedom
        limit = -float(stdtrit(freedom, NORMAL.cdf(-self.needed)))
        studies = self._studies
        least = limit * (1.0 + studies.errors / math.sqrt(2.0 * freedom)) - studies.scores
        score = edge / self.path_error * math.sqrt(path_years)
        first = float(np.mean(np.maximum(least, studies.pbo_edges) <= score))
        # Cross-validation and hold-out have no bar in common, so their tests are independent.
        score = edge / self.error * math.sqrt(stretch * self.holdout_years)
        found = int(np.searchsorted(self._holdout_edges, score, side="right"))
        return first * found / len(self._holdout_edges)

    def obstacle(self) -> str:
        """Why no edge at all is found in half of the studies."""
        if math.isinf(self._holdout_edges[0]):
            if self.holdout_bars < FEW_BARS:
                return f"the hold-out has {self.holdout_bars} bars, at least {FEW_BARS} are needed"
            return "no p value is as small as the level of the next evaluation on this hold-out"
        return "the trials are too alike for the rule pbo"

    def edge_found(self, share: float) -> float:
        """The least edge that is found in this share of the studies; infinite if there is none."""
        most = MOST_EDGE * self.error / math.sqrt(self.holdout_years)
        return _least(self.probability, share, most)

    def years_for(self, edge: float, share: float) -> float:
        """Years of bars, hold-out included, in which the edge is found in this share of studies.

        Infinite if there is no such number up to `LONGEST` times the study's years.
        """
        if edge <= 0.0:
            return math.inf
        # In the logarithm, so that short and long studies are found with the same relative error.
        most = math.log(LONGEST)
        found = _least(
            lambda step: self.probability(edge, math.exp(step - most)), share, 2.0 * most
        )
        return math.exp(found - most) * self.years

    @cached_property
    def _holdout_edges(self) -> Array:
        """(STUDIES,) least edges that the hold-out's test finds, in its standard errors."""
        factor = float(self.inflations[self.trial])
        return least_edges(self.holdout_bars, factor, self.level, STUDIES)

    @cached_property
    def _studies(self) -> _Studies:
        """The first stage in simulated studies."""
        random = np.random.default_rng(0)  # the same study gives the same figures
        halves, places = _halves(random), len(GRID)
        freedom = without_autocorrelation(self.bars).freedom
        blocks, trials = self.weights.shape
        # The true means of a block per step of the grid; see the module's docstring.
        correlations = self.weights.T @ self.weights[:, self.trial]
        own = self.inflations[self.trial] * self.path_error / self.error
        shares = own * correlations / math.sqrt(BLOCKS)
        scores, errors, pbo_edges = np.empty(STUDIES), np.empty(STUDIES), np.zeros(STUDIES)
        for study in range(STUDIES):
            noise = random.standard_normal((BLOCKS, blocks)) @ self.weights
            scores[study] = noise[:, self.trial].sum() / math.sqrt(BLOCKS)
            errors[study] = random.standard_normal()
            if trials < FEWEST:
                continue
            noise *= self.inflations
            # The larger the edge, the lower the PBO: the first place of the grid that meets the rule.
            # Smaller edges than this one do not meet `deflated-sharpe`.
            error = 1.0 + min(errors[study], 0.0) / math.sqrt(2.0 * freedom)
            first, last = int(np.count_nonzero(self.needed * error - scores[study] > GRID)), places
            middle = first
            while first < last:
                met = _pbo(halves, noise + GRID[middle] * shares) <= self.pbo
                first, last = (first, middle) if met else (middle + 1, last)
                middle = (first + last) // 2
            # Between this place and the one before.
            pbo_edges[study] = GRID[first] - 0.5 * GRID[1] if first < places else math.inf
        return _Studies(scores, errors, pbo_edges)


@dataclass(frozen=True, eq=False)
class _Studies:
    """Simulated studies.

    Attributes:
        scores: (STUDIES,) noise of the trial's mean over all blocks, in standard errors.
        errors: (STUDIES,) standard normal, that of the error's estimate.
        pbo_edges: (STUDIES,) least edges that meet `pbo`, in standard errors.
    """

    scores: Array
    errors: Array
    pbo_edges: Array


def planned_power(
    years: float,
    *,
    holdout: float,
    trials: int,
    tracking_error: float,
    correlation: float,
    looks: int = 0,
    timeframe: str = "1h",
) -> GatePower:
    """The power of a study that is planned: nothing of it is measured yet.

    Its trials are judged once, at the end of their training. For `deflated-sharpe` they count as
    independent, as in the ratio that `train` prints at its start; all pairs of their returns have
    the same correlation. Returns have no autocorrelation.

    Args:
        years: of bars.
        holdout: share of them in the hold-out.
        trials: number of trials.
        tracking_error: standard deviation of the returns in excess of equal weight, per year.
        correlation: of the excess returns of two trials, from 0 to below 1.
        looks: evaluations that were made on the hold-out before.
        timeframe: length of a bar.
    """
    year = bars_per_year(timeframe)
    common = np.full((1, trials), math.sqrt(correlation))
    return GatePower(
        bars=round((1.0 - holdout) * years * year),
        holdout_bars=round(holdout * years * year),
        year=year,
        error=tracking_error,
        path_error=tracking_error,
        needed=NORMAL.inv_cdf(CONFIDENCE ** (1.0 / trials)),
        level=gate_level(looks + 1),
        weights=np.concatenate([common, math.sqrt(1.0 - correlation) * np.eye(trials)]),
        inflations=np.ones(trials),
    )


def up(edge: float) -> str:
    """An edge in per cent, rounded up to two digits, so that no smaller one is promised."""
    if edge <= 0.0:
        return "0%"
    step = 10.0 ** (math.floor(math.log10(100.0 * edge)) - 1)
    return f"{math.ceil(100.0 * edge / step - 1e-9) * step:,.4g}%"


def tenths(share: float) -> str:
    """A share of studies, rounded down: `3 of 10`."""
    whole = int(10.0 * share + 1e-9)
    return f"{whole} of 10" if whole else "fewer than 1 of 10"


def _least(share_at: Callable[[float], float], share: float, most: float) -> float:
    """The least argument in 0 … most whose share is reached, by bisection; infinite if none is."""
    if share_at(most) < share:
        return math.inf
    low, high = 0.0, most
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if share_at(middle) >= share else (middle, high)
    return high


def _halves(random: np.random.Generator) -> NDArray[np.float32]:
    """(HALVES, BLOCKS): 1 for the blocks of a random half, 0 for those of the other."""
    order = np.argsort(random.random((HALVES, BLOCKS)), axis=1)
    return (order < BLOCKS // 2).astype(np.float32)


def _pbo(halves: NDArray[np.float32], means: Array) -> float:
    """PBO of (BLOCKS, trials) means in standard errors; see `cscv`."""
    own = means.astype(np.float32)
    inside = halves @ own
    outside = own.sum(axis=0) - inside
    best = outside[np.arange(len(halves)), np.argmax(inside, axis=1)]
    rank = 1 + np.count_nonzero(outside < best[:, None], axis=1)
    return float(np.mean(2 * rank <= means.shape[1] + 1))  # the logit is 0 at most
