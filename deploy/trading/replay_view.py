"""Terminal view of a replay: its window, progress, summary and files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from deploy.market.bundle import Bundle, format_time, parse_moment
from deploy.market.scoring import first_decision, unseen_window
from deploy.market.view import metrics_table
from deploy.promotion.findings import SYNTHETIC
from deploy.registry.slots import slot_name
from deploy.trading.replay import ReplayResult, replay
from deploy.trading.risk import RiskLimits, RiskRules
from envs.crypto.data.bars import Bars
from envs.crypto.splits import Window
from envs.support.errors import InputError
from envs.support.formatting import percent


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
    total = window[1] - window[0]
    first, last = (format_time(int(bars.time[bar])) for bar in (window[0] + 1, window[1]))
    title = f"paper trading {bundle.name}, bars {first} to {last}"
    with _progress(console, title, total) as step:
        return replay(
            bundle,
            bars,
            window,
            slot=slot,
            cash=cash,
            any_account=any_account,
            limits=limits,
            progress=step,
        )


def print_replay(console: Console, result: ReplayResult, paths: list[Path]) -> None:
    """Print the replay's summary against equal weight, and the paths of its files."""
    bundle, first = result.bundle, int(result.time[0])
    span = f"{format_time(first)} to {format_time(int(result.time[-1]))}"
    console.print(metrics_table(result.metrics, f"Paper replay of {bundle.name}, {span}"))
    metrics = result.metrics
    difference = metrics.total_return - metrics.equal_weight_return
    word = "more" if difference > 0 else "less"
    console.print(
        f"{percent(metrics.total_return)} after fees: {percent(abs(difference)).lstrip('+')} "
        f"{word} than equal weight.",
        highlight=False,
    )
    if first <= bundle.last_seen:
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


def replay_folder(deployments: Path, slot: str, result: ReplayResult) -> Path:
    """Return the default folder of a replay's files, named by slot, bundle and range."""
    first, last = (
        format_time(int(moment)).replace(":", "").replace("-", "")[:13]
        for moment in (result.time[0], result.time[-1])
    )
    return deployments / "replays" / f"{slot_name(slot)}-{result.bundle.name}-{first}-{last}"


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
    if (scored.get("first"), scored.get("last")) != (
        format_time(int(result.time[0])),
        format_time(int(result.time[-1])),
    ):
        return None
    return abs(float(scored["total_return"]) - result.metrics.total_return)


@contextmanager
def _progress(console: Console, title: str, total: int) -> Iterator[_Step]:
    """Yield the progress display: a bar with rate and ETA on a terminal, plain lines elsewhere."""
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
    """Advances the display to the number of bars done."""

    progress: Progress | None
    task: int | None

    def __call__(self, done: int) -> None:
        if self.progress is not None and done % 10 == 0:
            task = self.progress.tasks[0]
            rate = f"{task.speed:,.0f} bars/s" if task.speed else ""
            self.progress.update(task.id, completed=done, rate=rate)
