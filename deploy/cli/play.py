"""`sweepd play`: show the games of a player."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from sweepd.deploy.cli.options import REFERENCE
from sweepd.deploy.games.bundle import GameBundle, game_bundle
from sweepd.deploy.gates import load_bundle, load_reference
from sweepd.deploy.registry.flags import RegistryFlags
from sweepd.envs.games.game import Game
from sweepd.envs.games.pairings import tally
from sweepd.envs.games.registry import get_game
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.flags import takes_flags
from sweepd.envs.support.terminal import Terminal


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
) -> None:
    """Show a player's games in the terminal, or write them as GIF or MP4. Ctrl-C ends it.

    With --seat, a person plays against the player: legal moves are offered by number. No champion
    is needed to play a scripted player: --env card-duel --seat me.
    """
    from sweepd.deploy.games.show import Show, show_in_terminal, write_animation

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
    if bundle is not None and Path(bundle).is_dir():
        loaded = game_bundle(load_bundle(Path(bundle)))  # needs no registry
        name = loaded.name
    else:
        registry = where.open()
        loaded = game_bundle(load_reference(registry, bundle))
        name = registry.called(loaded)
    if seat is not None:
        _play_person(loaded, name, loaded.game, seat, opponent, seed, episodes, console)
        return
    shown: dict[str, Any] = {"seed": seed, "name": name, "opponent": opponent}
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
    console.print_line(f"{loaded.name} on {loaded.manifest.game.name}: {result}")


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
