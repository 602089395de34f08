"""The contract of a vectorized environment: `num_envs` copies of one MDP stepped together as tensors.

Rows are grouped by member: rows `m * envs_per_member … (m + 1) * envs_per_member - 1` belong to member `m`, and
everything random about them comes from member `m`'s own stream (`envs.core.streams`). So a member sees the same episodes
with any other members in the batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from envs.core.streams import member_seeds


class Step(NamedTuple):
    """What one step returns. Rows whose episode ended have been reset already (autoreset in the same step).

    obs: (num_envs, state_dim + privileged_dim) float32, the first observation of the new episode where one ended.
    reward: (num_envs,) float32.
    terminated, truncated: (num_envs,) bool. A truncated episode's last observation is in `VecEnv.final_obs`.
    """

    obs: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor


class VecEnv(ABC):
    """A vectorized environment. Inside `step` there is no host synchronisation, and no branch on a tensor's value.

    The attributes up to `if_discrete` are those ElegantRL reads.

    privileged_dim: trailing observation columns that only a critic may read (0 for most environments).
    bootstrap_interval: the fewest steps from a truncation to the same row's next end of any kind; a learner calls
        `final_obs` at least that often.
    action_dims: sizes of the choices that make up one action, where there are several (multi-discrete); their sum is
        `action_dim`, actions are (num_envs, choices) int64, and `if_discrete` is true. () for other environments.
    masked: whether some choices may be illegal; then `action_mask` says which are legal.
    has_absent_agents: whether rows may be without an agent; then `present` says which have one.
    reward_unit: what a reward of 1 is in the game's own score, a number or (num_envs,) float64, where rewards are
        scaled for learning.
    rematches: whether `draw` may give rows, with the episodes that they are in, to other members: a learner then reads
        `observe` right after it.
    prescaled: whether observations need no centring and scaling, since they lie between about -1 and 1 by design.
    image_shape: (channels, height, width) where observations are images: uint8, flattened in that order. None: numbers.
    """

    env_name: str
    num_envs: int
    max_step: int
    state_dim: int
    action_dim: int
    if_discrete: bool
    privileged_dim: int = 0
    bootstrap_interval: int = 1
    action_dims: tuple[int, ...] = ()
    masked: bool = False
    has_absent_agents: bool = False
    rematches: bool = False
    prescaled: bool = False
    image_shape: tuple[int, int, int] | None = None
    reward_unit: float | Tensor = 1.0
    num_members: int
    envs_per_member: int
    device: torch.device

    def reset(self, seed: int | Sequence[int | None] | None = None) -> Tensor:
        """Start every row anew and return its first observation.

        seed: one per member, or one from which every member's is derived; None keeps the streams where they are. A None
            among several keeps that member's stream (or the slot empty, if it never had one). Where no seed was ever
            given at all, members get one from the operating system.
        """
        seeded = any(self.seeded(member) for member in range(self.num_members))
        for member, own in enumerate(member_seeds(seed, self.num_members, seeded=seeded)):
            self.reset_member(member, own)
        return self.observe()

    def seeded(self, member: int) -> bool:
        """Whether the member has a stream. For `reset`."""
        raise NotImplementedError(f"{self.env_name} has a reset of its own")

    def reset_member(self, member: int, seed: int | None = None) -> None:
        """Start that member's rows anew, its stream too where a seed is given; the others go on undisturbed. For
        `reset`.
        """
        raise NotImplementedError(f"{self.env_name} has a reset of its own")

    @abstractmethod
    def draw(self, horizon: int) -> None:
        """Draw the random numbers of the next `horizon` steps, per member. `step` draws for itself where they end."""

    @abstractmethod
    def step(self, action: Tensor, out: Tensor | None = None) -> Step:
        """Advance every row by one step.

        action: (num_envs, action_dim) float in [-1, 1]; of a discrete environment (num_envs,) int64, each one of 0 …
            action_dim - 1, or (num_envs, choices), each one of 0 … action_dims[choice] - 1.
        out: a (num_envs, state_dim + privileged_dim) tensor, float32, or uint8 where observations are images, to write
            the observation into; None: a new one.
        """

    def observe(self, out: Tensor | None = None) -> Tensor:
        """What every row sees now, as `step` returned it, or in `out`. For `reset`, and for `rematches`."""
        raise NotImplementedError(f"{self.env_name} can't be observed between steps")

    def action_mask(self, chosen: Tensor) -> Tensor:
        """Which options of the next choice are legal now: (num_envs, options) bool, at least one per row.

        chosen: (num_envs, k) int64, the choices made so far; the k-th choice (from 0) is asked for, so legality may
            depend on those before it. A row in which none is legal latches a fault. Environments that are `masked`.
        """
        raise NotImplementedError(f"{self.env_name} has no illegal actions")

    def present(self) -> Tensor:
        """(num_envs,) bool: rows with an agent that acts now. In the other rows, observations and actions have no
        meaning. Their rewards count: they belong to the agent's last action in the same episode. An agent that comes
        back before its row's episode ends continues that episode; if it is absent when the episode ends, the value of
        the end is 0. Environments with `has_absent_agents`.
        """
        raise NotImplementedError(f"{self.env_name} has an agent in every row")

    @abstractmethod
    def final_obs(self) -> Tensor:
        """(num_envs, state_dim + privileged_dim): the last observation of the episode that each row ended last.

        Undefined in rows that have ended none. Kept until the row's next episode ends.
        """

    @abstractmethod
    def faults(self) -> Tensor:
        """(num_envs,) bool, latched since the row was reset from outside: an action was not finite, out of
        range, or none of the choices.
        """

    @abstractmethod
    def check(self) -> None:
        """Raise `RunError` naming the first offending row, step, component and value, if a row has latched a fault.

        Synchronises.
        """

    @abstractmethod
    def get_member(self, member: int) -> dict[str, Tensor]:
        """What that member's rows and stream need to go on exactly: a flat dict of CPU tensors (safetensors-ready)."""

    @abstractmethod
    def set_member(self, member: int, state: dict[str, Tensor]) -> None:
        """Put back what `get_member` returned, in this or another slot."""

    def began_anew(self, member: int) -> bool:  # noqa: ARG002
        """Whether `set_member` could not bring the member's episodes back, so that new ones began: its learner is to
        `begin` with what they show. Never so for environments of our own.
        """
        return False
