"""Is a challenger better than the champion? A test by betting that is valid at every look.

The challenger's return is counted in units of the champion's account: X = (1 + r)/(1 + R) - 1. A
bettor against the hypothesis "a challenger does not gain on the champion" starts with 1 and stakes
the share λ of the present capital on each bar: the capital is multiplied by 1 + λX. The hypothesis
is that nothing that was known before a bar makes the mean of its X positive:

    H0:  E[X_t | F_{t-1}] <= 0 for every t.        F: what all accounts of the slot had seen

The capital is divided into six equal parts with the stakes λ_k = 2^-k/(2L), k = 0..5, so

    E_t = (1/6) Σ_k Π_{i<=t} max(0, 1 + λ_k·X_i).

That is the one-sided capital process of Waudby-Smith and Ramdas (2024), "Estimating means of
bounded random variables by betting", JRSS B 86, 1-27, for U = (X + L)/2L and the mean 1/2, with
their truncation at 1/2 and a mixture of fixed stakes. Nothing is tuned, and the mixture costs
ln 6 at most.

Proof that the error is at most α. (1) L, λ_k and the entry are fixed before the first bar, so each
λ_k is known before each X. (2) If X >= -2L, every factor 1 + λ_k·X is at least 0, so the capital is
nonnegative. (3) Under H0, E[1 + λ_k·X_t | F_{t-1}] = 1 + λ_k·E[X_t | F_{t-1}] <= 1, so the capital
of each part is a supermartingale from 1, and so is the mean of six. (4) Ville's inequality: for a
nonnegative supermartingale from 1, P(E_t >= c for some t) <= 1/c. So looking at every bar, stopping
whenever one likes and starting whenever one likes costs nothing. (5) Entry j of a reign needs
E >= 1/(α·w_j) with w_j = 1/(j(j+1)). The union over all entries is at most α·Σ w_j = α, whatever
the dependence of the challengers, and also if entries and exits depend on what was seen before.

The assumption is in (2). L is twice the worst bar of some thousand bars before the entry, so the
stakes assume that no bar is more than four times as bad. Such a bar, if it comes, ends the bet with
E = 0. Gains need no bound, and are not clipped: clipping would favour challengers with rare large
losses. (3) needs that returns cannot be predicted from what was seen: positions are chosen before
each bar, so their autocorrelation does no harm, but stale prices would.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
STAKES = 6  # parts of the capital; each stakes half of the part before it
LEAST_BOUND, MOST_BOUND = 0.005, 0.5  # of L; with the largest, no bar can be too bad
ALPHA = 0.025  # of all swaps in a reign; the monitor's ageing has as much
DAYS = 365.25  # of a year


def relative_returns(own: Array, other: Array) -> Array:
    """Return X = (1 + r)/(1 + R) - 1 per bar, (n,).

    Args:
        own: (n,) simple returns of the account that is tested.
        other: (n,) those of the account in whose units it is counted. After a return of -1 there is
            nothing to count in: X is 0.
    """
    left = 1.0 + other
    return np.divide(1.0 + own, left, out=np.ones_like(left), where=left > 0.0) - 1.0


def bound(worst: float) -> float:
    """Return L for a worst bar: twice its loss, within limits.

    Args:
        worst: -min X over the bars before the entry; 0.01 is a loss of 1% on the champion.
    """
    return min(max(2.0 * worst, LEAST_BOUND), MOST_BOUND)


def log_capital(returns: Array, limit: float) -> Array:
    """Return log E after each bar, (n,); -inf from the first bar on that is worse than -2L.

    Args:
        returns: (n,) X per bar, see `relative_returns`.
        limit: L, see `bound`.
    """
    stakes = 0.5 ** np.arange(STAKES) / (2.0 * limit)
    factors = 1.0 + np.multiply.outer(stakes, returns)  # (STAKES, n)
    factors[:, np.minimum.accumulate(returns) < -2.0 * limit] = 0.0
    with np.errstate(divide="ignore"):
        parts = np.cumsum(np.log(np.maximum(factors, 0.0)), axis=1)
    # The largest part is taken out, so that none overflows; all of them may be -inf.
    largest = parts.max(axis=0, initial=-np.inf)
    shift = np.where(np.isfinite(largest), largest, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(shift + np.log(np.exp(parts - shift).mean(axis=0)))


def log_capital_at_end(returns: Array, limit: float) -> float:
    """Return log E after all bars; 0 before the first."""
    return float(log_capital(returns, limit)[-1]) if len(returns) else 0.0


def log_threshold(number: int, alpha: float = ALPHA) -> float:
    """Return log(1/(α·w_j)), which entry j = 1, 2, ... of a reign must reach; w_j = 1/(j(j+1))."""
    return math.log(number * (number + 1) / alpha)


def days_until(ratio: float, log_needed: float) -> float:
    """Return about how many days E takes to reach a threshold; infinite without an advantage.

    With the best stake, log E grows by IR²/2 a year on average. A mixture of stakes and the last
    bar, which passes the threshold, cost about 1.5. Where an advantage is large for its tracking
    error, the best stake is above the largest, 1/(2L), and it takes longer;
    scripts/bench/quality/arena.py measures both.

    Args:
        ratio: IR, the annual mean of X over its annual standard deviation.
        log_needed: what log E must reach, see `log_threshold`.
    """
    return 2.0 * DAYS * (log_needed + 1.5) / ratio**2 if ratio > 0.0 else math.inf
