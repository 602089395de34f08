"""Players of a game compared by `sweepd league`: in all pairs, or over a parameter."""

from __future__ import annotations

import json

from sweepd.deploy.games.league import Results, play_league
from sweepd.deploy.games.league_players import common_params, find_players
from sweepd.deploy.games.league_view import league_view
from sweepd.deploy.games.transfer import play_transfer, read_over
from sweepd.deploy.promotion.comparison import (
    RESULTS,
    Compared,
    Comparison,
    split_over,
    write_transfer,
)
from sweepd.deploy.registry.slots import slot_name
from sweepd.envs.games.parameters import game_params
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.files import write_atomic
from sweepd.envs.support.formatting import counted

GAMES = 240  # of a result, by default


def compare_players(asked: Comparison) -> Compared:
    """Compare players of a game; InputError if they cannot be compared so."""
    asked.refuse(["data_dir"], "policies that trade")
    options = asked.options
    game, found = find_players(asked.words, options["env"], asked.bundles)
    given = game_params(None, options["env_param"] or ())
    folder = asked.out or asked.leagues / slot_name(game.name)
    results = Results(folder / RESULTS, game, options["games"] or GAMES, options["seed"] or 0)
    title = f"{game.name}: {counted(len(found), 'player')}"
    if not asked.over:
        league = play_league(results, found, common_params(found, given), asked.tick)
        path = folder / "league.json"
        written = [path, *league.draw(folder, title)]
        write_atomic(path, json.dumps(league.report, indent=1))
        view = league_view(league.report, league.ratings)
        return Compared(league.report, view, written, len(results.played))
    if len(asked.over) > 1:
        raise InputError("--over is for one parameter of a game; give it once")
    (text,) = asked.over
    name, _ = split_over(text)
    if name in given:
        raise InputError(f"--over {text}: --env-param also sets {name}; leave one of them out")
    values = read_over(text, game, common_params(found, given, name))
    report = play_transfer(results, found, values, asked.tick)
    return write_transfer(report, folder / f"over-{name}.json", title, len(results.played))
