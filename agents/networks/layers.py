"""Linear layers of N networks, under autograd.

Layers take plain tensors. x is (N, rows, in), weights are (N, in, out), biases
(N, 1, out). No operation mixes networks, and none has other bits in another slot.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sweepd.agents.networks.products import plus_product, product, rounded


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x @ weight + bias, (N, rows, out)."""
    if not torch.is_grad_enabled():
        return plus_product(bias, x, weight)
    result: Tensor = _Affine.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return result


class _Affine(torch.autograd.Function):
    """`affine` with the gradient of the bias as a product with ones.

    It is faster than a reduction over rows, and has the same bits in every slot.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        x, weight = rounded(x), rounded(weight)
        ctx.save_for_backward(x, weight)
        return plus_product(bias, x, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad, (x, weight) = rounded(grads[0]), ctx.saved_tensors
        d_x = product(grad, weight.mT) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return d_x, None, None
        ones = grad.new_ones(grad.shape[0], 1, grad.shape[1])
        return d_x, product(x.mT, grad), product(ones, grad)
