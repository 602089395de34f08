"""What a game as tensors implements: its rules, for many games at once.

`sweepd.envs.games.batched` has everything else. `sweepd.envs.games.cartpole` is a game of one file.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Protocol

import torch
from torch import Tensor

from sweepd.envs.core.faults import FaultLatch
from sweepd.envs.core.game_env import GameEnv
from sweepd.envs.core.streams import Streams

State = dict[str, Tensor]


class NativeStep(Protocol):
    """Compiled code that makes the steps of a game with `starts_ahead`.

    It has memory of its own, which the game uses from then on, in torch's steps, too.

    Attributes:
        state: The games' state.
        begun: The states in which the next episodes begin.
        final: The last states of the latest episodes.
        age: (G,) float64, steps of the present episodes.
    """

    state: State
    begun: State
    final: State
    age: Tensor

    def configure(self) -> None:
        """Take the game's parameters, which have changed."""

    def step(
        self, action: Tensor, obs: Tensor, faults: FaultLatch
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Step every game, and begin others in place of those that end.

        On GPUs, this neither reads a value on the host nor depends on one that changes.

        Args:
            action: (G,) int64, contiguous.
            obs: (G, state_dim) float32, whose rows are contiguous; written.
            faults: records the actions.

        Returns:
            (G,) rewards, float32; which games terminated and were truncated, (G,) bool each.
        """
        ...

    def refill(self, pool: Tensor, turn: Tensor, since: int) -> None:
        """Replace the starts used in the last `since` steps, as `StartsAhead.refill` does.

        Args:
            pool: (rounds, uniforms_per_start, G) float64, contiguous.
            turn: (G,) int64, contiguous; changed.
            since: Steps since the last refill.
        """


class Rules(Protocol):
    """What computes the rules: the game itself by torch, or compiled code, to the bit the same.

    Its methods are described in `BatchedRules`.
    """

    def move(self, state: State, action: Tensor, uniforms: Any) -> tuple[State, Tensor, Tensor]: ...
    def restart(self, state: State, ended: Tensor, uniforms: Any) -> State: ...
    def see(self, state: State, *args: Any) -> Tensor: ...
    def in_range(self, action: Tensor) -> bool: ...


CodeFor = Callable[[torch.device], Any]
MakeNative = Callable[[Any, Any], Any]


class BatchedRules(GameEnv):
    """The rules of games that are played one after the other, with rows of observations and actions.

    A subclass of `BatchedGame` sets `state_dim`, `action_dim` and `if_discrete`, overrides the class
    attributes below if needed, and implements `start`, `move` and `see`. All three compute with a
    state: a dict of tensors of any types. They must not change their arguments, must compute every
    game from that game alone, and must not read a tensor's value (`if`, `float`, `item`): they are
    called for thousands of games, each at a different time of a different episode.

    G is the number of games, the first axis of tensors (see `axis`), and `envs_per_member` is the
    number of a member's rows. With one seat, a row is a game, and tensors of seats are (G, ...).
    With several, a row is a seat, `game * seats + seat`, and tensors of seats are (G, seats, ...).

    Attributes:
        action_dims: See `EnvSpec`; `action_dim` is then set to their sum.
        seats: Number of players.
        in_turns: Whether exactly one of two seats is to move in every state (`TensorGame`).
        privileged_dim: Number of columns that `privileged` returns; observations are float32 then.
        max_step: Steps after which an episode is truncated; `step_limit` may return less.
        uniforms_per_start: Random numbers that `start` gets per game.
        uniforms_per_move: Uniform random numbers that `move` gets per game.
        starts_ahead: Whether a game's next start is kept ready, and replaced after it was used, and
            not computed in every step. No episode may be shorter than `shortest_episode`.
        axis: Where the games are in the tensors of a state: the first axis (0) or the last one (-1).
        native_code: What returns compiled code for a device, or None; and what makes of it and the
            game a `NativeStep` in games with `starts_ahead`, else `Rules`. To the bit, its results
            are those of the rules.
        numbers: The members' numeric parameters by name, each (G,) float64.
        state: The games' present state.
        final: The last state of each game's latest episode.
        age: (G,), steps of the present episodes.
        native_step: Compiled steps; None: a step is operations of torch between those of the rules.
        native_rules: Compiled rules, if there are any.
        num_games: Number of games.
        games_per_member: Games of each member.
        shortest: `shortest_episode` of each member.
    """

    action_dims: tuple[int, ...] = ()
    seats = 1
    in_turns = False
    max_step = 1000
    uniforms_per_start = 1
    uniforms_per_move = 0
    starts_ahead = False
    axis = 0
    numbers: dict[str, Tensor]
    state: State
    final: State
    age: Tensor
    native_code: tuple[CodeFor, MakeNative] | None = None
    native_step: NativeStep | None = None
    native_rules: Rules | None = None
    num_games: int
    games_per_member: int
    shortest: list[int]
    _streams: Streams

    @abstractmethod
    def start(self, uniforms: Any) -> State:
        """Return the state in which episodes begin.

        Args:
            uniforms: (G, uniforms_per_start) float64, uniform in [0, 1) or what `draw_starts` makes
                of that.
        """

    @abstractmethod
    def move(self, state: State, action: Tensor, uniforms: Any) -> tuple[State, Tensor, Tensor]:
        """Play one step.

        Args:
            state: The state before it.
            action: Of the seats: (..., action_dim) float64 in [-1, 1]; in a discrete game (...)
                int64 from 0 to action_dim - 1, or with `action_dims` (..., choices) int64.
            uniforms: (G, uniforms_per_move) float64 uniform in [0, 1).

        Returns:
            The state after it; the seats' rewards, (...); and (G,) bool, episodes that it
            terminated.
        """

    @abstractmethod
    def restart(self, state: State, ended: Tensor, uniforms: Any) -> State:
        """Return a state in which the games of `ended`, (G,) bool, begin again (`start`).

        Their last states become those of `final`.
        """

    @abstractmethod
    def in_range(self, action: Tensor) -> bool:
        """Whether the rows' continuous actions are known to be from -1 to 1."""

    # Typed for the signatures of games in turns, too.
    @abstractmethod
    def see(self, state: State, *args: Any, **kwargs: Any) -> Tensor:
        """Return the seats' observations, (..., state_dim)."""

    def privileged(self, state: State, *args: Any, **kwargs: Any) -> Tensor:
        """Return what critics know besides in training, (..., privileged_dim), such as hidden cards.

        The arguments are those of `see`. No policy sees it, so it need not be known to the seat.
        """
        raise NotImplementedError(f"{self.env_name} has privileged_dim, and no privileged")

    def numeric(self, params: Any) -> dict[str, float]:
        """Return a member's parameters for `numbers`: only these reach the rules."""
        return {
            name: float(value)
            for name, value in asdict(params).items()
            if isinstance(value, int | float)
        }

    def prepare(self, params: Sequence[Any]) -> None:
        """Set what depends on the members' parameters, such as `state_dim`; called once.

        The default sets nothing. `device` and the numbers of rows are set already.

        Raises:
            InputError: The members' parameters cannot be combined.
        """

    def step_limit(self, params: Any) -> int:  # noqa: ARG002
        """Return the number of steps after which a member's episodes are truncated."""
        return self.max_step

    def shortest_episode(self, params: Any) -> int:  # noqa: ARG002
        """Return a lower bound of the length of a member's episodes, for any start and actions."""
        return self.bootstrap_interval

    def score_limits(self) -> tuple[float, float] | None:
        """Return the range of an episode's score (`VecEnv.score_range`); None: it is not known."""
        return self.score_range

    def truncated(self, late: Tensor, terminated: Tensor) -> Tensor:
        """Return which episodes are truncated, (G,) bool, given those at their limit of steps."""
        return late & ~terminated

    def draw_starts(self, members: slice, rounds: Sequence[int]) -> Tensor:
        """Draw what `start` gets.

        Args:
            members: Those that draw.
            rounds: How many starts each of them needs per game.

        Returns:
            (largest of `rounds`, uniforms_per_start, games of the members) float64; those beyond a
            member's own rounds must not be used.
        """
        columns, most = self.uniforms_per_start, max(rounds)
        drawn = self._streams.uniform(
            columns * most,
            self.games_per_member,
            dtype=torch.float64,
            members=members,
            used=[columns * own for own in rounds],
        )
        return drawn.view(most, columns, -1)

    def games_of(self, members: int | slice) -> slice:
        """Return the games of a member, or of several."""
        first, last = (
            (members, members + 1) if isinstance(members, int) else (members.start, members.stop)
        )
        return slice(first * self.games_per_member, last * self.games_per_member)
