"""Games of two in turns by others: PettingZoo's AEC environments as a `TensorGame`.

The state of a game is its seed and the decisions so far. An environment of its own brings every
game to that position: by one step from the position before, or from the beginning, if the game was
restored or is another one. So a checkpoint is exact, and games can be compared, paired and replayed
like those made of tensors; what happens between the decisions must follow from the seed of `reset`.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from sweepd.envs.external.actions import ActionLayout
from sweepd.envs.external.adapters import ParallelFromAec
from sweepd.envs.external.codec import SpaceCodec
from sweepd.envs.external.describe import common_spaces, laid_out, named_error, spec_of
from sweepd.envs.external.guard import inside
from sweepd.envs.external.observations import MASK, ObservationLayout, Writer
from sweepd.envs.external.sources import LIMIT, FactorySource, Imported
from sweepd.envs.games.game import Game, MakeBatchedGame
from sweepd.envs.games.tensor_game import State, TensorGame
from sweepd.envs.support.errors import InputError, RunError

MOST_STEPS = 1000  # decisions of a game, unless max_episode_steps says otherwise
_HISTORY = "history"  # the state: seed, number of decisions, and their choices one after the other


@dataclass
class _Position:
    """One game's environment, and the position that it has reached.

    Attributes:
        env: the environment.
        history: the entries of the state that brought it there; None: it is not reset.
        mover: the seat to move.
        over: whether the game has ended.
        rewards: of both seats for the last decision.
        legal: (options,) of the seat to move.
        seen: for each seat, whether its observation is in the rows.
    """

    env: Any
    history: NDArray[np.int64] | None = None
    mover: int = 0
    over: bool = False
    rewards: tuple[float, float] = (0.0, 0.0)
    legal: NDArray[np.bool_] = field(default_factory=lambda: np.ones(0, bool))
    seen: list[bool] = field(default_factory=lambda: [False, False])


class ExternalTurns(TensorGame):
    """An AEC environment of two agents, each of which is a seat.

    Observations, their masks (`action_mask`, in the observation or in `infos`) and actions are laid
    out as those of other external environments. It is computed on the CPU, one game after the other.

    Attributes:
        codec: reads and writes the spaces of an agent.
    """

    seats, in_turns, if_discrete = 2, True, True

    def __init__(
        self, source: FactorySource, params: Sequence[Any], *rest: Any, **more: Any
    ) -> None:
        """Make the games. See `TensorGame`."""
        self._source, self._positions = source, list[_Position]()
        # The latest state that all environments were brought to: an array and its version.
        self._at: tuple[Tensor, int] | None = None
        super().__init__(params, *rest, **more)

    def prepare(self, params: Sequence[Any]) -> None:
        """See `GameRules.prepare`: make one environment and lay out its spaces."""
        self.env_name, first = self._source.name, dict(params[0])
        env = self._made(first)
        try:
            self._agents = list(env.possible_agents)
            observation, action = common_spaces(env)
            self._actions = ActionLayout(action)
            if not self._actions.discrete:
                raise InputError(
                    "its agents act in turns, and their actions are numbers; they must be choices"
                )
            self._layout = laid_out(env, observation, self._actions)
            env.reset(seed=0)
            masks_in_info = not self._layout.masked and MASK in _info(env)
            self.codec = SpaceCodec(observation, action, masks_in_info)
        except InputError as error:
            raise named_error(self._source, error) from None
        finally:
            env.close()
        vars(self).update(vars(spec_of(self._layout, self._actions)), masked=True)
        self.prescaled = self._layout.image_shape is None and _is_flags(self._layout)
        self._longest = self.max_step = max(self.step_limit(own) for own in params)
        games = self.num_games
        self._params: list[dict[str, Any]] = [{} for _ in range(games)]
        self._positions = []
        for member, own in enumerate(params):
            self._replace(member, dict(own))
        self._shown = np.zeros((games, 2), self._layout.dtype)
        self._writer: Writer = self._layout.writer(self._shown.reshape(-1))

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

    def start(self, uniforms: Tensor) -> State:
        """See `GameRules.start`."""
        columns = 2 + self._longest * self._actions.width
        history = torch.zeros(len(uniforms), columns, dtype=torch.int64, device=uniforms.device)
        # 31 bits, the most that environments written in C accept.
        history[:, 0] = (uniforms[:, 0] * 2.0**31).long()
        return {_HISTORY: history}

    def move(self, state: State, action: Tensor, uniforms: Tensor) -> tuple[State, Tensor, Tensor]:
        """See `GameRules.move`."""
        del uniforms
        self._bring(state)
        decided = action.cpu().numpy().reshape(len(action), -1)
        after = state[_HISTORY].cpu().clone()
        history = after.numpy()
        for game, position in enumerate(self._positions):
            if position.over:
                position.rewards = 0.0, 0.0
                continue
            self._decide(game, decided[game])
            count, width = int(history[game, 1]), self._actions.width
            first = 2 + count * width
            history[game, first : first + width] = decided[game]
            history[game, 1] = count + 1
            position.history = history[game, : first + width].copy()
        moved = after.to(self.device)
        self._at = moved, moved._version
        rewards = torch.tensor([own.rewards for own in self._positions], dtype=torch.float64)
        over = torch.tensor([own.over for own in self._positions])
        return {_HISTORY: moved}, rewards.to(self.device), over.to(self.device)

    def mover(self, state: State) -> Tensor:
        """See `GameRules.mover`."""
        self._bring(state)
        return torch.tensor([own.mover for own in self._positions]).to(self.device)

    def mask(self, state: State, chosen: Tensor) -> Tensor:
        """See `GameRules.mask`. What is legal does not depend on earlier choices."""
        self._bring(state)
        choices, made = self._actions.choices, chosen.shape[-1]
        first = sum(choices[:made])
        legal = np.stack([own.legal for own in self._positions])
        return torch.from_numpy(legal[:, first : first + choices[made]]).to(self.device)

    def see(self, state: State, seat: Tensor) -> Tensor:
        """See `GameRules.see`."""
        self._bring(state)
        seats = seat.tolist()
        for game, own in enumerate(seats):
            if not self._positions[game].seen[own]:
                self._observe(game, own)
        rows = self._shown[np.arange(len(seats)), seats]
        raw = torch.from_numpy(rows.view(np.uint8).reshape(len(seats), -1))
        return self._layout.unpack(raw).to(self.device)

    def describe(self, state: State, game: int) -> str:
        """See `GameRules.describe`: the seed and the decisions."""
        seed, count, *decided = state[_HISTORY][game].tolist()
        made = ", ".join(map(str, decided[: count * self._actions.width])) or "none"
        return f"seed {seed}, decisions: {made}"

    def close(self) -> None:
        """See `VecEnv.close`."""
        for position in self._positions:
            position.env.close()

    def _replace(self, member: int, params: dict[str, Any]) -> None:
        """Make the environments of a member's games with its parameters."""
        games = self.games_of(member)
        for game in range(games.start, games.stop):
            self._params[game] = params
            made = _Position(self._made(params))
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
                return self._source.plain(arguments)[0]
            except InputError as error:
                raise named_error(self._source, error) from None
            except Exception as error:  # the user's function may raise anything
                raise InputError(
                    f"{self._source.name} with {arguments} cannot be made: "
                    f"{type(error).__name__}: {error}"
                ) from error

    def _bring(self, state: State) -> None:
        """Bring every environment to the position of its game in a state."""
        wanted = state[_HISTORY]
        # In-place changes of a tensor, as when a member is restored, count up its version.
        if self._at is not None and self._at[0] is wanted and self._at[1] == wanted._version:
            return
        every, width = wanted.cpu().numpy(), self._actions.width
        for game, position in enumerate(self._positions):
            own = every[game, : 2 + int(every[game, 1]) * width]
            if position.history is not None and np.array_equal(position.history, own):
                continue
            self._begin(game, int(own[0]))
            for decided in own[2:].reshape(-1, width):
                self._decide(game, decided)
            position.history = own.copy()
        self._at = wanted, wanted._version

    def _begin(self, game: int, seed: int) -> None:
        self._inside(game, lambda env: env.reset(seed=seed))
        self._positions[game].rewards = 0.0, 0.0
        self._look_at(game)

    def _decide(self, game: int, decided: NDArray[np.int64]) -> None:
        [action] = self._actions.decode(decided[None].astype(self._actions.dtype))

        def step(env: Any) -> None:
            env.step(action)
            rewards = {agent: float(env.rewards.get(agent, 0.0)) for agent in self._agents}
            # The API's way to remove an agent that is done while the other one goes on.
            while not _over(env) and _done(env, env.agent_selection):
                env.step(None)
            self._positions[game].rewards = rewards[self._agents[0]], rewards[self._agents[1]]

        self._inside(game, step)
        self._look_at(game)

    def _look_at(self, game: int) -> None:
        """Read who is to move and what is legal."""
        position = self._positions[game]
        position.seen = [False, False]
        position.over = self._inside(game, _over)
        position.legal = np.ones(self.action_dim, bool)
        if position.over:
            return
        position.mover = self._agents.index(position.env.agent_selection)
        self._observe(game, position.mover)
        if self._layout.masked:
            row = self._shown[game, position.mover : position.mover + 1]
            position.legal = self._layout.flags(row)[0].copy()
        else:
            info = _info(position.env)
            if MASK in info:
                position.legal = np.asarray(info[MASK]).reshape(-1) != 0

    def _observe(self, game: int, seat: int) -> None:
        """Write what a seat sees to the rows; zeros where the game is over and shows nothing."""
        position, agent = self._positions[game], self._agents[seat]

        def observe(env: Any) -> None:
            self._writer.one(2 * game + seat, env.observe(agent))

        if position.over:
            self._shown[game, seat : seat + 1].view("u1")[:] = 0
            with suppress(Exception):  # of an ended game, environments need not show anything
                observe(position.env)
        else:
            self._inside(game, observe)
        position.seen[seat] = True

    def _inside(self, game: int, call: Callable[[Any], Any]) -> Any:
        try:
            with inside(self.env_name):
                return call(self._positions[game].env)
        except Exception as error:
            raise RunError(
                f"{self.env_name}: game {game} raised:\n{traceback.format_exc().rstrip()}"
            ) from error


def _info(env: Any) -> Mapping[str, Any]:
    """Return the info of the agent to act."""
    found: Mapping[str, Any] = getattr(env, "infos", {}).get(env.agent_selection) or {}
    return found


def _done(env: Any, agent: Any) -> bool:
    return bool(env.terminations.get(agent, True) or env.truncations.get(agent, True))


def _over(env: Any) -> bool:
    return not env.agents or all(_done(env, agent) for agent in env.agents)


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


def turns_game(name: str, source: FactorySource, params: Callable[..., Any]) -> Game | None:
    """Return the game of an AEC environment of two agents in turns; None if it makes another one.

    An environment is made without arguments to see what it is.

    Args:
        name: of the game.
        source: what makes it.
        params: makes the parameters of the game, arguments of the environment by name.
    """
    if isinstance(source.factory, Imported) and source.factory.attribute == "parallel_env":
        return None
    try:
        with inside(source.name):
            env, _ = source.plain({})
    except Exception:  # it needs arguments, or fails: making the environment will say so
        return None
    two = ParallelFromAec.applies(env) and not ParallelFromAec.converts(env)
    two = two and len(env.possible_agents) == 2
    getattr(env, "close", lambda: None)()
    if not two:
        return None
    make = MakeBatchedGame(partial(ExternalTurns, source), seats=2, in_turns=True)
    return make.game(name, params, None, lambda _: {})
