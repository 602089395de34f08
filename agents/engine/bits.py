"""Bools in bits: eight of them in a byte."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

# Eight bytes that are 0 or 1, read as one int64 and multiplied by this, leave their bits side by
# side in the highest byte: each of the eight terms moves another byte's bit there, and no two sums
# meet, so nothing carries.
_GATHER = 0x0102040810204080


def packed_size(bools: int) -> int:
    """Return the bytes that hold so many bools."""
    return -(-bools // 8)


def pack(bools: Tensor) -> Tensor:
    """Return (…, n) uint8 of contiguous (…, 8 n) bool."""
    return (bools.view(torch.int64) * _GATHER >> 56).to(torch.uint8)


def unpack(packed: Tensor) -> Tensor:
    """Return (…, 8 n) bool of (…, n) uint8, the inverse of `pack`."""
    # A table of all bytes is several times faster than shifts, which touch every bool.
    found = torch.index_select(_table(packed.device), 0, packed.flatten().int())
    return found.view(packed.shape).view(torch.bool)


@cache
def _table(device: torch.device) -> Tensor:
    """Return (256,) int64: the eight bools of every byte."""
    bools = torch.cartesian_prod(*[torch.tensor([False, True])] * 8)
    table = torch.empty(256, dtype=torch.int64)
    table[pack(bools).flatten().long()] = bools.view(torch.int64).flatten()
    return table.to(device)
