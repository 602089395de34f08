"""Rows of tensors: selection, and the state of members."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

_BYTES = (torch.int8, torch.uint8)
_MANY = 2**12  # bytes from which bitwise operations are faster than `torch.where`


def where_rows(
    mask: Tensor, one: Tensor, other: Tensor, axis: int = 0, out: Tensor | None = None
) -> Tensor:
    """Return the rows of `one` where a (rows,) bool mask is true, else those of `other`.

    Args:
        mask: Which rows.
        one: A tensor of rows.
        other: Another one.
        axis: Where its rows are: the first axis (0) or the last one (-1).
        out: Where to write; None: to a new tensor.
    """
    if axis == 0 and other.dim() > 1:
        mask = mask.view(-1, *[1] * (other.dim() - 1))
    kind = one.dtype
    if kind in _BYTES and kind == other.dtype and other.numel() >= _MANY:
        # On the CPU `torch.where` is not vectorized for bytes; this takes half as long.
        changed = (one ^ other).bitwise_and_(mask.view(kind).neg())
        return torch.bitwise_xor(other, changed, out=out)
    return torch.where(mask, one, other) if out is None else torch.where(mask, one, other, out=out)


def take_rows(tensors: Mapping[str, Tensor], rows: slice, axis: int = 0) -> dict[str, Tensor]:
    """Return views of some rows of tensors, which are at `axis`."""
    size = rows.stop - rows.start
    return {name: tensor.narrow(axis, rows.start, size) for name, tensor in tensors.items()}


def put_rows(
    tensors: Mapping[str, Tensor], rows: slice, state: Mapping[str, Tensor], axis: int = 0
) -> None:
    """Write to some rows of tensors what `take_rows` returned, on any device."""
    for name, own in take_rows(tensors, rows, axis).items():
        own.copy_(state[name])
