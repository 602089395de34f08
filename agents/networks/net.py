"""N networks of one description, run as batched matrix products under autograd.

No operation mixes networks, and no tensor shape depends on how many of them are in use: a member's
numbers are the same bits alone, with other members and in any slot. This is the one forward pass of
training, evaluations, opponents and frozen policies; the other one is C++
(`sweepd.agents.native`), of the same function to rounding.

With policies per seat, a member has two sets of weights, both of which compute all of its rows; each
row takes the outputs of its own set. (How many rows belong to a seat is known on the device only, and
no tensor's shape may depend on it.) A row's gradient is that of its own set, and exactly 0 for the
other one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sweepd.agents.networks.activation import activated
from sweepd.agents.networks.convolution import convolved
from sweepd.agents.networks.entities import EntityEncoder
from sweepd.agents.networks.items import ItemEncoder
from sweepd.agents.networks.layers import affine
from sweepd.agents.networks.normaliser import neutral, normalised
from sweepd.agents.networks.part import cut
from sweepd.agents.networks.recurrence import Memory, joined, unrolled
from sweepd.agents.networks.spec import SECOND_SEAT, NetSpec
from sweepd.envs.support.errors import InputError

StateDict = dict[str, Tensor]  # tensors by name, as torch's modules return them


class Net:
    """The networks of N members; empty ones hold zeros.

    Attributes:
        spec: what they are.
        flat: (N, P or more), all weights of a member; the rest is padding, always 0.
        weights: (N * policies, in, out) and (N * policies, 1, out) by name, views of `flat`, and
            leaves of autograd where an optimizer trains them.
        normalisers: (N, 1, k) by name.
    """

    def __init__(self, spec: NetSpec, flat: Tensor, normalisers: StateDict | None = None) -> None:
        """Make networks in a flat tensor, (N, `spec.policies` * P).

        Args:
            spec: what they are.
            flat: their weights.
            normalisers: (N, 1, k) by name; None: those that change nothing.
        """
        self.spec, self.flat = spec, flat
        self.weights = self.views(flat)
        self.normalisers = normalisers or {
            name: flat.new_full((len(flat), 1, size), neutral(name))
            for name, size in spec.normalisers.items()
        }
        self._items = (
            None if spec.items is None else ItemEncoder(spec.items, flat.dtype, flat.device)
        )
        self._entities = (
            None
            if spec.entities is None
            else EntityEncoder(spec.entities, spec.columns, flat.device)
        )

    @classmethod
    def zeros(cls, spec: NetSpec, members: int, device: torch.device) -> Net:
        """Make networks with zeros as their weights."""
        return cls(spec, torch.zeros(members, spec.policies * spec.size, device=device))

    def views(self, flat: Tensor) -> StateDict:
        """Return views of a tensor like `flat` by the weights' names."""
        return cut(flat.detach().view(len(flat) * self.spec.policies, -1), self.spec.parts())

    def copy(self) -> Net:
        """Copy the networks as they are now; the copies do not learn."""
        normalisers = {name: part.clone() for name, part in self.normalisers.items()}
        return Net(self.spec, self.flat.clone(), normalisers)

    # Running the networks.

    def normalised(self, obs: Tensor) -> Tensor:
        """Return observations (N, rows, columns) as the networks read them."""
        avg, std = self.normalisers["state_avg"], self.normalisers["state_std"]
        return normalised(obs[..., : avg.shape[-1]], avg, std, self.spec.clip)

    def inputs(self, obs: Tensor) -> Tensor:
        """Return what networks read of stored observations (N, rows, columns).

        Those are normalised already, except for uint8 ones.
        """
        return self.normalised(obs) if obs.dtype == torch.uint8 else obs

    def forward(self, x: Tensor, memory: Memory | None = None) -> tuple[Tensor, Tensor | None]:
        """Return the outputs that act, (N, rows, outputs), and the recurrent state after them.

        Args:
            x: (N, rows, columns or more), normalised.
            memory: of recurrent networks.
        """
        top, state = top_of(self.spec, self.weights, self.first(x), memory)
        return self.output(x, top), state

    def hidden(self, x: Tensor) -> Tensor:
        """Return the last hidden layer of networks without recurrent layer, (N, rows, width)."""
        return top_of(self.spec, self.weights, self.first(x))[0]

    def first(self, x: Tensor) -> Tensor:
        """Return the first hidden layer before its activation, (N * policies, rows, width)."""
        spec, weights, x = self.spec, self.weights, self.encoded(x)
        if not spec.trunk:
            return x
        weight, bias = (weights[f"{spec.trunk[0]}.{part}"] for part in ("weight", "bias"))
        return affine(x, weight if self._items is None else self._items.folded(weight), bias)

    def encoded(self, x: Tensor) -> Tensor:
        """Return what the first hidden layer reads, (N * policies, rows, inputs)."""
        spec, weights = self.spec, self.weights
        if spec.seat_column is not None:
            x = x.repeat_interleave(spec.policies, 0)
        if spec.image is not None:
            x = convolved(weights, spec.image, spec.filters, x)
        elif self._items is not None:
            x = self._items(weights, x)
        elif self._entities is not None:
            x = self._entities(weights, x)
        else:
            x = x[..., : spec.inputs]
        return x

    def output(self, x: Tensor, top: Tensor) -> Tensor:
        """Return the outputs that act, (N, rows, outputs).

        Args:
            x: as of `forward`.
            top: (N * policies, rows, width), what the last layers read.
        """
        output = self.head(next(iter(self.spec.heads)), top)
        if self.spec.seat_column is None:
            return output
        first, second = output.view(-1, 2, *output.shape[1:]).unbind(1)
        return torch.where(is_second(x, self.spec.seat_column), second, first)

    def head(self, name: str, top: Tensor) -> Tensor:
        """Return the outputs of a layer on the hidden ones, (N * policies, rows, outputs)."""
        return affine(top, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def value(self, output: Tensor) -> Tensor:
        """Convert outputs of networks of values to units of returns."""
        return torch.addcmul(self.normalisers["value_avg"], output, self.normalisers["value_std"])

    @torch.no_grad()
    def follow(self, other: Net, tau: Tensor, active: Tensor) -> None:
        """Update target networks: θ ← τ θ_other + (1 - τ) θ.

        Args:
            other: the trained networks.
            tau: (N, 1), τ.
            active: (N,) bool, members to update.
        """
        moved = other.flat * tau + self.flat * (1.0 - tau)
        self.flat.copy_(torch.where(active.unsqueeze(-1), moved, self.flat))

    # Members.

    def tensors(self, slot: int) -> StateDict:
        """Return views of a member's weights and normalisers."""
        return {"weights": self.flat[slot]} | {
            name: part[slot] for name, part in self.normalisers.items()
        }

    def clear(self, slot: int) -> None:
        """Reset a member."""
        self.flat[slot] = 0
        for name, part in self.normalisers.items():
            part[slot] = neutral(name)

    def named(self) -> StateDict:
        """Return views of all members' tensors, (N, …) by the names of `NetSpec.shapes`."""
        found: StateDict = {}
        for part in self.spec.parts():
            of_sets = part.to_module(self.weights[part.name].detach())
            for seat in range(self.spec.policies):
                own = of_sets[seat :: self.spec.policies]
                found[(SECOND_SEAT if seat else "") + part.name] = own
        return found | {name: part[:, 0] for name, part in self.normalisers.items()}

    @torch.no_grad()
    def put(self, slot: int, given: Mapping[str, Tensor]) -> None:
        """Load a member's tensors, by the names of `NetSpec.shapes`.

        Raises:
            InputError: names or shapes are others.
        """
        check_tensors(self.spec, given)
        self.clear(slot)
        for name, part in self.named().items():
            part[slot].copy_(given[name])

    def member(self, slot: int) -> StateDict:
        """Return CPU copies of a member's tensors, as its module's `state_dict`."""
        return {
            name: part[slot].to("cpu", copy=True).contiguous()
            for name, part in self.named().items()
        }


class Pair:
    """Actors and critics that learn; what follows their first layers runs as one product of both.

    (Half as many operations: on CPUs with small minibatches and on GPUs, their number counts.)

    Attributes:
        nets: the actors and the critics.
        leaves: the weights of both, which an optimizer trains.
    """

    def __init__(self, actor: Net, critic: Net, flat: Tensor) -> None:
        """Set up the networks of members.

        Args:
            actor: with the weights flat[0].
            critic: with the weights flat[1], and the widths of the actor.
            flat: (2, N, P).
        """
        self.nets, spec = (actor, critic), actor.spec
        names = [f"{layer}.{part}" for layer in spec.trunk[1:] for part in ("weight", "bias")]
        names += [part.name for part in spec.parts() if part.group in ("activation", "cell")]
        both = cut(flat.view(2 * len(actor.flat) * spec.policies, -1), spec.parts())
        self._common = {name: both[name] for name in names}
        own = [
            leaf
            for net in self.nets
            for name, leaf in net.weights.items()
            if name not in self._common
        ]
        self.leaves = [*self._common.values(), *own]

    def forward(
        self, x: Tensor, memories: Sequence[Memory] | None = None
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor] | None]:
        """Return the outputs of actors and critics, and their recurrent states after them.

        Args:
            x: (N, rows, columns), normalised.
            memories: of recurrent networks, both.
        """
        actor, critic = self.nets
        memory = None if memories is None else joined(memories)
        first = torch.cat([net.first(x) for net in self.nets])
        top, state = top_of(actor.spec, self._common, first, memory)
        tops = top.chunk(2)
        states = None if state is None else (state[: len(state) // 2], state[len(state) // 2 :])
        return (actor.output(x, tops[0]), critic.output(x, tops[1])), states


def top_of(
    spec: NetSpec, weights: Mapping[str, Tensor], x: Tensor, memory: Memory | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return what the last layers read, and the recurrent state after it.

    Args:
        spec: of the networks.
        weights: those of the layers between the first and the last.
        x: (N, rows, width), as `Net.first` returns it.
        memory: of recurrent networks.
    """
    for layer, name in enumerate(spec.trunk):
        if layer:
            x = affine(x, weights[f"{name}.weight"], weights[f"{name}.bias"])
        if not (spec.linear_top and layer == len(spec.hidden) - 1):
            x = activated(spec.activation, x, weights, name)
    if not spec.cell:
        return x, None
    if memory is None:
        raise ValueError("recurrent networks need a memory")
    return unrolled(spec.cell, weights, x, memory)


def check_tensors(spec: NetSpec, given: Mapping[str, Tensor]) -> None:
    """Raise InputError unless tensors have the names and shapes of a description."""
    shapes = spec.shapes()
    if set(given) != set(shapes):
        missing, extra = sorted(set(shapes) - set(given)), sorted(set(given) - set(shapes))
        raise InputError(f"A network's tensors lack {missing}, and {extra} do not belong to it.")
    for name, shape in shapes.items():
        if tuple(given[name].shape) != shape:
            raise InputError(
                f"A network's {name} has the shape {tuple(given[name].shape)}, not {shape}."
            )


def is_second(obs: Tensor, column: int) -> Tensor:
    """Return where the policy of the second seat acts, (…, rows, 1) bool, of (…, rows, columns)."""
    return obs[..., column, None] > 0.5
