"""Import of a file or folder: all of it, or nothing."""

from __future__ import annotations

import dataclasses
import signal
import threading
import time as clock
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from sweepd.envs.crypto.data.bar_files import TickerBars, file_name, find_files, write_file
from sweepd.envs.crypto.data.importing.adjusting import Adjustment, adjust, adjustments_of
from sweepd.envs.crypto.data.importing.join import Joined, join, timeframe_of
from sweepd.envs.crypto.data.importing.names import is_other_bars
from sweepd.envs.crypto.data.importing.rows import Options, Rows, Taken, read_rows
from sweepd.envs.crypto.data.importing.tables import SUFFIXES, read_tables
from sweepd.envs.crypto.data.importing.times import Times
from sweepd.envs.crypto.data.jumps import jump_problems, with_accepted
from sweepd.envs.crypto.data.problems import read_valid_bars
from sweepd.envs.crypto.data.timeframe import bar_length
from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.files import sync_folder

SOURCE = "import"  # in the metadata of the files


@dataclass(frozen=True)
class Imported:
    """What an import did.

    Attributes:
        taken: what each table was taken for.
        tickers: the bars, and the file that was written, of each ticker and timeframe.
        ignored: files that hold no bars of spot prices, by name.
    """

    taken: tuple[Taken, ...]
    tickers: tuple[tuple[Joined, Path], ...]
    ignored: tuple[str, ...]


class ImportFailed(InputError):
    """Files could not be imported. reasons: one sentence for each."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = tuple(reasons)


def import_bars(
    source: Path,
    to: Path,
    options: Options,
    *,
    now: float | None = None,
    on_file: Callable[[str, float], None] = lambda _name, _fraction: None,
) -> Imported:
    """Read bars of other programs and write them as files of sweepd.

    Bars of a ticker that several files hold are joined, also with those of an earlier import. No
    file is written unless all can be.

    Args:
        source: a file, or a folder, which is searched with all folders in it.
        to: folder of the bars.
        options: what the user said about the files.
        now: seconds since the epoch, to leave out open bars; by default the current time.
        on_file: called with the name of each file and the fraction of files read, 0 … 1.

    Raises:
        ImportFailed: files cannot be read, or are ambiguous.
        InputError: there are no files, or `to` has bars of another source.
        RunError: a file cannot be written.
    """
    now = clock.time() if now is None else now
    paths, ignored = _files(source, to)
    parts: dict[str, list[Rows]] = {}
    taken: list[Taken] = []
    reasons: list[str] = []
    for number, path in enumerate(paths):
        on_file(path.name, number / len(paths))
        try:
            for table in read_tables(path):
                rows, shown = read_rows(table, options)
                taken.append(shown)
                for part in rows:
                    parts.setdefault(part.ticker, []).append(part)
        except InputError as error:
            reasons.append(str(error))
    on_file("", 1.0)
    if reasons:
        raise ImportFailed(reasons)
    joined: list[tuple[Joined, Path]] = []
    for ticker in sorted(parts):
        try:
            joined += _ticker(parts[ticker], to, now, options)
        except ImportFailed as error:
            reasons += error.reasons
        except InputError as error:
            reasons.append(str(error))
    if reasons:
        raise ImportFailed(reasons)
    _refuse_unused(options, set(parts))
    _write(joined, to)
    return Imported(tuple(taken), tuple(joined), tuple(ignored))


def _files(source: Path, to: Path) -> tuple[list[Path], list[str]]:
    """Return the files to read, and the names of those to leave alone."""
    if not source.exists():
        raise InputError(f"--from {source}: no such file or folder")
    if to.exists() and not to.is_dir():
        raise InputError(f"--to {to}: this is a file; give a folder")
    if not source.is_dir():
        if source.suffix.lower() not in SUFFIXES:
            raise InputError(
                f"--from {source}: not a file of bars; those end in {', '.join(SUFFIXES)}"
            )
        return [source], []
    if to.resolve().is_relative_to(source.resolve()):
        raise InputError(
            f"--to {to}: lies in --from {source}, and its files would be imported again; give "
            "another folder"
        )
    read: list[Path] = []
    ignored: list[Path] = []
    for path in sorted(path for path in source.rglob("*") if path.is_file()):
        stem = path.name.split(".")[0]
        known = path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
        (read if known and not is_other_bars(stem) else ignored).append(path)
    if not read:
        raise InputError(
            f"--from {source}: no files of bars in it; those end in {', '.join(SUFFIXES)}"
        )
    return read, [path.name for path in ignored]


def _refuse_unused(options: Options, tickers: set[str]) -> None:
    for one in options.adjustments:
        if one.ticker is not None and one.ticker not in tickers:
            raise InputError(
                f"--{one.kind} {one.ticker}: not among the imported tickers, "
                f"{', '.join(sorted(tickers))}"
            )


def _ticker(parts: list[Rows], to: Path, now: float, options: Options) -> list[tuple[Joined, Path]]:
    """Join the files of one ticker: those of each timeframe."""
    groups: dict[str, list[Rows]] = {}
    # Files of one bar have no distance of their own: they belong to those that have.
    named = {rows.timeframe for rows in parts if rows.timeframe is not None}
    if any(len(rows.values) < 2 and rows.timeframe is None for rows in parts) and not named:
        groups[timeframe_of(parts)] = parts
    else:
        for rows in parts:
            short = len(rows.values) < 2 and rows.timeframe is None and len(named) == 1
            timeframe = next(iter(named)) if short else None
            groups.setdefault(timeframe or rows.timeframe or timeframe_of([rows]), []).append(rows)
    made = []
    for timeframe, rows_of in groups.items():
        timeframe_of(rows_of)  # raises InputError if the name says something else than the bars
        path = to / file_name(rows_of[0].ticker, timeframe)
        earlier = _earlier(path, to, rows_of[0].ticker, timeframe, now)
        made.append((_joined(rows_of, earlier, timeframe, now, options), path))
    return made


def _adjusted(rows: Rows, adjustments: Sequence[Adjustment]) -> Rows:
    values = adjust(rows.times.seconds, rows.values, adjustments)
    return dataclasses.replace(rows, values=values)


def _joined(
    rows: list[Rows], earlier: TickerBars | None, timeframe: str, now: float, options: Options
) -> Joined:
    """Join a ticker's rows with its earlier bars, adjust them and check them for jumps."""
    ticker = rows[0].ticker
    asked = [one for one in options.adjustments if one.ticker in (None, ticker)]
    metadata = {} if earlier is None else dict(earlier.metadata)
    done = adjustments_of(metadata.get("adjusted", ""))
    known = {one.record for one in done}
    new = [one for one in asked if one.record not in known]
    # Earlier bars are adjusted already for what their file records; the new ones are not.
    parts = [_adjusted(part, [*done, *new]) for part in rows]
    if earlier is not None:
        times = Times(earlier.time, earlier.time, earlier.time != earlier.time, "")
        own = Rows(str(earlier.path), ticker, timeframe, times, earlier.values)
        parts = [_adjusted(own, new), *parts]
    made = join(parts, timeframe, now)
    if done or new:
        metadata["adjusted"] = " ".join(one.record for one in (*done, *new))
    bars = dataclasses.replace(made.bars, metadata=metadata | {"source": SOURCE})
    if options.accept_jumps:
        bars = with_accepted(bars)

    def place(row: int) -> str:
        part, line = made.origin[row].tolist()
        return f"{parts[part].source}: row {line}"

    sentences = list(jump_problems(bars, "sweepd data import …", place))
    if sentences:
        raise ImportFailed(sentences)
    return dataclasses.replace(made, bars=bars, accepted=len(bars.accepted))


def _earlier(path: Path, to: Path, ticker: str, timeframe: str, now: float) -> TickerBars | None:
    """Return the bars of an earlier import."""
    there = find_files(to).get(bar_length(timeframe), {}).get(ticker) if to.exists() else None
    if there is None:
        return None
    bars = read_valid_bars(there, now, accept_jumps=True)
    origin = bars.metadata.get("source") if there == path else None
    if origin != SOURCE:
        raise InputError(
            f"{there}: comes from {origin or 'another program'}; bars of two sources are not "
            "joined: give another --to"
        )
    return dataclasses.replace(bars, timeframe=timeframe)


def _write(joined: list[tuple[Joined, Path]], to: Path) -> None:
    """Write all files, or none: they are written in a hidden folder and then renamed.

    Ctrl-C is ignored from the first renaming on: files that have begun to appear appear completely.
    """
    existed = to.exists()
    with ExitStack() as ignoring:
        try:
            to.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(prefix=".import-", dir=to) as hidden:
                renames = []
                for number, (one, path) in enumerate(joined):
                    new = Path(hidden) / f"{number}{path.suffix}"
                    write_file(new, one.bars.time, one.bars.values, one.bars.metadata)
                    renames.append((new, path))
                ignoring.enter_context(_without_interrupts())
                for new, path in renames:
                    new.replace(path)
                sync_folder(to)
        except OSError as error:
            raise RunError(f"{to}: cannot be written ({error.strerror or error})") from None
        finally:
            if not existed:
                with suppress(OSError):  # not empty, or never made
                    to.rmdir()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Return a context that ignores Ctrl-C, which interrupts the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
