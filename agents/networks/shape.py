"""What decides the tensor shapes of a program."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import torch

from agents.networks.convolution import features
from agents.networks.recurrence import GATES
from envs.core.vec_env import VecEnv
from envs.support.errors import InputError

# In searches. torch and MKL split the sums and products of a single slot between threads, so that its last bits depend
# on their number; those of two slots or more they don't split (torch 2.13; tests/agents/engine/test_digests.py).
FEWEST_SLOTS = 2
ON_POLICY = (
    "ppo",
    "elegantrl:ppo",
    "elegantrl:a2c",
)  # the algorithms that learn from the last rollout alone


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What decides the tensor shapes of a program. Two trials share a batch when their shapes are equal.

    state_dim, action_dim, privileged_dim, action_dims, masked, has_absent_agents, image_shape: of the environment; discrete:
    whether an action is one of action_dim choices rather than action_dim numbers; autoregressive: whether a choice
    depends on those before it, of the several that make up an action; slots: G, the members that a program holds (the
    last bits of a program with one slot depend on the number of threads); net_width, net_depth: hidden layers;
    num_envs: environments per member; horizon: steps per rollout; minibatch: transitions per member and gradient step;
    epochs: passes over a rollout (algorithms in `ON_POLICY`); updates: gradient steps per rollout, buffer: transitions
    that a member keeps for replay (all others); recurrent: "gru" or "lstm" where the networks remember, then bptt:
    steps that gradients run back through time.
    """

    state_dim: int
    action_dim: int
    privileged_dim: int = 0
    slots: int = 10
    net_width: int = 64
    net_depth: int = 2
    num_envs: int = 64
    horizon: int = 64
    minibatch: int = 512
    epochs: int = 8
    discrete: bool = False
    algorithm: str = "ppo"
    updates: int = 64
    buffer: int = 65_536
    action_dims: tuple[int, ...] = ()
    masked: bool = False
    autoregressive: bool = False
    has_absent_agents: bool = False
    image_shape: tuple[int, int, int] | None = None
    recurrent: str = ""
    bptt: int = 16

    @classmethod
    def for_env(cls, env: VecEnv, **others: Any) -> Shape:
        """The shape that fits an environment, with these other fields."""
        return cls(**env_fields(env), **others)

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name == "privileged_dim" else 1
            if field.type == "int" and (not isinstance(value, int) or value < least):
                raise InputError(
                    f"{field.name} must be a whole number of at least {least}, not {value!r}."
                )
            if field.type == "bool" and not isinstance(value, bool):
                raise InputError(f"{field.name} must be true or false, not {value!r}.")
        if self.action_dims and not (self.discrete and sum(self.action_dims) == self.action_dim):
            raise InputError(
                f"action_dims must be sizes of choices, discrete, that sum to action_dim {self.action_dim}, and are "
                f"{self.action_dims}."
            )
        if self.masked and not self.discrete:
            raise InputError(
                "masked must be false where actions are numbers: only choices can be illegal."
            )
        if self.image_shape is not None and (math.prod(self.image_shape), 0) != (
            self.state_dim,
            self.privileged_dim,
        ):
            raise InputError(
                f"image_shape {self.image_shape} needs as large a state_dim and no privileged_dim; they are "
                f"{self.state_dim} and {self.privileged_dim}."
            )
        if self.autoregressive and len(self.action_dims) < 2:
            raise InputError(
                f"autoregressive needs actions of several choices; action_dims is {self.action_dims}."
            )
        if self.recurrent not in {"", *GATES}:
            raise InputError(
                f"recurrent must be one of {', '.join(GATES)} or '', not {self.recurrent!r}."
            )
        if self.recurrent and (self.horizon % self.bptt or self.minibatch % self.bptt):
            raise InputError(
                f"bptt {self.bptt} must divide horizon {self.horizon} and minibatch {self.minibatch}: a rollout is "
                "learned from in whole sequences of that many steps."
            )
        if not self.algorithm.startswith(ON_POLICY):
            if self.buffer < max(self.samples, self.minibatch):
                raise InputError(
                    f"buffer {self.buffer} must hold at least a rollout of {self.samples} transitions and a minibatch "
                    f"of {self.minibatch}."
                )
        elif self.minibatch > self.samples:
            raise InputError(
                f"minibatch {self.minibatch} is larger than the {self.samples} transitions of a rollout "
                f"(num_envs {self.num_envs} x horizon {self.horizon}); it can be at most that."
            )

    @property
    def samples(self) -> int:
        """Transitions per member and rollout."""
        return self.num_envs * self.horizon

    @property
    def obs_dim(self) -> int:
        """Columns of an observation: what the actor sees, then what only the critic may see."""
        return self.state_dim + self.privileged_dim

    @property
    def obs_dtype(self) -> torch.dtype:
        """Type of observations in rollouts: uint8 of images, else torch's default."""
        return torch.get_default_dtype() if self.image_shape is None else torch.uint8

    @property
    def inputs(self) -> tuple[int, int]:
        """Columns that the first layers of the actor and of the critic read: of observations, or features of images."""
        if self.image_shape is None:
            return self.state_dim, self.obs_dim
        return features(self.image_shape), features(self.image_shape)

    @property
    def choices(self) -> tuple[int, ...]:
        """The sizes of the choices that make up a discrete action."""
        return self.action_dims or (self.action_dim,)

    @property
    def net_dims(self) -> list[int]:
        """Hidden sizes, as ElegantRL's networks take them."""
        return [self.net_width] * self.net_depth


def env_fields(env: VecEnv) -> dict[str, Any]:
    """The fields of a shape that are the environment's."""
    return {
        "slots": env.num_members,
        "num_envs": env.envs_per_member,
        "state_dim": env.state_dim,
        "action_dim": env.action_dim,
        "privileged_dim": env.privileged_dim,
        "discrete": env.if_discrete,
        "action_dims": tuple(env.action_dims),
        "masked": env.masked,
        "has_absent_agents": env.has_absent_agents,
        "image_shape": env.image_shape,
    }
