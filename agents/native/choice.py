"""The decision where native kernels are used: in new programs, and in studies.

Everything else calls `kernels` and `Evaluator`, and does not know why a program uses torch.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

from sweepd.agents.native.kernels import SOURCE, Kernels, NetKernel
from sweepd.agents.native.self_test import DIGEST, digest
from sweepd.agents.networks.activation import NATIVE
from sweepd.agents.networks.net import Net
from sweepd.agents.networks.recurrence import Memory
from sweepd.agents.networks.shape import Shape
from sweepd.envs.native.build import TORCH, VARIABLE
from sweepd.envs.native.structs import c_constant
from sweepd.envs.native.use import NativeLibrary, turned_off
from sweepd.envs.support.errors import InputError

_ALGORITHMS = ("ppo", "sac", "d3qn")
_DEEPEST = c_constant(SOURCE, "DEEPEST")  # hidden layers
# What a study records. The number changes with the bits of what torch trains: without native kernels
# everything, with them recurrent networks and images.
_TORCH = f"{TORCH} 2"
_NATIVE = f"native {DIGEST}, {_TORCH}"
KERNELS = NativeLibrary(
    "training",
    SOURCE,
    Kernels,
    digest,
    DIGEST,
    "torch trains instead, more slowly, with the same results to rounding",
)


def kernels(shape: Shape, device: torch.device) -> Kernels | None:
    """Return the kernels for programs of this shape; None where torch does the work.

    They are for MLPs, also below a layer over items, on CPUs in full float32 precision, on machines
    where they can be compiled.
    """
    supported = (
        torch.get_default_dtype() == torch.float32
        and torch.get_float32_matmul_precision() == "highest"
        and shape.activation in NATIVE
        and not shape.recurrent
        and shape.image_shape is None
        and shape.net_depth <= _DEEPEST
    )
    return KERNELS.library(device) if supported else None


def chosen(algorithm: str, precision: str, device: torch.device) -> str:
    """Return which kernels train a new study here: "torch 2", or also "native" with a digest."""
    uses = algorithm in _ALGORITHMS and precision == "fp32"
    return _NATIVE if uses and KERNELS.library(device) is not None else _TORCH


def require(recorded: str) -> None:
    """Make this process train with the kernels that a study was created with.

    Args:
        recorded: as `chosen` returned it. torch's are set for the whole process and its children.

    Raises:
        InputError: they are not here. (There is no fallback: other kernels round differently.)
    """
    if recorded == _TORCH:
        os.environ[VARIABLE] = TORCH
    elif why := _why_not(recorded):
        raise InputError(f"The study trains with the kernels {recorded!r}, and {why}.")


def _why_not(recorded: str) -> str:
    """Return why recorded kernels cannot be used here; empty if they can."""
    if recorded != _NATIVE:
        return f"this version of sweepd has {_NATIVE!r} and {_TORCH!r}"
    if turned_off():
        return f"{VARIABLE}={TORCH} forbids them: unset it"
    if KERNELS.loaded() is None:
        return "they cannot be used on this machine (the log says why; sweepd doctor, too)"
    return ""


class Evaluator:
    """The outputs of networks without gradients: native where a program's kernels are, else torch.

    Args:
        shape: the program's.
        net: the networks.
    """

    def __init__(self, shape: Shape, net: Net) -> None:
        self.net = net
        found = kernels(shape, net.flat.device)
        self._native = None if found is None else NetKernel(found, net)

    def __call__(self, x: Tensor, memory: Memory | None = None) -> tuple[Tensor, Tensor | None]:
        """Return what `Net.forward` does, without gradients."""
        if self._native is not None:
            return self._native(x), None
        return self.net.forward(x, memory)
