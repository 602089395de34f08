"""Seats of members and of their opponents in games of two, and the results of their games."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from envs.core.game_env import GameEnv
from envs.games.opponents import Opponents


class Results(NamedTuple):
    """Finished games of every member against every opponent, (members, len(names)) float64.

    Attributes:
        games: How many.
        points: The sum of the member's outcomes: 1 for a won game, 0.5 for a drawn one.
        wins: How many of them had the outcome 1.
    """

    games: Tensor
    points: Tensor
    wins: Tensor


class VersusEnv(GameEnv):
    """A game whose members may have opponents."""

    @abstractmethod
    def results(self) -> Results:
        """Return the results of finished games against opponents."""


class Seating:
    """Who plays in the games of an environment: in each, a member and its present opponent.

    G is the number of games; a row is a game. Tensors of seats are (G, 2, ...).

    Attributes:
        opponents: All opponents.
        results: The games finished so far.
    """

    def __init__(self, opponents: Opponents, games: int, members: int) -> None:
        device = opponents.shares.device
        self.opponents, self._each = opponents, games // members
        self._seat = torch.zeros(games, dtype=torch.int64, device=device)
        self._opponent = torch.zeros(games, dtype=torch.int64, device=device)
        self._memory = torch.zeros(games, opponents.memory, dtype=torch.float64, device=device)
        # Index of each game's member in `results`, flattened.
        self._offset = torch.arange(members, device=device).repeat_interleave(self._each)
        self._offset *= len(opponents.names)
        shape = members, len(opponents.names)
        self.results = Results(
            *(torch.zeros(shape, dtype=torch.float64, device=device) for _ in Results._fields)
        )

    @property
    def uniforms(self) -> int:
        """Uniform random numbers per game and step: seat, opponent, its `begin` and `act`."""
        return 2 + 2 * self.opponents.uniforms

    def begin(self, begun: Tensor, uniforms: Tensor) -> None:
        """Draw seats and opponents of new episodes.

        Args:
            begun: (G,) bool, games in which an episode begins.
            uniforms: (G, uniforms) of this step.
        """
        where, whom, rest = uniforms[:, 0], uniforms[:, 1], uniforms[:, 2:]
        opponents, members = self.opponents, len(self.results.games)
        seat = (where.view(members, -1) >= opponents.first.unsqueeze(1)).long().flatten()
        # Inverse transform sampling: the first opponent whose cumulative share exceeds the number.
        # Times the last one, as rounding may keep that from being 1: an opponent without a share
        # must never be drawn.
        bounds = opponents.shares.cumsum(1)
        at = whom.view(members, -1, 1) * bounds[:, None, -1:]
        opponent = (at >= bounds.unsqueeze(1)).sum(-1).flatten()
        memory = opponents.begin(rest[:, : opponents.uniforms])
        self._seat = torch.where(begun, seat, self._seat)
        self._opponent = torch.where(begun, opponent, self._opponent)
        self._memory = torch.where(begun.unsqueeze(1), memory, self._memory)

    def controls(self, own: Tensor, seen: Tensor, uniforms: Tensor) -> Tensor:
        """Let the opponents act.

        Args:
            own: (G, ...), the members' controls.
            seen: (G, 2, state_dim) float32, the observations of both seats.
            uniforms: (G, uniforms) of this step.

        Returns:
            (G, 2, ...), the controls of both seats.
        """
        second = self._second(own)
        theirs, self._memory = self.opponents.act(
            self._of(seen, other=True),
            self._opponent,
            self._memory,
            uniforms[:, 2 + self.opponents.uniforms :],
        )
        theirs = theirs.to(own.dtype)
        return torch.stack((torch.where(second, theirs, own), torch.where(second, own, theirs)), 1)

    def own(self, tensor: Tensor) -> Tensor:
        """Return the part of the members' seats, (G, ...), of a tensor of seats."""
        return self._of(tensor, other=False)

    def count(self, done: Tensor, outcome: Tensor) -> None:
        """Add the results of finished games.

        Args:
            done: (G,) bool.
            outcome: (G, 2) float64, of both seats in games that are done.
        """
        own = torch.where(done, self.own(outcome), 0.0)
        at = self._offset + self._opponent
        for total, value in zip(self.results, (done, own, done & (own == 1.0)), strict=True):
            # Sums of halves are exact in any order, so the result is the same on all devices.
            total.view(-1).index_add_(0, at, value.double())

    def reset_member(self, member: int) -> None:
        """Forget the member of a slot: its results, and what opponents keep of it."""
        for total in self.results:
            total[member] = 0.0
        self.opponents.reset_member(member)

    def get_member(self, member: int) -> dict[str, Tensor]:
        """Return a member's part of the state, for `VecEnv.get_member`."""
        games = self._games(member)
        own = {f"results_{name}": t[member] for name, t in self.results._asdict().items()}
        own |= {
            "seat": self._seat[games],
            "opponent": self._opponent[games],
            "opponent_memory": self._memory[games],
        }
        kept = self.opponents.get_member(member)
        return own | {f"opponents_{name}": tensor for name, tensor in kept.items()}

    def set_member(self, member: int, state: Mapping[str, Tensor]) -> None:
        """Restore what `get_member` returned."""
        games, device = self._games(member), self._seat.device
        for name, total in self.results._asdict().items():
            total[member] = state[f"results_{name}"].to(device)
        self._seat[games] = state["seat"].to(device)
        self._opponent[games] = state["opponent"].to(device)
        self._memory[games] = state["opponent_memory"].to(device)
        begins = "opponents_"
        self.opponents.set_member(
            member,
            {name.removeprefix(begins): t for name, t in state.items() if name.startswith(begins)},
        )

    def _games(self, member: int) -> slice:
        return slice(member * self._each, (member + 1) * self._each)

    def _second(self, like: Tensor) -> Tensor:
        """Return whether members have the second seat, to broadcast over (G, ...)."""
        return (self._seat == 1).view(-1, *(1 for _ in like.shape[1:]))

    def _of(self, tensor: Tensor, *, other: bool) -> Tensor:
        first, second = tensor.unbind(1)
        if other:
            first, second = second, first
        return torch.where(self._second(first), second, first)
