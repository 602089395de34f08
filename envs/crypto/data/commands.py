"""`sweepd data`: check, download, import or generate bars."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import pandas as pd
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from sweepd.envs.crypto.data.alpaca import ALPACA_URL, alpaca_source
from sweepd.envs.crypto.data.bar_files import file_name, find_files, read_bars, stamp
from sweepd.envs.crypto.data.bars import write_bars
from sweepd.envs.crypto.data.download import download as fetch
from sweepd.envs.crypto.data.importing.command import import_command
from sweepd.envs.crypto.data.jumps import ACCEPT_JUMPS
from sweepd.envs.crypto.data.report import print_line
from sweepd.envs.crypto.data.sources import CcxtSource, Source
from sweepd.envs.crypto.data.timeframe import DAY, SECONDS, has_hours
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.terminal import Terminal

DEFAULT_BASES = "AAVE,BCH,BTC,ETH,LINK,LTC,UNI"
_PLAIN_LINE_EVERY = 15.0  # seconds between progress lines if there is no terminal

DataDir = Annotated[
    Path, typer.Option("--data-dir", help="Folder of bar files (.parquet, .feather or .csv).")
]


def data_commands() -> typer.Typer:
    """Return the commands of `sweepd data`, but for `check`, see
    `sweepd.optimize.cli.check_bars`.
    """
    app = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode="markdown",
        help="Check, download, import or generate OHLCV bars: one file per ticker and timeframe, "
        "named like BTC_USDT-1h.parquet.",
    )
    for command in (download, demo):
        app.command()(command)
    app.command("import")(import_command)
    return app


def download(
    data_dir: DataDir = Path("data"),
    timeframe: Annotated[
        str,
        typer.Option(
            help=f"One of {' '.join(SECONDS)}; of shares, with their calendar: 1d-XNYS, 1h-XNYS."
        ),
    ] = "1h",
    tickers: Annotated[
        str,
        typer.Option(
            help="Comma-separated; a bare BTC means BTC/USD at Alpaca, BTC/USDT through ccxt."
        ),
    ] = DEFAULT_BASES,
    source: Annotated[
        Literal["alpaca", "ccxt"],
        typer.Option(
            help="alpaca: its public crypto history, without a key, and its US shares, with the "
            "keys of an account. ccxt: an exchange, see --exchange."
        ),
    ] = "alpaca",
    exchange: Annotated[
        str, typer.Option(help="With --source ccxt: the exchange's name in ccxt.")
    ] = "binance",
    start: Annotated[
        str | None,
        typer.Option(help="First day or time, UTC, e.g. 2023-01-01. Default: two years ago."),
    ] = None,
    end: Annotated[
        str | None, typer.Option(help="End (exclusive), UTC. Default: the last closed bar.")
    ] = None,
    url: Annotated[
        str, typer.Option(help="With --source alpaca: address of the API.")
    ] = ALPACA_URL,
    accept_jumps: Annotated[bool, typer.Option("--accept-jumps", help=ACCEPT_JUMPS)] = False,
) -> None:
    """Download bars, or update those already in the folder.

    Repeating the command continues after the last stored bar (and before the first one, if --start
    is earlier than before), also after an interruption. Requests to busy or failing servers are
    retried with increasing delays. Only closed bars are written, each file atomically, and a file
    is only continued from its own source.

    Exit code 2: bars look wrong, and `train` will refuse them; they are in the files, as the source
    gave them.
    """
    console = Terminal(markup=True)

    def notice(text: str) -> None:
        print_line(console, f"[yellow]{escape(text)}[/yellow]")

    if has_hours(timeframe) and tickers == DEFAULT_BASES:
        raise InputError(
            f"--tickers is needed with --timeframe {timeframe}: name the shares, such as AAPL,MSFT"
        )
    origin = _source(source, exchange, url, timeframe, notice)
    # A whole day, so that a repeated command asks for the same first bar.
    two_years_ago = (int(time.time()) // DAY - 730) * DAY
    first = two_years_ago if start is None else parse_time("--start", start)
    stop = None if end is None else parse_time("--end", end)
    with _progress(console) as on_progress:
        results = fetch(
            origin,
            data_dir,
            timeframe,
            split_list(tickers) or [],
            first,
            stop,
            accept_jumps=accept_jumps,
            on_progress=on_progress,
        )
    for result in results:
        odd = (
            f"; [yellow]{result.left_out} invalid bars left out[/yellow]" if result.left_out else ""
        )
        print_line(
            console,
            f"{result.ticker}: {result.new:,} new, {result.total:,} bars from "
            f"{stamp(result.first)} to {stamp(result.last)} UTC in "
            f"{escape(str(result.path))}{odd}",
        )
    problems = [sentence for result in results for sentence in result.problems]
    for sentence in problems:
        print_line(Terminal(markup=True, stderr=True), f"[red]error[/red] {escape(sentence)}")
    if problems:
        raise typer.Exit(2)
    chosen = f" --timeframe {timeframe}" if has_hours(timeframe) else ""
    print_line(console, f"next: sweepd data check --data-dir {escape(str(data_dir))}{chosen}")


def _source(
    name: str, exchange: str, url: str, timeframe: str, notice: Callable[[str], None]
) -> Source:
    if name == "alpaca":
        return alpaca_source(timeframe, url, notice=notice)
    if url != ALPACA_URL:
        raise InputError(
            f"--url {url}: only for --source alpaca; ccxt uses the exchange's own address"
        )
    return CcxtSource(exchange, notice=notice)


def demo(
    data_dir: DataDir = Path("data/demo"),
    timeframe: Annotated[
        str, typer.Option(help=f"One of {' '.join(SECONDS)}, or with a calendar: 1h-XNYS.")
    ] = "1h",
    seed: Annotated[
        int, typer.Option(min=0, help="The same seed gives the same market, to the bit.")
    ] = 0,
    assets: Annotated[int, typer.Option(min=1, max=50, help="Number of assets.")] = 5,
    bars: Annotated[
        int | None, typer.Option(min=1, help="Number of bars. Default: 24,000.")
    ] = None,
) -> None:
    """Write the demo market: SYNTHETIC bars with regimes, fat tails and a learnable pattern.

    For trying sweepd without a download. Results on it say nothing about real markets. The files
    are marked as synthetic and never mixed with real ones.
    """
    from sweepd.envs.crypto.data.demo_market import make_demo_market

    console = Terminal(markup=True)
    length = {} if bars is None else {"bars": bars}
    market = make_demo_market(seed, assets=assets, timeframe=timeframe, **length)
    _refuse_other_files(
        data_dir, {file_name(ticker, market.timeframe) for ticker in market.tickers}
    )
    write_bars(market, data_dir)
    print_line(
        console,
        f"[bold yellow]SYNTHETIC[/bold yellow] demo market: {len(market.tickers)} assets, "
        f"{len(market):,} {timeframe} bars from {stamp(market.time[0])} to "
        f"{stamp(market.time[-1])} UTC in {escape(str(data_dir))}",
    )
    print_line(console, f"fingerprint {market.fingerprint}")


def split_list(text: str | None) -> list[str] | None:
    """Split a comma-separated option; None stays None."""
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def parse_time(flag: str, text: str) -> int:
    """Return the seconds since the epoch of "2023-01-01", "2023-01-01 05:00", …; UTC if naive.

    Raises:
        InputError: it is not a date; the message names `flag`.
    """
    try:
        moment = pd.Timestamp(text)
        if pd.isna(moment):  # "", "NaT", …
            raise ValueError
        moment = moment.tz_localize("UTC") if moment.tzinfo is None else moment.tz_convert("UTC")
        return int(moment.timestamp())
    except (ValueError, OverflowError):
        raise InputError(
            f"{flag} {text!r}: not a date; write it like 2023-01-01 or 2023-01-01T05:00 (UTC)"
        ) from None


def _refuse_other_files(data_dir: Path, own: set[str]) -> None:
    """Refuse to replace any files but an older demo market of the same tickers.

    Raises:
        InputError: the folder has other files.
    """
    if not data_dir.exists():
        return
    for files in find_files(data_dir).values():
        for path in files.values():
            if path.name not in own or not read_bars(path).synthetic:
                raise InputError(
                    f"--data-dir {data_dir}: {path.name} is not part of this demo market; give an "
                    "empty folder"
                )


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[str, float], None]]:
    """Show progress: a bar with percentage and ETA per ticker on a terminal, else log lines."""
    if console.is_terminal:
        columns = (
            TextColumn("{task.description:<12}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console) as bars:
            tasks: dict[str, TaskID] = {}

            def show(ticker: str, fraction: float) -> None:
                if ticker not in tasks:
                    tasks[ticker] = bars.add_task(ticker, total=1.0)
                bars.update(tasks[ticker], completed=fraction)

            yield show
        return
    last = time.monotonic()

    def line(ticker: str, fraction: float) -> None:
        nonlocal last
        if fraction >= 1.0 or time.monotonic() - last > _PLAIN_LINE_EVERY:
            last = time.monotonic()
            console.print(f"{ticker}: {fraction:.0%}", highlight=False)

    yield line
