"""A Gaussian process over configurations, each of which was trained with some seeds.

The model of a configuration c with parameters x, trained with m seeds:

    truth      t_c = f(x) + g_c
    mean       y_c = t_c + e_c,    e_c ~ N(0, v_c / m)

f has a Matérn 5/2 kernel with a length per parameter (Rasmussen and Williams, "Gaussian Processes
for Machine Learning", 2006, equation 4.17). g_c is what the parameters do not explain, and e_c the
noise of the seeds. The unexplained variance of one run is split: `UNEXPLAINED` of it is g's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.optimize import minimize
from scipy.spatial.distance import cdist

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
UNEXPLAINED = 0.3  # share of a run's unexplained variance that its other seeds have, too
SQRT5 = 5.0**0.5
JITTER = 1e-5  # least variance of the noise, for values of variance 1
# Priors of the logarithms of the lengths, the signal's variance and the noise's variance: mean;
# their deviations are 1. Bounds keep the factorisation stable.
LENGTH, SIGNAL, NOISE = 0.3, 0.0, float(np.log(0.4))
LENGTH_BOUNDS, SIGNAL_BOUNDS, NOISE_BOUNDS = (-2.5, 3.0), (-3.0, 2.0), (-6.0, 1.5)
ITERATIONS = 30


@dataclass(frozen=True)
class Kernel:
    """Variances and lengths of the model, for values of mean 0 and variance 1.

    Attributes:
        lengths: (columns,).
        signal: variance of f.
        noise: variance of one run that f does not explain.
    """

    lengths: Floats
    signal: float
    noise: float

    @property
    def unexplained(self) -> float:
        """Variance of g."""
        return UNEXPLAINED * self.noise

    @property
    def seed(self) -> float:
        """Variance between seeds."""
        return (1.0 - UNEXPLAINED) * self.noise

    def covariance(self, a: Floats, b: Floats) -> Floats:
        """Return the covariance of f at points (a, columns) and (b, columns), (a, b)."""
        distance = cdist(a / self.lengths, b / self.lengths)
        scaled = SQRT5 * distance
        return np.asarray(self.signal * (1.0 + scaled + scaled**2 / 3.0) * np.exp(-scaled))


def fit(points: Floats, values: Floats, seeds: Ints) -> Kernel:
    """Return the kernel with the highest posterior density.

    Args:
        points: (configurations, columns).
        values: (configurations,) means over seeds, of mean 0 and variance 1.
        seeds: (configurations,) number of seeds.
    """
    columns = points.shape[1]
    gaps = (points[:, None] - points[None]) ** 2
    loss = _Loss(gaps, values, UNEXPLAINED + (1.0 - UNEXPLAINED) / seeds)
    found = minimize(
        loss,
        np.append(np.full(columns, LENGTH), [SIGNAL, NOISE]),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": ITERATIONS},
        bounds=[LENGTH_BOUNDS] * columns + [SIGNAL_BOUNDS, NOISE_BOUNDS],
    )
    return Kernel(
        np.exp(found.x[:columns]), float(np.exp(found.x[-2])), float(np.exp(found.x[-1])) + JITTER
    )


class _Loss:
    """Negative logarithm of the posterior density of a kernel, and its gradient.

    Rasmussen and Williams, equations 5.8 and 5.9, plus the priors.

    Args:
        gaps: (n, n, columns) squared differences of the points.
        values: (n,).
        shares: (n,) variance of each value's noise, in units of a run's.
    """

    def __init__(self, gaps: Floats, values: Floats, shares: Floats) -> None:
        self.gaps, self.values, self.shares = gaps, values, shares
        self.means = np.append(np.full(gaps.shape[2], LENGTH), [SIGNAL, NOISE])

    def __call__(self, logs: Floats) -> tuple[float, Floats]:
        count, columns = len(self.values), self.gaps.shape[2]
        weights = np.exp(-2.0 * logs[:columns])
        signal, noise = float(np.exp(logs[-2])), float(np.exp(logs[-1]))
        scaled = SQRT5 * np.sqrt(self.gaps @ weights)
        decay = np.exp(-scaled)
        covariance = signal * (1.0 + scaled + scaled**2 / 3.0) * decay
        total = covariance + np.diag((noise + JITTER) * self.shares)
        factor = cho_factor(total, lower=True)
        inverse = cho_solve(factor, np.eye(count))
        alpha = inverse @ self.values
        outer = 0.5 * (inverse - np.outer(alpha, alpha))
        # d covariance / d squared distance
        slope = outer * (-5.0 / 6.0 * signal * (1.0 + scaled) * decay)
        gradient = np.empty(columns + 2)
        gradient[:columns] = np.tensordot(slope, self.gaps, 2) * (-2.0 * weights)
        gradient[-2] = (outer * covariance).sum()
        gradient[-1] = noise * (np.diag(outer) * self.shares).sum()
        loss = 0.5 * self.values @ alpha + np.log(np.diag(factor[0])).sum()
        off = logs - self.means
        return float(loss + 0.5 * off @ off), gradient + off


def seed_variances(kernel: Kernel, squares: Floats, seeds: Ints, weight: float = 4.0) -> Floats:
    """Return the variance between seeds of each configuration.

    The model's variance counts as much as `weight` seeds.

    Args:
        kernel: the model.
        squares: (configurations,) sums of squared deviations from the configuration's mean.
        seeds: (configurations,) number of seeds.
    """
    return np.asarray((weight * kernel.seed + squares) / (weight + np.maximum(seeds, 1) - 1))


def means(kernel: Kernel, points: Floats, run: Ints, values: Floats, noise: Floats) -> Floats:
    """Return the posterior mean of the truth at points, (points,).

    Args:
        kernel: the model.
        points: (points, columns); different rows are different configurations.
        run: (n,) indices of the points that have values.
        values: (n,).
        noise: (n,) variance of their noise.
    """
    cross = kernel.covariance(points, points[run])
    cross[run, np.arange(len(run))] += kernel.unexplained
    factor = cho_factor(cross[run] + np.diag(noise), lower=True)
    return np.asarray(cross @ cho_solve(factor, values))


def deviations(kernel: Kernel, points: Floats, run: Ints, noise: Floats) -> Floats:
    """Return the posterior standard deviation of the truth at points, see `means`."""
    cross = kernel.covariance(points, points[run])
    cross[run, np.arange(len(run))] += kernel.unexplained
    factor = np.linalg.cholesky(cross[run] + np.diag(noise))
    explained = solve_triangular(factor, cross.T, lower=True)
    variance = kernel.signal + kernel.unexplained - (explained**2).sum(0)
    return np.asarray(np.sqrt(np.maximum(variance, 0.0)))
