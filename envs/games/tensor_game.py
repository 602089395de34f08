"""The base class of a user's game: a subclass gives the rules, for many episodes at once.

The rest of a vectorized environment is in `batched`, and what games of two need is here: opponents,
turns, masks and outcomes. docs/how_to/own_game.md has a game in thirty lines.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sweepd.envs.core.faults import Fault, FaultLatch
from sweepd.envs.core.policies import Policies
from sweepd.envs.core.rows import where_rows
from sweepd.envs.core.vec_env import Legal, on_cpu
from sweepd.envs.games.batched_rules import State
from sweepd.envs.games.game import NoParams
from sweepd.envs.games.legality import fault_message, keep_first, legal_action, masks_at
from sweepd.envs.games.opponents import Opponents
from sweepd.envs.games.rule_checks import check_declaration, check_rules, check_seats
from sweepd.envs.games.rules import GameRules
from sweepd.envs.games.seating import OpponentSeats, OpponentTurns, Results, Seats, View

__all__ = ["NoParams", "State", "TensorGame"]


class TensorGame(GameRules):
    """Games of one player, or of several, with or without opponents; in turns or at once.

    `BatchedGame` and `GameRules` say what a subclass sets and implements.

    Attributes:
        opponents: The opponents that the environment was made with.
        reached: In games in turns, the state that the latest step reached, before games that ended
            began again, to show how they ended.
        played: In games in turns, the latest step's actions, as `move` got them, and the state
            before it; None before the first step.
    """

    reached: State
    played: tuple[Tensor, State] | None = None

    def __init__(
        self,
        params: Any,
        envs_per_member: int,
        *,
        device: torch.device | str = "cpu",
        opponents: Opponents | None = None,
        outcome_rewards: bool = False,
        debug: bool = False,
        native: bool = True,
    ) -> None:
        """Make the environment. Call `reset` before the first step.

        Args:
            params: See `BatchedGame`.
            envs_per_member: Rows per member: its games, or without opponents a multiple of `seats`.
            device: Device of the environment.
            opponents: Who plays the second seat; None: every seat is a row.
            outcome_rewards: Whether rewards are the outcome (`outcome`) in an episode's last step
                and 0 before it, for judging.
            debug: Whether to check for illegal actions after every step.
            native: See `BatchedGame`.

        Raises:
            InputError: The rows do not fit, or a game without two seats has opponents or outcomes.
        """
        self.opponents, self._outcome_rewards = opponents, outcome_rewards
        super().__init__(params, envs_per_member, device=device, debug=debug, native=native)

    def _set_seats(self, params: Sequence[Any]) -> None:  # noqa: ARG002
        """See `BatchedGame._set_seats`."""
        opponents = self.opponents
        check_seats(self, opponents, outcome_rewards=self._outcome_rewards)
        self._seats = Seats(1 if self.in_turns else self.seats)
        if opponents:
            opponents.decode = self.decode
            kind = OpponentTurns if self.in_turns else OpponentSeats
            self._seats = kind(opponents, self.num_envs, self.num_members)
        self._set_rows_per_game(self._seats.rows_per_game)

    def _declare(self) -> None:
        """See `BatchedGame._declare`."""
        if self.in_turns:
            self.has_absent_agents = self.opponents is not None
            self.players = 1 if self.opponents else 2
            # There are no truncations. Starts ahead need a lower bound of an episode's length.
            self.bootstrap_interval = 1 if self.starts_ahead else 2**31
        check_declaration(self)
        self._strict = self.spec.masked or self.in_turns or bool(self.action_dims)

    def _make_state(self) -> None:
        """See `BatchedGame._make_state`."""
        super()._make_state()
        if self.in_turns:
            self.final = {}  # no one reads it, as episodes are never truncated
        self.reached = self.state
        # What all seats know of `_state`, once it was asked for.
        self._known: View | None = None
        # Sums of the present episodes' rewards, of all seats.
        self._returns: Tensor | None = None
        if self.opponents or self._outcome_rewards:
            shape = self.num_games, self.seats
            self._returns = torch.zeros(shape, dtype=torch.float64, device=self.device)

    def _any_start(self) -> State:
        """See `BatchedGame._any_start`."""
        begun = super()._any_start()
        check_rules(self, begun)
        return begun

    def configure_member(self, member: int, params: Any) -> None:
        """See `GameEnv.configure_member`."""
        super().configure_member(member, params)
        self._known = None  # observations may depend on the parameters

    def reset_member(self, member: int, seed: int | None = None) -> None:
        """See `VecEnv.reset_member`. With a seed, results begin at zero, too."""
        if seed is not None:
            self._seats.reset_member(member)
        if self._returns is not None:
            self._returns[self.games_of(member)] = 0.0
        super().reset_member(member, seed)

    def begin_rollout(self, policies: Policies) -> None:
        """See `VecEnv.begin_rollout`."""
        super().begin_rollout(policies)
        self._seats.begin_rollout(policies)

    def results(self) -> Results:
        """See `VersusEnv.results`."""
        if self._seats.results is None:
            raise ValueError(f"{self.env_name} was made without opponents")
        return self._seats.results

    def _columns(self) -> tuple[int, ...]:
        """See `BatchedGame._columns`. Besides, for `_seats`."""
        return *super()._columns(), self._seats.uniforms

    def _play(self, action: Tensor, numbers: tuple[Any, ...]) -> tuple[State, Tensor, Tensor]:
        """See `BatchedGame._play`. Lets the opponents act, and stops games with illegal actions."""
        view, rules = self._look(), self.active_rules
        controls = self._seats.controls(self.decode(action), view, numbers[2])
        going = None
        if self._strict and rules.all_legal(self.state, controls, self._faults.going()):
            self._faults.all_legal()
        elif self._strict:
            made, legal = self.strictly(controls, view.legal)
            going = self._faults.record(legal, controls.reshape(len(legal), -1).t())
            controls = made
        if self.in_turns:
            self.played = controls, self._lasting(self.state)
        state, reward, terminated = rules.move(self.state, controls, numbers[1])
        self.age += 1
        if self.in_turns:
            terminated = terminated | (self.age >= self._limit)
        if going is not None:
            # Other games stay as they are, until `check` has printed their position.
            state = {name: where_rows(going, to, self.state[name]) for name, to in state.items()}
            reward = where_rows(going, reward, torch.zeros_like(reward))
            terminated = terminated & going
        return state, reward, terminated

    def truncated(self, late: Tensor, terminated: Tensor) -> Tensor:
        """See `BatchedRules.truncated`. In turns, the limit is one of the rules."""
        if self.in_turns:
            return torch.zeros_like(late)
        found = super().truncated(late, terminated)
        return found & ~self._faults.latched() if self._strict else found

    def _lasting(self, state: State) -> State:
        """Return a state that stays as it is: with `starts_ahead`, steps write to its memory."""
        return {name: own.clone() for name, own in state.items()} if self._starts else state

    def strictly(self, controls: Tensor, legal: Legal | None) -> tuple[Tensor, Tensor]:
        """Return legal controls in place of these, and in which games all were legal, (G,) bool.

        Args:
            controls: Of the seats, as `move` takes them, in a discrete game.
            legal: The seats' masks; None: all options are legal.
        """
        made, right = legal_action(
            controls if self.spec.action_dims else controls.unsqueeze(-1), self.spec.choices, legal
        )
        right = right if right.dim() == 1 else right.all(1)
        return (made if self.spec.action_dims else made.squeeze(-1)), right

    def _ended(self, state: State, reward: Tensor, done: Tensor) -> Tensor:
        """See `BatchedGame._ended`. Counts the outcomes of games that are done."""
        if self.in_turns:
            self.reached = self._lasting(state)
        if self._returns is None:
            return super()._ended(state, reward, done)
        returns = self._returns + reward
        outcome = self.outcome(state, returns).double()
        ended = done.unsqueeze(1)
        self._returns = returns.masked_fill(ended, 0.0)
        self._seats.count(done, outcome)
        if self._outcome_rewards:
            reward = outcome.masked_fill(~ended, 0.0)
        return super()._ended(state, reward, done)

    def by_row(self, tensor: Tensor) -> Tensor:
        """See `BatchedGame.by_row`."""
        return self._seats.by_row(tensor)

    def _begun(self, games: Tensor, numbers: tuple[Any, ...]) -> None:
        """See `BatchedGame._begun`. It may give the rows other seats."""
        self._known = None
        self._seats.begin(games, numbers[2])

    def observe(self, out: Tensor | None = None) -> Tensor:
        """See `VecEnv.observe`. Zeros in rows that are without an agent."""
        view = self._look()
        of_seats = self._with_privileged(self.state, view.seen, view.mover)
        if isinstance(self._seats, OpponentTurns):
            # Not what the opponent sees.
            seen = of_seats.masked_fill(~self.present().unsqueeze(1), 0)
        else:
            seen = self.by_row(of_seats)
        return seen.clone() if out is None else out.copy_(seen)

    def final_obs(self) -> Tensor:
        """See `VecEnv.final_obs`. Zeros in games in turns, which are never truncated."""
        if self.in_turns:
            return torch.zeros(self._obs_shape, dtype=self.spec.torch_dtype, device=self.device)
        seen = self._with_privileged(self.final, self._see(self.final))
        return self._seats.by_row(seen, ended=True)

    def present(self) -> Tensor:
        """See `VecEnv.present`."""
        if not isinstance(self._seats, OpponentTurns):
            return super().present()
        mover = self._look().mover
        assert mover is not None
        return self._seats.present(mover)

    def to_move(self) -> Tensor:
        """See `VecEnv.to_move`."""
        mover = self._look().mover
        if mover is None or self.spec.players == 1:
            return super().to_move()
        return mover

    def action_mask(self, chosen: Tensor) -> Tensor:
        """See `VecEnv.action_mask`."""
        legal = self._look().legal
        if legal is None:
            return super().action_mask(chosen)
        return self._seats.mask(legal, chosen)

    def _look(self) -> View:
        """Return what all seats know of the state; kept, as the next step needs it, too."""
        if self._known is None:
            state = self.state
            mover = self.mover(state) if self.in_turns else None
            legal = self.legal_options(state) if self.spec.masked else None
            self._known = View(self._see(state, mover), mover, legal)
        return self._known

    def _see(self, state: State, mover: Tensor | None = None) -> Tensor:
        """Return the observations of all seats; in games in turns, of the seat to move."""
        rules = self.active_rules
        seen = rules.see(state) if mover is None else rules.see(state, mover)
        return seen.to(self.spec.torch_dtype)

    def _with_privileged(self, state: State, seen: Tensor, mover: Tensor | None = None) -> Tensor:
        """Append the privileged columns of the same seats to observations."""
        if not self.spec.privileged_dim:
            return seen
        own = self.privileged(state) if mover is None else self.privileged(state, mover)
        return torch.cat((seen, own.to(self.spec.torch_dtype)), -1)

    def legal_options(self, state: State) -> Legal:
        """Return `mask` of a state; its first mask, which several ask for, is computed once."""
        return keep_first(partial(self.active_rules.mask, state))

    def _make_faults(self) -> FaultLatch:
        """See `BatchedGame._make_faults`. Strict games keep the actions of all seats that act."""
        if not self._strict:
            return super()._make_faults()
        acting = 1 if self.in_turns else self.seats
        columns = acting * len(self.spec.choices)
        return FaultLatch(self.num_games, columns, self._explain, self.device, torch.int64)

    def _legal(self, action: Tensor) -> Tensor:
        """See `BatchedGame._legal`. Strict games check actions with those of the opponents."""
        return action if self._strict else super()._legal(action)

    def faults(self) -> Tensor:
        """See `VecEnv.faults`. All rows of a strict game with an illegal action count."""
        return self.of_game(self._faults.latched()) if self._strict else super().faults()

    def _explain(self, fault: Fault) -> str:
        """See `BatchedGame._explain`. Describes and prints the position before the action, too."""
        if not self._strict:
            return super()._explain(fault)
        game, view = fault.row, self._look()
        names = self._seats.names(game)
        if view.mover is not None:
            names = (names[int(view.mover[game])],)
        several = self.seats > 1 and not self.in_turns
        masks = masks_at(fault, self.spec.choices, view.legal, self.age, several=several)
        member, own = divmod(game, self.games_per_member)
        place = f"row {game * self.rows_per_game} (member {member}, env {own})"
        position = self.describe(self.state, game)
        message = fault_message(place, fault, self.spec.choices, names, masks, position)
        # Flushed now: the process may not live to report the exception.
        print(message, file=sys.stderr, flush=True)
        return message

    def _checked_part(self, member: int) -> slice:
        """See `BatchedGame._checked_part`."""
        return self.games_of(member) if self._strict else self._rows(member)

    def position(self, *, final: bool) -> str:
        """Describe the first game (`describe`); with `final`, as its latest episode ended."""
        ended = self.reached if self.in_turns else self.final
        return self.describe(ended if final else self.state, 0)

    def seen_by(self, seat: int, *, final: bool) -> Tensor:
        """Return what a seat of the first game in turns sees, (state_dim,); `final`: as above."""
        state = self.reached if final else self.state
        return self.see(state, torch.full_like(self.age, seat))[0]

    def get_member(self, member: int) -> dict[str, Tensor]:
        """See `VecEnv.get_member`."""
        return super().get_member(member) | on_cpu(self._seats.get_member(member))

    def set_member(self, member: int, state: dict[str, Tensor]) -> None:
        """See `VecEnv.set_member`. The slot must be configured with the member's parameters."""
        super().set_member(member, state)
        self._seats.set_member(member, state)
        self._known = None

    def _of_games(self) -> dict[str, Tensor]:
        """See `BatchedGame._of_games`."""
        own = super()._of_games()
        return own if self._returns is None else own | {"returns": self._returns}
