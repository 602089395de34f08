"""Games of two in turns of others: PettingZoo's AEC environments of two agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sweepd.envs.external.adapters import ParallelFromAec
from sweepd.envs.external.guard import inside
from sweepd.envs.external.sources import PETTINGZOO, FactorySource, Imported
from sweepd.envs.games.external_seats import ExternalSeats
from sweepd.envs.games.game import Game, MakeBatchedGame
from sweepd.envs.games.tensor_game import State
from sweepd.envs.support.errors import InputError


class ExternalTurns(ExternalSeats):
    """An AEC environment of two agents, of which one acts at a time."""

    in_turns, if_discrete = True, True

    def mover(self, state: State) -> Tensor:
        """See `GameRules.mover`."""
        self._bring(state)
        return torch.tensor([own.mover for own in self._positions]).to(self.device)

    def _check(self, env: Any) -> None:  # noqa: ARG002
        """See `ExternalSeats._check`. `turns_game` looked at one made without arguments."""
        if len(self._agents) != 2:
            raise InputError(
                f"with these arguments it has {len(self._agents)} agents, and {PETTINGZOO} plays "
                f"two in turns against each other; --env {self._source.name} has a row per agent, "
                "also with --roles"
            )

    def _first_info(self, env: Any) -> Mapping[str, Any]:
        """See `ExternalSeats._first_info`."""
        env.reset(seed=0)
        return _info(env)

    def _open(self, arguments: Mapping[str, Any]) -> Any:
        """See `ExternalSeats._open`."""
        return self._source.plain(arguments).env

    def _begin(self, game: int, seed: int) -> None:
        """See `ExternalSeats._begin`."""
        self._inside(game, lambda env: env.reset(seed=seed))
        self._look_at(game)

    def _decide(self, game: int, decided: NDArray[Any]) -> None:
        """See `ExternalSeats._decide`."""
        [action] = self._decoded(decided)

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
        position.legal = np.ones((1, self.action_dim), bool)
        if position.over:
            return
        position.mover = self._agents.index(position.env.agent_selection)
        self._observe(game, position.mover)
        position.legal[0] = self._flags_of(game, position.mover, _info(position.env))

    def _observe(self, game: int, seat: int) -> None:
        """See `ExternalSeats._observe`. Zeros where the game is over and shows nothing."""
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


def _info(env: Any) -> Mapping[str, Any]:
    """Return the info of the agent to act."""
    found: Mapping[str, Any] = getattr(env, "infos", {}).get(env.agent_selection) or {}
    return found


def _done(env: Any, agent: Any) -> bool:
    return bool(env.terminations.get(agent, True) or env.truncations.get(agent, True))


def _over(env: Any) -> bool:
    return not env.agents or all(_done(env, agent) for agent in env.agents)


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
