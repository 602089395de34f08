"""Steps of a rollout besides the networks, natively: actions are drawn, observations normalised.

The kernels compute what torch computes in `sweepd.agents.networks.distributions` and
`sweepd.agents.networks.normaliser`, to rounding.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sweepd.agents.native.kernels import SOURCE, Kernels
from sweepd.agents.networks.distributions import Categorical, Gaussian, distribution_of
from sweepd.agents.networks.net import Net
from sweepd.agents.networks.shape import Shape
from sweepd.envs.native import threads
from sweepd.envs.native.structs import c_struct

_Drawn, _Normalised = c_struct(SOURCE, "Drawn"), c_struct(SOURCE, "Normalised")


class NormaliserKernel:
    """Normalises observations, as `normalised` does.

    Args:
        kernels: the library.
        shape: the program's.
        net: the networks whose normaliser is used; it reads all columns.
    """

    def __init__(self, kernels: Kernels, shape: Shape, net: Net) -> None:
        self._run = kernels.function("normalise", _Normalised)
        clip = net.spec.clip
        self._arguments = _Normalised(
            slots=shape.slots,
            columns=shape.obs_dim,
            clip=math.inf if clip is None else clip,
            avg=net.normalisers["state_avg"],
            std=net.normalisers["state_std"],
        )

    def __call__(self, obs: Tensor, out: Tensor) -> None:
        """Normalise.

        Args:
            obs: (G * rows, obs_dim) float32, contiguous.
            out: (G, rows, obs_dim), written; its columns are contiguous.
        """
        arguments = _Normalised.from_buffer_copy(self._arguments)
        arguments.rows, arguments.threads = out.shape[1], threads.count()
        arguments.obs, arguments.out = obs.data_ptr(), out.data_ptr()
        arguments.out_stride, arguments.out_row, _ = out.stride()
        self._run(arguments)


class ActionKernel:
    """Draws actions, as `Distribution.sample`, `log_prob` and `to_env` do.

    Args:
        kernels: the library.
        shape: the program's.
        actor: the actors.
    """

    def __init__(self, kernels: Kernels, shape: Shape, actor: Net) -> None:
        self._run = kernels.function("draw", _Drawn)
        size = (shape.slots * shape.num_envs,)
        log_std = actor.weights.get("action_std_log")
        if shape.if_discrete:
            self._actions = torch.zeros(size, dtype=torch.int64)
        else:
            self._actions = torch.zeros(*size, shape.action_dim)
        self._arguments = _Drawn(
            slots=shape.slots,
            rows=shape.num_envs,
            outputs=shape.action_dim,
            log_std_stride=0 if log_std is None else log_std.stride(0),
            log_std=log_std,
            actions=self._actions,
        )

    def __call__(self, outputs: Tensor, noise: Tensor, side: Tensor) -> Tensor:
        """Draw actions. They are overwritten by the next call.

        Args:
            outputs: (G, num_envs, action_dim), of the actors.
            noise: (G, num_envs, k), as `Distribution.noise` draws it.
            side: (G, num_envs, columns + 3), written: stored actions and their log-probabilities.

        Returns:
            The actions in the environment's form.
        """
        outputs, noise = outputs.contiguous(), noise.contiguous()
        arguments = _Drawn.from_buffer_copy(self._arguments)
        arguments.means, arguments.noise = outputs.data_ptr(), noise.data_ptr()
        arguments.side, arguments.threads = side.data_ptr(), threads.count()
        arguments.side_stride, arguments.side_columns, _ = side.stride()
        self._run(arguments)
        return self._actions


def action_kernel(kernels: Kernels | None, shape: Shape, actor: Net) -> ActionKernel | None:
    """Return what draws the actions of a program; None where torch does."""
    if kernels is None or distribution_of(shape) not in (Gaussian, Categorical):
        return None
    return ActionKernel(kernels, shape, actor)


def normaliser_kernel(
    kernels: Kernels | None, shape: Shape, critic: Net
) -> NormaliserKernel | None:
    """Return what normalises the observations of a program; None where torch does, and for bytes.

    Critics read all columns.
    """
    if kernels is None or shape.byte_obs:
        return None
    return NormaliserKernel(kernels, shape, critic)
