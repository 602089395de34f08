"""Selection of rows of tensors."""

from __future__ import annotations

import torch
from torch import Tensor


def where_rows(mask: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """Return (rows, …): the rows of `one` where a (rows,) bool mask is true, else of `other`."""
    mask = mask.view(-1, *(1 for _ in other.shape[1:]))
    if one.dtype == other.dtype == torch.int8:
        # On the CPU `torch.where` is not vectorized for bytes; this takes half as long.
        return other ^ ((one ^ other) & -mask.view(torch.int8))
    return torch.where(mask, one, other)
