"""Actions of any space as rows of an array: numbers in [-1, 1], or choices from 0."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sweepd.envs.support.errors import InputError


class ActionLayout:
    """How actions of one space are laid out.

    Attributes:
        space: The space.
        discrete: Whether actions are int64 choices; otherwise they are float32 in [-1, 1], which
            `decode` scales to the space's bounds.
        choices: Number of options of each choice; () if not discrete.
        width: Components of an action.
        single: Whether an action is one choice, for which learners give (n,) instead of (n, 1).
        dtype: Of the rows.
        low: (width,) smallest legal value of each component.
        high: (width,) largest legal value of each component.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        """Raises InputError if the space mixes choices and numbers, or has no bounds."""
        kinds = {isinstance(leaf, spaces.Box) for leaf in _leaves(space)}
        if len(kinds) != 1:
            raise InputError(
                f"the action space {space} mixes choices and numbers (or is empty); it must "
                "consist of one or the other"
            )
        self.space = space
        self.discrete = not kinds.pop()
        self.choices = (
            tuple(size for leaf in _leaves(space) for size in _sizes(leaf)) if self.discrete else ()
        )
        self.width = _width(space)
        self.single = isinstance(space, spaces.Discrete)
        self.dtype = np.dtype(np.int64 if self.discrete else np.float32)
        if self.discrete:
            self.low, self.high = np.zeros(self.width), np.array(self.choices) - 1.0
        else:
            self.low, self.high = np.full(self.width, -1.0), np.ones(self.width)

    def decode(self, rows: NDArray[Any]) -> list[Any]:
        """Return (n, width) rows as n actions of the space, which share no memory with `rows`."""
        return _decode(self.space, rows)

    def decode_batch(self, rows: NDArray[Any]) -> Any:
        """Return (n, width) rows as a vector environment takes them: a Dict or Tuple of arrays."""
        return _stacked(self.space, self.decode(rows))

    def encode(self, action: Any) -> NDArray[Any]:
        """Return an action of the space as a (width,) row, which `decode` turns into it again.

        Raises:
            ValueError: It is not an action of the space.
        """
        try:
            row = np.concatenate(_encoded(self.space, action))
        except (TypeError, KeyError, IndexError) as error:
            raise ValueError(f"{action!r} is not of the action space {self.space}") from error
        if self.discrete and (row != np.round(row)).any():
            raise ValueError(f"{action!r} has choices that are not whole numbers")
        # Numbers at the bounds may exceed them by rounding.
        slack = 0.0 if self.discrete else 1e-6
        if not ((row >= self.low - slack) & (row <= self.high + slack)).all():
            raise ValueError(f"{action!r} is outside the action space {self.space}")
        return row.clip(self.low, self.high).astype(self.dtype)


def _leaves(space: spaces.Space[Any]) -> list[spaces.Space[Any]]:
    """Return the spaces that a Dict or Tuple space is made of."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return [leaf for part in _parts(space) for leaf in _leaves(part)]
    if isinstance(space, spaces.Box):
        if not np.issubdtype(space.dtype, np.floating):
            raise InputError(
                f"the action space {space} has whole numbers; make it Discrete or MultiDiscrete"
            )
        if not space.is_bounded():
            raise InputError(
                f"the action space {space} has no bounds; say which numbers are worth trying, for "
                "example gymnasium.wrappers.TransformAction(env, lambda action: action, "
                "gymnasium.spaces.Box(-1, 1, env.action_space.shape))"
            )
        with np.errstate(over="ignore"):
            span = space.high - space.low
        if not np.isfinite(span).all():
            raise InputError(
                f"the action space {space} is too wide: high - low is not finite in {space.dtype}; "
                "give it the bounds of the numbers that are worth trying"
            )
    elif not isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        raise InputError(
            f"the action space {space} is not supported; supported are Box, Discrete, "
            "MultiDiscrete, MultiBinary, and Dict and Tuple of them"
        )
    return [space]


def _parts(space: spaces.Dict | spaces.Tuple[Any]) -> list[spaces.Space[Any]]:
    return list(space.values()) if isinstance(space, spaces.Dict) else list(space)


def _sizes(leaf: spaces.Space[Any]) -> list[int]:
    if isinstance(leaf, spaces.Discrete):
        return [int(leaf.n)]
    if isinstance(leaf, spaces.MultiDiscrete):
        return [int(size) for size in leaf.nvec.reshape(-1)]
    return [2] * prod(leaf.shape or ())


def _width(space: spaces.Space[Any]) -> int:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return sum(map(_width, _parts(space)))
    return 1 if isinstance(space, spaces.Discrete) else prod(space.shape or ())


def _encoded(space: spaces.Space[Any], action: Any) -> list[NDArray[np.float64]]:
    """Return the components of an action, one array for each leaf of the space."""
    if isinstance(space, spaces.Dict):
        return [leaf for name, part in space.items() for leaf in _encoded(part, action[name])]
    if isinstance(space, spaces.Tuple):
        if len(action) != len(space):
            raise ValueError(f"{action!r} has {len(action)} parts, not {len(space)}")
        return [
            leaf for part, own in zip(space, action, strict=True) for leaf in _encoded(part, own)
        ]
    values = np.asarray(action, dtype=np.float64)
    if isinstance(space, spaces.Discrete):
        if values.size != 1:
            raise ValueError(f"{action!r} is not one of the {space.n} actions")
        return [values.reshape(1) - float(space.start)]
    if values.shape != space.shape:
        raise ValueError(f"{action!r} has the shape {values.shape}, not {space.shape}")
    if isinstance(space, spaces.Box):
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        span = np.where(high > low, high - low, 1.0)
        return [(2.0 * (values - low) / span - np.where(high > low, 1.0, 0.0)).reshape(-1)]
    start = space.start if isinstance(space, spaces.MultiDiscrete) else 0
    return [(values - start).reshape(-1)]


def _decode(space: spaces.Space[Any], rows: NDArray[Any]) -> list[Any]:
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        # Python integers are the fastest for an environment to check and use.
        chosen: list[Any] = rows[:, 0].tolist()
        return [action + start for action in chosen] if start else chosen
    if isinstance(space, spaces.Dict | spaces.Tuple):
        columns, first = [], 0
        for part in _parts(space):
            width = _width(part)
            columns.append(_decode(part, rows[:, first : first + width]))
            first += width
        if isinstance(space, spaces.Tuple):
            return list(zip(*columns, strict=True))
        return [dict(zip(space, row, strict=True)) for row in zip(*columns, strict=True)]
    if isinstance(space, spaces.Box):
        low, high = space.low.reshape(-1), space.high.reshape(-1)
        # Clipped because rounding may exceed the bounds.
        scaled = np.clip(low + 0.5 * (rows + 1.0) * (high - low), low, high).astype(
            space.dtype, copy=False
        )
    elif isinstance(space, spaces.MultiDiscrete):
        scaled = (rows + space.start.reshape(-1)).astype(space.dtype)
    else:
        scaled = rows.astype(space.dtype)
    return list(scaled.reshape(len(rows), *(space.shape or ())))


def _stacked(space: spaces.Space[Any], actions: list[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {
            name: _stacked(part, [action[name] for action in actions])
            for name, part in space.items()
        }
    if isinstance(space, spaces.Tuple):
        return tuple(
            _stacked(part, [action[index] for action in actions])
            for index, part in enumerate(space)
        )
    return np.array(actions, dtype=space.dtype)
