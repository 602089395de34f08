"""The rules that a user's game implements, for many games at once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from sweepd.envs.games.seating import VersusEnv
from sweepd.envs.games.words import Words

State = dict[str, Tensor]


class GameRules(VersusEnv):
    """What a subclass of `TensorGame` sets and implements.

    G is the number of games. Tensors of seats are (G, ...) with one player, else (G, seats, ...).

    A subclass sets `state_dim`, `action_dim` (or `action_dims`) and `if_discrete`, overrides the
    attributes below, of `VecEnv` and of `EnvSpec` if needed (`masked`, `obs_dtype`, `items`,
    `seat_column`, `privileged_dim`), and implements `start`, `move` and `see`. All three compute
    with a state: a dict of tensors of any types, games first. They must not change their arguments,
    must compute every game from that game alone, and must not read a tensor's value (`if`, `float`,
    `item`): they are called for thousands of games, each at a different time of a different episode.

    In a game of two in turns (`in_turns`), a row is a game also without opponents: it shows what
    the seat to move sees and takes its action, and rewards are (num_envs, 2). Such a game
    implements `mover`, its `see` gets the seat, and its `move` the action of the seat to move
    alone: there, tensors of seats are (G, ...) for actions, masks and observations. Its episodes
    end by its own rules, or terminate after `max_step` decisions. With opponents, `step` plays a
    decision of the member or of its opponent, and rows in which the opponent is to move are without
    an agent (`has_absent_agents`).

    A game with `masked` implements `mask`. In games with masks, several choices or turns, actions
    are strict: a game that gets an illegal one stops before it, and `check` prints its position.

    Attributes:
        action_dims: See `EnvSpec`; `action_dim` is then set to their sum.
        seats: Number of players.
        in_turns: Whether exactly one of two seats is to move in every state.
        max_step: Steps after which an episode is truncated; `step_limit` may return less.
        uniforms_per_start: Uniform random numbers that `start` gets per game.
        uniforms_per_move: Uniform random numbers that `move` gets per game.
        words: Says what players of a game in turns see and decide (`sweepd play`).
        numbers: The members' numeric parameters by name, each (G,) float64.
    """

    action_dims: tuple[int, ...] = ()
    seats = 1
    in_turns = False
    max_step = 1000
    uniforms_per_start = 1
    uniforms_per_move = 0
    words = Words()
    numbers: dict[str, Tensor]

    @abstractmethod
    def start(self, uniforms: Tensor) -> State:
        """Return the state in which episodes begin.

        Args:
            uniforms: (G, uniforms_per_start) float64 uniform in [0, 1).
        """

    @abstractmethod
    def move(self, state: State, action: Tensor, uniforms: Tensor) -> tuple[State, Tensor, Tensor]:
        """Play one step.

        Args:
            state: The state before it.
            action: Of the seats, as `decode` returns them: (..., action_dim) float64 in [-1, 1];
                in a discrete game (...) int64 from 0 to action_dim - 1, or with `action_dims`
                (..., choices) int64. In turns, (...) is (G,): the action of the seat to move.
            uniforms: (G, uniforms_per_move) float64 uniform in [0, 1).

        Returns:
            The state after it; the seats' rewards, (...), in turns (G, 2); and (G,) bool, episodes
            that it terminated.
        """

    # Typed for both signatures: `see(self, state)`, in turns `see(self, state, seat)`.
    @abstractmethod
    def see(self, state: State, *args: Any, **kwargs: Any) -> Tensor:
        """Return the seats' observations, (..., state_dim).

        In turns, `see(state, seat)` returns (G, state_dim), what `seat` (G,) int64 sees.
        """

    def privileged(self, state: State, *args: Any, **kwargs: Any) -> Tensor:
        """Return what critics know besides in training, (..., privileged_dim), such as hidden cards.

        The arguments are those of `see`. No policy sees it, so it need not be known to the seat.
        """
        raise NotImplementedError(f"{self.env_name} has privileged_dim, and no privileged")

    def mover(self, state: State) -> Tensor:
        """Return the seat to move, (G,) int64, in games in turns."""
        raise NotImplementedError(f"{self.env_name} is not in turns, or does not say who moves")

    def mask(self, state: State, chosen: Tensor) -> Tensor:
        """Return the legal options of the seats' next choice: (..., options) bool.

        Only for games with `masked`. A seat's mask depends on its own choices alone, and must be
        computed (with any result) also if these are illegal.

        Args:
            state: The state.
            chosen: (..., k) int64, the first k choices of the seats; in turns, of the seat to move.
        """
        raise NotImplementedError(f"{self.env_name} is masked, and has no mask")

    def describe(self, state: State, game: int) -> str:
        """Return the position of one game for error messages, by default all of its tensors."""
        return ", ".join(f"{name} {tensor[game].tolist()}" for name, tensor in state.items())

    def deals(self) -> Tensor | None:
        """Return what `start` may get in a game in turns that is small enough to enumerate.

        Then leagues report exact values (`sweepd.envs.games.game_tree`). All chance must be in
        `start`: `uniforms_per_move` is 0.

        Returns:
            (deals, uniforms_per_start) float64, one row per deal, all equally likely; None: too
                many.
        """
        return None

    def decode(self, action: Tensor) -> Tensor:
        """Return what `move` gets for legal actions (...): the same, unless actions are coded.

        Scripted players give the result of this, while policies give actions.
        """
        return action

    def outcome(self, state: State, returns: Tensor) -> Tensor:  # noqa: ARG002
        """Return who won: (G, 2) float64, 1 won, 0.5 drawn, 0 lost. By default the larger return.

        Called after every step, and used where an episode has ended.

        Args:
            state: The last state of the episode.
            returns: (G, 2) float64, sums of the episode's rewards.
        """
        ahead = 0.5 * torch.sign(returns[:, 0] - returns[:, 1])
        return 0.5 + torch.stack((ahead, -ahead), 1)

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
