"""Sums over assets whose order of additions does not depend on a row's slot."""

from __future__ import annotations

import torch
from torch import Tensor


class AssetSum:
    """Sum over the assets of a fixed tensor (…, N, R), in an order that depends only on N.

    `Tensor.sum` chooses its order of additions by memory position, so a row's last bits would
    depend on its slot. This one adds halves pairwise. Each call sums the tensor's current values
    into the same result, (…, R).
    """

    def __init__(self, values: Tensor) -> None:
        count = values.shape[-2]
        half = max(1, count // 2)
        sums = torch.empty_like(values.narrow(-2, 0, half))
        self.total = sums.select(-2, 0)
        self._steps: list[tuple[Tensor, Tensor | float, Tensor]] = []  # first + second -> third
        if count == 1:
            self._steps.append((values.select(-2, 0), 0.0, self.total))
            return
        self._steps.append((values.narrow(-2, 0, half), values.narrow(-2, half, half), sums))
        while half > 1:
            fold = half // 2
            into = sums.narrow(-2, 0, fold)
            self._steps.append((into, sums.narrow(-2, half - fold, fold), into))
            half -= fold
        if count % 2:
            self._steps.append((self.total, values.select(-2, count - 1), self.total))

    def __call__(self) -> Tensor:
        for first, second, into in self._steps:
            torch.add(first, second, out=into)
        return self.total
