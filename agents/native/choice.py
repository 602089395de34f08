"""The decision where native kernels are used: in new programs, and in studies.

Everything else calls `kernels` and `Evaluator`, and does not know why a program uses torch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor

from sweepd.agents.native.kernels import SOURCE, Kernels, NetKernel
from sweepd.agents.native.self_test import DIGEST, FEED_FORWARD, IMAGES, RECURRENT, digest
from sweepd.agents.networks.activation import NATIVE
from sweepd.agents.networks.net import Net, Pair
from sweepd.agents.networks.recurrence import Memory
from sweepd.agents.networks.shape import Shape
from sweepd.envs.native.build import TORCH, VARIABLE
from sweepd.envs.native.structs import c_constant
from sweepd.envs.native.use import NativeLibrary, turned_off
from sweepd.envs.support.errors import InputError

_ALGORITHMS = ("ppo", "sac", "d3qn")
_DEEPEST = c_constant(SOURCE, "DEEPEST")  # hidden layers
# What a study records. The number changes with the bits of what torch trains (without native kernels
# everything, with them networks that they do not have), and with the random numbers of all.
_TORCH = f"{TORCH} 4"
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

    They are for networks with the activations and depths that they have, on CPUs in full float32
    precision, on machines where they can be compiled.
    """
    supported = (
        torch.get_default_dtype() == torch.float32
        and torch.get_float32_matmul_precision() == "highest"
        and shape.activation in NATIVE
        and shape.net_depth <= _DEEPEST
    )
    return KERNELS.library(device) if supported else None


def chosen(
    algorithm: str, precision: str, device: torch.device, *, recurrent: bool, images: bool
) -> str:
    """Return which kernels train a new study here: "torch 4", or also "native" with digests.

    Args:
        algorithm: whose kernels could be used; "": none.
        precision: the study's.
        device: where it trains.
        recurrent: whether some of its networks have a recurrent layer.
        images: whether they read images.
    """
    uses = algorithm in _ALGORITHMS and precision == "fp32"
    here = uses and KERNELS.library(device) is not None
    return _native(recurrent, images) if here else _TORCH


def _native(recurrent: bool, images: bool) -> str:
    digests = [FEED_FORWARD]
    if recurrent:
        digests.append(f"recurrent {RECURRENT}")
    if images:
        digests.append(f"images {IMAGES}")
    return f"native {', '.join(digests)}, {_TORCH}"


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
    native = _native("recurrent" in recorded, "images" in recorded)
    if recorded != native:
        return f"this version of sweepd has {native!r} and {_TORCH!r}"
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

    Attributes:
        native: None where torch computes.
    """

    def __init__(self, shape: Shape, net: Net) -> None:
        self.net = net
        found = kernels(shape, net.flat.device)
        self.native = None if found is None else NetKernel(found, net)

    def __call__(self, x: Tensor, memory: Memory | None = None) -> tuple[Tensor, Tensor | None]:
        """Return what `Net.forward` does, without gradients.

        Args:
            x: (N, rows, columns), normalised, or bytes as environments give them.
            memory: of recurrent networks.
        """
        if self.native is not None and self.native.reads_bytes:
            return self.native(x, memory)
        return (self.native or self.net.forward)(self.net.inputs(x), memory)


class PairEvaluator:
    """The outputs of recurrent actors and critics without gradients; torch runs them as one batch.

    Args:
        pair: the networks.
        evaluators: theirs.
    """

    def __init__(self, pair: Pair, evaluators: tuple[Evaluator, Evaluator]) -> None:
        self._pair, self._evaluators = pair, evaluators

    def __call__(
        self, x: Tensor, memories: Sequence[Memory]
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor] | None]:
        """Return what `Pair.forward` does, without gradients."""
        if self._evaluators[0].native is None:
            return self._pair.forward(self._pair.nets[1].inputs(x), memories)
        (output, actor), (value, critic) = (
            run(x, memory) for run, memory in zip(self._evaluators, memories, strict=True)
        )
        states = None if actor is None or critic is None else (actor, critic)
        return (output, value), states
