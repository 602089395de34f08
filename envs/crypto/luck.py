"""How much of a Sharpe ratio is luck: what the best of many trials shows without any skill, and what it takes to stand
above that.

Everything is per bar, not annualised, unless it says so. Pure formulas on numbers, so that the search can say in
advance what the gate will ask for afterwards.

Sources: D. H. Bailey and M. López de Prado 2012, "The Sharpe Ratio Efficient Frontier" (PSR, MinTRL); the same 2014,
"The Deflated Sharpe Ratio"; D. H. Bailey, J. M. Borwein, M. López de Prado and Q. J. Zhu 2014, "Pseudo-Mathematics and
Financial Charlatanism" (MinBTL).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

NORMAL = NormalDist()
EULER_GAMMA = 0.5772156649015329
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Moments:
    """What the formulas read of n returns: Sharpe ratio (mean over population deviation), skewness g3 and raw kurtosis
    g4 (3 for a normal distribution), both corrected for bias as samples' estimates usually are.
    """

    n: int
    sharpe: float
    skewness: float = 0.0
    kurtosis: float = 3.0

    @property
    def spread(self) -> float:
        """1 - g3·SR + (g4 - 1)/4·SR²: n - 1 times the variance of the Sharpe ratio's estimate."""
        return 1.0 - self.skewness * self.sharpe + (self.kurtosis - 1.0) / 4.0 * self.sharpe**2


def moments(returns: NDArray[np.float64]) -> Moments:
    """Moments of (n,) returns. Returns that do not vary (or fewer than 4) have a Sharpe ratio of 0 and are taken as
    normal.
    """
    n = returns.size
    if n < 4:
        return Moments(n, 0.0)
    mean = float(np.mean(returns))
    centred = returns - mean
    m2, m3, m4 = (float(np.mean(centred**power)) for power in (2, 3, 4))
    if math.sqrt(m2) <= 1e-12 * float(np.max(np.abs(returns))) or m2 == 0.0:
        return Moments(n, 0.0)
    g1, g2 = m3 / m2**1.5, m4 / m2**2
    skewness = math.sqrt(n * (n - 1.0)) / (n - 2.0) * g1
    excess = (n - 1.0) / ((n - 2.0) * (n - 3.0)) * ((n + 1.0) * g2 - 3.0 * (n - 1.0))
    return Moments(n, mean / math.sqrt(m2), skewness, excess + 3.0)


def probabilistic_sharpe(moments: Moments, benchmark: float = 0.0) -> float:
    """PSR(SR*) = Φ[(SR - SR*)·√(n-1) / √(1 - g3·SR + (g4-1)/4·SR²)]: the chance that the true Sharpe ratio is above
    `benchmark`.

    0 where moments are so extreme that the variance would not be positive.
    """
    if moments.n < 2 or not moments.spread > 0.0:
        return 0.0
    return NORMAL.cdf(
        (moments.sharpe - benchmark) * math.sqrt(moments.n - 1) / math.sqrt(moments.spread)
    )


def expected_maximum(trials: float) -> float:
    """(1-γ)·Φ⁻¹(1 - 1/N) + γ·Φ⁻¹(1 - 1/(N·e)): about the largest of N independent standard normal numbers; 0 for
    N < 2.
    """
    if trials < 2.0:
        return 0.0
    first, second = (
        NORMAL.inv_cdf(1.0 - 1.0 / trials),
        NORMAL.inv_cdf(1.0 - 1.0 / (trials * math.e)),
    )
    return (1.0 - EULER_GAMMA) * first + EULER_GAMMA * second


def effective_trials(trials: int, correlation: float) -> float:
    """N_eff = N·(1-ρ) + ρ: as how many independent trials N trials count whose returns have a mean correlation ρ (held
    to 0 … 1).
    """
    rho = min(max(correlation, 0.0), 1.0)
    return trials * (1.0 - rho) + rho


def luck_sharpe(variance: float, trials: float) -> float:
    """SR0 = √V · expected_maximum(N_eff): the Sharpe ratio that the best of N trials without skill is expected to show.

    variance: V, of the Sharpe ratios over the trials.
    """
    return math.sqrt(variance) * expected_maximum(trials)


def deflated_sharpe(moments: Moments, variance: float, trials: float) -> float:
    """DSR = PSR(SR0): the chance that the true one is above what the best of `trials` (effective) shows by luck."""
    return probabilistic_sharpe(moments, luck_sharpe(variance, trials))


def minimum_track_record(
    moments: Moments, benchmark: float = 0.0, confidence: float = CONFIDENCE
) -> float:
    """MinTRL = 1 + (1 - g3·SR + (g4-1)/4·SR²)·(Φ⁻¹(confidence)/(SR - SR*))²: bars needed before PSR(SR*) reaches
    `confidence` at this Sharpe ratio; infinite where it is not above the benchmark.
    """
    if moments.sharpe <= benchmark or not moments.spread > 0.0:
        return math.inf
    ratio = NORMAL.inv_cdf(confidence) / (moments.sharpe - benchmark)
    return 1.0 + moments.spread * (ratio * ratio)


def minimum_backtest_years(trials: float, annual_sharpe: float = 1.0) -> float:
    """MinBTL = (expected_maximum(N)/SR)²: years of data below which the best of N trials without skill is expected to
    show that annual Sharpe ratio.
    """
    return (expected_maximum(trials) / annual_sharpe) ** 2


def needed_sharpe(
    bars: int,
    trials: float,
    variance: float | None = None,
    confidence: float = CONFIDENCE,
    *,
    skewness: float = 0.0,
    kurtosis: float = 3.0,
) -> float:
    """The Sharpe ratio (per bar) at which DSR reaches `confidence`, for returns of this skewness g3 and raw kurtosis
    g4; by default normal ones.

    bars: n, out of sample. trials: N, or N_eff where the correlation is known. variance: V over the trials; by default
    1/(n-1), what trials without skill would have. Solves (SR - SR0)²·(n-1) = Φ⁻¹(confidence)²·(1 - g3·SR +
    (g4-1)/4·SR²) for the larger SR; infinite where the data are too short for any.
    """
    m = bars - 1.0
    z2 = NORMAL.inv_cdf(confidence) ** 2
    a = m - z2 * (kurtosis - 1.0) / 4.0
    if a <= 0.0:
        return math.inf
    luck = luck_sharpe(1.0 / m if variance is None else variance, trials)
    b, c = m * luck - z2 * skewness / 2.0, m * luck**2 - z2
    return (b + math.sqrt(max(b * b - a * c, 0.0))) / a
