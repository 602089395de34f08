"""The gradient steps of SAC and D3QN with native kernels.

The kernels compute what torch computes in `sweepd.agents.algorithms.sac` and
`sweepd.agents.algorithms.d3qn`, to rounding.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Mapping
from ctypes import c_double, c_int64, c_void_p
from typing import NamedTuple

import torch
from torch import Tensor

from sweepd.agents.native.kernels import Kernels, places
from sweepd.agents.networks.activation import ACTIVATIONS
from sweepd.agents.networks.net import Net
from sweepd.agents.networks.normaliser import clip_of
from sweepd.agents.networks.optimizer import Adam
from sweepd.agents.networks.shape import Shape
from sweepd.envs.native import threads

# Rows of `Replayed.terms`, as in off_policy.h.
TERMS = ("gamma", "tau", "max_norm", "value_avg", "value_std", "target_entropy")
# Sums over the gradient steps, as `STATS` in d3qn.h and sac.h.
STATS = {
    "d3qn": ("critic_loss", "value", "critic_norm"),
    "sac": ("critic_loss", "value", "entropy", "alpha", "critic_norm", "actor_norm"),
}


class _Networks(ctypes.Structure):
    """`Networks` of off_policy.h."""

    _fields_ = (
        *((name, c_void_p) for name in ("flat", "m", "v")),
        ("stride", c_int64),
        *((name, c_void_p) for name in ("places", "adam", "before", "made")),
    )


class _Replayed(ctypes.Structure):
    """`Replayed` of off_policy.h."""

    _fields_ = (
        *((name, c_int64) for name in ("slots", "width", "depth")),
        *((name, c_int64) for name in ("obs_columns", "actions", "side_columns")),
        *((name, c_int64) for name in ("minibatch", "updates")),
        *((name, c_void_p) for name in ("obs", "next_obs", "side", "rows", "noise")),
        *((name, c_void_p) for name in ("state_avg", "state_std", "terms", "learns")),
        *((name, c_void_p) for name in ("stats", "diverged", "scratch")),
        ("threads", c_int64),
        *((name, _Networks) for name in ("critic", "target", "actor", "alpha")),
        ("clip", c_double),
        ("activation", c_int64),
    )


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

    They change the program's weights, so calls from several threads follow each other.

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
        algorithm, slots = shape.algorithm, shape.slots
        self._run, self._scratch_size = kernels.off_policy(algorithm)
        self._networks, self._names = networks, STATS[algorithm]
        self._slots, self._calls = slots, threading.Lock()
        self._scratch = torch.empty(0)
        # Addresses do not keep tensors alive.
        self._kept = [*rings.values(), *normaliser]
        self._program = _Replayed(
            slots=slots,
            width=shape.net_width,
            depth=shape.net_depth,
            obs_columns=shape.obs_dim,
            actions=shape.action_dim,
            side_columns=rings["side"].shape[-1],
            minibatch=shape.minibatch,
            **{name: ring.data_ptr() for name, ring in rings.items()},
            state_avg=normaliser[0].data_ptr(),
            state_std=normaliser[1].data_ptr(),
            clip=clip_of(shape) or math.inf,
            activation=ACTIVATIONS.index(shape.activation),
            **{name: self._described(network) for name, network in networks.items()},
        )

    @staticmethod
    def _described(network: Trained) -> _Networks:
        adam = network.optimizer
        described = _Networks(
            flat=network.flat.data_ptr(),
            stride=network.flat.shape[1],
            places=None if network.places is None else network.places.data_ptr(),
        )
        if adam is not None:
            described.m, described.v = adam.m.data_ptr(), adam.v.data_ptr()
            described.before = adam.step.data_ptr()
        return described

    def __call__(
        self, rows: Tensor, noise: Tensor | None, terms: Mapping[str, Tensor], learns: Tensor
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Make the gradient steps of a rollout.

        Args:
            rows: (updates, G * minibatch), transitions of the replay buffers.
            noise: (updates, 2, G, minibatch, action_dim) normal numbers of SAC.
            terms: (G,) each, `TERMS`.
            learns: (G,) bool, members to update.

        Returns:
            (G,) each, sums of statistics over the steps; (G,), the number of steps; and (G,) bool,
            members of which a gradient was not finite.
        """
        arguments = _Replayed.from_buffer_copy(self._program)
        numbers = torch.stack([terms[name] for name in TERMS])
        rows, noise = rows.contiguous(), None if noise is None else noise.contiguous()
        optimizers = {
            name: network.optimizer
            for name, network in self._networks.items()
            if network.optimizer is not None
        }
        made = torch.zeros(len(optimizers), self._slots)
        # Addresses do not keep tensors alive.
        rates = [
            torch.tensor([adam.lr, adam.eps, adam.weight_decay], dtype=torch.float64)
            for adam in optimizers.values()
        ]
        for name, adam_numbers, steps in zip(optimizers, rates, made, strict=True):
            networks = getattr(arguments, name)
            networks.adam, networks.made = adam_numbers.data_ptr(), steps.data_ptr()
        found = torch.zeros(len(self._names) + 1, self._slots)
        diverged = torch.zeros(self._slots, dtype=torch.bool)
        arguments.updates, arguments.rows = rows.shape[0], rows.data_ptr()
        arguments.noise = None if noise is None else noise.data_ptr()
        arguments.terms, arguments.learns = numbers.data_ptr(), learns.data_ptr()
        arguments.stats, arguments.diverged = found.data_ptr(), diverged.data_ptr()
        arguments.threads = threads.count()
        size = self._scratch_size(ctypes.byref(arguments))
        with self._calls:
            if len(self._scratch) < size:
                self._scratch = torch.empty(size)
            arguments.scratch = self._scratch.data_ptr()
            self._run(ctypes.byref(arguments))
            for adam, steps in zip(optimizers.values(), made, strict=True):
                adam.step += steps
        *stats, updates = found.unbind(0)
        return dict(zip(self._names, stats, strict=True)), updates, diverged
