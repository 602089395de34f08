"""The report of `sweepd data check` as text."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from sweepd.envs.crypto.data.bar_files import stamp
from sweepd.envs.crypto.data.check import FolderReport
from sweepd.envs.support.formatting import counted


def _ticker_table(report: FolderReport) -> Table:
    table = Table(
        title=f"{report.timeframe} bars, times in UTC",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("ticker", no_wrap=True)
    for name in ("first", "last"):
        table.add_column(name, min_width=10)  # a narrow terminal breaks between date and time
    for name in ("bars", "holes", "share", "no volume"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("sha256", no_wrap=True)
    for row in report.tickers:
        name = f"[red]✗ {row.ticker}[/red]" if row.problems else f"[green]✓ {row.ticker}[/green]"
        if not row.bars:
            table.add_row(name, *["–"] * 7)
            continue
        holes = ["–", "–"] if row.problems else [f"{row.holes:,}", f"{row.hole_share:.3%}"]
        table.add_row(
            name,
            stamp(row.first),
            stamp(row.last),
            f"{row.bars:,}",
            *holes,
            f"{row.zero_volume:,}",
            row.fingerprint[:8],
        )
    return table


def print_report(report: FolderReport, console: Console) -> None:
    """Print the tickers of a timeframe and the market that they form."""
    console.print(_ticker_table(report))
    strays = {row.ticker: row.strays for row in report.tickers if row.strays}
    if strays:
        listed = ", ".join(f"{ticker} {count:,}" for ticker, count in strays.items())
        console.print(
            f"note: open or close outside low … high in some bars: {listed}", soft_wrap=True
        )
    for row in report.tickers:
        if row.moves:
            time, factor = max(row.moves, key=lambda move: max(move[1], 1 / move[1]))
            print_line(
                console,
                f"note: {row.ticker}: {counted(len(row.moves), 'unusual move')}; the largest, in "
                f"the bar of {stamp(time)} UTC, is {factor - 1:+.1%}",
            )
        if row.jumps:
            print_line(
                console,
                f"[yellow]note: {row.ticker}: {counted(row.jumps, 'accepted jump')}[/yellow]",
            )
    bars = report.bars
    if bars is None:
        return
    print_line(
        console,
        f"together: {len(bars):,} bars × {len(bars.tickers)} tickers from {stamp(bars.time[0])} "
        f"to {stamp(bars.time[-1])} UTC{', SYNTHETIC' if bars.synthetic else ''}",
    )
    if report.outages:
        listed = ", ".join(f"{stamp(at)} ({count})" for at, count in report.outages[:8])
        rest = f" and {len(report.outages) - 8} more" if len(report.outages) > 8 else ""
        lost = sum(count for _, count in report.outages)
        print_line(
            console,
            f"outages of all tickers: {len(report.outages)}, {lost} bars in all: {listed}{rest}",
        )
    print_line(console, f"fingerprint: {bars.fingerprint}")


def print_line(console: Console, text: str) -> None:
    """Print a line that can be copied: not broken at the terminal's width, without highlighting."""
    console.print(text, soft_wrap=True, highlight=False)
