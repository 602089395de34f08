"""A Gaussian process over configurations, each of which was trained with some seeds.

The model of a configuration c with parameters x, trained with m seeds:

    truth      t_c = f(x) + g_c
    mean       y_c = t_c + e_c,    e_c ~ N(0, v_c / m)

f has a Matérn 5/2 kernel with a length per parameter (Rasmussen and Williams, "Gaussian Processes
for Machine Learning", 2006, equation 4.17). g_c is what the parameters do not explain, and e_c the
noise of the seeds. The unexplained variance of one run is split: `UNEXPLAINED` of it is g's.

Configurations of earlier studies are further observations. The f of an earlier study s is

    f_s(x) = r_s f(x) + sqrt(1 - r_s²) h_s(x) + l_s,    l_s ~ N(0, LEVEL)

with h_s like f and independent of it: the intrinsic coregionalization model (Bonilla, Chai and
Williams, "Multi-task Gaussian Process Prediction", NIPS 2007), whose correlation r_s from 0 to 1 is
a parameter of the kernel. An unrelated study has r_s near 0, and then changes no prediction. l_s
makes the level of its values irrelevant.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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
LEVEL = 1.0  # variance of an earlier study's level
# Prior mean of the logit of an earlier study's correlation, its deviation is 1; and its bounds.
RELATED, RELATED_BOUNDS = 0.0, (-6.0, 4.0)


@dataclass(frozen=True)
class Kernel:
    """Variances and lengths of the model, for values of mean 0 and variance 1.

    Attributes:
        lengths: (columns,).
        signal: variance of f.
        noise: variance of one run that f does not explain.
        related: (earlier studies,) correlations of their f with this study's. With earlier studies,
            points have a last column with the number of their study, 0 for this one.
    """

    lengths: Floats
    signal: float
    noise: float
    related: Floats = field(default_factory=lambda: np.zeros(0))

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
        columns = len(self.lengths)
        distance = cdist(a[:, :columns] / self.lengths, b[:, :columns] / self.lengths)
        scaled = SQRT5 * distance
        found = np.asarray(self.signal * (1.0 + scaled + scaled**2 / 3.0) * np.exp(-scaled))
        if not len(self.related):
            return found
        of_a, of_b = (points[:, columns].astype(np.int64) for points in (a, b))
        return found * _relations(self.related, of_a, of_b) + _levels(of_a, of_b)


def _relations(related: Floats, a: Ints, b: Ints) -> Floats:
    """Return the correlation of f between the studies of points, (a, b)."""
    weights = np.append(1.0, related)
    return np.where(a[:, None] == b, 1.0, np.outer(weights[a], weights[b]))


def _levels(a: Ints, b: Ints) -> Floats:
    """Return the covariance of the studies' levels, (a, b)."""
    return np.where((a[:, None] == b) & (b > 0), LEVEL, 0.0)


def fit(points: Floats, values: Floats, seeds: Ints, studies: Ints | None = None) -> Kernel:
    """Return the kernel with the highest posterior density.

    Args:
        points: (configurations, columns).
        values: (configurations,) means over seeds, of mean 0 and variance 1.
        seeds: (configurations,) number of seeds.
        studies: (configurations,) number of their study, see `Kernel`; None: all are of this one.
    """
    columns = points.shape[1]
    earlier = 0 if studies is None else int(studies.max())
    gaps = (points[:, None] - points[None]) ** 2
    loss = _Loss(gaps, values, UNEXPLAINED + (1.0 - UNEXPLAINED) / seeds, studies)
    found = minimize(
        loss,
        loss.means,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": ITERATIONS},
        bounds=[LENGTH_BOUNDS] * columns
        + [SIGNAL_BOUNDS, NOISE_BOUNDS]
        + [RELATED_BOUNDS] * earlier,
    )
    signal, noise = np.exp(found.x[columns : columns + 2])
    return Kernel(
        np.exp(found.x[:columns]),
        float(signal),
        float(noise) + JITTER,
        _sigmoid(found.x[columns + 2 :]),
    )


def _sigmoid(logits: Floats) -> Floats:
    return np.asarray(1.0 / (1.0 + np.exp(-logits)))


class _Loss:
    """Negative logarithm of the posterior density of a kernel, and its gradient.

    Rasmussen and Williams, equations 5.8 and 5.9, plus the priors.

    Args:
        gaps: (n, n, columns) squared differences of the points.
        values: (n,).
        shares: (n,) variance of each value's noise, in units of a run's.
        studies: (n,) number of each value's study; None: there are no earlier ones.
    """

    def __init__(
        self, gaps: Floats, values: Floats, shares: Floats, studies: Ints | None = None
    ) -> None:
        self.gaps, self.values, self.shares, self.studies = gaps, values, shares, studies
        earlier = 0 if studies is None else int(studies.max())
        logits = np.full(earlier, RELATED)
        self.means = np.concatenate([np.full(gaps.shape[2], LENGTH), [SIGNAL, NOISE], logits])

    def __call__(self, logs: Floats) -> tuple[float, Floats]:
        count, columns = len(self.values), self.gaps.shape[2]
        weights = np.exp(-2.0 * logs[:columns])
        signal, noise = (float(np.exp(log)) for log in logs[columns : columns + 2])
        scaled = SQRT5 * np.sqrt(self.gaps @ weights)
        decay = np.exp(-scaled)
        covariance = signal * (1.0 + scaled + scaled**2 / 3.0) * decay
        related = _sigmoid(logs[columns + 2 :])
        alike: Floats | float = 1.0
        total = covariance + np.diag((noise + JITTER) * self.shares)
        if self.studies is not None:
            alike = _relations(related, self.studies, self.studies)
            levels = _levels(self.studies, self.studies)
            total = covariance * alike + levels + np.diag((noise + JITTER) * self.shares)
        factor = cho_factor(total, lower=True)
        inverse = cho_solve(factor, np.eye(count))
        alpha = inverse @ self.values
        outer = 0.5 * (inverse - np.outer(alpha, alpha))
        # d covariance / d squared distance
        slope = outer * alike * (-5.0 / 6.0 * signal * (1.0 + scaled) * decay)
        gradient = np.empty(len(logs))
        gradient[:columns] = np.tensordot(slope, self.gaps, 2) * (-2.0 * weights)
        gradient[columns] = (outer * covariance * alike).sum()
        gradient[columns + 1] = noise * (np.diag(outer) * self.shares).sum()
        gradient[columns + 2 :] = self._slopes(outer * covariance, related)
        loss = 0.5 * self.values @ alpha + np.log(np.diag(factor[0])).sum()
        off = logs - self.means
        return float(loss + 0.5 * off @ off), gradient + off

    def _slopes(self, parts: Floats, related: Floats) -> Floats:
        """Return the derivatives by the logits of `related`."""
        if self.studies is None:
            return np.zeros(0)
        weights = np.append(1.0, related)[self.studies]
        found = np.empty(len(related))
        for i, own in enumerate(related):
            ours = self.studies == i + 1
            found[i] = 2.0 * own * (1.0 - own) * (parts[ours][:, ~ours] @ weights[~ours]).sum()
        return found


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
