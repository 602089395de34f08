"""The function between the layers of a network, and its derivative.

relu    max(z, 0)
tanh    tanh z
silu    z / (1 + e^-z)              (Elfwing, Uchibe and Doya, 2018, arXiv:1702.03118)
elu     z for z > 0, else e^z - 1   (Clevert, Unterthiner and Hochreiter, 2016, arXiv:1511.07289)
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

RELU, TANH, SILU, ELU = "relu", "tanh", "silu", "elu"
# Exported actors name theirs by its index here: append only.
ACTIVATIONS = (RELU, TANH, SILU, ELU)
# Exported actors have this tensor, (1,) int64, unless their activation is ReLU.
ACTIVATION = "activation"


def activation_tensor(kind: str) -> dict[str, Tensor]:
    """Return the tensor `ACTIVATION` by its name; nothing for ReLU."""
    return {} if kind == RELU else {ACTIVATION: torch.tensor([ACTIVATIONS.index(kind)])}


def activation_of(member: Mapping[str, Tensor]) -> str:
    """Return the activation of an exported actor, valid or of one of several members (G, 1)."""
    return ACTIVATIONS[int(member[ACTIVATION].flatten()[0])] if ACTIVATION in member else RELU


def activated(kind: str, x: Tensor) -> Tensor:
    """Return an activation of x, which autograd can differentiate; "" is none."""
    if kind == RELU:
        return torch.relu(x)
    if kind == TANH:
        return torch.tanh(x)
    if kind == SILU:
        return functional.silu(x)
    return functional.elu(x) if kind == ELU else x


def activate_(kind: str, x: Tensor) -> None:
    """Apply an activation in place; "" is none."""
    if kind == RELU:
        x.relu_()
    elif kind == TANH:
        x.tanh_()
    elif kind == SILU:
        functional.silu(x, inplace=True)
    elif kind == ELU:
        functional.elu(x, inplace=True)


def needs_sums(kind: str) -> bool:
    """Whether the derivative needs the sums z; the others follow from the result."""
    return kind == SILU


def through_(kind: str, delta: Tensor, kept: Tensor) -> None:
    """Multiply a gradient by the activation's derivative, in place.

    Args:
        kind: the activation.
        delta: dL/dx; becomes dL/dz.
        kept: z where `needs_sums`, else x.
    """
    aten = torch.ops.aten
    if kind == RELU:
        aten.threshold_backward.grad_input(delta, kept, 0, grad_input=delta)
    elif kind == TANH:
        aten.tanh_backward.grad_input(delta, kept, grad_input=delta)
    elif kind == SILU:
        aten.silu_backward.grad_input(delta, kept, grad_input=delta)
    else:
        aten.elu_backward.grad_input(delta, 1, 1, 1, True, kept, grad_input=delta)
