"""The native kernels, called through ctypes.

ctypes rather than a binding library: a call takes one struct of sizes and pointers, whose fields are
read from the sources (`sweepd.envs.native.structs`). So there is no Python header to compile
against, and a library serves every version of Python. The interpreter's lock is released during
calls, so each call has arguments of its own: several threads may call the same kernel.

The kernels compute what torch computes in `sweepd.agents.networks.net`,
`sweepd.agents.networks.distributions` and `sweepd.agents.algorithms.ppo`, to rounding. In addition,
their bits do not depend on the processor (`src/vector.h`).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import POINTER, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from sweepd.agents.networks.activation import NATIVE
from sweepd.agents.networks.items import unknown_item
from sweepd.agents.networks.net import Net
from sweepd.agents.networks.optimizer import Adam
from sweepd.agents.networks.part import Part, offsets
from sweepd.agents.networks.recurrence import CELLS, Memory
from sweepd.agents.networks.shape import Shape
from sweepd.agents.networks.spec import NetSpec
from sweepd.envs.core.items import Items
from sweepd.envs.native import threads
from sweepd.envs.native.structs import CStruct, c_struct

SOURCE = Path(__file__).with_name("src") / "kernels.cpp"
_Items, _Entities, _Images, _Outputs, _Update = (
    c_struct(SOURCE, name) for name in ("Items", "Entities", "Images", "Outputs", "Update")
)
_Numbers, _Stats = c_struct(SOURCE, "PPONumbers"), c_struct(SOURCE, "PPOStats")
_Adam = c_struct(SOURCE, "AdamNumbers")


def places(spec: NetSpec, parts: Sequence[Part] | None = None) -> Tensor:
    """Return where the parts of a network are, in floats from its beginning.

    In the order of `exchange` in network.h: weights and biases of the hidden layers, weight and
    bias of each head, log_std (-1 if there is none), items …, entities …, filters …, their
    biases …, cell …, chain ….

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
    for group in ("entities", "filters", "filter bias", "cell", "chain"):
        names += [part.name for part in spec.parts() if part.group == group]
    return torch.tensor([start.get(name, -1) for name in names])


class Kernels:
    """The functions of the compiled library."""

    def __init__(self, library: Path) -> None:
        self._lib = ctypes.CDLL(str(library))
        self._outputs = self._lib.sweepd_outputs
        self._outputs.argtypes, self._outputs.restype = [POINTER(_Outputs)], c_int32

    def run_outputs(
        self,
        networks: CStruct,
        obs: Tensor,
        into: Tensor,
        memory: Memory | None,
        after: Tensor | None,
    ) -> bool:
        """Run described networks; return whether all ids of items are in the vocabulary.

        Args:
            networks: the networks.
            obs: (G, rows, columns).
            into: (G, rows, outputs), written.
            memory: of recurrent networks; one step.
            after: their next states, written.
        """
        if obs.stride(2) != 1:
            obs = obs.contiguous()
        # Not by `but`, which takes ten microseconds more: this is part of every step.
        arguments = _Outputs.from_buffer_copy(networks)
        arguments.rows, arguments.obs = obs.shape[1], obs.data_ptr()
        arguments.obs_stride, arguments.obs_row, _ = obs.stride()
        arguments.result, arguments.out_stride = into.data_ptr(), into.stride(0)
        if memory is not None and after is not None:
            states, live = memory.state.contiguous(), memory.live
            arguments.states, arguments.next_states = states.data_ptr(), after.data_ptr()
            if live is not None:
                live = live.contiguous()
                arguments.live = live.data_ptr()
        arguments.threads = threads.count()
        return bool(self._outputs(arguments))

    def function(self, name: str, arguments: type[CStruct]) -> Callable[[CStruct], None]:
        """Return a function of the library that takes these arguments and returns nothing."""
        found = getattr(self._lib, f"sweepd_{name}")
        found.argtypes, found.restype = [POINTER(arguments)], None
        run: Callable[[CStruct], None] = found
        return run

    def gradient_steps(self, algorithm: str, arguments: type[CStruct]) -> GradientSteps:
        """Return the function that makes an algorithm's gradient steps."""
        scratch = getattr(self._lib, f"sweepd_{algorithm}_scratch")
        scratch.argtypes, scratch.restype = [POINTER(arguments)], c_int64
        return GradientSteps(self.function(algorithm, arguments), scratch)

    def functions(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return e^x, log x and tanh x of (n,) numbers, n a multiple of 16; for tests."""
        found = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)
        self._lib.sweepd_functions(
            c_void_p(x.data_ptr()), c_int64(len(x)), *(c_void_p(y.data_ptr()) for y in found)
        )
        return found


class GradientSteps:
    """The gradient steps of a program that follow a rollout, with memory that calls share.

    They change the program's weights, so calls from several threads follow each other.

    Args:
        run: the library's function.
        scratch: returns the floats of memory that it needs.
    """

    def __init__(self, run: Callable[[CStruct], None], scratch: Callable[[CStruct], int]) -> None:
        self._run, self._size = run, scratch
        self._scratch, self._calls = torch.empty(0), threading.Lock()

    def __call__(self, arguments: CStruct, made: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Make the steps.

        Args:
            arguments: all but `scratch` and `threads`.
            made: counts of optimizers' steps, and what the call adds to each; (G,) each.
        """
        arguments = arguments.but(threads=threads.count())
        size = self._size(arguments)
        with self._calls:
            if len(self._scratch) < size:
                self._scratch = torch.empty(size)
            self._run(arguments.but(scratch=self._scratch))
            for count, steps in made:
                count += steps


def adam_numbers(optimizer: Adam) -> Tensor:
    """Return an optimizer's numbers as the kernels take them, (G, 3)."""
    return _Adam.stacked(vars(optimizer))


def _item_layout(items: Items | None, item_width: int) -> CStruct | None:
    if items is None:
        return None
    names = [name for name, _ in items.features]
    members = [[group.count, *(name in group.features for name in names)] for group in items.groups]
    return _Items(
        vocabulary=items.vocabulary,
        width=item_width,
        places=items.places,
        bare=sum(group.count for group in items.groups if not group.features),
        plain=len(items.plain),
        groups=len(items.groups),
        features=len(items.features),
        facts=items.fact_count,
        members=torch.tensor(members),
        known=torch.tensor(items.facts),
    )


def _entity_layout(spec: NetSpec) -> CStruct | None:
    entities, columns = spec.entities, spec.columns
    if entities is None:
        return None
    # Columns that follow each other are copied together.
    order = entities.order(columns)
    begins = [k for k, at in enumerate(order) if not k or at != order[k - 1] + 1]
    ends = [*begins[1:], columns]
    pieces = [(order[begin], end - begin) for begin, end in zip(begins, ends, strict=True)]
    return _Entities(
        count=entities.count,
        columns=entities.width,
        width=spec.entity_width,
        pieces=len(pieces),
        piece=torch.tensor(pieces),
    )


def _image_layout(spec: NetSpec) -> CStruct | None:
    if spec.image is None:
        return None
    channels, height, width = spec.image
    return _Images(
        channels=channels,
        height=height,
        width=width,
        layers=len(spec.filters),
        filters=torch.tensor(spec.filters),
    )


class NetKernel:
    """The outputs of networks: their second forward pass.

    Args:
        kernels: the library.
        net: the networks, whose `flat` is used as long as this exists.
        at: as `places` returns it.

    Attributes:
        reads_bytes: whether they read bytes, images as they are, instead of normalised observations.
    """

    def __init__(self, kernels: Kernels, net: Net, at: Tensor | None = None) -> None:
        self._kernels, spec = kernels, net.spec
        self.reads_bytes = spec.image is not None
        self._vocabulary = spec.items.vocabulary if spec.items else 0
        self._acting, self._outputs = next(iter(spec.heads.values())), sum(spec.heads.values())
        self._networks = _Outputs(
            slots=len(net.flat),
            width=spec.hidden[0],
            depth=len(spec.hidden),
            inputs=spec.inputs,
            outputs=self._outputs,
            heads=len(spec.heads),
            linear_top=spec.linear_top,
            activation=NATIVE.index(spec.activation),
            cell=CELLS.index(spec.cell),
            sets=spec.policies,
            seat_column=spec.seat_column or 0,
            stride=net.flat.shape[1] // spec.policies,
            weights=net.flat,
            places=places(spec) if at is None else at,
            head_sizes=torch.tensor([*spec.heads.values()]),
            items=_item_layout(spec.items, spec.item_width),
            entities=_entity_layout(spec),
            images=_image_layout(spec),
            state_avg=net.normalisers["state_avg"],
            state_std=net.normalisers["state_std"],
        )

    def __call__(self, x: Tensor, memory: Memory | None = None) -> tuple[Tensor, Tensor | None]:
        """Return what `Net.forward` does, of one step. Arguments as of `outputs`."""
        found, after = self.outputs(x, memory)
        return found[..., : self._acting], after

    def outputs(self, x: Tensor, memory: Memory | None = None) -> tuple[Tensor, Tensor | None]:
        """Return the outputs of all heads, side by side, and the recurrent state after them.

        Args:
            x: (N, rows, columns), normalised; of images, bytes.
            memory: of recurrent networks, whose rows are sequences of one step.

        Returns:
            (N, rows, outputs); and (N, rows, state size), None without recurrent layer.

        Raises:
            RunError: an item's id is not in the vocabulary.
        """
        if (x.dtype == torch.uint8) != self.reads_bytes:
            raise TypeError(f"networks read {x.dtype} though reads_bytes is {self.reads_bytes}")
        into = torch.empty(*x.shape[:2], self._outputs)
        after = None if memory is None else torch.empty(memory.state.shape)
        if not self._kernels.run_outputs(self._networks, x, into, memory, after):
            raise unknown_item(self._vocabulary)
        return into, after


class RolloutBuffers(Protocol):
    """The transitions of a rollout, (G, steps, num_envs, …), as minibatches take them:
    `sweepd.agents.engine.transitions`.
    """

    obs: Tensor
    side: Tensor
    flags: Tensor
    packed_masks: Tensor
    memory: Tensor


class UpdateKernel:
    """All gradient steps of a program's rollouts.

    Args:
        kernels: the library.
        shape: the program's.
        nets: actors and critics that are trained, whose weights are (2, G, sets * P).
        optimizer: theirs.
        rollout: the transitions of a whole rollout.
    """

    def __init__(
        self,
        kernels: Kernels,
        shape: Shape,
        nets: tuple[Net, Net],
        optimizer: Adam,
        rollout: RolloutBuffers,
    ) -> None:
        self._run, self._optimizer = kernels.gradient_steps("ppo", _Update), optimizer
        slots, sets = shape.slots, shape.sets_per_member
        weights = nets[0].flat  # the critics' follow
        self._program = _Update(
            slots=slots,
            width=shape.net_width,
            depth=shape.net_depth,
            inputs=(shape.state_dim, shape.obs_dim),
            actions=shape.action_dim,
            activation=NATIVE.index(shape.activation),
            cell=CELLS.index(shape.recurrent),
            bptt=shape.bptt if shape.recurrent else 1,
            choices=len(shape.choices),
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
            num_envs=shape.num_envs,
            stored=rollout.obs[0, ..., 0].numel(),
            sequences=rollout.memory.shape[2],
            items=_item_layout(shape.items, shape.item_width),
            entities=tuple(_entity_layout(net.spec) for net in nets),
            images=_image_layout(nets[0].spec),
            options=torch.tensor(shape.choices),
            places=tuple(places(net.spec) for net in nets),
            flat=weights,
            m=optimizer.m,
            v=optimizer.v,
            obs=rollout.obs,
            side=rollout.side,
            flags=rollout.flags,
            masks=rollout.packed_masks,
            states=rollout.memory,
            state_avg=nets[1].normalisers["state_avg"],  # the critics read all columns
            state_std=nets[1].normalisers["state_std"],
            adam_steps=optimizer.step,
        )

    def __call__(
        self, rows: Tensor, numbers: Mapping[str, Tensor], learns: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Make the gradient steps of a rollout.

        Args:
            rows: (steps, G * minibatch), transitions of the rollout.
            numbers: (G, …) each, those of `PPONumbers` in loss.h.
            learns: (G,) bool, members to update.

        Returns:
            (G,) each, `PPOStats` in ppo.h; and (G,) bool, members whose gradients were not finite.
        """
        (stats, found), diverged = _Stats.zeros(len(learns)), torch.zeros_like(learns)
        arguments = self._program.but(
            steps=rows.shape[0],
            rows=rows.contiguous(),
            numbers=_Numbers.stacked(numbers),
            adam=adam_numbers(self._optimizer),
            learns=learns,
            stats=stats,
            diverged=diverged,
        )
        self._run(arguments, [(self._optimizer.step, found["updates"])])
        return found, diverged
