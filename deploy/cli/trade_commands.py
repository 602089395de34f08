"""`sweepd trade`: trade a slot on paper, live or in a replay over recorded bars."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sweepd.deploy.gates import load_bundle
from sweepd.deploy.market.bundle import Bundle, market_bundle
from sweepd.deploy.market.scoring import bars_of
from sweepd.deploy.registry.flags import AsJson, RegistryFlags
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.live.events import OnAlert
from sweepd.deploy.trading.live.runner import has_begun
from sweepd.deploy.trading.live.start import TRADERS, LiveFlags, trade_live
from sweepd.deploy.trading.replay import write_replay
from sweepd.deploy.trading.replay_view import print_replay, replay_folder, replay_window, run_replay
from sweepd.deploy.trading.risk_limits import parse_limits
from sweepd.envs.support.errors import InputError, TryAgainLater
from sweepd.envs.support.flags import takes_flags
from sweepd.envs.support.supervisor import Supervisor
from sweepd.envs.support.terminal import Terminal

DISCLAIMER = (
    "Research software, paper trading only: no order reaches a real market; past results do not "
    "predict future ones."
)


@dataclass(frozen=True)
class TradeFlags:
    """The options of `sweepd trade`, in the order of `--help`."""

    feed: Annotated[
        str,
        typer.Option(
            help="Source of bars: alpaca, a ccxt exchange (binance, kraken, ...), folder (files in "
            "--data-dir that another program appends to), recorded (the same files, at --speed) or "
            "MODULE:NAME (a feed of your own, see docs/how_to/plugins.md)."
        ),
    ] = "alpaca"
    broker: Annotated[
        str,
        typer.Option(
            help="sim (virtual money, orders filled at the next open), alpaca (the paper account "
            "of the keys in APCA_API_KEY_ID and APCA_API_SECRET_KEY) or MODULE:NAME (a paper broker "
            "of your own, see docs/how_to/plugins.md)."
        ),
    ] = "sim"
    url: Annotated[
        str | None, typer.Option(help="Address of Alpaca's paper API; for tests on this machine.")
    ] = None
    speed: Annotated[
        float,
        typer.Option(
            min=0.0, help="With --feed recorded: multiple of real time; 0: as fast as possible."
        ),
    ] = 0.0
    arena: Annotated[
        int, typer.Option(min=0, help="Number of challengers to trade on virtual money.")
    ] = 0
    on_alert: Annotated[
        OnAlert, typer.Option(help="Reaction of the live monitor to results worse than scored.")
    ] = "alert"
    max_delay: Annotated[
        float | None,
        typer.Option(
            min=1.0,
            help="Seconds after a bar's end in which it may be traded. Default: a quarter bar.",
        ),
    ] = None
    risk: Annotated[
        list[str] | None,
        typer.Option(
            help="Risk rule: drawdown=0.2, cooldown=24h, daily-loss=0.05, ... May be repeated."
        ),
    ] = None
    replay: Annotated[
        bool,
        typer.Option("--replay", help="Replay recorded bars on virtual money, and write a report."),
    ] = False
    bundle: Annotated[
        Path | None, typer.Option(help="With --replay: folder of a bundle instead of a slot.")
    ] = None
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of bars. Default: that of the gate's evaluation.")
    ] = None
    since: Annotated[
        str | None,
        typer.Option(
            "--from", help="UTC time of the first decision. Default: after the training data."
        ),
    ] = None
    until: Annotated[
        str | None, typer.Option("--to", help="UTC time of the last bar. Default: the newest.")
    ] = None
    cash: Annotated[
        float | None,
        typer.Option(
            min=0.01, help="Virtual money in quote units. Default: the bundle's initial cash."
        ),
    ] = None
    any_account: Annotated[
        bool,
        typer.Option(
            "--any-account",
            help="Accept an account below half or above three times the bundle's initial cash.",
        ),
    ] = False
    out: Annotated[
        Path | None,
        typer.Option(help="With --replay: folder for ledger, orders, summary and plot."),
    ] = None
    as_json: AsJson = False


@takes_flags
def trade_command(
    flags: TradeFlags,
    where: RegistryFlags,
    slot: Annotated[
        str | None, typer.Argument(help="Slot to trade. Default: the only slot with a champion.")
    ] = None,
) -> None:
    """Trade a slot's champion on paper, bar by bar as the bars close, until stopped.

    `sweepd trader` halts, resumes and shows a running trader. With --replay: trade recorded bars
    without waiting, by default those after the training data.
    """
    if flags.replay:
        _replay(slot, flags, where)
        return
    if flags.bundle is not None:
        raise InputError("--bundle is for --replay: a live trader trades a slot")
    live = LiveFlags(
        feed=flags.feed,
        broker=flags.broker,
        url=flags.url,
        speed=flags.speed,
        arena=flags.arena,
        on_alert=flags.on_alert,
        max_delay=flags.max_delay,
        limits=parse_limits(flags.risk or []),
        data_dir=flags.data_dir,
        since=flags.since,
        cash=flags.cash,
        any_account=flags.any_account,
    )
    console = Terminal()
    console.print(DISCLAIMER, style="dim")
    trade_live(slot, _open_registry(slot, where), live, console)


def _open_registry(slot: str | None, where: RegistryFlags) -> Registry:
    """Open the registry for a trader.

    Args:
        slot: the slot; None: the only one with a champion.
        where: options of the registry.

    Raises:
        InputError: it cannot be opened, and no trader was started with it before.
        TryAgainLater: it cannot be opened now, but could be before, or a service manager waits.
    """
    try:
        return where.open()
    except InputError as error:
        if has_begun(where.deployments / TRADERS, slot):
            why = "A trader was started in this folder before"
        elif Supervisor().present:  # the folder may not be mounted yet
            why = "A service is started"
        else:
            raise
        raise TryAgainLater(f"{error}. {why}, so this may pass: exit code 75") from error


def _replay(slot: str | None, flags: TradeFlags, where: RegistryFlags) -> None:
    """Replay recorded bars, write the report and print it."""
    limits = parse_limits(flags.risk or [])
    name, bundle, data_dir = _bundle_and_bars(slot, flags, where)
    # With --json, stdout contains nothing but the JSON.
    console = Terminal(stderr=flags.as_json)
    bars = bars_of(bundle, data_dir)
    window = replay_window(bundle, bars, flags.since, flags.until)
    if not flags.as_json:
        console.print(DISCLAIMER, style="dim")
    result = run_replay(
        bundle,
        bars,
        window,
        console=console,
        slot=name,
        cash=flags.cash,
        any_account=flags.any_account,
        limits=limits,
    )
    folder = flags.out or replay_folder(where.deployments, result)
    try:
        paths = write_replay(result, folder)
    except OSError as error:
        raise InputError(f"--out {folder} cannot be written: {error.strerror or error}") from error
    if flags.as_json:
        facts = {"bundle": bundle.hash, "folder": str(folder), "metrics": result.score.to_dict()}
        typer.echo(json.dumps(facts, indent=1))
        return
    print_replay(console, result, paths)


def _bundle_and_bars(
    slot: str | None, flags: TradeFlags, where: RegistryFlags
) -> tuple[str, Bundle, Path]:
    """Return a name, the bundle to replay and the folder of its bars, for a slot or `--bundle`."""
    data_dir = flags.data_dir
    if flags.bundle is not None and slot is not None:
        raise InputError(f"name a slot or --bundle, not both ({slot!r} and {flags.bundle})")
    if flags.bundle is not None:
        name, loaded = "replay", market_bundle(load_bundle(flags.bundle))
    else:
        opened = where.open()
        found = opened.require(slot)
        assert found.champion is not None
        name, loaded = found.name, opened.bundle(found.champion, Bundle)
        data_dir = data_dir or opened.data_dir(found.champion)
    if data_dir is None:
        raise InputError("--data-dir is needed with --bundle: name the folder of bars to trade")
    return name, loaded, data_dir
