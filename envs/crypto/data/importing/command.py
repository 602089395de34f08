"""`sweepd data import`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from sweepd.envs.crypto.data.bar_files import stamp
from sweepd.envs.crypto.data.importing.adjusting import parse_adjustments
from sweepd.envs.crypto.data.importing.columns import parse_columns
from sweepd.envs.crypto.data.importing.folder import ImportFailed, import_bars
from sweepd.envs.crypto.data.importing.join import Joined
from sweepd.envs.crypto.data.importing.names import to_ticker
from sweepd.envs.crypto.data.importing.rows import Options, Taken
from sweepd.envs.crypto.data.importing.times import TimeOptions, check_zone
from sweepd.envs.crypto.data.jumps import ACCEPT_JUMPS
from sweepd.envs.crypto.data.report import print_line
from sweepd.envs.crypto.data.timeframe import SECONDS, bar_seconds
from sweepd.envs.support.errors import INTERRUPTED, InputError
from sweepd.envs.support.formatting import counted
from sweepd.envs.support.terminal import Terminal

_SHOWN = 6  # names in a list


def import_command(
    source: Annotated[
        Path,
        typer.Option(
            "--from", help="File (.csv, .txt, .json, .feather, .parquet, .zip, .gz) or folder."
        ),
    ],
    to: Annotated[Path, typer.Option(help="Folder of the bars.")] = Path("data"),
    ticker: Annotated[
        str | None,
        typer.Option(help="Ticker of all files, e.g. BTC/USDT. Default: from the files."),
    ] = None,
    timeframe: Annotated[
        str | None,
        typer.Option(
            help=f"One of {' '.join(SECONDS)}, or with a calendar: 1d-XNYS, 1h-XNYS. Default: the "
            "distance of the bars."
        ),
    ] = None,
    quote: Annotated[
        str, typer.Option(help="Currency of tickers that are not pairs, such as shares.")
    ] = "USD",
    timezone: Annotated[
        str | None,
        typer.Option(help="Time zone of times without one, e.g. America/New_York. Default: UTC."),
    ] = None,
    date_format: Annotated[
        str | None,
        typer.Option(help="Format of the dates, e.g. '%d/%m/%Y %H:%M'. Default: from the files."),
    ] = None,
    split: Annotated[
        list[str] | None,
        typer.Option(
            help="TICKER=TIME:FACTOR, e.g. AAPL/USD=2020-08-31:4: divide prices before this time "
            "(UTC) by the factor, and multiply volumes; may be repeated."
        ),
    ] = None,
    volume_unit: Annotated[
        list[str] | None,
        typer.Option(
            help="TICKER=TIME:FACTOR: multiply volumes before this time by the factor; may be "
            "repeated."
        ),
    ] = None,
    accept_jumps: Annotated[bool, typer.Option("--accept-jumps", help=ACCEPT_JUMPS)] = False,
    columns: Annotated[
        str | None,
        typer.Option(help="Columns by name or number, e.g. time=Zeit,close=5. Default: found."),
    ] = None,
) -> None:
    """Import bars of other programs: exchanges, data vendors, pandas, freqtrade.

    Known are the files of Binance (zip or csv, with and without header), Kraken,
    CryptoDataDownload, Yahoo Finance, freqtrade (feather, json) and MetaTrader, and any table with
    a header. Separators, headers, units of time, the order of rows and of dates are read from the
    files; the output shows what each column was taken for. What could mean two things is refused,
    with the flag that decides it. So are prices that jump and return, splits that are not adjusted,
    and volumes that change their unit.

    Files of one ticker are joined, also with those of an earlier import. Either all files are
    imported, or none is written.
    """
    console, errors = Terminal(markup=True), Terminal(markup=True, stderr=True)
    if not console.is_terminal:
        console = Terminal(markup=True, width=120)  # pipes and logs have no width
    options = dataclasses.replace(
        _options(ticker, timeframe, quote, timezone, date_format, columns),
        adjustments=parse_adjustments("split", split or (), quote)
        + parse_adjustments("volume-unit", volume_unit or (), quote),
        accept_jumps=accept_jumps,
    )
    try:
        with console.status("reading …") as status:
            imported = import_bars(
                source,
                to,
                options,
                on_file=lambda name, done: status.update(f"reading {done:.0%} {escape(name)}"),
            )
    except ImportFailed as failed:
        for sentence in failed.reasons:
            print_line(errors, f"[red]error[/red] {escape(sentence)}")
        print_line(errors, "nothing was written")
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        print_line(errors, "interrupted; nothing was written")
        raise typer.Exit(INTERRUPTED) from None
    _print_taken(imported.taken, console)
    for joined, path in imported.tickers:
        print_line(console, _line(joined, path))
    if imported.ignored:
        print_line(console, f"ignored: {_listed(imported.ignored)}")
    if timeframe is None and any(joined.sessions for joined, _ in imported.tickers):
        print_line(
            console,
            "no bar is of a Saturday or Sunday: a market with hours, whose calendar is part of the "
            "timeframe (1d-XNYS is New York's)",
        )
        timeframe = "1d-XNYS"
    chosen = f" --timeframe {timeframe}" if timeframe else ""
    print_line(console, f"next: sweepd data check --data-dir {escape(str(to))}{chosen}")


def _options(
    ticker: str | None,
    timeframe: str | None,
    quote: str,
    timezone: str | None,
    date_format: str | None,
    columns: str | None,
) -> Options:
    if timeframe is not None:
        bar_seconds(timeframe)
    if not (quote.isascii() and quote.isalnum()):
        raise InputError(f"--quote {quote!r}: not a currency; write it like USD")
    if ticker is not None and to_ticker(ticker, quote) is None:
        raise InputError(f"--ticker {ticker!r}: not a ticker; write it like BTC/USDT or AAPL")
    if timezone is not None:
        check_zone(timezone)
    return Options(
        ticker, timeframe, quote.upper(), parse_columns(columns), TimeOptions(timezone, date_format)
    )


def _print_taken(taken: Sequence[Taken], console: Console) -> None:
    """Show what columns were taken for, once for all files of one layout."""
    kinds: dict[tuple[object, ...], list[Taken]] = {}
    for one in taken:
        kinds.setdefault(one.kind, []).append(one)
    for alike in kinds.values():
        first = alike[0]
        others = f" and {counted(len(alike) - 1, 'other')} like it" if len(alike) > 1 else ""
        grid = Grid(
            title=f"{escape(first.source)}{others}",
            title_justify="left",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            collapse_padding=True,
        )
        for name in ("column", "taken for", "first row"):
            grid.add_column(name)
        for name, meaning, cell in first.columns:
            style = "dim" if meaning == "not used" else None
            grid.add_row(escape(name), meaning, escape(cell), style=style)
        console.print(grid)
        volume = any(column[1] == "volume" for column in first.columns)
        absent = "" if volume else "; no volume in the file: written as 0"
        print_line(console, escape(f"{first.layout}; {first.order}; time: {first.times}{absent}\n"))


def _line(joined: Joined, path: Path) -> str:
    bars = joined.bars
    left_out = [
        f"{count:,} {what}"
        for count, what in (
            (joined.repeated, "repeated"),
            (joined.invalid, "without valid prices"),
            (joined.open, "not closed yet"),
        )
        if count
    ]
    notes = f"; [yellow]left out: {', '.join(left_out)}[/yellow]" if left_out else ""
    notes += f"; [yellow]accepted jumps: {joined.accepted:,}[/yellow]" if joined.accepted else ""
    files = f" of {joined.files} files" if joined.files > 1 else ""
    return (
        f"{bars.ticker}: {len(bars.time):,} bars of {bars.timeframe}{files} from "
        f"{stamp(bars.time[0])} to {stamp(bars.time[-1])} UTC in {escape(str(path))}{notes}"
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(escape(name) for name in names[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
