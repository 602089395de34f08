"""The league of `sweepd league`: players of any studies of one game, in all pairs.

The game's scripted players join every league: results of different leagues are comparable by them,
and the first of them has the rating 0.

Every pair plays in an environment of its own, so a result depends on the two players, the game, its
parameters and the seed only. Results are kept in files, and a league that is interrupted, or asked
for again with more players, plays what is missing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sweepd.agents.policy.duels import Duels, duel_report
from sweepd.agents.policy.exact_league import exact_league
from sweepd.agents.policy.league import Floats, Matches, report
from sweepd.agents.policy.league_pictures import draw_duels, draw_league
from sweepd.agents.policy.ratings import Ratings, write_ratings
from sweepd.deploy.games.baselines import RANDOM
from sweepd.deploy.games.league_players import (
    NamedPlayer,
    ScriptedPlayer,
    game_with,
    scripted_names,
)
from sweepd.deploy.registry.bundle_files import finite
from sweepd.deploy.registry.kept_scores import KeptScores, Tick
from sweepd.envs.core.rows import where_rows
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.games.game import Game
from sweepd.envs.games.pairings import is_versus, play_pairs, scripted_entrants
from sweepd.envs.games.play import play_episodes
from sweepd.envs.games.reward_sums import check_zero_sum
from sweepd.envs.support.errors import InputError


@dataclass(frozen=True)
class Results(KeptScores):
    """Scores of games, one file per pair of players, or per player.

    Attributes:
        game: the game.
        games: games of each result.
        seed: of all of them.
    """

    game: Game
    games: int
    seed: int

    def scores(
        self,
        kind: str,
        players: Sequence[NamedPlayer],
        params: Mapping[str, Any],
        play: Callable[[], Mapping[str, Floats]],
    ) -> dict[str, Floats]:
        """Return scores by name, from the file of these players or else from `play`.

        Args:
            kind: what is played.
            players: who plays.
            params: of the game, by name.
            play: plays it.
        """
        key = {
            "players": [player.identity for player in players],
            "game": self.game.name,
            "params": finite(params),
            "games": self.games,
            "seed": self.seed,
        }
        return self.kept(kind, key, play)


def with_scripted(
    players: Sequence[NamedPlayer], game: Game, params: Any
) -> tuple[NamedPlayer, ...]:
    """Return the players, and after them the scripted ones of the game that are not among them.

    A game of two players without scripted ones has uniform random play in place of them.
    """
    named = {player.identity for player in players}
    names = [name for name in _scripted(game, params) if name not in named]
    return (*players, *map(ScriptedPlayer, names))


@dataclass(frozen=True)
class PlayedLeague:
    """A league that was played.

    Attributes:
        found: the scores of all pairs.
        report: as `sweepd.agents.policy.league.report` or, for games of two players,
            `sweepd.agents.policy.duels.duel_report` describes it, with `game`, `params` and `seed`.
        anchor: the player whose rating is 0.
    """

    found: Matches | Duels
    report: dict[str, Any]
    anchor: str

    @property
    def ratings(self) -> Ratings | None:
        """The ratings; None if the game has no wins that they could be computed from."""
        return self.found.ratings(self.anchor) if isinstance(self.found, Duels) else None

    def draw(self, folder: Path, title: str) -> list[Path]:
        """Draw `league.png` and, of games of two players, `ratings.png`; return their paths."""
        ratings, path = self.ratings, folder / "league.png"
        if ratings is None:
            draw_league(path, self.report, title)
            return [path]
        draw_duels(path, self.report, title)
        other = folder / "ratings.png"
        write_ratings(other, ratings, title)
        return [path, other]


def play_league(
    results: Results,
    players: Sequence[NamedPlayer],
    given: Mapping[str, Any],
    tick: Tick = lambda _done, _total: None,
) -> PlayedLeague:
    """Play a league.

    Args:
        results: where results are kept.
        players: the players; the game's scripted ones join.
        given: the parameters of the game.
        tick: is told how far it is.

    Raises:
        InputError: the game has one seat or no such parameters, or a player cannot play it.
    """
    game = results.game
    params = game_with(game, given, "--env-param")
    if game.seats(params) < 2:
        raise InputError(f"{game.name} has one seat and no league: compare players with --over")
    if is_versus(game, params):
        check_zero_sum(game, params, "a league of points and ratings")
    everybody = with_scripted(players, game, params)
    for player in everybody:
        if reason := player.misfit(game, params):
            raise InputError(f"{player.name} cannot play here: {reason}")
    anchor = _scripted(game, params)[0]
    found: Matches | Duels
    if is_versus(game, params):
        found = _duels(results, everybody, given, params, tick)
        entrants = [player.entrant(game, params, player.name) for player in everybody]
        exact = exact_league(game, params, entrants)
        described = duel_report(found, len(players), exact, anchor)
    else:
        found = _matches(results, everybody, given, params, tick)
        described = report(found, len(players))
    told = {"game": game.name, "params": finite(given), "seed": results.seed, **described}
    return PlayedLeague(found, told, anchor)


def _scripted(game: Game, params: Any) -> list[str]:
    """Return the names of the scripted players that join a league."""
    if is_versus(game, params):
        return [entrant.names[0] for entrant in scripted_entrants(game, params)]
    return [RANDOM, *scripted_names(game, params)]


def _duels(
    results: Results,
    players: Sequence[NamedPlayer],
    given: Mapping[str, Any],
    params: Any,
    tick: Tick,
) -> Duels:
    """Return the results of all pairs of a game of two players."""
    game, deals = results.game, -(-results.games // 2)
    points = np.full((len(players), len(players), deals, 2), 0.5)
    pairs = list(itertools.combinations(range(len(players)), 2))
    for done, (one, other) in enumerate(pairs):
        tick(done, len(pairs))
        # In the order of identities: the result does not depend on who was named first.
        first, second = sorted((one, other), key=lambda index: players[index].identity)
        pair = players[first], players[second]

        def play(pair: tuple[NamedPlayer, NamedPlayer] = pair) -> Mapping[str, Floats]:
            entrants = [own.entrant(game, params, own.identity) for own in pair]
            found = play_pairs(game, params, entrants, [(0, 1)], deals, results.seed)
            return {"points": found.points[0]}

        own = results.scores("duel", pair, given, play)["points"]
        points[first, second] = own
        # By the other player's own seat: it is first where the pair's first player is second.
        points[second, first] = 1.0 - own[:, ::-1]
    return Duels(tuple(player.name for player in players), points)


def _matches(
    results: Results,
    players: Sequence[NamedPlayer],
    given: Mapping[str, Any],
    params: Any,
    tick: Tick,
) -> Matches:
    """Return the results of all pairs of row and column player, see `sweepd.agents.policy.league`."""
    game, seats = results.game, results.game.seats(params)
    games = -(-results.games // seats) * seats
    own = np.zeros((len(players), len(players), games))
    others = np.zeros_like(own)
    for done, (row, column) in enumerate(np.ndindex(len(players), len(players))):
        tick(done, len(players) ** 2)
        pair = players[row], players[column]

        def play(pair: tuple[NamedPlayer, NamedPlayer] = pair) -> Mapping[str, Floats]:
            return play_table(game, params, *pair, games, results.seed)

        found = results.scores("table", pair, given, play)
        own[row, column], others[row, column] = found["own"], found["others"]
    return Matches(tuple(player.name for player in players), seats, own, others)


def play_table(
    game: Game, params: Any, row: NamedPlayer, column: NamedPlayer, games: int, seed: int
) -> dict[str, Floats]:
    """Play games of one row player at a seat against one column player at all others.

    The row player's seat changes from game to game; on its own table, a player has all seats, and
    a team has them in its order.

    Args:
        game: a game of several seats.
        params: its parameters.
        row: the row player.
        column: the column player.
        games: a multiple of the number of seats.
        seed: of all random numbers.

    Returns:
        own: (games,) returns of the row player; others: (games,) mean returns of the other seats.
    """
    seats = game.seats(params)
    with closing(game.make([params], games, together=1, device="cpu")) as env:
        env.reset_member(0, derive_seed(seed, "games"))
        different = (column,) if row.identity != column.identity else ()
        acts = [
            player.seated(game, params, env, derive_seed(seed, "player", place))
            for place, player in enumerate((row, *different))
        ]
        seat = torch.arange(env.num_envs) % seats
        focal = seat == torch.arange(env.num_envs) // seats % seats

        def act(obs: Tensor) -> Tensor:
            made = [one(obs) for one in acts]
            return where_rows(focal, made[0], made[-1])

        def ended(over: Tensor) -> None:
            for one in acts:
                getattr(one, "ended", lambda _: None)(over)

        returns = play_episodes(env, act, ended=ended).returns.reshape(-1, seats)[:games]
    own = returns[np.arange(games), np.arange(games) % seats]
    return {"own": own, "others": (returns.sum(-1) - own) / (seats - 1)}
