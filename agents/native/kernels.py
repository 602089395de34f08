"""The native kernels, called through ctypes.

ctypes rather than a binding library: a call takes one struct of sizes and pointers, so there is
nothing to generate, no Python header to compile against, and a library serves every version of
Python. The interpreter's lock is released during calls, so each call has arguments of its own:
several threads may call the same kernel.

The kernels compute what torch computes in `sweepd.agents.networks.net`,
`sweepd.agents.networks.distributions` and `sweepd.agents.algorithms.ppo`, to rounding. In addition,
their bits do not depend on the processor (`src/vector.h`).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from ctypes import POINTER, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from sweepd.agents.networks.activation import ACTIVATIONS
from sweepd.agents.networks.items import unknown_item
from sweepd.agents.networks.net import Net
from sweepd.agents.networks.optimizer import Adam
from sweepd.agents.networks.part import Part, offsets
from sweepd.agents.networks.shape import Shape
from sweepd.agents.networks.spec import NetSpec
from sweepd.envs.core.items import Items
from sweepd.envs.native import threads

SOURCE = Path(__file__).with_name("src") / "kernels.cpp"
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
    "highest_log_std",
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


class _Items(ctypes.Structure):
    """`Items` of items.h."""

    _fields_ = (
        *((name, c_int64) for name in ("vocabulary", "width", "places", "bare", "plain")),
        *((name, c_int64) for name in ("groups", "features", "facts")),
        ("members", c_void_p),
        ("known", c_void_p),
    )


class _Outputs(ctypes.Structure):
    """`Outputs` of policy.h."""

    _fields_ = (
        *((name, c_int64) for name in ("slots", "rows", "width", "depth", "inputs", "outputs")),
        *((name, c_int64) for name in ("heads", "linear_top", "activation")),
        *((name, c_int64) for name in ("sets", "seat_column")),
        *((name, c_int64) for name in ("obs_stride", "stride", "out_stride", "obs_row")),
        ("obs", c_void_p),
        ("weights", c_void_p),
        ("places", c_void_p),
        ("head_sizes", c_void_p),
        ("items", POINTER(_Items)),
        ("result", c_void_p),
        ("threads", c_int64),
    )


class _Update(ctypes.Structure):
    """`Update` of ppo.h."""

    _fields_ = (
        *((name, c_int64) for name in ("slots", "width", "depth")),
        ("inputs", c_int64 * 2),
        *((name, c_int64) for name in ("actions", "activation", "choices", "chained", "masked")),
        *((name, c_int64) for name in ("minibatch", "steps", "obs_columns", "side_columns")),
        *((name, c_int64) for name in ("flag_columns", "mask_bytes", "byte_obs", "stride")),
        *((name, c_int64) for name in ("sets", "seat_column")),
        ("items", POINTER(_Items)),
        ("options", c_void_p),
        ("places", c_void_p * 2),
        *((name, c_void_p) for name in ("flat", "m", "v", "obs", "side", "flags", "masks")),
        *((name, c_void_p) for name in ("rows", "state_avg", "state_std", "terms", "adam")),
        *((name, c_void_p) for name in ("adam_steps", "learns", "stats", "diverged", "scratch")),
        ("threads", c_int64),
    )


def places(spec: NetSpec, parts: Sequence[Part] | None = None) -> Tensor:
    """Return where the parts of a network are, in floats from its beginning.

    In the order of `exchange` in network.h: weights and biases of the hidden layers, weight and
    bias of each head, log_std (-1 if there is none), items …, chain ….

    Args:
        spec: the network.
        parts: its parts, in their order in the flat tensor; None: `NetSpec.parts`.
    """
    start = offsets(spec.parts() if parts is None else parts)
    names = [f"{name}.weight" for name in spec.trunk] + [f"{name}.bias" for name in spec.trunk]
    names += [f"{name}.{part}" for name in spec.heads for part in ("weight", "bias")]
    names.append("action_std_log")
    if spec.items is not None:
        names += ["items.embedding", "items.weight", "items.bias"]
    names += [part.name for part in spec.parts() if part.group == "chain"]
    return torch.tensor([start.get(name, -1) for name in names])


class Kernels:
    """The functions of the compiled library."""

    def __init__(self, library: Path) -> None:
        self._lib = lib = ctypes.CDLL(str(library))
        lib.sweepd_scratch.restype = c_int64
        lib.sweepd_scratch.argtypes = [POINTER(_Update)]
        lib.sweepd_update.restype, lib.sweepd_outputs.restype = None, c_int32
        lib.sweepd_update.argtypes = [POINTER(_Update)]
        lib.sweepd_outputs.argtypes = [POINTER(_Outputs)]

    def off_policy(self, algorithm: str) -> tuple[Any, Any]:
        """Return the gradient steps of "sac" or "d3qn", and the function that sizes its scratch."""
        run = getattr(self._lib, f"sweepd_{algorithm}")
        scratch = getattr(self._lib, f"sweepd_{algorithm}_scratch")
        run.restype, scratch.restype = None, c_int64
        return run, scratch

    def functions(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return e^x, log x and tanh x of (n,) numbers, n a multiple of 16; for tests."""
        found = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)
        self._lib.sweepd_functions(
            c_void_p(x.data_ptr()), c_int64(len(x)), *(c_void_p(y.data_ptr()) for y in found)
        )
        return found


class _ItemLayout:
    """The layout of observations with items, in memory for the kernels; kept as long as this."""

    def __init__(self, items: Items, item_width: int) -> None:
        names = [name for name, _ in items.features]
        self._members = torch.tensor(
            [[group.count, *(name in group.features for name in names)] for group in items.groups]
        )
        self._known = torch.tensor(items.facts) if items.fact_count else torch.empty(0)
        self.pointer = ctypes.pointer(
            _Items(
                vocabulary=items.vocabulary,
                width=item_width,
                places=items.places,
                bare=sum(group.count for group in items.groups if not group.features),
                plain=len(items.plain),
                groups=len(items.groups),
                features=len(items.features),
                facts=items.fact_count,
                members=self._members.data_ptr(),
                known=self._known.data_ptr(),
            )
        )


def _item_layout(items: Items | None, item_width: int) -> _ItemLayout | None:
    return None if items is None else _ItemLayout(items, item_width)


class NetKernel:
    """The outputs of networks for normalised observations: their second forward pass.

    Args:
        kernels: the library.
        net: the networks, whose `flat` is used as long as this exists.
        at: as `places` returns it.
    """

    def __init__(self, kernels: Kernels, net: Net, at: Tensor | None = None) -> None:
        self._lib, spec = kernels._lib, net.spec
        self._vocabulary = spec.items.vocabulary if spec.items else 0
        self._acting, self._outputs = next(iter(spec.heads.values())), sum(spec.heads.values())
        layout = _item_layout(spec.items, spec.item_width)
        at = places(spec) if at is None else at
        heads = torch.tensor([*spec.heads.values()])
        # Addresses do not keep tensors alive.
        self._kept = [net.flat, layout, heads, at]
        self._networks = _Outputs(
            slots=len(net.flat),
            width=spec.hidden[0],
            depth=len(spec.hidden),
            inputs=spec.inputs,
            outputs=self._outputs,
            heads=len(spec.heads),
            linear_top=spec.linear_top,
            activation=ACTIVATIONS.index(spec.activation),
            sets=spec.policies,
            seat_column=spec.seat_column or 0,
            stride=net.flat.shape[1] // spec.policies,
            weights=net.flat.data_ptr(),
            places=at.data_ptr(),
            head_sizes=heads.data_ptr(),
            items=None if layout is None else layout.pointer,
        )

    def __call__(self, x: Tensor) -> Tensor:
        """Return the outputs that act, (N, rows, outputs). Arguments as of `outputs`."""
        return self.outputs(x)[..., : self._acting]

    def outputs(self, x: Tensor) -> Tensor:
        """Return the outputs of all heads, side by side: (N, rows, outputs).

        Args:
            x: (N, rows, columns), normalised.

        Raises:
            RunError: an item's id is not in the vocabulary.
        """
        into = torch.empty(*x.shape[:2], self._outputs)
        arguments, strides = _Outputs.from_buffer_copy(self._networks), x.stride()
        if strides[2] != 1:
            x = x.contiguous()
            strides = x.stride()
        arguments.rows, arguments.obs = x.shape[1], x.data_ptr()
        arguments.obs_stride, arguments.obs_row, _ = strides
        arguments.result, arguments.out_stride = into.data_ptr(), into.stride(0)
        arguments.threads = threads.count()
        if not self._lib.sweepd_outputs(arguments):
            raise unknown_item(self._vocabulary)
        return into


class Rollout(Protocol):
    """The transitions of a rollout, (G, horizon + 1, num_envs, …):
    `sweepd.agents.engine.transitions`.
    """

    obs: Tensor
    side: Tensor
    flags: Tensor
    packed_masks: Tensor


class UpdateKernel:
    """All gradient steps of a program's rollouts.

    They change the program's weights, so calls from several threads follow each other.

    Args:
        kernels: the library.
        shape: the program's.
        nets: actors and critics that are trained, whose weights are (2, G, sets * P).
        optimizer: theirs.
        rollout: the transitions of a whole rollout.
        state_avg: (G, 1, obs_dim), of byte observations.
        state_std: likewise.
    """

    def __init__(
        self,
        kernels: Kernels,
        shape: Shape,
        nets: tuple[Net, Net],
        optimizer: Adam,
        rollout: Rollout,
        state_avg: Tensor,
        state_std: Tensor,
    ) -> None:
        self._lib, self._optimizer = kernels._lib, optimizer
        slots, sets = shape.slots, shape.sets_per_member
        weights = nets[0].flat  # the critics' follow
        self._slots, self._calls = slots, threading.Lock()
        options, layout = torch.tensor(shape.choices), _item_layout(shape.items, shape.item_width)
        at = [places(net.spec) for net in nets]
        # Addresses do not keep tensors alive.
        self._kept = [nets, rollout, state_avg, state_std, options, layout, *at]
        self._program = _Update(
            slots=slots,
            width=shape.net_width,
            depth=shape.net_depth,
            inputs=(shape.state_dim, shape.obs_dim),
            actions=shape.action_dim,
            activation=ACTIVATIONS.index(shape.activation),
            choices=len(shape.choices) if shape.discrete else 0,
            chained=shape.autoregressive,
            masked=shape.masked,
            minibatch=shape.minibatch,
            obs_columns=shape.obs_dim,
            side_columns=rollout.side.shape[-1],
            flag_columns=rollout.flags.shape[-1],
            mask_bytes=rollout.packed_masks.shape[-1],
            byte_obs=shape.byte_obs,
            stride=weights.shape[1] // sets,
            sets=sets,
            seat_column=shape.seat_column or 0,
            items=None if layout is None else layout.pointer,
            options=options.data_ptr(),
            places=tuple(place.data_ptr() for place in at),
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
        optimizer, arguments = self._optimizer, _Update.from_buffer_copy(self._program)
        rows, numbers = rows.contiguous(), torch.stack([terms[name] for name in TERMS])
        adam = torch.tensor(
            [optimizer.lr, optimizer.eps, optimizer.weight_decay], dtype=torch.float64
        )
        found = torch.zeros(len(STATS), self._slots)
        diverged = torch.zeros(self._slots, dtype=torch.bool)
        arguments.steps, arguments.rows = rows.shape[0], rows.data_ptr()
        arguments.terms, arguments.adam = numbers.data_ptr(), adam.data_ptr()
        arguments.stats, arguments.diverged = found.data_ptr(), diverged.data_ptr()
        arguments.learns, arguments.threads = learns.data_ptr(), threads.count()
        size = self._lib.sweepd_scratch(arguments)
        stats = dict(zip(STATS, found, strict=True))
        with self._calls:
            if len(self._scratch) < size:
                self._scratch = torch.empty(size)
            arguments.scratch = self._scratch.data_ptr()
            self._lib.sweepd_update(arguments)
            optimizer.step += stats["updates"]
        return stats, diverged
