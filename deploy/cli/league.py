"""`sweepd league`: players of any studies of one game in all pairs, or where a parameter changes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sweepd.deploy.registry.flags import AsJson, RegistryFlags
from sweepd.deploy.registry.slots import slot_name
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.files import write_atomic
from sweepd.envs.support.flags import takes_flags
from sweepd.envs.support.formatting import MISSING, counted, duration
from sweepd.envs.support.loading import loading
from sweepd.envs.support.study_options import RunsDir, Storage
from sweepd.envs.support.terminal import Terminal, screen
from sweepd.optimize.study.record.database import storage_url

RESULTS = "results"  # in the folder of a game: what was played
EVERY = 5.0  # seconds between lines about the progress, where there is no terminal


@takes_flags
def league_command(
    where: RegistryFlags,
    players: Annotated[
        list[str],
        typer.Argument(
            metavar="PLAYER…",
            help="SLOT (its champion), SLOT@previous, SLOT@3, STUDY#TRIAL (its best member), "
            "STUDY#TRIAL@team, bundle:HASH, or a scripted player.",
        ),
    ],
    over: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=VALUES",
            help="Score each player with each value of a parameter of the game, in place of the "
            "league: scenario=all, or length=0.5,0.7.",
        ),
    ] = None,
    env: Annotated[str | None, typer.Option(help="The game. Default: that of the players.")] = None,
    env_param: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=VALUE, a parameter of the game; may be repeated. Default: those with which "
            "the players were trained."
        ),
    ] = None,
    games: Annotated[
        int,
        typer.Option(
            min=2,
            help="Games of each pair, or of each player with each value; rounded up to "
            "equally many at each seat.",
        ),
    ] = 240,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the games.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of results, report and pictures. Default: leagues/GAME in the deployments "
            "folder."
        ),
    ] = None,
    as_json: AsJson = False,
    storage: Storage = None,
    runs_dir: RunsDir = None,
) -> None:
    """Compare players of any studies of one game: in all pairs, or with --over NAME=VALUES.

    The game's scripted players join the league. It shows payoffs, the equilibrium, how much the
    best of its players gains against it, and ratings. With --over scenario=all, it shows how each
    player scores in each scenario; 0 is uniform random play, and 1 the best scripted player.
    Results are kept: an interrupted command continues, and another one plays what is missing.
    """
    with loading():
        from sweepd.agents.policy.league_pictures import draw_transfer
        from sweepd.deploy.games.league import Results, play_league
        from sweepd.deploy.games.league_players import common_params, find_players
        from sweepd.deploy.games.league_view import league_view, transfer_view
        from sweepd.deploy.games.transfer import play_transfer, read_over, split_over
        from sweepd.envs.games.parameters import game_params
    game, found = find_players(
        players, env, where.open(create=True), storage_url(storage, runs_dir), runs_dir
    )
    given = game_params(None, env_param or ())
    folder = out or where.deployments / "leagues" / slot_name(game.name)
    results = Results(folder / RESULTS, game, games, seed)
    console, title = screen(), f"{game.name}: {counted(len(found), 'player')}"
    if over is None:
        params = common_params(found, given)
        with _progress("pairs", as_json) as tick:
            league = play_league(results, found, params, tick)
        report, path = league.report, folder / "league.json"
        written = [path, *league.draw(folder, title)]
        view = league_view(report, league.ratings)
    else:
        name, _ = split_over(over)
        if name in given:
            raise InputError(f"--over {over}: --env-param also sets {name}; leave one of them out")
        values = read_over(over, game, common_params(found, given, name))
        with _progress("scores", as_json) as tick:
            report = play_transfer(results, found, values, tick)
        path, picture = folder / f"over-{name}.json", folder / f"over-{name}.png"
        draw_transfer(picture, report, title)
        written, view = [path, picture], transfer_view(report)
    write_atomic(path, json.dumps(report, indent=1))
    if as_json:
        typer.echo(json.dumps(report, indent=1))
        return
    console.print(view)
    console.print_line(f"played now: {counted(len(results.played), 'result')}")
    console.print_line(f"written: {', '.join(map(str, written))}")


@contextmanager
def _progress(what: str, as_json: bool) -> Iterator[Callable[[int, int], None]]:
    """Yield what is told how far a command is: a bar on a terminal, or a line every few seconds."""
    console = Terminal(stderr=True)
    if console.is_terminal and not as_json:
        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as shown:
            task = shown.add_task("", total=None)
            yield lambda done, total: shown.update(task, completed=done, total=total)
        return
    began = told = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told >= EVERY:
            told, rate = now, done / (now - began)
            left = duration((total - done) / rate) if done else MISSING
            console.print_line(f"{done} of {total} {what}, {rate:.1f} per second, {left} left")

    yield tell
