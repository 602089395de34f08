"""The networks of PPO's members: an actor and a critic each, with import and export."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sweepd.agents.networks.initial import new_weights, own_weights, seeded
from sweepd.agents.networks.net import Net, Pair, StateDict, check_tensors
from sweepd.agents.networks.normaliser import checked_normaliser
from sweepd.agents.networks.shape import PER_SEAT, Shape
from sweepd.agents.networks.spec import SECOND_SEAT, specs_of
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.support.errors import InputError


class Population:
    """The networks and normalisers of G slots; empty slots hold zeros.

    Attributes:
        flat: (2, G, P) weights: actors, then critics, of all sets of a member.
        actor: the actors; they read the first `state_dim` columns of an observation.
        pair: both, as they learn.
        critic: the critics; they read all columns. The columns that both read have one normaliser.
        popart: (G, 1, 1) bool, members whose value normaliser follows the returns.
        averages: (G, P), running means of the actors' weights.
        averaged: (G, 1) bool, members whose running mean acts in evaluations and is exported.
    """

    def __init__(self, shape: Shape, device: torch.device) -> None:
        self.shape, self.device = shape, device
        specs = specs_of(shape)
        size = max(spec.policies * spec.size for spec in specs)
        self.flat = torch.zeros(2, shape.slots, size, device=device)
        self.actor, self.critic = (
            Net(spec, own) for spec, own in zip(specs, self.flat, strict=True)
        )
        self.pair = Pair(self.actor, self.critic, self.flat)
        self.popart = torch.zeros(shape.slots, 1, 1, dtype=torch.bool, device=device)
        self.averages = torch.zeros_like(self.flat[0])
        self.averaged = torch.zeros(shape.slots, 1, dtype=torch.bool, device=device)

    @property
    def value_avg(self) -> Tensor:
        """(G, 1, 1); values are the critic's output * value_std + value_avg."""
        return self.critic.normalisers["value_avg"]

    @property
    def value_std(self) -> Tensor:
        """(G, 1, 1)."""
        return self.critic.normalisers["value_std"]

    def new_member(
        self, slot: int, seed: int, initial_log_std: float, state_avg: Tensor, state_std: Tensor
    ) -> None:
        """Initialise a member as ElegantRL's own constructors do with this seed.

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
            for net, network, other in zip(self.pair.nets, networks, others, strict=True):
                weights = other.keys() - net.normalisers
                network |= {SECOND_SEAT + name: other[name] for name in weights}
        avg, std = checked_normaliser(shape, state_avg, state_std)
        for network, columns in zip(networks, (shape.state_dim, shape.obs_dim), strict=True):
            network |= {"state_avg": avg[:columns], "state_std": std[:columns]}
        self.import_member(slot, *networks)

    def value_unit(self) -> Tensor:
        """Return (G, 1, 1), the unit of value errors: value_std with return scaling, else 1."""
        return torch.where(self.popart & (self.value_std > 0), self.value_std, 1.0)

    def average(self, rate: Tensor) -> None:
        """Move the running means towards the present weights, which count `rate`, (G, 1)."""
        moved = torch.lerp(self.averages, self.flat[0], rate)
        # Others keep every bit, so that a member's state does not depend on its company.
        self.averages.copy_(torch.where(self.averaged, moved, self.averages))

    def acting(self) -> Net:
        """Return copies of the actors that act in evaluations: of some, the running means."""
        net = self.actor.copy()
        net.flat.copy_(torch.where(self.averaged, self.averages, net.flat))
        return net

    def clear(self, slot: int) -> None:
        """Reset a slot."""
        for net in self.pair.nets:
            net.clear(slot)
        self.averages[slot] = 0

    def export_member(self, slot: int) -> tuple[StateDict, StateDict]:
        """Return (actor, critic), CPU copies in the form of ElegantRL's `state_dict`s.

        The weights of an averaged actor are its running mean. `specs_of` says what the tensors
        are; without further layers, they load into `ActorPPO` (or `ActorDiscretePPO`) and
        `CriticPPO`.
        """
        own = slice(slot, slot + 1)
        flat = torch.where(self.averaged[own], self.averages[own], self.actor.flat[own])
        normalisers = {name: part[own] for name, part in self.actor.normalisers.items()}
        return Net(self.actor.spec, flat, normalisers).member(0), self.critic.member(slot)

    def import_member(
        self, slot: int, actor: Mapping[str, Tensor], critic: Mapping[str, Tensor]
    ) -> None:
        """Load networks, given as `export_member` returns them, into a slot.

        Raises:
            InputError: names, sizes or normalisers do not fit.
        """
        shape = self.shape
        for net, given in zip(self.pair.nets, (actor, critic), strict=True):
            check_tensors(net.spec, given)
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
        self.actor.put(slot, actor)
        self.critic.put(slot, critic)
        self.averages[slot] = self.flat[0, slot]


def _new_networks(shape: Shape, seed: int, initial_log_std: float) -> list[StateDict]:
    """Return the weights of a new actor and critic. See `Population.new_member`."""
    specs = specs_of(shape)
    # The order (actor, critic, own layers of each) decides the numbers and must not change.
    with seeded(seed):
        networks = [new_weights(spec) for spec in specs]
        for network, spec in zip(networks, specs, strict=True):
            network |= own_weights(spec)
    if not shape.if_discrete:
        networks[0]["action_std_log"].fill_(initial_log_std)
    return networks
