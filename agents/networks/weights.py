"""The weights of all members' networks: the layout of one flat tensor, and named views of it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from sweepd.agents.networks.convolution import layers
from sweepd.agents.networks.items import item_sizes
from sweepd.agents.networks.recurrence import GATES
from sweepd.agents.networks.shape import Shape

StateDict = dict[str, Tensor]  # tensors by name, as torch's modules return them

_ALIGN = 16  # floats: every view starts on a cache line


@dataclass
class Leaves:
    """The parameters of 2G networks by name, or gradients of them; matrices are (in, out).

    G is the number of sets of weights (`Shape.sets`): that of members, or twice as many with
    policies per seat.

    Attributes:
        actor_in: (G, state_dim, width), first layers.
        critic_in: (G, obs_dim, width), first layers. Of images, both read the convolutions'
            features instead of observations; of items, the vectors of all places, their sums per
            group, and the plain columns.
        hidden: (2G, width, width) each, the layers after the first.
        bias: (2G, 1, width) each, of the first and all hidden layers.
        actor_out: (G, width, action_dim).
        actor_out_bias: (G, 1, action_dim).
        critic_out: (G, width, 1).
        critic_out_bias: (G, 1, 1).
        log_std: (G, 1, action_dim); no columns where actions are discrete.
        chain: of autoregressive policies, (G, sizes of choices 0 … k, size of choice k + 1) each:
            what earlier choices add to the logits of a later one.
        filters: (2G, channels, filter size) each (`sweepd.agents.networks.convolution`).
        filter_bias: (2G, 1, channels) each.
        cell: of recurrent networks (`sweepd.agents.networks.recurrence`), weights on the last
            hidden layer and on the recurrent state, (2G, width, gates * width) each, and their
            biases (2G, 1, gates * width).
        items: of items that are looked up by id (`sweepd.agents.networks.items`), the embedding
            (2G, vocabulary, item width), whose row 0 is always 0, the weights on facts and
            features (2G, facts + features, item width), and the bias (2G, 1, item width).
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
    items: list[Tensor]

    def shared(self) -> list[Tensor]:
        """Return those of actors and critics, (2G, …)."""
        return [*self.hidden, *self.bias, *self.filters, *self.filter_bias, *self.cell, *self.items]

    def actor(self) -> list[Tensor]:
        """Return those of actors only."""
        return [self.actor_in, self.actor_out, self.actor_out_bias, self.log_std, *self.chain]

    def critic(self) -> list[Tensor]:
        """Return those of critics only."""
        return [self.critic_in, self.critic_out, self.critic_out_bias]

    def every(self) -> list[Tensor]:
        """Return all of them."""
        return [*self.shared(), *self.actor(), *self.critic()]


def _sizes(
    shape: Shape,
) -> tuple[list[tuple[int, int]], list[tuple[int, int]], list[tuple[int, int]]]:
    """Return (rows, columns) of `Leaves.shared`, `.actor` and `.critic`, in their order."""
    width, depth = shape.net_width, shape.net_depth
    deviations = 0 if shape.discrete else shape.action_dim
    convolutions = layers(shape.image_shape)
    shared = [(width, width)] * (depth - 1) + [(1, width)] * depth
    shared += [(layer.channels, layer.filter_size) for layer in convolutions]
    shared += [(1, layer.channels) for layer in convolutions]
    if shape.recurrent:
        gates = GATES[shape.recurrent] * width
        shared += [(width, gates), (width, gates), (1, gates), (1, gates)]
    if shape.items is not None:
        shared += item_sizes(shape.items, shape.item_width)
    actor_in, critic_in = shape.inputs
    actor = [(actor_in, width), (width, shape.action_dim), (1, shape.action_dim), (1, deviations)]
    if shape.autoregressive:
        actor += zip(accumulate(shape.choices), shape.choices[1:], strict=False)
    critic = [(critic_in, width), (width, 1), (1, 1)]
    return shared, actor, critic


def aligned(count: int) -> int:
    """Return `count` floats rounded up to whole cache lines."""
    return -(-count // _ALIGN) * _ALIGN


def flat_size(shape: Shape) -> int:
    """Return P, the floats per network in the flat tensor, with padding (always zero)."""
    shared, actor, critic = (
        sum(aligned(rows * cols) for rows, cols in sizes) for sizes in _sizes(shape)
    )
    # Actors and critics have rows of equal length; the parts that they do not share overlap.
    return shared + max(actor, critic)


def leaf_views(flat: Tensor, shape: Shape) -> Leaves:
    """Return views of a flat (2, slots, sets per member * P) tensor.

    flat[0, slot] holds the actors of all sets of a slot's member, flat[1, slot] the critics.
    """
    both, slots = flat.view(2 * shape.sets, -1), shape.sets
    shared_sizes, actor_sizes, critic_sizes = _sizes(shape)

    def cut(rows_of: Tensor, sizes: list[tuple[int, int]], start: int) -> tuple[list[Tensor], int]:
        views = []
        for rows, cols in sizes:
            views.append(rows_of[:, start : start + rows * cols].view(rows_of.shape[0], rows, cols))
            start += aligned(rows * cols)
        return views, start

    shared, start = cut(both, shared_sizes, 0)
    actor, _ = cut(both[:slots], actor_sizes, start)
    critic, _ = cut(both[slots:], critic_sizes, start)
    return _leaves(shape, shared, actor, critic)


def new_gradients(shape: Shape, device: torch.device) -> Leaves:
    """Allocate gradients. Each is contiguous, so batched products write into it without a copy."""

    def make(sizes: list[tuple[int, int]], slots: int) -> list[Tensor]:
        return [torch.zeros(slots, rows, cols, device=device) for rows, cols in sizes]

    shared, actor, critic = _sizes(shape)
    return _leaves(
        shape, make(shared, 2 * shape.sets), make(actor, shape.sets), make(critic, shape.sets)
    )


def _leaves(
    shape: Shape, shared: list[Tensor], actor: list[Tensor], critic: list[Tensor]
) -> Leaves:
    """Name tensors given in the order of `_sizes`."""
    between, convolutions = shape.net_depth - 1, len(layers(shape.image_shape))
    after = between + shape.net_depth
    last = after + 2 * convolutions + 4 * bool(shape.recurrent)
    return Leaves(
        actor_in=actor[0],
        critic_in=critic[0],
        hidden=shared[:between],
        bias=shared[between:after],
        filters=shared[after : after + convolutions],
        filter_bias=shared[after + convolutions : after + 2 * convolutions],
        cell=shared[after + 2 * convolutions : last],
        items=shared[last:],
        actor_out=actor[1],
        actor_out_bias=actor[2],
        critic_out=critic[1],
        critic_out_bias=critic[2],
        log_std=actor[3],
        chain=actor[4:],
    )
