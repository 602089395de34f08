"""The fields that decide the tensor shapes of a program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from sweepd.agents.networks.activation import ACTIVATIONS, RELU
from sweepd.agents.networks.entities import ROUND
from sweepd.agents.networks.recurrence import GATES
from sweepd.envs.core.env_spec import BYTES, EnvSpec
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
class Shape(EnvSpec):
    """What decides the tensor shapes of a program: an environment's spec, and sizes of learning.

    Trials with equal shapes can share a batch.

    Attributes:
        slots: G, the members that a program holds. (With one slot, the last bits depend on the
            number of threads.)
        net_width: width of the hidden layers.
        net_depth: number of hidden layers.
        activation: function after each hidden layer, one of `ACTIVATIONS`.
        num_envs: environments per member.
        horizon: steps per rollout.
        minibatch: transitions per member and gradient step.
        epochs: passes over a rollout (algorithms in `ON_POLICY`).
        algorithm: its name.
        updates: gradient steps per rollout (all other algorithms).
        buffer: transitions that a member's replay buffer holds (all other algorithms).
        autoregressive: whether a choice depends on the earlier choices of the same action.
        item_width: numbers that encode an item.
        entity_width: numbers that encode an entity (`EnvSpec.entities`), a multiple of 16; 0: networks
            read the columns as they are.
        recurrent: "gru" or "lstm" for recurrent networks, else "".
        bptt: steps of truncated backpropagation through time, of recurrent networks.
        policies: "shared" if a member has one actor and critic, "per-seat" if it has one of each
            for each of two seats (`sweepd.agents.networks.net`).
        async_envs: K where environments are stepped as they are ready: a rollout has transitions for
            one of K environments, so those that are ready first make more steps; 0: all are
            stepped together (`sweepd.agents.engine.async_rollout`).
        running_scale: whether the scale of observations is a running statistic of each member
            (`sweepd.agents.engine.running_scale`); else it stays as it was given.
    """

    slots: int = 10
    net_width: int = 64
    net_depth: int = 2
    num_envs: int = 64
    horizon: int = 64
    minibatch: int = 512
    epochs: int = 8
    algorithm: str = "ppo"
    updates: int = 64
    buffer: int = 65_536
    autoregressive: bool = False
    item_width: int = 16
    entity_width: int = 0
    recurrent: str = ""
    bptt: int = 16
    policies: str = SHARED
    running_scale: bool = False
    activation: str = RELU
    async_envs: int = 0

    @classmethod
    def for_env(cls, env: VecEnv, **others: Any) -> Self:
        """Return the shape that fits an environment, with these other fields."""
        return cls(**{**env_fields(env), **others})

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_network()
        self._check_policies()
        self._check_sizes()

    def _check_network(self) -> None:
        check_activation(self.activation)
        if self.running_scale and self.obs_dtype == BYTES:
            raise InputError("running_scale must be false where observations are bytes.")
        if self.autoregressive and len(self.action_dims) < 2:
            raise InputError(
                "autoregressive needs actions of several choices; action_dims is "
                f"{self.action_dims}."
            )
        check_entity_width(self.entity_width)
        if self.entity_width and self.entities is None:
            raise InputError(
                f"entity_width must be 0, not {self.entity_width}: the environment has no entities."
            )
        if self.recurrent not in {"", *GATES}:
            raise InputError(
                f"recurrent must be one of {', '.join(GATES)} or '', not {self.recurrent!r}."
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
        if self.seat_column is None:
            raise InputError(
                f"policies {PER_SEAT!r} need a game in turns whose observations have a column that "
                f"tells the seat (seat_column), not {self.seat_column!r}."
            )
        if not self.if_discrete or self.autoregressive or self.recurrent or self.image_shape:
            raise InputError(
                f"policies must be {SHARED!r} where actions are numbers, choices are "
                "autoregressive, networks are recurrent, or observations are images."
            )

    def _check_sizes(self) -> None:
        """Check the sizes of rollouts, minibatches and buffers."""
        if self.num_envs % max(1, self.async_envs):
            raise InputError(
                f"async_envs must be 0 or a divisor of num_envs {self.num_envs}, not "
                f"{self.async_envs}."
            )
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
        return self.learned_envs * self.horizon

    @property
    def learned_envs(self) -> int:
        """Environments whose steps together are the transitions of a rollout."""
        return self.num_envs // max(1, self.async_envs)

    @property
    def loses_transitions(self) -> bool:
        """Whether some transitions are invalid: their outcome is not in the rollout."""
        return self.has_absent_agents or self.players > 1

    @property
    def net_dims(self) -> list[int]:
        """Hidden sizes, in ElegantRL's form."""
        return [self.net_width] * self.net_depth


def check_activation(activation: object) -> None:
    """Raise InputError unless `activation` is one of `ACTIVATIONS`."""
    if activation not in ACTIVATIONS:
        raise InputError(f"activation must be one of {', '.join(ACTIVATIONS)}, not {activation!r}.")


def check_entity_width(width: object) -> None:
    """Raise InputError unless `width` is 0 or a multiple of 16."""
    if not isinstance(width, int) or width < 0 or width % ROUND:
        raise InputError(f"entity_width must be 0 or a multiple of {ROUND}, not {width!r}.")


def check_policies(policies: object) -> None:
    """Raise InputError unless `policies` is one of `POLICIES`."""
    if policies not in POLICIES:
        raise InputError(f"policies must be one of {', '.join(POLICIES)}, not {policies!r}.")


def env_fields(env: VecEnv) -> dict[str, Any]:
    """Return the fields of a shape that the environment determines."""
    return {**vars(env.spec), "slots": env.num_members, "num_envs": env.envs_per_member}
