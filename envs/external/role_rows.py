"""External environments of several roles, in which each role is a member of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sweepd.envs.core.game_env import GameEnv
from sweepd.envs.core.vec_env import Step
from sweepd.envs.external.conformance import Conformance
from sweepd.envs.external.roles import Roles
from sweepd.envs.external.vec_env import ExternalVecEnv
from sweepd.envs.support.errors import InputError


class RoleRows(GameEnv):
    """Games in which consecutive members are the roles: they share their games.

    Member `group * roles + role` has `roles.rows` rows per game, one for each agent of its role; a
    role with fewer agents than the largest one has rows that are always absent. The games of a
    group are those of a member of `inner`, of the first role's seed and parameters.

    Attributes:
        inner: the environments, whose rows are agents in the order of `possible_agents`.
        roles: who plays what.
    """

    has_absent_agents = True

    def __init__(self, inner: ExternalVecEnv, roles: Roles) -> None:
        """Raises InputError if the rows of `inner` are not those of games with these roles."""
        agents = sum(map(len, roles.agents))
        if inner.envs_per_member % agents:
            raise InputError(
                f"{inner.env_name}: {inner.envs_per_member} rows are no games of roles"
            )
        self.inner, self.roles, self.env_name = inner, roles, inner.env_name
        self.device, self.debug = inner.device, inner.debug
        games, count = inner.envs_per_member // agents, len(roles.names)
        self._set_rows(inner.env_name, inner.num_members * count, games * roles.rows)
        self.max_step, self.score_range = inner.max_step, None
        self.state_dim, self.action_dim = inner.state_dim, inner.action_dim
        self.if_discrete = inner.if_discrete
        self.spec = replace(inner.spec, has_absent_agents=True)
        # Of an absent row, the role's first agent: so that it ends with the game.
        places = torch.tensor(
            [own + own[:1] * (roles.rows - len(own)) for own in roles.agents], dtype=torch.int64
        )
        filled = torch.tensor(
            [[slot < len(own) for slot in range(roles.rows)] for own in roles.agents]
        )
        first = torch.arange(inner.num_members * games).view(inner.num_members, 1, games, 1)
        self._from = (first * agents + places.view(1, count, 1, -1)).flatten().to(self.device)
        self._filled = filled.view(1, count, 1, -1).expand(inner.num_members, -1, games, -1)
        self._filled = self._filled.flatten().to(self.device)
        self._row_of = torch.zeros(inner.num_envs, dtype=torch.int64, device=self.device)
        rows = torch.arange(self.num_envs, device=self.device)
        self._row_of[self._from[self._filled]] = rows[self._filled]

    def configure_member(self, member: int, params: Any) -> None:
        """See `GameEnv.configure_member`."""
        group, role = self._place(member)
        if role == 0:
            self.inner.configure_member(group, params)

    def seeded(self, member: int) -> bool:
        """See `VecEnv.seeded`."""
        return self.inner.seeded(self._place(member)[0])

    def reset_member(self, member: int, seed: int | None = None) -> None:
        """See `VecEnv.reset_member`. The first role's reset is that of the group's games."""
        group, role = self._place(member)
        if role == 0:
            self.inner.reset_member(group, seed)

    def rest(self, rows: Tensor) -> None:
        """See `GameEnv.rest`."""
        self.inner.rest(rows[self._row_of])

    def draw(self, horizon: int) -> None:
        """See `VecEnv.draw`."""
        self.inner.draw(horizon)

    def step(self, action: Tensor, out: Tensor | None = None) -> Step:
        """See `VecEnv.step`."""
        made = self.inner.step(action[self._row_of])
        reward = torch.where(self._filled, made.reward[self._from], 0.0)
        ends = made.terminated[self._from], made.truncated[self._from]
        return Step(self._rows_of(made.obs, out), reward, *ends)

    def observe(self, out: Tensor | None = None) -> Tensor:
        """See `VecEnv.observe`."""
        return self._rows_of(self.inner.observe(), out)

    def present(self) -> Tensor:
        """See `VecEnv.present`."""
        return self.inner.present()[self._from] & self._filled

    def action_mask(self, chosen: Tensor) -> Tensor:
        """See `VecEnv.action_mask`."""
        return self.inner.action_mask(chosen[self._row_of])[self._from]

    def final_obs(self) -> Tensor:
        """See `VecEnv.final_obs`."""
        return self._rows_of(self.inner.final_obs(), None)

    def faults(self) -> Tensor:
        """See `VecEnv.faults`."""
        return self.inner.faults()[self._from] & self._filled

    def check(self) -> None:
        """See `VecEnv.check`. Messages name the rows and members of `inner`."""
        self.inner.check()

    def get_member(self, member: int) -> dict[str, Tensor]:
        """See `VecEnv.get_member`. The first role's state is that of the group's games."""
        group, role = self._place(member)
        return self.inner.get_member(group) if role == 0 else {"role": torch.tensor([role])}

    def set_member(self, member: int, state: dict[str, Tensor]) -> None:
        """See `VecEnv.set_member`. Restore the first role before the others."""
        group, role = self._place(member)
        if role == 0:
            self.inner.set_member(group, state)

    def restarted(self, member: int) -> bool:
        """See `VecEnv.restarted`."""
        return self.inner.restarted(self._place(member)[0])

    def reward_fault(self, member: int) -> str:
        """See `VecEnv.reward_fault`."""
        return self.inner.reward_fault(self._place(member)[0])

    def conformance(self) -> Conformance:
        """See `ExternalVecEnv.conformance`. Roles may be each other's opponents."""
        found = self.inner.conformance()
        found.problems.pop("zero-sum", None)
        return found

    def close(self) -> None:
        """See `VecEnv.close`."""
        self.inner.close()

    def _place(self, member: int) -> tuple[int, int]:
        """Return the group and the role of a member."""
        return divmod(member, len(self.roles.names))

    def _rows_of(self, seen: Tensor, out: Tensor | None) -> Tensor:
        """Return observations of agents as those of rows; zeros in rows without an agent."""
        rows = seen[self._from]
        rows[~self._filled] = 0
        return rows if out is None else out.copy_(rows)


def role_members(params: Sequence[Any], roles: Roles) -> list[Mapping[str, Any]]:
    """Return the parameters of each group, those of its first role.

    Raises:
        InputError: the members are no whole groups.
    """
    if len(params) % len(roles.names):
        raise InputError(
            f"{len(params)} members cannot play in groups of the {len(roles.names)} roles "
            f"{', '.join(roles.names)}"
        )
    return [dict(own) for own in params[:: len(roles.names)]]
