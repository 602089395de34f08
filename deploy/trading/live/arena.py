"""The arena's statistics: whether a challenger earns the champion's place, and what holding would have earned.

A challenger is compared with the champion over the bars that both traded, by the stationary bootstrap of the paired
differences of their log returns per bar, so that what moves both cancels. A test that is looked at again and again
finds what it looks for, so it is looked at only when both have traded for 14, 28, 56, 112, … whole days, and the level
shrinks with every look that any challenger has had at the present champion: look j is allowed 0.05/(j(j+1)), which is
0.05 for all of them together, however many there are. Somebody who is no better thus takes the place of a champion with
chance 5 % at most. To be sent away wrongly costs a challenger's chance and no money: that is tested at 5 % each time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from deploy.promotion.bootstrap import block_length, bootstrap_means
from deploy.registry.bundle_files import finite
from deploy.trading.book import EqualWeight
from envs.crypto.timeframe import DAY, bar_seconds, bars_per_year

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Outcome = Literal["too early", "undecided", "better", "worse"]
ALPHA = 0.05  # for all looks at one champion together
WORSE = 0.05  # for each look
FIRST_DAYS = 14
POINTS = 500  # of the differences that are resampled: longer records are summed over several bars
FEWEST_DRAWS, MOST_DRAWS = 5_000, 50_000
FLOOR = 1e-12  # of a value ratio, so that a total loss has a logarithm


@dataclass(frozen=True)
class Comparison:
    """A challenger against the champion. text: the outcome in a sentence.

    days: of the look, 0 where it is too early. bars: in those days. advantage: the challenger's growth over the
    champion's in them, 0.01 = 1 % ahead. p: chance of such an advantage without a difference; level: what it has to be
    under. p_worse: chance of such a disadvantage.
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
        """For JSON."""
        content: dict[str, Any] = finite(asdict(self))
        return content


def days_due(bars: int, timeframe: str) -> int:
    """Whole days of the newest look that is due after so many bars: 14, 28, 56, …; 0 before the first.

    `compare` is to be asked once for each; asked again in between, it takes another look at the same bars.
    """
    days = bars * bar_seconds(timeframe) // DAY
    return FIRST_DAYS << ((days // FIRST_DAYS).bit_length() - 1) if days >= FIRST_DAYS else 0


def arena_level(looks_taken: int) -> float:
    """The level 0.05/(j(j+1)) of look number j = looks_taken + 1 at the present champion, over all challengers.

    The gate's looks at a hold-out have another level: `deploy.promotion.bootstrap.gate_level`.
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
    """Compare (n,) simple per-bar returns of the same bars, since both trade beside each other.

    looks_taken: outcomes other than "too early" that any challenger has had against the present champion. Only the
    bars up to the newest look that is due are looked at. Raises ValueError for records of different lengths.
    """
    if len(challenger_returns) != len(champion_returns):
        raise ValueError(
            f"{len(challenger_returns)} bars against {len(champion_returns)}: they must be the same ones"
        )
    days = days_due(len(champion_returns), timeframe)
    if days == 0:
        done = len(champion_returns) * bar_seconds(timeframe) // DAY
        return Comparison("too early", f"{done} of {FIRST_DAYS} days: too early to compare")
    bars = days * DAY // bar_seconds(timeframe)
    gained = _log(challenger_returns[:bars]) - _log(champion_returns[:bars])
    level = arena_level(looks_taken)
    p, p_worse = _p_values(gained, level, seed)
    outcome: Outcome = "better" if p <= level else "worse" if p_worse <= WORSE else "undecided"
    total = float(np.sum(gained))
    advantage = math.expm1(total)
    annual = math.expm1(min(total / bars * bars_per_year(timeframe), 700.0))
    chance = (
        f"chance {p:.2g} without a difference"
        if total > 0.0
        else f"chance {p_worse:.2g} if it were as good"
    )
    text = (
        f"{advantage:+.2%} against the champion in {days} days ({annual:+.1%} a year), {chance}; look "
        f"{looks_taken + 1} at this champion asks for {level:.2g}"
    )
    return Comparison(outcome, text, days, bars, advantage, p, p_worse, level)


def _p_values(gained: Array, level: float, seed: int) -> tuple[float, float]:
    """One-sided p of a mean above 0, and of one below, from (n,) differences."""
    step = math.ceil(gained.size / POINTS)
    points = gained[gained.size % step :].reshape(-1, step).sum(axis=1)
    mean = float(np.mean(points))
    draws = min(max(FEWEST_DRAWS, math.ceil(4.0 / level)), MOST_DRAWS)
    smallest = 1.0 / (draws + 1)
    if np.ptp(points) == 0.0:
        return (smallest, 1.0) if mean > 0.0 else (1.0, smallest if mean < 0.0 else 1.0)
    luck = bootstrap_means(points, block_length(points), draws, np.random.default_rng(seed)) - mean
    above, below = (int(np.count_nonzero(side)) for side in (luck >= mean, luck <= mean))
    return (1 + above) * smallest, (1 + below) * smallest


def _log(returns: Array) -> Array:
    return np.asarray(np.log(np.maximum(1.0 + returns, FLOOR)))


class Benchmark:
    """Some of the assets, bought once in equal parts and held; of none of them, cash.

    Bought at the first open after the start, with fee and slippage, as `EqualWeight` does it.
    """

    def __init__(self, value: float, assets: Sequence[int], *, fee: float, slippage: float) -> None:
        """value: to begin with, quote units. assets: places of those held."""
        self._assets = list(assets)
        self._cash = 0.0 if self._assets else value
        self._held = EqualWeight(value, max(1, len(self._assets)), fee=fee, slippage=slippage)

    def next_bar(self, open_: Array, hole: Mask) -> None:
        """Buy what is still to be bought, at the opens (N,) of a bar."""
        if self._assets:
            self._held.next_bar(open_[self._assets], hole[self._assets])

    def value(self, close: Array) -> float:
        """At closes (N,), in quote units."""
        return self._held.value(close[self._assets]) if self._assets else self._cash

    def state(self) -> dict[str, Any]:
        """What `restored` needs, as JSON has it."""
        return {"assets": self._assets, "cash": float(self._cash), "held": self._held.state()}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Benchmark:
        """As it was when `state` was taken."""
        benchmark = cls(state["cash"], state["assets"], fee=0.0, slippage=0.0)
        benchmark._held = EqualWeight.restored(state["held"])
        return benchmark


EQUAL_WEIGHT, CASH = "equal weight", "cash"


def benchmarks(
    tickers: Sequence[str], value: float, *, fee: float, slippage: float
) -> dict[str, Benchmark]:
    """What a slot's lanes are seen beside, by name: equal weight, each ticker held, and cash."""
    sets: dict[str, list[int]] = {EQUAL_WEIGHT: list(range(len(tickers)))}
    sets |= {f"hold {ticker}": [place] for place, ticker in enumerate(tickers)} | {CASH: []}
    return {
        name: Benchmark(value, assets, fee=fee, slippage=slippage) for name, assets in sets.items()
    }
