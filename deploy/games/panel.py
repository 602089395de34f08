"""The panel: new games in which a candidate, the champion and baseline players are compared.

The games' seeds are not used by the search. All players play the same games as far as the game's
own randomness goes, each at all seats, so differences are paired by game. The return of a game is
the sum of its rewards, over all seats if there are several.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sweepd.deploy.games.baselines import FIRST_ACTION, RANDOM, Act, baseline_player
from sweepd.deploy.games.player import Player
from sweepd.deploy.promotion.bootstrap import gate_level
from sweepd.envs.core.game_env import GameEnv
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.games.constant_players import constant_actions
from sweepd.envs.games.game import Game
from sweepd.envs.games.play import EpisodeResults, play_episodes
from sweepd.envs.support.intervals import clopper_pearson

Floats = NDArray[np.float64]
DRAWS, CHUNK = 20_000, 2_000_000  # bootstrap samples; numbers drawn at once


@dataclass(frozen=True)
class Interval:
    """A mean over games and its interval of the given confidence."""

    mean: float
    low: float
    high: float
    confidence: float


@dataclass(frozen=True)
class Opponent:
    """A player that the candidate was compared with.

    Attributes:
        name: of the player.
        own: the player's mean return.
        difference: return of the candidate minus that of the player, paired by game.
        ahead: games in which the candidate's return was higher.
        equal: games with equal returns.
        behind: games in which the candidate's return was lower.
        share: share of games ahead among those without equal returns.
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
        """Number of games."""
        return self.ahead + self.equal + self.behind

    def to_dict(self) -> dict[str, Any]:
        """All fields but the name, for JSON."""
        content = dataclasses.asdict(self)
        del content["name"]
        return content


@dataclass(frozen=True)
class Panel:
    """The result of a panel.

    Attributes:
        seed: of its games.
        look: number of the evaluation on the game's panel.
        episodes: the candidate's games.
        own: the candidate's mean return.
        baselines: comparisons with the baseline players.
        champion: comparison with the champion, None for an empty slot.
    """

    seed: int
    look: int
    episodes: EpisodeResults
    own: Interval
    baselines: tuple[Opponent, ...]
    champion: Opponent | None = None

    @property
    def games(self) -> int:
        """Number of games."""
        return int(self.episodes.returns.shape[1])

    @property
    def opponents(self) -> tuple[Opponent, ...]:
        """The champion, if there is one, and the baseline players."""
        return (*([self.champion] if self.champion else []), *self.baselines)

    def to_dict(self) -> dict[str, Any]:
        """For JSON and for a bundle's gate report; it suffices to play the panel again."""
        return {
            "seed": self.seed,
            "look": self.look,
            "games": self.games,
            "returns": self.episodes.returns[0].tolist(),
            "lengths": self.episodes.lengths[0].tolist(),
            "own": dataclasses.asdict(self.own),
            "baselines": {other.name: other.to_dict() for other in self.baselines},
            "champion": self.champion and {"name": self.champion.name} | self.champion.to_dict(),
        }


@dataclass(frozen=True)
class PanelGames:
    """The games of a panel, to be played by any player. own: a user's baseline players."""

    game: Game
    params: Any
    games: int
    seed: int
    own: tuple[str, ...] = ()

    def play(self, make: Callable[[GameEnv], Act]) -> EpisodeResults:
        """(1, games) episodes of a player. make: returns its acting function for an environment."""
        env = self.game.make([self.params], self.games, together=1, device="cpu")
        with contextlib.closing(env):
            env.reset_member(0, self.seed)
            act = make(env)
            ended = getattr(act, "ended", lambda _: None)
            return play_episodes(
                env, act, self.game.seats(self.params), ended=ended, episodes=[self.games]
            )

    def play_player(self, player: Player) -> EpisodeResults:
        """Episodes of a bundle's player at every seat; InputError if it does not fit the game."""
        return self.play(lambda env: player.seated(env, derive_seed(self.seed, "player")))

    def play_baselines(
        self, player: Player, names: Sequence[str] | None = None
    ) -> dict[str, EpisodeResults]:
        """Episodes of baseline players by name.

        Args:
            player: the candidate, whose first action is one of them.
            names: of the baseline players; None: all of `baselines`.

        Raises:
            InputError: see `sweepd.deploy.games.baselines.baseline_player`.
        """
        first = self._first_action(player)
        return {
            name: self.play(functools.partial(self._baseline, name, first))
            for name in names or self.baselines
        }

    @property
    def baselines(self) -> tuple[str, ...]:
        """Names of the baseline players: random, of the game, constant, and a user's own."""
        with contextlib.closing(self._one_game()) as env:
            constant = constant_actions(env)
        named = (RANDOM, *self.game.players(self.params, 0), *constant, FIRST_ACTION, *self.own)
        return tuple(dict.fromkeys(named))

    def _one_game(self) -> GameEnv:
        return self.game.make([self.params], 1, together=1, device="cpu")

    def _first_action(self, player: Player) -> Tensor:
        """The player's action at the beginning of the first game, one row per seat."""
        with contextlib.closing(self._one_game()) as env:
            env.reset_member(0, self.seed)
            act = player.seated(env, derive_seed(self.seed, "player"))
            return act(env.observe())[: self.game.seats(self.params)].clone()

    def _baseline(self, name: str, first: Tensor, env: GameEnv) -> Act:
        seed = derive_seed(self.seed, "baseline")
        scripted = self.game.players(self.params, seed)
        return baseline_player(name, env, scripted, first, seed)


def panel_seed(study_seed: int, look: int) -> int:
    """The seed of a panel's games; search and training derive theirs from other labels."""
    return derive_seed(study_seed, "panel", look)


def confidence(look: int) -> float:
    """Confidence of the deciding intervals at evaluation 1, 2, …: 95%, 97.5%, …"""
    return 1.0 - gate_level(look)


def interval(values: Floats, level: float, seed: int) -> Interval:
    """The mean of (games,) values with its percentile bootstrap interval (B. Efron 1981)."""
    mean = float(values.mean())
    if np.ptp(values) == 0.0:
        return Interval(mean, mean, mean, level)
    rng, rows = np.random.default_rng(seed), max(1, CHUNK // values.size)
    means = [
        values[rng.integers(0, values.size, (min(rows, DRAWS - first), values.size))].mean(1)
        for first in range(0, DRAWS, rows)
    ]
    # Percentile interval: quantiles (1 - level)/2 and (1 + level)/2 of the resampled means. Games
    # are independent, so single values are resampled and not blocks as for bars.
    low, high = np.quantile(np.concatenate(means), [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return Interval(mean, float(low), float(high), level)


def share_interval(ahead: int, behind: int, level: float) -> Interval:
    """The share of `ahead` in `ahead + behind` games with its exact interval (Clopper-Pearson).

    Its lower end is above 1/2 exactly if a sign test at (1 - level)/2 finds the candidate ahead more
    often. Without games it is 0 to 1.
    """
    found = clopper_pearson(ahead, ahead + behind, level)
    return Interval(found.value, found.low, found.high, level)


def compare(
    name: str, own: EpisodeResults, other: EpisodeResults, look: int, seed: int
) -> Opponent:
    """Compare two players of the same games at evaluation number `look`."""
    # Both played the same games, so differences by game cancel the games' own luck.
    ours, theirs, level = own.returns[0], other.returns[0], confidence(look)
    ahead, behind = int((ours > theirs).sum()), int((ours < theirs).sum())
    return Opponent(
        name,
        # The player's own mean only informs; the differences decide, at the evaluation's level.
        own=interval(theirs, 0.95, seed),
        difference=interval(ours - theirs, level, derive_seed(seed, name)),
        ahead=ahead,
        equal=ours.size - ahead - behind,
        behind=behind,
        share=share_interval(ahead, behind, level),
    )


def judge_panel(rules: PanelGames, look: int, player: Player) -> Panel:
    """Evaluate the candidate against the baseline players; the champion is added later."""
    own = rules.play_player(player)
    others = rules.play_baselines(player)
    return Panel(
        seed=rules.seed,
        look=look,
        episodes=own,
        own=interval(own.returns[0], 0.95, rules.seed),
        baselines=tuple(
            compare(name, own, other, look, rules.seed) for name, other in others.items()
        ),
    )
