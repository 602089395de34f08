"""Games of two at once of others: PettingZoo's parallel environments of two agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweepd.envs.external.adapters import ParallelFromAec
from sweepd.envs.external.sources import PETTINGZOO, VERSUS, FactorySource
from sweepd.envs.games.external_seats import ExternalSeats
from sweepd.envs.games.game import Game, MakeBatchedGame
from sweepd.envs.support.errors import InputError


class ExternalVersus(ExternalSeats):
    """A parallel environment of two agents, which play against each other.

    An agent that has left sees zeros; its actions are ignored until the game ends for the other.
    """

    def _check(self, env: Any) -> None:
        """See `ExternalSeats._check`."""
        kind = type(env).__name__
        if not self._agents:
            raise InputError(
                f"{VERSUS} is for environments of PettingZoo, and it made a {kind}, which has no "
                "possible_agents"
            )
        if len(self._agents) != 2:
            raise InputError(
                f"{VERSUS} is for two agents, and it has {len(self._agents)}; --env "
                f"{self._source.name} has a row per agent, also with --roles"
            )

    def _first_info(self, env: Any) -> Mapping[str, Any]:
        """See `ExternalSeats._first_info`."""
        _, infos = env.reset(seed=0)
        return next(iter(infos.values()), None) or {}

    def _open(self, arguments: Mapping[str, Any]) -> Any:
        """See `ExternalSeats._open`."""
        env = self._source.plain(arguments).env
        if ParallelFromAec.applies(env):
            if not ParallelFromAec.converts(env):
                raise InputError(
                    f"its agents act one after the other, and {VERSUS} is for two that act at once; "
                    f"{PETTINGZOO} plays two agents in turns against each other"
                )
            return ParallelFromAec(env)
        return env

    def _begin(self, game: int, seed: int) -> None:
        """See `ExternalSeats._begin`."""
        observations, infos = self._inside(game, lambda env: env.reset(seed=seed))
        self._note(game, observations, infos)

    def _decide(self, game: int, decided: NDArray[Any]) -> None:
        """See `ExternalSeats._decide`."""
        position = self._positions[game]
        both = dict(zip(self._agents, self._decoded(decided), strict=True))
        given = {agent: both[agent] for agent in position.env.agents}
        observations, rewards, _, _, infos = self._inside(game, lambda env: env.step(given))
        first, second = (float(rewards.get(agent, 0.0)) for agent in self._agents)
        position.rewards = first, second
        position.over = not position.env.agents
        self._note(game, observations, infos)

    def _note(self, game: int, observations: Mapping[Any, Any], infos: Mapping[Any, Any]) -> None:
        """Write what both see, and note what is legal; zeros for an agent that has left."""
        position = self._positions[game]
        self._shown[game].view("u1")[:] = 0
        position.legal = np.ones((2, self.action_dim), bool)
        for seat, agent in enumerate(self._agents):
            if agent not in position.env.agents:
                continue
            self._inside(game, partial(self._write, 2 * game + seat, observations[agent]))
            if self.spec.masked:
                position.legal[seat] = self._flags_of(game, seat, infos.get(agent) or {})
        position.seen = [True, True]

    def _write(self, row: int, observation: Any, env: Any) -> None:
        del env
        self._writer.one(row, observation)

    def _observe(self, game: int, seat: int) -> None:
        """See `ExternalSeats._observe`. Nothing: `_note` writes what both see."""


def versus_game(name: str, source: FactorySource, params: Callable[..., Any]) -> Game:
    """Return the game of a parallel environment of two agents, who play against each other.

    Args:
        name: of the game.
        source: what makes it.
        params: makes the parameters of the game, arguments of the environment by name.
    """
    make = MakeBatchedGame(partial(ExternalVersus, source), seats=2, in_turns=False)
    return make.game(name, params, None, lambda _: {})
