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

* `deflated-sharpe`: the trial's mean over all blocks must reach the score that the best of a search
  without skill stays below with a probability of 95% (`sweepd.envs.crypto.scoring.luck`);
* `pbo`: computed from the blocks by its definition, over `HALVES` of the 12,870 ways to halve them;
* `holdout-excess`: an independent test on the hold-out's bars at the level of the next evaluation.

Doubling the years has the same effect as multiplying the edge by √2, so one simulation answers all
questions about a study.

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

from sweepd.deploy.promotion.bootstrap import gate_level
from sweepd.deploy.promotion.overfitting import BLOCKS
from sweepd.envs.crypto.scoring.luck import CONFIDENCE, NORMAL

Array = NDArray[np.float64]
PBO_LIMIT = 0.2  # of the rule `pbo`
# Of the hold-out's test: reproduces its measured power, 86 to 87% for an advantage of three standard
# errors at a level of 5% (docs/explanation/gate.md).
FREEDOM = 10.0
STUDIES = 400  # simulated ones: a share of them has a standard error of at most 2.5 points
HALVES = 500  # ways to halve the blocks in a simulated study
SHORT_BLOCKS = 512  # sums of returns from which the trials' correlations are taken, at most
GRID = np.linspace(0.0, 12.0, 25)  # edges at which studies are simulated, in standard errors
MOST_EDGE = 100.0  # in standard errors of the hold-out: larger ones are not considered
FEWEST = 2  # trials without which there is no PBO
LONGEST = 1_000.0  # times the years of a study: more is no plan


@dataclass(frozen=True, eq=False)
class GatePower:
    """How often the gate finds a trial with an edge.

    A standard error here is that of the mean excess return of a year, per year: the tracking error,
    times a factor for autocorrelation.

    Attributes:
        years: of bars in a back-test path of cross-validation.
        holdout_years: of bars in the hold-out.
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

    years: float
    holdout_years: float
    error: float
    path_error: float
    needed: float
    level: float
    weights: Array
    inflations: Array
    trial: int = 0
    pbo: float = PBO_LIMIT

    def probability(self, edge: float, stretch: float = 1.0) -> float:
        """The share of studies that find an edge.

        Args:
            edge: mean excess return per year.
            stretch: length of such a study, in lengths of this one.
        """
        score = edge / self.path_error * math.sqrt(stretch * self.years)
        first = float(np.interp(score, GRID, self._first_stage))
        # Cross-validation and hold-out have no bar in common, so their tests are independent.
        return first * self._holdout(edge / self.error * math.sqrt(stretch * self.holdout_years))

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
        return math.exp(found - most) * (self.years + self.holdout_years)

    def _holdout(self, score: float) -> float:
        """The probability that the test on the hold-out is significant.

        About that of Student's test with `FREEDOM` degrees of freedom, whose statistic is normal
        with the deviation √(1 + t²/2ν) at its limit t.

        Args:
            score: the edge in standard errors.
        """
        from scipy.special import stdtrit  # takes long to import

        limit = float(stdtrit(FREEDOM, 1.0 - self.level))
        return NORMAL.cdf((score - limit) / math.sqrt(1.0 + limit**2 / (2.0 * FREEDOM)))

    @cached_property
    def _first_stage(self) -> Array:
        """(GRID,) shares of studies that meet `deflated-sharpe` and `pbo`."""
        random = np.random.default_rng(0)  # the same study gives the same figures
        halves, found = _halves(random), np.zeros(len(GRID))
        blocks, trials = self.weights.shape
        # The true means of a block per step of the grid; see the module's docstring.
        correlations = self.weights.T @ self.weights[:, self.trial]
        own = self.inflations[self.trial] * self.path_error / self.error
        shares = own * correlations / math.sqrt(BLOCKS)
        for _ in range(STUDIES):
            noise = random.standard_normal((BLOCKS, blocks)) @ self.weights
            score = float(noise[:, self.trial].sum()) / math.sqrt(BLOCKS)
            noise *= self.inflations
            # The larger the edge, the lower the PBO: the first place of the grid with both rules.
            first, last = int(np.count_nonzero(GRID + score < self.needed)), len(GRID)
            while trials >= FEWEST and first < last:
                middle = (first + last) // 2
                met = _pbo(halves, noise + GRID[middle] * shares) <= self.pbo
                first, last = (first, middle) if met else (middle + 1, last)
            found[first:] += 1.0
        return found / STUDIES


def planned_power(
    years: float,
    *,
    holdout: float,
    trials: int,
    tracking_error: float,
    correlation: float,
    looks: int = 0,
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
    """
    common = np.full((1, trials), math.sqrt(correlation))
    return GatePower(
        years=(1.0 - holdout) * years,
        holdout_years=holdout * years,
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
    best = np.argmax(inside, axis=1)[:, None]
    rank = 1 + np.count_nonzero(outside < np.take_along_axis(outside, best, axis=1), axis=1)
    return float(np.mean(2 * rank <= means.shape[1] + 1))  # the logit is 0 at most
