"""Selection of rows of tensors."""

from __future__ import annotations

import torch
from torch import Tensor


def where_rows(mask: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """Return (rows, …): the rows of `one` where a (rows,) bool mask is true, else of `other`."""
    return torch.where(mask.view(-1, *(1 for _ in other.shape[1:])), one, other)
