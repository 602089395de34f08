"""What the programs of off-policy algorithms and of ElegantRL's own agents have in common: slots, and members that come
and go.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from agents.networks.shape import Shape
from envs.core.streams import Streams, derive_seed
from envs.core.vec_env import VecEnv
from envs.support.errors import InputError

_LAYOUT = 1  # of the shape's code and of the members' states


@dataclass
class Member:
    """Who is in a slot. rollouts: that it has trained on; has_obs: whether it was given its rows' observations."""

    params: Any
    total_rollouts: int
    rollouts: int = 0
    has_obs: bool = False


class Program(ABC):
    """One program of `shape.slots` members: an `agents.engine.learner.Learner`, but for what the algorithm itself must say.

    obs: (G * num_envs, obs_dim), the rows' present observations. members: who is in each slot, None where it is empty.
    """

    params_type: Callable[..., Any]

    def __init__(self, shape: Shape, device: torch.device | str) -> None:
        if shape.recurrent:
            raise InputError(
                f"{shape.algorithm} has no networks that remember, and recurrent is {shape.recurrent!r}."
            )
        self.shape, self.device = shape, torch.device(device)
        self.streams = Streams(shape.slots, self.device)
        self.members: list[Member | None] = [None] * shape.slots
        self.obs = torch.zeros(shape.slots * shape.num_envs, shape.obs_dim, device=self.device)
        self._live = torch.zeros(shape.slots, dtype=torch.bool, device=self.device)
        self._diverged = torch.zeros(shape.slots, dtype=torch.bool, device=self.device)

    @abstractmethod
    def _fresh(
        self, slot: int, params: Any, seed: int, state_avg: Tensor, state_std: Tensor
    ) -> None:
        """Networks and all else of a new member, in an empty slot."""

    @abstractmethod
    def _clear(self, slot: int) -> None:
        """Forget the slot's networks and all else."""

    @abstractmethod
    def _save(self, slot: int) -> dict[str, Tensor]:
        """The algorithm's part of a member's state."""

    @abstractmethod
    def _check_state(self, slot: int, state: Mapping[str, Tensor]) -> None:
        """Raise InputError where `state` is nothing that `_save` returns."""

    @abstractmethod
    def _load(self, slot: int, state: Mapping[str, Tensor], params: Any) -> None:
        """Put back into an empty slot what `_save` returned."""

    @abstractmethod
    def _collect(self, env: VecEnv) -> None:
        """`horizon` steps of the environment."""

    @abstractmethod
    def _learn(self) -> Any:
        """The rollout's gradient steps. Returns its figures, a NamedTuple of (G,) tensors."""

    def add_member(
        self,
        slot: int,
        params: Any,
        seed: int,
        total_rollouts: int,
        state_avg: Tensor,
        state_std: Tensor,
    ) -> None:
        """See `Learner.add_member`. Its first observation comes from `begin`."""
        if total_rollouts < 1:
            raise InputError(f"total_rollouts must be at least 1, not {total_rollouts}.")
        avg, std = (
            tensor.detach().to(self.device, torch.get_default_dtype())
            for tensor in (state_avg, state_std)
        )
        shape = self.shape
        if avg.shape != std.shape or avg.shape not in {(shape.state_dim,), (shape.obs_dim,)}:
            sizes = f"{tuple(avg.shape)} and {tuple(std.shape)}"
            raise InputError(
                f"state_avg and state_std must have shape ({shape.state_dim},), not {sizes}."
            )
        if not bool((torch.isfinite(avg) & torch.isfinite(std) & (std > 0)).all()):
            raise InputError(
                "state_avg and state_std must be finite, and the deviation above zero."
            )
        missing = (
            shape.obs_dim - avg.numel()
        )  # columns for the critic alone, which pass as they are
        avg, std = torch.cat((avg, avg.new_zeros(missing))), torch.cat((std, std.new_ones(missing)))
        self.remove_member(slot)
        self.streams.seed(slot, derive_seed(seed, shape.algorithm))
        self._fresh(slot, params, derive_seed(seed, "weights"), avg, std)
        self._occupy(slot, Member(params, total_rollouts))

    def remove_member(self, slot: int) -> None:
        """Make a slot empty."""
        self._clear(slot)
        self.streams.seed(slot, None)
        self.members[slot] = None
        self._live[slot] = self._diverged[slot] = False
        self._rows(self.obs, slot).zero_()

    def begin(self, obs: Tensor, slots: Sequence[int] | None = None) -> None:
        """See `Learner.begin`."""
        for slot in range(self.shape.slots) if slots is None else slots:
            member = self.members[slot]
            if member is not None:
                self._rows(self.obs, slot).copy_(self._rows(obs, slot))
                member.has_obs = True

    @property
    def diverged(self) -> list[bool]:
        """Per slot, whether its member's gradient or loss stopped being finite; it has learned nothing since. Reads
        the device.
        """
        return [bool(flag) for flag in self._diverged.tolist()]

    @property
    def rollouts(self) -> list[int]:
        """Per slot, how many rollouts its member has trained on; 0 where empty."""
        return [member.rollouts if member else 0 for member in self.members]

    def get_member(self, slot: int) -> dict[str, Tensor]:
        """Everything a member needs to go on exactly, in any slot of a program of this shape: a flat dict of CPU
        tensors (safetensors-ready).
        """
        member = self._member(slot)
        numbers = [float(getattr(member.params, field.name)) for field in fields(member.params)]
        state = {
            **self._save(slot),
            "obs": self._rows(self.obs, slot),
            "diverged": self._diverged[slot],
            "shape": self._shape_code(),
            "params": torch.tensor(numbers, dtype=torch.float64),
            "counters": torch.tensor([member.rollouts, member.total_rollouts, int(member.has_obs)]),
            "stream": self.streams.state(slot),
        }
        return {
            name: tensor.detach().to("cpu", copy=True).contiguous()
            for name, tensor in state.items()
        }

    def set_member(self, slot: int, state: Mapping[str, Tensor]) -> None:
        """Put back what `get_member` returned, in this or another slot. Raises InputError where it is of another shape
        or incomplete.
        """
        own = {"obs", "diverged", "shape", "params", "counters", "stream"}
        if not own <= set(state):
            raise InputError(
                f"A member's state must hold {sorted(own)}, and holds {sorted(state)}."
            )
        if not torch.equal(state["shape"], self._shape_code()):
            raise InputError(
                f"The member's state is of shape {state['shape'].tolist()}, which is not {self.shape}."
            )
        rest = {name: tensor for name, tensor in state.items() if name not in own}
        self._check_state(slot, rest)
        params = params_of(self.params_type, state["params"].tolist())
        rollouts, total, has_obs = state["counters"].tolist()
        self.remove_member(slot)
        self._load(slot, rest, params)
        self._rows(self.obs, slot).copy_(state["obs"])
        self._diverged[slot] = state["diverged"].to(self.device)
        self.streams.set_state(slot, state["stream"])
        self._occupy(slot, Member(params, total, rollouts, bool(has_obs)))

    @torch.no_grad()
    def train(
        self, env: VecEnv, rollouts: int, on_rollout: Callable[[Any], bool | None] | None = None
    ) -> list[Any]:
        """See `Learner.train`. A program that was never given an observation resets the environment itself."""
        self._check(env)
        if not any(member.has_obs for member in self.members if member):
            self.begin(env.reset())
        if any(not member.has_obs for member in self.members if member):
            raise ValueError(
                "a member was added without its first observation: call begin() with the environment's"
            )
        history: list[Any] = []
        for _ in range(rollouts):
            self._collect(env)
            if bool(env.faults().any()):
                env.check()
            history.append(self._learn())
            for member in self.members:
                if member is not None:
                    member.rollouts += 1
            if on_rollout is not None and on_rollout(history[-1]):
                break
        return history

    def _occupy(self, slot: int, member: Member) -> None:
        self.members[slot] = member
        self._live[slot] = True

    def _rows(self, tensor: Tensor, slot: int) -> Tensor:
        return tensor[slot * self.shape.num_envs : (slot + 1) * self.shape.num_envs]

    def _member(self, slot: int) -> Member:
        member = self.members[slot]
        if member is None:
            raise ValueError(f"slot {slot} is empty")
        return member

    def _shape_code(self) -> Tensor:
        shape = self.shape
        sizes = (
            shape.state_dim,
            shape.action_dim,
            shape.privileged_dim,
            shape.net_width,
            shape.net_depth,
        )
        work = (
            shape.num_envs,
            shape.horizon,
            shape.minibatch,
            shape.epochs,
            shape.updates,
            shape.buffer,
        )
        return torch.tensor(
            [_LAYOUT, int(shape.discrete), *sizes, *work, *shape.algorithm.encode()]
        )

    def _check(self, env: VecEnv) -> None:
        shape = self.shape
        check_plain(shape.algorithm, env)
        wanted = (
            shape.slots,
            shape.num_envs,
            shape.state_dim,
            shape.action_dim,
            shape.privileged_dim,
        )
        given = (
            env.num_members,
            env.envs_per_member,
            env.state_dim,
            env.action_dim,
            env.privileged_dim,
        )
        if (*wanted, shape.discrete) != (*given, env.if_discrete):
            raise ValueError(
                f"the environment's (members, rows, state, action, privileged) {given} and discrete {env.if_discrete} "
                f"are not the shape's {wanted} and {shape.discrete}"
            )


def check_plain(algorithm: str, env: Any) -> None:
    """Raise InputError for an environment that `Program`s don't take. env: a `VecEnv`, or a game's."""
    more = {
        "actions that may be illegal (an action_mask)": env.masked,
        "agents that come and go": env.has_absent_agents,
        "several choices": env.action_dims,
        "images": env.image_shape is not None,
    }
    found = [name for name, there in more.items() if there]
    if found:
        raise InputError(
            f"{algorithm} takes environments of one choice or of numbers, all of them legal and in every row, seen as "
            f"numbers; {env.env_name} has {', '.join(found)}: use ppo."
        )


def params_of(kind: Callable[..., Any], numbers: Sequence[float]) -> Any:
    """Params from their numbers in the order of the fields."""
    names = [(field.name, field.type) for field in fields(kind)]  # type: ignore[arg-type]
    if len(names) != len(numbers):
        raise InputError(
            f"The member's params are {len(numbers)} numbers, where {len(names)} belong."
        )
    return kind(
        **{
            name: int(x) if type_ == "int" else x
            for (name, type_), x in zip(names, numbers, strict=True)
        }
    )
