"""The base class of games and of external environments."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from sweepd.envs.core.faults import WithFaults
from sweepd.envs.core.policies import Policies
from sweepd.envs.core.vec_env import Step, VecEnv
from sweepd.envs.support.errors import InputError


class Follower(Protocol):
    """Follows the games of an environment's members, such as the phases of their training.

    What it keeps of a member is part of the member's state in the environment.
    """

    def begin_rollout(self, policies: Policies) -> None:
        """See `VecEnv.begin_rollout`."""

    def count(self, step: Step) -> None:
        """Take a step into account: by operations on tensors that stay where they are.

        A recorded step contains them.
        """

    def get_member(self, member: int) -> dict[str, Tensor]:
        """Return a member's part, for `VecEnv.get_member`."""
        ...

    def set_member(self, member: int, state: Mapping[str, Tensor]) -> None:
        """Restore what `get_member` returned. Called before the member's games are restored."""


class GameEnv(WithFaults, VecEnv):
    """A `VecEnv` whose slots are configured with their members' parameters.

    Subclasses call `_set_rows` first when they are made, and set `device` and `_faults`.

    Attributes:
        follower: Follows the members' games, if anything does.
        rows_per_game: Rows of one game, which are its seats.
    """

    follower: Follower | None = None
    rows_per_game: int = 1

    @abstractmethod
    def configure_member(self, member: int, params: Any) -> None:
        """Give a slot to another member; call `reset_member` or `set_member` next."""

    def change_member(self, member: int, params: Any) -> bool:
        """Give a member other parameters between two rollouts. Its running episodes go on.

        Returns:
            Whether the member's rows have begun other episodes instead. Learners then need their
            observations.
        """
        self.configure_member(member, params)
        return False

    def begin_rollout(self, policies: Policies) -> None:
        """See `VecEnv.begin_rollout`."""
        if self.follower is not None:
            self.follower.begin_rollout(policies)

    def by_game(self, rows: Tensor) -> Tensor:
        """Return one number per row, (num_envs,), as (games, seats). Games are grouped by member."""
        return rows.view(-1, self.rows_per_game)

    def rest(self, rows: Tensor) -> None:
        """Allow rows to be left out of further steps until their next reset.

        Where a step costs time per row, these then cost none. What they show is undefined.

        Args:
            rows: (num_envs,) bool.
        """

    def keep_infos(self) -> None:
        """Keep what the last step of every row's next episode says in `info`, see `infos`."""

    def infos(self, member: int) -> list[dict[str, Any]]:  # noqa: ARG002
        """Return what was kept of each of a member's games: numbers, texts and arrays by name.

        Empty for games without `info`, and for episodes that have not ended.
        """
        return [{} for _ in range(self.envs_per_member)]

    def _set_rows(self, name: str, members: int, envs_per_member: int) -> None:
        """Set the numbers of members and rows.

        Raises:
            InputError: There would be no rows. `name` is the environment's name in the message.
        """
        if members < 1 or envs_per_member < 1:
            raise InputError(
                f"{name} needs members and envs, and got {members} members of {envs_per_member} "
                "envs"
            )
        self.num_members, self.envs_per_member = members, envs_per_member
        self.num_envs = members * envs_per_member

    def _rows(self, member: int) -> slice:
        """Return the rows of a member."""
        return slice(member * self.envs_per_member, (member + 1) * self.envs_per_member)
