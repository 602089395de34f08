"""How many games members have finished, and what they scored in them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sweepd.envs.core.game_env import GameEnv
from sweepd.envs.core.vec_env import Step

# Returns are added up in units of 2^-20: sums of whole numbers are the same in any order, on any
# number of threads.
_UNIT = 2.0**-20


class Tally:
    """Counts the games that every member of an environment has finished, and sums their returns.

    A game's return is the sum of its rewards over all steps and seats, in units of the game's score,
    as in evaluations. Where members share games, each has its part of them.
    """

    def __init__(self, env: GameEnv, *, returns: bool = True) -> None:
        """Begin at zero. Call `count` after every step.

        Args:
            env: The environment.
            returns: Whether to sum returns, too.
        """
        self._env = env
        self._each = env.envs_per_member // env.rows_per_game
        # Of every game that is played one after the other in the same rows: sums are made when they
        # are asked for, since a step should cost as little as possible.
        games = env.num_members * self._each
        self._games = torch.zeros(games, dtype=torch.int64, device=env.device)
        self._sums = {
            name: torch.zeros(games, dtype=torch.float64, device=env.device)
            for name in ("running", "returns")
            if returns
        }

    def count(self, step: Step) -> None:
        """Count a step of the environment. Writes to tensors in place, and reads none on the host."""
        env, several = self._env, self._env.rows_per_game > 1
        ended = step.terminated | step.truncated
        if several:
            ended = env.by_game(ended).any(1)
        self._games += ended
        if not self._sums:
            return
        running, reward = self._sums["running"], step.reward.double() * env.reward_unit
        running += env.by_game(reward).sum(1) if several else reward
        self._sums["returns"] += torch.where(ended, running, 0.0)
        running.masked_fill_(ended, 0.0)

    def totals(self) -> Tensor:
        """Return (2, members) float64: finished games, and the sums of their returns, or zeros."""
        members = self._env.num_members
        games = self._games.view(members, -1).sum(1).double()
        if not self._sums:
            return torch.stack((games, torch.zeros_like(games)))
        units = (self._sums["returns"] / _UNIT).round().long()
        return torch.stack((games, units.view(members, -1).sum(1).double() * _UNIT))

    def clear(self, member: int) -> None:
        """Begin again at zero for a member."""
        for tensor in self.get_member(member).values():
            tensor.zero_()

    def get_member(self, member: int) -> dict[str, Tensor]:
        """Return a member's part as views, for `VecEnv.get_member`."""
        games = slice(member * self._each, (member + 1) * self._each)
        own = {f"tally_{name}": tensor[games] for name, tensor in self._sums.items()}
        return own | {"tally_games": self._games[games]}

    def set_member(self, member: int, state: Mapping[str, Tensor]) -> None:
        """Restore what `get_member` returned."""
        for name, tensor in self.get_member(member).items():
            tensor.copy_(state[name])
