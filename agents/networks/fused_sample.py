"""Sampled actions on GPUs by one kernel: numbers before tanh, or one choice."""

from __future__ import annotations

import torch
from torch import Tensor

from sweepd.agents.networks.distributions import Categorical, Gaussian, distribution_of
from sweepd.agents.networks.gpu_kernels import kernels_for
from sweepd.agents.networks.shape import SHARED, Shape
from sweepd.envs.native.gpu import GpuKernels


class FusedSample:
    """Samples actions of `rows` rows per member; results are overwritten by the next call."""

    def __init__(self, kernels: GpuKernels, shape: Shape, rows: int, device: torch.device) -> None:
        self._kernels, self._sizes = kernels, (shape.slots, rows, shape.action_dim)
        every = shape.slots * rows
        if shape.if_discrete:
            self._actions = torch.zeros(every, dtype=torch.int64, device=device)
        else:
            self._actions = torch.zeros(every, shape.action_dim, device=device)

    def __call__(
        self, outputs: Tensor, log_std: Tensor | None, noises: Tensor, step: Tensor, stored: Tensor
    ) -> Tensor:
        """Sample, as `Distribution.sample` and `Distribution.to_env` do.

        Args:
            outputs: (G, rows, action_dim), of the actors.
            log_std: (G, 1, action_dim); None where actions are discrete.
            noises: (steps, G, rows, k), random numbers of several steps.
            step: (1,) int64, which of them.
            stored: (G, rows, columns), written: the actions as transitions store them.

        Returns:
            The actions in the environment's form.
        """
        slots, rows, _ = self._sizes
        made = (noises, step, stored, self._actions)
        if log_std is not None:
            sizes = (log_std.stride(0), *self._sizes)
            self._kernels.run("gaussian_sample", slots * rows, outputs, log_std, *made, *sizes)
        else:
            self._kernels.run("categorical_sample", slots * rows, outputs, *made, *self._sizes)
        return self._actions


def fused_sample(shape: Shape, rows: int, device: torch.device) -> FusedSample | None:
    """Return the sampler of programs of this shape; None where torch's operations are used."""
    kernels = kernels_for(device)
    fits = shape.policies == SHARED and distribution_of(shape) in (Gaussian, Categorical)
    return FusedSample(kernels, shape, rows, device) if kernels is not None and fits else None
