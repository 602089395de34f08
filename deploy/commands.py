"""The commands of deployment: promote, rollback, trade; and what a worker does when its study has ended."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from deploy.bundle import Bundle, format_time, load_bundle
from deploy.candidates import FinishedStudy, open_study, storage_url
from deploy.gate import DEFAULT_RULES, parse_limits, with_limits
from deploy.manifest import Weights
from deploy.options import DEPLOYMENTS, AsJson, Deployments, RegistryUrl, chosen_registry
from deploy.promote import Promoter, Promotion
from deploy.registry import Registry
from deploy.registry_commands import registry_app, rollback_command
from deploy.replay import Replay, replay, write_replay
from deploy.report import metrics_table, percent, print_promotion, short
from deploy.scoring import first_decision, in_order, unseen_window
from envs.crypto.bars import Bars, load_bars
from envs.crypto.splits import Window
from envs.errors import InputError, RunError
from envs.supervisor import Supervisor

DISCLAIMER = "Research software, paper trading only: no order reaches a real market; past numbers promise nothing."


def deploy_commands(app: typer.Typer) -> None:
    """Add promote, rollback, trade and the registry's commands to a command-line program."""
    app.command("promote")(promote_command)
    app.command("promote-after-study", hidden=True)(after_study_command)
    app.command("rollback")(rollback_command)
    app.command("trade")(trade_command)
    app.add_typer(registry_app, name="registry")


def promote_command(
    study_name: Annotated[
        str | None, typer.Option("--study-name", help="The study; default: the only one in the storage.")
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            "--storage",
            envvar="SWEEPD_STORAGE",
            help="Database of the study: a SQLite file or a URL; default runs/sweepd.db.",
        ),
    ] = None,
    slot: Annotated[
        str | None,
        typer.Option(
            "--slot", help="The slot whose champion may change; default crypto-<timeframe> (demo-… on synthetic bars)."
        ),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Where the study's bars lie now; default: where they were.")
    ] = None,
    trial: Annotated[
        int | None, typer.Option("--trial", help="Consider this trial only, instead of all in order of objective.")
    ] = None,
    looks: Annotated[
        int,
        typer.Option(
            "--looks",
            min=1,
            help="How many candidates may look at the hold-out. Each look makes its verdict worth less.",
        ),
    ] = 1,
    ensemble: Annotated[
        int,
        typer.Option(
            "--ensemble",
            min=1,
            help="Let that many of the best trials ask together: each trades a share of the capital, orders netted.",
        ),
    ] = 1,
    weights: Annotated[
        Weights,
        typer.Option(
            "--weights", help="Shares of an ensemble's capital: equal, or by the trials' shrunken fold scores."
        ),
    ] = "equal",
    limit: Annotated[
        list[str] | None, typer.Option("--limit", help="Change a rule's limit: NAME=NUMBER. May be repeated.")
    ] = None,
    first_stage: Annotated[
        bool,
        typer.Option("--first-stage", help="Only the rules that need no look at the hold-out, for the best trial."),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Change no champion. The look at the hold-out is counted: you see its numbers."),
    ] = False,
    as_json: AsJson = False,
    deployments: Deployments = DEPLOYMENTS,
    registry: RegistryUrl = None,
) -> None:
    """Let a study's best trial ask for a slot: score it on the hold-out, and make it champion if it meets every rule.

    "No candidate passes" is a normal result, explained, and exits with 0.
    """
    console = Console()
    Supervisor().ready("judging the candidates")
    study = open_study(study_name, storage_url(storage))
    promoter = Promoter(
        study,
        Registry(deployments, registry),
        slot=slot,
        data_dir=data_dir,
        dry_run=dry_run,
        looks=0 if first_stage else looks,
        ensemble=ensemble,
        weights=weights,
        rules=with_limits(DEFAULT_RULES, parse_limits(limit or [])),
        progress=(lambda _text: None) if as_json else lambda text: console.print(text, style="dim"),
    )
    promotion = promoter.run(trial)
    if as_json:
        typer.echo(json.dumps(promotion.to_dict(), indent=1))
        return
    print_promotion(console, promotion)
    if not first_stage:
        _report(console, study, promotion, promoter)
    if promotion.outcome in ("promoted", "champion already"):
        console.print(f"next: sweepd trade --replay {promotion.slot}", highlight=False)


def after_study_command(
    study_name: Annotated[str, typer.Option("--study-name")],
    storage: Annotated[str | None, typer.Option("--storage", envvar="SWEEPD_STORAGE")] = None,
    deployments: Deployments = DEPLOYMENTS,
    registry: RegistryUrl = None,
) -> None:
    """What a worker starts, in a process of its own, when its study has ended: see `promote_after_study`."""
    promote_after_study(study_name, storage_url(storage), console=Console(), deployments=deployments, registry=registry)


def trade_command(
    slot: Annotated[
        str | None, typer.Argument(help="The slot whose champion trades; default: the only one with a champion.")
    ] = None,
    replay_bars: Annotated[
        bool, typer.Option("--replay", help="Trade recorded bars, one closed bar at a time, with the simulated broker.")
    ] = False,
    bundle: Annotated[
        Path | None, typer.Option("--bundle", help="Trade this bundle's folder instead of a slot's champion.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Folder of bars; default: where the champion was scored.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--from", help="UTC time of the first decision; default: the last bar that its training saw."),
    ] = None,
    until: Annotated[str | None, typer.Option("--to", help="UTC time of the last bar; default: the newest.")] = None,
    cash: Annotated[
        float | None,
        typer.Option("--cash", min=0.01, help="The account, in quote units; default: the bundle's initial cash."),
    ] = None,
    any_account: Annotated[
        bool, typer.Option("--any-account", help="Trade an account outside half to three times of that.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for ledger, orders, summary and picture.")] = None,
    as_json: AsJson = False,
    deployments: Deployments = DEPLOYMENTS,
    registry: RegistryUrl = None,
) -> None:
    """Trade a champion on paper. With --replay: over recorded bars, by default those that its training never saw."""
    if not replay_bars:
        raise InputError("sweepd trade needs --replay: this version trades recorded bars only, on paper")
    if bundle is not None and slot is not None:
        raise InputError(f"name a slot or --bundle, not both ({slot!r} and {bundle})")
    name, folder = "replay", data_dir
    if bundle is not None:
        loaded = load_bundle(bundle)
    else:
        opened = Registry(deployments, registry, create=False)
        found = opened.require(slot)
        name = found.name
        assert found.champion is not None
        loaded = opened.bundle(found.champion)
        folder = folder or opened.data_dir(found.champion)
    if folder is None:
        raise InputError("--data-dir is needed with --bundle: name the folder of bars to trade")
    console = Console(stderr=as_json)
    bars = _bars_of(loaded, folder)
    window = replay_window(loaded, bars, since, until)
    if not as_json:
        console.print(DISCLAIMER, style="dim", highlight=False)
    result = run_replay(loaded, bars, window, console=console, slot=name, cash=cash, any_account=any_account)
    target = out or replay_folder(deployments, name, result)
    try:
        paths = write_replay(result, target)
    except OSError as error:
        raise InputError(f"--out {target} cannot be written: {error.strerror or error}") from error
    if as_json:
        typer.echo(
            json.dumps({"bundle": loaded.hash, "folder": str(target), "metrics": result.metrics.to_dict()}, indent=1)
        )
        return
    print_replay(console, result, paths)


def replay_window(bundle: Bundle, bars: Bars, since: str | None, until: str | None) -> Window:
    """The window that a replay trades. since, until: UTC times, or None for the bars that training never saw.

    Raises InputError for a time that cannot be read, or a window without bars.
    """
    first, last = first_decision(bundle), len(bars.time) - 1
    if until is not None:
        last = int(np.searchsorted(bars.time, _moment(until, "--to"), side="right")) - 1
    if since is not None:
        first_asked = int(np.searchsorted(bars.time, _moment(since, "--from")))
        if first_asked < first:
            earliest = format_time(int(bars.time[first])) if first < len(bars.time) else "never"
            raise InputError(
                f"--from {since} is too early: {first} bars must lie before the first decision, so the earliest is "
                f"{earliest}"
            )
        first = first_asked
    else:
        unseen = unseen_window(bars, bundle.last_seen, first)
        if unseen is None:
            raise InputError(
                f"the data ends at {format_time(int(bars.time[-1]))} and bundle {bundle.name} has seen all of it "
                f"(up to {bundle.manifest.last_seen_bar}); "
                "name newer bars with --data-dir, or --from to replay what it was trained on"
            )
        first = unseen[0]
    if not first < last:
        ends = f"{format_time(int(bars.time[0]))} to {format_time(int(bars.time[-1]))}"
        raise InputError(
            f"--from {since or bundle.manifest.last_seen_bar} --to {until or 'the end'} leaves no bar to trade; the "
            f"data runs from {ends}"
        )
    return first, last


def run_replay(
    bundle: Bundle,
    bars: Bars,
    window: Window,
    *,
    console: Console,
    slot: str,
    cash: float | None = None,
    any_account: bool = False,
) -> Replay:
    """Replay with a progress display on a terminal, and two plain lines elsewhere."""
    total = window[1] - window[0]
    first, last = (format_time(int(bars.time[bar])) for bar in (window[0] + 1, window[1]))
    title = f"paper trading {bundle.name}, bars {first} to {last}"
    with _progress(console, title, total) as step:
        return replay(bundle, bars, window, slot=slot, cash=cash, any_account=any_account, progress=step)


def print_replay(console: Console, result: Replay, paths: list[Path]) -> None:
    """The replay's summary against equal weight, and where its files are."""
    bundle, first = result.bundle, int(result.time[0])
    span = f"{format_time(first)} to {format_time(int(result.time[-1]))}"
    console.print(metrics_table(result.metrics, f"Paper replay of {bundle.name}, {span}"))
    metrics = result.metrics
    difference = metrics.total_return - metrics.equal_weight_return
    word = "more" if difference > 0 else "less"
    console.print(
        f"{percent(metrics.total_return)} after fees: {percent(abs(difference)).lstrip('+')} {word} than equal weight.",
        highlight=False,
    )
    if first <= bundle.last_seen:
        console.print(
            f"Bars up to {bundle.manifest.last_seen_bar} were seen in training: what it earned on them proves nothing.",
            style="yellow",
            highlight=False,
        )
    if bundle.manifest.data.synthetic:
        console.print("The market is synthetic.", style="dim")
    agreement = _agreement(result)
    if agreement is not None:
        console.print(
            f"Same bars as the gate's: returns agree with its canonical score to {agreement:.1e}.", highlight=False
        )
    console.print("written: " + ", ".join(str(path) for path in paths), highlight=False, soft_wrap=True)


def replay_folder(deployments: Path, slot: str, result: Replay) -> Path:
    """Where a replay's files go unless told otherwise: named by slot, bundle and range."""
    first, last = (
        format_time(int(moment)).replace(":", "").replace("-", "")[:13] for moment in (result.time[0], result.time[-1])
    )
    return deployments / "replays" / f"{slot}-{result.bundle.name}-{first}-{last}"


def count_looks(tickers: Sequence[str], first: int, last: int) -> int:
    """Looks taken so far at these assets' hold-out bars between the opens `first` and `last`, in the registry that the
    environment names; 0 where there is none yet.
    """
    deployments, url = chosen_registry()
    if url is None and not (deployments / "registry.db").exists():
        return 0
    return Registry(deployments, url, create=False).looks(tickers, first, last)


def promote_after_study(
    study_name: str,
    storage: str,
    *,
    console: Console,
    deployments: Path = DEPLOYMENTS,
    registry: str | None = None,
    data_dir: Path | None = None,
    slot: str | None = None,
) -> Promotion:
    """What a worker does when its study has ended: promote the best trial if it deserves it, replay the champion over
    the hold-out through the paper trader, and say what came of it and what to do next.

    storage: an SQLAlchemy URL. Problems with the champion's replay are said, and do not undo the promotion.
    """
    opened = Registry(deployments, registry)
    url = storage_url(storage)
    study = open_study(study_name, url)
    promoter = Promoter(
        study,
        opened,
        slot=slot,
        data_dir=data_dir,
        progress=lambda text: console.print(text, style="dim", highlight=False),
    )
    promotion = promoter.run()
    print_promotion(console, promotion)
    _report(console, study, promotion, promoter)
    if promotion.champion is None:
        console.print(f"Nothing to replay: slot {promotion.slot} has no champion yet.", highlight=False)
    else:
        try:
            _replay_champion(console, opened, promotion, data_dir or Path(study.spec.data.dir))
        except (InputError, RunError, OSError) as error:
            console.print(f"The champion {short(promotion.champion)} could not be replayed: {error}", style="yellow")
    next_commands = _next_commands(promotion, opened, url)
    console.print(Panel("\n".join(next_commands), title="Next", title_align="left"), highlight=False)
    return promotion


def _report(console: Console, study: FinishedStudy, promotion: Promotion, promoter: Promoter) -> None:
    """Write the report with pictures and attach it to the study. The decision stands whatever becomes of it."""
    from deploy.gate_report import attach, write_report  # here, so that other commands need not wait for matplotlib

    try:
        paths = write_report(study, promotion, promoter.registry, promoter.data_dir)
        attach(study, paths)
    except (OSError, RunError, SQLAlchemyError) as error:
        console.print(f"The report could not be written: {error}", style="yellow", highlight=False, soft_wrap=True)
        return
    if paths:
        console.print("report: " + ", ".join(str(path) for path in paths), highlight=False, soft_wrap=True)


def _replay_champion(console: Console, registry: Registry, promotion: Promotion, data_dir: Path) -> None:
    """Replay the slot's champion over the bars that its training never saw, and write what came of it."""
    assert promotion.champion is not None
    bundle = registry.bundle(promotion.champion)
    bars = _bars_of(bundle, data_dir)
    window = replay_window(bundle, bars, None, None)
    result = run_replay(bundle, bars, window, console=console, slot=promotion.slot)
    paths = write_replay(result, replay_folder(registry.folder, promotion.slot, result))
    print_replay(console, result, paths)


def _next_commands(promotion: Promotion, registry: Registry, storage: str) -> list[str]:
    """What a user may want to do now; flags that have their defaults are left out."""
    study = f"--study-name {promotion.study}"
    if storage != storage_url(None):
        study += f" --storage {make_url(storage).render_as_string(hide_password=True)}"
    commands = []
    if promotion.champion is not None:
        commands.append(f"sweepd trade --replay {promotion.slot}   # replay the champion")
        if registry.slot(promotion.slot).previous is not None:
            commands.append(f"sweepd rollback {promotion.slot}   # bring the previous champion back")
    return [
        *commands,
        f"sweepd promote {study} --dry-run   # judge the candidates again",
        f"sweepd status {study}   # trials and best parameters",
        f"sweepd dashboard {study}   # the study in a browser",
    ]


def _bars_of(bundle: Bundle, folder: Path) -> Bars:
    return in_order(load_bars(folder, bundle.manifest.timeframe, bundle.manifest.tickers), bundle)


def _moment(text: str, flag: str) -> int:
    try:
        moment = pd.Timestamp(text)
    except ValueError as error:
        raise InputError(f"{flag} {text!r} is not a time like 2024-08-01 or 2024-08-01T13:00") from error
    moment = moment.tz_localize("UTC") if moment.tzinfo is None else moment.tz_convert("UTC")
    return int(moment.timestamp())


def _agreement(result: Replay) -> float | None:
    """How far the replay's total return is from the canonical hold-out score in the bundle; None where other bars were
    traded.
    """
    scored = result.bundle.manifest.gate.get("holdout")
    if not isinstance(scored, dict) or result.entries[0].value != result.bundle.account.initial_cash:
        return None
    if (scored.get("first"), scored.get("last")) != (
        format_time(int(result.time[0])),
        format_time(int(result.time[-1])),
    ):
        return None
    return abs(float(scored["total_return"]) - result.metrics.total_return)


@contextmanager
def _progress(console: Console, title: str, total: int) -> Iterator[_Step]:
    """A bar with rate and ETA on a terminal; plain lines elsewhere."""
    if not console.is_interactive:
        console.print(title, highlight=False)
        yield _Step(None, None)
        console.print(f"traded {total:,} bars", highlight=False)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield _Step(progress, progress.add_task(title, total=total, rate=""))


@dataclass
class _Step:
    """Moves the display on by the bars done."""

    progress: Progress | None
    task: int | None

    def __call__(self, done: int) -> None:
        if self.progress is not None and done % 10 == 0:
            task = self.progress.tasks[0]
            rate = f"{task.speed:,.0f} bars/s" if task.speed else ""
            self.progress.update(task.id, completed=done, rate=rate)
