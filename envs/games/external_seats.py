"""Games of two of others: PettingZoo's environments as a `TensorGame`, in turns or at once.

The state of a game is its seed and the decisions so far. An environment of its own brings every
game to that position: by one step from the position before, or from the beginning, if the game was
restored or is another one. So a checkpoint is exact, and games can be compared, paired and replayed
like those made of tensors; what happens between the decisions must follow from the seed of `reset`.
"""

from __future__ import annotations

import traceback
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from sweepd.envs.external.actions import ActionLayout
from sweepd.envs.external.codec import SpaceCodec
from sweepd.envs.external.describe import common_spaces, laid_out, named_error, spec_of
from sweepd.envs.external.guard import inside
from sweepd.envs.external.observations import MASK, ObservationLayout, Writer
from sweepd.envs.external.sources import LIMIT, FactorySource
from sweepd.envs.games.tensor_game import State, TensorGame
from sweepd.envs.support.errors import InputError, RunError

MOST_STEPS = 1000  # steps of a game, unless max_episode_steps says otherwise
_HISTORY = "history"  # the state: seed, number of steps, and their actions one after the other


@dataclass
class Position:
    """One game's environment, and the position that it has reached.

    Attributes:
        env: the environment.
        history: the entries of the state that brought it there; None: it is not reset.
        mover: the seat to move, in turns.
        over: whether the game has ended.
        rewards: of both seats for the last step.
        legal: (seats that act, options).
        seen: for each seat, whether its observation is in the rows.
    """

    env: Any
    history: NDArray[Any] | None = None
    mover: int = 0
    over: bool = False
    rewards: tuple[float, float] = (0.0, 0.0)
    legal: NDArray[np.bool_] = field(default_factory=lambda: np.ones((1, 0), bool))
    seen: list[bool] = field(default_factory=lambda: [False, False])


class ExternalSeats(TensorGame):
    """An environment of two agents, each of which is a seat.

    Observations, their masks (`action_mask`, in the observation or in `infos`) and actions are laid
    out as those of other external environments. It is computed on the CPU, one game after the other.

    A game ends where the environment ends it for both, or after its limit of steps: then it is
    decided, too. So there are no truncations.

    Attributes:
        codec: reads and writes the spaces of an agent.
    """

    seats = 2

    def __init__(
        self, source: FactorySource, params: Sequence[Any], *rest: Any, **more: Any
    ) -> None:
        """Make the games. See `TensorGame`."""
        self._source, self._positions = source, list[Position]()
        # The latest state that all environments were brought to: an array and its version.
        self._at: tuple[Tensor, int] | None = None
        super().__init__(params, *rest, **more)

    def prepare(self, params: Sequence[Any]) -> None:
        """See `GameRules.prepare`: make one environment and lay out its spaces."""
        self.env_name, first = self._source.name, dict(params[0])
        env = self._made(first)
        try:
            self._agents = list(getattr(env, "possible_agents", ()))
            self._check(env)
            observation, action = common_spaces(env)
            self._actions = ActionLayout(action)
            if self.in_turns and not self._actions.discrete:
                raise InputError(
                    "its agents act in turns, and their actions are numbers; they must be choices"
                )
            self._layout = laid_out(env, observation, self._actions)
            in_info = not self._layout.masked and MASK in self._first_info(env)
            self.codec = SpaceCodec(observation, action, in_info)
        except InputError as error:
            raise named_error(self._source, error) from None
        finally:
            getattr(env, "close", lambda: None)()
        masked = self.in_turns or self._layout.masked or in_info
        vars(self).update(vars(spec_of(self._layout, self._actions)), masked=masked)
        self.bootstrap_interval = 2**31  # there are no truncations
        self.prescaled = self._layout.image_shape is None and _is_flags(self._layout)
        self._longest = self.max_step = max(self.step_limit(own) for own in params)
        self._acting = 1 if self.in_turns else 2
        self._columns_per_step = self._acting * self._actions.width
        games = self.num_games
        self._params: list[dict[str, Any]] = [{} for _ in range(games)]
        self._positions = []
        for member, own in enumerate(params):
            self._replace(member, dict(own))
        self._shown = np.zeros((games, 2), self._layout.dtype)
        self._writer: Writer = self._layout.writer(self._shown.reshape(-1))

    @abstractmethod
    def _check(self, env: Any) -> None:
        """Raise InputError if an environment cannot be played as this game."""

    @abstractmethod
    def _first_info(self, env: Any) -> Mapping[str, Any]:
        """Reset an environment, and return what `infos` says of an agent that acts first."""

    def configure_member(self, member: int, params: Any) -> None:
        """See `GameEnv.configure_member`."""
        super().configure_member(member, params)
        if dict(params) != self._params[self.games_of(member).start]:
            self._replace(member, dict(params))

    def numeric(self, params: Any) -> dict[str, float]:
        """See `GameRules.numeric`: parameters are arguments of the environment."""
        del params
        return {}

    def step_limit(self, params: Any) -> int:
        """See `GameRules.step_limit`."""
        return int(dict(params).get(LIMIT, MOST_STEPS))

    def truncated(self, late: Tensor, terminated: Tensor) -> Tensor:
        """See `BatchedRules.truncated`. The limit is one of the rules."""
        del terminated
        return torch.zeros_like(late)

    def final_obs(self) -> Tensor:
        """See `VecEnv.final_obs`. Zeros, as episodes are never truncated."""
        return torch.zeros(self._obs_shape, dtype=self.spec.torch_dtype, device=self.device)

    def start(self, uniforms: Tensor) -> State:
        """See `GameRules.start`."""
        columns = 2 + self._longest * self._columns_per_step
        # Numbers keep the seed and the number of steps exactly, too.
        kind = torch.int64 if self._actions.discrete else torch.float64
        history = torch.zeros(len(uniforms), columns, dtype=kind, device=uniforms.device)
        # 31 bits, the most that environments written in C accept.
        history[:, 0] = (uniforms[:, 0] * 2.0**31).long()
        return {_HISTORY: history}

    def move(self, state: State, action: Tensor, uniforms: Tensor) -> tuple[State, Tensor, Tensor]:
        """See `GameRules.move`."""
        del uniforms
        self._bring(state)
        decided = action.cpu().numpy().reshape(len(action), -1)
        after = state[_HISTORY].cpu().clone()
        history, limit = after.numpy(), self._limit.tolist()
        over = np.ones(len(history), bool)
        for game, position in enumerate(self._positions):
            if position.over:
                position.rewards = 0.0, 0.0
                continue
            self._decide(game, decided[game])
            count, width = int(history[game, 1]), self._columns_per_step
            first = 2 + count * width
            history[game, first : first + width] = decided[game]
            history[game, 1] = count + 1
            position.history = history[game, : first + width].copy()
            over[game] = position.over or count + 1 >= limit[game]
        moved = after.to(self.device)
        self._at = moved, moved._version
        rewards = torch.tensor([own.rewards for own in self._positions], dtype=torch.float64)
        return {_HISTORY: moved}, rewards.to(self.device), torch.from_numpy(over).to(self.device)

    def mask(self, state: State, chosen: Tensor) -> Tensor:
        """See `GameRules.mask`. What is legal does not depend on earlier choices."""
        self._bring(state)
        choices, made = self._actions.choices, chosen.shape[-1]
        first = sum(choices[:made])
        legal = np.stack([own.legal for own in self._positions])
        options = legal[..., first : first + choices[made]]
        return torch.from_numpy(options[:, 0] if self.in_turns else options).to(self.device)

    def see(self, state: State, *seat: Tensor) -> Tensor:
        """See `GameRules.see`."""
        self._bring(state)
        games = len(self._positions)
        seats = seat[0].unsqueeze(1).cpu().numpy() if seat else np.tile(np.arange(2), (games, 1))
        for game, wanted in enumerate(seats.tolist()):
            for own in wanted:
                if not self._positions[game].seen[own]:
                    self._observe(game, own)
        rows = self._shown[np.arange(games)[:, None], seats].reshape(-1)
        raw = torch.from_numpy(rows.view(np.uint8).reshape(len(rows), -1))
        seen = self._layout.unpack(raw).to(self.device)
        return seen if seat else seen.view(games, 2, -1)

    def describe(self, state: State, game: int) -> str:
        """See `GameRules.describe`: the seed and the decisions."""
        seed, count, *decided = state[_HISTORY][game].tolist()
        made = ", ".join(f"{own:g}" for own in decided[: int(count) * self._columns_per_step])
        return f"seed {int(seed)}, decisions: {made or 'none'}"

    def close(self) -> None:
        """See `VecEnv.close`."""
        for position in self._positions:
            position.env.close()

    def _replace(self, member: int, params: dict[str, Any]) -> None:
        """Make the environments of a member's games with its parameters."""
        games = self.games_of(member)
        for game in range(games.start, games.stop):
            self._params[game] = params
            made = Position(self._made(params))
            if game < len(self._positions):
                self._positions[game].env.close()
                self._positions[game] = made
            else:
                self._positions.append(made)
        self._at = None

    def _made(self, params: Mapping[str, Any]) -> Any:
        arguments = {name: value for name, value in params.items() if name != LIMIT}
        with inside(self._source.name):
            try:
                return self._open(arguments)
            except InputError as error:
                raise named_error(self._source, error) from None
            except Exception as error:  # the user's function may raise anything
                raise InputError(
                    f"{self._source.name} with {arguments} cannot be made: "
                    f"{type(error).__name__}: {error}"
                ) from error

    @abstractmethod
    def _open(self, arguments: Mapping[str, Any]) -> Any:
        """Return a new environment."""

    def _bring(self, state: State) -> None:
        """Bring every environment to the position of its game in a state."""
        wanted = state[_HISTORY]
        # In-place changes of a tensor, as when a member is restored, count up its version.
        if self._at is not None and self._at[0] is wanted and self._at[1] == wanted._version:
            return
        every, width = wanted.cpu().numpy(), self._columns_per_step
        for game, position in enumerate(self._positions):
            own = every[game, : 2 + int(every[game, 1]) * width]
            if position.history is not None and np.array_equal(position.history, own):
                continue
            position.rewards, position.over = (0.0, 0.0), False
            self._begin(game, int(own[0]))
            for decided in own[2:].reshape(-1, width):
                self._decide(game, decided)
            position.history = own.copy()
        self._at = wanted, wanted._version

    @abstractmethod
    def _begin(self, game: int, seed: int) -> None:
        """Reset a game's environment, and note its position."""

    @abstractmethod
    def _decide(self, game: int, decided: NDArray[Any]) -> None:
        """Step a game's environment, and note its position.

        Args:
            game: the game.
            decided: the actions of the seats that act, one after the other, as `move` gets them.
        """

    @abstractmethod
    def _observe(self, game: int, seat: int) -> None:
        """Write what a seat sees to its row (`_shown`), where that was left until it is asked for."""

    def _decoded(self, decided: NDArray[Any]) -> list[Any]:
        """Return the actions of the seats that act as the environment takes them."""
        rows = decided.reshape(self._acting, -1).astype(self._actions.dtype)
        return self._actions.decode(rows)

    def _flags_of(self, game: int, seat: int, info: Mapping[str, Any]) -> NDArray[np.bool_]:
        """Return (options,), which are legal for a seat whose observation is in its row."""
        if self._layout.masked:
            flags: NDArray[np.bool_] = self._layout.flags(self._shown[game, seat : seat + 1])[0]
            return flags.copy()
        if MASK in info:
            return np.asarray(np.asarray(info[MASK]).reshape(-1) != 0)
        return np.ones(self.action_dim, bool)

    def _inside(self, game: int, call: Callable[[Any], Any]) -> Any:
        try:
            with inside(self.env_name):
                return call(self._positions[game].env)
        except Exception as error:
            raise RunError(
                f"{self.env_name}: game {game} raised:\n{traceback.format_exc().rstrip()}"
            ) from error


def _is_flags(layout: ObservationLayout) -> bool:
    """Return whether observations are small by design, such as flags of a board.

    A flag that is rarely set would be scaled to a large number.
    """
    found = layout.space
    every = [found] if isinstance(found, spaces.Box) else list(getattr(found, "values", list)())
    boxes = [part for part in every if isinstance(part, spaces.Box)]
    return len(boxes) == len(every) and all(
        float(np.min(part.low)) >= -1.0 and float(np.max(part.high)) <= 1.0 for part in boxes
    )
