"""The function between the layers of a network.

relu    max(z, 0)
tanh    tanh z
silu    z / (1 + e^-z)              (Elfwing, Uchibe and Doya, 2018, arXiv:1702.03118)
elu     z for z > 0, else e^z - 1   (Clevert, Unterthiner and Hochreiter, 2016, arXiv:1511.07289)
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

RELU, TANH, SILU, ELU = "relu", "tanh", "silu", "elu"
# The native kernels take an activation's index here, as in activation.h.
ACTIVATIONS = (RELU, TANH, SILU, ELU)


def activated(kind: str, x: Tensor) -> Tensor:
    """Return an activation of x."""
    if kind == RELU:
        return torch.relu(x)
    if kind == TANH:
        return torch.tanh(x)
    if kind == SILU:
        return functional.silu(x)
    return functional.elu(x)
