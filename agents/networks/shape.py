"""The fields that decide the tensor shapes of a program."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import torch

from sweepd.agents.networks.activation import ACTIVATIONS, RELU
from sweepd.agents.networks.recurrence import GATES
from sweepd.envs.core.items import Items
from sweepd.envs.core.vec_env import VecEnv
from sweepd.envs.support.errors import InputError

# Fewest slots in a study. With a single slot, torch and MKL split sums and products between
# threads, so the last bits depend on their number; with two or more they do not (torch 2.13;
# tests/agents/engine/test_digests.py).
FEWEST_SLOTS = 2
# The algorithms that learn from the latest rollout only, and those that have a replay buffer.
ON_POLICY = ("ppo", "elegantrl:ppo", "elegantrl:a2c")
REPLAYING = ("sac", "d3qn", "elegantrl:")
# One policy for both seats of a game, or one for each.
SHARED, PER_SEAT = "shared", "per-seat"
POLICIES = (SHARED, PER_SEAT)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What decides the tensor shapes of a program. Trials with equal shapes can share a batch.

    Attributes:
        state_dim: columns of an observation that the actor reads.
        action_dim: numbers of an action, or options of all choices together.
        privileged_dim: further columns that only the critic reads.
        slots: G, the members that a program holds. (With one slot, the last bits depend on the
            number of threads.)
        net_width: width of the hidden layers.
        net_depth: number of hidden layers.
        activation: function after each hidden layer, one of `ACTIVATIONS`.
        num_envs: environments per member.
        horizon: steps per rollout.
        minibatch: transitions per member and gradient step.
        epochs: passes over a rollout (algorithms in `ON_POLICY`).
        discrete: whether actions are choices rather than numbers.
        algorithm: its name.
        updates: gradient steps per rollout (all other algorithms).
        buffer: transitions that a member's replay buffer holds (all other algorithms).
        action_dims: sizes of the choices that make up an action; () for a single one.
        masked: whether choices may be illegal.
        autoregressive: whether a choice depends on the earlier choices of the same action.
        has_absent_agents: whether rows may be without an agent.
        players: players that act in turns in every row; 1 if every row is one player's.
        seat_column: column of observations that tells the seat (`VecEnv.seat_column`), if one does.
        byte_obs: whether observations are bytes, uint8, without being images.
        image_shape: (channels, height, width) of images; None: observations are numbers.
        items: layout of observations with items that are looked up by id; None: there are none.
        item_width: numbers that encode an item.
        recurrent: "gru" or "lstm" for recurrent networks, else "".
        bptt: steps of truncated backpropagation through time, of recurrent networks.
        policies: "shared" if a member has one actor and critic, "per-seat" if it has one of each
            for each of two seats (`sweepd.agents.networks.seats`).
        running_scale: whether the scale of observations is a running statistic of each member
            (`sweepd.agents.engine.running_scale`); else it stays as it was given.
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
    players: int = 1
    seat_column: int | None = None
    byte_obs: bool = False
    image_shape: tuple[int, int, int] | None = None
    items: Items | None = None
    item_width: int = 16
    recurrent: str = ""
    bptt: int = 16
    policies: str = SHARED
    running_scale: bool = False
    activation: str = RELU

    @classmethod
    def for_env(cls, env: VecEnv, **others: Any) -> Shape:
        """Return the shape that fits an environment, with these other fields."""
        return cls(**env_fields(env), **others)

    def __post_init__(self) -> None:
        self._check_types()
        self._check_env()
        self._check_network()
        self._check_policies()
        self._check_sizes()

    def _check_types(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name == "privileged_dim" else 1
            if field.type == "int" and (not isinstance(value, int) or value < least):
                raise InputError(
                    f"{field.name} must be a whole number of at least {least}, not {value!r}."
                )
            if field.type == "bool" and not isinstance(value, bool):
                raise InputError(f"{field.name} must be true or false, not {value!r}.")

    def _check_env(self) -> None:
        """Check the fields that the environment determines."""
        if self.action_dims and not (self.discrete and sum(self.action_dims) == self.action_dim):
            raise InputError(
                "action_dims must be the sizes of discrete choices that sum to action_dim "
                f"{self.action_dim}, not {self.action_dims}."
            )
        if self.masked and not self.discrete:
            raise InputError(
                "masked must be false where actions are numbers: only choices can be illegal."
            )
        if self.players > 1 and self.has_absent_agents:
            raise InputError("has_absent_agents must be false where several players act in turns.")
        dims = self.state_dim, self.privileged_dim
        if self.image_shape is not None and (math.prod(self.image_shape), 0) != dims:
            raise InputError(
                f"image_shape {self.image_shape} needs a state_dim of the same size and a "
                f"privileged_dim of 0; they are {self.state_dim} and {self.privileged_dim}."
            )
        if self.running_scale and self.obs_dtype == torch.uint8:
            raise InputError("running_scale must be false where observations are bytes.")
        if self.items is not None and (not self.byte_obs or (self.items.columns, 0) != dims):
            raise InputError(
                f"items of {self.items.columns} columns need observations of as many bytes "
                "(byte_obs, state_dim) and a privileged_dim of 0; they are "
                f"{self.byte_obs}, {self.state_dim} and {self.privileged_dim}."
            )

    def _check_network(self) -> None:
        check_activation(self.activation)
        if self.autoregressive and len(self.action_dims) < 2:
            raise InputError(
                "autoregressive needs actions of several choices; action_dims is "
                f"{self.action_dims}."
            )
        if self.recurrent not in {"", *GATES}:
            raise InputError(
                f"recurrent must be one of {', '.join(GATES)} or '', not {self.recurrent!r}."
            )
        if self.recurrent and self.players > 1:
            raise InputError(
                f"recurrent must be '' where {self.players} players act in turns in every row, not "
                f"{self.recurrent!r}: they would share one state."
            )
        if self.recurrent and (self.horizon % self.bptt or self.minibatch % self.bptt):
            raise InputError(
                f"bptt {self.bptt} must divide horizon {self.horizon} and minibatch "
                f"{self.minibatch}: minibatches are made of whole sequences of that many steps."
            )

    def _check_policies(self) -> None:
        check_policies(self.policies)
        if self.policies == SHARED:
            return
        if self.seat_column is None or not 0 <= self.seat_column < self.state_dim:
            raise InputError(
                f"policies {PER_SEAT!r} need a game in turns whose observations have a column that "
                f"tells the seat (seat_column), not {self.seat_column!r}."
            )
        if not self.discrete or self.autoregressive or self.recurrent or self.image_shape:
            raise InputError(
                f"policies must be {SHARED!r} where actions are numbers, choices are "
                "autoregressive, networks are recurrent, or observations are images."
            )

    def _check_sizes(self) -> None:
        """Check the sizes of minibatches and buffers."""
        # `startswith` also covers users' subclasses, "elegantrl:ppo:MODULE:CLASS".
        on_policy = self.algorithm.startswith(ON_POLICY)
        replays = not on_policy and self.algorithm.startswith(REPLAYING)
        if replays and self.buffer < max(self.samples, self.minibatch):
            raise InputError(
                f"buffer {self.buffer} must hold at least a rollout of {self.samples} "
                f"transitions and a minibatch of {self.minibatch}."
            )
        if on_policy and self.minibatch > self.samples:
            raise InputError(
                f"minibatch {self.minibatch} is larger than the {self.samples} transitions of a "
                f"rollout (num_envs {self.num_envs} x horizon {self.horizon}); at most that."
            )

    @property
    def sets_per_member(self) -> int:
        """Sets of weights of a member: an actor and a critic each."""
        return 1 if self.policies == SHARED else 2

    @property
    def samples(self) -> int:
        """Transitions per member and rollout."""
        return self.num_envs * self.horizon

    @property
    def obs_dim(self) -> int:
        """Columns of an observation: those of the actor, then the privileged ones."""
        return self.state_dim + self.privileged_dim

    @property
    def obs_dtype(self) -> torch.dtype:
        """Type of observations in rollouts: uint8 of images and bytes, else torch's default.

        uint8 observations are normalised only when networks read them.
        """
        as_bytes = self.byte_obs or self.image_shape is not None
        return torch.uint8 if as_bytes else torch.get_default_dtype()

    @property
    def loses_transitions(self) -> bool:
        """Whether some transitions are invalid: their outcome is not in the rollout."""
        return self.has_absent_agents or self.players > 1

    @property
    def choices(self) -> tuple[int, ...]:
        """The sizes of the choices that make up a discrete action."""
        # A single choice has no `action_dims`, since environments then take (rows,) actions.
        return self.action_dims or (self.action_dim,)

    @property
    def net_dims(self) -> list[int]:
        """Hidden sizes, in ElegantRL's form."""
        return [self.net_width] * self.net_depth


def check_activation(activation: object) -> None:
    """Raise InputError unless `activation` is one of `ACTIVATIONS`."""
    if activation not in ACTIVATIONS:
        raise InputError(f"activation must be one of {', '.join(ACTIVATIONS)}, not {activation!r}.")


def check_policies(policies: object) -> None:
    """Raise InputError unless `policies` is one of `POLICIES`."""
    if policies not in POLICIES:
        raise InputError(f"policies must be one of {', '.join(POLICIES)}, not {policies!r}.")


def env_fields(env: VecEnv) -> dict[str, Any]:
    """Return the fields of a shape that the environment determines."""
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
        "players": env.players,
        "seat_column": env.seat_column,
        "byte_obs": env.obs_dtype == torch.uint8 and env.image_shape is None,
        "image_shape": env.image_shape,
        "items": env.items,
    }
