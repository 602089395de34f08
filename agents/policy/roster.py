"""Opponents that are policies: the member itself, its past selves, other members, champions.

Scripted players are part of the roster too. All actors of one architecture act in one stacked
forward pass (`agents.policy.bank`); usually there is only one architecture, that of the members.

`self` and `others` play with the weights of the present rollout. `past` is one of the member's own
snapshots, drawn uniformly from those held when the episode begins; without any, it is `self`. A
snapshot is taken every `past_interval` rollouts, and replaces the oldest one once `past_size` are
held; an episode against the oldest one then goes on against the new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from agents.policy.bank import Architecture, Bank, architecture_of
from agents.policy.frozen import FrozenPolicy
from agents.policy.members import Member, check_members
from envs.core.policies import Policies
from envs.games.curriculum import LEARNERS, OTHERS, PAST
from envs.games.opponents import Opponents, Scripted, ScriptedPlayer
from envs.support.errors import InputError


class Layout(NamedTuple):
    """The observations and actions of a game's seat.

    Attributes:
        state_dim: columns of an observation.
        action_dim: numbers of an action, or its options.
        discrete: whether an action is one of several options.
    """

    state_dim: int
    action_dim: int
    discrete: bool

    def __str__(self) -> str:
        actions = f"one of {self.action_dim} actions" if self.discrete else f"{self.action_dim}"
        return f"{self.state_dim} observations to {actions}{'' if self.discrete else ' numbers'}"


@dataclass(frozen=True)
class Champion:
    """A frozen actor as an opponent.

    Attributes:
        actor: its tensors (`agents.policy.members`), or a policy of one member.
        sampled: whether its actions are samples; else they are deterministic.
    """

    actor: Member | FrozenPolicy
    sampled: bool = False


@dataclass
class _Ring:
    """One member's past selves; the snapshots themselves are in the bank.

    Attributes:
        count: snapshots taken so far; the next one goes to place `count % size`.
        taken: the member's rollouts at the last one.
        waiting: (held, P), restored snapshots before the bank exists.
    """

    count: int = 0
    taken: int = 0
    waiting: Tensor | None = None


class Roster(Opponents):
    """Scripted players, then `self`, `past` and `others` where asked for, then champions."""

    def __init__(
        self,
        members: int,
        layout: Layout,
        *,
        scripted: Mapping[str, ScriptedPlayer] | None = None,
        learners: Sequence[str] = (),
        champions: Mapping[str, Champion] | None = None,
        past_interval: int = 10,
        past_size: int = 8,
        together: int = 1,
        recurrent_size: int = 0,
        sampled: bool = True,
        device: torch.device | str = "cpu",
    ) -> None:
        """Set up the roster; the members' weights arrive with the first `begin_rollout`.

        Args:
            members: slots of the program.
            layout: of the game.
            scripted: scripted players by name.
            learners: which of `self`, `past` and `others` are opponents.
            champions: frozen actors by name.
            past_interval: rollouts of a member between snapshots.
            past_size: snapshots of a member that are held.
            together: number of consecutive members that form a trial, for `others`.
            recurrent_size: size of the members' recurrent state, if they have one.
            sampled: whether the actions of `learners` are samples; else they are deterministic.
            device: device of the environment and the program.

        Raises:
            InputError: a champion does not fit the game, or an argument is not valid.
        """
        unknown = sorted(set(learners) - set(LEARNERS))
        if unknown:
            raise InputError(f"opponent {unknown[0]!r} is not one of {', '.join(LEARNERS)}")
        if past_interval < 1 or past_size < 1:
            raise InputError(
                "past selves need an interval and a size of 1 or more, and these are "
                f"{past_interval} and {past_size}"
            )
        if members % together or (OTHERS in learners and together < 2):
            raise InputError(
                "opponent 'others' needs trials of at least two members, and there are "
                f"{members} members in trials of {together}"
            )
        self._learners = [name for name in LEARNERS if name in learners]
        frozen = dict(champions or {})
        super().__init__([*(scripted or {}), *self._learners, *frozen], members, device)
        self._device, self._layout, self._together = torch.device(device), layout, together
        self._past_interval, self._past_size = past_interval, past_size
        self._scripted = Scripted(scripted, members, device) if scripted else None
        self._actors = {
            name: _fitting(name, champion.actor, layout) for name, champion in frozen.items()
        }
        samples = [
            frozen[name].sampled if name in frozen else sampled and name in self._learners
            for name in self.names
        ]
        self._samples = torch.tensor(samples, device=self._device)
        self._set_columns(recurrent_size)
        self._rings = [_Ring() for _ in range(members)]
        self._held = torch.zeros(members, 1, dtype=torch.float64, device=self._device)
        self._banks: list[Bank] = []
        # The members' architecture is known from their first weights.
        if not self._learners:
            self._build(None)

    def _set_columns(self, recurrent_size: int) -> None:
        """Lay out the memory: scripted players, drawn places, recurrent state."""
        scripted = self._scripted
        sizes = [architecture.memory for architecture, _ in self._actors.values()]
        self._state_size = max([recurrent_size, *sizes])
        self._drawn = [name for name in (PAST, OTHERS) if name in self._learners]
        self._scripted_memory = scripted.memory if scripted else 0
        self.memory = self._scripted_memory + len(self._drawn) + self._state_size
        # Players and actors share the random numbers of a game, as only one of them plays it.
        neural = 0
        if self._learners or self._actors:
            neural = 1 if self._layout.discrete else self._layout.action_dim
        self.uniforms = max(neural, scripted.uniforms if scripted else 0)

    # Playing.

    def begin(self, uniforms: Tensor) -> Tensor:
        """See `Opponents.begin`. Draws which past self and which other member plays."""
        parts = []
        if self._scripted:
            parts.append(self._scripted.begin(uniforms[:, : self._scripted.uniforms]))
        pick = uniforms[:, :1].reshape(len(self._rings), -1)
        for name in self._drawn:
            first = self._first_place(name)
            if name == PAST:
                drawn = (pick * self._held).floor() + first
                place = torch.where(self._held > 0, drawn, 0.0)
            else:
                place = (pick * (self._together - 1)).floor() + first
            parts.append(place.view(-1, 1))
        parts.append(uniforms.new_zeros(len(uniforms), self._state_size))
        return torch.cat(parts, 1)

    def act(
        self, obs: Tensor, chosen: Tensor, memory: Tensor, uniforms: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See `Opponents.act`.

        Raises:
            RuntimeError: members are opponents, and `begin_rollout` was never called.
        """
        if self._learners and not self._banks:
            raise RuntimeError("opponents that are members act after the first `begin_rollout`")
        own = self._scripted_memory
        before, drawn, state = torch.split(memory, [own, len(self._drawn), self._state_size], 1)
        controls: Tensor | None = None
        after = [drawn, state]
        if self._scripted:
            controls, kept = self._scripted.act(
                obs, chosen, before, uniforms[:, : self._scripted.uniforms]
            )
            after[0:0] = [kept]
        place = self._place_of[chosen]
        for column, name in enumerate(self._drawn):
            index = self.names.index(name)
            place = torch.where(chosen == index, drawn[:, column].long(), place)
        for index, bank in enumerate(self._banks):
            here = self._bank_of[chosen] == index
            size = bank.architecture.memory
            action, stepped = bank.act(
                self._by_member(obs.to(bank.flat.dtype)),
                # Games of other banks' actors take place 0, and drop its action.
                self._by_member(torch.where(here, place, 0)),
                self._by_member(uniforms),
                self._by_member(self._samples[chosen]),
                self._by_member(state[:, :size].to(bank.flat.dtype)) if size else None,
            )
            given = self.decode(action)
            if controls is None:
                controls = given
            else:
                mask = here.view(-1, *(1 for _ in given.shape[1:]))
                controls = torch.where(mask, given, controls)
            if stepped is not None:
                new = stepped.flatten(0, 1).to(state.dtype)
                after[-1] = torch.cat(
                    (torch.where(here.unsqueeze(1), new, after[-1][:, :size]), after[-1][:, size:]),
                    1,
                )
        assert controls is not None
        return controls, torch.cat(after, 1)

    # The members' weights and snapshots.

    @torch.no_grad()
    def begin_rollout(self, policies: Policies) -> None:
        """See `VecEnv.begin_rollout`: take over the present weights, and snapshots that are due."""
        if not self._learners:
            return
        weights = policies.acting_weights()
        if not self._banks:
            self._build(weights)
        bank = self._banks[0]
        bank.put(0, weights)
        if OTHERS in self._learners:
            first = self._first_place(OTHERS)
            bank.flat[:, first : first + self._together - 1] = bank.flat[self._others, 0]
        if PAST not in self._learners:
            return
        for member, ring in enumerate(self._rings):
            progress = policies.progress(member)
            rollouts = progress[0] if progress else 0
            # Not twice if a rollout that failed begins again.
            if rollouts and rollouts % self._past_interval == 0 and rollouts != ring.taken:
                place = self._first_place(PAST) + ring.count % self._past_size
                bank.flat[member, place] = bank.flat[member, 0]
                ring.count, ring.taken = ring.count + 1, rollouts
                self._held[member] = self._count_held(ring)

    def reset_member(self, member: int) -> None:
        """See `Opponents.reset_member`."""
        super().reset_member(member)
        self._set_ring(member, 0, 0, torch.zeros(0, 0))

    def get_member(self, member: int) -> dict[str, Tensor]:
        """See `Opponents.get_member`: the past selves that are held are part of a member."""
        own = super().get_member(member)
        if PAST not in self._learners:
            return own
        ring = self._rings[member]
        if self._banks:
            snapshots = self._snapshots(member)[: self._count_held(ring)]
        else:
            snapshots = torch.zeros(0, 0) if ring.waiting is None else ring.waiting
        counters = torch.tensor([ring.count, ring.taken])
        return own | {"past": snapshots, "past_counters": counters}

    def set_member(self, member: int, state: Mapping[str, Tensor]) -> None:
        """See `Opponents.set_member`.

        Raises:
            InputError: the member's past selves are of another architecture or ring.
        """
        if PAST in self._learners:
            count, taken = state["past_counters"].tolist()
            snapshots = state["past"]
            if len(snapshots) != min(count, self._past_size):
                raise InputError(
                    f"the member holds {len(snapshots)} past selves of {count} snapshots, which "
                    f"does not fit the size {self._past_size}"
                )
            self._set_ring(member, count, taken, snapshots)
        super().set_member(member, state)

    def _build(self, weights: Mapping[str, Tensor] | None) -> None:
        """Make the banks: the first one is that of the members, if they are opponents."""
        groups: dict[Architecture, list[str]] = {}
        if weights is not None:
            one = {name: part[0] for name, part in weights.items()}
            own = _fit("a member", architecture_of(one, "a member"), self._layout)
            if own.memory > self._state_size:
                raise InputError(
                    f"opponents that are members have a recurrent state of {own.memory} numbers, "
                    f"and the roster has room for {self._state_size}: pass its recurrent_size"
                )
            groups[own] = []
        for name, (architecture, _) in self._actors.items():
            groups.setdefault(architecture, []).append(name)
        place_of, bank_of = [0] * len(self.names), [-1] * len(self.names)
        for name in self._learners:
            bank_of[self.names.index(name)] = 0
        for index, (architecture, names) in enumerate(groups.items()):
            first = self._first_place("") if weights is not None and index == 0 else 0
            bank = Bank(architecture, len(self._rings), first + len(names), self._device)
            for place, name in enumerate(names, start=first):
                place_of[self.names.index(name)] = place
                bank_of[self.names.index(name)] = index
                bank.put(place, self._actors[name][1])
            self._banks.append(bank)
        self._place_of = torch.tensor(place_of, device=self._device)
        self._bank_of = torch.tensor(bank_of, device=self._device)
        self._others = _others(len(self._rings), self._together).to(self._device)
        for member, ring in enumerate(self._rings):
            if ring.waiting is not None:
                self._set_ring(member, ring.count, ring.taken, ring.waiting)

    def _first_place(self, name: str) -> int:
        """Return the first place of `past` or `others` in the members' bank, or that after all."""
        place = 1  # place 0: `self`
        for opponent, places in ((PAST, self._past_size), (OTHERS, self._together - 1)):
            if name == opponent:
                break
            place += places if opponent in self._learners else 0
        return place

    def _snapshots(self, member: int) -> Tensor:
        """Return the places of a member's past selves, (size, P)."""
        first = self._first_place(PAST)
        return self._banks[0].flat[member, first : first + self._past_size]

    def _count_held(self, ring: _Ring) -> int:
        return min(ring.count, self._past_size)

    def _set_ring(self, member: int, count: int, taken: int, snapshots: Tensor) -> None:
        """Replace a member's past selves; (held, P)."""
        held = len(snapshots)
        ring = _Ring(count, taken)
        if not self._banks:
            ring.waiting = snapshots.clone()
        elif held:
            target = self._snapshots(member)
            if snapshots.shape[1] != target.shape[1]:
                raise InputError(
                    f"the member's past selves have {snapshots.shape[1]} weights, not "
                    f"{target.shape[1]}: they are of another architecture"
                )
            # Places that are not held keep what they have: no game takes them.
            target[:held] = snapshots.to(target.device)
        self._rings[member] = ring
        self._held[member] = held

    def _by_member(self, tensor: Tensor) -> Tensor:
        """Return (members, games, …) of (members * games, …)."""
        return tensor.view(len(self._rings), -1, *tensor.shape[1:])


def _fitting(
    name: str, actor: Member | FrozenPolicy, layout: Layout
) -> tuple[Architecture, Member]:
    """Return a champion's architecture and tensors; InputError if it does not fit the game."""
    members = actor.members if isinstance(actor, FrozenPolicy) else (actor,)
    if len(members) > 1:
        raise InputError(f"opponent {name} has {len(members)} members, and an opponent has one")
    source = f"opponent {name}"
    check_members(members, source)
    return _fit(source, architecture_of(members[0], source), layout), members[0]


def _fit(name: str, architecture: Architecture, layout: Layout) -> Architecture:
    """Return the architecture; InputError if it does not fit the game."""
    own = Layout(architecture.state_dim, architecture.action_dim, architecture.discrete)
    if own != layout:
        raise InputError(f"{name} maps {own}, and this game maps {layout}")
    return architecture


def _others(members: int, together: int) -> Tensor:
    """Return (members, together - 1), the other members of each one's trial in order."""
    every = torch.arange(members).unsqueeze(1)
    other = torch.arange(together - 1).unsqueeze(0)
    return every - every % together + other + (other >= every % together).long()
