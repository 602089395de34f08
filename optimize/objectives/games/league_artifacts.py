"""The league of a trial: its members against each other and the game's baseline players."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sweepd.agents.policy.league import frozen_players, play_matches, report
from sweepd.agents.policy.league_pictures import draw_league
from sweepd.agents.policy.members import Member
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.games.game import Game
from sweepd.envs.support.files import write_atomic

ROUNDS = 12  # games of every pair, times the game's seats


def write_league(
    folder: Path,
    game: Game,
    params: Any,
    members: Sequence[Member],
    seed: int,
    title: str,
    *,
    sampled: bool = False,
) -> None:
    """Play the league of a trial, and write `league.json` and `league.png`.

    Args:
        folder: of the trial.
        game: the game.
        params: its parameters.
        members: of the trial.
        seed: of all random numbers.
        title: of the picture.
        sampled: whether the members draw their actions.
    """
    names = [f"seed {index}" for index in range(len(members))]
    players = frozen_players(names, members, derive_seed(seed, "play") if sampled else None)
    matches = play_matches(game, params, [players], ROUNDS * game.seats(params), seed)
    league = report(matches, len(members))
    write_atomic(folder / "league.json", json.dumps(league, indent=1))
    draw_league(folder / "league.png", league, title)
