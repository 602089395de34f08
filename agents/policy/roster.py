"""Opponents that are policies: the member itself, its past selves, other members, champions.

Scripted players are part of the roster too. `self` and `others` play with the weights of the
present rollout. `past` is one of the snapshots that a member holds of itself, and `self` as long as
it holds none. A snapshot is taken every `past_interval` rollouts; once `past_size` are held, it
replaces the oldest one.

All actors of one description act in stacked forward passes (`sweepd.agents.policy.bank`). `self`
and champions compute all games. `past` and `others` would cost a forward pass per snapshot or
member that way; so a member's games are dealt to them in turn (game 0 to the first one, game 1 to
the second, and so on), and each computes its own games only. Every snapshot and every other member
thus has the same share of the games at any time, as if it were drawn uniformly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sweepd.agents.networks.distributions import masked_logits
from sweepd.agents.networks.spec import VALUES, NetSpec
from sweepd.agents.policy.bank import Bank, draw_option
from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.members import Member, check_members
from sweepd.envs.core.env_spec import EnvSpec
from sweepd.envs.core.policies import Policies
from sweepd.envs.core.rows import where_rows
from sweepd.envs.core.vec_env import Legal
from sweepd.envs.games.curriculum import LEARNERS, OTHERS, PAST, SELF
from sweepd.envs.games.opponents import Opponents, Scripted, ScriptedPlayer
from sweepd.envs.support.errors import InputError


@dataclass(frozen=True)
class Champion:
    """A frozen actor as an opponent.

    Attributes:
        actor: the actor, or a policy of one member.
        sampled: whether its actions are samples; else they are deterministic.
    """

    actor: Member | FrozenPolicy
    sampled: bool = False


@dataclass
class _Ring:
    """One member's past selves.

    Attributes:
        count: snapshots taken so far; once the ring is full, the next one goes to `count % size`.
        taken: the member's rollouts at the last one.
        snapshots: those that are held, rows of `Bank.flat`.
    """

    count: int = 0
    taken: int = 0
    snapshots: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class _Lane:
    """A bank whose actors compute the games of the members.

    Attributes:
        bank: for `members * blocks` members; block b of member m is m * blocks + b.
        members: how many.
        blocks: parts of a member's games. Game g belongs to block g % blocks.
    """

    bank: Bank
    members: int
    blocks: int = 1

    def deal(self, tensor: Tensor) -> Tensor:
        """Return (members * blocks, games per block, …) of (members * games, …)."""
        # No -1 in `view`: a tensor may have no columns.
        games = tensor.view(self.members, len(tensor) // self.members, *tensor.shape[1:])
        if self.blocks == 1:
            return games
        # Every block has equally many rows: the first games fill up the last blocks.
        games = torch.cat((games, games[:, : -games.shape[1] % self.blocks]), 1)
        each = games.shape[1] // self.blocks
        rows = games.view(self.members, each, self.blocks, *tensor.shape[1:])
        return rows.transpose(1, 2).flatten(0, 1)

    def collect(self, dealt: Tensor, games: int) -> Tensor:
        """Undo `deal`; games: per member."""
        rows = dealt.view(self.members, self.blocks, *dealt.shape[1:])
        return rows.transpose(1, 2).flatten(1, 2)[:, :games].flatten(0, 1)

    def fill(self, member: int, actors: Sequence[Tensor], first: int) -> None:
        """Deal actors to a member's blocks, in turn.

        Args:
            member: whose.
            actors: rows of `Bank.flat`.
            first: with more actors than blocks, the first one to be dealt.
        """
        first = first if len(actors) > self.blocks else 0
        for block in range(self.blocks):
            actor = actors[(first + block) % len(actors)]
            self.bank.flat[member * self.blocks + block, 0] = actor


class Roster(Opponents):
    """Scripted players, then `self`, `past` and `others` where asked for, then champions."""

    def __init__(
        self,
        members: int,
        games: int,
        spec: EnvSpec,
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
            games: games per member.
            spec: of the game without opponents.
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
        self._device, self._spec = torch.device(device), spec
        self._games, self._together = games, together
        self._past_interval, self._past_size = past_interval, past_size
        self._scripted = Scripted(scripted, members, device) if scripted else None
        self._actors = {
            name: _fitting(name, champion.actor, spec) for name, champion in frozen.items()
        }
        samples = [
            frozen[name].sampled if name in frozen else sampled and name in self._learners
            for name in self.names
        ]
        self._samples = torch.tensor(samples, device=self._device)
        self._set_columns(recurrent_size)
        self._rings = [_Ring() for _ in range(members)]
        self._lanes: list[_Lane] = []
        self._dealt: dict[str, _Lane] = {}  # the lanes of `past` and `others`
        # By opponent: its lane (-1: a scripted player) and its place there.
        self._lane_of = torch.full((len(self.names),), -1, device=self._device)
        self._place_of = torch.zeros_like(self._lane_of)
        # Networks of values rank options, and have no distribution to sample from.
        self._ranks = torch.zeros_like(self._samples)
        self._others = _others(members, together).to(self._device)
        # What the members are is known from the first `begin_rollout`.
        self._present: Bank | None = None
        if not self._learners:
            self._build(None)

    def _set_columns(self, recurrent_size: int) -> None:
        """Lay out the memory: that of scripted players, then a recurrent state."""
        scripted = self._scripted
        sizes = [actor.spec.memory for actor in self._actors.values()]
        self._state_size = max([recurrent_size, *sizes])
        self.memory = (scripted.memory if scripted else 0) + self._state_size
        # Players and actors share the random numbers of a game, as only one of them plays it.
        neural = 0
        if self._learners or self._actors:
            neural = len(self._spec.choices) or self._spec.action_dim
        self.uniforms = max(neural, scripted.uniforms if scripted else 0)

    # Playing.

    def begin(self, uniforms: Tensor) -> Tensor:
        """See `Opponents.begin`."""
        state = uniforms.new_zeros(len(uniforms), self._state_size)
        if self._scripted is None:
            return state
        return torch.cat((self._scripted.begin(uniforms[:, : self._scripted.uniforms]), state), 1)

    def act(
        self,
        obs: Tensor,
        chosen: Tensor,
        memory: Tensor,
        uniforms: Tensor,
        legal: Legal | None = None,
    ) -> tuple[Tensor, Tensor]:
        """See `Opponents.act`.

        Raises:
            RuntimeError: members are opponents, and `begin_rollout` was never called.
        """
        if self._learners and self._present is None:
            raise RuntimeError("opponents that are members act after the first `begin_rollout`")
        kept, state = torch.split(memory, [self.memory - self._state_size, self._state_size], 1)
        controls: Tensor | None = None
        if self._scripted:
            own = uniforms[:, : self._scripted.uniforms]
            controls, kept = self._scripted.act(obs, chosen, kept, own, legal)
        if not self._lanes:
            assert controls is not None  # a roster has names
            return controls, torch.cat((kept, state), 1)
        if legal is not None or self._spec.action_dims:
            made, state = self._choose(obs, chosen, state, uniforms, legal)
            scripted = self._lane_of[chosen] < 0
            controls = made if controls is None else where_rows(scripted, controls, made)
            return controls, torch.cat((kept, state), 1)
        samples = self._samples[chosen]
        for index, lane in enumerate(self._lanes):
            here, place, rows, held = self._dealt_to(index, obs, chosen, state)
            action, stepped = lane.bank.act(
                rows, place, lane.deal(uniforms), lane.deal(samples), held
            )
            given = self.decode(lane.collect(action, self._games))
            controls = given if controls is None else where_rows(here, given, controls)
            state = self._stepped(lane, stepped, here, state)
        assert controls is not None
        return controls, torch.cat((kept, state), 1)

    def _choose(
        self, obs: Tensor, chosen: Tensor, state: Tensor, uniforms: Tensor, legal: Legal | None
    ) -> tuple[Tensor, Tensor]:
        """Return all actors' choices, (games,) or (games, choices), and the recurrent states."""
        outputs: list[Tensor] = []
        places: list[Tensor] = []
        for index, lane in enumerate(self._lanes):
            here, place, rows, memory = self._dealt_to(index, obs, chosen, state)
            output, stepped = lane.bank.output(rows, place, memory)
            outputs.append(output)
            places.append(place)
            state = self._stepped(lane, stepped, here, state)
        samples = self._samples[chosen] & ~self._ranks[chosen]
        sizes = self._spec.choices
        made = torch.zeros(len(obs), 0, dtype=torch.int64, device=obs.device)
        for choice in range(len(sizes)):
            # All lanes together, so that a choice needs one mask.
            logits: Tensor | None = None
            for index, lane in enumerate(self._lanes):
                found = lane.bank.logits(outputs[index], places[index], lane.deal(made))
                theirs = lane.collect(found, self._games)
                here = self._lane_of[chosen] == index
                logits = theirs if logits is None else where_rows(here, theirs, logits)
            assert logits is not None
            logits = logits.nan_to_num(nan=0.0)
            if legal is not None:
                logits = masked_logits(logits, legal(made))
            option = draw_option(logits, uniforms[:, choice : choice + 1], samples)
            made = torch.cat((made, option.unsqueeze(1)), 1)
        return (made if self._spec.action_dims else made[:, 0]), state

    def _dealt_to(
        self, index: int, obs: Tensor, chosen: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return what a lane computes with.

        Returns:
            (games,) bool, the games of its actors; and as the lane deals them, places,
            observations and recurrent states, None without them.
        """
        lane = self._lanes[index]
        here, size = self._lane_of[chosen] == index, lane.bank.spec.memory
        # Games of other lanes' actors take place 0, and drop its action.
        place = lane.deal(torch.where(here, self._place_of[chosen], 0))
        dtype = lane.bank.flat.dtype
        own = lane.deal(state[:, :size].to(dtype)) if size else None
        return here, place, lane.deal(obs.to(dtype)), own

    def _stepped(self, lane: _Lane, stepped: Tensor | None, here: Tensor, state: Tensor) -> Tensor:
        """Return the recurrent states with those of a lane's actors replaced."""
        if stepped is None:
            return state
        new, size = lane.collect(stepped, self._games).to(state.dtype), stepped.shape[-1]
        return torch.cat((where_rows(here, new, state[:, :size]), state[:, size:]), 1)

    # The members' weights and snapshots.

    @torch.no_grad()
    def begin_rollout(self, policies: Policies) -> None:
        """See `VecEnv.begin_rollout`: take over the present weights, and snapshots that are due."""
        if not self._learners:
            return
        weights = policies.acting_weights()
        if self._present is None:
            self._build(policies.actor_spec)
        assert self._present is not None
        self._present.put(0, weights)
        present = self._present.flat[:, 0]
        for member in range(len(self._rings)):
            progress = policies.progress(member)
            rollouts = progress[0] if progress else 0
            if PAST in self._learners:
                self._remember(member, present[member], rollouts)
            if OTHERS in self._learners:
                others = present[self._others[member]].unbind()
                lane = self._dealt[OTHERS]
                lane.fill(member, others, rollouts * lane.blocks)

    def _remember(self, member: int, present: Tensor, rollouts: int) -> None:
        """Take a member's snapshot if it is due, and deal its past selves to its games."""
        ring = self._rings[member]
        # Not twice if a rollout that failed begins again.
        if rollouts and rollouts % self._past_interval == 0 and rollouts != ring.taken:
            place = ring.count % self._past_size
            ring.snapshots[place : place + 1] = [present.clone()]
            ring.count, ring.taken = ring.count + 1, rollouts
        past = ring.snapshots or [present]
        if past[0].shape != present.shape:
            raise InputError(
                f"the member's past selves have {past[0].numel()} weights, not "
                f"{present.numel()}: they are other networks"
            )
        lane = self._dealt[PAST]
        # The oldest one is at `count % size`. So, where a member has fewer games than snapshots,
        # each turn begins at the age where the one before it ended.
        lane.fill(member, past, ring.count * (lane.blocks + 1))

    def reset_member(self, member: int) -> None:
        """See `Opponents.reset_member`."""
        super().reset_member(member)
        self._rings[member] = _Ring()

    def get_member(self, member: int) -> dict[str, Tensor]:
        """See `Opponents.get_member`: the past selves that are held are part of a member."""
        own = super().get_member(member)
        if PAST not in self._learners:
            return own
        ring = self._rings[member]
        snapshots = torch.stack(ring.snapshots) if ring.snapshots else torch.zeros(0, 0)
        return own | {"past": snapshots, "past_counters": torch.tensor([ring.count, ring.taken])}

    def set_member(self, member: int, state: Mapping[str, Tensor]) -> None:
        """See `Opponents.set_member`.

        Raises:
            InputError: the member's past selves are of a ring of another size.
        """
        if PAST in self._learners:
            count, taken = state["past_counters"].tolist()
            snapshots = list(state["past"].to(self._device, copy=True).unbind())
            if len(snapshots) != min(count, self._past_size):
                raise InputError(
                    f"the member holds {len(snapshots)} past selves of {count} snapshots, which "
                    f"does not fit the size {self._past_size}"
                )
            self._rings[member] = _Ring(count, taken, snapshots)
        super().set_member(member, state)

    def _build(self, own: NetSpec | None) -> None:
        """Make the banks of all actors. own: what the members are; None: they are no opponents."""
        members = len(self._rings)
        groups: dict[NetSpec, list[str]] = {}
        if own is not None:
            _check_fit("a member", own, self._spec)
            if own.memory > self._state_size:
                raise InputError(
                    f"opponents that are members have a recurrent state of {own.memory} numbers, "
                    f"and the roster has room for {self._state_size}: pass its recurrent_size"
                )
            # Place 0 holds the present weights, also where `self` is not an opponent.
            groups[own] = [SELF]
            for name, most in ((PAST, self._past_size), (OTHERS, self._together - 1)):
                if name in self._learners:
                    blocks = min(most, self._games)
                    bank = Bank(own, members * blocks, 1, self._device)
                    self._dealt[name] = _Lane(bank, members, blocks)
                    self._add_lane(self._dealt[name], [name])
        for name, actor in self._actors.items():
            groups.setdefault(actor.spec, []).append(name)
        for spec, names in groups.items():
            bank = Bank(spec, members, len(names), self._device)
            for place, name in enumerate(names):
                if name in self._actors:
                    bank.put(place, self._actors[name].tensors)
            if names[0] == SELF:
                self._present = bank
            if any(name in self.names for name in names):
                self._add_lane(_Lane(bank, members), names)

    def _add_lane(self, lane: _Lane, names: Sequence[str]) -> None:
        """Add a lane; names: of the actors in its places."""
        for place, name in enumerate(names):
            if name in self.names:
                index = self.names.index(name)
                self._place_of[index], self._lane_of[index] = place, len(self._lanes)
                self._ranks[index] = lane.bank.spec.gives == VALUES
        self._lanes.append(lane)


def _fitting(name: str, actor: Member | FrozenPolicy, spec: EnvSpec) -> Member:
    """Return a champion's member; InputError if it does not fit the game."""
    members = actor.members if isinstance(actor, FrozenPolicy) else (actor,)
    if len(members) > 1:
        raise InputError(f"opponent {name} has {len(members)} members, and an opponent has one")
    check_members(members, f"opponent {name}")
    _check_fit(f"opponent {name}", members[0].spec, spec)
    return members[0]


def _check_fit(name: str, actor: NetSpec, game: EnvSpec) -> None:
    """Raise InputError if an actor does not fit the game."""
    own = EnvSpec(
        state_dim=actor.columns,
        action_dim=actor.actions,
        if_discrete=actor.discrete,
        action_dims=actor.choices,
    )
    if _maps(own) != _maps(game):
        raise InputError(f"{name} maps {_maps(own)}, and this game maps {_maps(game)}")


def _maps(spec: EnvSpec) -> str:
    """Return from what to what a policy of these observations and actions maps."""
    actions = f"{spec.action_dim} numbers"
    if spec.if_discrete:
        actions = f"one of {spec.action_dim} actions"
    if spec.action_dims:
        actions = f"choices of {list(spec.action_dims)}"
    return f"{spec.state_dim} observations to {actions}"


def _others(members: int, together: int) -> Tensor:
    """Return (members, together - 1), the other members of each one's trial in order."""
    every = torch.arange(members).unsqueeze(1)
    other = torch.arange(together - 1).unsqueeze(0)
    return every - every % together + other + (other >= every % together).long()
