"""`sweepd trader`: halt, resume, show and check the trader of a slot."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from sweepd.deploy.cli.options import MANUAL, Reason
from sweepd.deploy.dashboard.alerts import LEVELS, Alert, slot_alerts, sorted_alerts
from sweepd.deploy.dashboard.formatting import moment
from sweepd.deploy.dashboard.health import Health, health
from sweepd.deploy.registry.flags import AsJson, RegistryFlags, registry_flags
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.arena.arena import ArenaRules
from sweepd.deploy.trading.live.queries import Records
from sweepd.deploy.trading.live.records import DIFFERS, ParityDay, Trader
from sweepd.deploy.trading.live.store import TraderStore, store_parity
from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.flags import takes_flags
from sweepd.envs.support.formatting import MISSING, minute
from sweepd.envs.support.loading import loading
from sweepd.envs.support.terminal import Terminal, printable

if TYPE_CHECKING:
    from sweepd.deploy.trading.arena.judge_arena import ArenaVerdict

SlotArgument = Annotated[str, typer.Argument(help="Slot of the trader, for example crypto-1h.")]

trader_app = typer.Typer(
    no_args_is_help=True,
    help="Halt, resume, show or check the trader of a slot, which `sweepd trade SLOT` starts.",
)


@trader_app.command("halt")
@takes_flags
def halt_command(
    where: RegistryFlags,
    slot: SlotArgument,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the positions.")] = False,
    reason: Reason = MANUAL,
) -> None:
    """Sell all positions and stop trading until `resume`.

    A running trader obeys within seconds. Restarting it does not end the halt.
    """
    store = TraderStore(where.open().database)
    store.halt(slot, reason, sells=not keep)
    what = "keeps its positions" if keep else "sells all its positions"
    typer.echo(
        printable(f"{slot} {what} and sends no other orders until: sweepd trader resume {slot}")
    )


@trader_app.command("resume")
@takes_flags
def resume_command(where: RegistryFlags, slot: SlotArgument, reason: Reason = MANUAL) -> None:
    """Let a halted trader trade again, from its next bar."""
    TraderStore(where.open().database).resume(slot, reason)
    typer.echo(printable(f"{slot} may trade again"))


@trader_app.command("status")
@takes_flags
def status_command(
    where: RegistryFlags,
    slot: Annotated[
        str | None, typer.Argument(help="Slot of the trader. Default: all slots ever traded.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show whether the trader is running or halted, its last bar, and its alerts.

    `sweepd dashboard SLOT` shows equity, positions and orders.
    """
    opened = where.open()
    traders = {trader.slot: trader for trader in TraderStore(opened.database).traders()}
    if slot is not None and slot not in traders:
        known = ", ".join(traders) or "none"
        raise InputError(f"slot {slot!r} was never traded; traded slots: {known}")
    shown = [trader for name, trader in traders.items() if slot in (None, name)]
    states = [_health(opened, trader) for trader in shown]
    records, now, flags = Records(opened.database), time.time(), registry_flags(opened)
    alerts = [
        sorted_alerts(slot_alerts(records, trader, trader.slot, state, now, where=flags))
        for trader, state in zip(shown, states, strict=True)
    ]
    if as_json:
        facts = [_facts(*one) for one in zip(shown, states, alerts, strict=True)]
        typer.echo(json.dumps({"traders": facts}, indent=1))
        return
    if not shown:
        typer.echo("no slot was ever traded: sweepd trade SLOT starts a trader")
    for trader, state, found in zip(shown, states, alerts, strict=True):
        Terminal().print_line(
            f"{trader.slot}: {state.state}. {' '.join(state.sentences)} Last bar "
            f"{moment(trader.last_bar)} UTC, broker {trader.broker}, {trader.timeframe} bars from "
            f"{trader.feed}."
        )
        for one in found:
            if one.text not in " ".join(state.sentences):
                since = "" if one.since is None else f"{minute(one.since)} UTC, "
                Terminal().print_line(f"  {LEVELS[one.level]}: {since}{one.title}: {one.text}")


@trader_app.command("parity")
@takes_flags
def parity_command(
    where: RegistryFlags,
    slot: Annotated[
        str | None,
        typer.Argument(help="Slot of the trader, for example crypto-1h. Not needed by --verify."),
    ] = None,
    certify: Annotated[
        bool,
        typer.Option("--certify", help="Certify the days that are over and have no certificate."),
    ] = False,
    export: Annotated[
        Path | None, typer.Option(help="Write the file of a certificate, for anybody to verify.")
    ] = None,
    day: Annotated[
        str | None,
        typer.Option(help="The UTC day of --export, like 2024-01-31. Default: the newest one."),
    ] = None,
    verify: Annotated[
        Path | None,
        typer.Option(help="Check such a file, and recompute its day; needs no registry."),
    ] = None,
    bundle: Annotated[
        list[Path] | None,
        typer.Option(help="Folder of a bundle that --verify needs; give it once per bundle."),
    ] = None,
    public_key: Annotated[
        Path | None,
        typer.Option(help="Key (PEM) whose signature --verify demands; needs the extra [sign]."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Recompute every decision and the simulator's return from the record, day by day.

    The result is stored; the dashboard shows it. If a decision differs, or a return that the
    recorded fills do not explain, an alert is recorded and sent, and the exit code is 1.

    --certify writes certificates instead: each names hashes of everything that a day followed from,
    and the certificate before it. A file of one is checked without the registry. If
    SWEEPD_SIGNING_KEY names a private key (PEM), certificates are signed.
    """
    modes = [certify, export is not None, verify is not None]
    if sum(modes) > 1:
        raise InputError("--certify, --export and --verify exclude each other")
    if day is not None and export is None:
        raise InputError("--day is for --export")
    if verify is None and (bundle or public_key):
        raise InputError("--bundle and --public-key are for --verify")
    if as_json and (export or verify):
        raise InputError("--json is not for --export and --verify")
    with loading():
        from sweepd.deploy.cli.certificates import certify_days, export_day, verify_file
    if verify is not None:
        verify_file(slot, verify, bundle or (), public_key)
        return
    if slot is None:
        raise InputError("name the slot: sweepd trader parity SLOT")
    if not any(modes):
        _show_parity(where.open(), slot, as_json=as_json)
    elif export is not None:
        export_day(where.open(), slot, export, day)
    else:
        certify_days(where.open(), slot, as_json=as_json)


def _show_parity(registry: Registry, slot: str, *, as_json: bool) -> None:
    """Recompute the whole record, store and show it; exit with code 1 if it differs."""
    with loading():
        from sweepd.deploy.cli.certificates import alert
        from sweepd.deploy.trading.certificates.parity import parity
    console = Terminal(stderr=True)
    columns = (TextColumn("bars"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    plain = as_json or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=plain) as shown:
        task = shown.add_task("", total=None)
        days = parity(
            registry,
            slot,
            progress=lambda done, total: shown.update(task, completed=done, total=total),
        )
    store_parity(registry.database, slot, days)
    differs = any(day.differs for day in days)
    text = _parity_text(slot, days)
    if as_json:
        found = [dataclasses.asdict(day) | {"gap": day.gap} for day in days]
        typer.echo(json.dumps({"slot": slot, "differs": differs, "days": found}, indent=1))
    else:
        Terminal().print_line(text)
    if differs:
        alert(TraderStore(registry.database), slot, text)
        raise typer.Exit(1)


@trader_app.command("arena")
@takes_flags
def arena_command(
    where: RegistryFlags,
    slot: SlotArgument,
    seats: Annotated[
        int, typer.Option(min=1, help="Challengers that take part at a time.")
    ] = ArenaRules.seats,
    term: Annotated[
        int, typer.Option(min=1, help="Days after which a seat may be given to another challenger.")
    ] = ArenaRules.term,
    spacing: Annotated[
        int, typer.Option(min=0, help="Days between the entries of two challengers.")
    ] = ArenaRules.spacing,
    as_json: AsJson = False,
) -> None:
    """Judge the slot's challengers by all days that are over: promote, withdraw, give free seats.

    `sweepd trade SLOT --arena N` trades those that have a seat. Judging costs nothing, however
    often it is done.
    """
    with loading():
        from sweepd.deploy.registry.arena_rows import ReignEnded
        from sweepd.deploy.registry.records import ChampionMoved
        from sweepd.deploy.trading.arena.judge_arena import judge_arena
    try:
        found = judge_arena(where.open(), slot, ArenaRules(seats, term, spacing))
    except (ChampionMoved, ReignEnded) as error:
        raise RunError(f"{error}; try again") from error
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=1, allow_nan=False))
        return
    terminal = Terminal()
    for text in found.told:
        terminal.print_line(text)
    terminal.print_line(
        f"{slot}: champion {found.champion}, reign {found.reign}{', has aged' if found.aged else ''}; "
        f"{len(found.seats)} take part, {len(found.waiting)} wait"
    )
    if found.seats:
        terminal.print(arena_table(found))


def arena_table(found: ArenaVerdict) -> Table:
    """Return the seats as a table."""
    table = Table(box=None, pad_edge=False)
    names = ("bundle", "entry", "days", "against champion", "E", "wins at", "days if it goes on")
    for name in names:
        table.add_column(name, justify="left" if name == "bundle" else "right")
    for seat in found.seats:
        table.add_row(
            seat.name,
            str(seat.number) if seat.threshold is not None else seat.kind,
            str(seat.days),
            f"{seat.relative:+.2%}",
            f"{seat.e:.3g}",
            MISSING if seat.threshold is None else f"{seat.threshold:,.0f}",
            MISSING if seat.expected_days is None else f"{seat.expected_days:,.0f}",
        )
    return table


def _parity_text(slot: str, days: list[ParityDay]) -> str:
    bars, decisions = sum(day.bars for day in days), sum(day.decisions for day in days)
    strays = max(days, key=lambda day: abs(day.gap))
    worst = max(days, key=lambda day: day.action)
    unexplained = max(days, key=lambda day: day.unexplained)
    agrees = (
        "every decision is reproduced"
        if worst.action <= DIFFERS
        else f"decisions differ, by at most {worst.action:.3g} ({moment(worst.day)[:10]})"
    )
    if unexplained.unexplained > DIFFERS:
        agrees += (
            f"; returns of a bar differ from what the recorded fills explain, by at most "
            f"{unexplained.unexplained:.3%} ({moment(unexplained.day)[:10]})"
        )
    return (
        f"{slot}: {bars} bars in {len(days)} days, {decisions} decisions: {agrees}. Account minus "
        f"simulator: at most {strays.gap:+.4%} in a day ({moment(strays.day)[:10]}). "
        "sweepd dashboard shows each day."
    )


def _health(registry: Registry, trader: Trader) -> Health:
    synthetic = registry.synthetic(registry.slot(trader.slot).champion)
    where = registry_flags(registry)
    return health(trader, time.time(), slot=trader.slot, synthetic=synthetic, where=where)


def _facts(trader: Trader, state: Health, alerts: list[Alert]) -> dict[str, object]:
    row = dataclasses.asdict(trader)
    return {name: row[name] for name in row if name not in ("token", "venue_account", "state")} | {
        "health": dataclasses.asdict(state),
        "alerts": [dataclasses.asdict(one) for one in alerts],
    }
