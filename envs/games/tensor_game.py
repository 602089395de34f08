"""The base class of a user's game: a subclass gives the rules, for many episodes at once.

The rest of a vectorized environment is here: a random stream per member, autoreset, final
observations, faults, and slots for changing members. docs/games.md has a game in thirty lines.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from envs.core.faults import ChoiceLatch, FaultLatch
from envs.core.policies import Policies
from envs.core.rows import where_rows
from envs.core.streams import Streams
from envs.core.vec_env import Step, on_cpu
from envs.games.game import Game
from envs.games.opponents import Opponents, ScriptedPlayer
from envs.games.seating import OpponentSeats, Results, Seats, VersusEnv
from envs.support.errors import InputError

State = dict[str, Tensor]
# Attributes under the names of earlier versions, which would otherwise have no effect.
_RENAMED = {"start_luck": "uniforms_per_start", "move_luck": "uniforms_per_move"}


@dataclass(frozen=True)
class NoParams:
    """Parameters of a game that has none."""


class TensorGame(VersusEnv):
    """Games that are played one after the other, with rows of observations and actions.

    In a game of one player, a row is a game. In a game of several (`seats`), a row is a seat: row
    `game * seats + seat`; all its seats begin and end together. In a game of two with `opponents`,
    a row is a game again: that of the member's seat, which is drawn for every episode, as is the
    opponent that plays the other seat. Below, G is the number of games, and tensors of seats are
    (G, ...) with one player, else (G, seats, ...).

    A subclass sets `state_dim`, `action_dim` and `if_discrete`, overrides the class attributes
    below if needed, and implements `start`, `move` and `see`. All three compute with a state: a
    dict of tensors of any types, games first. They must not change their arguments, must compute
    every game from that game alone, and must not read a tensor's value (`if`, `float`, `item`):
    they are called for thousands of games, each at a different time of a different episode.

    Attributes:
        seats: Number of players.
        max_step: Steps after which an episode is truncated; `step_limit` may return less.
        uniforms_per_start: Uniform random numbers that `start` gets per game.
        uniforms_per_move: Uniform random numbers that `move` gets per game.
        numbers: The members' numeric parameters by name, each (G,) float64.
        opponents: The opponents that the environment was made with.
    """

    seats = 1
    max_step = 1000
    uniforms_per_start = 1
    uniforms_per_move = 0
    _faults: ChoiceLatch | FaultLatch

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
                in a discrete game (...) int64 from 0 to action_dim - 1.
            uniforms: (G, uniforms_per_move) float64 uniform in [0, 1).

        Returns:
            The state after it; the seats' rewards, (...); and (G,) bool, episodes that it
            terminated.
        """

    @abstractmethod
    def see(self, state: State) -> Tensor:
        """Return the seats' observations, (..., state_dim)."""

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

        def make(
            params: Sequence[Any],
            num_envs: int,
            *,
            together: int,  # noqa: ARG001
            device: torch.device | str,
            opponents: Opponents | None = None,
            outcome_rewards: bool = False,
        ) -> TensorGame:
            rows = num_envs if opponents else num_envs * cls.seats
            if not opponents and not outcome_rewards:
                return cls(params, rows, device=device)
            return cls(
                params, rows, device=device, opponents=opponents, outcome_rewards=outcome_rewards
            )

        return Game(
            cls.__name__,
            params,
            make,
            seats=lambda _: cls.seats,
            solved=solved,
            versus=make if cls.seats == 2 else None,
            scripted=scripted,
        )

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
        for former, present in _RENAMED.items():
            if hasattr(self, former):
                raise InputError(f"{self.env_name}.{former} is now called {present}; rename it")
        if self.seats != 2 and (opponents or outcome_rewards):
            raise InputError(
                f"{self.env_name} has {self.seats} seats; only games of two have opponents and "
                "outcomes"
            )
        self._set_rows(self.env_name, len(params), envs_per_member)
        self.opponents, self._seats = opponents, Seats(self.seats)
        if opponents:
            if len(opponents.shares) != len(params):
                raise InputError(
                    f"the opponents are for {len(opponents.shares)} members, not {len(params)}"
                )
            opponents.decode = self.decode
            self._seats = OpponentSeats(opponents, self.num_envs, self.num_members)
        if envs_per_member % self._seats.rows_per_game:
            raise InputError(
                f"{self.env_name} has {self.seats} seats, and {envs_per_member} envs are not a "
                "multiple of them"
            )
        self._games_per_member = envs_per_member // self._seats.rows_per_game
        games = self.num_members * self._games_per_member
        self.prepare(params)
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

    def _make_state(self, games: int) -> None:
        """Make streams and state, as yet without episodes."""
        rows, device = self.num_envs, self.device
        self._streams = Streams(self.num_members, self.device)
        # Numbers drawn ahead: (steps, G, columns) for `start`, `move` and `_seats`.
        self._columns = [self.uniforms_per_start, self.uniforms_per_move, self._seats.uniforms]
        self._uniforms = torch.zeros(
            0, games, sum(self._columns), dtype=torch.float64, device=device
        )
        self._at = 0  # index of the next step in `_uniforms`
        self._state = self._checked(
            self.start(self._uniforms.new_zeros(games, self.uniforms_per_start))
        )
        self._seen: Tensor | None = None  # what all seats see of `_state`, once it was asked for
        self._age = torch.zeros(games, dtype=torch.int64, device=device)
        self._final = torch.zeros(rows, self.state_dim, device=device)
        self._scratch = torch.zeros(self.action_dim, rows, dtype=torch.float64, device=device)
        if self.if_discrete:
            self._faults = ChoiceLatch(rows, self.envs_per_member, self.action_dim, device)
        else:
            components = [str(component) for component in range(self.action_dim)]
            self._faults = FaultLatch(rows, self.envs_per_member, components, device)

    def configure_member(self, member: int, params: Any) -> None:
        """See `GameEnv.configure_member`."""
        games = self._games(member)
        for name, number in self.numeric(params).items():
            self.numbers[name][games] = number
        self._limit[games] = self.step_limit(params)
        self._seen = None  # observations may depend on the parameters

    def seeded(self, member: int) -> bool:
        """See `VecEnv.seeded`."""
        return self._streams.seeded(member)

    def reset_member(self, member: int, seed: int | None = None) -> None:
        """See `VecEnv.reset_member`. With a seed, results begin at zero, too."""
        if seed is not None:
            self._streams.seed(member, seed)
        games = self._games(member)
        # `start` computes all games, of which only the member's are used.
        uniforms = self._uniforms.new_zeros(len(self._age), sum(self._columns))
        uniforms[games] = self._drawn(member, 1)[0]
        for_start, _, for_seats = uniforms.split_with_sizes(self._columns, 1)
        for name, begun in self.start(for_start).items():
            self._state[name][games] = begun[games]
        self._seen = None
        self._age[games] = 0
        if self._returns is not None:
            self._returns[games] = 0.0
        if seed is not None:
            self._seats.reset_member(member)
        own = torch.zeros_like(self._age, dtype=torch.bool)
        own[games] = True
        self._seats.begin(own, for_seats)
        # Replace what was drawn ahead: it came from the stream before the reset.
        self._uniforms[self._at :, games] = self._drawn(member, len(self._uniforms) - self._at)
        self._faults.clear(self._rows(member))

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
        self._uniforms = torch.cat(
            [self._drawn(member, horizon) for member in range(self.num_members)], 1
        )
        self._at = 0

    def step(self, action: Tensor, out: Tensor | None = None) -> Step:
        """See `VecEnv.step`."""
        if self._at == len(self._uniforms):
            self.draw(1)
        for_start, for_move, for_seats = self._uniforms[self._at].split_with_sizes(self._columns, 1)
        self._at += 1
        own = self.decode(self._legal(action))
        controls = self._seats.controls(own, self._look(), for_seats)
        state, reward, terminated = self.move(self._state, controls, for_move)
        self._age += 1
        truncated = (self._age >= self._limit) & ~terminated
        done = terminated | truncated
        if self._returns is not None:
            reward = self._score(state, reward, done)
        reward = self._seats.by_row(reward.float())
        # `see` and `start` are computed for all games and used where an episode ended: a step must
        # not branch on the values of tensors.
        seen = self._seats.by_row(self.see(state).float())
        self._final = torch.where(self._seats.of_game(done).unsqueeze(1), seen, self._final)
        begun = self.start(for_start)
        self._state = {name: where_rows(done, begun[name], moved) for name, moved in state.items()}
        self._seen = None
        self._age.masked_fill_(done, 0)
        # After what belongs to the ended episodes: it may give their rows other seats.
        self._seats.begin(done, for_seats)
        of_game = self._seats.of_game
        return Step(self.observe(out), reward, of_game(terminated), of_game(truncated))

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
        """See `VecEnv.observe`."""
        seen = self._seats.by_row(self._look())
        return seen.clone() if out is None else out.copy_(seen)

    def _look(self) -> Tensor:
        """Return the observations of all seats; kept, as opponents act on them in the next step."""
        if self._seen is None:
            self._seen = self.see(self._state).float()
        return self._seen

    def final_obs(self) -> Tensor:
        """See `VecEnv.final_obs`."""
        return self._final

    def get_member(self, member: int) -> dict[str, Tensor]:
        """See `VecEnv.get_member`.

        Raises:
            RuntimeError: Random numbers drawn ahead are left; between rollouts there are none.
        """
        left = len(self._uniforms) - self._at
        if left:
            raise RuntimeError(f"{left} steps of the last draw are left: take a member after them")
        games, rows = self._games(member), self._rows(member)
        own = {f"state_{name}": tensor[games] for name, tensor in self._state.items()}
        own |= {
            "age": self._age[games],
            "final": self._final[rows],
            "stream": self._streams.state(member),
        }
        if self._returns is not None:
            own["returns"] = self._returns[games]
        own |= self._seats.get_member(member) | self._faults.state(rows)
        return on_cpu(own)

    def set_member(self, member: int, state: dict[str, Tensor]) -> None:
        """See `VecEnv.set_member`. The slot must be configured with the member's parameters."""
        games, rows = self._games(member), self._rows(member)
        for name, tensor in self._state.items():
            tensor[games] = state[f"state_{name}"].to(self.device)
        self._seen = None
        self._age[games] = state["age"].to(self.device)
        if self._returns is not None:
            self._returns[games] = state["returns"].to(self.device)
        self._seats.set_member(member, state)
        self._final[rows] = state["final"].to(self.device)
        self._streams.set_state(member, state["stream"])
        self._uniforms[self._at :, games] = self._drawn(member, len(self._uniforms) - self._at)
        self._faults.set_state(rows, state)

    def _games(self, member: int) -> slice:
        """Return the games of a member."""
        own = self._games_per_member
        return slice(member * own, (member + 1) * own)

    def _drawn(self, member: int, steps: int) -> Tensor:
        """Draw from the member's stream what its games need in these steps."""
        size = steps, self._games_per_member, sum(self._columns)
        return self._streams.member_uniform(member, *size).to(self.device)

    def _legal(self, action: Tensor) -> Tensor:
        """Return legal actions of rows; illegal ones are latched and replaced."""
        if isinstance(self._faults, ChoiceLatch):
            self._check_shape(action)
            self._faults.record(action)
            return action.clamp(0, self.action_dim - 1)
        self._check_shape(action, self.action_dim)
        self._faults.record(action.t().double(), self._scratch)
        # NaN becomes 0: the row is faulty, and its numbers must stay finite until `check`.
        return action.double().nan_to_num(0.0).clamp(-1.0, 1.0)

    def _checked(self, state: State) -> State:
        """Return a copy of the state; raise InputError if `start` or `see` return wrong shapes."""
        games = len(self._limit)
        for name, tensor in state.items():
            if not tensor.shape or tensor.shape[0] != games:
                raise InputError(
                    f"{self.env_name}.start: {name!r} has the shape {tuple(tensor.shape)}; its "
                    f"first dimension must be the games, {games} here"
                )
        seen, seat_axis = self.see(state), () if self.seats == 1 else (self.seats,)
        wanted = (games, *seat_axis, self.state_dim)
        if seen.shape != wanted:
            raise InputError(
                f"{self.env_name}.see returns the shape {tuple(seen.shape)}; it must be {wanted} "
                f"here: (games, {'seats, ' if seat_axis else ''}state_dim)"
            )
        return {name: tensor.clone() for name, tensor in state.items()}
