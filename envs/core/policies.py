"""What an environment may know of the policies that are trained in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor


class Policies(Protocol):
    """The members of a training program, by slot, as of the present rollout.

    An environment gets them before every rollout (`VecEnv.begin_rollout`), for opponents that are
    the members themselves.
    """

    def progress(self, slot: int) -> tuple[int, int] | None:
        """Return a member's finished rollouts and its total rollouts; None for an empty slot."""
        ...

    @property
    def actor_spec(self) -> Any:
        """What the members' actors are, as their file describes them (see the page on bundles)."""
        ...

    def acting_weights(self) -> dict[str, Tensor]:
        """Return the weights with which the members act, (slots, ...) by name.

        Names and layout are those of one member's exported actor, and the same at every call. May
        be views: they are valid until the program trains on, and must not be written to. Empty slots
        hold meaningless numbers.
        """
        ...

    def begin(self, obs: Tensor, slots: Sequence[int] | None = None) -> None:
        """Take the observations of slots whose rows have begun other episodes.

        Args:
            obs: (num_envs, obs_dim), of all rows.
            slots: those; None: all.
        """
        ...

    def clear_replay(self, slot: int) -> None:
        """Empty a member's replay buffer, if its algorithm has one."""
        ...
