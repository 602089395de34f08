"""The probability of back-test overfitting (PBO), by combinatorially symmetric cross-validation (CSCV).

If the trial that was best on one half of the bars is no better than the median trial on the other half, then choosing
the best trial was choosing luck. PBO is how often that happens over all ways of halving the bars.

Source: D. H. Bailey, J. M. Borwein, M. López de Prado and Q. J. Zhu 2017, "The Probability of Backtest Overfitting",
Journal of Computational Finance 20(4).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
BLOCKS = 16


@dataclass(frozen=True)
class Overfitting:
    """PBO and what it was counted from.

    pbo: share of logits ≤ 0. logits: (C,) one per half, of the relative rank out of sample of the trial that was best
    in sample. slope: of its out-of-sample on its in-sample Sharpe ratio over the halves (least squares; 0 where the
    latter do not differ). loss: share of halves in which it lost out of sample. inside, outside: (C,) its Sharpe ratios
    per bar. chosen: how many were chosen; of several, ranks and ratios are their means.
    """

    pbo: float
    slope: float
    loss: float
    logits: Array
    inside: Array
    outside: Array
    chosen: int = 1


def cscv(returns: Array, blocks: int = BLOCKS, chosen: int = 1) -> Overfitting:
    """PBO of (T, N) returns: T bars in order, N ≥ 2 trials; cut into `blocks` (even) contiguous blocks of nearly equal
    length, the first ones longer by a bar.

    For each of the C(blocks, blocks/2) halves J: n* = the trial with the highest Sharpe ratio in J (the first of
    equals), w = its rank among all trials outside J (ties: mean rank) / (N + 1), logit = ln(w/(1-w)). A trial that does
    not vary scores 0. Where `chosen` trials are taken together, n* are the best so many in J, and w is their mean rank:
    what they gain by being several does not count, and to take all of them is to choose nothing (PBO 1).

    Raises ValueError where there are too few bars or trials.
    """
    count, trials = returns.shape
    if blocks % 2 or blocks < 2 or trials < 2 or count < 2 * blocks or not 1 <= chosen <= trials:
        raise ValueError(
            f"CSCV needs an even number of blocks, 2 trials and 2 bars a block, not {blocks}, {trials}, {count}, and "
            f"as many trials as are chosen ({chosen})"
        )
    edges = np.concatenate(
        [[0], np.cumsum(np.full(blocks, count // blocks) + (np.arange(blocks) < count % blocks))]
    )
    centred = returns - np.mean(returns, axis=0)  # sums of squares lose no digits to the mean
    starts = edges[:-1]
    length, total, square = (
        np.diff(edges),
        np.add.reduceat(centred, starts),
        np.add.reduceat(centred**2, starts),
    )
    offset = np.mean(returns, axis=0)
    halves = list(itertools.combinations(range(blocks), blocks // 2))
    taken = np.zeros((len(halves), blocks))
    taken[np.arange(len(halves))[:, None], halves] = 1.0
    flat = np.ptp(returns, axis=0) == 0.0

    def sharpe(weights: Array) -> Array:
        """(C, N) Sharpe ratios over the blocks with weight 1; deviation with n - 1."""
        n = (weights @ length)[:, None]
        mean = weights @ total / n
        variance = np.maximum(weights @ square - n * mean**2, 0.0) / (n - 1.0)
        varies = (variance > 1e-30) & ~flat
        return np.where(varies, (mean + offset) / np.sqrt(np.where(varies, variance, 1.0)), 0.0)

    inside, outside = sharpe(taken), sharpe(1.0 - taken)
    best = np.argsort(-inside, axis=1, kind="stable")[:, :chosen]
    ranks = np.zeros(len(halves))
    for place in range(chosen):
        own = np.take_along_axis(outside, best[:, place : place + 1], axis=1)
        ranks += np.sum(outside < own, axis=1) + (np.sum(outside == own, axis=1) + 1) / 2.0
    w = ranks / chosen / (trials + 1.0)
    logits = np.log(w / (1.0 - w))
    x, y = (np.take_along_axis(sharpes, best, axis=1).mean(axis=1) for sharpes in (inside, outside))
    spread = float(np.var(x))
    slope = float(np.mean((x - x.mean()) * (y - y.mean()))) / spread if spread > 0.0 else 0.0
    return Overfitting(
        float(np.mean(logits <= 0.0)), slope, float(np.mean(y < 0.0)), logits, x, y, chosen
    )
