"""`sweepd trade`: trade a slot on paper, live or in a replay over recorded bars."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from deploy.cli.bundles import load_bundle, market_bundle
from deploy.cli.options import DEPLOYMENTS, AsJson, Deployments, RegistryUrl
from deploy.market.bundle import Bundle
from deploy.market.scoring import bars_of
from deploy.registry.registry import Registry
from deploy.trading.live.monitor import OnAlert
from deploy.trading.live.start import LiveFlags, trade_live
from deploy.trading.replay import write_replay
from deploy.trading.replay_view import print_replay, replay_folder, replay_window, run_replay
from deploy.trading.risk import RiskLimits, parse_limits
from envs.support.errors import InputError
from envs.support.terminal import Terminal

DISCLAIMER = (
    "Research software, paper trading only: no order reaches a real market; past results do not "
    "predict future ones."
)


def trade_command(
    slot: Annotated[
        str | None, typer.Argument(help="Slot to trade. Default: the only slot with a champion.")
    ] = None,
    extra: Annotated[str | None, typer.Argument(hidden=True)] = None,
    feed: Annotated[
        str,
        typer.Option(
            "--feed",
            help="Source of bars: alpaca, a ccxt exchange (binance, kraken, ...), folder (files in "
            "--data-dir that another program appends to) or recorded (the same files, at --speed).",
        ),
    ] = "alpaca",
    broker: Annotated[
        str,
        typer.Option(
            "--broker",
            help="sim (virtual money, orders filled at the next open) or alpaca (the paper account "
            "of the keys in APCA_API_KEY_ID and APCA_API_SECRET_KEY).",
        ),
    ] = "sim",
    url: Annotated[
        str | None,
        typer.Option("--url", help="Address of Alpaca's paper API; for tests on this machine."),
    ] = None,
    speed: Annotated[
        float,
        typer.Option(
            "--speed", min=0.0, help="With --feed recorded: times real time; 0: without waiting."
        ),
    ] = 0.0,
    arena: Annotated[
        int, typer.Option("--arena", min=0, help="Number of challengers to trade on virtual money.")
    ] = 0,
    on_alert: Annotated[
        OnAlert,
        typer.Option(
            "--on-alert", help="Reaction of the live monitor to results worse than scored."
        ),
    ] = "alert",
    risk: Annotated[
        list[str] | None,
        typer.Option(
            "--risk",
            help="Risk rule: drawdown=0.2, cooldown=24h, daily-loss=0.05, ... May be repeated.",
        ),
    ] = None,
    replay_bars: Annotated[
        bool,
        typer.Option("--replay", help="Replay recorded bars on virtual money, and write a report."),
    ] = False,
    bundle: Annotated[
        Path | None,
        typer.Option("--bundle", help="With --replay: folder of a bundle instead of a slot."),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", help="Folder of bars. Default: that of the gate's evaluation."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--from", help="UTC time of the first decision. Default: after the training data."
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--to", help="UTC time of the last bar. Default: the newest.")
    ] = None,
    cash: Annotated[
        float | None,
        typer.Option(
            "--cash",
            min=0.01,
            help="Virtual money in quote units. Default: the bundle's initial cash.",
        ),
    ] = None,
    any_account: Annotated[
        bool,
        typer.Option(
            "--any-account",
            help="Accept an account outside half to three times the bundle's initial cash.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="With --replay: folder for ledger, orders, summary and plot."),
    ] = None,
    as_json: AsJson = False,
    deployments: Deployments = DEPLOYMENTS,
    registry: RegistryUrl = None,
) -> None:
    """Trade a slot's champion on paper, on bars as they close, until stopped.

    `sweepd trader` halts, resumes and shows a running trader. With --replay: trade recorded bars
    at once, by default those after the training data.
    """
    if slot in ("halt", "resume"):
        raise InputError(f"`sweepd trade {slot}` is now: sweepd trader {slot} {extra or 'SLOT'}")
    if extra is not None:
        raise InputError(f"sweepd trade {slot} {extra}: name one slot")
    limits = parse_limits(risk or [])
    if replay_bars:
        opened = _opened(slot, bundle, data_dir, deployments, registry)
        _replay(opened, since, until, cash, any_account, limits, out, deployments, as_json)
        return
    if bundle is not None:
        raise InputError("--bundle is for --replay: a live trader trades a slot")
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


@dataclass(frozen=True)
class _Replayed:
    """What to replay. name: of the slot, or "replay"."""

    name: str
    bundle: Bundle
    data_dir: Path


def _opened(
    slot: str | None,
    bundle: Path | None,
    data_dir: Path | None,
    deployments: Path,
    registry: str | None,
) -> _Replayed:
    """Return the bundle to replay and its bars' folder, for a slot or for `--bundle`."""
    if bundle is not None and slot is not None:
        raise InputError(f"name a slot or --bundle, not both ({slot!r} and {bundle})")
    if bundle is not None:
        name, loaded = "replay", market_bundle(load_bundle(bundle))
    else:
        opened = Registry(deployments, registry, create=False)
        found = opened.require(slot)
        assert found.champion is not None
        name, loaded = found.name, opened.bundle(found.champion, Bundle)
        data_dir = data_dir or opened.data_dir(found.champion)
    if data_dir is None:
        raise InputError("--data-dir is required with --bundle: name the folder of bars to trade")
    return _Replayed(name, loaded, data_dir)


def _replay(
    replayed: _Replayed,
    since: str | None,
    until: str | None,
    cash: float | None,
    any_account: bool,
    limits: RiskLimits,
    out: Path | None,
    deployments: Path,
    as_json: bool,
) -> None:
    """Replay recorded bars, write the report and print it."""
    console = Terminal(stderr=as_json)
    bundle, bars = replayed.bundle, bars_of(replayed.bundle, replayed.data_dir)
    window = replay_window(bundle, bars, since, until)
    if not as_json:
        console.print(DISCLAIMER, style="dim", highlight=False)
    result = run_replay(
        bundle,
        bars,
        window,
        console=console,
        slot=replayed.name,
        cash=cash,
        any_account=any_account,
        limits=limits,
    )
    folder = out or replay_folder(deployments, replayed.name, result)
    try:
        paths = write_replay(result, folder)
    except OSError as error:
        raise InputError(f"--out {folder} cannot be written: {error.strerror or error}") from error
    if as_json:
        facts = {
            "bundle": bundle.hash,
            "folder": str(folder),
            "metrics": result.score.metrics.to_dict(),
        }
        typer.echo(json.dumps(facts, indent=1))
        return
    print_replay(console, result, paths)
