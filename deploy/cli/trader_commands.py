"""`sweepd trader`: halt, resume and show the trader of a slot."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Annotated

import typer

from deploy.cli.options import AsJson, RegistryFlags
from deploy.dashboard.formatting import moment
from deploy.dashboard.health import Health, health
from deploy.registry.registry import Registry
from deploy.trading.live.records import Trader
from deploy.trading.live.store import TraderStore
from envs.support.errors import InputError
from envs.support.flags import takes_flags
from envs.support.terminal import Terminal

SlotArgument = Annotated[str, typer.Argument(help="Slot of the trader, for example crypto-1h.")]

trader_app = typer.Typer(
    no_args_is_help=True,
    help="Halt, resume or show the trader of a slot, which `sweepd trade SLOT` starts.",
)


@trader_app.command("halt")
@takes_flags
def halt_command(
    where: RegistryFlags,
    slot: SlotArgument,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the positions.")] = False,
) -> None:
    """Sell all positions and stop trading until `resume`.

    A running trader obeys within seconds. Restarting it does not end the halt.
    """
    store = TraderStore(where.open().database)
    store.halt(slot, "by the operator", sells=not keep)
    what = "keeps its positions" if keep else "sells all its positions"
    typer.echo(f"{slot} {what} and sends no other orders until: sweepd trader resume {slot}")


@trader_app.command("resume")
@takes_flags
def resume_command(where: RegistryFlags, slot: SlotArgument) -> None:
    """Let a halted trader trade again, from its next bar."""
    TraderStore(where.open().database).resume(slot)
    typer.echo(f"{slot} may trade again")


@trader_app.command("status")
@takes_flags
def status_command(
    where: RegistryFlags,
    slot: Annotated[
        str | None, typer.Argument(help="Slot of the trader. Default: all slots ever traded.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show whether the trader is running or halted, and its last bar.

    `sweepd dashboard SLOT` shows equity, positions and orders.
    """
    opened = where.open()
    traders = {trader.slot: trader for trader in TraderStore(opened.database).traders()}
    if slot is not None and slot not in traders:
        known = ", ".join(traders) or "none"
        raise InputError(f"slot {slot!r} was never traded; traded slots: {known}")
    shown = [trader for name, trader in traders.items() if slot in (None, name)]
    states = [_health(opened, trader) for trader in shown]
    if as_json:
        facts = [_facts(*pair) for pair in zip(shown, states, strict=True)]
        typer.echo(json.dumps({"traders": facts}, indent=1))
        return
    if not shown:
        typer.echo("no slot was ever traded: sweepd trade SLOT starts a trader")
    for trader, state in zip(shown, states, strict=True):
        Terminal().print_line(
            f"{trader.slot}: {state.state}. {' '.join(state.sentences)} Last bar "
            f"{moment(trader.last_bar)} UTC, broker {trader.broker}, {trader.timeframe} bars from "
            f"{trader.feed}."
        )


def _health(registry: Registry, trader: Trader) -> Health:
    synthetic = registry.synthetic(registry.slot(trader.slot).champion)
    return health(trader, time.time(), slot=trader.slot, synthetic=synthetic)


def _facts(trader: Trader, state: Health) -> dict[str, object]:
    row = dataclasses.asdict(trader)
    return {name: row[name] for name in row if name not in ("token", "state")} | {
        "health": dataclasses.asdict(state)
    }
