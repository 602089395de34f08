"""The interface of vectorized environments: `num_envs` copies of one MDP stepped as tensors.

Rows are grouped by member: rows `m * envs_per_member … (m + 1) * envs_per_member - 1` belong to
member `m`, and all their randomness comes from member `m`'s stream (`sweepd.envs.core.streams`). So
a member's episodes do not depend on the other members in the batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from sweepd.envs.core.env_spec import EnvSpec
from sweepd.envs.core.policies import Policies
from sweepd.envs.core.streams import member_seeds
from sweepd.envs.support.errors import InputError

# Maps the choices made so far, (rows, k) int64, to the legal options of the next one,
# (rows, options) bool, such as `VecEnv.action_mask`.
Legal = Callable[[Tensor], Tensor]


class Step(NamedTuple):
    """Result of one step. Rows whose episode ended have been reset already (same-step autoreset).

    Attributes:
        obs: (num_envs, obs_dim) of `EnvSpec.obs_dtype`. The first observation of the new episode in
            rows whose episode ended.
        reward: (num_envs,) float32; of several players in turns, (num_envs, players).
        terminated: (num_envs,) bool.
        truncated: (num_envs,) bool. `VecEnv.final_obs` has the last observation of the episode.
    """

    obs: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor


class VecEnv(ABC):
    """A vectorized environment. `step` never synchronises with the host or branches on tensors.

    What it is for a learner, it says by attributes of the names of `EnvSpec`'s fields, of the class
    or of the instance: `state_dim`, `action_dim` and those that differ from their defaults. Others
    read them as `spec`. ElegantRL reads the attributes up to `if_discrete`.

    Attributes:
        env_name: the environment's name.
        num_envs: number of rows.
        max_step: maximum length of an episode in steps.
        state_dim: see `EnvSpec`.
        action_dim: see `EnvSpec`.
        if_discrete: see `EnvSpec`.
        bootstrap_interval: minimum number of steps from a truncation to the row's next episode end.
            Learners call `final_obs` at least this often.
        rematches: whether `draw` may assign rows, in the middle of their episodes, to other
            members. Learners then read `observe` right after it.
        prescaled: whether observations need no normalisation, being about -1 … 1 by design.
        counted: options of the first choice whose share among the decisions is recorded, by name,
            such as {"pass": 0}.
        reward_unit: score of the game per unit of reward, a number or (num_envs,) float64, if
            rewards are scaled for learning.
        native: whether compiled code makes the steps (of some environments, on CPUs).
        score_range: lowest and highest possible score of an episode (its undiscounted return, in units
            of the game), if they are known. Intervals of few scores then hold whatever their
            distribution is.
        replayable: whether `plan_step` and `planned_step` exist, so that learners may record the
            operations of a step and replay them.
        debug: whether illegal actions stop the run in their own step.
        num_members: number of members.
        envs_per_member: rows per member.
        device: device of all tensors.
    """

    env_name: str
    num_envs: int
    max_step: int
    state_dim: int
    action_dim: int
    if_discrete: bool = False
    bootstrap_interval: int = 1
    rematches: bool = False
    prescaled: bool = False
    counted: Mapping[str, int] = MappingProxyType({})
    reward_unit: float | Tensor = 1.0
    native: bool = False
    score_range: tuple[float, float] | None = None
    replayable: bool = False
    debug: bool = False
    num_members: int
    envs_per_member: int
    device: torch.device

    @cached_property
    def spec(self) -> EnvSpec:
        """What the environment is for a learner. Its attributes must not change after this.

        Raises:
            InputError: they do not fit together, or some are missing.
        """
        names = [field.name for field in fields(EnvSpec) if hasattr(self, field.name)]
        try:
            return EnvSpec(**{name: getattr(self, name) for name in names})
        except (InputError, TypeError) as error:  # TypeError: one is missing
            raise InputError(f"{self.env_name}: {error}") from None

    def reset(self, seed: int | Sequence[int | None] | None = None) -> Tensor:
        """Start a new episode in every row and return the first observations.

        Args:
            seed: a seed per member, or one from which all are derived. None keeps the streams. A
                None among several keeps that member's stream, or the slot empty if it has none. If
                no seed was ever given, seeds come from the operating system.
        """
        seeded = any(self.seeded(member) for member in range(self.num_members))
        for member, own in enumerate(member_seeds(seed, self.num_members, seeded=seeded)):
            self.reset_member(member, own)
        return self.observe()

    def seeded(self, member: int) -> bool:
        """Whether the member has a stream. Used by `reset`."""
        raise NotImplementedError(f"{self.env_name} has a reset of its own")

    def reset_member(self, member: int, seed: int | None = None) -> None:
        """Restart one member's rows, and its stream if a seed is given. Used by `reset`."""
        raise NotImplementedError(f"{self.env_name} has a reset of its own")

    @abstractmethod
    def draw(self, horizon: int) -> None:
        """Draw the random numbers of the next `horizon` steps. When they run out, `step` draws."""

    @abstractmethod
    def step(self, action: Tensor, out: Tensor | None = None) -> Step:
        """Advance every row by one step.

        Args:
            action: (num_envs, action_dim) float in [-1, 1]. In discrete environments (num_envs,)
                int64 in 0 … action_dim - 1, or (num_envs, choices) int64 in 0 … action_dims[k] - 1.
            out: a buffer for the observation, (num_envs, obs_dim) of `EnvSpec.obs_dtype`. None
                allocates one.
        """

    def plan_step(self) -> Hashable:
        """Do what the next step needs of the host. Only for `replayable` environments.

        `step` is this and `planned_step`.

        Returns:
            What decides which operations `planned_step` runs, and on which memory. A step can be
            replaced by a replay of another one's operations if both have equal plans.
        """
        raise NotImplementedError(f"{self.env_name} has steps that cannot be replayed")

    def planned_step(self, action: Tensor, out: Tensor | None = None) -> Step:
        """Make the planned step: operations on the device only. Arguments as of `step`."""
        raise NotImplementedError(f"{self.env_name} has steps that cannot be replayed")

    def _planned(self, action: Tensor, out: Tensor | None, *components: int) -> Step:
        """Make a step as it is planned: `step` of environments that have `plan_step`.

        Args:
            action: as of `step`, (num_envs, *components).
            out: likewise.
            components: see `_check_shape`.
        """
        self._check_shape(action, *components)
        self.plan_step()
        step = self.planned_step(action, out)
        if self.debug:
            self.check()
        return step

    def observe(self, out: Tensor | None = None) -> Tensor:
        """Return (or write to `out`) the current observation of every row."""
        raise NotImplementedError(f"{self.env_name} can't be observed between steps")

    def action_mask(self, chosen: Tensor) -> Tensor:
        """Return which options of the next choice are legal: (num_envs, options) bool.

        Only for `masked` environments. A row without a legal option latches a fault.

        Args:
            chosen: (num_envs, k) int64, the first k choices of this step. The mask is that of
                choice k (from 0) and may depend on them.
        """
        raise NotImplementedError(f"{self.env_name} has no illegal actions")

    def present(self) -> Tensor:
        """Return which rows have an agent that acts now: (num_envs,) bool.

        Only for environments with `has_absent_agents`. In the other rows, observations and actions
        are ignored, but rewards count for the agent's last action in the episode. An agent that
        returns before its row's episode ends continues that episode. If it is absent at the end,
        the value of the final state is 0.
        """
        raise NotImplementedError(f"{self.env_name} has an agent in every row")

    def to_move(self) -> Tensor:
        """Return the player to move in each row: (num_envs,) int64 from 0 to players - 1.

        Only for environments of several `players`. Observations and masks are the mover's, and the
        action is for it; rewards are for all players. Episodes terminate and are never truncated.
        """
        raise NotImplementedError(f"{self.env_name} has one player in every row")

    @abstractmethod
    def final_obs(self) -> Tensor:
        """Return the final observation of each row's last completed episode.

        (num_envs, obs_dim). Undefined in rows without a completed episode.
        """

    @abstractmethod
    def faults(self) -> Tensor:
        """Return which rows had an illegal action since their reset: (num_envs,) bool."""

    @abstractmethod
    def check(self) -> None:
        """Raise RunError for the earliest fault, naming row, step, component and value.

        Synchronises with the device.
        """

    @abstractmethod
    def get_member(self, member: int) -> dict[str, Tensor]:
        """Return a member's exact state and stream: a flat dict of CPU tensors (safetensors)."""

    @abstractmethod
    def set_member(self, member: int, state: dict[str, Tensor]) -> None:
        """Restore what `get_member` returned, in the same or another slot."""

    def begin_rollout(self, policies: Policies) -> None:  # noqa: B027
        """Prepare for a rollout of the members of `policies`, which are in the same slots.

        Training calls this before every rollout. Games whose opponents are the members themselves
        take their weights here. Do nothing by default.
        """

    def close(self) -> None:  # noqa: B027
        """Release processes and other resources. Do nothing by default."""

    def reward_fault(self, member: int) -> str:  # noqa: ARG002
        """Return which reward of the member was not finite, in words; "" if all were.

        Only environments on the CPU know; of others, training finds it in the gradients.
        """
        return ""

    def restarted(self, member: int) -> bool:  # noqa: ARG002
        """Whether `set_member` could not restore the member's episodes and started new ones.

        The learner then calls `begin` with their observations. Always false for sweepd's own
        environments.
        """
        return False

    def _check_shape(self, action: Tensor, *components: int) -> None:
        """Raise ValueError unless actions are (num_envs, *components).

        Without this check, torch would broadcast some other shapes.
        """
        if action.shape != (self.num_envs, *components):
            raise ValueError(
                f"actions have the shape {tuple(action.shape)}, not {(self.num_envs, *components)}"
            )


def on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous copies on the CPU, for `VecEnv.get_member`."""
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
