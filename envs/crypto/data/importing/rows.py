"""The bars of a table: numbers of any format, one ticker per table or many."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sweepd.envs.crypto.data.bar_files import PRICES
from sweepd.envs.crypto.data.importing.adjusting import Adjustment
from sweepd.envs.crypto.data.importing.columns import Roles, find_roles
from sweepd.envs.crypto.data.importing.names import read_name, to_ticker
from sweepd.envs.crypto.data.importing.tables import Table
from sweepd.envs.crypto.data.importing.times import TimeOptions, Times, read_times
from sweepd.envs.support.errors import InputError

# Rows whose open or close lies outside of low … high. Exchanges have a few; wrongly taken columns
# have many.
_MOST_STRAYS = 0.1
_THOUSANDS = {"K": 1e3, "M": 1e6, "B": 1e9}

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Options:
    """What the user said about the files; nothing by default.

    Attributes:
        ticker: "AAPL/USD" for all files.
        timeframe: of all files.
        quote: currency of tickers that are no pairs.
        columns: role → column, see `columns.parse_columns`.
        times: see `TimeOptions`.
        adjustments: of bars before splits and changes of unit.
        accept_jumps: whether to take bars that look wrong.
    """

    ticker: str | None = None
    timeframe: str | None = None
    quote: str = "USD"
    columns: Mapping[str, str] = field(default_factory=dict)
    times: TimeOptions = field(default_factory=TimeOptions)
    adjustments: tuple[Adjustment, ...] = ()
    accept_jumps: bool = False


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one ticker in one file, in the file's order.

    Attributes:
        source: the file.
        ticker: "BTC/USDT".
        timeframe: that the file's name or the user says; None if neither does.
        times: of the rows.
        values: (n, 5) float64: open, high, low, close, volume; NaN in empty cells.
    """

    source: str
    ticker: str
    timeframe: str | None
    times: Times
    values: Array


@dataclass(frozen=True)
class Taken:
    """What a table was taken for.

    Attributes:
        source: the file.
        layout: how it is written, in words.
        columns: (name, meaning, first cell) of each column.
        times: how times were read, in words.
        order: "oldest first", "newest first" or "unsorted".
    """

    source: str
    layout: str
    columns: tuple[tuple[str, str, str], ...]
    times: str
    order: str

    @property
    def kind(self) -> tuple[object, ...]:
        """Return what tables of the same layout share."""
        return self.layout, tuple(column[:2] for column in self.columns), self.times, self.order


def read_rows(table: Table, options: Options) -> tuple[list[Rows], Taken]:
    """Return the rows of each ticker in a table, and what its columns were taken for.

    Raises:
        InputError: the table is empty, a column is missing or ambiguous, or a cell is no number.
    """
    if not table.rows:
        raise InputError(f"{table.source}: holds no rows; copy it again or remove it")
    market, timeframe = read_name(table.stem)
    name = options.ticker or table.symbol or market
    ticker = None if name is None else to_ticker(name, options.quote)
    roles = find_roles(table, options.columns, None if ticker is None else ticker.split("/")[0])
    roles = _with_volume_of_symbol(table, roles, options)
    times = _times(table, roles, options.times)
    values = _values(table, roles)
    _check_prices(table, roles, values)
    timeframe = options.timeframe or timeframe
    parts = [
        Rows(table.source, own, timeframe, _chosen(times, rows), values[rows])
        for own, rows in _tickers(table, roles, options, ticker)
    ]
    shown = tuple(
        (table.label(i), roles.meaning(i), str(column[0].as_py()))
        for i, column in enumerate(table.columns)
    )
    return parts, Taken(table.source, table.layout, shown, times.format, _direction(parts))


def _with_volume_of_symbol(table: Table, roles: Roles, options: Options) -> Roles:
    """Choose between volumes by the ticker in the rows, which a file's name may not have."""
    if roles.symbol is None:
        return roles
    name = to_ticker(str(table.columns[roles.symbol][0].as_py()), options.quote)
    return find_roles(table, options.columns, name.split("/")[0]) if name else roles


def _direction(parts: list[Rows]) -> str:
    steps = [np.diff(rows.times.seconds) for rows in parts]
    if all(np.all(step >= 0) for step in steps):
        return "oldest first"
    return "newest first" if all(np.all(step <= 0) for step in steps) else "unsorted"


# ---- tickers ----


def _tickers(
    table: Table, roles: Roles, options: Options, ticker: str | None
) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yield (ticker, its rows). A column of tickers counts more than the file's name."""
    if options.ticker is not None or roles.symbol is None:
        if ticker is None:
            raise InputError(
                f"{table.source}: its name does not say the ticker; give it with --ticker BTC/USDT"
            )
        yield ticker, np.arange(table.rows)
        return
    column = table.columns[roles.symbol]
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy())[0])
        raise InputError(f"{table.source}: row {row}: the ticker is empty")
    cells = pc.dictionary_encode(column).combine_chunks()
    numbers = np.asarray(cells.indices)
    for number, name in enumerate(cells.dictionary.to_pylist()):
        found = to_ticker(str(name), options.quote)
        if found is None:
            raise InputError(f"{table.source}: the ticker {name!r} has no letters")
        yield found, np.flatnonzero(numbers == number)


def _chosen(times: Times, rows: NDArray[np.int64]) -> Times:
    return Times(times.seconds[rows], times.wall[rows], times.fraction[rows], times.format)


# ---- times ----


def _times(table: Table, roles: Roles, options: TimeOptions) -> Times:
    column = table.columns[roles.times[0]]
    if len(roles.times) == 2:
        clock = table.columns[roles.times[1]].cast(pa.string())
        column = pc.binary_join_element_wise(_day_texts(column), clock, " ")
    times = read_times(table.source, column, options)
    for place in roles.also:
        _check_same(table, roles, times, place, options)
    return times


def _day_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    texts = column.cast(pa.string())
    # MetaTrader and Stooq: 20240101 beside 05:00.
    return pc.replace_substring_regex(texts, r"^(\d{4})(\d{2})(\d{2})$", r"\1-\2-\3")


def _check_same(table: Table, roles: Roles, times: Times, place: int, options: TimeOptions) -> None:
    """Refuse a second column of times that says something else than the first."""
    try:
        other = read_times(table.source, table.columns[place].slice(0, 1), options)
    except InputError:
        return  # no times, or of a format that cannot be told: nothing to compare
    # A date alone names the day; a time zone that is not in the file moves a clock by hours.
    if abs(int(other.seconds[0]) - int(times.seconds[0])) > 86_400:
        taken = table.label(roles.times[0])
        raise InputError(
            f"{table.source}: {taken} and {table.label(place)} are different times in row 0; "
            f"choose with --columns time={taken}"
        )


# ---- numbers ----


def _values(table: Table, roles: Roles) -> Array:
    columns = [*roles.prices] if roles.volume is None else [*roles.prices, roles.volume]
    made = [_numbers(table, place, roles.meaning(place)) for place in columns]
    if roles.volume is None:
        made.append(np.zeros(table.rows))
    return np.stack(made, axis=1)


def _numbers(table: Table, place: int, meaning: str) -> Array:
    column = table.columns[place]
    try:
        return np.asarray(column.cast(pa.float64()).to_numpy(), dtype=np.float64)
    except pa.ArrowException:
        pass
    if not pa.types.is_string(column.type) and not pa.types.is_large_string(column.type):
        raise InputError(
            f"{table.source}: {table.label(place)} ({meaning}) holds {column.type}; it must hold "
            "numbers"
        )
    cells = column.to_pylist()
    comma = _comma(table, place, cells)
    return np.array([_number(table, place, row, cell, comma) for row, cell in enumerate(cells)])


def _comma(table: Table, place: int, cells: list[str | None]) -> str:
    """Return what a comma in a column's numbers is: "decimal" or "thousands"."""
    texts = [cell for cell in cells if cell is not None and "," in cell]
    if any("." in text or text.count(",") > 1 for text in texts):
        last = next(text for text in texts if "." in text or text.count(",") > 1)
        return "decimal" if last.rfind(",") > last.rfind(".") >= 0 else "thousands"
    if not texts or any(re.search(r",(\d{1,2}|\d{4,})(\D|$)|^\s*-?(0|\d{4,}),", t) for t in texts):
        return "decimal"
    raise InputError(
        f"{table.source}: {table.label(place)} has numbers like {texts[0]!r}, whose comma may "
        "separate thousands or decimals; write them without commas"
    )


def _number(table: Table, place: int, row: int, cell: str | None, comma: str) -> float:
    if cell is None:
        return np.nan
    text = cell.strip().replace(" ", "").replace("'", "")
    if comma == "decimal":
        text = text.replace(".", "") if "," in text and "." in text else text
        text = text.replace(",", ".")
    else:
        text = text.replace(",", "")
    unit = _THOUSANDS.get(text[-1:].upper(), 1.0)
    try:
        return float(text[:-1] if unit > 1.0 else text) * unit
    except ValueError:
        raise InputError(
            f"{table.source}: row {row}: {table.label(place)} is {cell!r}; it must be a number"
        ) from None


def _check_prices(table: Table, roles: Roles, values: Array) -> None:
    """Refuse columns that cannot be open, high, low and close."""
    whole = values[np.isfinite(values[:, :4]).all(axis=1)]
    if not len(whole):
        raise InputError(f"{table.source}: no row has all four prices")
    open_, high, low, close = whole[:, :4].T
    strays = (np.maximum(open_, close) > high) | (np.minimum(open_, close) < low)
    if np.mean(strays) > _MOST_STRAYS:
        taken = ", ".join(
            f"{name} {table.label(place)}" for name, place in zip(PRICES, roles.prices, strict=True)
        )
        raise InputError(
            f"{table.source}: taken as {taken}, the open or close lies outside of low … high in "
            f"{np.count_nonzero(strays):,} of {len(whole):,} rows; say which column is which with "
            "--columns open=…,high=…,low=…,close=…"
        )
    # Without a header, eight columns may have an average price before the volume, or not.
    if table.names is None and len(table.columns) == 8 and roles.volume == 6:
        average = _numbers(table, 5, "average price")[np.isfinite(values[:, :4]).all(axis=1)]
        traded = average > 0
        if np.mean((average[traded] >= low[traded]) & (average[traded] <= high[traded])) < 0.9:
            raise InputError(
                f"{table.source}: has 8 columns without names; which of columns 6 to 8 is the "
                "volume? Name it with --columns volume=6"
            )
