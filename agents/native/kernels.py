"""The native kernels, called through ctypes.

ctypes rather than a binding library: a call takes one struct of sizes and pointers, so there is
nothing to generate, no Python header to compile against, and a library serves every version of
Python. The interpreter's lock is released during calls, so each call has arguments of its own:
several threads may call the same kernel.

The kernels compute what torch computes in `sweepd.agents.networks.mlp`,
`sweepd.agents.networks.distributions` and `sweepd.agents.algorithms.ppo`, to rounding. In addition,
their bits do not depend on the processor (`src/vector.h`).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from ctypes import POINTER, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from sweepd.agents.networks.activation import ACTIVATIONS
from sweepd.agents.networks.items import item_facts, unknown_item
from sweepd.agents.networks.optimizer import FlatAdam
from sweepd.agents.networks.shape import Shape
from sweepd.agents.networks.weights import Leaves, leaf_views
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


def _places(weights: Leaves, begin: int, *, critic: bool) -> Tensor:
    """Return where the parts of a network are, in floats from its beginning at address `begin`.

    In the order of `exchange` in network.h: in, hidden …, bias …, out, out bias, log_std (-1 if
    there is none), items …, chain ….
    """
    sets = len(weights.actor_in)
    own = (
        [weights.critic_in, weights.critic_out, weights.critic_out_bias]
        if critic
        else [weights.actor_in, weights.actor_out, weights.actor_out_bias]
    )
    layers = [leaf[sets * critic :] for leaf in (*weights.hidden, *weights.bias)]
    parts: list[Tensor | None] = [own[0], *layers, *own[1:]]
    parts += [None] if critic or not weights.log_std.numel() else [weights.log_std]
    parts += [leaf[sets * critic :] for leaf in weights.items]
    parts += [] if critic else weights.chain
    return torch.tensor([-1 if part is None else (part.data_ptr() - begin) // 4 for part in parts])


@dataclass(frozen=True)
class Located:
    """Where the networks of all slots are.

    Attributes:
        begin: address of the first network.
        stride: floats from a network to the next.
        places: as `_places` returns them; of several heads, the weight and bias of each.
        inputs: that they read.
        width: of the hidden layers.
        depth: number of hidden layers.
        heads: outputs of the parts of the last layer.
        activation: after each hidden layer, an index in `ACTIVATIONS`.
        linear_top: whether the last hidden layer has none.
    """

    begin: int
    stride: int
    places: Tensor
    inputs: int
    width: int
    depth: int
    heads: Sequence[int]
    activation: int
    linear_top: bool


class Kernels:
    """The functions of the compiled library."""

    def __init__(self, library: Path) -> None:
        self._lib = lib = ctypes.CDLL(str(library))
        lib.sweepd_scratch.restype = c_int64
        lib.sweepd_scratch.argtypes = [POINTER(_Update)]
        lib.sweepd_update.restype, lib.sweepd_outputs.restype = None, c_int32
        lib.sweepd_update.argtypes = [POINTER(_Update)]
        lib.sweepd_outputs.argtypes = [POINTER(_Outputs)]

    def outputs(self, networks: Located, obs: Tensor) -> Tensor:
        """Run a network of every slot for normalised rows, (G, rows, inputs)."""
        head_sizes = torch.tensor(networks.heads)
        described = _Outputs(
            slots=obs.shape[0],
            width=networks.width,
            depth=networks.depth,
            inputs=networks.inputs,
            outputs=sum(networks.heads),
            heads=len(networks.heads),
            linear_top=networks.linear_top,
            activation=networks.activation,
            sets=1,
            stride=networks.stride,
            weights=networks.begin,
            places=networks.places.data_ptr(),
            head_sizes=head_sizes.data_ptr(),
        )
        into = torch.empty(*obs.shape[:2], sum(networks.heads))
        self.run_outputs(described, obs, into)
        return into

    def run_outputs(self, networks: _Outputs, obs: Tensor, into: Tensor) -> bool:
        """Run described networks; return whether all ids of items are in the vocabulary."""
        arguments, strides = _Outputs.from_buffer_copy(networks), obs.stride()
        if strides[2] != 1:
            obs = obs.contiguous()
            strides = obs.stride()
        arguments.rows, arguments.obs = obs.shape[1], obs.data_ptr()
        arguments.obs_stride, arguments.obs_row, _ = strides
        arguments.result, arguments.out_stride = into.data_ptr(), into.stride(0)
        arguments.threads = threads.count()
        return bool(self._lib.sweepd_outputs(arguments))

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
        facts = item_facts(items)
        self._members = facts["items.groups"].contiguous()
        self._known = facts.get("items.facts", torch.empty(0)).contiguous()
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


def _item_layout(shape: Shape) -> _ItemLayout | None:
    return None if shape.items is None else _ItemLayout(shape.items, shape.item_width)


class PolicyKernel:
    """The outputs of all actors or all critics of a program.

    Args:
        kernels: the library.
        shape: the program's.
        weights: of all networks, as long as this exists.
    """

    def __init__(self, kernels: Kernels, shape: Shape, weights: Leaves) -> None:
        self._kernels, self._vocabulary = kernels, shape.items.vocabulary if shape.items else 0
        layout = _item_layout(shape)
        first = weights.actor_in, weights.critic_in
        places = [
            _places(weights, own.data_ptr(), critic=bool(critic))
            for critic, own in enumerate(first)
        ]
        outputs = shape.action_dim, 1  # of actors and critics
        heads = torch.tensor(outputs)
        # Addresses do not keep tensors alive.
        self._kept = [weights, layout, heads, *places]
        self._networks = [
            _Outputs(
                slots=shape.slots,
                width=shape.net_width,
                depth=shape.net_depth,
                inputs=own.shape[1],
                outputs=count,
                heads=1,
                activation=ACTIVATIONS.index(shape.activation),
                sets=shape.sets_per_member,
                seat_column=shape.seat_column or 0,
                stride=own.stride(0),
                weights=own.data_ptr(),
                places=place.data_ptr(),
                head_sizes=head.data_ptr(),
                items=None if layout is None else layout.pointer,
            )
            for own, place, count, head in zip(first, places, outputs, heads, strict=True)
        ]

    def __call__(self, obs: Tensor, into: Tensor, *, critic: bool) -> None:
        """Run all actors or all critics.

        Args:
            obs: (G, rows, columns), normalised.
            into: (G, rows, outputs), contiguous; written.
            critic: whether to run the critics.

        Raises:
            RunError: an item's id is not in the vocabulary.
        """
        if not self._kernels.run_outputs(self._networks[critic], obs, into):
            raise unknown_item(self._vocabulary)


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
        weights: (2, G, sets * P), the weights that are trained.
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
        slots, sets = shape.slots, shape.sets_per_member
        leaves = leaf_views(weights, shape)
        self._slots, self._calls = slots, threading.Lock()
        options, layout = torch.tensor(shape.choices), _item_layout(shape)
        places = [
            _places(leaves, weights[int(critic)].data_ptr(), critic=critic)
            for critic in (False, True)
        ]
        # Addresses do not keep tensors alive.
        self._kept = [weights, rollout, state_avg, state_std, options, layout, *places]
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
            stride=weights.shape[2] // sets,
            sets=sets,
            seat_column=shape.seat_column or 0,
            items=None if layout is None else layout.pointer,
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
