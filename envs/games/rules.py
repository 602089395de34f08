"""The rules that a user's game implements, for many games at once."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from sweepd.envs.games.batched import BatchedGame
from sweepd.envs.games.batched_rules import Rules, State
from sweepd.envs.games.seating import VersusEnv
from sweepd.envs.games.words import Words


class StrictRules(Rules, Protocol):
    """`Rules` of games with masks, several choices or turns, described in `GameRules`."""

    def mask(self, state: State, chosen: Tensor) -> Tensor: ...
    def all_legal(self, state: State, action: Tensor, going: Tensor) -> bool: ...


class GameRules(BatchedGame, VersusEnv):
    """What a subclass of `TensorGame` sets and implements, besides what `BatchedGame` says.

    In a game of two with `opponents`, a row is a game: that of the member's seat, which is drawn for
    every episode, as is the opponent that plays the other seat.

    In a game of two in turns (`in_turns`), a row is a game in any case: without opponents, it shows
    what the seat to move sees and takes its action, and rewards are (num_envs, 2). Such a game
    implements `mover`; `see` and `privileged` get the seat, (G,) int64, and return what it sees,
    (G, ...); `move` and `mask` get the action of the seat to move alone, and `move` returns the
    rewards of both, (G, 2). Its episodes end by its own rules, or terminate after `max_step`
    decisions. With opponents, `step` plays a decision of the member or of its opponent, and rows in
    which the opponent is to move are without an agent (`has_absent_agents`).

    A game with `masked` implements `mask`. In games with masks, several choices or turns, actions
    are strict: a game that gets an illegal one stops before it, and `check` prints its position.

    Attributes:
        obs_dtype: What `see` returns: "float32" (or what converts to it), or "uint8".
        counted: Options of the first choice whose share is recorded, by name: {"pass": 0}.
        native_rules: See `BatchedRules`.
        words: Says what players of a game in turns see and decide (`sweepd play`).
    """

    native_rules: StrictRules | None = None
    words = Words()

    @property
    def active_rules(self) -> StrictRules:
        """See `BatchedGame.active_rules`."""
        return self.native_rules or self

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

    def all_legal(self, state: State, action: Tensor, going: Tensor) -> bool:  # noqa: ARG002
        """Whether the seats' actions are known to be legal in all games, and all games are going.

        Compiled rules can tell. Torch cannot without waiting for the device: False by default.

        Args:
            state: The state.
            action: As `move` takes them, of any numbers.
            going: (G,) bool, games without an illegal action so far.
        """
        return False

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
