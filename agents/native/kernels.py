"""The native kernels, called through ctypes.

ctypes rather than a binding library: a call takes one struct of sizes and pointers, so there is
nothing to generate, no Python header to compile against, and a library serves every version of
Python. The interpreter's lock is released during calls.

The kernels compute what torch computes in `agents.networks.mlp`, `agents.networks.distributions`
and `agents.algorithms.ppo`, to rounding. In addition, their bits do not depend on the processor
(`src/vector.h`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, c_int64, c_void_p
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from agents.networks.optimizer import FlatAdam
from agents.networks.shape import Shape
from agents.networks.weights import Leaves, leaf_views

# Rows of `Update.terms` and `Update.stats`, as in ppo.h.
TERMS = (
    "low",
    "high",
    "clip",
    "d_entropy",
    "unit",
    "d_value",
    "value_avg",
    "value_std",
    "max_norm",
    "target_kl",
)
STATS = (
    "value_loss",
    "approx_kl",
    "clip_fraction",
    "actor_norm",
    "critic_norm",
    "entropy",
    "updates",
)


class _Outputs(ctypes.Structure):
    """`Outputs` of policy.h."""

    _fields_ = (
        *((name, c_int64) for name in ("slots", "rows", "width", "depth", "inputs", "outputs")),
        *((name, c_int64) for name in ("obs_stride", "stride", "out_stride", "obs_row")),
        ("obs", c_void_p),
        ("weights", c_void_p),
        ("places", c_void_p),
        ("result", c_void_p),
        ("threads", c_int64),
    )


class _Update(ctypes.Structure):
    """`Update` of ppo.h."""

    _fields_ = (
        *((name, c_int64) for name in ("slots", "width", "depth")),
        ("inputs", c_int64 * 2),
        *((name, c_int64) for name in ("actions", "choices", "chained", "masked")),
        *((name, c_int64) for name in ("minibatch", "steps", "obs_columns", "side_columns")),
        *((name, c_int64) for name in ("flag_columns", "mask_bytes", "byte_obs", "stride")),
        ("options", c_void_p),
        ("places", c_void_p * 2),
        *((name, c_void_p) for name in ("flat", "m", "v", "obs", "side", "flags", "masks")),
        *((name, c_void_p) for name in ("rows", "state_avg", "state_std", "terms", "adam")),
        *((name, c_void_p) for name in ("adam_steps", "learns", "stats", "diverged", "scratch")),
        ("threads", c_int64),
    )


def _places(weights: Leaves, begin: int, *, critic: bool) -> Tensor:
    """Return where the parts of a network are, in floats from its beginning at address `begin`.

    In the order of `exchange` in network.h: in, hidden …, bias …, out, out bias, log_std (-1 if
    there is none), chain ….
    """
    slots = len(weights.actor_in)
    own = (
        [weights.critic_in, weights.critic_out, weights.critic_out_bias]
        if critic
        else [weights.actor_in, weights.actor_out, weights.actor_out_bias]
    )
    shared = [leaf[slots * critic :] for leaf in (*weights.hidden, *weights.bias)]
    parts: list[Tensor | None] = [own[0], *shared, *own[1:]]
    parts += [None] if critic or not weights.log_std.numel() else [weights.log_std]
    parts += [] if critic else weights.chain
    return torch.tensor([-1 if part is None else (part.data_ptr() - begin) // 4 for part in parts])


class Kernels:
    """The functions of the compiled library."""

    def __init__(self, library: Path) -> None:
        self._lib = lib = ctypes.CDLL(str(library))
        lib.sweepd_scratch.restype = c_int64
        lib.sweepd_scratch.argtypes = [POINTER(_Update)]
        lib.sweepd_update.restype = lib.sweepd_outputs.restype = None
        lib.sweepd_update.argtypes = [POINTER(_Update)]
        lib.sweepd_outputs.argtypes = [POINTER(_Outputs)]

    def outputs(self, weights: Leaves, obs: Tensor, into: Tensor, *, critic: bool) -> None:
        """Run all actors or all critics.

        Args:
            weights: of all networks.
            obs: (G, rows, obs_dim), normalised.
            into: (G, rows, outputs), contiguous; written.
            critic: whether to run the critics.
        """
        first = weights.critic_in if critic else weights.actor_in
        if obs.stride(2) != 1:
            obs = obs.contiguous()
        slots, rows, _ = obs.shape
        _, inputs, width = first.shape
        places = _places(weights, first.data_ptr(), critic=critic)
        self._lib.sweepd_outputs(
            _Outputs(
                slots=slots,
                rows=rows,
                width=width,
                depth=len(weights.bias),
                inputs=inputs,
                outputs=into.shape[2],
                obs_stride=obs.stride(0),
                stride=first.stride(0),
                out_stride=into.stride(0),
                obs_row=obs.stride(1),
                obs=obs.data_ptr(),
                weights=first.data_ptr(),
                places=places.data_ptr(),
                result=into.data_ptr(),
                threads=torch.get_num_threads(),
            )
        )

    def functions(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return e^x and log x of (n,) numbers, n a multiple of 16; for tests."""
        both = torch.empty_like(x), torch.empty_like(x)
        self._lib.sweepd_functions(
            c_void_p(x.data_ptr()), c_int64(len(x)), *(c_void_p(y.data_ptr()) for y in both)
        )
        return both


class Rollout(Protocol):
    """The transitions of a rollout, (G, horizon + 1, num_envs, …): `agents.engine.transitions`."""

    obs: Tensor
    side: Tensor
    flags: Tensor
    packed_masks: Tensor


class UpdateKernel:
    """All gradient steps of a program's rollouts.

    Args:
        kernels: the library.
        shape: the program's.
        weights: (2, G, P), the weights that are trained.
        optimizer: whose moments and steps they are.
        rollout: the transitions of a whole rollout.
        state_avg: (G, 1, obs_dim), of byte observations.
        state_std: likewise.
    """

    def __init__(
        self,
        kernels: Kernels,
        shape: Shape,
        weights: Tensor,
        optimizer: FlatAdam,
        rollout: Rollout,
        state_avg: Tensor,
        state_std: Tensor,
    ) -> None:
        self._lib, self._optimizer = kernels._lib, optimizer
        slots, stride = shape.slots, weights.shape[2]
        leaves = leaf_views(weights, shape)
        self._stats = torch.zeros(len(STATS), slots)
        self._diverged = torch.zeros(slots, dtype=torch.bool)
        options = torch.tensor(shape.choices)
        places = [
            _places(leaves, weights[int(critic)].data_ptr(), critic=critic)
            for critic in (False, True)
        ]
        # Addresses do not keep tensors alive.
        self._kept = [weights, rollout, state_avg, state_std, options, *places]
        self._arguments = _Update(
            slots=slots,
            width=shape.net_width,
            depth=shape.net_depth,
            inputs=shape.inputs,
            actions=shape.action_dim,
            choices=len(shape.choices) if shape.discrete else 0,
            chained=shape.autoregressive,
            masked=shape.masked,
            minibatch=shape.minibatch,
            obs_columns=shape.obs_dim,
            side_columns=rollout.side.shape[-1],
            flag_columns=rollout.flags.shape[-1],
            mask_bytes=rollout.packed_masks.shape[-1],
            byte_obs=shape.byte_obs,
            stride=stride,
            options=options.data_ptr(),
            places=tuple(place.data_ptr() for place in places),
            flat=weights.data_ptr(),
            m=optimizer.m.data_ptr(),
            v=optimizer.v.data_ptr(),
            obs=rollout.obs.data_ptr(),
            side=rollout.side.data_ptr(),
            flags=rollout.flags.data_ptr(),
            masks=rollout.packed_masks.data_ptr(),
            state_avg=state_avg.data_ptr(),
            state_std=state_std.data_ptr(),
            adam_steps=optimizer.step.data_ptr(),
            stats=self._stats.data_ptr(),
            diverged=self._diverged.data_ptr(),
        )
        self._scratch = torch.empty(0)

    def __call__(
        self, rows: Tensor, terms: Mapping[str, Tensor], learns: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Make the gradient steps of a rollout.

        Args:
            rows: (steps, G * minibatch), transitions of the rollout.
            terms: (G,) each, the `TERMS` of the losses.
            learns: (G,) bool, members to update.

        Returns:
            (G,) each, the `STATS` of the last minibatch; and (G,) bool, members whose gradients
            were not finite.
        """
        optimizer, arguments = self._optimizer, self._arguments
        rows, numbers = rows.contiguous(), torch.stack([terms[name] for name in TERMS])
        adam = torch.tensor(
            [optimizer.lr, optimizer.eps, optimizer.weight_decay], dtype=torch.float64
        )
        self._stats.zero_()
        self._diverged.zero_()
        arguments.steps, arguments.rows = rows.shape[0], rows.data_ptr()
        arguments.terms, arguments.adam = numbers.data_ptr(), adam.data_ptr()
        arguments.learns, arguments.threads = learns.data_ptr(), torch.get_num_threads()
        size = self._lib.sweepd_scratch(arguments)
        if len(self._scratch) < size:
            self._scratch = torch.empty(size)
        arguments.scratch = self._scratch.data_ptr()
        self._lib.sweepd_update(arguments)
        stats = dict(zip(STATS, self._stats.clone(), strict=True))
        optimizer.step += stats["updates"]
        return stats, self._diverged.clone()
