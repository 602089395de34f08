"""The transfer matrix of `sweepd league --over`: how players score where a parameter has other values.

A player's score is the mean return of a game in which it has all seats; in games of two players,
its points against the scripted players, or against uniform random play. All players play the same
games of a value. A normalised score is 0 for uniform random play and 1 for the best scripted player.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sweepd.agents.policy.league import Floats
from sweepd.deploy.games.baselines import RANDOM
from sweepd.deploy.games.duel_panel import CANDIDATE
from sweepd.deploy.games.league import Results
from sweepd.deploy.games.league_players import (
    NamedPlayer,
    ScriptedPlayer,
    game_with,
    scripted_names,
)
from sweepd.deploy.games.panel import PanelGames
from sweepd.deploy.promotion.comparison import split_over
from sweepd.deploy.registry.bundle_files import finite
from sweepd.deploy.registry.kept_scores import Tick
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.games.game import Game
from sweepd.envs.games.pairings import is_versus, play_pairs, scripted_entrants
from sweepd.envs.games.parameters import parameter_value
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.formatting import counted
from sweepd.envs.support.intervals import (
    EPISODES,
    GAFFKE,
    LEVEL,
    Interval,
    crossed,
    gaffke,
    ratio_of_means,
)

ALL = "all"  # values: every scenario


@dataclass(frozen=True)
class Over:
    """A parameter with several values.

    Attributes:
        name: of the parameter.
        values: different ones.
        params: of the game by value: by name, and as the game makes them.
    """

    name: str
    values: tuple[Any, ...]
    params: tuple[tuple[dict[str, Any], Any], ...]


def read_over(text: str, game: Game, given: Mapping[str, Any]) -> Over:
    """Read `--over NAME=VALUES`. given: the game's other parameters.

    Raises:
        InputError: it is not of that form, the game has no such parameter, or a value is not valid
            or is there twice.
    """
    flag = f"--over {text}"
    name, listed = split_over(text)
    values = tuple(parameter_value(value.strip()) for value in listed.split(","))
    if (name, listed) == ("scenario", ALL):
        values = game.scenarios
        if not values:
            raise InputError(f"{flag}: {game.name} has no scenarios")
    twice = [value for index, value in enumerate(values) if value in values[:index]]
    if twice:
        raise InputError(f"{flag}: {twice[0]} is there twice")
    params = [{**given, name: value} for value in values]
    return Over(name, values, tuple((own, game_with(game, own, flag)) for own in params))


def play_scores(
    game: Game, params: Any, player: NamedPlayer, games: int, seed: int
) -> dict[str, Floats]:
    """Return a player's scores: {"scores": (games,)}, or (deals,) in games of two players.

    Args:
        game: the game.
        params: its parameters.
        player: the player.
        games: number of games; in games of two players against each opponent, rounded up to an even
            number, each deal in both seatings.
        seed: of all random numbers.
    """
    if not is_versus(game, params):
        rules = PanelGames(game, params, games, seed)
        made = rules.play(lambda env: player.seated(game, params, env, derive_seed(seed, "player")))
        return {"scores": made.returns[0]}
    others = scripted_entrants(game, params)
    pairs = [(0, index) for index in range(1, len(others) + 1)]
    entrants = [player.entrant(game, params, CANDIDATE), *others]
    found = play_pairs(game, params, entrants, pairs, -(-games // 2), seed)
    return {"scores": found.points.mean((0, 2))}


def play_transfer(
    results: Results,
    players: Sequence[NamedPlayer],
    over: Over,
    tick: Tick = lambda _done, _total: None,
) -> dict[str, Any]:
    """Play all players with all values, and return the transfer matrix as JSON.

    The best scripted player of a value is chosen in other games than those that are scored, so that
    its score is not biased by the choice.

    Returns:
        `game`, `over`, `seed`, `games`, `confidence`, `score` (what a score is), `players` and
            `rows`: one per value, with `value`, `params`, `players` (by name `mean`, `low`, `high`
            and `normalised`, or `misfit`: why the player cannot play), `random` and `best` (with
            `name`), both None in games without scripted players. Bounds are None where all games
            had the same score; `normalised` is None where the best scripted player is not ahead of
            random play for certain.

    Raises:
        InputError: a player cannot play with any of the values.
    """
    game = results.game
    misfits = [
        {player.name: player.misfit(game, params) for player in players}
        for _, params in over.params
    ]
    for player in players:
        if all(row[player.name] for row in misfits):
            raise InputError(f"{player.name} cannot play here: {misfits[0][player.name]}")
    scripts = [scripted_names(game, params) for _, params in over.params]
    fits = sum(not reason for row in misfits for reason in row.values())
    total = fits + sum(2 + len(names) for names in scripts if names)
    done = 0

    def score(index: int, player: NamedPlayer, kind: str = "score") -> Floats:
        nonlocal done
        tick(done, total)
        done += 1
        given, params = over.params[index]
        seed = derive_seed(results.seed, kind)
        found = results.scores(
            kind, [player], given, lambda: play_scores(game, params, player, results.games, seed)
        )
        return found["scores"]

    limits = (0.0, 1.0) if is_versus(game, over.params[0][1]) else None
    rows = []
    for index, value in enumerate(over.values):
        scale = _scale(partial(score, index), scripts[index])
        own = {
            player.name: None if misfits[index][player.name] else score(index, player)
            for player in players
        }
        row = {"value": value, "params": finite(over.params[index][0])} | _row(own, scale, limits)
        for name, reason in misfits[index].items():
            if reason:
                row["players"][name] = {"misfit": reason}
        rows.append(row)
    return {
        "game": game.name,
        "over": over.name,
        "seed": results.seed,
        "games": results.games,
        "sample": counted(results.games, "game"),
        "confidence": LEVEL,
        "score": "mean return of a game" if limits is None else "points against scripted players",
        "players": [player.name for player in players],
        "rows": rows,
    }


@dataclass(frozen=True)
class _Scale:
    """What is 0 and what is 1 in normalised scores of a value.

    Attributes:
        random: (games,) scores of uniform random play.
        best: name of the best scripted player.
        scores: its (games,) scores.
    """

    random: Floats
    best: str
    scores: Floats


def _scale(score: Callable[..., Floats], scripts: Sequence[str]) -> _Scale | None:
    """Return the scale of a value; None without scripted players."""
    if not scripts:
        return None
    chosen = {name: score(ScriptedPlayer(name), "choice").mean() for name in scripts}
    best = max(scripts, key=lambda name: float(chosen[name]))
    return _Scale(score(ScriptedPlayer(RANDOM)), best, score(ScriptedPlayer(best)))


def _row(
    scores: Mapping[str, Floats | None], scale: _Scale | None, limits: tuple[float, float] | None
) -> dict[str, Any]:
    """Return a row of the matrix as JSON. scores: by player; None: it does not fit."""
    players: dict[str, Any] = {}
    for name, own in scores.items():
        if own is None:
            continue
        players[name] = _described(own, limits) | {"normalised": None}
        if scale is not None:
            found = ratio_of_means(own - scale.random, scale.scores - scale.random)
            players[name]["normalised"] = _bounds(found) if found.known else None
    if scale is None:
        return {"random": None, "best": None, "players": players}
    return {
        "random": _described(scale.random, limits),
        "best": {"name": scale.best} | _described(scale.scores, limits),
        "players": players,
    }


def _described(scores: Floats, limits: tuple[float, float] | None) -> dict[str, Any]:
    """Return mean and bounds of (games,) scores, as JSON."""
    if limits is not None:
        low, high = gaffke(scores, limits)
        found = Interval(float(scores.mean()), low, high, EPISODES, LEVEL, GAFFKE)
    else:
        found = crossed(scores[None])
    return _bounds(found)


def _bounds(found: Interval) -> dict[str, Any]:
    told = found.to_dict()
    return {"mean": told["value"], "low": told["low"], "high": told["high"]}
