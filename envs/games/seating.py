"""The seats of games: which rows they are, who plays them, and the results against opponents."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from sweepd.envs.core.game_env import GameEnv
from sweepd.envs.core.policies import Policies
from sweepd.envs.core.rows import where_rows
from sweepd.envs.core.vec_env import Legal
from sweepd.envs.games.opponents import Opponents


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


class View(NamedTuple):
    """What the seats of all games know when they choose.

    Attributes:
        seen: Observations of all seats; in games in turns (G, state_dim), of the seat to move.
        mover: (G,) int64, the seat to move; None where all seats act at once.
        legal: Maps the first k choices of all seats (in games in turns, of the seat to move) to the
            legal options of their next choice; None where all options are legal.
    """

    seen: Tensor
    mover: Tensor | None = None
    legal: Legal | None = None


class VersusEnv(GameEnv):
    """A game whose members may have opponents.

    Attributes:
        opponents: The opponents with which it was made.
    """

    opponents: Opponents | None

    @abstractmethod
    def results(self) -> Results:
        """Return the results of finished games against opponents."""


class Seats:
    """Games in which every seat is a row: row `game * seats + seat`.

    G is the number of games. Tensors of seats are (G, ...) with one seat, else (G, seats, ...).

    Attributes:
        rows_per_game: How many rows a game has.
        uniforms: Uniform random numbers per game and step.
        results: The games finished so far against opponents, if there are opponents.
    """

    def __init__(self, seats: int) -> None:
        self.rows_per_game = seats
        self.uniforms = 0
        self.results: Results | None = None

    def by_row(self, tensor: Tensor, *, ended: bool = False) -> Tensor:  # noqa: ARG002
        """Return a tensor of seats as one of rows; `ended`: in the latest episodes that ended."""
        return tensor if self.rows_per_game == 1 else tensor.flatten(0, 1)

    def controls(self, own: Tensor, view: View, uniforms: Tensor) -> Tensor:  # noqa: ARG002
        """Return the controls of all seats; in games in turns, of the seat to move, (G, ...).

        Args:
            own: Controls of the rows.
            view: What all seats know before the step.
            uniforms: (G, uniforms) of this step.
        """
        seats = self.rows_per_game
        return own if seats == 1 else own.view(-1, seats, *own.shape[1:])

    def mask(self, of_seats: Legal, chosen: Tensor) -> Tensor:
        """Return the rows' masks, (rows, options), from those of all seats (`View.legal`).

        Args:
            of_seats: The masks of all seats.
            chosen: (rows, k) int64, the rows' first k choices.
        """
        seats = self.rows_per_game
        if seats == 1:
            return of_seats(chosen)
        games = len(chosen) // seats
        return of_seats(chosen.view(games, seats, chosen.shape[1])).flatten(0, 1)

    def names(self, game: int) -> tuple[str, ...]:  # noqa: ARG002
        """Return what the players at both seats are called in messages about a game."""
        return tuple(f"seat {seat}" for seat in range(max(2, self.rows_per_game)))

    def begin(self, begun: Tensor, uniforms: Tensor) -> None:
        """Begin episodes.

        Args:
            begun: (G,) bool, games in which an episode begins.
            uniforms: (G, uniforms) of this step.
        """

    def count(self, done: Tensor, outcome: Tensor) -> None:
        """Add the results of finished games.

        Args:
            done: (G,) bool.
            outcome: (G, 2) float64, of both seats in games that are done.
        """

    def begin_rollout(self, policies: Policies) -> None:
        """See `VecEnv.begin_rollout`."""

    def reset_member(self, member: int) -> None:
        """Forget the member of a slot, as another one begins there."""

    def get_member(self, member: int) -> dict[str, Tensor]:  # noqa: ARG002
        """Return a member's part of the state, for `VecEnv.get_member`."""
        return {}

    def set_member(self, member: int, state: Mapping[str, Tensor]) -> None:
        """Restore what `get_member` returned."""


class OpponentSeats(Seats):
    """Games in which a row is the member's seat and the other seat is its present opponent's."""

    def __init__(self, opponents: Opponents, games: int, members: int) -> None:
        """Make the seats of `games` games, grouped by member."""
        super().__init__(1)
        device = opponents.shares.device
        self.opponents, self._each = opponents, games // members
        # For the seat, the opponent, and the opponents' `begin` and `act`.
        self.uniforms = 2 + 2 * opponents.uniforms
        # The member's seat, and that in the latest episode that ended.
        self._seat = torch.zeros(games, dtype=torch.int64, device=device)
        self._last_seat = torch.zeros_like(self._seat)
        self._opponent = torch.zeros(games, dtype=torch.int64, device=device)
        self._memory = torch.zeros(games, opponents.memory, dtype=torch.float64, device=device)
        # Index of each game's member in `results`, flattened.
        self._offset = torch.arange(members, device=device).repeat_interleave(self._each)
        self._offset *= len(opponents.names)
        shape = members, len(opponents.names)
        self.results: Results = Results(
            *(torch.zeros(shape, dtype=torch.float64, device=device) for _ in Results._fields)
        )

    def by_row(self, tensor: Tensor, *, ended: bool = False) -> Tensor:
        """See `Seats.by_row`."""
        first, second = tensor.unbind(1)
        return where_rows((self._last_seat if ended else self._seat) == 1, second, first)

    def begin(self, begun: Tensor, uniforms: Tensor) -> None:
        """See `Seats.begin`. Draws their seats and opponents."""
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

    def controls(self, own: Tensor, view: View, uniforms: Tensor) -> Tensor:
        """See `Seats.controls`. Lets the opponents act."""
        legal = None
        if view.legal is not None:
            legal = partial(self._mask, view.legal, other=True)
        theirs, self._memory = self._ask(self._of(view.seen, other=True), legal, uniforms)
        second, theirs = self._seat == 1, theirs.to(own.dtype)
        return torch.stack((where_rows(second, theirs, own), where_rows(second, own, theirs)), 1)

    def mask(self, of_seats: Legal, chosen: Tensor) -> Tensor:
        """See `Seats.mask`."""
        return self._mask(of_seats, chosen, other=False)

    def names(self, game: int) -> tuple[str, ...]:
        """See `Seats.names`."""
        own, opponent = int(self._seat[game]), self.opponents.names[int(self._opponent[game])]
        both = [f"opponent {opponent} (seat {1 - own})"]
        both.insert(own, f"the member (seat {own})")
        return tuple(both)

    def count(self, done: Tensor, outcome: Tensor) -> None:
        """See `Seats.count`."""
        self._last_seat = torch.where(done, self._seat, self._last_seat)
        own = torch.where(done, self.by_row(outcome), 0.0)
        at = self._offset + self._opponent
        for total, value in zip(self.results, (done, own, done & (own == 1.0)), strict=True):
            # Sums of halves are exact in any order, so the result is the same on all devices.
            total.view(-1).index_add_(0, at, value.double())

    def begin_rollout(self, policies: Policies) -> None:
        """See `Seats.begin_rollout`."""
        self.opponents.begin_rollout(policies)

    def reset_member(self, member: int) -> None:
        """See `Seats.reset_member`: its results, and what opponents keep of it."""
        for total in self.results:
            total[member] = 0.0
        self.opponents.reset_member(member)

    def get_member(self, member: int) -> dict[str, Tensor]:
        """See `Seats.get_member`."""
        games = self._games(member)
        own = {f"results_{name}": t[member] for name, t in self.results._asdict().items()}
        own |= {
            "seat": self._seat[games],
            "last_seat": self._last_seat[games],
            "opponent": self._opponent[games],
            "opponent_memory": self._memory[games],
        }
        kept = self.opponents.get_member(member)
        return own | {f"opponents_{name}": tensor for name, tensor in kept.items()}

    def set_member(self, member: int, state: Mapping[str, Tensor]) -> None:
        """See `Seats.set_member`."""
        games, device = self._games(member), self._seat.device
        for name, total in self.results._asdict().items():
            total[member] = state[f"results_{name}"].to(device)
        self._seat[games] = state["seat"].to(device)
        self._last_seat[games] = state["last_seat"].to(device)
        self._opponent[games] = state["opponent"].to(device)
        self._memory[games] = state["opponent_memory"].to(device)
        begins = "opponents_"
        self.opponents.set_member(
            member,
            {name.removeprefix(begins): t for name, t in state.items() if name.startswith(begins)},
        )

    def _games(self, member: int) -> slice:
        return slice(member * self._each, (member + 1) * self._each)

    def _ask(self, seen: Tensor, legal: Legal | None, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Return the opponents' controls and next memory; seen: observations of their seats."""
        own = uniforms[:, 2 + self.opponents.uniforms :]
        if legal is None:
            return self.opponents.act(seen, self._opponent, self._memory, own)
        return self.opponents.act(seen, self._opponent, self._memory, own, legal)

    def _mask(self, of_seats: Legal, chosen: Tensor, *, other: bool) -> Tensor:
        """Return the masks of the members' seats, or of the other ones."""
        # A seat's mask depends on its own choices only, so both seats get the same ones.
        return self._of(of_seats(chosen.unsqueeze(1).expand(-1, 2, -1)), other=other)

    def _of(self, tensor: Tensor, *, other: bool) -> Tensor:
        first, second = tensor.unbind(1)
        return where_rows(self._seat == (0 if other else 1), second, first)


class OpponentTurns(OpponentSeats):
    """Games in turns, in which the opponent moves where it is its turn.

    The rows of those games are without an agent.
    """

    def present(self, mover: Tensor) -> Tensor:
        """Return (G,) bool, games in which the member is to move."""
        return mover == self._seat

    def controls(self, own: Tensor, view: View, uniforms: Tensor) -> Tensor:
        """See `Seats.controls`. Lets the opponents act where it is their turn."""
        assert view.mover is not None
        # Opponents compute all games, also those in which it is not their turn: their action is
        # dropped there, and their memory waits.
        theirs, memory = self._ask(view.seen, view.legal, uniforms)
        present = self.present(view.mover)
        self._memory = torch.where(present.unsqueeze(1), self._memory, memory)
        return where_rows(present, own, theirs.to(own.dtype))

    def mask(self, of_seats: Legal, chosen: Tensor) -> Tensor:
        """See `Seats.mask`. Where the opponent is to move, it is the opponent's."""
        return of_seats(chosen)
