"""Random numbers as a function of a key and a counter: Philox 4x32-10, with operations of torch.

J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011. A block is four words of 32
bits. Draws consist of groups of 16 blocks, in which word k of all blocks lie together: so vectors of
processors and threads of GPUs write neighbouring words. All results are exact or rounded once per
operation, and so have the same bits everywhere.

`sweepd.envs.core.native` computes the same in C++, to the bit. Streams are (M, 3) int64: the key, the
number of the next group, and 1, or 0 for a member that gets zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from statistics import NormalDist
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

BLOCKS = 16  # of a group
WORDS = 4 * BLOCKS  # of a group
_LOW = 2**32 - 1
_ROUNDS = 10
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85  # added to the key after each round
INDEX_BITS = 25  # the lower bits of a permutation's keys, which give way to the index
# The normal quantile is a cubic polynomial in each of 2**3 equal parts of an octave; its argument is
# from 2**-1 to 2**31.
_PARTS, _OCTAVES, _FIRST = 3, 33, -1


class Numbers(Protocol):
    """What writes numbers: this module, or the same in C++ or on a GPU."""

    def uniform(self, streams: Tensor, out: Tensor) -> None: ...
    def normal(self, streams: Tensor, out: Tensor) -> None: ...
    def permutations(self, streams: Tensor, out: Tensor) -> None: ...


def uniform(streams: Tensor, out: Tensor) -> None:
    """Write (steps, M, columns) numbers in [0, 1): float32 of 24 bits, or float64 of 53 bits."""
    _write(streams, out, _floats if out.dtype == torch.float32 else _doubles)


def normal(streams: Tensor, out: Tensor) -> None:
    """Write (steps, M, columns) standard normal numbers, float32.

    Word w gives the quantile of (w + 1/2) / 2**32, to some 5e-7: the largest numbers are ± 6.3.
    """
    _write(streams, out, _normals)


def permutations(streams: Tensor, out: Tensor) -> None:
    """Write (M, k, size) int64, k permutations of each stream: the orders of random keys.

    Keys have 38 bits; of equal ones, the first comes first. There are at most 2**25 of them.
    """
    keys = _numbers(streams, out[0].numel(), torch.int64, _keys).view(out.shape)
    index = torch.arange(out.shape[-1], device=out.device)
    ordered = (keys >> INDEX_BITS << INDEX_BITS | index).sort(-1).values
    out.copy_(torch.where(streams[:, 2].view(-1, 1, 1) > 0, ordered & (2**INDEX_BITS - 1), 0))


def groups_of(count: int, dtype: torch.dtype) -> int:
    """Return how many groups a draw takes; numbers of 64 bits take two words each."""
    return -(-count * dtype.itemsize // (4 * WORDS))


def _write(streams: Tensor, out: Tensor, convert: Callable[[Tensor], Tensor]) -> None:
    steps, members, columns = out.shape
    numbers = _numbers(streams, steps * columns, out.dtype, convert)
    of_steps = numbers.view(members, steps, columns).transpose(0, 1)
    out.copy_(torch.where(streams[:, 2:] > 0, of_steps, 0.0))


def _numbers(
    streams: Tensor, count: int, dtype: torch.dtype, convert: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return the next (M, count) numbers of some streams."""
    drawn = words(streams[:, 0], streams[:, 1], groups_of(count, dtype))
    return convert(drawn)[:, :count]


def words(keys: Tensor, first: Tensor, groups: int) -> Tensor:
    """Return the words of some groups of several streams.

    Args:
        keys: (M,) int64.
        first: (M,) int64, the number of each stream's first group.
        groups: how many of each.

    Returns:
        (M, groups, 4, BLOCKS) int64, from 0 to 2**32 - 1.
    """
    blocks = torch.arange(groups * BLOCKS, device=keys.device) + BLOCKS * first.unsqueeze(1)
    low, high = keys.unsqueeze(1) & _LOW, keys.unsqueeze(1) >> 32 & _LOW
    zero = torch.zeros_like(blocks)
    word = [blocks & _LOW, blocks >> 32 & _LOW, zero, zero]
    for _ in range(_ROUNDS):
        # int64 overflows here, and the bits of the product are those of an unsigned one.
        left, right = (word[2 * i] * _MULTIPLIERS[i] for i in range(2))
        word = [
            (right >> 32 & _LOW) ^ word[1] ^ low,
            right & _LOW,
            (left >> 32 & _LOW) ^ word[3] ^ high,
            left & _LOW,
        ]
        low, high = low + _WEYL[0] & _LOW, high + _WEYL[1] & _LOW
    return torch.stack([own.view(-1, groups, BLOCKS) for own in word], 2)


def _floats(drawn: Tensor) -> Tensor:
    return (drawn >> 8).flatten(1).float() * 2.0**-24


def _doubles(drawn: Tensor) -> Tensor:
    high, low = _pairs(drawn)
    return (high >> 5 << 26 | low >> 6).double() * 2.0**-53


def _keys(drawn: Tensor) -> Tensor:
    high, low = _pairs(drawn)
    return high << 31 | low >> 1


def _pairs(drawn: Tensor) -> tuple[Tensor, Tensor]:
    high, low = drawn.flatten(2).chunk(2, -1)
    return high.flatten(1), low.flatten(1)


def _normals(drawn: Tensor) -> Tensor:
    word = drawn.flatten(1).to(torch.int32)  # those from 2**31 on become negative
    sign = word >> 31
    bits = ((word ^ sign).float() + 0.5).view(torch.int32)
    table = normal_table(drawn.device)
    of = table[(bits >> 20) - ((_FIRST + 127) << _PARTS)].unbind(-1)
    distance = ((bits & 0xFFFFF) - 0x80000).float() * 2.0**-19
    found = of[2] + distance * of[3]
    found = of[1] + distance * found
    found = of[0] + distance * found
    return found * (sign | 1)


@cache
def normal_table(device: torch.device) -> Tensor:
    """Return polynomials of the normal quantile, (intervals, 4) float32, on a device.

    Coefficients begin with the constant term. The polynomials meet the quantile at the Chebyshev
    nodes of their interval, scaled to [-1, 1].
    """
    nodes = np.cos((2 * np.arange(4) + 1) * np.pi / 8)
    intervals = np.arange(_OCTAVES << _PARTS)
    octave, part = intervals >> _PARTS, intervals % (1 << _PARTS)
    middle, half = 1.0 + (part + 0.5) / (1 << _PARTS), 0.5 / (1 << _PARTS)
    x = np.ldexp(middle[:, None] + half * nodes, octave[:, None] + _FIRST)
    quantile = np.vectorize(NormalDist().inv_cdf, otypes=[float])
    values = quantile(np.minimum(x * 2.0**-32, 0.5))
    # The interpolation as a sum of Chebyshev polynomials T_0 … T_3, by powers.
    order = np.arange(4)[:, None]
    share = np.cos(order * (2 * np.arange(4) + 1) * np.pi / 8) / np.where(order, 2.0, 4.0)
    c0, c1, c2, c3 = (values[:, None] * share).sum(-1).T
    table = np.stack([c0 - c2, c1 - 3 * c3, 2 * c2, 4 * c3], 1).astype(np.float32)
    return torch.from_numpy(table).to(device)
