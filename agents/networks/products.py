"""Batched matrix products of networks in the study's precision, under autograd.

torch computes them in float32 or TF32, and on processors with AMX in bfloat16, as
`sweepd.agents.networks.precision` sets it for the process. On cards it would take TF32 for
bfloat16, so there the factors are rounded here: products of bfloat16 numbers, summed in float32.
Weights, gradients and results are float32 everywhere.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

BF16 = "medium"  # of `torch.set_float32_matmul_precision`
_ROUNDED_ON = "cuda"  # type of the devices on which factors are rounded here


def rounded(x: Tensor) -> Tensor:
    """Return a factor of several products as they read it: bfloat16 in that precision on a card."""
    return x.bfloat16() if _rounds(x) else x


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b, (N, rows, out), in float32.

    Args:
        a: (N, rows, in).
        b: (N, in, out); both as they are, or both `rounded`, which have no gradients.
    """
    if a.dtype == torch.bfloat16:
        return _sums(a, b)
    if _rounds(a):
        result: Tensor = _Rounded.apply(a, b)  # type: ignore[no-untyped-call]
        return result
    return torch.bmm(a, b)


def plus_product(summand: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return summand + a @ b; see `product`."""
    if a.dtype == torch.bfloat16 or _rounds(a):
        return summand + product(a, b)
    return torch.baddbmm(summand, a, b)


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a @ b to a tensor in place, without gradients; see `product`."""
    if a.dtype == torch.bfloat16 or _rounds(a):
        total.add_(product(a, b))
    else:
        total.baddbmm_(a, b)


def _rounds(x: Tensor) -> bool:
    return (
        x.dtype == torch.float32
        and x.device.type == _ROUNDED_ON
        and torch.get_float32_matmul_precision() == BF16
    )


def _sums(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of bfloat16 factors in float32."""
    return torch.bmm(a, b, out_dtype=torch.float32)


def has_bf16(device: torch.device) -> bool:
    """Return whether a card, with this build of torch, multiplies bfloat16 and sums in float32."""
    ones = torch.ones(1, 16, 16, dtype=torch.bfloat16, device=device)
    try:
        return bool((_sums(ones, ones) == 16.0).all())
    except (RuntimeError, NotImplementedError):
        return False


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        a, b = a.bfloat16(), b.bfloat16()
        ctx.save_for_backward(a, b)
        return _sums(a, b)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (a, b), grad = ctx.saved_tensors, grads[0].bfloat16()
        d_a = _sums(grad, b.mT) if ctx.needs_input_grad[0] else None
        d_b = _sums(a.mT, grad) if ctx.needs_input_grad[1] else None
        return d_a, d_b
