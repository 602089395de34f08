"""Files of other programs as tables: separators, headers, archives, text encodings.

Nothing is decided here about what a column means, see `columns`.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.csv

from sweepd.envs.crypto.data.expanding import Budget, read_feather, read_parquet, read_stream
from sweepd.envs.support.errors import InputError

SUFFIXES = (".csv", ".txt", ".json", ".feather", ".parquet", ".zip", ".gz")
_TEXT = (".csv", ".txt", ".json")  # what an archive may hold
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_HEAD_BYTES = 1 << 16
_HEAD_LINES = 60
_PRICES = 4  # a row of data has at least as many numbers
_EMPTY = ["", "null", "NULL", "NaN", "nan", "None", "NA", "N/A", "-"]

_NUMBER = re.compile(r"\s*-?[\d.,' ]*\d(?:[eE][+-]?\d+)?\s*[KMB%]?\s*")


@dataclass(frozen=True, eq=False)
class Table:
    """The columns of one file.

    Attributes:
        source: the file, or the archive and its member, for messages.
        stem: the file's name without suffixes, from which ticker and timeframe may be read.
        layout: how the file is written, in words.
        names: names of the columns; None without a header.
        columns: of equal length. Cells of text files are strings, and null where they are empty.
        symbol: the ticker named above the columns (yfinance writes it), or None.
    """

    source: str
    stem: str
    layout: str
    names: tuple[str, ...] | None
    columns: tuple[pa.ChunkedArray, ...]
    symbol: str | None = None

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return len(self.columns[0]) if self.columns else 0

    def label(self, column: int) -> str:
        """Return a column's name in messages: its header, or its number counted from 1."""
        name = "" if self.names is None else self.names[column]
        return name or f"column {column + 1}"


def read_tables(path: Path) -> Iterator[Table]:
    """Yield the table of a file, or those of an archive's members.

    Raises:
        InputError: the file cannot be read, or is not a table of numbers.
    """
    try:
        if path.suffix == ".zip":
            yield from _archived(path)
        elif path.suffix == ".gz":
            name = path.name.removesuffix(".gz")
            with gzip.open(path) as stream:
                data = read_stream(stream, Budget(path))
            yield _text(str(path), name, data)
        elif path.suffix == ".feather":
            yield _typed(path, read_feather(path))
        elif path.suffix == ".parquet":
            yield _typed(path, read_parquet(path))
        else:
            yield _text(str(path), path.name, path.read_bytes())
    # NotImplementedError, RuntimeError: compression or encryption that zipfile does not know.
    except (
        pa.ArrowException,
        OSError,
        EOFError,
        UnicodeError,
        zlib.error,
        zipfile.BadZipFile,
        NotImplementedError,
        RuntimeError,
    ) as error:
        raise InputError(f"{path}: cannot be read ({_first_line(error)}); copy it again") from None
    except MemoryError:
        raise InputError(
            f"{path}: does not fit in the memory; divide it into smaller files"
        ) from None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _archived(path: Path) -> Iterator[Table]:
    budget = Budget(path)
    with zipfile.ZipFile(path) as archive:
        members = [
            name
            for name in sorted(archive.namelist())
            if PurePosixPath(name).suffix.lower() in _TEXT and "__MACOSX" not in name
        ]
        if not members:
            raise InputError(f"{path}: holds no .csv, .txt or .json file")
        for name in members:
            # The archive alone is named where it holds one file, as Binance's do.
            source = str(path) if len(members) == 1 else f"{path}: {name}"
            # zipfile expands what it reads of other methods as a whole.
            if archive.getinfo(name).compress_type not in (
                zipfile.ZIP_STORED,
                zipfile.ZIP_DEFLATED,
            ):
                raise InputError(f"{source}: is not compressed by deflate; write the archive again")
            with archive.open(name) as stream:
                data = read_stream(stream, budget)
            yield _text(source, PurePosixPath(name).name, data)


def _stem(name: str) -> str:
    return re.sub(r"(\.(csv|txt|json|feather|parquet|zip|gz))+$", "", name, flags=re.IGNORECASE)


def _typed(path: Path, table: pa.Table) -> Table:
    return Table(
        source=str(path),
        stem=_stem(path.name),
        layout=path.suffix[1:],
        names=tuple(table.column_names),
        columns=tuple(table.columns),
    )


def _text(source: str, name: str, data: bytes) -> Table:
    stem = _stem(name)
    if PurePosixPath(name).suffix.lower() == ".json":
        return _json(source, stem, data)
    return _csv(source, stem, _utf8(data))


def _utf8(data: bytes) -> bytes:
    """Return text as UTF-8 without a byte order mark."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", errors="replace").encode()
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1").encode()
    return data


# ---- JSON ----


def _json(source: str, stem: str, data: bytes) -> Table:
    """Read rows as lists (freqtrade, ccxt, Binance's API) or as objects (pandas' records)."""
    try:
        rows = json.loads(data)
    except ValueError as error:
        raise InputError(f"{source}: is not JSON ({_first_line(error)}); copy it again") from None
    if isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows):
        names = tuple(dict.fromkeys(name for row in rows for name in row))
        cells = [[row.get(name) for name in names] for row in rows]
        return Table(source, stem, "json, rows as objects", names, _columns(source, cells))
    width = len(rows[0]) if isinstance(rows, list) and rows and isinstance(rows[0], list) else 0
    if not width or not all(isinstance(row, list) and len(row) == width for row in rows):
        raise InputError(
            f"{source}: must hold a list of rows, each a list like "
            "[1704067200000, open, high, low, close, volume] or an object"
        )
    return Table(source, stem, "json, rows as lists", None, _columns(source, rows))


def _columns(source: str, rows: Sequence[Sequence[Any]]) -> tuple[pa.ChunkedArray, ...]:
    made = []
    for cells in zip(*rows, strict=True):
        # Numbers stay numbers; a column that mixes them with text is read as text.
        if any(isinstance(cell, str) for cell in cells):
            cells = tuple(None if cell is None else str(cell) for cell in cells)
        elif any(isinstance(cell, float) for cell in cells):
            cells = tuple(None if cell is None else float(cell) for cell in cells)
        try:
            made.append(pa.chunked_array([pa.array(cells)]))
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            raise InputError(f"{source}: holds cells that are no numbers or text") from None
    return tuple(made)


# ---- text with separators ----


def _csv(source: str, stem: str, data: bytes) -> Table:
    head = data[:_HEAD_BYTES].split(b"\n")
    if len(data) > _HEAD_BYTES:
        head = head[:-1]  # cut in the middle of a line
    lines = [line.decode(errors="replace").rstrip("\r") for line in head[:_HEAD_LINES]]
    separator, start = _first_row(source, lines)
    width = len(_split(lines[start], separator))
    above = [
        cells
        for cells in (_split(line, separator) for line in lines[:start])
        if len(cells) in (width, width - 1) and any(cells)
    ]
    table = pyarrow.csv.read_csv(
        io.BytesIO(data.split(b"\n", start)[-1]),
        pyarrow.csv.ReadOptions(use_threads=False, column_names=[str(i) for i in range(width)]),
        pyarrow.csv.ParseOptions(delimiter=separator),
        pyarrow.csv.ConvertOptions(
            column_types={str(i): pa.string() for i in range(width)},
            null_values=_EMPTY,
            strings_can_be_null=True,
        ),
    )
    columns = tuple(table.columns)
    # A separator at the end of every row makes an empty last column.
    if columns[-1].null_count == len(columns[-1]):
        columns = columns[:-1]
    names, symbol = _header(source, above, len(columns))
    header = "no header" if names is None else "header"
    layout = f"{_SEPARATORS[separator]} between columns, {header}"
    return Table(source, stem, layout, names, columns, symbol)


def _split(line: str, separator: str) -> list[str]:
    return [cell.strip() for cell in next(csv.reader([line], delimiter=separator), [])]


def _first_row(source: str, lines: Sequence[str]) -> tuple[str, int]:
    """Return the separator, and the number of the first line of data."""
    found = []
    for separator in _SEPARATORS:
        for number, line in enumerate(lines):
            cells = _split(line, separator)
            numbers = sum(_NUMBER.fullmatch(cell) is not None for cell in cells)
            if numbers >= _PRICES and len(cells) > _PRICES and not _counted(cells):
                found.append((number, -numbers, separator))
                break
    if not found:
        raise InputError(
            f"{source}: no row of a time and prices among its first lines; expected text like "
            "2024-01-01 00:00,42283.58,42554.57,42261.02,42475.23,1271.68"
        )
    start, _, separator = min(found)
    return separator, start


def _counted(cells: Sequence[str]) -> bool:
    """Return whether these are pandas' names of unnamed columns: 0, 1, 2, …"""
    numbers = [cell for cell in cells if cell]
    return numbers == [str(i) for i in range(len(numbers))]


def _header(
    source: str, above: Sequence[list[str]], width: int
) -> tuple[tuple[str, ...] | None, str | None]:
    """Return the columns' names (None if they have none), and the symbol named in a row."""
    symbol = None
    rows = []
    for cells in above:
        if cells[0].lower() == "ticker":
            symbols = {cell for cell in cells[1:] if cell}
            if len(symbols) > 1:
                raise InputError(
                    f"{source}: has the columns of several tickers side by side "
                    f"({', '.join(sorted(symbols)[:5])}); write one file per ticker"
                )
            symbol = next(iter(symbols), None)
        elif not _counted(cells):
            rows.append(cells)
    if not rows:
        return None, symbol
    names = max(rows, key=lambda cells: sum(map(bool, cells)))
    if symbol is not None:  # yfinance: the first column is named in a row of its own
        names = [next((cells[0] for cells in rows if cells is not names), names[0]), *names[1:]]
    # pandas before 0.20 and R leave out the name of the index.
    names = ["", *names] if len(names) == width - 1 else names[:width]
    return tuple(names), symbol
