"""Bar files: names, columns, reading and writing.

Rows are counted from 0, as in pandas and NumPy, and reported with their date.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from sweepd.envs.crypto.data.expanding import read_feather, read_parquet
from sweepd.envs.crypto.data.timeframe import SECONDS, bar_length
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.files import write_atomic

PRICES = ("open", "high", "low", "close")
COLUMNS = ("date", *PRICES, "volume")
_METADATA_PREFIX = "sweepd:"

_NAME = re.compile(
    r"(?P<base>[A-Za-z0-9]+)_(?P<quote>[A-Za-z0-9]+)-(?P<timeframe>\d+[mhd])\.(feather|parquet|csv)"
)
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@dataclass(frozen=True, eq=False)
class TickerBars:
    """The bars of one ticker as in its file, without holes.

    Attributes:
        path: the file.
        ticker: "BTC/USDT".
        timeframe: the length from the file's name, and the calendar that the user named.
        time: (n,) int64, opening times in seconds since the epoch, UTC.
        values: (n, 5) float64: open, high, low, close, volume.
        subsecond: rows whose timestamp is not a whole second.
        metadata: what `write_file` was given: "synthetic" ("true"), "source" and "asked_from" of a
            download, "adjusted" of an import, and "accepted_jumps". Empty for files of other
            programs.
    """

    path: Path
    ticker: str
    timeframe: str
    time: np.ndarray
    values: np.ndarray
    subsecond: np.ndarray
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def synthetic(self) -> bool:
        """Whether the bars are generated."""
        return self.metadata.get("synthetic") == "true"

    @property
    def accepted(self) -> frozenset[int]:
        """Times of the jumps that the user accepted, see `jumps`."""
        times = self.metadata.get("accepted_jumps", "").split()
        return frozenset(int(time) for time in times if time.isdecimal())


def stamp(seconds: int) -> str:
    """Format a bar's time, e.g. "2024-01-01 05:00" (UTC)."""
    try:
        return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError, OSError):
        return f"{int(seconds)} s after 1970"


def file_name(ticker: str, timeframe: str, suffix: str = "parquet") -> str:
    """Return freqtrade's file name: ("BTC/USDT", "1h") gives "BTC_USDT-1h.parquet".

    A calendar is not part of it.
    """
    return f"{ticker.replace('/', '_')}-{bar_length(timeframe)}.{suffix}"


def find_files(data_dir: Path) -> dict[str, dict[str, Path]]:
    """Find the bar files of a folder. Files with other names are ignored.

    Returns:
        timeframe → ticker → path; timeframes and tickers sorted.

    Raises:
        InputError: the folder does not exist or cannot be read, or two files have the same ticker
            and timeframe.
    """
    if not data_dir.exists():
        raise InputError(
            f"--data-dir {data_dir}: no such folder; fill one with `sweepd data download` or "
            "`sweepd data demo`"
        )
    if not data_dir.is_dir():
        raise InputError(
            f"--data-dir {data_dir}: this is a file; give the folder of files like "
            "BTC_USDT-1h.feather"
        )
    found: dict[str, dict[str, Path]] = {}
    try:
        paths = sorted(data_dir.iterdir())
    except OSError as error:
        raise InputError(
            f"--data-dir {data_dir}: {error.strerror}; give a folder that you may read"
        ) from None
    for path in paths:
        match = _NAME.fullmatch(path.name)
        if match is None or match["timeframe"] not in SECONDS or not path.is_file():
            continue
        ticker = f"{match['base']}/{match['quote']}".upper()
        files = found.setdefault(match["timeframe"], {})
        if ticker in files:
            raise InputError(
                f"--data-dir {data_dir}: {files[ticker].name} and {path.name} both hold {ticker}; "
                "keep one of them"
            )
        files[ticker] = path
    return {
        timeframe: dict(sorted(found[timeframe].items()))
        for timeframe in sorted(found, key=lambda name: SECONDS[name])
    }


def files_of(data_dir: Path, timeframe: str) -> dict[str, Path]:
    """Return ticker → path of one timeframe, sorted by ticker.

    Raises:
        InputError: the folder has no bars of this timeframe.
    """
    length = bar_length(timeframe)
    found = find_files(data_dir)
    if not found:
        raise InputError(
            f"--data-dir {data_dir}: no bar files here; expected names like "
            f"{file_name('BTC/USDT', timeframe, 'feather')} (.feather, .parquet or .csv)"
        )
    if length not in found:
        raise InputError(
            f"--timeframe {timeframe}: {data_dir} has no such bars, only {', '.join(found)}"
        )
    return found[length]


def select_files(data_dir: Path, timeframe: str, tickers: Sequence[str] | None) -> dict[str, Path]:
    """Return ticker → path in the order of `tickers`; None selects all, sorted.

    Raises:
        InputError: as `files_of` and `resolve_tickers`.
    """
    files = files_of(data_dir, timeframe)
    if tickers is None:
        return files
    return {name: files[name] for name in resolve_tickers(tickers, tuple(files), str(data_dir))}


def resolve_tickers(asked: Sequence[str], available: Sequence[str], where: str) -> tuple[str, ...]:
    """Return full ticker names in the order asked.

    Args:
        asked: names such as "BTC/USDT", "btc_usdt", "BTC-USDT", or "BTC" if unique.
        available: full names of all tickers.
        where: where they are, for messages.

    Raises:
        InputError: a name is unknown, ambiguous or repeated, or the list is empty.
    """
    resolved: list[str] = []
    for text in asked:
        name = re.sub(r"[_\-]", "/", text.strip().upper())
        matches = [ticker for ticker in available if name in (ticker, ticker.split("/")[0])]
        if not matches:
            bases = {ticker.split("/")[0]: ticker for ticker in available}
            near = get_close_matches(name, available, 1) or get_close_matches(
                name.split("/")[0], bases, 1
            )
            hint = f"did you mean {bases.get(near[0], near[0])}? " if near else ""
            raise InputError(
                f"--tickers {text!r}: not in {where}; {hint}there are {', '.join(available)}"
            )
        if len(matches) > 1:
            raise InputError(
                f"--tickers {text!r}: could be any of {', '.join(matches)}; write which one"
            )
        if matches[0] in resolved:
            raise InputError(
                f"--tickers {text!r}: {matches[0]} is named twice; name each ticker once"
            )
        resolved.append(matches[0])
    if not resolved:
        raise InputError(f"--tickers is empty; name at least one of {', '.join(available)}")
    return tuple(resolved)


def read_bars(path: Path, timeframe: str | None = None) -> TickerBars:
    """Read one file (feather, parquet or csv). `problems.file_problems` checks the values.

    Args:
        path: the file.
        timeframe: of the bars, with its calendar; by default the length in the file's name.

    Raises:
        InputError: the file cannot be read, has no rows, lacks a column, or has text in a numeric
            column.
    """
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise InputError(
            f"{path}: not the name of a bar file; expected one like BTC_USDT-1h.feather"
        )
    try:
        if path.suffix == ".feather":
            table = read_feather(path)
        elif path.suffix == ".parquet":
            table = read_parquet(path)
        else:
            table = pyarrow.csv.read_csv(path, pyarrow.csv.ReadOptions(use_threads=False))
        names = table.column_names
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise InputError(
            f"{path}: cannot be read as {path.suffix[1:]} ({reason}); download or copy it again"
        ) from None
    missing = [name for name in COLUMNS if names.count(name) != 1]
    if missing:
        raise InputError(
            f"{path}: needs the columns {', '.join(COLUMNS)} once each; {', '.join(missing)} "
            f"missing or repeated among {', '.join(names[:12])}"
        )
    if table.num_rows == 0:
        raise InputError(f"{path}: holds no bars; download it again or remove it")
    time, subsecond = _seconds(path, table.column("date"))
    values = np.stack([_numbers(path, table.column(name), name) for name in COLUMNS[1:]], axis=1)
    return TickerBars(
        path=path,
        ticker=f"{match['base']}/{match['quote']}".upper(),
        timeframe=timeframe or match["timeframe"],
        time=time,
        values=values,
        subsecond=subsecond,
        metadata=_own_metadata(table.schema.metadata or {}),
    )


def _own_metadata(metadata: Mapping[bytes, bytes]) -> dict[str, str]:
    texts = {
        key.decode(errors="replace"): value.decode(errors="replace")
        for key, value in metadata.items()
    }
    return {
        key.removeprefix(_METADATA_PREFIX): text
        for key, text in texts.items()
        if key.startswith(_METADATA_PREFIX)
    }


def _seconds(path: Path, column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Return (n,) int64 seconds, and the rows with fractions of a second.

    Naive dates are UTC; integers count s, ms, µs or ns since the epoch.
    """
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy())[0])
        raise InputError(f"{path}: row {row}: date is empty; every bar needs its opening time")
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("s"))
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        row, value = _first_unparsed(column, pa.timestamp("ns", "UTC"))
        raise InputError(
            f"{path}: row {row}: date is {value!r}; write dates like 2024-01-01 05:00:00+00:00"
        )
    if pa.types.is_timestamp(column.type):
        unit = _UNITS[column.type.unit]
        raw = column.cast(pa.int64()).to_numpy()
    elif pa.types.is_integer(column.type):
        raw = column.cast(pa.int64()).to_numpy()
        # ccxt and freqtrade's JSON files have milliseconds. The units are told apart by size.
        unit = next(
            (factor for factor in _UNITS.values() if abs(int(raw[0])) < 10**11 * factor),
            _UNITS["ns"],
        )
    else:
        raise InputError(f"{path}: the date column holds {column.type}; it must hold dates (UTC)")
    time, rest = np.divmod(raw, unit)
    return time.astype(np.int64), np.flatnonzero(rest)


def _numbers(path: Path, column: pa.ChunkedArray, name: str) -> np.ndarray:
    """Return (n,) float64. Empty cells become NaN, which `file_problems` reports."""
    try:
        return np.asarray(column.cast(pa.float64()).to_numpy(), dtype=np.float64)
    except pa.ArrowException:
        row, value = _first_unparsed(column, pa.float64())
        raise InputError(f"{path}: row {row}: {name} is {value!r}; it must be a number") from None


def _first_unparsed(column: pa.ChunkedArray, kind: pa.DataType) -> tuple[int, object]:
    for row, value in enumerate(column):
        try:
            pc.cast(value, kind)
        except pa.ArrowException:
            return row, value.as_py()
    # Each cell parses on its own, so the column mixes two formats; report the first row.
    return 0, column[0].as_py()


def write_file(
    path: Path, time: np.ndarray, values: np.ndarray, metadata: Mapping[str, str] | None = None
) -> None:
    """Write one ticker's bars as parquet, atomically.

    Args:
        path: the file.
        time: (n,) int64, seconds UTC.
        values: (n, 5) float64: open, high, low, close, volume.
        metadata: stored in the file, see `TickerBars`.
    """
    columns = [
        pa.array(time * 10**6, pa.timestamp("us", "UTC")),
        *(pa.array(values[:, i]) for i in range(5)),
    ]
    own = {_METADATA_PREFIX + key: text for key, text in (metadata or {}).items()}
    table = pa.table(columns, names=list(COLUMNS)).replace_schema_metadata(own or None)
    write_atomic(
        path, lambda temporary: pyarrow.parquet.write_table(table, temporary, compression="zstd")
    )
