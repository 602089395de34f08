"""Forward and backward pass of all members' actors and critics, as batched matrix products.

Every network is an MLP with an activation f between its layers
(`sweepd.agents.networks.activation`): with ReLU, ElegantRL's `ActorPPO` and `CriticPPO`. Slot g has
an actor, which reads the first `state_dim` columns of an observation, and a critic, which reads all
of them. Both have the same hidden sizes, so their hidden layers run as one product of 2G matrices:
first the G actors, then the G critics.

For layer l with input x_{l-1} (B, in), weights W_l (in, out) and bias b_l (1, out):

    forward     z_l = x_{l-1} W_l + b_l,   x_l = f(z_l)
    backward    with Δ_l = dL/dz_l (B, out):
                dL/dW_l = x_{l-1}ᵀ Δ_l,   dL/db_l = 1ᵀ Δ_l,   Δ_{l-1} = (Δ_l W_lᵀ) ⊙ f'(z_{l-1})

(Rumelhart, Hinton and Williams, 1986.) The output layers have no activation. `docs/ppo.md` follows these
products through the code.

No operation mixes slots, and no tensor shape depends on how many of them are occupied. So a
member's numbers are the same bits alone, with other members and in any slot.

With policies per seat, a member has two sets of weights, and both compute all of its observations
(`sweepd.agents.networks.seats`). Here they are like two slots: G is then twice the number of
members.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sweepd.agents.networks.activation import activate_, needs_sums, through_
from sweepd.agents.networks.convolution import Convolutions
from sweepd.agents.networks.item_layers import ItemLayers
from sweepd.agents.networks.recurrence import Cells
from sweepd.agents.networks.seats import Seats
from sweepd.agents.networks.shape import PER_SEAT, Shape
from sweepd.agents.networks.weights import Leaves


class Activations:
    """What a forward pass computes, for `rows` observations per member.

    Attributes:
        activation: f.
        hidden: x_l of the hidden layers, (2G, rows, width) each.
        sums: z_l likewise, where f'(z) does not follow from x; else none.
        output: (members, rows, action_dim), of the actors.
        value: (members, rows, 1), of the critics, in normalised units.
        cells: the recurrent layer over `steps` steps; None without one.
        images: the convolutions; None without them.
        items: the layers over items and the first layers; None without them.
        seats: the outputs of both sets of weights per member; None with a shared policy.
    """

    def __init__(self, shape: Shape, rows: int, device: torch.device, steps: int = 1) -> None:
        slots, width, self.activation = shape.slots, shape.net_width, shape.activation

        def layers(depth: int) -> list[Tensor]:
            return [torch.empty(2 * shape.sets, rows, width, device=device) for _ in range(depth)]

        self.hidden = layers(shape.net_depth)
        self.sums = layers(shape.net_depth if needs_sums(shape.activation) else 0)
        self.output = torch.empty(slots, rows, shape.action_dim, device=device)
        self.value = torch.empty(slots, rows, 1, device=device)
        self.cells = (
            Cells(shape.recurrent, slots, width, rows, steps, device) if shape.recurrent else None
        )
        self.images = None if shape.image_shape is None else Images(shape, rows, device)
        self.items = (
            None
            if shape.items is None
            else ItemLayers(shape.items, shape.item_width, shape.sets, rows, device)
        )
        self.seats = Seats(shape, rows, device) if shape.policies == PER_SEAT else None

    def activate_(self, layer: int, networks: slice) -> None:
        """Apply f to the sums z of a layer in `hidden`, in place."""
        x = self.hidden[layer][networks]
        if self.sums:
            self.sums[layer][networks].copy_(x)
        activate_(self.activation, x)


class Images:
    """The convolutions before the first layers, and their output (2G, rows, features)."""

    def __init__(self, shape: Shape, rows: int, device: torch.device) -> None:
        assert shape.image_shape is not None
        self.layers = Convolutions(shape.image_shape, shape.slots)
        self.features = torch.empty(2 * shape.slots, rows, shape.inputs[0], device=device)


def forward(
    weights: Leaves, obs: Tensor, into: Activations, *, actor: bool = True, critic: bool = True
) -> None:
    """Run the actors, the critics or both.

    Args:
        weights: of all networks.
        obs: (G, rows, obs_dim) normalised observations, or images as
            `sweepd.agents.networks.convolution.pixels` returns them.
        into: written: `output` (parameters of `sweepd.agents.networks.distributions`), `value`, and
            `hidden` for `Backward`.
        actor: whether to run the actors.
        critic: whether to run the critics.
    """
    output, value = into.output, into.value
    if into.seats is not None:
        obs, output, value = into.seats.read(obs), into.seats.output, into.seats.value
    # Networks first … last of the 2G: actors come before critics.
    slots = weights.actor_in.shape[0]
    first, last = 0 if actor else slots, 2 * slots if critic else slots
    if into.images is not None:
        own = [
            [leaf[first:last] for leaf in leaves]
            for leaves in (weights.filters, weights.filter_bias)
        ]
        into.images.features[first:last] = into.images.layers.forward(own[0], own[1], obs)
    # First layers: they differ in their number of inputs, so actors and critics run apart.
    below = into.hidden[0]
    if into.items is not None:
        into.items.forward(weights, obs, below, actor=actor, critic=critic)
    else:
        state, everything = _read(weights, obs, into)
        if actor:
            torch.baddbmm(weights.bias[0][:slots], state, weights.actor_in, out=below[:slots])
        if critic:
            torch.baddbmm(weights.bias[0][slots:], everything, weights.critic_in, out=below[slots:])
    networks = slice(first, last)
    into.activate_(0, networks)
    # Hidden layers: one batched product for actors and critics.
    for layer, weight in enumerate(weights.hidden, start=1):
        hidden, bias = into.hidden[layer], weights.bias[layer]
        torch.baddbmm(bias[networks], below[networks], weight[networks], out=hidden[networks])
        into.activate_(layer, networks)
        below = hidden
    # The recurrent layer, then the output layers without activation.
    if into.cells is not None:
        into.cells.forward(weights.cell, below, networks)
        below = into.cells.output
    if actor:
        torch.baddbmm(weights.actor_out_bias, below[:slots], weights.actor_out, out=output)
    if critic:
        # vᵀ = w_outᵀ xᵀ + b: a product with one row is faster than one with one column.
        row = value.view(slots, 1, -1)
        torch.baddbmm(weights.critic_out_bias, weights.critic_out.mT, below[slots:].mT, out=row)
    if into.seats is not None:
        into.seats.choose(into, actor=actor, critic=critic)


class Backward:
    """The backward pass: gradients of all weights from those of the outputs.

    For a fixed number of rows. The gradient of `log_std` comes from the distribution.
    """

    def __init__(self, shape: Shape, rows: int, device: torch.device) -> None:
        sets, width = shape.sets, shape.net_width
        self._delta = [torch.empty(2 * sets, rows, width, device=device) for _ in range(2)]
        # A bias gradient is a sum over rows. A product with ones is several times faster than a
        # reduction, and gives the same bits in every slot.
        self._ones = torch.ones(2 * sets, 1, rows, device=device)

    def __call__(
        self,
        weights: Leaves,
        obs: Tensor,
        acts: Activations,
        d_output: Tensor,
        d_value: Tensor,
        into: Leaves,
    ) -> None:
        """Compute the gradients after `forward` has filled `acts`.

        Args:
            weights: as in `forward`.
            obs: as in `forward`.
            acts: what `forward` computed.
            d_output: (members, rows, action_dim), dL/d(actor output).
            d_value: (members, rows, 1), dL/d(critic output).
            into: written, gradients of all weights but `log_std` and `chain`.
        """
        if acts.seats is not None:
            obs = acts.seats.obs
            d_output, d_value = acts.seats.divide(d_output), acts.seats.divide(d_value)
        slots, ones = d_output.shape[0], self._ones
        top = acts.hidden[-1] if acts.cells is None else acts.cells.output
        # Output layers: dL/dW = xᵀ Δ, dL/db = 1ᵀ Δ, with Δ = d_output or d_value.
        torch.bmm(top[:slots].mT, d_output, out=into.actor_out)
        torch.bmm(ones[:slots], d_output, out=into.actor_out_bias)
        torch.bmm(d_value.view(slots, 1, -1), top[slots:], out=into.critic_out.view(slots, 1, -1))
        torch.bmm(ones[slots:], d_value, out=into.critic_out_bias)
        # dL/dx of the layer below the outputs: Δ Wᵀ.
        # Two buffers in turn: a layer's gradient is computed from that of the layer above.
        delta, other = self._delta
        torch.bmm(d_output, weights.actor_out.mT, out=delta[:slots])
        # The critics' W_out has one column, so this outer product is a broadcast multiplication.
        torch.mul(d_value, weights.critic_out.mT, out=delta[slots:])
        # Through time, where networks are recurrent.
        if acts.cells is not None:
            delta.copy_(acts.cells.backward(weights.cell, acts.hidden[-1], delta, into.cell))
        for layer in range(len(acts.hidden) - 1, -1, -1):
            # Δ_l = dL/dx_l ⊙ f'(z_l), in place.
            through_(acts.activation, delta, (acts.sums or acts.hidden)[layer])
            torch.bmm(ones, delta, out=into.bias[layer])  # dL/db_l = 1ᵀ Δ_l
            if layer:
                # dL/dW_l = x_{l-1}ᵀ Δ_l, and dL/dx_{l-1} = Δ_l W_lᵀ.
                torch.bmm(acts.hidden[layer - 1].mT, delta, out=into.hidden[layer - 1])
                torch.bmm(delta, weights.hidden[layer - 1].mT, out=other)
                delta, other = other, delta
        if acts.items is not None:
            acts.items.backward(delta, into)
            return
        # First layers: dL/dW_0 = obsᵀ Δ_0.
        state, everything = _read(weights, obs, acts)
        torch.bmm(state.mT, delta[:slots], out=into.actor_in)
        torch.bmm(everything.mT, delta[slots:], out=into.critic_in)
        # Convolutions: dL/d(features) = Δ_0 W_0ᵀ.
        if acts.images is not None:
            d_features = torch.empty_like(acts.images.features)
            torch.bmm(delta[:slots], weights.actor_in.mT, out=d_features[:slots])
            torch.bmm(delta[slots:], weights.critic_in.mT, out=d_features[slots:])
            acts.images.layers.backward(d_features, into.filters, into.filter_bias)


def _read(weights: Leaves, obs: Tensor, acts: Activations) -> tuple[Tensor, Tensor]:
    """Return the inputs of the first layers of actors and critics."""
    slots, columns, _ = weights.actor_in.shape
    if acts.images is not None:
        return acts.images.features[:slots], acts.images.features[slots:]
    return obs[..., :columns], obs
