"""`sweepd league`: players of any studies in all pairs, or where a parameter changes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sweepd.deploy.registry.flags import AsJson, RegistryFlags
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.flags import takes_flags
from sweepd.envs.support.formatting import MISSING, counted, duration
from sweepd.envs.support.loading import loading
from sweepd.envs.support.study_options import RunsDir, Storage
from sweepd.envs.support.terminal import Terminal, screen
from sweepd.optimize.study.record.database import storage_url

if TYPE_CHECKING:  # these take long to import
    from sweepd.deploy.registry.kept_scores import Tick

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
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUES",
            help="Score each player with each value, in place of the league: of a parameter of the "
            "game (scenario=all, length=0.5,0.7), or, for policies that trade, of market, timeframe "
            "and period; then it may be repeated.",
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
        int | None,
        typer.Option(
            min=2,
            help="Games of each pair, or of each player with each value; rounded up to equally "
            "many at each seat. Default: 240.",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the games. Default: 0.")] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Folder of the bars that policies trade, unless --over names markets."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of results, report and pictures. Default: leagues/GAME, or leagues/markets, "
            "in the deployments folder."
        ),
    ] = None,
    as_json: AsJson = False,
    storage: Storage = None,
    runs_dir: RunsDir = None,
) -> None:
    """Compare players of any studies: in all pairs, or with --over NAME=VALUES.

    The game's scripted players join the league. It shows payoffs, the equilibrium, how much the
    best of its players gains against it, and ratings. With --over scenario=all, it shows how each
    player scores in each scenario; 0 is uniform random play, and 1 the best scripted player.
    Policies that trade are compared with --over market=FOLDERS, timeframe=VALUES and
    period=FROM..TO, before their hold-outs. Results are kept: an interrupted command continues, and
    another one computes what is missing.
    """
    with loading():
        from sweepd.deploy.gates import gate_of, gate_of_kind, named_bundle
        from sweepd.deploy.promotion.comparison import Comparison
    registry, url = where.open(create=True), storage_url(storage, runs_dir)
    bundles = {
        word: found
        for word in players
        if (found := named_bundle(word, registry, url, runs_dir)) is not None
    }
    gates = {word: gate_of_kind(bundle.kind) for word, bundle in bundles.items()}
    first, gate = next(iter(gates.items()), ("", gate_of(env or "")))
    for word, other in gates.items():
        if other is not gate:
            raise InputError(
                f"{first} is of {gate.title}, and {word} of {other.title}: name players of one game, "
                "or policies that trade"
            )
    options = {
        "env": env,
        "env_param": env_param,
        "games": games,
        "seed": seed,
        "data_dir": data_dir,
    }
    leagues = where.deployments / "leagues"
    with _progress("scores" if over else "pairs", as_json) as tick:
        asked = Comparison(players, bundles, over or (), options, leagues, out, tick)
        compared = gate.compare_players(asked)
    if as_json:
        typer.echo(json.dumps(compared.report, indent=1))
        return
    console = screen()
    console.print(compared.view)
    console.print_line(f"played now: {counted(compared.computed, 'result')}")
    console.print_line(f"written: {', '.join(map(str, compared.written))}")


@contextmanager
def _progress(what: str, as_json: bool) -> Iterator[Tick]:
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
