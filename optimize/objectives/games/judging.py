"""Objectives of games as functions of evaluation episodes: `--objective MODULE:NAME`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweepd.envs.games.game import Game
from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.plugins import Plugin, resolve

RETURN, POINTS, TEAM = "return", "points", "team"  # built-in objectives
Infos = Sequence[Mapping[str, Any]]  # of episodes: what their last step said in `info`


@dataclass(frozen=True)
class EpisodeObjective:
    """A function of the episodes of one member.

    It is called with their returns (float64) and lengths in steps (int64), both (episodes,), and a
    list of the `info` of their last steps, and returns a number, the larger the better.
    """

    plugin: Plugin

    def __call__(
        self, returns: NDArray[np.float64], lengths: NDArray[np.int64], infos: Infos
    ) -> float:
        """Return the value of one member.

        Raises:
            RunError: the function raises, or returns no finite number.
        """
        flag = f"--objective {self.plugin.name}"
        try:
            value = float(self.plugin.made(returns, lengths, infos, **self.plugin.arguments))
        except Exception as error:  # the user's function may raise anything
            raise RunError(f"{flag} raised {type(error).__name__}: {error}") from error
        if not math.isfinite(value):
            raise RunError(f"{flag} returned {value}, which is no finite number")
        return value


def objectives_of(game: Game) -> tuple[str, ...]:
    """Return the built-in objectives of a game, the default first.

    Points (outcomes) of games of two players against each other, else the return; with roles, that
    of the first role, or of all roles as a team.
    """
    if game.versus is not None:
        return (POINTS,)
    return (RETURN, TEAM) if game.foreign else (RETURN,)


def game_objective(game: Game, name: str) -> EpisodeObjective | None:
    """Return the function that a study is judged by; None for one that is built in.

    Raises:
        InputError: it does not exist, or does not take returns, lengths and infos.
    """
    if name in (RETURN, POINTS, TEAM):
        return None
    if game.versus is not None:
        raise InputError(
            f"--objective {name}: games of two players are judged by their outcomes, points; leave it "
            "out"
        )
    plugin = resolve("objective", name, objectives_of(game))
    try:
        inspect.signature(plugin.made).bind(None, None, None, **plugin.arguments)
    except TypeError as error:
        raise InputError(
            f"--objective {name} must be a function of the returns, lengths and infos of episodes "
            f"({error})"
        ) from None
    return EpisodeObjective(plugin)
