"""The base class of a user's game: a subclass gives the rules, for many episodes at once.

The rest of a vectorized environment is here: a random stream per member, autoreset, final
observations, faults, and slots for changing members. docs/games.md has a game in thirty lines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sweepd.envs.core.policies import Policies
from sweepd.envs.core.rows import where_rows
from sweepd.envs.core.vec_env import Legal, Step, on_cpu
from sweepd.envs.games.drawn_ahead import DrawnAhead
from sweepd.envs.games.game import Game, MakeTensorGame, NoParams
from sweepd.envs.games.legality import (
    ActionLatch,
    Fault,
    Latch,
    fault_message,
    keep_first,
    legal_action,
    make_latch,
    masks_at,
)
from sweepd.envs.games.opponents import Opponents, ScriptedPlayer
from sweepd.envs.games.rule_checks import check_declaration, check_rules, check_seats
from sweepd.envs.games.rules import GameRules, State
from sweepd.envs.games.seating import OpponentSeats, OpponentTurns, Results, Seats, View

__all__ = ["NoParams", "State", "TensorGame"]


class TensorGame(GameRules):
    """Games that are played one after the other, with rows of observations and actions.

    In a game of one player, a row is a game. In a game of several (`seats`), a row is a seat: row
    `game * seats + seat`; all its seats begin and end together. In a game of two with `opponents`,
    a row is a game again: that of the member's seat, which is drawn for every episode, as is the
    opponent that plays the other seat. In a game of two in turns, a row is a game in any case.

    `GameRules` says what a subclass sets and implements.

    Attributes:
        opponents: The opponents that the environment was made with.
        reached: The state that the latest step reached, before games that ended began again, to
            show how they ended.
        played: The latest step's actions of the seats, as `move` got them, and the state before it;
            None before the first step.
    """

    reached: State
    played: tuple[Tensor, State] | None = None
    _faults: Latch

    @classmethod
    def game(
        cls,
        params: Callable[..., Any] = NoParams,
        *,
        solved: float | None = None,
        scripted: Callable[[Any], Mapping[str, ScriptedPlayer]] = lambda _: {},
    ) -> Game:
        """Return the game for `sweepd train --env MODULE:NAME`.

        The module contains `NAME = ThisClass.game(Params)`.

        Args:
            params: A frozen dataclass of the game's parameters.
            solved: See `Game`.
            scripted: See `Game`.
        """
        make = MakeTensorGame(cls, cls.seats, cls.in_turns)
        return make.game(cls.__name__, params, solved, scripted)

    def __init__(
        self,
        params: Sequence[Any],
        envs_per_member: int,
        *,
        device: torch.device | str = "cpu",
        opponents: Opponents | None = None,
        outcome_rewards: bool = False,
    ) -> None:
        """Make the environment. Call `reset` before the first step.

        Args:
            params: One parameters dataclass per member.
            envs_per_member: Rows per member: its games, or without opponents a multiple of `seats`.
            device: Device of the environment.
            opponents: Who plays the second seat; None: every seat is a row.
            outcome_rewards: Whether rewards are the outcome (`outcome`) in an episode's last step
                and 0 before it, for judging.

        Raises:
            InputError: The rows do not fit, or a game without two seats has opponents or outcomes.
        """
        self.env_name, self.device = type(self).__name__, torch.device(device)
        self._set_rows(self.env_name, len(params), envs_per_member)
        check_seats(self, opponents, outcome_rewards=outcome_rewards)
        self.opponents, self._seats = opponents, Seats(1 if self.in_turns else self.seats)
        if opponents:
            opponents.decode = self.decode
            kind = OpponentTurns if self.in_turns else OpponentSeats
            self._seats = kind(opponents, self.num_envs, self.num_members)
        self._games_per_member = envs_per_member // self._seats.rows_per_game
        games = self.num_members * self._games_per_member
        self.prepare(params)
        self._set_players(opponents)
        check_declaration(self)
        # As tensors, the parameters can differ between members.
        self.numbers = {
            name: torch.zeros(games, dtype=torch.float64, device=self.device)
            for name in self.numeric(params[0])
        }
        self._limit = torch.zeros(games, dtype=torch.int64, device=self.device)
        for member, own in enumerate(params):
            self.configure_member(member, own)
        self._outcome_rewards = outcome_rewards
        # Sums of the present episodes' rewards, of all seats.
        self._returns: Tensor | None = None
        if opponents or outcome_rewards:
            self._returns = torch.zeros(games, self.seats, dtype=torch.float64, device=self.device)
        self._make_state(games)

    def _set_players(self, opponents: Opponents | None) -> None:
        """Set the attributes that tell learners who acts in a row."""
        if self.action_dims:
            self.action_dim = sum(self.action_dims)
        if self.in_turns:
            self.has_absent_agents = opponents is not None
            self.players = 1 if opponents else 2
            # There are no truncations.
            self.bootstrap_interval = 2**31

    def _make_state(self, games: int) -> None:
        """Make streams and state, as yet without episodes."""
        rows, device = self.num_envs, self.device
        # The parts of a step: for `start`, `move` and `_seats`.
        parts = self.uniforms_per_start, self.uniforms_per_move, self._seats.uniforms
        self._uniforms = DrawnAhead(self.num_members, self._games_per_member, parts, device)
        begun = self.start(self._uniforms.numbers.new_zeros(games, self.uniforms_per_start))
        check_rules(self, begun, games)
        self._state = {name: tensor.clone() for name, tensor in begun.items()}
        self.reached = self._state
        # What all seats know of `_state`, once it was asked for.
        self._known: View | None = None
        self._age = torch.zeros(games, dtype=torch.int64, device=device)
        spec = self.spec
        self._final = torch.zeros(rows, spec.obs_dim, dtype=spec.torch_dtype, device=device)
        numbers = len(spec.action_dims) if spec.if_discrete else spec.action_dim
        self._action_shape = (numbers,) if numbers else ()
        self._faults = make_latch(self, games, self._fault_message)

    def configure_member(self, member: int, params: Any) -> None:
        """See `GameEnv.configure_member`."""
        games = self._games(member)
        for name, number in self.numeric(params).items():
            self.numbers[name][games] = number
        self._limit[games] = self.step_limit(params)
        self._known = None  # observations may depend on the parameters

    def seeded(self, member: int) -> bool:
        """See `VecEnv.seeded`."""
        return self._uniforms.seeded(member)

    def reset_member(self, member: int, seed: int | None = None) -> None:
        """See `VecEnv.reset_member`. With a seed, results begin at zero, too."""
        if seed is not None:
            self._uniforms.seed(member, seed)
        games = self._games(member)
        # `start` computes all games, of which only the member's are used.
        for_start, _, for_seats = self._uniforms.once(member)
        for name, begun in self.start(for_start).items():
            self._state[name][games] = begun[games]
        self._known = None
        self._age[games] = 0
        if self._returns is not None:
            self._returns[games] = 0.0
        if seed is not None:
            self._seats.reset_member(member)
        own = torch.zeros_like(self._age, dtype=torch.bool)
        own[games] = True
        self._seats.begin(own, for_seats)
        # Replace what was drawn ahead: it came from the stream before the reset.
        self._uniforms.replace(member)
        self._faults.clear(self._checked_part(member))

    def begin_rollout(self, policies: Policies) -> None:
        """See `VecEnv.begin_rollout`."""
        self._seats.begin_rollout(policies)

    def results(self) -> Results:
        """See `VersusEnv.results`."""
        if self._seats.results is None:
            raise ValueError(f"{self.env_name} was made without opponents")
        return self._seats.results

    def draw(self, horizon: int) -> None:
        """See `VecEnv.draw`."""
        self._uniforms.draw(horizon)

    def step(self, action: Tensor, out: Tensor | None = None) -> Step:
        """See `VecEnv.step`."""
        for_start, for_move, for_seats = self._uniforms.next()
        self._check_shape(action, *self._action_shape)
        own = self.decode(self._faults.legal(action))
        view = self._look()
        controls = self._seats.controls(own, view, for_seats)
        state, reward, terminated, truncated = self._play(controls, view, for_move)
        self.reached = state
        done = terminated | truncated
        if self._returns is not None:
            reward = self._score(state, reward, done)
        reward = self._seats.by_row(reward.float())
        # `see` and `start` are computed for all games and used where an episode ended: a step must
        # not branch on the values of tensors. No one reads the final observations of games in
        # turns, which are never truncated.
        if not self.in_turns:
            seen = self._seats.by_row(self._with_privileged(state, self._see(state)))
            self._final = torch.where(self._seats.of_game(done).unsqueeze(1), seen, self._final)
        begun = self.start(for_start)
        self._state = {name: where_rows(done, begun[name], moved) for name, moved in state.items()}
        self._known = None
        self._age.masked_fill_(done, 0)
        # After what belongs to the ended episodes: it may give their rows other seats.
        self._seats.begin(done, for_seats)
        of_game = self._seats.of_game
        return Step(self.observe(out), reward, of_game(terminated), of_game(truncated))

    def _play(
        self, controls: Tensor, view: View, uniforms: Tensor
    ) -> tuple[State, Tensor, Tensor, Tensor]:
        """Return the next state, the rewards, and which games terminated and were truncated."""
        stopped = None
        if isinstance(self._faults, ActionLatch):
            made, legal = self.strictly(controls, view.legal)
            stopped = self._faults.record(legal, controls.reshape(len(legal), -1))
            controls = made
        self.played = controls, self._state
        state, reward, terminated = self.move(self._state, controls, uniforms)
        self._age += 1
        late = self._age >= self._limit
        if stopped is not None:
            # These games stay as they are, until `check` has printed their position.
            state = {name: where_rows(stopped, self._state[name], to) for name, to in state.items()}
            reward = where_rows(stopped, torch.zeros_like(reward), reward)
            terminated, late = terminated & ~stopped, late & ~stopped
        if self.in_turns:
            # The limit is one of the rules: nothing is bootstrapped.
            return state, reward, terminated | late, torch.zeros_like(late)
        return state, reward, terminated, late & ~terminated

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

    def _score(self, state: State, reward: Tensor, done: Tensor) -> Tensor:
        """Count the outcomes of games that are done; return the rewards, or outcomes instead."""
        assert self._returns is not None
        returns = self._returns + reward
        outcome = self.outcome(state, returns).double()
        ended = done.unsqueeze(1)
        self._returns = returns.masked_fill(ended, 0.0)
        self._seats.count(done, outcome)
        return outcome.masked_fill(~ended, 0.0) if self._outcome_rewards else reward

    def observe(self, out: Tensor | None = None) -> Tensor:
        """See `VecEnv.observe`. Zeros in rows that are without an agent."""
        view = self._look()
        of_seats = self._with_privileged(self._state, view.seen, view.mover)
        if isinstance(self._seats, OpponentTurns):
            # Not what the opponent sees.
            seen = of_seats.masked_fill(~self.present().unsqueeze(1), 0)
        else:
            seen = self._seats.by_row(of_seats)
        return seen.clone() if out is None else out.copy_(seen)

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
            state = self._state
            mover = self.mover(state) if self.in_turns else None
            legal = self.legal_options(state) if self.spec.masked else None
            self._known = View(self._see(state, mover), mover, legal)
        return self._known

    def _see(self, state: State, mover: Tensor | None = None) -> Tensor:
        """Return the observations of all seats; in games in turns, of the seat to move."""
        seen = self.see(state) if mover is None else self.see(state, mover)
        return seen.to(self.spec.torch_dtype)

    def _with_privileged(self, state: State, seen: Tensor, mover: Tensor | None = None) -> Tensor:
        """Append the privileged columns of the same seats to observations."""
        if not self.spec.privileged_dim:
            return seen
        own = self.privileged(state) if mover is None else self.privileged(state, mover)
        return torch.cat((seen, own.to(self.spec.torch_dtype)), -1)

    def legal_options(self, state: State) -> Legal:
        """Return `mask` of a state; its first mask, which several ask for, is computed once."""
        return keep_first(partial(self.mask, state))

    def faults(self) -> Tensor:
        """See `VecEnv.faults`. All rows of a game with an illegal action count."""
        if isinstance(self._faults, ActionLatch):
            return self._seats.of_game(self._faults.latched())
        return super().faults()

    def _fault_message(self, fault: Fault) -> str:
        """Describe an illegal action and the position before it."""
        game, view = fault.game, self._look()
        names = self._seats.names(game)
        if view.mover is not None:
            names = (names[int(view.mover[game])],)
        several = self.seats > 1 and not self.in_turns
        masks = masks_at(fault, self.spec.choices, view.legal, self._age, several=several)
        member, own = divmod(game, self._games_per_member)
        place = f"row {game * self._seats.rows_per_game} (member {member}, env {own})"
        position = self.describe(self._state, game)
        return fault_message(place, fault, self.spec.choices, names, masks, position)

    def position(self, *, final: bool) -> str:
        """Describe the first game (`describe`); with `final`, as the latest step left it."""
        return self.describe(self.reached if final else self._state, 0)

    def seen_by(self, seat: int, *, final: bool) -> Tensor:
        """Return what a seat of the first game in turns sees, (state_dim,); `final`: as above."""
        state = self.reached if final else self._state
        return self.see(state, torch.full_like(self._age, seat))[0]

    def final_obs(self) -> Tensor:
        """See `VecEnv.final_obs`."""
        return self._final

    def get_member(self, member: int) -> dict[str, Tensor]:
        """See `VecEnv.get_member`.

        Raises:
            RuntimeError: Random numbers drawn ahead are left; between rollouts there are none.
        """
        if left := self._uniforms.left:
            raise RuntimeError(f"{left} steps of the last draw are left: take a member after them")
        games, rows = self._games(member), self._rows(member)
        own = {name: tensor[games] for name, tensor in self._of_games().items()}
        own |= {"final": self._final[rows], "stream": self._uniforms.state(member)}
        own |= self._seats.get_member(member) | self._faults.state(self._checked_part(member))
        return on_cpu(own)

    def set_member(self, member: int, state: dict[str, Tensor]) -> None:
        """See `VecEnv.set_member`. The slot must be configured with the member's parameters."""
        games, rows = self._games(member), self._rows(member)
        for name, tensor in self._of_games().items():
            tensor[games] = state[name].to(self.device)
        self._known = None
        self._seats.set_member(member, state)
        self._final[rows] = state["final"].to(self.device)
        self._uniforms.set_state(member, state["stream"])
        self._faults.set_state(self._checked_part(member), state)

    def _of_games(self) -> dict[str, Tensor]:
        """Return the tensors of games, (G, ...), that move with a member."""
        own = {f"state_{name}": tensor for name, tensor in self._state.items()}
        own["age"] = self._age
        return own if self._returns is None else own | {"returns": self._returns}

    def _games(self, member: int) -> slice:
        """Return the games of a member."""
        return slice(member * self._games_per_member, (member + 1) * self._games_per_member)

    def _checked_part(self, member: int) -> slice:
        """Return the member's part of `_faults`: its games or its rows."""
        strict = isinstance(self._faults, ActionLatch)
        return self._games(member) if strict else self._rows(member)
