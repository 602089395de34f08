"""The base class of all algorithms: slots, members, checkpoints and the training loop.

A program trains `shape.slots` members (G of them) as one batched computation on one vectorized
environment. Training advances by rollouts: `horizon` steps of every environment, then the gradient
steps that follow them. Between rollouts, a member can be saved as a flat dict of tensors and
restored into any slot of a program of the same shape.

An algorithm (`sweepd.agents.algorithms.ppo`, `sac`, `d3qn`, `elegantrl_agents`, `heuristic`)
subclasses `Program` and implements its abstract methods: networks of a member, a rollout, and the
gradient steps that follow it.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sweepd.agents.engine.description import DESCRIPTION, differing, packed, unpacked
from sweepd.agents.engine.hyperparameters import Hyperparameters
from sweepd.agents.engine.running_scale import RunningScale
from sweepd.agents.networks.activation import RELU
from sweepd.agents.networks.net import StateDict
from sweepd.agents.networks.normaliser import checked_normaliser
from sweepd.agents.networks.shape import SHARED, Shape, env_fields
from sweepd.agents.networks.spec import NetSpec
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.core.streams import Streams
from sweepd.envs.core.vec_env import VecEnv
from sweepd.envs.native.memory import keep_freed_memory
from sweepd.envs.native.threads import torch_on_one
from sweepd.envs.support.errors import InputError

Act = Callable[[Tensor], Tensor]


@dataclass
class Member:
    """The member in a slot.

    Attributes:
        params: its hyperparameters.
        total_rollouts: rollouts that its schedules span.
        rollouts: rollouts that it has trained on.
        has_obs: whether `Program.begin` has given it the current observations of its rows.
    """

    params: Any
    total_rollouts: int
    rollouts: int = 0
    has_obs: bool = False

    @property
    def learning_rate(self) -> float:
        """The learning rate of its next rollout, for hyperparameters that are `Scheduled`."""
        rate: float = self.params.learning_rate_at(self.rollouts, self.total_rollouts)
        return rate


@dataclass(frozen=True, kw_only=True)
class Supported:
    """What an algorithm can train with; everything else is refused.

    Attributes:
        masks: environments with illegal actions (`EnvSpec.masked`).
        absent_agents: environments with rows that may be without an agent.
        multi_discrete: actions of several choices.
        turns: environments whose rows have several players that act in turns.
        images: observations that are uint8 images.
        byte_obs: observations of other bytes.
        items: observations with items that are looked up by id (`EnvSpec.items`).
        privileged: observation columns that only critics read (`EnvSpec.privileged_dim`).
        recurrent: recurrent networks (`Shape.recurrent`).
        per_seat: policies per seat (`Shape.policies`).
        running_scale: running statistics of observations (`Shape.running_scale`).
        activations: other activations than ReLU (`Shape.activation`).
        entities: a layer that entities share (`Shape.entity_width`).
        async_envs: environments that are stepped as they are ready (`Shape.async_envs`).
    """

    masks: bool = False
    absent_agents: bool = False
    multi_discrete: bool = False
    turns: bool = False
    images: bool = False
    byte_obs: bool = False
    items: bool = False
    privileged: bool = False
    recurrent: bool = False
    per_seat: bool = False
    running_scale: bool = False
    activations: bool = False
    entities: bool = False
    async_envs: bool = False

    def check_env(self, algorithm: str, env: VecEnv) -> None:
        """Raise InputError for an environment that is not supported.

        Args:
            algorithm: its name in the message.
            env: the environment.
        """
        spec = env.spec
        traits = {
            "actions that may be illegal (an action_mask)": (spec.masked, self.masks),
            "agents that come and go": (spec.has_absent_agents, self.absent_agents),
            "several choices per action": (bool(spec.action_dims), self.multi_discrete),
            "players that act in turns": (spec.players > 1, self.turns),
            "observations of bytes": (spec.byte_obs, self.byte_obs),
            "images": (spec.image_shape is not None, self.images),
            "items that are looked up by id": (spec.items is not None, self.items),
            "columns for critics": (spec.privileged_dim > 0, self.privileged),
        }
        found = [name for name, (present, supported) in traits.items() if present and not supported]
        if found:
            raise InputError(
                f"{algorithm} does not support this environment: {env.env_name} has "
                f"{', '.join(found)}: use ppo."
            )


class Program(ABC):
    """A program of `shape.slots` members, constructed as `program(shape, device)`.

    A slot is empty until `add_member` or `set_member` fills it. Empty slots take part in the
    computation with dummy weights. A member's numbers do not depend on its slot or on the other
    members.

    Attributes:
        obs: (G * num_envs, obs_dim), the current observations of all rows.
        members: the member in each slot, None where it is empty.
        numbers: (G, 1) by name, the members' numeric hyperparameters; 0 in empty slots.
        scale: running statistics of the observations; None where their scale is fixed.
    """

    algorithm: str
    supports: ClassVar[Supported] = Supported()
    # Tensors of a member's state that belong to the episodes in progress.
    episode_state: ClassVar[tuple[str, ...]] = ("obs",)
    params_type: type[Hyperparameters]
    stats_type: type[Any]  # NamedTuple of a rollout's statistics, (G,) each
    _native: object | None = None  # the kernels of gradient steps; None: torch makes them

    def __init__(self, shape: Shape, device: torch.device | str) -> None:
        self.check_shape(shape)
        self.shape, self.device = shape, torch.device(device)
        keep_freed_memory()
        self.scale = RunningScale(shape, self.device) if shape.running_scale else None
        self.streams = Streams(shape.slots, self.device)
        self.members: list[Member | None] = [None] * shape.slots
        self.obs = torch.zeros(
            shape.slots * shape.num_envs, shape.obs_dim, dtype=shape.torch_dtype, device=self.device
        )
        self.numbers = {
            name: torch.zeros(shape.slots, 1, device=self.device)
            for name in self.params_type.numeric()
        }
        self._live = torch.zeros(shape.slots, dtype=torch.bool, device=self.device)
        self._diverged = torch.zeros(shape.slots, dtype=torch.bool, device=self.device)

    def check_shape(self, shape: Shape) -> None:
        """Raise InputError for a shape that the algorithm does not support."""
        if shape.algorithm != self.algorithm:
            raise InputError(
                f"algorithm must be {self.algorithm!r} for this program, not {shape.algorithm!r}."
            )
        if shape.recurrent and not self.supports.recurrent:
            raise InputError(
                f"{shape.algorithm} has no recurrent networks, and recurrent is "
                f"{shape.recurrent!r}."
            )
        if shape.policies != SHARED and not self.supports.per_seat:
            raise InputError(
                f"{shape.algorithm} has no policies per seat, and policies is {shape.policies!r}."
            )
        if shape.running_scale and not self.supports.running_scale:
            raise InputError(f"{shape.algorithm} has no running scale of observations.")
        if shape.activation != RELU and not self.supports.activations:
            raise InputError(
                f"activation must be {RELU!r} for {shape.algorithm}, not {shape.activation!r}."
            )
        if shape.entity_width and not self.supports.entities:
            raise InputError(
                f"entity_width must be 0 for {shape.algorithm}, not {shape.entity_width}."
            )
        if shape.async_envs and not self.supports.async_envs:
            raise InputError(f"async_envs must be 0 for {shape.algorithm}, not {shape.async_envs}.")

    # What an algorithm implements.

    @abstractmethod
    def _fresh(
        self, slot: int, params: Any, seed: int, state_avg: Tensor, state_std: Tensor
    ) -> None:
        """Initialise a new member in an empty slot.

        Args:
            slot: its slot.
            params: its hyperparameters.
            seed: the member's seed.
            state_avg: (obs_dim,), checked.
            state_std: likewise.
        """

    @abstractmethod
    def _clear(self, slot: int) -> None:
        """Reset the slot's networks, optimizer and other tensors."""

    @abstractmethod
    def _save(self, slot: int) -> StateDict:
        """Return the algorithm's part of a member's state, if possible as views."""

    def _check_state(self, slot: int, state: Mapping[str, Tensor]) -> None:
        """Raise InputError where names, shapes or types are not those that `_save` returns."""
        check_tensors(self._save(slot), state)

    def _load(self, slot: int, state: Mapping[str, Tensor], params: Any) -> None:  # noqa: ARG002
        """Restore into an empty slot what `_save` returned."""
        for name, target in self._save(slot).items():
            target.copy_(state[name])

    def threads(self) -> AbstractContextManager[None]:
        """Return a context for rollouts and evaluations of this program.

        In it, torch has one thread if native kernels do the program's products.
        """
        return torch_on_one(self._native is not None)

    def _scales(self) -> list[tuple[Tensor, Tensor]]:
        """Return mean and deviation of each kind of network, (G, 1, columns) each, to be written."""
        raise NotImplementedError

    def _seen(self) -> tuple[Tensor, Tensor | None]:
        """Return a rollout's observations as `RunningScale.observe` takes them."""
        raise NotImplementedError

    @abstractmethod
    def _collect(self, env: VecEnv) -> None:
        """Step the environment `horizon` times and store the transitions."""

    @abstractmethod
    def _learn(self) -> Any:
        """Make the rollout's gradient steps. Returns its statistics, a NamedTuple of (G,)."""

    def recorded_steps(self) -> dict[str, list[bool]]:
        """Return whether each kind of step made so far is a recorded graph.

        Keys are "gradient" and "rollout". Algorithms that record nothing have empty lists.
        """
        return {"gradient": [], "rollout": []}

    def play_stats(self) -> Mapping[str, Tensor]:
        """Return figures of play in the last rollout, (G,) each, if the algorithm measures them."""
        return {}

    @abstractmethod
    def act_fn(self) -> Act:
        """Return a function that acts deterministically with the members' current weights.

        It takes (G * k, obs_dim) observations for any k, grouped by member, and does not change
        with further training. Programs that can draw actions in evaluations
        (`Algorithm.samples`) or play in turns return `sweepd.agents.engine.acting.Actors`.
        """

    @abstractmethod
    def export_member(self, slot: int) -> tuple[StateDict, StateDict]:
        """Return CPU copies of (actor, critic) as state dicts of ElegantRL's modules."""

    # Members.

    def add_member(
        self,
        slot: int,
        params: Any,
        seed: int,
        total_rollouts: int,
        state_avg: Tensor,
        state_std: Tensor,
    ) -> None:
        """Put a new member into a slot, replacing the one there. Then call `begin`.

        Args:
            slot: index from 0.
            params: the algorithm's hyperparameters.
            seed: seed of its weights, exploration and minibatches.
            total_rollouts: rollouts that its schedules span.
            state_avg: mean of observations, (state_dim,) or (obs_dim,); fixed from here on
                unless the scale is a running one (`Shape.running_scale`).
            state_std: their standard deviation, likewise.

        Raises:
            InputError: `total_rollouts` or the normaliser is not valid.
        """
        if total_rollouts < 1:
            raise InputError(f"total_rollouts must be at least 1, not {total_rollouts}.")
        avg, std = checked_normaliser(self.shape, state_avg, state_std)
        self.remove_member(slot)
        # Another seed than that of the weights, so that their random numbers are independent.
        self.streams.seed(slot, derive_seed(seed, self.shape.algorithm))
        self._fresh(slot, params, seed, avg, std)
        if self.scale is not None:
            self.scale.start(slot, avg, std)
        self._occupy(slot, Member(params, total_rollouts))

    def remove_member(self, slot: int) -> None:
        """Make a slot empty."""
        self._clear(slot)
        if self.scale is not None:
            self.scale.clear(slot)
        for numbers in self.numbers.values():
            numbers[slot] = 0
        self.streams.seed(slot, None)
        self.members[slot] = None
        self._live[slot] = self._diverged[slot] = False
        self._rows(self.obs, slot).zero_()

    def begin(self, obs: Tensor, slots: Sequence[int] | None = None) -> None:
        """Set the current observations of rows whose episodes begin.

        Args:
            obs: (G * num_envs, obs_dim), as `VecEnv.reset` returns them.
            slots: the slots to set; None: all.
        """
        for slot in range(self.shape.slots) if slots is None else slots:
            member = self.members[slot]
            if member is not None:
                self._rows(self.obs, slot).copy_(self._rows(obs, slot))
                member.has_obs = True

    @property
    def actor_spec(self) -> NetSpec:
        """What the members' actors are; of programs whose members can be frozen."""
        raise InputError(f"sweepd does not know what the actors of {self.algorithm} are.")

    def progress(self, slot: int) -> tuple[int, int] | None:
        """See `sweepd.envs.core.policies.Policies`, which a program is."""
        member = self.members[slot]
        return None if member is None else (member.rollouts, member.total_rollouts)

    def acting_weights(self) -> StateDict:
        """See `sweepd.envs.core.policies.Policies`. By default from the exported actors."""
        actors = {
            slot: self.export_member(slot)[0] for slot, member in enumerate(self.members) if member
        }
        some = next(iter(actors.values()), {})  # in place of those of empty slots
        every = [actors.get(slot, some) for slot in range(self.shape.slots)]
        return {
            name: torch.stack([actor[name] for actor in every]).to(self.device) for name in some
        }

    def clear_replay(self, slot: int) -> None:  # noqa: B027
        """Empty a member's replay buffer between two rollouts; do nothing without one."""

    def import_actor(self, slot: int, actor: Mapping[str, Tensor]) -> None:  # noqa: ARG002
        """Replace a new member's actor and normaliser by those of a trained actor.

        The critic keeps its weights and uses the same normaliser.

        Args:
            slot: the member's slot.
            actor: as `export_member` returns it.

        Raises:
            InputError: the algorithm cannot do this, or the actor does not fit.
        """
        raise InputError(f"{self.algorithm} cannot start from trained weights: use ppo")

    @property
    def diverged(self) -> list[bool]:
        """Whether each slot's member had a gradient or loss that was not finite.

        It has not been updated since. Reading this synchronises with the device.
        """
        return [bool(flag) for flag in self._diverged.tolist()]

    def get_member(self, slot: int) -> StateDict:
        """Return a member's complete state, for an exact continuation: CPU tensors by name.

        One of them is its description (`sweepd.agents.engine.description`): the program's shape,
        the member's hyperparameters and its rollouts.
        """
        member = self._member(slot)
        state = {
            **self._save(slot),
            **self._row_state(slot),
            "stream": self.streams.state(slot),
            DESCRIPTION: packed(
                {**vars(member), "params": dict(member.params), "shape": self._described_shape()}
            ),
        }
        return {
            name: tensor.detach().to("cpu", copy=True).contiguous()
            for name, tensor in state.items()
        }

    def set_member(self, slot: int, state: Mapping[str, Tensor]) -> None:
        """Restore what `get_member` returned, into this or another slot.

        Raises:
            InputError: the state is incomplete or of another shape.
        """
        described = unpacked(state)
        if found := differing(self._described_shape(), described.pop("shape")):
            raise InputError(f"The member's state is of another shape: {found}.")
        row_state = self._row_state(slot)
        if missing := {*row_state, "stream"} - set(state):
            raise InputError(f"A member's state must hold {', '.join(sorted(missing))}.")
        check_tensors(row_state, {name: state[name] for name in row_state})
        own = {*row_state, "stream", DESCRIPTION}
        rest = {name: tensor for name, tensor in state.items() if name not in own}
        # Check everything before the slot is emptied: a refused state must change nothing.
        self._check_state(slot, rest)
        params = self.params_type(**described.pop("params"))
        self.remove_member(slot)
        self._load(slot, rest, params)
        for name, target in row_state.items():
            target.copy_(state[name])
        self.streams.set_state(slot, state["stream"])
        self._occupy(slot, Member(params, **described))

    def inherit(
        self, own: Mapping[str, Tensor], source: Mapping[str, Tensor], params: Any
    ) -> StateDict:
        """Return the state of a member that goes on with another member's weights.

        Networks, optimizer, normalisers and replay buffer are the source's. Random numbers, and
        what belongs to the episodes in progress (`episode_state`), stay the member's own.

        Args:
            own: the member's state, as `get_member` returns it.
            source: that of the other member, after as many rollouts; it may be the same one.
            params: the hyperparameters to go on with.

        Raises:
            ValueError: the members are not between the same two rollouts.
        """
        its, described = ({**unpacked(state), "params": {}} for state in (own, source))
        if found := differing(its, described):
            raise ValueError(f"the other member's {found}")
        kept = {name: own[name] for name in ("stream", *self.episode_state) if name in own}
        return {**source, **kept, DESCRIPTION: packed(described | {"params": dict(params)})}

    # Training.

    @torch.no_grad()
    def train(
        self, env: VecEnv, rollouts: int, on_rollout: Callable[[Any], bool | None] | None = None
    ) -> list[Any]:
        """Collect rollouts and make their gradient steps; every member advances by as many.

        The environment is reset first if no member has been given observations.

        Args:
            env: the environment, with as many members as the program has slots.
            rollouts: how many.
            on_rollout: called with the statistics after each rollout. Training stops there if it
                returns True; members may be saved then.

        Returns:
            Statistics of each rollout, a NamedTuple of (G,) tensors.

        Raises:
            RunError: the environment reported a fault; the rollout was not learned from.
            ValueError: environment and shape differ, or a member has no observation yet.
        """
        self._check(env)
        if not any(member.has_obs for member in self.members if member):
            self.begin(env.reset())
        if any(not member.has_obs for member in self.members if member):
            raise ValueError(
                "a member was added without its first observation: call begin() with the "
                "environment's"
            )
        history: list[Any] = []
        for _ in range(rollouts):
            with self.threads():
                env.begin_rollout(self)
                # Acting and the gradient steps of a rollout see one scale, and evaluations after
                # them the one that the weights were trained with.
                if self.scale is not None:
                    for avg, std in self._scales():
                        self.scale.write(avg, std)
                self._collect(env)
                # The only read from the device per rollout: a fault stops the run before the
                # members learn from its data.
                if bool(env.faults().any()):
                    env.check()
                if self.scale is not None:
                    self.scale.observe(*self._seen())
                history.append(self._learn())
            for member in self.members:
                if member is not None:
                    member.rollouts += 1
            if on_rollout is not None and on_rollout(history[-1]):
                break
        return history

    def _check(self, env: VecEnv) -> None:
        """Raise where the environment is not supported, or is not the one of the shape."""
        self.supports.check_env(self.shape.algorithm, env)
        given = env_fields(env)
        if not self.shape.entity_width:  # then no layer reads entities
            del given["entities"]
        wanted = {name: getattr(self.shape, name) for name in given}
        if wanted != given:
            raise ValueError(f"the environment's {given} are not the shape's {wanted}")

    def _occupy(self, slot: int, member: Member) -> None:
        """Put a member whose tensors are in place into a slot."""
        self.members[slot] = member
        self._live[slot] = True
        for name, numbers in self.numbers.items():
            numbers[slot] = getattr(member.params, name)

    def _row_state(self, slot: int) -> StateDict:
        """Return views of the part of a member's state that all algorithms have."""
        own = {"obs": self._rows(self.obs, slot), "diverged": self._diverged[slot]}
        return own if self.scale is None else own | {"obs_moments": self.scale.moments[slot]}

    def _rows(self, tensor: Tensor, slot: int) -> Tensor:
        """Return the rows of one slot of (G * num_envs, …)."""
        return tensor[slot * self.shape.num_envs : (slot + 1) * self.shape.num_envs]

    def _collected(self, slot: int) -> int:
        """Return the transitions that a slot's member has trained on; 0 where it is empty."""
        member = self.members[slot]
        return member.rollouts * self.shape.samples if member else 0

    def _member(self, slot: int) -> Member:
        member = self.members[slot]
        if member is None:
            raise ValueError(f"slot {slot} is empty")
        return member

    def _learning_rates(self) -> list[float]:
        """Return the learning rates of the next rollout by slot, 0 for empty slots."""
        return [member.learning_rate if member else 0.0 for member in self.members]

    def _described_shape(self) -> dict[str, Any]:
        """Return, as JSON, the fields of the shape: a state fits programs in which they are equal."""
        fields = asdict(self.shape)
        del fields["slots"]  # a member's numbers do not depend on them
        if not self.shape.entity_width:  # nor on entities that no layer reads
            del fields["entities"], fields["entity_width"]
        if not self.shape.async_envs:  # states that were saved before it existed
            del fields["async_envs"]
        # Through JSON, in which tuples are lists and types are names.
        found: dict[str, Any] = json.loads(json.dumps(fields, default=str))
        return found


def check_tensors(expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Raise InputError where names, shapes or types of a state's tensors are not those expected."""
    if set(given) != set(expected):
        raise InputError(
            f"A member's state must hold {sorted(expected)}, and holds {sorted(given)}."
        )
    for name, target in expected.items():
        if given[name].shape != target.shape or given[name].dtype != target.dtype:
            found = f"{tuple(given[name].shape)} {given[name].dtype}"
            raise InputError(
                f"The member's {name} is {found}, not {tuple(target.shape)} {target.dtype}."
            )
