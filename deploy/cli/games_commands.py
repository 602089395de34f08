"""Promotion of a game's player from the command line, and `sweepd play`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from sqlalchemy.exc import SQLAlchemyError

from deploy.cli.bundles import game_bundle, load_bundle, load_reference
from deploy.cli.next_commands import next_commands, print_next
from deploy.cli.options import DEPLOYMENTS, Deployments, RegistryUrl
from deploy.games.candidates import GameStudy, game_study
from deploy.games.gate import DEFAULT_RULES
from deploy.games.promote import GAMES, GamePromoter, GamePromotion
from deploy.games.view import promotion_view
from deploy.promotion.rules import parse_limits, with_limits
from deploy.promotion.studies import FoundStudy, attach
from deploy.registry.registry import Registry
from envs.support.errors import InputError, RunError
from envs.support.terminal import Terminal

CHAMPION_COMMANDS = (
    ("play", "watch the champion"),
    ("registry show", "show its origin and its gate report"),
)
MARKET_FLAGS = {"data_dir": None, "ensemble": 1, "weights": "equal", "first_stage": False}


def refuse_market_flags(study: FoundStudy, **given: Any) -> None:
    """Raise InputError for the first flag that is for markets only."""
    for name, value in given.items():
        if value != MARKET_FLAGS[name]:
            raise InputError(
                f"--{name.replace('_', '-')} is not for games, and study {study.name!r} is of "
                f"{study.environment}; "
                "leave it out"
            )


def promote_game(
    found: FoundStudy,
    registry: Registry,
    *,
    slot: str | None,
    trial: int | None,
    looks: int,
    games: int | None,
    limit: list[str] | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Run `sweepd promote` for a study on a game."""
    console = Terminal()
    study = game_study(found)
    promoter = GamePromoter(
        study,
        registry,
        slot=slot,
        dry_run=dry_run,
        looks=looks,
        games=GAMES if games is None else games,
        rules=with_limits(DEFAULT_RULES, parse_limits(limit or [], "beats-champion=5")),
        progress=(lambda _text: None)
        if as_json
        else lambda text: console.print(text, style="dim", highlight=False),
    )
    promotion = promoter.run(trial)
    if as_json:
        typer.echo(json.dumps(promotion.to_dict(), indent=1))
        return
    console.print(promotion_view(promotion))
    if not dry_run:
        _publish(console, study, promotion)
    if promotion.outcome in ("promoted", "champion already"):
        print_next(console, next_commands(promotion, study, registry, CHAMPION_COMMANDS)[:1])


def promote_game_after_study(
    found: FoundStudy, registry: Registry, *, console: Console, slot: str | None = None
) -> GamePromotion:
    """Promote a finished study's best player if it meets every rule; record a game of it.

    Result and next commands are printed.
    """
    study = game_study(found)
    progress = lambda text: console.print(text, style="dim", highlight=False)  # noqa: E731
    promotion = GamePromoter(study, registry, slot=slot, progress=progress).run()
    console.print(promotion_view(promotion))
    _publish(console, study, promotion)
    print_next(console, next_commands(promotion, study, registry, CHAMPION_COMMANDS))
    return promotion


def _publish(console: Console, study: GameStudy, promotion: GamePromotion) -> None:
    """Write report and replay, and attach them to the study.

    Errors are printed and do not change the decision.
    """
    from deploy.games.report import write_report
    from deploy.games.show import (
        publish_replay,
    )  # here, so that other commands need not wait for matplotlib

    paths: list[Path] = []
    try:
        paths += write_report(study, promotion)
        attach(study, paths)
        bundle = promotion.chosen.bundle if promotion.chosen else None
        if bundle is not None:
            paths.append(publish_replay(study, bundle))
    except (OSError, InputError, RunError, SQLAlchemyError) as error:
        missing = "no replay" if paths else "the report could not be written"
        console.print(f"{missing}: {error}", style="yellow", highlight=False)
    if paths:
        console.print(
            "report: " + ", ".join(str(path) for path in paths), highlight=False, soft_wrap=True
        )


def play_command(
    bundle: Annotated[
        str | None,
        typer.Argument(
            metavar="[SLOT | BUNDLE]",
            help="A slot (its champion), slot@previous, slot@3, the beginning of a hash, or a "
            "bundle's folder. Default: the only champion.",
        ),
    ] = None,
    episodes: Annotated[int, typer.Option("--episodes", min=1, help="Games to play.")] = 1,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the games.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Write an animation: FILE.gif, or FILE.mp4 (extra [video])."),
    ] = None,
    terminal: Annotated[
        bool, typer.Option("--terminal", help="Show the games in the terminal, also with --out.")
    ] = False,
    deployments: Deployments = DEPLOYMENTS,
    registry: RegistryUrl = None,
) -> None:
    """Show a player's games in the terminal, or write them as GIF or MP4. Ctrl-C ends it."""
    from deploy.games.show import Show, show_in_terminal, write_animation

    console = Terminal()
    if bundle is not None and Path(bundle).is_dir():
        loaded = game_bundle(load_bundle(Path(bundle)))  # needs no registry
    else:
        loaded = game_bundle(load_reference(Registry(deployments, registry, create=False), bundle))
    played: list[float] = []
    for wanted, pictures in ((terminal or out is None, False), (out is not None, True)):
        if not wanted:
            continue
        show = Show(loaded, seed=seed, pictures=pictures)
        try:
            if pictures:
                assert out is not None
                played = write_animation(show, episodes, out)
                console.print(f"written: {out}", highlight=False, soft_wrap=True)
            else:
                played = show_in_terminal(show, episodes, console)
        finally:
            show.close()
    scores = ", ".join(f"{score:.5g}" for score in played)
    mean = f"; mean {sum(played) / len(played):.5g}" if len(played) > 1 else ""
    console.print(
        f"{loaded.name} on {loaded.manifest.game.name}: return "
        f"{scores or 'of no whole game'}{mean}",
        highlight=False,
        soft_wrap=True,
    )
