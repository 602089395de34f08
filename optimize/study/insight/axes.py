"""Axes of a study's parameters: where a value lies between the ends of its range."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweepd.optimize.study.space.dimension import Dimension
from sweepd.optimize.study.space.search_space import SearchSpace


@dataclass(frozen=True)
class Axis:
    """A sampled parameter.

    Attributes:
        choices: what is drawn from; empty for a range.
        low, high: ends of a range.
        off: what a trial uses if the range is switched off; None if it cannot be.
    """

    name: str
    low: float = 0.0
    high: float = 1.0
    log: bool = False
    choices: tuple[Any, ...] = ()
    off: Any = None

    @property
    def switched(self) -> bool:
        """Whether the range can be switched off."""
        return self.off is not None

    @classmethod
    def of(cls, dimension: Dimension) -> Axis:
        """Return the axis of a dimension that is not constant."""
        if dimension.choices:
            return cls(dimension.name, choices=dimension.choices)
        low, high = dimension.ends
        return cls(dimension.name, float(low), float(high), dimension.log, off=dimension.off)

    def place(self, params: Mapping[str, Any]) -> float | None:
        """Return the place of a trial's value, 0 … 1.

        Returns:
            None if the parameter is switched off, is missing, or lies outside the range, as it may
            in a trial of another program.
        """
        value = params.get(self.name)
        if self.choices:
            if value not in self.choices:
                return None
            return self.choices.index(value) / max(1, len(self.choices) - 1)
        if not isinstance(value, int | float) or not self.low <= value <= self.high:
            return None
        if self.low == self.high:
            return 0.5
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def is_off(self, params: Mapping[str, Any]) -> bool:
        """Return whether a trial with these parameters has it switched off."""
        return self.switched and params.get(f"{self.name}_on") is False

    def to_dict(self) -> dict[str, Any]:
        """Return the axis as plain data."""
        return {
            "name": self.name,
            "low": self.low,
            "high": self.high,
            "log": self.log,
            "choices": list(self.choices),
            "switched": self.switched,
            "off": self.off,
        }


def study_axes(space: SearchSpace) -> list[Axis]:
    """Return the axes of a study's sampled parameters, in the order in which they are drawn."""
    return [Axis.of(dimension) for dimension in space.dimensions if dimension.value is None]


def ordered(axes: Sequence[Axis], importances: Mapping[str, float]) -> list[Axis]:
    """Return the axes, the most important first; those without a figure keep their order."""
    return sorted(axes, key=lambda axis: -importances.get(axis.name, 0.0))
