"""The panel: games on seeds that the search never used, in which a candidate, the champion and baseline players are
compared.

Everybody plays the same games, as far as the game's own chance goes, each at all seats; so differences are paired by
game. What is compared is the return of a game: the sum of its rewards, over all seats where there are several.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from deploy.games.player import Act, Player
from deploy.promotion.bootstrap import gate_level
from envs.core.streams import derive_seed
from envs.games.play import EpisodeResults, play_episodes, random_actions
from envs.games.registry import Game, GameEnv

Floats = NDArray[np.float64]
DRAWS, CHUNK = 20_000, 2_000_000  # of the bootstrap; numbers drawn at once


@dataclass(frozen=True)
class Interval:
    """A mean over games and its bootstrap interval of that confidence."""

    mean: float
    low: float
    high: float
    confidence: float


@dataclass(frozen=True)
class Opponent:
    """Whom the candidate was compared with. own: its mean return. difference: candidate less opponent, paired by game.
    ahead, equal, behind: in how many games the candidate's return was higher, the same and lower. share: of ahead in
    the games that were not equal.
    """

    name: str
    own: Interval
    difference: Interval
    ahead: int
    equal: int
    behind: int
    share: Interval

    @property
    def games(self) -> int:
        """How many both played."""
        return self.ahead + self.equal + self.behind


@dataclass(frozen=True)
class Panel:
    """What a panel found. seed: of its games; look: number of the look. own: the candidate's mean return."""

    seed: int
    look: int
    episodes: EpisodeResults
    own: Interval
    baselines: tuple[Opponent, ...]
    champion: Opponent | None = None

    @property
    def games(self) -> int:
        """How many games everybody played."""
        return int(self.episodes.returns.shape[1])


@dataclass(frozen=True)
class PanelGames:
    """A game and how it is played in a panel."""

    game: Game
    params: Any
    games: int
    seed: int

    def play(self, make: Callable[[GameEnv], Act]) -> EpisodeResults:
        """(1, games) episodes of one player. make: what acts, given the environment."""
        with opened(self.game, self.params, self.games) as env:
            env.reset_member(0, self.seed)
            act = make(env)
            ended = getattr(act, "ended", lambda _: None)
            return play_episodes(
                env, act, self.game.seats(self.params), ended=ended, episodes=self.games
            )

    def play_player(self, player: Player) -> EpisodeResults:
        """The same of a bundle's player at every seat. Raises InputError where it does not fit the game."""
        return self.play(lambda env: player.seated(env, derive_seed(self.seed, "player")))

    def play_baselines(self) -> dict[str, EpisodeResults]:
        """The same of the game's baseline players, by name: random play, and others that the game may have."""
        return {name: self.play(functools.partial(self._baseline, name)) for name in self.baselines}

    @property
    def baselines(self) -> tuple[str, ...]:
        """Their names."""
        named: Mapping[str, Act] = self.game.players(self.params, 0)
        return tuple(named) if "random" in named else ("random", *named)

    def _baseline(self, name: str, env: GameEnv) -> Act:
        seed = derive_seed(self.seed, "baseline")
        named = self.game.players(self.params, seed)
        if name in named:
            return named[name]
        generator = torch.Generator().manual_seed(seed)
        return lambda _: random_actions(env, generator)


@contextmanager
def opened(game: Game, params: Any, games: int) -> Iterator[GameEnv]:
    """An environment of one member that plays so many games at once, on the CPU; closed afterwards."""
    env = game.make([params], games, together=1, device="cpu")
    try:
        yield env
    finally:
        getattr(env, "close", lambda: None)()


def panel_seed(study_seed: int, look: int) -> int:
    """The seed of a panel's games. The search uses others (`"evaluation"`), and so does training."""
    return derive_seed(study_seed, "panel", look)


def confidence(look: int) -> float:
    """Of the intervals that decide at a game's look number 1 …: 95 %, 97.5 %, …"""
    return 1.0 - gate_level(look)


def interval(values: Floats, level: float, seed: int) -> Interval:
    """The mean of (games,) values, with its percentile bootstrap interval."""
    mean = float(values.mean())
    if np.ptp(values) == 0.0:
        return Interval(mean, mean, mean, level)
    rng, rows = np.random.default_rng(seed), max(1, CHUNK // values.size)
    means = [
        values[rng.integers(0, values.size, (min(rows, DRAWS - first), values.size))].mean(1)
        for first in range(0, DRAWS, rows)
    ]
    low, high = np.quantile(np.concatenate(means), [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return Interval(mean, float(low), float(high), level)


def share_interval(ahead: int, behind: int, level: float) -> Interval:
    """The share of `ahead` in `ahead + behind` games, with its exact (Clopper-Pearson) interval; 0 to 1 without games.

    Its lower end is above 1/2 exactly where a sign test at (1 - level) / 2 finds the candidate ahead more often.
    """
    from scipy.special import betaincinv

    games, tail = ahead + behind, (1.0 - level) / 2.0
    low = float(betaincinv(ahead, behind + 1, tail)) if ahead else 0.0
    high = float(betaincinv(ahead + 1, behind, 1.0 - tail)) if behind else 1.0
    return Interval(ahead / games if games else 0.5, low, high, level)


def compare(
    name: str, own: EpisodeResults, other: EpisodeResults, look: int, seed: int
) -> Opponent:
    """Two players of the same games."""
    ours, theirs, level = own.returns[0], other.returns[0], confidence(look)
    ahead, behind = int((ours > theirs).sum()), int((ours < theirs).sum())
    return Opponent(
        name,
        own=interval(theirs, 0.95, seed),
        difference=interval(ours - theirs, level, derive_seed(seed, name)),
        ahead=ahead,
        equal=ours.size - ahead - behind,
        behind=behind,
        share=share_interval(ahead, behind, level),
    )


def judge_panel(rules: PanelGames, look: int, player: Player) -> Panel:
    """The candidate against the baseline players; `challenge` adds the champion."""
    own = rules.play_player(player)
    others = rules.play_baselines()
    return Panel(
        seed=rules.seed,
        look=look,
        episodes=own,
        own=interval(own.returns[0], 0.95, rules.seed),
        baselines=tuple(
            compare(name, own, other, look, rules.seed) for name, other in others.items()
        ),
    )
