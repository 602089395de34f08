"""Observations of any space as rows of a structured array, and as the input of a network.

A row holds the leaves of a Dict or Tuple space side by side, each in a dtype close to its own. In
this compact form observations are stored in shared memory and copied to a GPU; only there they
become the network's input, with choices one-hot.

In a Dict space, "action_mask" is not an observation: it says which options of discrete actions are
legal.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sweepd.envs.external.actions import ActionLayout
from sweepd.envs.support.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

MASK = "action_mask"
OBSERVATION = "observation"  # the other key, next to `MASK`, in observations of `InfoMask`
# Pixels per side; smaller images are few enough numbers for a network without convolutions.
SMALLEST_IMAGE = 36
# What reading an observation raises that does not belong to its space.
_MISMATCH = (ValueError, TypeError, KeyError, IndexError)
# The dtype that a leaf is stored in, by its own: torch supports few unsigned types, and networks
# compute in float32. All others are stored as int64.
_STORED = {
    "f": np.float32,
    "b": np.bool_,
    "u1": np.uint8,
    "i1": np.int8,
    "i2": np.int16,
    "u2": np.int32,
    "i4": np.int32,
}


@dataclass(frozen=True)
class Leaf:
    """One array in an observation.

    Attributes:
        path: Keys and positions that lead to it.
        dtype: The dtype that it is stored in.
        shape: Its shape.
        offset: Where it begins in the row, in bytes.
        choices: Number of options of each of its choices; () if it consists of numbers.
        start: The first option of each choice.
    """

    path: tuple[str | int, ...]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    choices: tuple[int, ...] = ()
    start: tuple[int, ...] = ()

    @property
    def columns(self) -> int:
        """Numbers that a network reads of it."""
        return sum(self.choices) if self.choices else prod(self.shape)

    @property
    def bytes(self) -> int:
        """Its size in the row."""
        return prod(self.shape) * self.dtype.itemsize


class UnfitSpace(InputError):
    """No network reads observations of this space as they are; a wrapper may change that."""


class ObservationLayout:
    """How observations of one space are laid out.

    Attributes:
        space: The space.
        leaves: Its arrays, in the order of the row.
        dtype: The structured dtype of a row, one field per leaf.
        size: Numbers that a network reads.
        image_shape: (channels, height, width) if the observation is a uint8 image, else None.
        masked: Whether rows contain a mask of legal options.
    """

    def __init__(self, space: spaces.Space[Any], actions: ActionLayout | None = None) -> None:
        """Lay out a space.

        Args:
            space: The space.
            actions: The actions that an "action_mask" in the space refers to; None: it is a key
                like any other.

        Raises:
            UnfitSpace: The space has no fixed size, or has an image that is not a uint8 Box alone.
            InputError: The space is empty, or its mask does not fit the actions.
        """
        self.space = space
        found = list(_leaves(space, ()))
        self.masked = (
            actions is not None
            and actions.discrete
            and isinstance(space, spaces.Dict)
            and MASK in space.spaces
        )
        if len(found) == sum(self._of_mask(leaf) for leaf in found):
            raise InputError(
                f"the observation space {space} is empty; there is nothing to learn from"
            )
        if self.masked and actions is not None:
            _check_flags([leaf for leaf in found if self._of_mask(leaf)], sum(actions.choices))
        # Widest dtype first, and rows padded to a multiple of it, so that all leaves are aligned.
        found.sort(key=lambda leaf: -leaf.dtype.itemsize)
        offset, self.leaves = 0, []
        for leaf in found:
            self.leaves.append(replace(leaf, offset=offset))
            offset += leaf.bytes
        widest = found[0].dtype.itemsize
        self.dtype = np.dtype(
            {
                "names": [f"leaf{index}" for index in range(len(found))],
                "formats": [(leaf.dtype, leaf.shape) for leaf in self.leaves],
                "offsets": [leaf.offset for leaf in self.leaves],
                "itemsize": -(-offset // widest) * widest,
            }
        )
        shown = _without_mask(space) if self.masked else space
        self.image_shape, self._channels_last = _image(shown)
        if self.image_shape is None:
            _refuse_images(shown, ())
        self._inputs = [leaf for leaf in self.leaves if not self._of_mask(leaf)]  # of networks
        of_mask = [self._of_mask(leaf) for leaf in self.leaves]
        self._mask_field = f"leaf{of_mask.index(True)}" if self.masked else ""
        self.size = sum(leaf.columns for leaf in self._inputs)
        self._plain = len(self.leaves) == 1 and self.leaves[0].dtype == np.float32

    def fields(self, rows: NDArray[Any]) -> list[NDArray[Any]]:
        """Return views of (n,) rows, one (n, *shape) per leaf."""
        return [rows[name] for name in self.dtype.names or ()]

    def flags(self, rows: NDArray[Any]) -> NDArray[np.bool_]:
        """Return the masks in (n,) rows: (n, options), the options of all choices side by side."""
        flags: NDArray[np.bool_] = rows[self._mask_field].reshape(len(rows), -1) != 0
        return flags

    def allow_all(self, rows: NDArray[Any]) -> None:
        """Set the masks in (n,) rows, if there are any, so that every option is legal."""
        if self.masked:
            rows[self._mask_field] = 1

    def restore(self, rows: NDArray[Any]) -> list[Any]:
        """Return the observations in (n,) rows as the environment gave them.

        Their dtypes are those of the space; numbers of float64 were rounded to float32.
        """
        paths = (leaf.path for leaf in self.leaves)
        fields = dict(zip(paths, self.fields(rows), strict=True))
        return [_restored(self.space, (), fields, row) for row in range(len(rows))]

    def writer(self, rows: NDArray[Any]) -> Writer:
        """Return a writer of observations into (n,) rows."""
        return Writer(self, rows)

    def unpack(self, raw: Tensor) -> Tensor:
        """Return the network's input for rows, on the device of `raw`.

        Args:
            raw: (n, dtype.itemsize) uint8, the bytes of the rows.

        Returns:
            (n, size) float32, or uint8 if the observation is an image. A view if nothing needs to
            be converted.
        """
        import torch  # not at the top: env workers start faster without

        if self._plain:
            return raw.view(torch.float32)
        rows = len(raw)
        if self.image_shape is not None:
            (leaf,) = self._inputs
            image = raw[:, leaf.offset : leaf.offset + leaf.bytes].view(rows, *leaf.shape)
            return (image.movedim(-1, 1) if self._channels_last else image).reshape(rows, -1)
        parts = []
        for leaf in self._inputs:
            values = raw[:, leaf.offset : leaf.offset + leaf.bytes].view(_torch_dtype(leaf.dtype))
            if not leaf.choices:
                parts.append(values.float())
            for column, (size, start) in enumerate(zip(leaf.choices, leaf.start, strict=True)):
                options = torch.arange(start, start + size, device=raw.device)
                parts.append(values[:, column, None].eq(options).float())
        return torch.cat(parts, 1)

    def _of_mask(self, leaf: Leaf) -> bool:
        return self.masked and leaf.path[0] == MASK


class Writer:
    """Writes observations, as environments return them, into rows of an array."""

    def __init__(self, layout: ObservationLayout, rows: NDArray[Any]) -> None:
        self._space = layout.space
        self._columns = list(
            zip((leaf.path for leaf in layout.leaves), layout.fields(rows), strict=True)
        )
        path, field = self._columns[0]
        # Observations are usually one vector each, and many small vectors are written fastest by
        # concatenating them.
        whole = (
            len(self._columns) == 1 and not path and field.ndim == 2 and field.flags.c_contiguous
        )
        self._flat = field.reshape(-1) if whole else None

    def all(self, observations: Sequence[Any]) -> None:
        """Write one observation per row; raise ValueError if one does not fit the space."""
        try:
            self._write_all(observations)
        except _MISMATCH as error:
            raise ValueError(
                f"of {len(observations)} observations, not all are of the observation space "
                f"{self._space}: {_shapes(observations)}"
            ) from error

    def batch(self, observations: Any) -> None:
        """Write one observation per row, given as a Dict or Tuple of arrays over all rows."""
        for path, field in self._columns:
            field[...] = _at(observations, path)

    def one(self, row: int, observation: Any) -> None:
        """Write one row's observation; raise ValueError if it does not fit the space."""
        try:
            for path, field in self._columns:
                value = _at(observation, path)
                if np.shape(value) != field.shape[1:]:  # numpy would broadcast it
                    raise ValueError(f"its shape is {np.shape(value)}, not {field.shape[1:]}")
                field[row] = value
        except _MISMATCH as error:
            raise ValueError(
                f"an observation, {shape_of(observation)}, is not of the observation space "
                f"{self._space}: {error}"
            ) from error

    def _write_all(self, observations: Sequence[Any]) -> None:
        if self._flat is not None:
            np.concatenate(observations, out=self._flat, casting="same_kind")
            return
        for path, field in self._columns:
            values = [_at(observation, path) for observation in observations]
            if field.ndim > 1:
                np.stack(values, out=field, casting="same_kind")
            else:
                field[:] = values


def shape_of(value: Any) -> str:
    """Describe a value for messages: numbers as they are, arrays by shape and dtype."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {shape_of(part)}" for name, part in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(shape_of, value)) + ")"
    if isinstance(value, np.ndarray):
        return f"shape {value.shape} {value.dtype}"
    return repr(value)[:40]


def _shapes(observations: Sequence[Any]) -> str:
    """Describe the different shapes of some observations, each with how many have it."""
    found = Counter(map(shape_of, observations))
    return "; ".join(f"{count} with {shape}" for shape, count in found.most_common(4))


@functools.cache
def _torch_dtype(dtype: np.dtype[Any]) -> Any:
    import torch

    return torch.from_numpy(np.empty(0, dtype)).dtype


def _at(value: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def _stored(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(_STORED.get(dtype.kind, _STORED.get(f"{dtype.kind}{dtype.itemsize}", np.int64)))


def _restored(
    space: spaces.Space[Any],
    path: tuple[str | int, ...],
    fields: Mapping[tuple[str | int, ...], NDArray[Any]],
    row: int,
) -> Any:
    if isinstance(space, spaces.Dict):
        return {name: _restored(part, (*path, name), fields, row) for name, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_restored(part, (*path, at), fields, row) for at, part in enumerate(space))
    value = fields[path][row]
    return int(value) if isinstance(space, spaces.Discrete) else value.astype(space.dtype)


def _leaves(space: spaces.Space[Any], path: tuple[str | int, ...]) -> list[Leaf]:
    """Return the leaves of a space below `path`, without their offsets."""
    integer = np.dtype(np.int64)
    if isinstance(space, spaces.Dict):
        return [leaf for name, part in space.items() for leaf in _leaves(part, (*path, name))]
    if isinstance(space, spaces.Tuple):
        return [leaf for index, part in enumerate(space) for leaf in _leaves(part, (*path, index))]
    if isinstance(space, spaces.Box):
        return [Leaf(path, _stored(space.dtype), space.shape, 0)]
    if isinstance(space, spaces.MultiBinary):
        return [Leaf(path, np.dtype(np.int8), tuple(space.shape), 0)]
    if isinstance(space, spaces.Discrete):
        return [Leaf(path, integer, (), 0, (int(space.n),), (int(space.start),))]
    if isinstance(space, spaces.MultiDiscrete):
        sizes = tuple(space.nvec.reshape(-1).tolist())
        start = tuple(np.broadcast_to(space.start, space.nvec.shape).reshape(-1).tolist())
        return [Leaf(path, integer, tuple(space.shape), 0, sizes, start)]
    raise UnfitSpace(
        f"an observation space{_where(path)} is {short(space)}; spaces that can be learned from "
        "are Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of them"
    )


def _where(path: tuple[str | int, ...]) -> str:
    return f" at {'/'.join(map(str, path))}" if path else ""


def short(space: spaces.Space[Any]) -> str:
    """Return a space for messages, at most a line of it."""
    text = str(space)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _check_flags(mask: Sequence[Leaf], options: int) -> None:
    flags = sum(prod(leaf.shape) for leaf in mask)
    if len(mask) != 1 or flags != options:
        raise InputError(
            f"the {MASK} in the observation space has {flags} flags in {len(mask)} parts, and "
            f"actions have {options} options; it must be one array with a flag for each"
        )


def _without_mask(space: Any) -> spaces.Space[Any]:
    rest = {name: part for name, part in space.items() if name != MASK}
    return next(iter(rest.values())) if len(rest) == 1 else spaces.Dict(rest)


def is_image(space: spaces.Space[Any]) -> bool:
    """Return whether a space has the shape of an image, or of stacked ones, of any type.

    A table of numbers that have no common bounds, such as a window of bars, is no image.
    """
    if not isinstance(space, spaces.Box) or len(space.shape) not in (2, 3, 4):
        return False
    if len(space.shape) == 2 and space.dtype != np.uint8:
        low, high = float(space.low.flat[0]), float(space.high.flat[0])
        same = bool((space.low == low).all() and (space.high == high).all())
        if not (same and np.isfinite(low) and np.isfinite(high)):
            return False
    first, height, width = (1, *space.shape)[-3:]
    # The channels are the fewest, and come first or last.
    return min(height, max(first, width)) >= SMALLEST_IMAGE


def _refuse_images(space: spaces.Space[Any], path: tuple[str | int, ...]) -> None:
    """Raise UnfitSpace if a part of a space is an image, which a network would read as numbers."""
    if isinstance(space, spaces.Dict):
        for name, part in space.items():
            _refuse_images(part, (*path, name))
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space):
            _refuse_images(part, (*path, index))
    elif is_image(space):
        beside = "in a Dict or Tuple" if path else "not of bytes or not of 2 or 3 dimensions"
        raise UnfitSpace(
            f"an observation space{_where(path)} is an image, {beside}: {space.shape} of "
            f"{space.dtype}; networks read images that are the whole observation, a Box of uint8 of "
            "(height, width[, channels]) or (channels, height, width)"
        )


def _image(space: spaces.Space[Any]) -> tuple[tuple[int, int, int] | None, bool]:
    """Return (channels, height, width) of an image space, and whether its channels come last."""
    if (
        not isinstance(space, spaces.Box)
        or space.dtype != np.uint8
        or len(space.shape) not in (2, 3)
    ):
        return None, False
    shape = space.shape if len(space.shape) == 3 else (1, *space.shape)
    last = len(space.shape) == 3 and shape[2] < shape[0]  # the channels are the fewest
    channels, height, width = (shape[2], shape[0], shape[1]) if last else shape
    if min(height, width) < SMALLEST_IMAGE:
        return None, False
    return (int(channels), int(height), int(width)), last
