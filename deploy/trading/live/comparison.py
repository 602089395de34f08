"""The arena's statistics: whether a challenger is better than the champion.

A challenger is compared with the champion over the bars that both traded, by the stationary
bootstrap of the paired differences of their log returns per bar, so that common market moves
cancel. Repeated tests inflate the chance of a false positive, so a comparison is made only when
both have traded for 14, 28, 56, 112, ... whole days, and the level shrinks with the number of
comparisons that all challengers together have had with the present champion: comparison j has the
level 0.05/(j(j+1)), and these levels sum to 0.05. A challenger that is not better therefore
replaces a champion with probability 5% at most. To lose wrongly costs a challenger its place but
no money, so that is tested at 5% each time.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sweepd.deploy.promotion.bootstrap import block_length, bootstrap_means, summed
from sweepd.deploy.registry.bundle_files import finite
from sweepd.envs.crypto.data.timeframe import DAY, bar_seconds, bars_per_year
from sweepd.envs.crypto.scoring.metrics import log_returns

Array = NDArray[np.float64]
Outcome = Literal["too early", "undecided", "better", "worse"]
ALPHA = 0.05  # of all comparisons with one champion together
WORSE = 0.05  # of each comparison
FIRST_DAYS = 14
POINTS = 500  # resampled differences: longer records are summed over several bars
FEWEST_DRAWS, MOST_DRAWS = 5_000, 50_000


@dataclass(frozen=True)
class Comparison:
    """A challenger against the champion.

    outcome: "too early" before the first comparison is due.
    text: the outcome in a sentence.
    days, bars: compared; 0 if it is too early.
    advantage: growth of the challenger over that of the champion; 0.01 is 1% ahead.
    p: probability of such an advantage without a difference; below `level`, it is better.
    p_worse: probability of such a disadvantage without a difference.
    """

    outcome: Outcome
    text: str
    days: int = 0
    bars: int = 0
    advantage: float = 0.0
    p: float = 1.0
    p_worse: float = 1.0
    level: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison for JSON."""
        content: dict[str, Any] = finite(asdict(self))
        return content


def days_due(bars: int, timeframe: str) -> int:
    """Return the days of the newest comparison that is due: 14, 28, 56, ...; 0 before the first.

    `compare` is called once for each: another call would spend a further comparison on the same
    bars.

    Args:
        bars: number of bars that both have traded.
        timeframe: of the bars.
    """
    days = bars * bar_seconds(timeframe) // DAY
    return FIRST_DAYS << ((days // FIRST_DAYS).bit_length() - 1) if days >= FIRST_DAYS else 0


def arena_level(looks_taken: int) -> float:
    """Return the level 0.05/(j(j+1)) of comparison j = looks_taken + 1 with a champion.

    The gate's evaluations on a hold-out have another level: `promotion.bootstrap.gate_level`.
    """
    look = looks_taken + 1
    return ALPHA / (look * (look + 1))


def compare(
    challenger_returns: Array,
    champion_returns: Array,
    timeframe: str,
    looks_taken: int,
    *,
    seed: int = 0,
) -> Comparison:
    """Compare simple returns per bar, (n,) each, of the same bars.

    Only the bars up to the newest comparison that is due are used.

    Args:
        challenger_returns: per bar, since both trade.
        champion_returns: per bar, since both trade.
        timeframe: of the bars.
        looks_taken: comparisons of all challengers with the present champion so far.
        seed: of the bootstrap.

    Raises:
        ValueError: the records have different lengths.
    """
    if len(challenger_returns) != len(champion_returns):
        raise ValueError(
            f"{len(challenger_returns)} bars against {len(champion_returns)}: they must be equal"
        )
    days = days_due(len(champion_returns), timeframe)
    if days == 0:
        done = len(champion_returns) * bar_seconds(timeframe) // DAY
        return Comparison("too early", f"{done} of {FIRST_DAYS} days: too early to compare")
    bars = days * DAY // bar_seconds(timeframe)
    gained = log_returns(challenger_returns[:bars]) - log_returns(champion_returns[:bars])
    level = arena_level(looks_taken)
    p, p_worse = _p_values(gained, level, seed)
    outcome: Outcome = "better" if p <= level else "worse" if p_worse <= WORSE else "undecided"
    total = float(np.sum(gained))
    advantage = math.expm1(total)
    annual = math.expm1(min(total / bars * bars_per_year(timeframe), 700.0))
    chance = f"p = {p:.2g}" if total > 0.0 else f"p = {p_worse:.2g} for a disadvantage"
    text = (
        f"{advantage:+.2%} against the champion in {days} days ({annual:+.1%} a year), {chance}; "
        f"comparison {looks_taken + 1} with this champion requires p <= {level:.2g}"
    )
    return Comparison(outcome, text, days, bars, advantage, p, p_worse, level)


def _p_values(gained: Array, level: float, seed: int) -> tuple[float, float]:
    """Return the one-sided p-values of a mean above 0 and of a mean below 0.

    Args:
        gained: (n,) differences.
        level: smallest p-value that must be resolved.
        seed: of the bootstrap.
    """
    points = summed(gained, math.ceil(gained.size / POINTS))
    mean = float(np.mean(points))
    # At least four times 1/level draws, or no p-value could reach a small level.
    draws = min(max(FEWEST_DRAWS, math.ceil(4.0 / level)), MOST_DRAWS)
    smallest = 1.0 / (draws + 1)
    # A constant difference has no sampling error, and blocks of it no length.
    if np.ptp(points) == 0.0:
        return (smallest, 1.0) if mean > 0.0 else (1.0, smallest if mean < 0.0 else 1.0)
    luck = bootstrap_means(points, block_length(points), draws, np.random.default_rng(seed)) - mean
    above, below = (int(np.count_nonzero(side)) for side in (luck >= mean, luck <= mean))
    return (1 + above) * smallest, (1 + below) * smallest
