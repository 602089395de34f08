"""Terminal view of a replay: its window, progress, summary and files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.market.scoring import bars_of, first_decision, unseen_window
from sweepd.deploy.promotion.sections import SYNTHETIC, short
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.registry.slots import slot_name
from sweepd.deploy.trading.replay import ReplayResult, replay, write_replay
from sweepd.deploy.trading.replay_files import REPLAYS
from sweepd.deploy.trading.risk import RiskRules
from sweepd.deploy.trading.risk_limits import RiskLimits
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.data.timeframe import format_time, parse_moment
from sweepd.envs.crypto.scoring.figures import figures_table, shown
from sweepd.envs.crypto.splits import Window
from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.formatting import percent
from sweepd.envs.support.terminal import Terminal


def replay_window(bundle: Bundle, bars: Bars, since: str | None, until: str | None) -> Window:
    """Return the window that a replay trades.

    Args:
        bundle: the bundle.
        bars: recorded bars.
        since: UTC time of the first bar; None: the first one after the training data.
        until: UTC time of the last bar; None: the newest.

    Raises:
        InputError: a time cannot be read, or the window has no bars.
    """
    first, last = first_decision(bundle), len(bars.time) - 1
    if until is not None:
        last = int(np.searchsorted(bars.time, parse_moment(until, "--to"), side="right")) - 1
    if since is not None:
        first_asked = int(np.searchsorted(bars.time, parse_moment(since, "--from")))
        if first_asked < first:
            earliest = format_time(int(bars.time[first])) if first < len(bars.time) else "never"
            raise InputError(
                f"--from {since} is too early: {first} bars must precede the first decision, so "
                f"the earliest is {earliest}"
            )
        first = first_asked
    else:
        unseen = unseen_window(bars, bundle.last_seen, first)
        if unseen is None:
            raise InputError(
                f"the data ends at {format_time(int(bars.time[-1]))} and bundle {bundle.name} has "
                f"seen all of it (up to {bundle.manifest.last_seen_bar}); give newer bars with "
                "--data-dir, or --from to replay its training data"
            )
        first = unseen[0]
    if not first < last:
        ends = f"{format_time(int(bars.time[0]))} to {format_time(int(bars.time[-1]))}"
        raise InputError(
            f"--from {since or bundle.manifest.last_seen_bar} --to {until or 'the end'} leaves no "
            f"bar to trade; the data runs from {ends}"
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
    limits: RiskLimits | None = None,
) -> ReplayResult:
    """Replay with a progress bar on a terminal, and two plain lines elsewhere."""
    first, last = (format_time(int(bars.time[bar])) for bar in (window[0] + 1, window[1]))
    title = f"paper trading {bundle.name}, bars {first} to {last}"
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    plain = not console.is_interactive
    if plain:
        console.print(title, highlight=False)
    total = window[1] - window[0]
    with Progress(*columns, console=console, transient=True, disable=plain) as progress:
        task = progress.add_task(title, total=total, rate="")

        def show(done: int) -> None:
            if done % 10 == 0:  # a bar takes less time than an update of the display
                speed = progress.tasks[0].speed
                rate = f"{speed:,.0f} bars/s" if speed else ""
                progress.update(task, completed=done, rate=rate)

        result = replay(
            bundle,
            bars,
            window,
            slot=slot,
            cash=cash,
            any_account=any_account,
            limits=limits,
            progress=show,
        )
    if plain:
        console.print(f"traded {total:,} bars", highlight=False)
    return result


def print_replay(console: Console, result: ReplayResult, paths: list[Path]) -> None:
    """Print the replay's summary against equal weight, and the paths of its files."""
    bundle, metrics = result.bundle, result.score.metrics
    title = f"Paper replay of {bundle.name}, {' to '.join(result.span)}"
    console.print(figures_table(result.score.to_dict(), title))
    difference = metrics.total_return - metrics.equal_weight_return
    word = "more" if difference > 0 else "less"
    console.print(
        f"{shown('total_return', metrics.total_return)} after fees: {percent(abs(difference)).lstrip('+')} "
        f"{word} than equal weight.",
        highlight=False,
    )
    if not result.unseen:
        console.print(
            f"Bars up to {bundle.manifest.last_seen_bar} were seen in training: the result on them "
            "is no evidence.",
            style="yellow",
            highlight=False,
        )
    if bundle.manifest.data.synthetic:
        console.print(SYNTHETIC, style="yellow", highlight=False)
    if result.limits != RiskLimits():
        rules = RiskRules(result.limits).words
        console.print(
            "With risk rules, unlike in the evaluation: "
            + "; ".join(rules or ["tighter limits"])
            + "."
        )
    agreement = _agreement(result)
    if agreement is not None:
        console.print(
            f"Same bars as the gate's: returns agree with its canonical score to {agreement:.1e}.",
            highlight=False,
        )
    console.print(
        "written: " + ", ".join(str(path) for path in paths), highlight=False, soft_wrap=True
    )


def replay_folder(deployments: Path, result: ReplayResult) -> Path:
    """Return the default folder of a replay's files, named by slot, bundle and range."""
    first, last = (text.replace(":", "").replace("-", "")[:13] for text in result.span)
    return deployments / REPLAYS / f"{slot_name(result.slot)}-{result.bundle.name}-{first}-{last}"


def _agreement(result: ReplayResult) -> float | None:
    """Return the difference between the replay's return and the gate's hold-out score.

    None if other bars were traded.
    """
    scored = result.bundle.manifest.gate.get("holdout")
    same = (
        result.entries[0].value == result.bundle.account.initial_cash
        and result.limits == RiskLimits()
    )
    if not isinstance(scored, dict) or not same:
        return None
    if (scored.get("first"), scored.get("last")) != result.span:
        return None
    return abs(float(scored["total_return"]) - result.score.metrics.total_return)


def replay_champion(
    registry: Registry, slot: str, champion: str | None, data_dir: Path, console: Terminal
) -> None:
    """Replay a slot's champion on the bars after its training data, and write the result.

    Errors are printed.

    Args:
        registry: where the slot is.
        slot: the slot.
        champion: hash of its champion, None if it has none.
        data_dir: folder of the bars.
        console: what is printed goes there.
    """
    if champion is None:
        console.print_line(f"Nothing to replay: slot {slot} has no champion yet.")
        return
    try:
        bundle = registry.bundle(champion, Bundle)
        bars = bars_of(bundle, data_dir)
        window = replay_window(bundle, bars, None, None)
        result = run_replay(bundle, bars, window, console=console, slot=slot)
        print_replay(console, result, write_replay(result, replay_folder(registry.folder, result)))
    except (InputError, RunError, OSError) as error:
        console.print_line(
            f"The champion {short(champion)} could not be replayed: {error}", "yellow"
        )
