"""The gradient steps of SAC and D3QN with native kernels.

The kernels compute what torch computes in `sweepd.agents.algorithms.sac` and
`sweepd.agents.algorithms.d3qn`, to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from sweepd.agents.native.kernels import SOURCE, Kernels, adam_numbers, places
from sweepd.agents.networks.activation import NATIVE
from sweepd.agents.networks.net import Net
from sweepd.agents.networks.normaliser import clip_of
from sweepd.agents.networks.optimizer import Adam
from sweepd.agents.networks.shape import Shape
from sweepd.envs.native.structs import CStruct, c_struct

_Networks, _Replayed = c_struct(SOURCE, "Networks"), c_struct(SOURCE, "Replayed")
_Numbers = c_struct(SOURCE, "ReplayNumbers")
_STATS = {"d3qn": c_struct(SOURCE, "D3QNStats"), "sac": c_struct(SOURCE, "SACStats")}


class Trained(NamedTuple):
    """Networks of every member, as the kernel takes them.

    Attributes:
        flat: (G, P).
        places: of their parts; None: one number.
        optimizer: None: target networks.
    """

    flat: Tensor
    places: Tensor | None
    optimizer: Adam | None

    @classmethod
    def of(cls, net: Net, optimizer: Adam | None) -> Trained:
        """Describe networks."""
        return cls(net.flat, places(net.spec), optimizer)


class ReplayKernel:
    """All gradient steps of a program that follow a rollout.

    Args:
        kernels: the library.
        shape: the program's.
        networks: by the names of `Replayed` in off_policy.h.
        rings: the replay buffers' tensors.
        normaliser: (G, 1, obs_dim) mean and deviation of observations, which all of a member's
            networks share.
    """

    def __init__(
        self,
        kernels: Kernels,
        shape: Shape,
        networks: Mapping[str, Trained],
        rings: Mapping[str, Tensor],
        normaliser: tuple[Tensor, Tensor],
    ) -> None:
        self._run = kernels.gradient_steps(shape.algorithm, _Replayed)
        self._stats = _STATS[shape.algorithm]
        self._optimizers = {
            name: network.optimizer
            for name, network in networks.items()
            if network.optimizer is not None
        }
        self._described = {name: _described(network) for name, network in networks.items()}
        self._program = _Replayed(
            slots=shape.slots,
            width=shape.net_width,
            depth=shape.net_depth,
            obs_columns=shape.obs_dim,
            actions=shape.action_dim,
            side_columns=rings["side"].shape[-1],
            minibatch=shape.minibatch,
            state_avg=normaliser[0],
            state_std=normaliser[1],
            clip=clip_of(shape) or math.inf,
            activation=NATIVE.index(shape.activation),
            **rings,
            **self._described,
        )

    def __call__(
        self, rows: Tensor, noise: Tensor | None, numbers: Mapping[str, Tensor], learns: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Make the gradient steps of a rollout.

        Args:
            rows: (updates, G * minibatch), transitions of the replay buffers.
            noise: (updates, 2, G, minibatch, action_dim) normal numbers of SAC.
            numbers: (G, …) each, those of `ReplayNumbers` in off_policy.h.
            learns: (G,) bool, members to update.

        Returns:
            (G,) each, `SACStats` in sac.h or `D3QNStats` in d3qn.h; and (G,) bool, members of which
            a gradient was not finite.
        """
        (stats, found), diverged = self._stats.zeros(len(learns)), torch.zeros_like(learns)
        made = {name: torch.zeros(len(learns)) for name in self._optimizers}
        arguments = self._program.but(
            updates=rows.shape[0],
            rows=rows.contiguous(),
            noise=None if noise is None else noise.contiguous(),
            numbers=_Numbers.stacked(numbers),
            learns=learns,
            stats=stats,
            diverged=diverged,
            **{
                name: self._described[name].but(adam=adam_numbers(adam), made=made[name])
                for name, adam in self._optimizers.items()
            },
        )
        self._run(arguments, [(adam.step, made[name]) for name, adam in self._optimizers.items()])
        return found, diverged


def _described(network: Trained) -> CStruct:
    flat, adam = network.flat, network.optimizer
    own = _Networks(flat=flat, stride=flat.shape[1], places=network.places)
    return own if adam is None else own.but(m=adam.m, v=adam.v, before=adam.step)
