"""Observations of any space as rows of a flat structured array, and what a network reads of them.

A row holds every leaf of a Dict or Tuple space next to each other, in its own dtype, as compactly as it came: that is
what lies in shared memory and crosses to a GPU. Only there it becomes numbers: one-hot where a leaf is a choice.

A Dict's "action_mask" beside choices is no observation, but says which of their options are legal.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envs.external.actions import ActionLayout
from envs.support.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

MASK = "action_mask"
SMALLEST_IMAGE = 36  # pixels on a side: below, a picture is few enough numbers for a plain network
_AMISS = (ValueError, TypeError, KeyError, IndexError)  # where an observation is not of its space
# What a leaf is stored as. Torch computes with few unsigned kinds, and networks with float32.
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
    """One part of an observation. path: keys and positions that lead to it; offset: bytes into the row; choices: sizes
    of the choices it consists of, () where it is numbers; start: what counts as their 0; columns: numbers that a
    network reads.
    """

    path: tuple[str | int, ...]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    choices: tuple[int, ...] = ()
    start: tuple[int, ...] = ()

    @property
    def columns(self) -> int:
        return sum(self.choices) if self.choices else prod(self.shape)

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


class ObservationLayout:
    """How observations of one space are laid out.

    dtype: of a row, structured, one field per leaf. size: numbers that a network reads. image_shape: (channels,
    height, width) where the whole observation is an image of bytes. masked: whether rows say which options of actions
    are legal. Raises InputError for a space without a fixed size.
    """

    def __init__(self, space: spaces.Space[Any], actions: ActionLayout | None = None) -> None:
        """actions: those that an "action_mask" in the space is about; None: it is like any other key."""
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
        # Widest first, each at a multiple of its width: so every leaf of every row is aligned.
        found.sort(key=lambda leaf: -leaf.dtype.itemsize)
        offset, self.leaves = 0, []
        for leaf in found:
            self.leaves.append(
                Leaf(leaf.path, leaf.dtype, leaf.shape, offset, leaf.choices, leaf.start)
            )
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
        self.image_shape, self._channels_last = _image(
            _without_mask(space) if self.masked else space
        )
        self._read = [leaf for leaf in self.leaves if not self._of_mask(leaf)]  # by networks
        self.size = sum(leaf.columns for leaf in self._read)
        self._plain = len(self.leaves) == 1 and self.leaves[0].dtype == np.float32

    def fields(self, rows: NDArray[Any]) -> list[NDArray[Any]]:
        """Views of (n,) rows, one (n, *shape) per leaf."""
        return [rows[name] for name in self.dtype.names or ()]

    def flags(self, rows: NDArray[Any]) -> NDArray[np.bool_]:
        """(n, options) from (n,) rows: which options of all choices, one after the other, their masks call legal."""
        (mask,) = (
            field
            for leaf, field in zip(self.leaves, self.fields(rows), strict=True)
            if self._of_mask(leaf)
        )
        flags: NDArray[np.bool_] = mask.reshape(len(rows), -1) != 0
        return flags

    def allow_all(self, rows: NDArray[Any]) -> None:
        """Write masks into (n,) rows that call everything legal; does nothing where there are none."""
        for leaf, field in zip(self.leaves, self.fields(rows), strict=True):
            if self._of_mask(leaf):
                field[...] = 1

    def writer(self, rows: NDArray[Any]) -> Writer:
        """What writes observations into (n,) rows."""
        return Writer(self, rows)

    def unpack(self, raw: Tensor) -> Tensor:
        """(n, size) float32 from (n, itemsize) bytes, on any device; (n, size) uint8 where it is an image.

        A view where nothing needs to be converted.
        """
        import torch  # not in worker processes, which start faster and stay small without

        if self._plain:
            return raw.view(torch.float32)
        rows = len(raw)
        if self.image_shape is not None:
            (leaf,) = self._read
            image = raw[:, leaf.offset : leaf.offset + leaf.bytes].view(rows, *leaf.shape)
            return (
                image.movedim(-1, 1).reshape(rows, -1)
                if self._channels_last
                else image.reshape(rows, -1)
            )
        parts = []
        for leaf in self._read:
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
    """Writes observations, as environments give them, into rows of an array."""

    def __init__(self, layout: ObservationLayout, rows: NDArray[Any]) -> None:
        self._space = layout.space
        self._columns = list(
            zip((leaf.path for leaf in layout.leaves), layout.fields(rows), strict=True)
        )
        path, field = self._columns[0]
        # One vector each is the usual case, and joining vectors is the fastest way to write many small ones.
        whole = (
            len(self._columns) == 1 and not path and field.ndim == 2 and field.flags.c_contiguous
        )
        self._flat = field.reshape(-1) if whole else None

    def all(self, observations: Sequence[Any]) -> None:
        """One observation per row. Raises ValueError for what is not of the space."""
        try:
            self._write_all(observations)
        except _AMISS as error:
            raise ValueError(
                f"of {observations!r}, not all are of the observation space {self._space}"
            ) from error

    def one(self, row: int, observation: Any) -> None:
        """One row's. Raises ValueError for what is not of the space."""
        try:
            for path, field in self._columns:
                value = _at(observation, path)
                if np.shape(value) != field.shape[1:]:  # numpy would repeat what is too small
                    raise ValueError(f"its shape is {np.shape(value)}, not {field.shape[1:]}")
                field[row] = value
        except _AMISS as error:
            raise ValueError(
                f"{observation!r} is not of the observation space {self._space}"
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


def _leaves(space: spaces.Space[Any], path: tuple[str | int, ...]) -> list[Leaf]:
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
        sizes, start = (
            space.nvec.reshape(-1).tolist(),
            np.broadcast_to(space.start, space.nvec.shape),
        )
        return [
            Leaf(
                path,
                integer,
                tuple(space.shape),
                0,
                tuple(sizes),
                tuple(start.reshape(-1).tolist()),
            )
        ]
    where = f" at {'/'.join(map(str, path))}" if path else ""
    raise InputError(
        f"an observation space{where} is {space}; spaces that can be learned from are Box, Discrete, MultiDiscrete, "
        "MultiBinary, and Dict and Tuple of them"
    )


def _check_flags(mask: Sequence[Leaf], options: int) -> None:
    flags = sum(prod(leaf.shape) for leaf in mask)
    if len(mask) != 1 or flags != options:
        raise InputError(
            f"the {MASK} in the observation space has {flags} flags in {len(mask)} parts, and actions have {options} "
            "options; it must be one array with a flag for each"
        )


def _without_mask(space: Any) -> spaces.Space[Any]:
    rest = {name: part for name, part in space.items() if name != MASK}
    return next(iter(rest.values())) if len(rest) == 1 else spaces.Dict(rest)


def _image(space: spaces.Space[Any]) -> tuple[tuple[int, int, int] | None, bool]:
    """(channels, height, width) where the space is one image of bytes, and whether its channels come last."""
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
