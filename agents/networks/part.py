"""One tensor of a network, and its place in a flat tensor."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from torch import Tensor

_ALIGN = 16  # floats: every part starts on a cache line


class Part(NamedTuple):
    """A tensor of a network.

    Attributes:
        name: as its module has it.
        rows: of the matrix in a flat tensor, (in, out) of a layer.
        columns: likewise.
        group: decides its place in a flat tensor.
        module_shape: its shape in its module, where that is not the transposed matrix.
    """

    name: str
    rows: int
    columns: int
    group: str
    module_shape: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape in its module: vectors for biases, (out, in) for matrices."""
        if self.module_shape:
            return self.module_shape
        return (self.columns,) if "bias" in self.name else (self.columns, self.rows)

    def to_module(self, matrix: Tensor) -> Tensor:
        """Return a view (…, *shape) of (…, rows, columns)."""
        turned = matrix if self.module_shape or "bias" in self.name else matrix.mT
        return turned.reshape(*matrix.shape[:-2], *self.shape)


def aligned(count: int) -> int:
    """Return `count` floats rounded up to whole cache lines."""
    return -(-count // _ALIGN) * _ALIGN


def offsets(parts: Sequence[Part]) -> dict[str, int]:
    """Return where parts begin in a flat tensor, by name."""
    sizes = (aligned(part.rows * part.columns) for part in parts)
    return dict(zip((part.name for part in parts), accumulate(sizes, initial=0), strict=False))


def cut(flat: Tensor, parts: Sequence[Part]) -> dict[str, Tensor]:
    """Return views (N, rows, columns) of a flat (N, P or more) tensor by name."""
    start = offsets(parts)
    return {
        part.name: flat[:, start[part.name] : start[part.name] + part.rows * part.columns].view(
            -1, part.rows, part.columns
        )
        for part in parts
    }
