"""How much of a Sharpe ratio is luck: what the best of many trials shows without any skill.

Everything is per bar, not annualised, unless stated otherwise. These are pure formulas, so the
search can report in advance what the gate will require.

Sources: D. H. Bailey and M. López de Prado 2012, "The Sharpe Ratio Efficient Frontier" (PSR,
MinTRL); the same 2014, "The Deflated Sharpe Ratio" (DSR); D. H. Bailey, J. M. Borwein, M. López de
Prado and Q. J. Zhu 2014, "Pseudo-Mathematics and Financial Charlatanism" (MinBTL).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

NORMAL = NormalDist()
EULER_GAMMA = 0.5772156649015329
CONFIDENCE = 0.95  # at which a Sharpe ratio counts as above a benchmark


@dataclass(frozen=True)
class Moments:
    """Moments of n returns.

    Attributes:
        n: number of returns.
        sharpe: SR, the mean over the population standard deviation.
        skewness: g3, corrected for bias.
        kurtosis: g4, raw (3 for a normal distribution), corrected for bias.
    """

    n: int
    sharpe: float
    skewness: float = 0.0
    kurtosis: float = 3.0

    @property
    def spread(self) -> float:
        """Return 1 - g3·SR + (g4 - 1)/4·SR²: n - 1 times the variance of the estimated SR.

        The variance of an estimated Sharpe ratio under non-normal returns (Mertens 2002; Bailey and
        López de Prado 2012). For normal returns it is 1 + SR²/2 (Lo 2002).
        """
        return 1.0 - self.skewness * self.sharpe + (self.kurtosis - 1.0) / 4.0 * self.sharpe**2


def moments(returns: NDArray[np.float64]) -> Moments:
    """Compute the moments of (n,) returns.

    Fewer than 4 returns, or returns that do not vary, give SR = 0 and normal higher moments.
    """
    n = returns.size
    # The bias-corrected kurtosis divides by n - 3.
    if n < 4:
        return Moments(n, 0.0)
    mean = float(np.mean(returns))
    centred = returns - mean
    m2, m3, m4 = (float(np.mean(centred**power)) for power in (2, 3, 4))
    # Constant returns vary by rounding, so the threshold is relative to their size.
    if math.sqrt(m2) <= 1e-12 * float(np.max(np.abs(returns))) or m2 == 0.0:
        return Moments(n, 0.0)
    # The usual unbiased sample estimators: G1 of skewness, G2 of excess kurtosis.
    g1, g2 = m3 / m2**1.5, m4 / m2**2
    skewness = math.sqrt(n * (n - 1.0)) / (n - 2.0) * g1
    excess = (n - 1.0) / ((n - 2.0) * (n - 3.0)) * ((n + 1.0) * g2 - 3.0 * (n - 1.0))
    return Moments(n, mean / math.sqrt(m2), skewness, excess + 3.0)


def probabilistic_sharpe(moments: Moments, benchmark: float = 0.0) -> float:
    """Return the probabilistic Sharpe ratio: P(true Sharpe ratio > `benchmark`).

        PSR(SR*) = Φ[(SR - SR*) · √(n - 1) / √(1 - g3·SR + (g4 - 1)/4·SR²)]

    0 if the moments are so extreme that the variance is not positive.
    """
    # Extreme sample moments of short series can make the estimated variance negative.
    if moments.n < 2 or not moments.spread > 0.0:
        return 0.0
    # The estimated Sharpe ratio is asymptotically normal around the true one.
    return NORMAL.cdf(
        (moments.sharpe - benchmark) * math.sqrt(moments.n - 1) / math.sqrt(moments.spread)
    )


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


def effective_trials(trials: int, correlation: float) -> float:
    """Return N_eff = N · (1 - ρ) + ρ, the equivalent number of independent trials.

    Args:
        trials: N.
        correlation: ρ, the mean correlation of the trials' returns; clipped to 0 … 1.
    """
    # Linear between N independent trials (ρ = 0) and a single one (ρ = 1).
    rho = min(max(correlation, 0.0), 1.0)
    return trials * (1.0 - rho) + rho


def luck_sharpe(variance: float, trials: float) -> float:
    """Return SR0, the Sharpe ratio that the best of N trials without skill is expected to show.

        SR0 = √V · expected_maximum(N_eff)

    Args:
        variance: V, the variance of the Sharpe ratios over the trials.
        trials: N_eff.
    """
    # The trials' Sharpe ratios without skill are N(0, V), so their maximum scales with √V.
    return math.sqrt(variance) * expected_maximum(trials)


def deflated_sharpe(moments: Moments, variance: float, trials: float) -> float:
    """Return DSR = PSR(SR0): P(true Sharpe ratio > SR0 of `trials` effective trials)."""
    return probabilistic_sharpe(moments, luck_sharpe(variance, trials))


def minimum_track_record(moments: Moments, benchmark: float = 0.0) -> float:
    """Return MinTRL, the bars needed until PSR(SR*) reaches `CONFIDENCE` at this Sharpe ratio.

        MinTRL = 1 + (1 - g3·SR + (g4 - 1)/4·SR²) · (Φ⁻¹(CONFIDENCE) / (SR - SR*))²

    Infinite if SR is not above the benchmark.
    """
    if moments.sharpe <= benchmark or not moments.spread > 0.0:
        return math.inf
    # PSR = CONFIDENCE, solved for n.
    ratio = NORMAL.inv_cdf(CONFIDENCE) / (moments.sharpe - benchmark)
    return 1.0 + moments.spread * (ratio * ratio)


def minimum_backtest_years(trials: float, annual_sharpe: float = 1.0) -> float:
    """Return MinBTL, in years of data.

    With less data, the best of N trials without skill is expected to show that annual Sharpe ratio.

        MinBTL = (expected_maximum(N) / SR)²
    """
    # Over y years, the annual Sharpe ratio of a trial without skill is N(0, 1/y), so the best of N
    # is expected at expected_maximum(N) / √y: solved for y.
    return (expected_maximum(trials) / annual_sharpe) ** 2


def needed_sharpe(
    bars: int,
    trials: float,
    variance: float | None = None,
    *,
    skewness: float = 0.0,
    kurtosis: float = 3.0,
) -> float:
    """Return the Sharpe ratio (per bar) at which DSR reaches `CONFIDENCE`.

    Args:
        bars: n, out of sample.
        trials: N, or N_eff if the correlation is known.
        variance: V over the trials; by default 1 / (n - 1), that of trials without skill.
        skewness: g3 of the returns.
        kurtosis: raw g4 of the returns.

    Returns:
        The larger solution SR of the equation below; infinite if the data are too short for any.

            (SR - SR0)² · (n - 1) = Φ⁻¹(CONFIDENCE)² · (1 - g3·SR + (g4 - 1)/4·SR²)
    """
    # DSR = CONFIDENCE, squared and sorted by powers of SR: a·SR² - 2b·SR + c = 0.
    m = bars - 1.0
    z2 = NORMAL.inv_cdf(CONFIDENCE) ** 2
    a = m - z2 * (kurtosis - 1.0) / 4.0
    # Without a positive a, the estimation error grows with SR faster than SR itself.
    if a <= 0.0:
        return math.inf
    # The estimated Sharpe ratio of a trial without skill has the variance 1 / (n - 1).
    luck = luck_sharpe(1.0 / m if variance is None else variance, trials)
    b, c = m * luck - z2 * skewness / 2.0, m * luck**2 - z2
    # Squaring added the smaller solution, which lies below SR0 and would have DSR = 1 - CONFIDENCE.
    return (b + math.sqrt(max(b * b - a * c, 0.0))) / a
