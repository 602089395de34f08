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

# strptime's formats of dates that are tried on a column. Dots are written between day, month and
# year in this order only.
_DATES = (
    *("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%Y%m%d"),
    *("%d-%m-%Y", "%d/%m/%Y", "%d.%m.%Y", "%m-%d-%Y", "%m/%d/%Y"),
    *("%b %d, %Y", "%B %d, %Y", "%d %b %Y", "%d %B %Y", "%d-%b-%Y"),
)
# A date, an optional clock time ("11-PM" is CryptoDataDownload's, "170000" HistData's), an optional
# offset. The names of the groups are read by `_texts`.
_PARTS = (
    r"^\s*(?P<date>.+?)"
    r"(?:[T\s,]+(?P<h>\d{1,2})(?::(?P<m>\d{2})(?::?(?P<s>\d{2})(?:[.,](?P<f>\d+))?)?)?"
    r"(?:[\s\-]*(?P<p>[AaPp][Mm]))?"
    r"\s*(?P<z>Z|(?:UTC|GMT)?(?:[+-]\d{2}(?::?\d{2})?)?))?\s*$"
)
_HOW = "; write dates like 2024-01-01 05:00, or give their format: --date-format '%d.%m.%Y %H:%M'"
_COMPACT_CLOCK = r"^\s*(\d{8}) (\d{2})(\d{2})"

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
        return _parsed(source, column, options.format, options)
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


def _parsed(source: str, column: pa.ChunkedArray, form: str, options: TimeOptions) -> Times:
    """Read texts by a format of strptime."""
    texts = pd.Series(column.to_pylist(), dtype=object).str.strip()
    has_zone = "%z" in form or "%Z" in form
    made = pd.to_datetime(texts, format=form, errors="coerce", utc=has_zone)
    if made.isna().any():
        row = int(np.flatnonzero(made.isna())[0])
        raise InputError(
            f"{source}: row {row}: the time is {texts[row]!r}, which is not of the format {form}"
        )
    seconds, rest = np.divmod(pd.DatetimeIndex(made).as_unit("ns").asi8, 10**9)
    if has_zone:
        return Times(seconds, _wall(seconds, options.zone), rest != 0, f"date as {form}")
    return _placed(source, seconds, rest != 0, f"date as {form}", options)


def _texts(source: str, column: pa.ChunkedArray, options: TimeOptions) -> Times:
    def show(row: int) -> str:
        return f"{source}: row {row}: the time is {column[row].as_py()!r}"

    def number(name: str) -> Ints:
        part = pc.if_else(pc.equal(cells.field(name), ""), "0", cells.field(name))
        return np.asarray(part.cast(pa.int64()))

    clock = pc.replace_substring_regex(column, _COMPACT_CLOCK, r"\1 \2:\3")
    cells = pc.extract_regex(clock, _PARTS).combine_chunks()
    if cells.null_count:
        raise InputError(f"{show(int(np.argmax(cells.is_null())))}, which is no date{_HOW}")
    days, words = _days(cells.field("date"), show)
    hour, minute, second = number("h"), number("m"), number("s")
    half = np.asarray(pc.utf8_upper(cells.field("p")).to_pylist(), dtype=str)
    wrong = (hour > 23) | (minute > 59) | (second > 59)
    wrong |= (half != "") & ((hour > 12) | (hour < 1))
    if wrong.any():
        raise InputError(f"{show(int(np.argmax(wrong)))}, which does not exist")
    hour = np.where(half == "", hour, hour % 12 + 12 * (half == "PM"))
    wall = days * DAY + hour * 3600 + minute * 60 + second
    fraction = number("f") != 0
    zones = cells.field("z").dictionary_encode()
    codes, known = np.asarray(zones.indices), [str(zone) for zone in zones.dictionary.to_pylist()]
    if known == [""]:
        return _placed(source, wall, fraction, words, options)
    if "" in known:
        row = int(np.argmax(codes == known.index("")))
        raise InputError(f"{show(row)} without an offset, which other rows have")
    seconds = wall - np.array([_offset(zone) for zone in known], dtype=np.int64)[codes]
    if options.zone is not None:
        wall = _wall(seconds, options.zone)
    return Times(seconds, wall, fraction, f"{words}, offset {', '.join(known[:3])}")


def _days(dates: pa.Array, show: Callable[[int], str]) -> tuple[Ints, str]:
    """Return days since 1970, and the format in words.

    Args:
        dates: texts, all of one of the formats `_DATES`.
        show: says what a row is.
    """
    every = dates.dictionary_encode()  # few dates have many bars
    codes = np.asarray(every.indices)
    # pandas reads years first only with two digits of month and day.
    texts = pd.Series([re.sub(r"\b\d\b", r"0\g<0>", one) for one in every.dictionary.to_pylist()])
    read = {form: pd.to_datetime(texts, format=form, errors="coerce") for form in _DATES}
    fits = {form: days for form, days in read.items() if days.notna().all()}
    if not fits:
        # The format that fits for longest tells which row is wrong.
        wrong = {form: int(np.argmax(days.isna().to_numpy()[codes])) for form, days in read.items()}
        form, row = max(wrong.items(), key=lambda one: one[1])
        raise InputError(
            f"{show(row)}, which is no date of the format {form}, as those before it are"
            if row
            else f"{show(row)}, which is no date{_HOW}"
        )
    (form, days), *others = fits.items()
    for other, theirs in others:  # "May" is a month in two formats
        if not theirs.equals(days):
            raise InputError(
                f"{show(0)}, and all dates of the file are valid as {form} and as {other}; say "
                f"which with --date-format '{form} …'"
            )
    return days.to_numpy("M8[D]").astype(np.int64)[codes], f"date as {form}"


def _offset(zone: str) -> int:
    """Return the seconds east of UTC of "Z", "UTC", "+01:00", "-0500" or "GMT+0100"."""
    digits = re.sub(r"^(UTC|GMT|Z)|:", "", zone)
    if not digits:
        return 0
    sign = -1 if digits[0] == "-" else 1
    return sign * (int(digits[1:3]) * 3600 + int(digits[3:5] or 0) * 60)
