"""Functions with the same bits on all x86-64 processors.

torch takes exp, log and sqrt from MKL's vector library, and QR decompositions from its LAPACK,
whose last bits depend on the processor (measured with torch 2.13 on AMD's Zen 4 and emulated
Haswell and EPYC processors); exp2 and pow depend on the width of vectors. The functions that these
use instead depend on neither.

On GPUs, whose bits are their own, these are torch's functions: fewer launches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


def exp(x: Tensor) -> Tensor:
    """Return e^x, within two units in the last place."""
    if x.device.type != "cpu":
        return x.exp()
    if not torch.is_grad_enabled():
        return _exp(x)
    result: Tensor = _Exp.apply(x)  # type: ignore[no-untyped-call]
    return result


def _exp(x: Tensor) -> Tensor:
    # e^|x| - 1 plus 1 is exact to rounding; of negative x, it would lose what e^x is below 1.
    large = x.abs().expm1_().add_(1.0)
    return torch.where(x < 0, large.reciprocal(), large)


class _Exp(torch.autograd.Function):
    """`exp` on CPUs. (Autograd would find 0 as the derivative of |x| at 0, and so of e^x.)"""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        found = _exp(x)
        ctx.save_for_backward(found)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        [found] = ctx.saved_tensors
        derivative: Tensor = grads[0] * found
        return derivative


def log_of_sum(x: Tensor) -> Tensor:
    """Return log x of numbers of at least 1, of which x - 1 is exact or nearly so."""
    if x.device.type != "cpu":
        return x.log()
    return torch.log1p(x - 1.0)


def sqrt(x: Tensor) -> Tensor:
    """Return the square root, within a unit in the last place."""
    if x.device.type != "cpu":
        return x.sqrt()
    return x.rsqrt().reciprocal_()


class OrthogonalInDouble(TorchFunctionMode):
    """A context in which QR decompositions, as of `torch.nn.init.orthogonal_`, are in float64.

    Rounded to float32, they have the same bits on all processors, unless a number is within some
    1e-16 of the middle between two float32 numbers.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is not torch.linalg.qr:
            return func(*args, **(kwargs or {}))
        [matrix] = args
        return tuple(part.to(matrix.dtype) for part in torch.linalg.qr(matrix.double()))
