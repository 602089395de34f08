"""`sweepd play`: show the games of a player."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from sweepd.deploy.cli.options import REFERENCE
from sweepd.deploy.games.bundle import GameBundle, game_bundle
from sweepd.deploy.gates import load_bundle, load_reference, named_trial
from sweepd.deploy.registry.flags import RegistryFlags
from sweepd.envs.games.game import Game
from sweepd.envs.games.pairings import tally
from sweepd.envs.games.registry import get_game
from sweepd.envs.support.database_url import STORAGE_VARIABLE, warn_of_password
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.flags import takes_flags
from sweepd.envs.support.terminal import Terminal
from sweepd.optimize.study.record.database import storage_url


@takes_flags
def play_command(
    where: RegistryFlags,
    bundle: Annotated[
        str | None,
        typer.Argument(metavar="SLOT | BUNDLE", help=f"{REFERENCE} Default: the only champion."),
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Games to play.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the games.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Write an animation: FILE.gif, or FILE.mp4 (extra [video]).")
    ] = None,
    opponent: Annotated[
        str | None,
        typer.Option(
            help="Games of two players: scripted player at the second seat, or self. Default: the "
            "game's last scripted player; with --seat, self: the player itself."
        ),
    ] = None,
    seat: Annotated[
        str | None,
        typer.Option(
            metavar="me|first|second",
            help="Games in turns: play yourself, in the terminal, against the player or --opponent. "
            "me: the first seat, then the other in every second game.",
        ),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(
            help="With --seat: play this game in turns, e.g. card-duel, against a scripted player; "
            "needs no champion."
        ),
    ] = None,
    terminal: Annotated[
        bool, typer.Option("--terminal", help="Show the games in the terminal, also with --out.")
    ] = False,
    trial: Annotated[
        str | None,
        typer.Option(
            metavar="STUDY#N",
            help="Show the best member of a complete trial, or its team (STUDY#N@team), instead of a bundle.",
        ),
    ] = None,
    best_of: Annotated[
        int, typer.Option(min=1, help="Play this many games, and show only the best of them.")
    ] = 1,
    storage: Annotated[
        str | None,
        typer.Option(
            envvar=STORAGE_VARIABLE,
            callback=warn_of_password,
            help="With --trial: database of the studies, as for train.",
        ),
    ] = None,
    runs_dir: Annotated[
        Path | None, typer.Option(help="With --trial: folder of the studies' files.")
    ] = None,
) -> None:
    """Show a player's games in the terminal, or write them as GIF or MP4. Ctrl-C ends it.

    With --seat, a person plays against the player: legal moves are offered by number. No champion
    is needed to play a scripted player: --env card-duel --seat me. With --trial, a trial of a study
    plays without a promotion: --trial cartpole#8 --best-of 4 --out best.gif.
    """
    from sweepd.deploy.games.show import Show, best_seed, show_in_terminal, write_animation

    console = Terminal()
    if seat is not None and out is not None:
        raise InputError("--seat and --out exclude each other: a person plays in the terminal")
    if env is not None:
        if seat is None or bundle is not None:
            raise InputError(
                "--env is for a person against a scripted player: give --seat me, and no champion"
            )
        _play_person(None, "", get_game(env), seat, opponent, seed, episodes, console)
        return
    if best_of > 1 and episodes > 1:
        raise InputError("--best-of shows one game: leave --episodes out")
    if trial is not None:
        if bundle is not None or seat is not None:
            raise InputError("--trial names the player: give no bundle, and no --seat")
        loaded = game_bundle(named_trial(trial, storage_url(storage, runs_dir), runs_dir))
        name = f"trial {loaded.origin.trial}"
    elif bundle is not None and Path(bundle).is_dir():
        loaded = game_bundle(load_bundle(Path(bundle)))  # needs no registry
        name = loaded.name
    else:
        registry = where.open()
        loaded = game_bundle(load_reference(registry, bundle))
        name = registry.called(loaded)
    if seat is not None:
        _play_person(loaded, name, loaded.game, seat, opponent, seed, episodes, console)
        return
    player: dict[str, Any] = {"name": name, "opponent": opponent}
    if best_of > 1:
        seed, _ = best_seed(loaded, best_of, seed, **player)
    shown = {"seed": seed, **player}
    played: list[float] = []
    against: str | None = None
    if terminal or out is None:
        with closing(Show(loaded, **shown, pictures=False)) as show:
            played, against = show_in_terminal(show, episodes, console), show.opponent
    if out is not None:
        with closing(Show(loaded, **shown, pictures=True)) as show:
            played, against = write_animation(show, episodes, out), show.opponent
        console.print_line(f"written: {out}")
    result = "no game has ended"
    if played and against is not None:
        result = f"{tally(np.array(played))} against {against}"
    elif played:
        result = f"return {', '.join(f'{score:.5g}' for score in played)}"
    if len(played) > 1 and against is None:
        result += f"; mean {sum(played) / len(played):.5g}"
    best = f"; the best of {best_of} games, with seed {seed}" if best_of > 1 else ""
    who = loaded.name if trial is None else f"trial {trial}"
    console.print_line(f"{who} on {loaded.manifest.game.name}: {result}{best}")


def _play_person(
    champion: GameBundle | None,
    name: str,
    game: Game,
    seat: str,
    opponent: str | None,
    seed: int,
    games: int,
    console: Terminal,
) -> None:
    """Let a person play, and print one line about the results. name: of the champion."""
    from sweepd.deploy.games.person import Match

    params = game.params() if champion is None else champion.params
    match = Match(
        game,
        params,
        champion=champion,
        name=name,
        seat=seat,
        opponent=opponent,
        seed=seed,
        console=console,
    )
    with closing(match.env):
        played = match.play(games)
    result = "no game has ended"
    if played.outcomes:
        result = f"you: {tally(np.array(played.outcomes))}"
    stopped = "stopped; " if played.stopped else ""
    console.print_line(f"{stopped}{game.name} against {played.opponent}: {result}")
