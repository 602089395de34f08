"""`sweepd defend`: the challengers of a game's slot play its champion."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from sweepd.deploy.gates import gate_of_kind, load_reference
from sweepd.deploy.registry.flags import AsJson, RegistryFlags
from sweepd.envs.support.errors import RunError
from sweepd.envs.support.flags import takes_flags
from sweepd.envs.support.loading import loading
from sweepd.envs.support.terminal import Terminal


@takes_flags
def defend_command(
    where: RegistryFlags,
    slot: Annotated[str, typer.Argument(help="Slot of a game, for example hockey.")],
    games: Annotated[
        int | None, typer.Option(min=1, help="The most deals of a challenge. Default: 20,000.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Let the challengers of a game's slot play its champion in fresh games.

    `sweepd promote --arena` makes challengers. One that wins becomes champion; the others are
    withdrawn. Whether it won is tested so that any number of challenges is allowed.
    """
    with loading():
        from sweepd.deploy.registry.arena_rows import ReignEnded
        from sweepd.deploy.registry.records import ChampionMoved
    registry = where.open()
    champion = load_reference(registry, registry.require(slot).champion)
    try:
        told = gate_of_kind(champion.kind).defend(registry, slot, games)
    except (ChampionMoved, ReignEnded) as error:
        raise RunError(f"{error}; try again") from error
    if as_json:
        typer.echo(json.dumps({"slot": slot, "told": told}, indent=1))
        return
    for line in told or [f"{slot}: no challenger"]:
        Terminal().print_line(line)
