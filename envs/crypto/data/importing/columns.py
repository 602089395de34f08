"""What each column of a table is: by its header, or by its place in a known layout."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from sweepd.envs.crypto.data.bar_files import PRICES
from sweepd.envs.crypto.data.importing.tables import Table
from sweepd.envs.support.errors import InputError

ROLES = ("time", *PRICES, "volume", "symbol")

# Names of columns, in lower case without anything but letters and digits. The first group of times
# that a table has is taken: a column that says it is the opening time, then a counted one, then
# any. Closing times are no names of times.
_TIMES = (
    ("opentime", "timeopen", "openingtime", "timeperiodstart", "candlebegintime", "klineopentime"),
    ("unix", "unixtime", "unixtimestamp", "epoch"),
    ("date", "datetime", "time", "timestamp", "ts", "t", "gmttime", "localtime", "utctime",
     "timeutc", "dateutc", "datetimeutc", "start", "starttime", "startat", "dtyyyymmdd",
     "indexlevel0"),
)  # fmt: skip
_PRICE_NAMES = {
    "open": ("open", "o", "openprice", "priceopen"),
    "high": ("high", "h", "highprice", "pricehigh", "max"),
    "low": ("low", "l", "lowprice", "pricelow", "min"),
    "close": ("close", "c", "closeprice", "priceclose", "closelast", "last", "price"),
}
_VOLUMES = (
    "volume", "vol", "v", "basevolume", "volumebase", "volumefrom", "tickvolume", "tickvol",
)  # fmt: skip
_SYMBOLS = ("symbol", "ticker", "tic", "pair", "instrument", "market", "product", "productid")
# Clock times beside a date: 05:00, 05:00:00, 05:00:00.000.
CLOCK = re.compile(r"\s*\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?\s*")

# Columns without names: number of columns → place of the volume. The time is the first, followed by
# open, high, low and close.
_UNNAMED = {
    6: 5,  # ccxt, freqtrade, HistData
    7: 5,  # Kraken: number of trades
    8: 6,  # Kraken's API: average price, volume, number of trades
    11: 5,  # Binance without its unused last column
    12: 5,  # Binance
}


@dataclass(frozen=True)
class Roles:
    """Places of the columns in a table, counted from 0.

    Attributes:
        times: the time; or the date and the clock time, in two columns.
        prices: open, high, low and close.
        volume: None if there is none.
        symbol: the ticker of each row; None if there is none.
        also: other columns that may be the time; they must agree with it.
    """

    times: tuple[int, ...]
    prices: tuple[int, int, int, int]
    volume: int | None
    symbol: int | None
    also: tuple[int, ...] = ()

    def meaning(self, column: int) -> str:
        """Return what a column is taken for, in words."""
        if column in self.times:
            return "time" if len(self.times) == 1 else ("date", "clock")[self.times.index(column)]
        if column in self.prices:
            return PRICES[self.prices.index(column)]
        if column == self.volume:
            return "volume"
        return "ticker" if column == self.symbol else "not used"


def parse_columns(text: str | None) -> dict[str, str]:
    """Read `--columns time=Zeit,close=Schluss`: role → name or number of a column.

    Raises:
        InputError: a role is unknown, or repeated.
    """
    given: dict[str, str] = {}
    for part in (text or "").split(","):
        role, equals, name = (piece.strip() for piece in part.partition("="))
        if not part.strip():
            continue
        if role not in ROLES or not equals or not name or role in given:
            raise InputError(
                f"--columns {part.strip()!r}: write ROLE=COLUMN with each role once; roles are "
                f"{', '.join(ROLES)}, and a column is its name or its number from 1"
            )
        given[role] = name
    return given


def find_roles(table: Table, given: Mapping[str, str], base: str | None) -> Roles:
    """Return what the columns of a table are.

    Args:
        table: the table.
        given: what the user said, see `parse_columns`.
        base: the ticker's base, such as "BTC", if it is known: of "Volume BTC" and "Volume USDT",
            the first is the volume.

    Raises:
        InputError: a column is missing, or could be any of several.
    """
    fixed = {role: _named(table, name) for role, name in given.items()}
    if table.names is None:
        return _by_place(table, fixed)
    names = [_plain(name) for name in table.names]
    free = [name if i not in fixed.values() else "" for i, name in enumerate(names)]
    prices = [
        fixed[role] if role in fixed else _one(table, free, role, _PRICE_NAMES[role])
        for role in PRICES
    ]
    times, also = ((fixed["time"],), ()) if "time" in fixed else _times(table, free)
    volume = fixed["volume"] if "volume" in fixed else _volume(table, free, base)
    symbol = fixed.get("symbol")
    if symbol is None:
        symbol = next((i for i, name in enumerate(free) if name in _SYMBOLS), None)
    return Roles(times, _four(prices), volume, symbol, also)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _named(table: Table, name: str) -> int:
    """Return the place of a column that the user named."""
    found = [i for i, own in enumerate(table.names or ()) if own == name]
    if len(found) == 1:
        return found[0]
    if not found and name.isdecimal() and 1 <= int(name) <= len(table.columns):
        return int(name) - 1
    there = ", ".join(table.label(i) for i in range(len(table.columns)))
    raise InputError(f"--columns {name!r}: {table.source} has no one such column, only {there}")


def _one(table: Table, names: Sequence[str], role: str, accepted: Sequence[str]) -> int:
    """Return the column with the first accepted name that occurs."""
    for name in accepted:
        found = [i for i, own in enumerate(names) if own == name]
        if len(found) > 1:
            raise _ambiguous(table, role, found)
        if found:
            return found[0]
    there = ", ".join(table.label(i) for i in range(len(table.columns)))
    raise InputError(
        f"{table.source}: none of its columns is the {role} ({there}); name it with "
        f"--columns {role}=NAME"
    )


def _ambiguous(table: Table, role: str, found: Sequence[int]) -> InputError:
    listed = " or ".join(f"{table.label(i)} (column {i + 1})" for i in found)
    return InputError(
        f"{table.source}: the {role} could be {listed}; choose with --columns {role}=NUMBER"
    )


def _times(table: Table, names: Sequence[str]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    for group in _TIMES:
        found = [i for i, name in enumerate(names) if name in group]
        clocks = [i for i in found if _is_clock(table.columns[i])]
        dates = [i for i in found if i not in clocks]
        if len(clocks) == 1 and len(dates) == 1:
            return (dates[0], clocks[0]), ()
        # Numbers first: they have no format that could be misread.
        dates.sort(key=lambda i: not _is_number(table.columns[i]))
        if dates:
            return (dates[0],), tuple(dates[1:])
    # An index without a name: pandas' times, if they are any.
    if names[0] == "" and not _is_index(table.columns[0]):
        return (0,), ()
    there = ", ".join(table.label(i) for i in range(len(table.columns)))
    raise InputError(
        f"{table.source}: none of its columns is the opening time of the bars ({there}); name it "
        "with --columns time=NAME"
    )


def _volume(table: Table, names: Sequence[str], base: str | None) -> int | None:
    for name in _VOLUMES:
        found = [i for i, own in enumerate(names) if own == name]
        if len(found) > 1:
            raise _ambiguous(table, "volume", found)
        if found:
            return found[0]
    # CryptoDataDownload: "Volume BTC" and "Volume USDT".
    of_assets = {name.removeprefix("volume"): i for i, name in enumerate(names) if "volume" in name}
    own = of_assets.get((base or "").lower())
    if own is not None:
        return own
    if len(of_assets) > 1:
        raise _ambiguous(table, "volume", list(of_assets.values()))
    return next(iter(of_assets.values()), None)


def _by_place(table: Table, fixed: Mapping[str, int]) -> Roles:
    """Return the roles of columns without names."""
    columns = table.columns
    # An index counts the rows; a date and a clock time may be two columns.
    first = 1 if _is_index(columns[0]) else 0
    clock = len(columns) > first + 1 and _is_clock(columns[first + 1])
    times = (first, first + 1) if clock else (first,)
    width = len(columns) - first - clock
    if {"time", *PRICES} <= set(fixed):
        times, prices = (fixed["time"],), [fixed[role] for role in PRICES]
    elif width not in _UNNAMED:
        raise InputError(
            f"{table.source}: has {len(columns)} columns without names, which is no layout known "
            "here; name them with --columns time=1,open=2,high=3,low=4,close=5,volume=6"
        )
    else:
        prices = [times[-1] + 1 + i for i in range(len(PRICES))]
        fixed = {"volume": times[-1] + _UNNAMED[width], **fixed}
    return Roles(times, _four(prices), fixed.get("volume"), fixed.get("symbol"))


def _four(prices: Sequence[int]) -> tuple[int, int, int, int]:
    open_, high, low, close = prices
    return open_, high, low, close


def _is_clock(column: pa.ChunkedArray) -> bool:
    if pa.types.is_time(column.type):
        return True
    first = _first(column)
    return isinstance(first, str) and CLOCK.fullmatch(first) is not None


def _is_number(column: pa.ChunkedArray) -> bool:
    first = _first(column)
    return isinstance(first, int | float) or (
        isinstance(first, str) and re.fullmatch(r"\s*\d+(\.\d*)?\s*", first) is not None
    )


def _is_index(column: pa.ChunkedArray) -> bool:
    """Return whether a column counts the rows: 0, 1, 2, …"""
    cells = column.slice(0, 50).to_pylist()
    try:
        return [float(cell) for cell in cells] == [float(i) for i in range(len(cells))]
    except (TypeError, ValueError):
        return False


def _first(column: pa.ChunkedArray) -> object:
    return column[0].as_py() if len(column) else None
