"""Opening times of bars from columns of any format, as seconds UTC.

A column has one format, and it must be told from the column itself: dates that are valid both with
the day and with the month first are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sweepd.envs.crypto.data.timeframe import DAY
from sweepd.envs.support.errors import InputError

_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_UNIT_NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_LARGEST_SECONDS = 10**11  # a number of seconds below it is before the year 5138

# Dates of three numbers, an optional clock time ("11-PM" is CryptoDataDownload's) and an optional
# offset. The names of the groups are read by `_parts`.
_DATE = (
    r"^\s*(?P<a>\d{1,4})[-/.](?P<b>\d{1,2})[-/.](?P<c>\d{1,4})"
    r"(?:[T\s,]+(?P<h>\d{1,2})(?::(?P<m>\d{2})(?::(?P<s>\d{2})(?:[.,](?P<f>\d+))?)?)?"
    r"(?:[\s\-]*(?P<p>[AaPp][Mm]))?)?"
    r"\s*(?P<z>Z|(?:UTC|GMT)?(?:[+-]\d{2}(?::?\d{2})?)?)\s*$"
)
_COMPACT = {8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
_COMPACT_TEXT = re.compile(r"\s*\d{8} \d{4}(\d{2})?\s*")  # HistData: 20240101 170000

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Times:
    """A column of times.

    Attributes:
        seconds: (n,) int64, UTC.
        wall: (n,) int64, the clock on the wall in the column's own zone, as seconds since 1970.
        fraction: (n,) bool, rows that are not a whole second.
        format: how the column was read, in words.
    """

    seconds: Ints
    wall: Ints
    fraction: NDArray[np.bool_]
    format: str


@dataclass(frozen=True)
class TimeOptions:
    """What the user said about times.

    Attributes:
        zone: IANA name of the time zone, such as America/New_York; None for UTC where the file
            names none.
        format: of the dates, as strptime's; None to tell it from the column.
    """

    zone: str | None = None
    format: str | None = None


def check_zone(zone: str | None) -> None:
    """Check `--timezone`.

    Raises:
        InputError: there is no such time zone.
    """
    try:
        pd.Timestamp(0, unit="s", tz=zone)
    # zoneinfo raises KeyError's subclass; ValueError and OSError come from odd names.
    except (KeyError, ValueError, OSError, TypeError):
        raise InputError(
            f"--timezone {zone!r}: no such time zone; write one like America/New_York or UTC"
        ) from None


def read_times(source: str, column: pa.ChunkedArray, options: TimeOptions) -> Times:
    """Read a column of times.

    Raises:
        InputError: a cell is empty or no date, or the format is ambiguous.
    """
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy())[0])
        raise InputError(f"{source}: row {row}: the time is empty; every bar needs its own")
    kind = column.type
    if pa.types.is_date(kind):
        column = column.cast(pa.timestamp("s"))
        kind = column.type
    if pa.types.is_timestamp(kind):
        return _stamps(source, column, options)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return _numbers(source, column, options)
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise InputError(f"{source}: the time column holds {kind}; it must hold times")
    column = column.cast(pa.string())
    if options.format is not None:
        return _formatted(source, column, options)
    try:
        numbers = column.cast(pa.float64())
    except pa.ArrowException:
        return _texts(source, column, options)
    # 2024.01 is no number of seconds; long whole numbers stay exact as integers.
    try:
        return _numbers(source, column.cast(pa.int64()), options)
    except pa.ArrowException:
        return _numbers(source, numbers, options)


# ---- counted times, and times that the file itself types ----


def _stamps(source: str, column: pa.ChunkedArray, options: TimeOptions) -> Times:
    unit = _UNITS[column.type.unit]
    seconds, rest = np.divmod(column.cast(pa.int64()).to_numpy(), unit)
    zone = column.type.tz
    if zone is None:
        return _placed(source, seconds, rest != 0, "date without a time zone", options)
    return Times(
        seconds, _wall(seconds, options.zone or zone), rest != 0, f"date, time zone {zone}"
    )


def _numbers(source: str, column: pa.ChunkedArray, options: TimeOptions) -> Times:
    raw = column.to_numpy()
    if len(raw) and np.all((raw >= 19000101) & (raw < 22000101) & (raw == np.floor(raw))):
        text = pa.chunked_array([pa.array(np.char.mod("%d", raw))])
        return _parsed(source, text, "%Y%m%d", options)
    # The unit is told by the size, row by row: files that changed from milliseconds to microseconds
    # (Binance in 2025) hold both.
    size = np.abs(raw)
    seconds = np.zeros(len(raw), dtype=np.int64)
    fraction = np.zeros(len(raw), dtype=bool)
    done = np.zeros(len(raw), dtype=bool)
    units = []
    for name, unit in _UNITS.items():
        rows = ~done & (size < _LARGEST_SECONDS * unit)
        if rows.any():
            whole, rest = np.divmod(raw[rows], unit)
            seconds[rows], fraction[rows] = whole.astype(np.int64), rest != 0
            units.append(_UNIT_NAMES[name])
        done |= rows
    if not done.all():
        row = int(np.flatnonzero(~done)[0])
        raise InputError(f"{source}: row {row}: {raw[row]!r} is no time since 1970")
    if len(raw) and np.any(size < 10**8):
        row = int(np.flatnonzero(size < 10**8)[0])
        raise InputError(
            f"{source}: row {row}: {raw[row]!r} in the time column is no number of seconds since "
            "1970; name the column with --columns time=NAME"
        )
    wall = _wall(seconds, options.zone)
    return Times(seconds, wall, fraction, f"unix time in {' and '.join(units)}")


def _wall(seconds: Ints, zone: str | None) -> Ints:
    """Return the wall clock of a time zone."""
    if zone in (None, "UTC"):
        return seconds
    local = pd.DatetimeIndex(seconds.astype("M8[s]"), tz="UTC").tz_convert(zone)
    return local.tz_localize(None).as_unit("s").asi8.astype(np.int64)


def _placed(
    source: str, wall: Ints, fraction: NDArray[np.bool_], words: str, options: TimeOptions
) -> Times:
    """Return wall clock times in the zone that the user gave, or in UTC."""
    zone = options.zone or "UTC"
    words = f"{words}, read as {zone}"
    if zone == "UTC":
        return Times(wall, wall, fraction, words)
    try:
        index = pd.DatetimeIndex(wall.astype("M8[s]")).tz_localize(zone)
    except ValueError as error:  # an hour that the change of the clocks repeats or leaves out
        raise InputError(
            f"{source}: a time does not exist or exists twice in {zone} "
            f"({str(error).splitlines()[0]}); give --timezone as a fixed offset such as Etc/GMT+5, "
            "or write the times in UTC"
        ) from None
    return Times(index.as_unit("s").asi8.astype(np.int64), wall, fraction, words)


# ---- texts ----


def _formatted(source: str, column: pa.ChunkedArray, options: TimeOptions) -> Times:
    assert options.format is not None
    return _parsed(source, column, options.format, options)


def _parsed(source: str, column: pa.ChunkedArray, form: str, options: TimeOptions) -> Times:
    """Read texts by a format of strptime, or, for "mixed", as pandas does."""
    texts = pd.Series(column.to_pylist(), dtype=object).str.strip()
    has_zone = "%z" in form or "%Z" in form
    made = pd.to_datetime(texts, format=form, errors="coerce", utc=has_zone)
    if made.isna().any():
        row = int(np.flatnonzero(made.isna())[0])
        wanted = "a date" if form == "mixed" else f"of the format {form}"
        raise InputError(f"{source}: row {row}: the time is {texts[row]!r}, which is not {wanted}")
    index = pd.DatetimeIndex(made)
    exact = index.as_unit("ns").asi8
    seconds, rest = np.divmod(exact, 10**9)
    words = "date with month names" if form == "mixed" else f"date as {form}"
    if has_zone:
        return Times(seconds, _wall(seconds, options.zone), rest != 0, words)
    return _placed(source, seconds, rest != 0, words, options)


def _texts(source: str, column: pa.ChunkedArray, options: TimeOptions) -> Times:
    first = str(column[0].as_py())
    if re.search(r"[A-Za-z]{3,9}", re.sub(r"UTC|GMT", "", first)) and re.search(
        r"(?i)jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec", first
    ):
        return _parsed(source, column, "mixed", options)
    if _COMPACT_TEXT.fullmatch(first):
        column = pc.replace_substring(column, " ", "")
        return _parsed(source, column, _COMPACT[len(str(column[0].as_py()).strip())], options)
    cells = pc.extract_regex(column, _DATE).combine_chunks()
    if cells.null_count:
        row = int(np.flatnonzero(cells.is_null().to_numpy(zero_copy_only=False))[0])
        raise InputError(
            f"{source}: row {row}: the time is {column[row].as_py()!r}, which is no date; write "
            "dates like 2024-01-01 05:00, or give their format: --date-format '%d.%m.%Y %H:%M'"
        )
    return _dates(source, column, cells, options)


def _dates(
    source: str, column: pa.ChunkedArray, cells: pa.StructArray, options: TimeOptions
) -> Times:
    def text(name: str) -> pa.Array:
        return cells.field(name)

    def number(name: str) -> Ints:
        part = pc.if_else(pc.equal(text(name), ""), "0", text(name))
        return np.asarray(part.cast(pa.int64()))

    def show(row: int) -> str:
        return f"row {row}: the time is {column[row].as_py()!r}"

    a, b, c = number("a"), number("b"), number("c")
    year, month, day, words = _order(source, (a, b, c), _separator(column), show)
    days = _days(year, month, day)
    hour, minute, second = number("h"), number("m"), number("s")
    afternoon = _folded(text("p"))
    twelve = afternoon != ""
    hour = np.where(twelve, hour % 12 + 12 * (afternoon == "PM"), hour)
    wrong = (days < 0) | (hour > 23) | (minute > 59) | (second > 59)
    wrong |= twelve & ((number("h") > 12) | (number("h") < 1))
    if wrong.any():
        raise InputError(f"{source}: {show(int(np.flatnonzero(wrong)[0]))}, which does not exist")
    wall = np.where(days < 0, 0, days) * DAY + hour * 3600 + minute * 60 + second
    fraction = number("f") != 0
    zones = pc.dictionary_encode(text("z"))
    known = [str(zone) for zone in zones.dictionary.to_pylist()]
    if "" in known:
        if len(known) > 1:
            row = int(np.flatnonzero(np.asarray(zones.indices) == known.index(""))[0])
            raise InputError(f"{source}: {show(row)} without an offset, which other rows have")
        return _placed(source, wall, fraction, words, options)
    offsets = np.array([_offset(zone) for zone in known], dtype=np.int64)
    seconds = wall - offsets[np.asarray(zones.indices)]
    if options.zone is not None:
        wall = _wall(seconds, options.zone)
    return Times(seconds, wall, fraction, f"{words}, offset {', '.join(known[:3])}")


def _folded(part: pa.Array) -> NDArray[np.str_]:
    return np.asarray(pc.utf8_upper(part).to_pylist(), dtype=str)


def _separator(column: pa.ChunkedArray) -> str:
    found = re.search(r"[-/.]", str(column[0].as_py()))
    assert found is not None  # the pattern matched
    return found[0]


def _order(
    source: str, numbers: tuple[Ints, Ints, Ints], separator: str, show: Callable[[int], str]
) -> tuple[Ints, Ints, Ints, str]:
    """Return year, month and day of dates, and the order in words."""
    a, b, c = numbers
    if np.all(a >= 1000):
        return a, b, c, "date, year first"
    if not np.all(c >= 1000) or np.any(a >= 1000):
        row = int(np.flatnonzero((c < 1000) | (a >= 1000))[0])
        raise InputError(
            f"{source}: {show(row)}, whose year is not clear; give the format of the dates, like "
            "--date-format '%d/%m/%y %H:%M'"
        )
    day_first, month_first = bool(np.any(a > 12)), bool(np.any(b > 12))
    if day_first and month_first:
        row = int(np.flatnonzero(b > 12)[0] if a[0] > 12 else np.flatnonzero(a > 12)[0])
        raise InputError(
            f"{source}: {show(row)}, with day and month in another order than rows before it; "
            "write all dates alike"
        )
    # Dots are written between day, month and year only, in this order.
    if day_first or (separator == "." and not month_first):
        return c, b, a, "date, day first"
    if month_first:
        return c, a, b, "date, month first"
    raise InputError(
        f"{source}: {show(0)}, and all dates of the file are valid with the day first and with the "
        f"month first; say which with --date-format '%d{separator}%m{separator}%Y …' or "
        f"'%m{separator}%d{separator}%Y …'"
    )


def _days(year: Ints, month: Ints, day: Ints) -> Ints:
    """Return days since 1970; -1 where there is no such day (or it is before 1970)."""
    valid = (month >= 1) & (month <= 12) & (year >= 1970) & (year < 3000)
    months = np.where(valid, (year - 1970) * 12 + month - 1, 0).astype("M8[M]")
    start = months.astype("M8[D]").astype(np.int64)
    length = (months + 1).astype("M8[D]").astype(np.int64) - start
    return np.where(valid & (day >= 1) & (day <= length), start + day - 1, -1)


def _offset(zone: str) -> int:
    """Return the seconds east of UTC of "Z", "UTC", "+01:00", "-0500" or "GMT+0100"."""
    digits = re.sub(r"^(UTC|GMT|Z)|:", "", zone)
    if not digits:
        return 0
    sign = -1 if digits[0] == "-" else 1
    return sign * (int(digits[1:3]) * 3600 + int(digits[3:5] or 0) * 60)
