"""Observations of Bucket Brigade: the game's own numbers (raw), or encoded for learning (scaled).

Both begin with what all agents of a game observe in common, and end with the agent, one-hot.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from sweepd.envs.games.bucket_brigade.rules import BURNING, HOUSE, MODE, RUINED, SIGNAL
from sweepd.envs.games.bucket_brigade.scenarios import BucketParams

SCENARIO_SIZE = 12
_MOST_AT_ONCE = 5  # houses encoded by one table look-up: 3 ** 5 patterns


class ObservationEncoder:
    """Encodes the observations of E games of N agents around a ring of H houses.

    Raw, H + 4 N + 12 + N numbers: houses (H), signals (N), locations (N), last house and mode of
    every agent (2 N), the scenario (12), the agent (N).

    Scaled, 3 H + N (H + 2) + 12 + N numbers: every house as (safe, burning, ruined); every agent's
    location one-hot, mode and signal; the scenario, with rewards divided by
    `BucketParams.reward_scale`, nights by max_nights and agents by 10; the agent. An agent's last
    house is its location, so it is included once.

    Attributes:
        seen: Number of numbers that follow from the state.
        shared: Number of numbers that all agents of a game observe in common.
        size: Number of all.
        table: (E, size), what all agents of each game observe in common; the rest is 0.
    """

    def __init__(
        self, num_houses: int, num_agents: int, games: int, *, scaled: bool, device: torch.device
    ) -> None:
        self.num_houses, self.num_agents, self.scaled = num_houses, num_agents, scaled
        self.seen = (
            3 * num_houses + num_agents * (num_houses + 2)
            if scaled
            else num_houses + 4 * num_agents
        )
        self.shared = self.seen + SCENARIO_SIZE
        self.size = self.shared + num_agents
        self.table = torch.zeros(games, self.size, device=device)
        if scaled:
            self._at_once = next(k for k in range(_MOST_AT_ONCE, 0, -1) if num_houses % k == 0)
            # Tables of encoded patterns: a look-up is faster than encoding number by number.
            patterns = torch.tensor(list(itertools.product(range(3), repeat=self._at_once)))
            self._houses = torch.eye(3)[patterns].flatten(1).to(device)
            act = torch.tensor(list(itertools.product(range(num_houses), (0, 1), (0, 1))))
            self._acts = torch.cat(
                [torch.eye(num_houses)[act[:, HOUSE]], act[:, MODE:].float()], dim=1
            ).to(device)
            self._houses_shown = torch.zeros(
                games * num_houses // self._at_once, 3 * self._at_once, device=device
            )
            self._acts_shown = torch.zeros(games * num_agents, num_houses + 2, device=device)
        else:
            at = [
                *range(num_houses),
                *(num_houses + 3 * agent + SIGNAL for agent in range(num_agents)),
                *(num_houses + 3 * agent + HOUSE for agent in range(num_agents)),
                *(
                    num_houses + 3 * agent + part
                    for agent in range(num_agents)
                    for part in (HOUSE, MODE)
                ),
            ]
            self._order = torch.tensor(at, device=device)

    def configure(self, games: slice | Tensor, params: BucketParams) -> None:
        """Set the scenario that is observed in some games."""
        numbers = torch.tensor(params.observed(), dtype=torch.float64)
        if self.scaled:
            numbers[3:9] /= params.reward_scale
            numbers[10] /= params.max_nights
            numbers[11] /= 10.0
        self.table[games, self.seen : self.shared] = numbers.to(self.table)

    def show(
        self, houses: Tensor, acts: Tensor, out: Tensor, game_of: Tensor, agent_of: Tensor | None
    ) -> None:
        """Write the observations of rows.

        Args:
            houses: (H, E) uint8 states.
            acts: (N, 3, E) uint8, the agents' last actions.
            out: (rows, size), written.
            game_of: (rows,) int64, each row's game.
            agent_of: (rows,) int64, each row's agent; None: rows are ordered by game and agent.
        """
        self._encode(houses, acts)
        if agent_of is None:
            seats = out.view(-1, self.num_agents, self.size)
            seats.copy_(self.table.unsqueeze(1))
            seats[..., self.shared :].diagonal(dim1=1, dim2=2).fill_(1.0)
        else:
            torch.index_select(self.table, 0, game_of, out=out)
            out[:, self.shared :].scatter_(1, agent_of.unsqueeze(1), 1.0)

    def _encode(self, houses: Tensor, acts: Tensor) -> None:
        """Write what all agents of a game observe in common into the table."""
        games, table = houses.shape[-1], self.table
        if not self.scaled:
            parts = torch.cat([houses, acts.flatten(0, 1)]).index_select(0, self._order)
            table[:, : self.seen] = parts.t()
            return
        # The states of a group of houses, read as digits of base 3, are its index in the table.
        groups = houses.view(-1, self._at_once, games)
        pattern = groups[:, 0]
        for house in range(1, self._at_once):
            pattern = pattern * 3 + groups[:, house]
        at = pattern.t().to(torch.int64).flatten()
        table[:, : 3 * self.num_houses] = torch.index_select(
            self._houses, 0, at, out=self._houses_shown
        ).view(games, -1)
        # Likewise for (house, mode, signal); the index of an action may not fit into a byte.
        act = acts if len(self._acts) <= 256 else acts.to(torch.int16)
        act = (act[:, HOUSE] * 4).add_(act[:, MODE], alpha=2).add_(act[:, SIGNAL])
        at = act.t().to(torch.int64).flatten()
        shown = torch.index_select(self._acts, 0, at, out=self._acts_shown).view(games, -1)
        table[:, 3 * self.num_houses : self.seen] = shown

    def houses_in(self, obs: Tensor) -> Tensor:
        """Return the houses' states, (rows, H) int64, from observations (rows, size)."""
        if not self.scaled:
            return obs[:, : self.num_houses].to(torch.int64)
        shown = obs[:, : 3 * self.num_houses].reshape(-1, self.num_houses, 3)
        return (shown[..., BURNING] + RUINED * shown[..., RUINED]).to(torch.int64)

    def agent_in(self, obs: Tensor) -> Tensor:
        """Return the agents, (rows,) int64, from observations (rows, size)."""
        return obs[:, self.shared :].argmax(1)
