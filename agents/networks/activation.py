"""What follows each hidden layer of a network.

relu    max(z, 0)
tanh    tanh z
silu    z / (1 + e^-z)              (Elfwing, Uchibe and Doya, 2018, arXiv:1702.03118)
elu     z for z > 0, else e^z - 1   (Clevert, Unterthiner and Hochreiter, 2016, arXiv:1511.07289)

A layer type of your own is an entry of `ACTIVATIONS`, with weights if it has some. Descriptions,
first weights, files, frozen policies and search spaces follow; torch trains it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from sweepd.agents.networks.part import Part

RELU, TANH, SILU, ELU = "relu", "tanh", "silu", "elu"
# The native kernels take an activation's index here, as in activation.h, and know no others.
NATIVE = (RELU, TANH, SILU, ELU)


class Activation(NamedTuple):
    """What follows a hidden layer.

    Attributes:
        function: of the layer's outputs (N, rows, width), which it may overwrite, and its own
            weights, in the order of `new`: (N, 1, width) and (N, in, out). It mixes neither
            networks nor rows.
        new: the first values of its own weights for a width, by names that are neither weight nor
            bias, as modules have them: (width,) and (out, in). None: it has none.
    """

    function: Callable[..., Tensor]
    new: Callable[[int], Mapping[str, Tensor]] | None = None


def _relu(x: Tensor) -> Tensor:
    """Return max(x, 0), in place of x; its derivative likewise takes the place of the gradient.

    (Elsewhere in memory, both would take several times as long.) So the result may not go into a
    sum, whose gradient is its other term's, too: only linear layers read it.
    """
    if not torch.is_grad_enabled():
        return x.relu_()
    result: Tensor = _ReLU.apply(x)  # type: ignore[no-untyped-call]
    return result


class _ReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x.relu_())
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        [x], [grad] = ctx.saved_tensors, grads
        torch.ops.aten.threshold_backward.grad_input(grad, x, 0, grad_input=grad)
        return grad


ACTIVATIONS = {
    RELU: Activation(_relu),
    TANH: Activation(torch.tanh_),
    SILU: Activation(functional.silu),
    ELU: Activation(functional.elu_),
}


def activated(kind: str, x: Tensor, weights: Mapping[str, Tensor], layer: str) -> Tensor:
    """Return what follows the outputs x of a hidden layer, whose own weights have its name."""
    own = (weights[part.name] for part in parts(kind, layer, x.shape[-1]))
    return ACTIVATIONS[kind].function(x, *own)


@functools.cache
def parts(kind: str, layer: str, width: int) -> tuple[Part, ...]:
    """Return the weights that follow a hidden layer."""
    with torch.device("meta"):  # draws no random numbers
        new = new_weights(kind, layer, width)
    found = []
    for name, own in new.items():
        size = tuple(own.shape)
        rows, module_shape = (1, size) if len(size) == 1 else (size[1], ())
        found.append(Part(name, rows, size[0], "activation", module_shape))
    return tuple(found)


def new_weights(kind: str, layer: str, width: int) -> dict[str, Tensor]:
    """Return the first values of the weights that follow a hidden layer."""
    new = ACTIVATIONS[kind].new
    return {} if new is None else {f"{layer}.{name}": own for name, own in new(width).items()}
