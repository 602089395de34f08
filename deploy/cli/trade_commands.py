"""The command that trades a slot on paper: live, or over recorded bars; and that halts it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from deploy.cli.bundles import load_bundle, market_bundle
from deploy.cli.options import DEPLOYMENTS, AsJson, Deployments, RegistryUrl
from deploy.market.bundle import Bundle
from deploy.market.scoring import bars_of
from deploy.registry.registry import Registry
from deploy.trading.live.risk import RiskLimits, parse_limits
from deploy.trading.live.start import LiveFlags, trade_live
from deploy.trading.live.store import TraderStore
from deploy.trading.live.watchman import OnAlert
from deploy.trading.replay import write_replay
from deploy.trading.replay_view import print_replay, replay_folder, replay_window, run_replay
from envs.support.errors import InputError
from envs.support.terminal import Terminal

DISCLAIMER = "Research software, paper trading only: no order reaches a real market; past numbers promise nothing."
SWITCHES = ("halt", "resume")


def trade_command(
    slot: Annotated[
        str | None,
        typer.Argument(
            metavar="[SLOT | halt SLOT | resume SLOT]",
            help="The slot whose champion trades; default: the only one with a champion. halt sells all that a running "
            "trader holds and lets it order nothing until resume.",
        ),
    ] = None,
    switched: Annotated[str | None, typer.Argument(hidden=True)] = None,
    feed: Annotated[
        str,
        typer.Option(
            "--feed",
            help="Where live bars come from: alpaca, an exchange that ccxt knows (binance, kraken, …), folder (files "
            "in --data-dir that something appends to) or recorded (those files, as fast as --speed).",
        ),
    ] = "alpaca",
    broker: Annotated[
        str,
        typer.Option(
            "--broker",
            help="Where orders go: sim (virtual money, filled at the next open) or alpaca (its paper account; keys in "
            "APCA_API_KEY_ID and APCA_API_SECRET_KEY).",
        ),
    ] = "sim",
    url: Annotated[
        str | None,
        typer.Option(
            "--url", help="Another address of Alpaca's paper API: this machine only, for trying."
        ),
    ] = None,
    speed: Annotated[
        float,
        typer.Option(
            "--speed", min=0.0, help="With --feed recorded: how fast; 0 is as fast as possible."
        ),
    ] = 0.0,
    arena: Annotated[
        int,
        typer.Option(
            "--arena", min=0, help="So many challengers trade beside it with virtual money."
        ),
    ] = 0,
    on_alert: Annotated[
        OnAlert,
        typer.Option(
            "--on-alert", help="What the live monitor does when it trades worse than scored."
        ),
    ] = "alert",
    risk: Annotated[
        list[str] | None,
        typer.Option(
            "--risk",
            help="A risk rule: drawdown=0.2, cooldown=24h, daily-loss=0.05, …; may be repeated.",
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="With halt: keep the positions; order nothing.")
    ] = False,
    replay_bars: Annotated[
        bool,
        typer.Option(
            "--replay", help="Trade recorded bars at once, with virtual money, and write a report."
        ),
    ] = False,
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--bundle", help="With --replay: this bundle's folder instead of a slot's champion."
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", help="Folder of bars; default: where the champion was scored."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="UTC time of the first decision; default: the last bar that its training saw.",
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--to", help="UTC time of the last bar; default: the newest.")
    ] = None,
    cash: Annotated[
        float | None,
        typer.Option(
            "--cash",
            min=0.01,
            help="Virtual money, in quote units; default: the bundle's initial cash.",
        ),
    ] = None,
    any_account: Annotated[
        bool,
        typer.Option("--any-account", help="Trade an account outside half to three times of that."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="With --replay: folder for ledger, orders, summary and picture."
        ),
    ] = None,
    as_json: AsJson = False,
    deployments: Deployments = DEPLOYMENTS,
    registry: RegistryUrl = None,
) -> None:
    """Trade a slot's champion on paper, for as long as it runs, on bars as they close.

    With --replay: over recorded bars at once, by default those that its training never saw.
    """
    if slot in SWITCHES and switched is not None:
        switch(slot, switched, deployments, registry, keep=keep)
        return
    if slot in SWITCHES:
        raise InputError(f"sweepd trade {slot}: name the slot, like sweepd trade {slot} crypto-1h")
    if switched is not None:
        raise InputError(
            f"sweepd trade {slot} {switched}: name one slot, or halt SLOT or resume SLOT"
        )
    limits = parse_limits(risk or [])
    if replay_bars:
        _replay(
            slot,
            bundle,
            data_dir,
            since,
            until,
            cash,
            out,
            limits,
            deployments,
            registry,
            any_account,
            as_json,
        )
        return
    if bundle is not None:
        raise InputError(
            "--bundle is for --replay: a live trader trades a slot, whose champion may change"
        )
    flags = LiveFlags(
        feed=feed,
        broker=broker,
        url=url,
        speed=speed,
        arena=arena,
        on_alert=on_alert,
        limits=limits,
        data_dir=data_dir,
        since=since,
        cash=cash,
        any_account=any_account,
    )
    console = Terminal()
    console.print(DISCLAIMER, style="dim", highlight=False)
    trade_live(slot, Registry(deployments, registry, create=False), flags, console)


def switch(word: str, slot: str, deployments: Path, registry: str | None, *, keep: bool) -> None:
    """Halt or resume the slot's trader, which obeys within seconds."""
    store = TraderStore(Registry(deployments, registry, create=False).database)
    if word == "resume":
        store.resume(slot)
        typer.echo(f"{slot} may trade again")
        return
    store.halt(slot, "by the operator", sells=not keep)
    what = "keeps its positions" if keep else "sells all it holds"
    typer.echo(f"{slot} {what} and orders nothing until: sweepd trade resume {slot}")


def _replay(
    slot: str | None,
    folder_of_bundle: Path | None,
    data_dir: Path | None,
    since: str | None,
    until: str | None,
    cash: float | None,
    out: Path | None,
    limits: RiskLimits,
    deployments: Path,
    registry: str | None,
    any_account: bool,
    as_json: bool,
) -> None:
    """Trade recorded bars at once."""
    if folder_of_bundle is not None and slot is not None:
        raise InputError(f"name a slot or --bundle, not both ({slot!r} and {folder_of_bundle})")
    name, folder = "replay", data_dir
    if folder_of_bundle is not None:
        loaded = market_bundle(load_bundle(folder_of_bundle))
    else:
        opened = Registry(deployments, registry, create=False)
        found = opened.require(slot)
        name = found.name
        assert found.champion is not None
        loaded = opened.bundle(found.champion, Bundle)
        folder = folder or opened.data_dir(found.champion)
    if folder is None:
        raise InputError("--data-dir is needed with --bundle: name the folder of bars to trade")
    console = Terminal(stderr=as_json)
    bars = bars_of(loaded, folder)
    window = replay_window(loaded, bars, since, until)
    if not as_json:
        console.print(DISCLAIMER, style="dim", highlight=False)
    result = run_replay(
        loaded,
        bars,
        window,
        console=console,
        slot=name,
        cash=cash,
        any_account=any_account,
        limits=limits,
    )
    target = out or replay_folder(deployments, name, result)
    try:
        paths = write_replay(result, target)
    except OSError as error:
        raise InputError(f"--out {target} cannot be written: {error.strerror or error}") from error
    if as_json:
        typer.echo(
            json.dumps(
                {"bundle": loaded.hash, "folder": str(target), "metrics": result.metrics.to_dict()},
                indent=1,
            )
        )
        return
    print_replay(console, result, paths)
