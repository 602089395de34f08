"""Actors of one architecture that play against every member, in one stacked forward pass.

Every member has K places for actors, all of which compute all games of the member; each game then
takes the outputs of one place. So no tensor shape depends on who plays whom, and a game's numbers
do not depend on the other games or members.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from sweepd.agents.networks.seats import is_second, own_output
from sweepd.agents.networks.weights import aligned
from torch import Tensor

from sweepd.agents.algorithms.sac import LOG_STD
from sweepd.agents.networks.activation import activate_
from sweepd.agents.networks.distributions import GREATEST, LEAST
from sweepd.agents.networks.items import Lookup, item_sizes
from sweepd.agents.networks.recurrence import Cells
from sweepd.agents.policy.members import (
    ACTION_DIMS,
    CELL,
    EMBEDDING,
    IMAGE_SHAPE,
    Member,
    clip_in,
    items_of,
    kind_of,
    layers_of,
    recurrent_size,
    seat_column_of,
    seats_of,
)
from sweepd.envs.core.items import Items
from sweepd.envs.support.errors import InputError


class Architecture(NamedTuple):
    """What actors must have in common to be computed together, and how they act.

    Attributes:
        gives: output of the last layer, as in `sweepd.agents.policy.members.NetworkKind`.
        sizes: (in, out) of the linear layers, in order.
        activations: after each of them; "" is none.
        memory: size of the recurrent state; 0 without one.
        choices: sizes of the choices of an action of several; () for a single one, or numbers.
        autoregressive: whether a choice depends on the earlier ones.
        items: layout of the items in observations; None: they have none.
        item_width: numbers that encode an item.
        seat_column: column that says which of two policies per seat acts; None: there is one.
        clip: bound of normalised observations; infinite without one.
    """

    gives: str
    sizes: tuple[tuple[int, int], ...]
    activations: tuple[str, ...]
    memory: int
    choices: tuple[int, ...] = ()
    autoregressive: bool = False
    items: Items | None = None
    item_width: int = 0
    seat_column: int | None = None
    clip: float = math.inf

    @property
    def state_dim(self) -> int:
        return self.sizes[0][0] if self.items is None else self.items.columns

    @property
    def action_dim(self) -> int:
        """Numbers of an action, or the options of all its choices."""
        outputs = self.sizes[-1][1]
        return outputs // 2 if self.gives == "means and deviations" else outputs

    @property
    def discrete(self) -> bool:
        return self.gives in {"logits", "values"}

    @property
    def cell(self) -> str:
        """The kind of recurrent cell, or ""."""
        if not self.memory:
            return ""
        return "gru" if self.memory == self.sizes[-1][0] else "lstm"


def architecture_of(member: Member, name: str) -> Architecture:
    """Return the architecture of an actor.

    Args:
        member: its tensors (`sweepd.agents.policy.members`).
        name: of the actor, for the message.

    Raises:
        InputError: such actors cannot be opponents.
    """
    layers = layers_of(member)
    faults = {"is not a network": not layers, "reads images": IMAGE_SHAPE in member}
    for what, found in faults.items():
        if found:
            raise InputError(f"{name} cannot be an opponent: it {what}")
    weights = [member[f"{layer}.weight"] for layer, _ in layers]
    return Architecture(
        kind_of(member).gives,
        tuple((weight.shape[1], weight.shape[0]) for weight in weights),
        tuple(activation for _, activation in layers),
        recurrent_size(member),
        tuple(member[ACTION_DIMS].tolist()) if ACTION_DIMS in member else (),
        _CHAIN.format(1) in member,
        items_of(member),
        member[EMBEDDING].shape[1] if EMBEDDING in member else 0,
        seat_column_of(member),
        clip_in(member),
    )


class Bank:
    """K places for actors of one architecture, for each of G members; empty places hold zeros.

    Attributes:
        architecture: of all actors.
        flat: (G, K, P), the weights. A row is an actor, with all of its policies.
    """

    def __init__(
        self, architecture: Architecture, members: int, places: int, device: torch.device
    ) -> None:
        self.architecture = architecture
        sizes = _leaf_sizes(architecture)
        total = sum(aligned(rows * columns) for rows, columns in sizes.values())
        # Policies per seat follow each other, as if they were actors of their own.
        self._policies = 1 if architecture.seat_column is None else 2
        self.flat = torch.zeros(members, places, self._policies * total, device=device)
        self._networks = self.flat.view(members, places * self._policies, total)
        self._leaves, start = {}, 0
        for name, (rows, columns) in sizes.items():
            part = self._networks[..., start : start + rows * columns]
            self._leaves[name] = part.view(*self._networks.shape[:2], rows, columns)
            start += aligned(rows * columns)
        # An empty place divides by 1, so that its outputs are finite.
        self._leaves["state_std"].fill_(1.0)
        self._cells: Cells | None = None
        items = architecture.items
        self._lookup = None if items is None else Lookup(items, self.flat.dtype, device)

    def put(self, place: int, weights: Mapping[str, Tensor]) -> None:
        """Write an actor of every member into a place.

        Args:
            place: from 0.
            weights: a member's tensors, each with (G,) or nothing before its own dimensions.
        """
        for at, policy in enumerate(seats_of(weights), place * self._policies):
            self._put(at, policy)

    def _put(self, at: int, weights: Mapping[str, Tensor]) -> None:
        """Write a policy of every member into network `at`."""
        for own, name in _names(self.architecture, weights).items():
            given, leaf = weights[name], self._leaves[own][:, at]
            if own.startswith(("weight", "chain")):
                leaf.copy_(given.mT)
            elif own.startswith("state"):
                # Privileged columns, which only critics read, come last.
                leaf.copy_(given.unsqueeze(-2)[..., : self.architecture.state_dim])
            else:
                leaf.copy_(given if own in {"log_std", "embedding"} else given.unsqueeze(-2))

    def outputs(self, obs: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Run all actors on all games.

        Args:
            obs: (G, games, state_dim).
            memory: (G, games, size), the recurrent states; None without them.

        Returns:
            (G, K, games, outputs) and the next recurrent states (G, K, games, size).
        """
        leaves, plan = self._leaves, self.architecture
        hidden = (obs.unsqueeze(1) - leaves["state_avg"]).div_(leaves["state_std"]).flatten(0, 1)
        if plan.clip < math.inf:
            hidden.clamp_(-plan.clip, plan.clip)
        if self._lookup is not None:
            encoder = [leaves[name].flatten(0, 1) for name in _ITEM_LEAVES]
            hidden = self._lookup.inputs(hidden, encoder)
        after = None
        last = len(plan.sizes) - 1
        for layer, activation in enumerate(plan.activations):
            if layer == last and memory is not None:
                hidden, after = self._step_cells(hidden, memory)
            weight, bias = (leaves[f"{part}{layer}"].flatten(0, 1) for part in ("weight", "bias"))
            hidden = torch.baddbmm(bias, hidden, weight)
            activate_(activation, hidden)
        outputs = hidden.view(*self._networks.shape[:2], *hidden.shape[1:])
        if plan.seat_column is not None:
            # (G, policies, K, games, outputs), of which each game takes those of its seat.
            members, _, *rest = outputs.shape
            by_policy = outputs.view(members, -1, self._policies, *rest).transpose(1, 2)
            outputs = own_output(by_policy, is_second(obs, plan.seat_column).unsqueeze(1))
        return outputs, after

    def output(
        self, obs: Tensor, place: Tensor, memory: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return (G, games, outputs) of one actor per game, and its next recurrent states.

        Args:
            obs: (G, games, state_dim).
            place: (G, games) int64, whose outputs.
            memory: as in `outputs`.
        """
        outputs, after = self.outputs(obs, memory)
        return _at(outputs, place), None if after is None else _at(after, place)

    def logits(self, output: Tensor, place: Tensor, choice: int, chosen: Tensor) -> Tensor:
        """Return (G, games, options), the logits (or values) of a choice.

        Args:
            output: as `output` returns it.
            place: likewise.
            choice: index of the choice.
            chosen: (G, games, choice) int64, the earlier choices.
        """
        sizes = self.architecture.choices
        if not sizes:
            return output
        logits = torch.split(output, list(sizes), -1)[choice]
        if not self.architecture.autoregressive or not choice:
            return logits
        chain = self._leaves[_CHAIN.format(choice)]
        members, places, earlier, options = chain.shape
        # The chain's row of an option of choice k is that option's, after those of earlier choices.
        actor = torch.arange(members, device=place.device).unsqueeze(1) * places + place
        rows, first = chain.reshape(-1, options), 0
        for index in range(choice):
            logits = logits + rows[actor * earlier + first + chosen[..., index]]
            first += sizes[index]
        return logits

    def act(
        self, obs: Tensor, place: Tensor, noise: Tensor, samples: Tensor, memory: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the actions of one actor per game, of numbers or one choice without masks.

        Args:
            obs: (G, games, state_dim).
            place: (G, games) int64, whose action.
            noise: (G, games, k) float64 uniform in [0, 1).
            samples: (G, games) bool, whether the action is a sample instead of the mode. Value
                networks always take the best action.
            memory: as in `outputs`.

        Returns:
            (G, games, action_dim) in [-1, 1], or (G, games) int64; and the actors' next
            recurrent states (G, games, size).
        """
        output, after = self.output(obs, place, memory)
        if not self.architecture.discrete:
            return self._numbers(output, place, noise, samples), after
        if self.architecture.gives == "values":
            return output.nan_to_num(nan=0.0).argmax(-1), after
        return draw_option(output.nan_to_num(nan=0.0), noise[..., :1], samples), after

    def _numbers(self, output: Tensor, place: Tensor, noise: Tensor, samples: Tensor) -> Tensor:
        if self.architecture.gives == "means":
            mean, log_std = output, _at(self._leaves["log_std"], place)
        else:
            mean, log_std = output.chunk(2, -1)
            log_std = log_std.clamp(*LOG_STD)
        # Inverse of the normal distribution function, in float64 for its tails.
        uniform = noise[..., : mean.shape[-1]].clamp(LEAST, GREATEST)
        normal = torch.where(samples.unsqueeze(-1), torch.special.ndtri(uniform), 0.0)
        # A diverged member's NaN must not reach the game.
        action = mean + log_std.exp() * normal.to(mean.dtype)
        return action.tanh().nan_to_num_(nan=0.0)

    def _step_cells(self, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Advance the recurrent layer: hidden (G * K, games, width)."""
        networks, games, width = hidden.shape
        if self._cells is None:
            # `Cells` holds two networks per slot (actor and critic); an odd one is left over.
            slots = -(-networks // 2)
            kind = self.architecture.cell
            self._cells = Cells(kind, slots, width, games, 1, hidden.device)
        every = slice(0, networks)
        state = self._cells.state[every].view(*self.flat.shape[:2], games, -1)
        state.copy_(memory.unsqueeze(1))
        leaves = [self._leaves[name].flatten(0, 1) for name in _CELL_LEAVES]
        self._cells.forward(leaves, hidden, every)
        return self._cells.output[every], state


def draw_option(logits: Tensor, uniform: Tensor, samples: Tensor) -> Tensor:
    """Return options, (...) int64, drawn from logits or the best ones.

    Args:
        logits: (..., options), finite.
        uniform: (..., 1) float64 uniform in [0, 1).
        samples: (...) bool, where they are drawn.
    """
    # Inverse transform sampling, as in `sweepd.agents.networks.distributions.Categorical`.
    below = torch.exp(logits - logits.amax(-1, keepdim=True)).cumsum(-1)
    uniform = uniform.clamp(max=GREATEST).to(below.dtype)
    return torch.where(samples, (below <= uniform * below[..., -1:]).sum(-1), logits.argmax(-1))


_CHAIN = "chain.{}.weight"  # of choice k, as in `sweepd.agents.policy.members`
_ITEM_LEAVES = ("embedding", "weight_items", "bias_items")
_CELL_LEAVES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def _leaf_sizes(architecture: Architecture) -> dict[str, tuple[int, int]]:
    """Return (rows, columns) of the parts of an actor's row in `Bank.flat`, in order."""
    sizes = {"state_avg": (1, architecture.state_dim), "state_std": (1, architecture.state_dim)}
    if architecture.items is not None:
        parts = item_sizes(architecture.items, architecture.item_width)
        sizes |= dict(zip(_ITEM_LEAVES, parts, strict=True))
    for layer, (inputs, outputs) in enumerate(architecture.sizes):
        sizes |= {f"weight{layer}": (inputs, outputs), f"bias{layer}": (1, outputs)}
    if architecture.gives == "means":
        sizes["log_std"] = (1, architecture.action_dim)
    if architecture.autoregressive:
        # As in `Leaves.chain`, (options of the earlier choices, options).
        for choice, size in enumerate(architecture.choices):
            if choice:
                sizes[_CHAIN.format(choice)] = (sum(architecture.choices[:choice]), size)
    if architecture.memory:
        width = architecture.sizes[-1][0]
        gates = {"gru": 3, "lstm": 4}[architecture.cell] * width
        sizes |= {"weight_ih": (width, gates), "weight_hh": (width, gates)}
        sizes |= {"bias_ih": (1, gates), "bias_hh": (1, gates)}
    return sizes


def _names(architecture: Architecture, weights: Member) -> dict[str, str]:
    """Return the tensors' names in a member by those of `_leaf_sizes`."""
    names = {"state_avg": "state_avg", "state_std": "state_std"}
    if architecture.items is not None:
        own = zip(_ITEM_LEAVES, (EMBEDDING, "items.weight", "items.bias"), strict=True)
        names |= {leaf: name for leaf, name in own if name in weights}
    for layer, (name, _) in enumerate(layers_of(weights)):
        names |= {f"weight{layer}": f"{name}.weight", f"bias{layer}": f"{name}.bias"}
    if architecture.gives == "means":
        names["log_std"] = "action_std_log"
    if architecture.autoregressive:
        chains = [_CHAIN.format(choice) for choice in range(1, len(architecture.choices))]
        names |= dict(zip(chains, chains, strict=True))
    if architecture.memory:
        names |= dict(zip(_CELL_LEAVES, CELL, strict=True))
    return names


def _at(every: Tensor, place: Tensor) -> Tensor:
    """Return (G, games, n): one place's row per game, from (G, K, games or 1, n)."""
    if every.shape[2] == 1:
        every = every.expand(-1, -1, place.shape[1], -1)
    index = place[:, None, :, None].expand(-1, 1, -1, every.shape[-1])
    return every.gather(1, index).squeeze(1)
