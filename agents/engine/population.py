"""The weights and normalisers of PPO's members, with import and export as ElegantRL's modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor, nn

from sweepd.agents.networks.activation import activation_of, activation_tensor
from sweepd.agents.networks.convolution import layers, pixels
from sweepd.agents.networks.initial import ppo_actor, ppo_critic
from sweepd.agents.networks.items import item_facts, new_item_weights
from sweepd.agents.networks.normaliser import checked_normaliser, clip_of
from sweepd.agents.networks.portable import OrthogonalInDouble
from sweepd.agents.networks.seats import SEAT_COLUMN, prefix_of
from sweepd.agents.networks.shape import PER_SEAT, Shape
from sweepd.agents.networks.weights import Leaves, StateDict, flat_size, leaf_views
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.support.errors import InputError

# Tensors of ElegantRL's modules of which a member has one, also with policies per seat.
_NORMALISERS = {"state_avg", "state_std", "value_avg", "value_std"}


class Population:
    """Stacked weights and normalisers of G slots; empty slots hold zeros.

    Attributes:
        flat: (2, G, P) weights, of all sets of a member (`Shape.sets_per_member`).
        weights: views of `flat`.
        state_avg: (G, 1, obs_dim); observations are normalised as (obs - avg) / std.
        state_std: (G, 1, obs_dim).
        value_avg: (G, 1, 1); values are the critic's output * std + avg.
        value_std: (G, 1, 1).
        popart: (G, 1, 1) bool, members whose value normaliser follows the returns.
        averages: (G, P), running means of the actors' weights.
        averaged: (G, 1) bool, members whose running mean acts in evaluations and is exported.
    """

    def __init__(self, shape: Shape, device: torch.device) -> None:
        self.shape = shape
        self.device = device
        size = shape.sets_per_member * flat_size(shape)
        self.flat = torch.zeros(2, shape.slots, size, device=device)
        self.weights = leaf_views(self.flat, shape)
        self.state_avg = torch.zeros(shape.slots, 1, shape.obs_dim, device=device)
        self.state_std = torch.ones(shape.slots, 1, shape.obs_dim, device=device)
        self.value_avg = torch.zeros(shape.slots, 1, 1, device=device)
        self.value_std = torch.ones(shape.slots, 1, 1, device=device)
        self.popart = torch.zeros(shape.slots, 1, 1, dtype=torch.bool, device=device)
        self.averages = torch.zeros_like(self.flat[0])
        self.averaged = torch.zeros(shape.slots, 1, dtype=torch.bool, device=device)

    def new_member(
        self, slot: int, seed: int, initial_log_std: float, state_avg: Tensor, state_std: Tensor
    ) -> None:
        """Initialise a member as ElegantRL's own constructors do with this seed.

        (The last bits of orthogonal matrices differ: `OrthogonalInDouble`.)

        Of policies per seat, this is the first one; the other has a seed derived from it.

        Args:
            slot: where.
            seed: of the weights.
            initial_log_std: of the Gaussian.
            state_avg: (state_dim,) or (obs_dim,); missing privileged columns are not normalised.
            state_std: likewise.

        Raises:
            InputError: the normaliser is not valid.
        """
        shape, networks = self.shape, _new_networks(self.shape, seed, initial_log_std)
        if shape.policies == PER_SEAT:
            others = _new_networks(shape, derive_seed(seed, "second seat"), initial_log_std)
            for network, other in zip(networks, others, strict=True):
                network |= {
                    prefix_of(1) + name: part
                    for name, part in other.items()
                    if name not in _NORMALISERS
                }
        avg, std = checked_normaliser(shape, state_avg, state_std)
        for network, columns in zip(networks, (shape.state_dim, shape.obs_dim), strict=True):
            network |= {"state_avg": avg[:columns], "state_std": std[:columns]}
        self.import_member(slot, networks[0] | _facts(shape), networks[1])

    def value_unit(self) -> Tensor:
        """Return (G, 1, 1), the unit of value errors: value_std with return scaling, else 1."""
        return torch.where(self.popart & (self.value_std > 0), self.value_std, 1.0)

    def inputs(self, obs: Tensor) -> Tensor:
        """Return the networks' inputs for stored observations (G, rows, obs_dim).

        Those are normalised already, except for uint8 ones.
        """
        if self.shape.image_shape is not None:
            return pixels(obs, self.state_avg, self.state_std)
        if obs.dtype != torch.uint8:
            return obs
        # Converted first: on CPUs, a subtraction of mixed types takes up to ten times as long.
        return obs.to(self.state_avg.dtype).sub_(self.state_avg).div_(self.state_std)

    def average(self, rate: Tensor) -> None:
        """Move the running means towards the present weights, which count `rate`, (G, 1)."""
        moved = torch.lerp(self.averages, self.flat[0], rate)
        # Others keep every bit, so that a member's state does not depend on its company.
        self.averages.copy_(torch.where(self.averaged, moved, self.averages))

    def acting(self, slots: slice = slice(None)) -> Tensor:
        """Return a copy of the slots' weights, (2, …), with the running means of averaged actors."""
        actors, critics = self.flat[:, slots]
        actors = torch.where(self.averaged[slots], self.averages[slots], actors)
        return torch.stack((actors, critics))

    def clear(self, slot: int) -> None:
        """Reset a slot."""
        self.flat[:, slot] = 0
        self.averages[slot] = 0
        self.state_avg[slot], self.state_std[slot] = 0, 1
        self.value_avg[slot], self.value_std[slot] = 0, 1

    def export_member(self, slot: int) -> tuple[StateDict, StateDict]:
        """Return (actor, critic), CPU copies in the form of ElegantRL's `state_dict`s.

        The weights of an averaged actor are its running mean. The networks load into `ActorPPO` (or
        `ActorDiscretePPO`) and `CriticPPO`. Tensors that those do not have:

        - several choices per action: `action_dims` (choices,) int64, their sizes, in the actor; and
        of autoregressive policies `chain.k.weight` (size of choice k, sizes of those before it),
        which times the one-hot earlier choices is added to choice k's logits;
        - images: `conv.0.weight`, `conv.0.bias`, … as in torch's Conv2d, with ReLU after each,
        before `net.0`; in the actor also `image_shape` (3,) and `conv_strides`, int64;
        - items: `items.embedding` (vocabulary, width), whose row 0 is 0, `items.weight` (width,
        facts + features; if there are any) and `items.bias` (width,); the vector of an item is the
        ReLU of their sum (`sweepd.agents.networks.items`). `net.0` reads the vectors of all places,
        their sums per group, and the plain columns. In the actor also `items.groups` (groups, 1 +
        features) int64, the number of places and which features the items have, and `items.facts`
        (vocabulary, facts; if there are any);
        - recurrent networks: `rnn.weight_ih`, … as in torch's GRUCell (3 gates) or LSTMCell (4
        gates), between the last ReLU and the last layer;
        - a running scale: in the actor `state_clip` (1,), the bound of the numbers that it reads,
        (obs - state_avg) / state_std;
        - another activation than ReLU: in the actor `activation` (1,) int64, its index in
        `sweepd.agents.networks.activation.ACTIVATIONS`;
        - policies per seat: all weights again, of the second set, as `seat1.net.0.weight`, …; in
        the actor also `seat_column` (1,) int64, the column that says where they apply.
        """
        alone, flat = replace(self.shape, slots=1), self.acting(slice(slot, slot + 1))
        own_actor, own_critic = _named(leaf_views(flat, alone), 0, alone)
        actor = self._complete(slot, own_actor)
        critic = _turned_parts(own_critic) | {
            "state_avg": self.state_avg[slot, 0],
            "state_std": self.state_std[slot, 0],
            "value_avg": self.value_avg[slot, 0],
            "value_std": self.value_std[slot, 0],
        }
        return _copies(actor), _copies(critic)

    def present_actor(self, slot: int) -> StateDict:
        """Return an actor in the form of `export_member`, with its present weights, as views."""
        return self._complete(slot, _named(self.weights, slot, self.shape)[0])

    def _complete(self, slot: int, parts: StateDict) -> StateDict:
        """Add what an exported actor has besides its weights."""
        columns = self.shape.state_dim
        return {
            **_turned_parts(parts),
            **_facts(self.shape),
            "state_avg": self.state_avg[slot, 0, :columns],
            "state_std": self.state_std[slot, 0, :columns],
        }

    def import_member(
        self, slot: int, actor: Mapping[str, Tensor], critic: Mapping[str, Tensor]
    ) -> None:
        """Load networks, given as `export_member` returns them, into a slot.

        Raises:
            InputError: names, sizes or normalisers do not fit.
        """
        shape = self.shape
        if (kind := activation_of(actor)) != shape.activation:
            raise InputError(f"The actor's activation is {kind}, not {shape.activation}.")
        stacked = _named(self.weights, slot, shape)
        self._check_network("actor", actor, stacked[0], set(_facts(shape)))
        self._check_network("critic", critic, stacked[1], {"value_avg", "value_std"})
        for name, fact in _facts(shape).items():
            if not torch.equal(actor[name], fact):
                raise InputError(
                    f"The actor's {name} is {actor[name].tolist()}, not {fact.tolist()}."
                )
        avg, std = checked_normaliser(shape, critic["state_avg"], critic["state_std"])
        own = checked_normaliser(shape, actor["state_avg"], actor["state_std"])
        columns = shape.state_dim
        pairs = zip(own, (avg, std), strict=True)
        if not all(torch.equal(part[:columns], theirs[:columns]) for part, theirs in pairs):
            raise InputError(
                "The actor's state_avg and state_std differ from the critic's; a member has one "
                "normaliser."
            )
        # Everything has been checked: from here on, nothing raises.
        self.clear(slot)
        for given, parts in zip((actor, critic), stacked, strict=True):
            for name, part in parts.items():
                _turned(name, part).copy_(given[name])
        self.averages[slot] = self.flat[0, slot]
        self.state_avg[slot, 0], self.state_std[slot, 0] = avg.to(self.device), std.to(self.device)
        self.value_avg[slot, 0], self.value_std[slot, 0] = critic["value_avg"], critic["value_std"]

    def _check_network(
        self, role: str, given: Mapping[str, Tensor], parts: StateDict, others: set[str]
    ) -> None:
        """Raise InputError unless `given` has the weights `parts` and the tensors `others`."""
        wanted = {*parts, "state_avg", "state_std", *others}
        if set(given) != wanted:
            raise InputError(
                f"The {role}'s tensors should be {sorted(wanted)}, and are {sorted(given)}."
            )
        for name, part in parts.items():
            if given[name].shape != _turned(name, part).shape:
                raise InputError(
                    f"The {role}'s {name} is {tuple(given[name].shape)}, which does not fit "
                    f"{self.shape}."
                )


def _new_networks(shape: Shape, seed: int, initial_log_std: float) -> list[StateDict]:
    """Return the weights of a new actor and critic. See `Population.new_member`."""
    actor_in, critic_in = shape.inputs
    # Layers draw their weights from torch's global generator: seed a fork of it.
    # The order (actor, critic, own layers) decides the numbers and must not change.
    with torch.random.fork_rng(devices=[]), OrthogonalInDouble():
        torch.manual_seed(seed)
        actor = ppo_actor(shape.net_dims, actor_in, shape.action_dim, discrete=shape.discrete)
        critic = ppo_critic(shape.net_dims, critic_in)
        networks: list[StateDict] = [
            {**network.state_dict(), **_own_weights(shape)} for network in (actor, critic)
        ]
    if not shape.discrete:
        networks[0]["action_std_log"].fill_(initial_log_std)
    chain = (
        zip(accumulate(shape.choices), shape.choices[1:], strict=False)
        if shape.autoregressive
        else ()
    )
    for choice, (earlier, size) in enumerate(chain, start=1):
        # Zeros: choices are independent at first.
        networks[0][f"chain.{choice}.weight"] = torch.zeros(size, earlier)
    return networks


def _named(weights: Leaves, slot: int, shape: Shape) -> tuple[StateDict, StateDict]:
    """Return the leaves of a slot's actors and critics by name; matrices are (in, out)."""
    actor, critic = _named_set(weights, slot * shape.sets_per_member, shape)
    for seat in range(1, shape.sets_per_member):
        others = _named_set(weights, slot * shape.sets_per_member + seat, shape)
        for role, other in zip((actor, critic), others, strict=True):
            role |= {prefix_of(seat) + name: part for name, part in other.items()}
    return actor, critic


def _named_set(weights: Leaves, at: int, shape: Shape) -> tuple[StateDict, StateDict]:
    """Return the leaves of one set of weights by ElegantRL's names."""
    actor: StateDict = {} if shape.discrete else {"action_std_log": weights.log_std[at]}
    critic: StateDict = {}
    for role, row in ((actor, at), (critic, at + shape.sets)):
        role["net.0.weight"] = weights.actor_in[at] if role is actor else weights.critic_in[at]
        for layer, matrix in enumerate(weights.hidden, start=1):
            role[f"net.{2 * layer}.weight"] = matrix[row]
        for layer, bias in enumerate(weights.bias):
            role[f"net.{2 * layer}.bias"] = bias[row, 0]
        for index, conv in enumerate(layers(shape.image_shape)):
            filters = weights.filters[index][row].view(
                conv.channels, conv.channels_in, conv.kernel, conv.kernel
            )
            role |= {
                f"conv.{index}.weight": filters,
                f"conv.{index}.bias": weights.filter_bias[index][row, 0],
            }
        for name, leaf in zip(
            ("weight_ih", "weight_hh", "bias_ih", "bias_hh"), weights.cell, strict=False
        ):
            role[f"rnn.{name}"] = leaf[row] if "weight" in name else leaf[row, 0]
        if weights.items:
            embedding, weight, bias = (leaf[row] for leaf in weights.items)
            role |= {"items.embedding": embedding, "items.bias": bias[0]}
            role |= {"items.weight": weight} if len(weight) else {}
    top = f"net.{2 * shape.net_depth}"
    actor |= {f"{top}.weight": weights.actor_out[at], f"{top}.bias": weights.actor_out_bias[at, 0]}
    actor |= {
        f"chain.{choice}.weight": leaf[at] for choice, leaf in enumerate(weights.chain, start=1)
    }
    critic |= {
        f"{top}.weight": weights.critic_out[at],
        f"{top}.bias": weights.critic_out_bias[at, 0],
    }
    return actor, critic


def _facts(shape: Shape) -> StateDict:
    """Return the fields of the shape that an actor's weights do not determine, as tensors."""
    facts: StateDict = {**clip_of(shape), **activation_tensor(shape.activation)}
    if shape.action_dims:
        facts["action_dims"] = torch.tensor(shape.action_dims)
    if shape.image_shape is not None:
        facts["image_shape"] = torch.tensor(shape.image_shape)
        facts["conv_strides"] = torch.tensor([layer.stride for layer in layers(shape.image_shape)])
    if shape.policies == PER_SEAT:
        facts[SEAT_COLUMN] = torch.tensor([shape.seat_column])
    return facts if shape.items is None else facts | item_facts(shape.items)


def _own_weights(shape: Shape) -> StateDict:
    """Return new weights of the layers that ElegantRL's networks do not have."""
    filters = [
        nn.Conv2d(layer.channels_in, layer.channels, layer.kernel)
        for layer in layers(shape.image_shape)
    ]
    own: dict[str, nn.Module] = {"conv": nn.ModuleList(filters)}
    if shape.recurrent:
        own["rnn"] = {"gru": nn.GRUCell, "lstm": nn.LSTMCell}[shape.recurrent](
            shape.net_width, shape.net_width
        )
    weights: StateDict = nn.ModuleDict(own).state_dict()
    if shape.items is not None:
        weights |= new_item_weights(shape.items, shape.item_width)
    return weights


def _turned(name: str, part: Tensor) -> Tensor:
    """Return a leaf in the layout of ElegantRL's and torch's modules: matrices as (out, in)."""
    return part.mT if part.dim() == 2 and "weight" in name else part


def _turned_parts(parts: StateDict) -> StateDict:
    return {name: _turned(name, part) for name, part in parts.items()}


def _copies(tensors: StateDict) -> StateDict:
    return {
        name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()
    }
