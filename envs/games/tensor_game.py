"""The base class of a user's game: a subclass gives the rules, for many episodes at once.

The rest of a vectorized environment is here: a random stream per member, autoreset, final
observations, faults, and slots for changing members. docs/games.md has a game in thirty lines.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from envs.core.faults import ChoiceLatch, FaultLatch
from envs.core.game_env import GameEnv
from envs.core.streams import Streams
from envs.core.vec_env import Step, on_cpu
from envs.games.registry import Game
from envs.support.errors import InputError

State = dict[str, Tensor]
# Attributes under the names of earlier versions, which would otherwise have no effect.
_RENAMED = {"start_luck": "uniforms_per_start", "move_luck": "uniforms_per_move"}


@dataclass(frozen=True)
class NoParams:
    """Parameters of a game that has none."""


class TensorGame(GameEnv):
    """`envs_per_member` rows per member, each playing one episode after the other.

    A subclass sets `state_dim`, `action_dim` and `if_discrete`, overrides the class attributes
    below if needed, and implements `start`, `move` and `see`. All three compute with a state: a
    dict of tensors of any types, rows first. They must not change their arguments, must compute
    every row from that row alone, and must not read a tensor's value (`if`, `float`, `item`): they
    are called for thousands of rows, each at a different time of a different episode.

    Attributes:
        max_step: Steps after which an episode is truncated.
        uniforms_per_start: Uniform random numbers that `start` gets per row.
        uniforms_per_move: Uniform random numbers that `move` gets per row.
        numbers: The members' numeric parameters by name, each (num_envs,) float64.
    """

    max_step = 1000
    uniforms_per_start = 1
    uniforms_per_move = 0
    _faults: ChoiceLatch | FaultLatch

    @abstractmethod
    def start(self, uniforms: Tensor) -> State:
        """Return the state in which episodes begin.

        Args:
            uniforms: (num_envs, uniforms_per_start) float64 uniform in [0, 1).
        """

    @abstractmethod
    def move(self, state: State, action: Tensor, uniforms: Tensor) -> tuple[State, Tensor, Tensor]:
        """Play one step.

        Args:
            state: The state before it.
            action: (num_envs, action_dim) float64 in [-1, 1]; in a discrete game (num_envs,) int64
                from 0 to action_dim - 1.
            uniforms: (num_envs, uniforms_per_move) float64 uniform in [0, 1).

        Returns:
            The state after it; rewards (num_envs,); and (num_envs,) bool, episodes that it
            terminated.
        """

    @abstractmethod
    def see(self, state: State) -> Tensor:
        """Return the observations, (num_envs, state_dim)."""

    @classmethod
    def game(cls, params: Callable[..., Any] = NoParams, *, solved: float | None = None) -> Game:
        """Return the game for `sweepd train --env MODULE:NAME`.

        The module contains `NAME = ThisClass.game(Params)`.

        Args:
            params: A frozen dataclass of the game's parameters.
            solved: See `Game`.
        """

        def make(
            params: Sequence[Any],
            num_envs: int,
            *,
            together: int,  # noqa: ARG001
            device: torch.device | str,
        ) -> GameEnv:
            return cls(params, num_envs, device=device)

        return Game(cls.__name__, params, make, solved=solved)

    def __init__(
        self, params: Sequence[Any], envs_per_member: int, *, device: torch.device | str = "cpu"
    ) -> None:
        """Make the environment. Call `reset` before the first step.

        Args:
            params: One parameters dataclass per member.
            envs_per_member: Rows per member.
            device: Device of the environment.
        """
        self.env_name = type(self).__name__
        for former, present in _RENAMED.items():
            if hasattr(self, former):
                raise InputError(f"{self.env_name}.{former} is now called {present}; rename it")
        self._set_rows(self.env_name, len(params), envs_per_member)
        rows = self.num_envs
        self.device = torch.device(device)
        # Only numeric parameters reach the rules: as tensors, they can differ between members.
        named = [
            name for name, value in asdict(params[0]).items() if isinstance(value, int | float)
        ]
        self.numbers = {
            name: torch.zeros(rows, dtype=torch.float64, device=self.device) for name in named
        }
        for member, own in enumerate(params):
            self.configure_member(member, own)

        self._streams = Streams(self.num_members, self.device)
        # Numbers drawn ahead: (steps, rows, uniforms_per_start + uniforms_per_move).
        columns = self.uniforms_per_start + self.uniforms_per_move
        self._uniforms = torch.zeros(0, rows, columns, dtype=torch.float64, device=self.device)
        self._at = 0  # index of the next step in `_uniforms`
        self._state = self._checked(
            self.start(torch.zeros(rows, self.uniforms_per_start, dtype=torch.float64).to(device))
        )
        self._age = torch.zeros(rows, dtype=torch.int64, device=self.device)
        self._final = torch.zeros(rows, self.state_dim, device=self.device)
        self._scratch = torch.zeros(self.action_dim, rows, dtype=torch.float64, device=self.device)
        if self.if_discrete:
            self._faults = ChoiceLatch(rows, envs_per_member, self.action_dim, self.device)
        else:
            components = [str(component) for component in range(self.action_dim)]
            self._faults = FaultLatch(rows, envs_per_member, components, self.device)

    def configure_member(self, member: int, params: Any) -> None:
        """See `GameEnv.configure_member`."""
        for name, numbers in self.numbers.items():
            numbers[self._rows(member)] = float(getattr(params, name))

    def seeded(self, member: int) -> bool:
        """See `VecEnv.seeded`."""
        return self._streams.seeded(member)

    def reset_member(self, member: int, seed: int | None = None) -> None:
        """See `VecEnv.reset_member`."""
        if seed is not None:
            self._streams.seed(member, seed)
        rows = self._rows(member)
        uniforms = torch.zeros(
            self.num_envs, self.uniforms_per_start, dtype=torch.float64, device=self.device
        )
        # `start` computes all rows, of which only the member's are used.
        uniforms[rows] = self._drawn(member, 1)[0, :, : self.uniforms_per_start]
        for name, begun in self.start(uniforms).items():
            self._state[name][rows] = begun[rows]
        self._age[rows] = 0
        # Replace what was drawn ahead: it came from the stream before the reset.
        self._uniforms[self._at :, rows] = self._drawn(member, len(self._uniforms) - self._at)
        self._faults.clear(rows)

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
        uniforms = self._uniforms[self._at]
        self._at += 1
        state, reward, terminated = self.move(
            self._state, self._legal(action), uniforms[:, self.uniforms_per_start :]
        )
        self._age += 1
        truncated = (self._age >= self.max_step) & ~terminated
        done = terminated | truncated
        # `see` and `start` are computed for all rows and used where an episode ended: a step must
        # not branch on the values of tensors.
        self._final = torch.where(done.unsqueeze(1), self.see(state).float(), self._final)
        begun = self.start(uniforms[:, : self.uniforms_per_start])
        self._state = {name: _where(done, begun[name], moved) for name, moved in state.items()}
        self._age.masked_fill_(done, 0)
        return Step(self.observe(out), reward.float(), terminated, truncated)

    def observe(self, out: Tensor | None = None) -> Tensor:
        """See `VecEnv.observe`."""
        seen = self.see(self._state)
        return seen.float() if out is None else out.copy_(seen)

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
        rows = self._rows(member)
        own = {f"state_{name}": tensor[rows] for name, tensor in self._state.items()}
        own |= {
            "age": self._age[rows],
            "final": self._final[rows],
            "stream": self._streams.state(member),
        }
        own |= self._faults.state(rows)
        return on_cpu(own)

    def set_member(self, member: int, state: dict[str, Tensor]) -> None:
        """See `VecEnv.set_member`. The slot must be configured with the member's parameters."""
        rows = self._rows(member)
        for name, tensor in self._state.items():
            tensor[rows] = state[f"state_{name}"].to(self.device)
        self._age[rows] = state["age"].to(self.device)
        self._final[rows] = state["final"].to(self.device)
        self._streams.set_state(member, state["stream"])
        self._uniforms[self._at :, rows] = self._drawn(member, len(self._uniforms) - self._at)
        self._faults.set_state(rows, state)

    def _drawn(self, member: int, steps: int) -> Tensor:
        """Draw from the member's stream what its rows need: those of `start` first, then `move`."""
        size = (steps, self.envs_per_member, self.uniforms_per_start + self.uniforms_per_move)
        return self._streams.member_uniform(member, *size).to(self.device)

    def _legal(self, action: Tensor) -> Tensor:
        """Return the actions for `move`: illegal ones are latched and replaced by legal ones."""
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
        for name, tensor in state.items():
            if not tensor.shape or tensor.shape[0] != self.num_envs:
                raise InputError(
                    f"{self.env_name}.start: {name!r} has the shape {tuple(tensor.shape)}; its "
                    f"first dimension must be the rows, {self.num_envs} here"
                )
        seen = self.see(state)
        if seen.shape != (self.num_envs, self.state_dim):
            raise InputError(
                f"{self.env_name}.see returns the shape {tuple(seen.shape)}; it must be (rows, "
                f"state_dim), here {(self.num_envs, self.state_dim)}"
            )
        return {name: tensor.clone() for name, tensor in state.items()}


def _where(mask: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """Select rows by a (rows,) mask."""
    return torch.where(mask.view(-1, *(1 for _ in other.shape[1:])), one, other)
