"""ElegantRL's `ActorPPO` and `CriticPPO` for all members at once: stacked weights, batched matrix products, a
hand-written backward.

Every network is an MLP with ReLU between its layers. A program has G slots; slot g has an actor, which reads the first
`state_dim` columns of an observation, and a critic, which reads all of them. Both have the same hidden sizes, so their
hidden layers run as one product of 2 G matrices (first the G actors, then the G critics). All weights lie in one flat
tensor (2, G, P): row (0, g) is member g's actor, row (1, g) its critic, and the layers are views of it. So an
optimizer works on one tensor, and a member is two rows.

No operation here mixes slots, and no tensor shape depends on how many of them are taken: that is what makes a member's
numbers the same bits alone, in company and in any slot.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from agents.networks.convolution import Convolutions, layers
from agents.networks.recurrence import GATES, Cells
from agents.networks.shape import Shape

__all__ = [
    "Activations",
    "Backward",
    "Leaves",
    "Shape",
    "flat_size",
    "forward",
    "leaf_views",
    "new_gradients",
]

_ALIGN = 16  # floats: every view starts on a cache line


@dataclass
class Leaves:
    """The tensors of 2 G networks with matrices as (in, out); either views of flat weights, or gradients of their own.

    actor_in (G, state_dim, width), critic_in (G, obs_dim, width): first layers; hidden[l] (2G, width, width): the
    layers after it; bias[l] (2G, 1, width): of all hidden layers; actor_out (G, width, action_dim), actor_out_bias (G,
    1, action_dim), critic_out (G, width, 1), critic_out_bias (G, 1, 1); log_std (G, 1, action_dim), without columns
    where actions are discrete; chain[k] (G, sizes of choices 0 … k, size of choice k + 1): what earlier choices add to
    a later one's logits, where the policy is autoregressive; filters[l] (2G, channels, filter size), filter_bias[l]
    (2G, 1, channels): of `agents.networks.convolution`, where observations are images, of whose features the first layers read
    then; cell: of `agents.networks.recurrence`, where the networks remember, (2G, width, gates * width) for what comes from the
    last hidden layer and from memory, and their biases (2G, 1, gates * width).
    """

    actor_in: Tensor
    critic_in: Tensor
    hidden: list[Tensor]
    bias: list[Tensor]
    actor_out: Tensor
    actor_out_bias: Tensor
    critic_out: Tensor
    critic_out_bias: Tensor
    log_std: Tensor
    chain: list[Tensor]
    filters: list[Tensor]
    filter_bias: list[Tensor]
    cell: list[Tensor]

    def shared(self) -> list[Tensor]:
        """Those with 2 G matrices."""
        return [*self.hidden, *self.bias, *self.filters, *self.filter_bias, *self.cell]

    def actor(self) -> list[Tensor]:
        """Those that only actors have."""
        return [self.actor_in, self.actor_out, self.actor_out_bias, self.log_std, *self.chain]

    def critic(self) -> list[Tensor]:
        """Those that only critics have."""
        return [self.critic_in, self.critic_out, self.critic_out_bias]

    def every(self) -> list[Tensor]:
        """All of them."""
        return [*self.shared(), *self.actor(), *self.critic()]


def _sizes(
    shape: Shape,
) -> tuple[list[tuple[int, int]], list[tuple[int, int]], list[tuple[int, int]]]:
    """(rows, columns) of the leaves of `Leaves.shared`, `.actor`, `.critic`, in that order."""
    width, depth = shape.net_width, shape.net_depth
    deviations = 0 if shape.discrete else shape.action_dim
    convolutions = layers(shape.image_shape)
    shared = [(width, width)] * (depth - 1) + [(1, width)] * depth
    shared += [(layer.channels, layer.filter_size) for layer in convolutions]
    shared += [(1, layer.channels) for layer in convolutions]
    if shape.recurrent:
        gates = GATES[shape.recurrent] * width
        shared += [(width, gates), (width, gates), (1, gates), (1, gates)]
    actor_in, critic_in = shape.inputs
    actor = [(actor_in, width), (width, shape.action_dim), (1, shape.action_dim), (1, deviations)]
    if shape.autoregressive:
        actor += zip(accumulate(shape.choices), shape.choices[1:], strict=False)
    critic = [(critic_in, width), (width, 1), (1, 1)]
    return shared, actor, critic


def _aligned(count: int) -> int:
    return -(-count // _ALIGN) * _ALIGN


def flat_size(shape: Shape) -> int:
    """P: floats per network in the flat tensor, padding (always zero) included."""
    shared, actor, critic = (
        sum(_aligned(rows * cols) for rows, cols in sizes) for sizes in _sizes(shape)
    )
    return shared + max(actor, critic)


def leaf_views(flat: Tensor, shape: Shape) -> Leaves:
    """The leaves of a flat (2, G, P) tensor, as views of it."""
    both, slots = flat.view(-1, flat.shape[-1]), shape.slots
    shared_sizes, actor_sizes, critic_sizes = _sizes(shape)

    def cut(rows_of: Tensor, sizes: list[tuple[int, int]], start: int) -> tuple[list[Tensor], int]:
        views = []
        for rows, cols in sizes:
            views.append(rows_of[:, start : start + rows * cols].view(rows_of.shape[0], rows, cols))
            start += _aligned(rows * cols)
        return views, start

    shared, start = cut(both, shared_sizes, 0)
    actor, _ = cut(both[:slots], actor_sizes, start)
    critic, _ = cut(both[slots:], critic_sizes, start)
    return _collect(shape, shared, actor, critic)


def new_gradients(shape: Shape, device: torch.device) -> Leaves:
    """Leaves of their own, each contiguous: batched products write into nothing else without a copy."""

    def make(sizes: list[tuple[int, int]], slots: int) -> list[Tensor]:
        return [torch.zeros(slots, rows, cols, device=device) for rows, cols in sizes]

    shared, actor, critic = _sizes(shape)
    return _collect(
        shape, make(shared, 2 * shape.slots), make(actor, shape.slots), make(critic, shape.slots)
    )


def _collect(
    shape: Shape, shared: list[Tensor], actor: list[Tensor], critic: list[Tensor]
) -> Leaves:
    between, depth, convolutions = (
        shape.net_depth - 1,
        shape.net_depth,
        len(layers(shape.image_shape)),
    )
    after = between + depth  # the place after the biases
    return Leaves(
        actor_in=actor[0],
        critic_in=critic[0],
        hidden=shared[:between],
        bias=shared[between:after],
        filters=shared[after : after + convolutions],
        filter_bias=shared[after + convolutions : after + 2 * convolutions],
        cell=shared[after + 2 * convolutions :],
        actor_out=actor[1],
        actor_out_bias=actor[2],
        critic_out=critic[1],
        critic_out_bias=critic[2],
        log_std=actor[3],
        chain=actor[4:],
    )


class Activations:
    """Buffers for `rows` observations per member: hidden[l] (2G, rows, width), output (G, rows, action_dim), of the
    actors, value (G, rows, 1), of the critics; cells: of networks that remember, over `steps` steps.
    """

    def __init__(self, shape: Shape, rows: int, device: torch.device, steps: int = 1) -> None:
        slots, width = shape.slots, shape.net_width
        self.hidden = [
            torch.empty(2 * slots, rows, width, device=device) for _ in range(shape.net_depth)
        ]
        self.output = torch.empty(slots, rows, shape.action_dim, device=device)
        self.value = torch.empty(slots, rows, 1, device=device)
        self.cells = (
            Cells(shape.recurrent, slots, width, rows, steps, device) if shape.recurrent else None
        )
        self.images = None if shape.image_shape is None else Images(shape, rows, device)


class Images:
    """The convolutions of `rows` images per member; features (2G, rows, features): what they made of them."""

    def __init__(self, shape: Shape, rows: int, device: torch.device) -> None:
        assert shape.image_shape is not None
        self.layers = Convolutions(shape.image_shape, shape.slots)
        self.features = torch.empty(2 * shape.slots, rows, shape.inputs[0], device=device)


def forward(
    weights: Leaves, obs: Tensor, into: Activations, *, actor: bool = True, critic: bool = True
) -> None:
    """Run the actors, the critics or both on (G, rows, obs_dim) normalised observations, or on images as
    `agents.networks.convolution.pixels` gives them.

    Fills `into.output` (what it means: `agents.networks.distributions`) and `into.value` (in the critics' normalised units), and
    `into.hidden` for `Backward`.
    """
    slots = weights.actor_in.shape[0]
    first, last = 0 if actor else slots, 2 * slots if critic else slots
    if into.images is not None:
        own = [
            [leaf[first:last] for leaf in leaves]
            for leaves in (weights.filters, weights.filter_bias)
        ]
        into.images.features[first:last] = into.images.layers.forward(own[0], own[1], obs)
    state, everything = _read(weights, obs, into)
    below = into.hidden[0]
    if actor:
        torch.baddbmm(weights.bias[0][:slots], state, weights.actor_in, out=below[:slots])
    if critic:
        torch.baddbmm(weights.bias[0][slots:], everything, weights.critic_in, out=below[slots:])
    below[first:last].relu_()
    for weight, bias, hidden in zip(weights.hidden, weights.bias[1:], into.hidden[1:], strict=True):
        torch.baddbmm(
            bias[first:last], below[first:last], weight[first:last], out=hidden[first:last]
        )
        hidden[first:last].relu_()
        below = hidden
    if into.cells is not None:
        into.cells.forward(weights.cell, below, slice(first, last))
        below = into.cells.output
    if actor:
        torch.baddbmm(weights.actor_out_bias, below[:slots], weights.actor_out, out=into.output)
    if critic:
        # A product with one column is fastest lying down: as one row.
        row = into.value.view(slots, 1, -1)
        torch.baddbmm(weights.critic_out_bias, weights.critic_out.mT, below[slots:].mT, out=row)


class Backward:
    """The gradients of all weights from those of the outputs, for a fixed number of rows. `log_std` is the loss's own
    business.
    """

    def __init__(self, shape: Shape, rows: int, device: torch.device) -> None:
        slots, width = shape.slots, shape.net_width
        self._delta = [torch.empty(2 * slots, rows, width, device=device) for _ in range(2)]
        # A bias gradient is a sum over rows; as a product with ones it takes a fraction of the time of a reduction.
        self._ones = torch.ones(2 * slots, 1, rows, device=device)

    def __call__(
        self,
        weights: Leaves,
        obs: Tensor,
        acts: Activations,
        d_output: Tensor,
        d_value: Tensor,
        into: Leaves,
    ) -> None:
        """obs as in `forward`, which must have filled `acts`; d_output (G, rows, action_dim), d_value (G, rows, 1);
        writes `into`.
        """
        slots, ones = d_output.shape[0], self._ones
        top = acts.hidden[-1] if acts.cells is None else acts.cells.output
        torch.bmm(top[:slots].mT, d_output, out=into.actor_out)
        torch.bmm(ones[:slots], d_output, out=into.actor_out_bias)
        torch.bmm(d_value.view(slots, 1, -1), top[slots:], out=into.critic_out.view(slots, 1, -1))
        torch.bmm(ones[slots:], d_value, out=into.critic_out_bias)
        delta, other = self._delta
        torch.bmm(d_output, weights.actor_out.mT, out=delta[:slots])
        torch.mul(d_value, weights.critic_out.mT, out=delta[slots:])
        if acts.cells is not None:
            delta.copy_(acts.cells.backward(weights.cell, acts.hidden[-1], delta, into.cell))
        for layer in range(len(acts.hidden) - 1, -1, -1):
            torch.ops.aten.threshold_backward.grad_input(
                delta, acts.hidden[layer], 0, grad_input=delta
            )
            torch.bmm(ones, delta, out=into.bias[layer])
            if layer:
                torch.bmm(acts.hidden[layer - 1].mT, delta, out=into.hidden[layer - 1])
                torch.bmm(delta, weights.hidden[layer - 1].mT, out=other)
                delta, other = other, delta
        state, everything = _read(weights, obs, acts)
        torch.bmm(state.mT, delta[:slots], out=into.actor_in)
        torch.bmm(everything.mT, delta[slots:], out=into.critic_in)
        if acts.images is not None:
            d_features = torch.empty_like(acts.images.features)
            torch.bmm(delta[:slots], weights.actor_in.mT, out=d_features[:slots])
            torch.bmm(delta[slots:], weights.critic_in.mT, out=d_features[slots:])
            acts.images.layers.backward(d_features, into.filters, into.filter_bias)


def _read(weights: Leaves, obs: Tensor, acts: Activations) -> tuple[Tensor, Tensor]:
    """What the first layers of actors and critics read."""
    slots, columns, _ = weights.actor_in.shape
    if acts.images is not None:
        return acts.images.features[:slots], acts.images.features[slots:]
    return obs[..., :columns], obs
