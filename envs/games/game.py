"""A game as studies, leagues and promotion use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from sweepd.envs.core.game_env import GameEnv
from sweepd.envs.external.describe import Description
from sweepd.envs.external.roles import NO_ROLES, Roles
from sweepd.envs.games.opponents import Opponents, ScriptedPlayer
from sweepd.envs.games.seating import VersusEnv


class MakeGame(Protocol):
    """A function that makes the environments of a game."""

    def __call__(
        self, params: Sequence[Any], num_envs: int, *, together: int, device: torch.device | str
    ) -> GameEnv:
        """Make `num_envs` games for each member; every seat of a game is a row.

        Args:
            params: one per member.
            num_envs: games per member.
            together: number of consecutive members that share their games and play with each
                other, in games of several players.
            device: device of the environment.
        """
        ...


class MakeVersus(Protocol):
    """A function that makes games of two seats, of which a row may be one."""

    def __call__(
        self,
        params: Sequence[Any],
        num_envs: int,
        *,
        together: int,
        device: torch.device | str,
        opponents: Opponents | None = None,
        outcome_rewards: bool = False,
    ) -> VersusEnv:
        """Make `num_envs` games for each member. See `MakeGame` and `TensorGame`."""
        ...


@dataclass(frozen=True)
class Game:
    """A game that sweepd can train in.

    Attributes:
        name: Its name for `--env`.
        params: Makes the dataclass of its parameters.
        make: Makes a vectorized environment.
        seats: Returns the number of players from the parameters; each is a row.
        scenarios: Names of sets of parameters.
        solved: Mean return at which the game counts as solved, if there is a common one.
        players: Returns baseline players by name, from the parameters and a seed. A player maps the
            observations of any number of rows to actions.
        unit: Returns the number of environments that are made at once with these parameters; `make`
            rounds up to a multiple.
        versus: Makes environments with opponents or with outcomes as rewards; None: the game has
            no opponents.
        scripted: Returns the scripted players that can be opponents, from the parameters.
        described: Returns what an external environment is, from the parameters; None: it is made
            of tensors.
        make_ready: Makes environments that are stepped as they are ready (`ReadyVecEnv`); None: those
            of the game are stepped together.
        roles: Returns the roles from the parameters, each of which is a member of its own, or
            `NO_ROLES`. `make` takes whole groups of them.
        foreign: Whether its environments are those of others, stepped one by one on the CPU, whose
            arguments are the parameters, and which wrappers may change.
    """

    name: str
    params: Callable[..., Any]
    make: MakeGame
    seats: Callable[[Any], int] = lambda _: 1
    scenarios: tuple[str, ...] = ()
    solved: float | None = None
    players: Callable[[Any, int], Mapping[str, Callable[[Tensor], Tensor]]] = (
        lambda _params, _seed: {}
    )
    unit: Callable[[Any], int] = lambda _: 1
    versus: MakeVersus | None = None
    scripted: Callable[[Any], Mapping[str, ScriptedPlayer]] = lambda _: {}
    described: Callable[[Any], Description] | None = None
    make_ready: MakeGame | None = None
    roles: Callable[[Any], Roles] = lambda _: NO_ROLES
    foreign: bool = False

    @property
    def external(self) -> bool:
        """Whether it runs on the CPU, one environment at a time."""
        return self.described is not None


@dataclass(frozen=True)
class NoParams:
    """Parameters of a game that has none."""


@dataclass(frozen=True)
class MakeBatchedGame:
    """Makes games of a subclass of `BatchedGame`; a `MakeGame`, and of two seats a `MakeVersus`."""

    kind: Callable[..., Any]
    seats: int
    in_turns: bool

    def __call__(
        self,
        params: Sequence[Any],
        num_envs: int,
        *,
        together: int,  # noqa: ARG002
        device: torch.device | str,
        opponents: Opponents | None = None,
        outcome_rewards: bool = False,
    ) -> Any:
        """See `MakeVersus`."""
        rows = num_envs if opponents or self.in_turns else num_envs * self.seats
        # A subclass without opponents may be made without them.
        if not opponents and not outcome_rewards:
            return self.kind(params, rows, device=device)
        return self.kind(
            params, rows, device=device, opponents=opponents, outcome_rewards=outcome_rewards
        )

    def game(
        self,
        name: str,
        params: Callable[..., Any],
        solved: float | None,
        scripted: Callable[[Any], Mapping[str, ScriptedPlayer]],
    ) -> Game:
        """Return the game; see `Game`."""
        return Game(
            name,
            params,
            self,
            seats=lambda _: self.seats,
            solved=solved,
            versus=self if self.seats == 2 else None,
            scripted=scripted,
        )


def is_population(game: Game, seats: int) -> bool:
    """Whether members of a trial play with each other in a game where no opponents are named.

    In a game that can have opponents, a member plays at both seats.
    """
    return seats > 1 and not game.external and game.versus is None
