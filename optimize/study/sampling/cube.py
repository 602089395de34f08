"""A search space as a cube: every parameter that is drawn is an axis from 0 to 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from sweepd.optimize.study.sampling.ranges import Range, ends, share, value_at
from sweepd.optimize.study.space.dimension import Dimension
from sweepd.optimize.study.space.search_space import SearchSpace
from sweepd.optimize.study.space.subject import Scalar

Floats = NDArray[np.float64]
UNDRAWN = 0.5  # position of a range that is switched off


@dataclass(frozen=True)
class Axis:
    """One parameter. switch: name of the parameter that says whether this one is drawn."""

    name: str
    distribution: BaseDistribution
    switch: str | None = None

    def place(self, params: Mapping[str, Any]) -> float:
        """Return the position of a trial's value; NaN if it has none."""
        if self.name not in params:
            return np.nan
        value, own = params[self.name], self.distribution
        if isinstance(own, CategoricalDistribution):
            return own.choices.index(value) / max(1, len(own.choices) - 1)
        assert isinstance(own, Range)
        return share(own, value)

    def value(self, position: float) -> Any:
        """Return the value at a position, the nearest choice."""
        own = self.distribution
        if isinstance(own, CategoricalDistribution):
            return own.choices[round(position * (len(own.choices) - 1))]
        assert isinstance(own, Range)
        return value_at(own, position)

    def spread(self, shares: Floats) -> Floats:
        """Return positions that are as even over the values as the shares are over 0 … 1."""
        own = self.distribution
        if isinstance(own, CategoricalDistribution):
            count = len(own.choices)
            return np.minimum(np.floor(shares * count), count - 1) / max(1, count - 1)
        return shares

    def snap(self, positions: Floats) -> Floats:
        """Return the positions of the nearest values that can be drawn."""
        own = self.distribution
        if isinstance(own, CategoricalDistribution):
            steps = max(1, len(own.choices) - 1)
            return np.asarray(np.round(positions * steps) / steps)
        assert isinstance(own, Range)
        if own.step is None:
            return positions
        low, high = ends(own)
        values = low + positions * (high - low)
        values = np.exp(values) if own.log else values
        values = np.clip(
            own.low + np.round((values - own.low) / own.step) * own.step, own.low, own.high
        )
        values = np.log(values) if own.log else values
        return np.asarray((values - low) / (high - low))

    def features(self, positions: Floats) -> Floats:
        """Return columns for a model: choices without an order have one column each.

        Args:
            positions: (points,) on the grid; NaN where the parameter is not drawn.

        Returns:
            (points, columns).
        """
        own = self.distribution
        if isinstance(own, CategoricalDistribution) and len(own.choices) > 2 and not _ordered(own):
            index = np.round(positions * (len(own.choices) - 1))
            # Two choices differ in two columns: their distance is 1, as that of a switch.
            return np.where(index[:, None] == np.arange(len(own.choices)), 0.5**0.5, 0.0)
        return np.where(np.isnan(positions), UNDRAWN, positions)[:, None]


def _ordered(own: CategoricalDistribution) -> bool:
    """Return whether the choices are numbers in increasing order."""
    numbers = [c for c in own.choices if isinstance(c, int | float)]
    return len(numbers) == len(own.choices) and numbers == sorted(numbers)


class Cube:
    """The axes of a search space.

    Args:
        space: the space; its constants are left out.
    """

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self.axes = [axis for dimension in space.dimensions for axis in _axes(dimension)]
        self.names = tuple(axis.name for axis in self.axes)
        self.distributions = {axis.name: axis.distribution for axis in self.axes}
        self._shape = [i for i, name in enumerate(self.names) if name in space.shape_names]

    def place(self, params: Mapping[str, Any]) -> Floats:
        """Return the point of a trial's parameters, (axes,); NaN where one is not drawn."""
        return np.array([axis.place(params) for axis in self.axes])

    def complete(self, params: Mapping[str, Any]) -> bool:
        """Return whether a trial has all parameters that are drawn."""
        return all(
            axis.name in params or (axis.switch is not None and not params.get(axis.switch, True))
            for axis in self.axes
        )

    def params(self, point: Floats) -> dict[str, Scalar]:
        """Return the parameters at a point, without those that are switched off."""
        found = {
            axis.name: axis.value(float(position))
            for axis, position in zip(self.axes, point, strict=True)
            if not np.isnan(position)
        }
        return {
            axis.name: found[axis.name]
            for axis in self.axes
            if axis.name in found and (axis.switch is None or found[axis.switch])
        }

    def log_arithmetic(self, points: Floats) -> Floats:
        """Return the logarithms of `SearchSpace.arithmetic`, (points,)."""
        # A space has few shapes.
        shapes, index = np.unique(points[:, self._shape], axis=0, return_inverse=True)
        axes = [self.axes[i] for i in self._shape]
        found = [
            self.space.arithmetic({a.name: a.value(p) for a, p in zip(axes, shape, strict=True)})
            for shape in shapes
        ]
        return np.log(found)[index.reshape(-1)]

    def moved(self, points: Floats, steps: Floats) -> Floats:
        """Return the points after steps, on the grid. A range that is off counts as its middle."""
        return self.snap(np.clip(np.nan_to_num(points, nan=UNDRAWN) + steps, 0.0, 1.0))

    def spread(self, shares: Floats) -> Floats:
        """Return `Axis.spread` of every column of (points, axes)."""
        return self._switched(
            np.stack([a.spread(shares[:, i]) for i, a in enumerate(self.axes)], axis=1)
        )

    def fixed(self, points: Floats, params: Mapping[str, Any]) -> Floats:
        """Return the points with these parameters."""
        points = points.copy()
        for i, axis in enumerate(self.axes):
            if axis.name in params:
                points[:, i] = axis.place(params)
        return self._switched(points)

    def snap(self, points: Floats) -> Floats:
        """Return the nearest points whose values can be drawn."""
        return self._switched(
            np.stack([a.snap(points[:, i]) for i, a in enumerate(self.axes)], axis=1)
        )

    def _switched(self, points: Floats) -> Floats:
        """Return the points with NaN where a switch is off, and a position where it is on."""
        points = points.copy()
        for i, axis in enumerate(self.axes):
            if axis.switch is not None:
                off = points[:, self.names.index(axis.switch)] < 0.5
                points[:, i] = np.where(off, np.nan, np.nan_to_num(points[:, i], nan=UNDRAWN))
        return points

    def features(self, points: Floats) -> Floats:
        """Return (points, columns) for a model, see `Axis.features`."""
        columns = [axis.features(points[:, i]) for i, axis in enumerate(self.axes)]
        return np.concatenate([np.zeros((len(points), 0)), *columns], axis=1)


def _axes(dimension: Dimension) -> Sequence[Axis]:
    if dimension.value is not None:
        return ()
    name = dimension.name
    if dimension.choices:
        return (Axis(name, CategoricalDistribution(dimension.choices)),)
    low, high = dimension.ends
    distribution: Range
    if dimension.whole:
        step = int(dimension.step or 1)
        distribution = IntDistribution(int(low), int(high), log=dimension.log, step=step)
    else:
        distribution = FloatDistribution(
            float(low), float(high), log=dimension.log, step=dimension.step
        )
    if dimension.off is None:
        return (Axis(name, distribution),)
    switch = CategoricalDistribution((False, True))
    return Axis(dimension.switch, switch), Axis(name, distribution, dimension.switch)
