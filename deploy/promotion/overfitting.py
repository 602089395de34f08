"""The probability of back-test overfitting (PBO) by combinatorially symmetric cross-validation.

If the trial that was best on one half of the bars is no better than the median trial on the other
half, then choosing the best trial was choosing luck. PBO is the share of all ways of halving the
bars in which this happens.

Source: D. H. Bailey, J. M. Borwein, M. López de Prado and Q. J. Zhu 2017, "The Probability of
Backtest Overfitting", Journal of Computational Finance 20(4).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
BLOCKS = 16  # as in the paper: C(16, 8) = 12,870 ways to halve the bars


@dataclass(frozen=True)
class Overfitting:
    """PBO and the numbers that it is computed from. C is the number of ways to halve the bars.

    Attributes:
        pbo: share of logits ≤ 0.
        logits: (C,) logits of the out-of-sample relative rank of the trial that was best in sample.
        slope: least-squares slope of its out-of-sample on its in-sample Sharpe ratio; 0 if the
            latter do not vary.
        loss: share of halves in which its out-of-sample Sharpe ratio is negative.
        inside: (C,) its Sharpe ratios per bar, in sample.
        outside: (C,) its Sharpe ratios per bar, out of sample.
        chosen: number of trials chosen together; ranks and ratios are then their means.
    """

    pbo: float
    slope: float
    loss: float
    logits: Array
    inside: Array
    outside: Array
    chosen: int = 1


def cscv(returns: Array, blocks: int = BLOCKS, chosen: int = 1) -> Overfitting:
    """Compute the PBO.

    The bars are cut into contiguous blocks of nearly equal length, the first ones longer by a bar.
    For each of the C(blocks, blocks/2) halves J: n* is the trial with the highest Sharpe ratio in
    J (ties: the first), w its rank among all trials outside J (ties: mean rank) divided by N + 1,
    and the logit is ln(w/(1 - w)). A trial whose returns do not vary has a Sharpe ratio of 0.

    If several trials are chosen together, n* are the best ones in J and w is their mean rank. So
    the gain by diversification does not count, and choosing all trials gives a PBO of 1.

    Args:
        returns: (T, N) returns of N ≥ 2 trials over T bars in order.
        blocks: number of blocks, even.
        chosen: number of trials chosen together.

    Raises:
        ValueError: there are too few bars or trials.
    """
    count, trials = returns.shape
    if blocks % 2 or blocks < 2 or trials < 2 or count < 2 * blocks or not 1 <= chosen <= trials:
        raise ValueError(
            f"CSCV needs an even number of blocks, 2 trials and 2 bars a block, not {blocks}, "
            f"{trials}, {count}, and at least as many trials as are chosen ({chosen})"
        )
    edges = np.concatenate(
        [[0], np.cumsum(np.full(blocks, count // blocks) + (np.arange(blocks) < count % blocks))]
    )
    # Sums and sums of squares per block suffice for the Sharpe ratio of any union of blocks.
    # Returns are centred first, so that the sums of squares lose no digits to the mean.
    centred = returns - np.mean(returns, axis=0)
    starts = edges[:-1]
    length, total, square = (
        np.diff(edges),
        np.add.reduceat(centred, starts),
        np.add.reduceat(centred**2, starts),
    )
    offset = np.mean(returns, axis=0)
    taken = _halves(blocks)
    flat = np.ptp(returns, axis=0) == 0.0

    def sharpe(weights: Array) -> Array:
        """(C, N) Sharpe ratios per bar over the blocks with weight 1; deviation with n - 1."""
        n = (weights @ length)[:, None]
        mean = weights @ total / n
        # Σ(x - m)² = Σx² - n·m²; rounding may make it negative for returns that hardly vary.
        variance = np.maximum(weights @ square - n * mean**2, 0.0) / (n - 1.0)
        varies = (variance > 1e-30) & ~flat
        return np.where(varies, (mean + offset) / np.sqrt(np.where(varies, variance, 1.0)), 0.0)

    inside, outside = sharpe(taken), sharpe(1.0 - taken)
    # n*: the best in sample; a stable sort keeps the first of equal trials.
    best = np.argsort(-inside, axis=1, kind="stable")[:, :chosen]
    # Divided by N + 1 and not by N, so that 0 < w < 1 and the logit is finite.
    w = _mean_ranks(outside, best) / (trials + 1.0)
    logits = np.log(w / (1.0 - w))
    x, y = (np.take_along_axis(sharpes, best, axis=1).mean(axis=1) for sharpes in (inside, outside))
    # Least squares: cov(x, y) / var(x). A negative slope means that trials that are better in
    # sample are worse out of sample.
    spread = float(np.var(x))
    slope = float(np.mean((x - x.mean()) * (y - y.mean()))) / spread if spread > 0.0 else 0.0
    return Overfitting(
        float(np.mean(logits <= 0.0)), slope, float(np.mean(y < 0.0)), logits, x, y, chosen
    )


def _halves(blocks: int) -> Array:
    """(C, blocks): for each way to choose half of the blocks, 1 where a block is in sample."""
    halves = list(itertools.combinations(range(blocks), blocks // 2))
    taken = np.zeros((len(halves), blocks))
    taken[np.arange(len(halves))[:, None], halves] = 1.0
    return taken


def _mean_ranks(sharpes: Array, chosen: NDArray[np.intp]) -> Array:
    """(C,) mean ranks of the chosen trials, 1 (worst) to N; equal trials share their mean rank.

    Args:
        sharpes: (C, N) Sharpe ratios of all trials.
        chosen: (C, k) indices of the chosen trials.
    """
    ranks = np.zeros(len(chosen))
    for place in range(chosen.shape[1]):
        own = np.take_along_axis(sharpes, chosen[:, place : place + 1], axis=1)
        ranks += np.sum(sharpes < own, axis=1) + (np.sum(sharpes == own, axis=1) + 1) / 2.0
    means: Array = ranks / chosen.shape[1]
    return means
