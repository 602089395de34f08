"""Positions of values in numeric ranges, from 0 to 1."""

from __future__ import annotations

import math

from optuna.distributions import FloatDistribution, IntDistribution

Range = FloatDistribution | IntDistribution


def ends(of: Range) -> tuple[float, float]:
    """Return the ends of a range on the scale on which it is drawn.

    A range of integers is extended by half a step on both sides, so that all integers have the same
    share.
    """
    half = of.step / 2 if isinstance(of, IntDistribution) else 0.0
    low, high = of.low - half, of.high + half
    return (math.log(low), math.log(high)) if of.log else (low, high)


def share(of: Range, value: float) -> float:
    """Return the position of a value in its range, from 0 to 1."""
    low, high = ends(of)
    return float(((math.log(value) if of.log else value) - low) / (high - low))


def value_at(of: Range, position: float) -> float | int:
    """Return the value at a position from 0 to 1 in the range."""
    low, high = ends(of)
    value = low + float(position) * (high - low)
    value = math.exp(value) if of.log else value
    if of.step is not None:  # to the grid that starts at the lower end
        value = of.low + round((value - of.low) / of.step) * of.step
    # Rounding and exp may leave the range by the last bit.
    value = min(max(value, of.low), of.high)
    return int(value) if isinstance(of, IntDistribution) else value
