"""`sweepd data import`: files in the layouts of exchanges, vendors and programs, made here."""

from __future__ import annotations

import gzip
import json
import signal
import sys
import zipfile
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from sweepd.envs.crypto.data import expanding
from sweepd.envs.crypto.data.bar_files import COLUMNS, read_bars, write_file
from sweepd.envs.crypto.data.bars import load_bars
from sweepd.envs.crypto.data.commands import data_commands
from sweepd.envs.crypto.data.importing import folder, tables
from sweepd.envs.crypto.data.importing.names import is_other_bars, read_name, to_ticker
from sweepd.envs.support.errors import InputError, RunError
from tests.envs.bar_samples import START, frame

PRICES = ["open", "high", "low", "close"]
DAY = 86_400


def run(*arguments: str | Path) -> Any:
    """Run the command; `result.output` combines standard output and error."""
    return CliRunner().invoke(
        data_commands(), ["import", *(str(argument) for argument in arguments)]
    )


def taken(source: Path, to: Path, *flags: str) -> str:
    """Import, and return the output."""
    result = run("--from", source, "--to", to, *flags)
    assert result.exit_code == 0, result.output
    return " ".join(str(result.output).split())


def refused(source: Path, to: Path, *flags: str) -> str:
    """Return the sentences with which an import refuses; it must not write anything."""
    before = sorted(to.rglob("*")) if to.exists() else []
    result = run("--from", source, "--to", to, *flags)
    assert (sorted(to.rglob("*")) if to.exists() else []) == before
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        assert result.exception.__class__.__name__ == "InputError", result.exception
        return str(result.exception)
    assert result.exit_code == 2, result.output
    assert "nothing was written" in result.output
    return " ".join(str(result.output).split())


def same(to: Path, name: str, data: pd.DataFrame) -> None:
    """Check that the file holds exactly these bars, and that a study would load them."""
    bars = read_bars(to / name)
    np.testing.assert_array_equal(bars.time, seconds(data))
    np.testing.assert_array_equal(bars.values, data[list(COLUMNS[1:])].to_numpy())
    loaded = load_bars(to, bars.timeframe, [bars.ticker])
    assert loaded.time[0] == bars.time[0]


def seconds(data: pd.DataFrame) -> np.ndarray:
    return data["date"].dt.as_unit("s").astype("int64").to_numpy()


def binance(data: pd.DataFrame, unit: int = 1000) -> pd.DataFrame:
    """Return the twelve columns of Binance's dumps."""
    opened = seconds(data) * unit
    step = opened[1] - opened[0]
    return pd.DataFrame(
        {
            "open_time": opened,
            **{name: data[name] for name in (*PRICES, "volume")},
            "close_time": opened + step - 1,
            "quote_volume": data["volume"] * data["close"],
            "count": 7,
            "taker_buy_volume": data["volume"] / 2,
            "taker_buy_quote_volume": data["volume"] * data["close"] / 2,
            "ignore": 0,
        }
    )


def text(data: pd.DataFrame, **options: Any) -> str:
    return str(data.to_csv(None, index=options.pop("index", False), **options))


def with_dates(data: pd.DataFrame, form: str, name: str = "Date") -> pd.DataFrame:
    """Return the bars with times as text, first, and capitalised names."""
    table = data[list(COLUMNS[1:])].rename(columns=str.capitalize)
    table.insert(0, name, data["date"].dt.strftime(form))
    return table


# ---- the layouts of exchanges and vendors ----


@pytest.mark.parametrize("header", [False, True], ids=["plain", "header"])
@pytest.mark.parametrize("unit", [10**3, 10**6], ids=["ms", "us"])
def test_binance(tmp_path: Path, header: bool, unit: int) -> None:
    data = frame()
    folder = tmp_path / "spot" / "monthly" / "BTCUSDT"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "BTCUSDT-1h-2024-01.zip", "w") as archive:
        archive.writestr("BTCUSDT-1h-2024-01.csv", text(binance(data, unit), header=header))
    (folder / "BTCUSDT-1h-2024-01.zip.CHECKSUM").write_text("0 BTCUSDT-1h-2024-01.zip")
    output = taken(tmp_path / "spot", tmp_path / "to")
    same(tmp_path / "to", "BTC_USDT-1h.parquet", data)
    assert ("open_time time" if header else "column 1 time") in output
    assert ("close_time not used" if header else "column 7 not used") in output
    assert f"unix time in {'milliseconds' if unit == 1000 else 'microseconds'}" in output
    assert "ignored: BTCUSDT-1h-2024-01.zip.CHECKSUM" in output
    assert f"next: sweepd data check --data-dir {tmp_path / 'to'}" in output


def test_binance_files_of_many_months_are_one_ticker(tmp_path: Path) -> None:
    """The unit changed from milliseconds to microseconds in 2025."""
    data, folder = frame(60), tmp_path / "from"
    folder.mkdir()
    for number, unit in enumerate((10**3, 10**3, 10**6)):
        part = data.iloc[20 * number : 20 * number + 20]
        name = f"ETHUSDT-1h-2024-{number + 1:02d}.csv"
        (folder / name).write_text(text(binance(part, unit), header=False))
    output = taken(folder, tmp_path / "to")
    same(tmp_path / "to", "ETH_USDT-1h.parquet", data)
    assert "and 1 other like it" in output
    assert "ETH/USDT: 60 bars of 1h of 3 files" in output


def test_binance_daily_files_of_one_bar_each(tmp_path: Path) -> None:
    data, folder = frame(9, step=DAY), tmp_path / "from"
    folder.mkdir()
    whole = binance(data)
    for row in range(9):
        name = f"BTCUSDT-1d-2024-01-{row + 1:02d}.csv"
        (folder / name).write_text(text(whole.iloc[row : row + 1], header=False))
    taken(folder, tmp_path / "to")
    same(tmp_path / "to", "BTC_USDT-1d.parquet", data)


def test_kraken(tmp_path: Path) -> None:
    data = frame()
    table = data.assign(date=seconds(data), trades=3)
    (tmp_path / "XBTUSD_60.csv").write_text(text(table, header=False))
    output = taken(tmp_path / "XBTUSD_60.csv", tmp_path / "to")
    same(tmp_path / "to", "BTC_USD-1h.parquet", data)
    assert "column 7 not used" in output
    assert "unix time in seconds" in output


def test_kraken_api_has_the_average_price_before_the_volume(tmp_path: Path) -> None:
    data = frame()
    table = data.assign(date=seconds(data), trades=3)
    table.insert(5, "vwap", (data["high"] + data["low"]) / 2)
    (tmp_path / "XXBTZUSD_60.csv").write_text(text(table, header=False))
    taken(tmp_path / "XXBTZUSD_60.csv", tmp_path / "to")
    same(tmp_path / "to", "BTC_USD-1h.parquet", data)


def test_yahoo(tmp_path: Path) -> None:
    data = business_days()
    table = with_dates(data, "%Y-%m-%d")
    table.insert(5, "Adj Close", data["close"] * 0.9)
    (tmp_path / "AAPL.csv").write_text(text(table))
    output = taken(tmp_path / "AAPL.csv", tmp_path / "to")
    bars = read_bars(tmp_path / "to" / "AAPL_USD-1d.parquet")
    np.testing.assert_array_equal(bars.time, seconds(data))
    np.testing.assert_array_equal(bars.values[:, 3], data["close"])
    assert "Date time" in output
    assert "Adj Close not used" in output
    assert "AAPL/EUR: 60 bars" in taken(tmp_path / "AAPL.csv", tmp_path / "euro", "--quote", "EUR")
    named = taken(tmp_path / "AAPL.csv", tmp_path / "named", "--timeframe", "1d")
    assert named.endswith("--timeframe 1d")


def test_yfinance_with_three_rows_of_header(tmp_path: Path) -> None:
    data = business_days()
    rows = with_dates(data, "%Y-%m-%d")[["Date", "Close", "High", "Low", "Open", "Volume"]]
    head = "Price,Close,High,Low,Open,Volume\nTicker,MSFT,MSFT,MSFT,MSFT,MSFT\nDate,,,,,\n"
    (tmp_path / "prices.csv").write_text(head + text(rows, header=False))
    output = taken(tmp_path / "prices.csv", tmp_path / "to")
    bars = read_bars(tmp_path / "to" / "MSFT_USD-1d.parquet")
    np.testing.assert_array_equal(bars.values, data[list(COLUMNS[1:])])
    assert "Date time" in output
    (tmp_path / "two.csv").write_text(
        head.replace("MSFT,MSFT\n", "MSFT,AAPL\n") + text(rows, header=False)
    )
    assert "several tickers side by side (AAPL, MSFT)" in refused(
        tmp_path / "two.csv", tmp_path / "to"
    )


def test_days_of_a_market_in_its_own_time_zone(tmp_path: Path) -> None:
    """Midnight in New York is 05:00 or 04:00 UTC, but names the day."""
    data = business_days(120)
    local = data["date"].dt.tz_localize(None).dt.tz_localize("America/New_York")
    table = with_dates(data, "%Y-%m-%d").assign(Date=local.astype(str))
    assert table["Date"].iloc[-1].endswith("-04:00") != table["Date"].iloc[0].endswith("-04:00")
    (tmp_path / "SPY.csv").write_text(text(table))
    taken(tmp_path / "SPY.csv", tmp_path / "to")
    np.testing.assert_array_equal(
        read_bars(tmp_path / "to" / "SPY_USD-1d.parquet").time, seconds(data)
    )
    # Yahoo's API counts seconds to the opening of the market: 14:30 or 13:30 UTC.
    opened = (local + pd.Timedelta(hours=9.5)).dt.as_unit("s").astype("int64")
    (tmp_path / "QQQ.csv").write_text(text(table.assign(Date=opened)))
    assert "off the grid" in refused(tmp_path / "QQQ.csv", tmp_path / "to")
    taken(tmp_path / "QQQ.csv", tmp_path / "to", "--timezone", "America/New_York")
    np.testing.assert_array_equal(
        read_bars(tmp_path / "to" / "QQQ_USD-1d.parquet").time, seconds(data)
    )


def business_days(count: int = 60) -> pd.DataFrame:
    """Bars of weekdays from 2024-01-01 on."""
    dates = pd.bdate_range("2024-01-01", periods=count, tz="UTC").as_unit("s")
    return frame(count).assign(date=dates)


@pytest.mark.parametrize("times", ["unix", "hours"])
def test_cryptodatadownload(tmp_path: Path, times: str) -> None:
    data = frame()
    table = pd.DataFrame({"date": data["date"].dt.strftime("%Y-%m-%d %H:%M:%S")})
    if times == "hours":
        table["date"] = data["date"].dt.strftime("%Y-%m-%d %I-%p")
    table["symbol"] = "BTC/USDT"
    table[PRICES] = data[PRICES]
    table["Volume BTC"] = data["volume"]
    table["Volume USDT"] = data["volume"] * data["close"]
    if times == "unix":
        table.insert(0, "unix", seconds(data) * 1000)
        # Older rows of some files count seconds.
        table.loc[:9, "unix"] //= 1000
    newest_first = text(table.iloc[::-1])
    (tmp_path / "Binance_BTCUSDT_1h.csv").write_text(
        f"https://www.CryptoDataDownload.com\n{newest_first}"
    )
    output = taken(tmp_path / "Binance_BTCUSDT_1h.csv", tmp_path / "to")
    same(tmp_path / "to", "BTC_USDT-1h.parquet", data)
    assert "newest first" in output
    assert "symbol ticker" in output
    assert "Volume BTC volume" in output
    assert "Volume USDT not used" in output
    assert ("unix time" if times == "unix" else "date time") in output


@pytest.mark.parametrize("suffix", ["feather", "parquet", "json", "json.gz"])
def test_freqtrade(tmp_path: Path, suffix: str) -> None:
    data, path = frame(), tmp_path / f"BTC_USDT-1h.{suffix}"
    if suffix == "feather":
        data.to_feather(path)
    elif suffix == "parquet":
        data.to_parquet(path)
    else:
        rows = data.assign(date=seconds(data) * 1000).to_numpy().tolist()
        written = json.dumps(rows).encode()
        path.write_bytes(gzip.compress(written) if suffix.endswith("gz") else written)
    taken(path, tmp_path / "to")
    same(tmp_path / "to", "BTC_USDT-1h.parquet", data)


def test_futures_of_freqtrade_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "from"
    (folder / "futures").mkdir(parents=True)
    for name in (
        "BTC_USDT-1h",
        "futures/BTC_USDT_USDT-1h-futures",
        "futures/BTC_USDT_USDT-8h-mark",
    ):
        frame().to_feather(folder / f"{name}.feather")
    output = taken(folder, tmp_path / "to")
    assert "ignored: BTC_USDT_USDT-1h-futures.feather, BTC_USDT_USDT-8h-mark.feather" in output
    assert [path.name for path in (tmp_path / "to").iterdir()] == ["BTC_USDT-1h.parquet"]


def test_pandas_tables_with_an_index(tmp_path: Path) -> None:
    data = frame()
    (tmp_path / "a_BTCUSDT.csv").write_text(text(data, index=True))  # 0, 1, 2, …
    (tmp_path / "b_ETHUSDT.csv").write_text(text(data.set_index("date"), index=True))
    unnamed = data.set_index("date").rename_axis(None)
    (tmp_path / "c_LTCUSDT.csv").write_text(text(unnamed, index=True))
    numbered = data.assign(date=seconds(data)).set_axis(range(6), axis=1)
    (tmp_path / "d_UNIUSDT.csv").write_text(text(numbered, index=True))
    data.set_index("date").rename_axis(None).to_parquet(tmp_path / "e_AAVEUSDT.parquet")
    for letter, name in zip("abcde", ("BTC", "ETH", "LTC", "UNI", "AAVE"), strict=True):
        path = next(tmp_path.glob(f"{letter}_*"))
        taken(path, tmp_path / "to", "--ticker", f"{name}/USDT")
        same(tmp_path / "to", f"{name}_USDT-1h.parquet", data)


def test_semicolons_with_decimal_commas(tmp_path: Path) -> None:
    data = frame()
    (tmp_path / "BTCUSDT.csv").write_text(
        text(with_dates(data, "%d.%m.%Y %H:%M"), sep=";", decimal=",")
    )
    output = taken(tmp_path / "BTCUSDT.csv", tmp_path / "to")
    same(tmp_path / "to", "BTC_USDT-1h.parquet", data)
    assert "semicolons between columns, header" in output
    assert "date as %d.%m.%Y" in output


def test_investing_com(tmp_path: Path) -> None:
    """Thousands with commas, volumes in thousands, the close as the price, months first."""
    days = pd.date_range("2024-01-01", periods=20, tz="UTC").as_unit("s")
    rows = [
        f'"{day:%m/%d/%Y}","42,265.2","42,283.6","44,184.1","42,180.8","47.93K","-0.04%"'
        for day in days[::-1]
    ]
    (tmp_path / "BTC_USD.csv").write_text(
        "\n".join(['"Date","Price","Open","High","Low","Vol.","Change %"', *rows])
    )
    output = taken(tmp_path / "BTC_USD.csv", tmp_path / "to")
    bars = read_bars(tmp_path / "to" / "BTC_USD-1d.parquet")
    np.testing.assert_array_equal(bars.values[0], [42283.6, 44184.1, 42180.8, 42265.2, 47930.0])
    np.testing.assert_array_equal(bars.time, days.astype("int64"))
    assert "Price close" in output


def test_metatrader_has_date_and_clock_in_two_columns(tmp_path: Path) -> None:
    data = frame()
    table = data[list(COLUMNS[1:])].copy()
    table.insert(0, "clock", data["date"].dt.strftime("%H:%M"))
    table.insert(0, "day", data["date"].dt.strftime("%Y.%m.%d"))
    (tmp_path / "EURUSD60.csv").write_text(text(table, header=False))
    output = taken(tmp_path / "EURUSD60.csv", tmp_path / "to", "--ticker", "EUR/USD")
    same(tmp_path / "to", "EUR_USD-1h.parquet", data)
    assert "column 1 date" in output
    assert "column 2 clock" in output
    table.columns = pd.Index(["<DATE>", "<TIME>", "<OPEN>", "<HIGH>", "<LOW>", "<CLOSE>", "<VOL>"])
    (tmp_path / "GBPUSD_H1.csv").write_text(text(table, sep="\t"))
    taken(tmp_path / "GBPUSD_H1.csv", tmp_path / "to")
    same(tmp_path / "to", "GBP_USD-1h.parquet", data)


def test_a_column_of_tickers(tmp_path: Path) -> None:
    """One table of many shares, as FinRL makes it."""
    data = business_days()
    table = pd.concat([with_dates(data, "%Y-%m-%d").assign(tic=name) for name in ("KO", "PEP")])
    (tmp_path / "dow.csv").write_text(text(table.sort_values(["Date", "tic"])))
    output = taken(tmp_path / "dow.csv", tmp_path / "to")
    assert "KO/USD: 60 bars of 1d" in output
    assert "PEP/USD: 60 bars of 1d" in output


def test_a_file_without_volume(tmp_path: Path) -> None:
    data = frame()
    (tmp_path / "EURUSD.csv").write_text(text(data.drop(columns="volume")))
    assert "no volume in the file: written as 0" in taken(tmp_path / "EURUSD.csv", tmp_path / "to")
    same(tmp_path / "to", "EUR_USD-1h.parquet", data.assign(volume=0.0))


# ---- times ----


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d, offset Z"),
        ("%Y/%m/%d %H:%M", "%Y/%m/%d, read as UTC"),
        ("%d/%m/%Y %H:%M", "%d/%m/%Y,"),
        ("%d-%m-%Y %H:%M:%S.000", "%d-%m-%Y,"),
        ("%m/%d/%Y %I:%M %p", "%m/%d/%Y,"),
        ("%Y-%m-%d %H:%M:%S+00", "%Y-%m-%d, offset +00"),
        ("%Y-%-m-%-d %-H:%M", "%Y-%m-%d,"),
        ("%-m/%-d/%Y %-I:%M%p", "%m/%d/%Y,"),
        ("%d.%m.%Y %H:%M:%S.000 GMT+0000", "%d.%m.%Y, offset GMT+0000"),
        ("%b %d, %Y %H:%M", "%b %d, %Y,"),
        ("%d %B %Y %H:%M", "%d %B %Y,"),
        ("%d-%b-%Y %H:%M:%S", "%d-%b-%Y,"),
        ("%Y%m%d %H%M%S", "%Y%m%d,"),
        ("%Y%m%d %H%M", "%Y%m%d,"),
    ],
)
def test_formats_of_dates(tmp_path: Path, form: str, words: str) -> None:
    data = frame(24 * 14)  # past the 12th day
    (tmp_path / "BTCUSDT.csv").write_text(text(with_dates(data, form), sep=";"))
    output = taken(tmp_path / "BTCUSDT.csv", tmp_path / "to")
    same(tmp_path / "to", "BTC_USDT-1h.parquet", data)
    assert f"date as {words}" in output


def test_dates_that_are_valid_both_ways_are_refused(tmp_path: Path) -> None:
    data, to = frame(24 * 12), tmp_path / "to"
    path = tmp_path / "BTCUSDT.csv"
    for form in ("%d/%m/%Y %H:%M", "%m-%d-%Y %H:%M"):
        path.write_text(text(with_dates(data, form)))
        said = refused(path, to)
        assert "all dates of the file are valid as" in said
        assert form.partition(" ")[0] in said
        assert f"{form[3:5]}{form[2]}{form[:2]}" in said
        taken(path, to, "--date-format", form)
        same(to, "BTC_USDT-1h.parquet", data)
    path.write_text(text(with_dates(frame(24 * 14), "%d/%m/%y %H:%M")))
    assert "which is no date; write dates like" in refused(path, to)
    taken(path, tmp_path / "short", "--date-format", "%d/%m/%y %H:%M")
    mixed = with_dates(frame(24 * 14), "%d/%m/%Y %H:%M")
    mixed.loc[5, "Date"] = "01/13/2024 05:00"
    path.write_text(text(mixed))
    assert (
        "'13/01/2024 00:00', which is no date of the format %m/%d/%Y, as those before"
        in refused(path, to)
    )


def test_time_zones(tmp_path: Path) -> None:
    data, to = frame(24 * 14), tmp_path / "to"
    local = data["date"].dt.tz_convert("America/New_York")
    path = tmp_path / "BTCUSDT.csv"
    path.write_text(text(data.assign(date=local)))
    assert "offset -05:00" in taken(path, to)
    same(to, "BTC_USDT-1h.parquet", data)
    path.write_text(text(data.assign(date=local.dt.tz_localize(None))))
    output = taken(path, tmp_path / "ny", "--timezone", "America/New_York")
    assert "read as America/New_York" in output
    same(tmp_path / "ny", "BTC_USDT-1h.parquet", data)
    assert "read as UTC" in taken(path, tmp_path / "utc")
    assert "no such time zone" in refused(path, to, "--timezone", "Mars/Olympus")
    autumn = frame(48, start=int(pd.Timestamp("2024-11-03", tz="UTC").timestamp()))
    wall = autumn["date"].dt.tz_convert("America/New_York").dt.tz_localize(None)
    path.write_text(text(autumn.assign(date=wall)))
    assert "exists twice" in refused(path, to, "--timezone", "America/New_York")


# ---- what is joined, left out, refused ----


def test_a_later_import_continues_an_earlier_one(tmp_path: Path) -> None:
    data, to = frame(60), tmp_path / "to"
    path = tmp_path / "BTCUSDT-1h.csv"
    path.write_text(text(data.iloc[:40]))
    taken(path, to)
    path.write_text(text(data.iloc[30:]))
    assert "left out: 10 repeated" in taken(path, to)
    same(to, "BTC_USDT-1h.parquet", data)
    changed = data.copy()
    changed.loc[7, "close"] = data.loc[7, ["low", "high"]].mean()
    path.write_text(text(changed))
    assert "two bars of 2024-01-01 07:00 UTC with different values" in refused(path, to)
    frame().to_feather(tmp_path / "ETH_USDT-1h.feather")
    data.to_parquet(to / "ETH_USDT-1h.parquet", index=False)
    assert "comes from another program" in refused(tmp_path / "ETH_USDT-1h.feather", to)


def test_open_and_empty_bars_are_left_out(tmp_path: Path) -> None:
    now = int(pd.Timestamp.now(tz="UTC").timestamp()) // 3600 * 3600
    data = frame(10, start=now - 9 * 3600)  # the last bar is open
    table = data.copy()
    table.loc[4, PRICES] = np.nan
    (tmp_path / "BTCUSDT.csv").write_text(text(table))
    output = taken(tmp_path / "BTCUSDT.csv", tmp_path / "to")
    assert "left out: 1 without valid prices, 1 not closed yet" in output
    assert len(read_bars(tmp_path / "to" / "BTC_USDT-1h.parquet").time) == 8


def test_unsorted_and_repeated_rows(tmp_path: Path) -> None:
    data = frame()
    mixed = pd.concat([data.sample(frac=1, random_state=3), data.iloc[:3]])
    (tmp_path / "BTCUSDT.csv").write_text(text(mixed))
    output = taken(tmp_path / "BTCUSDT.csv", tmp_path / "to")
    assert "unsorted" in output
    assert "3 repeated" in output
    same(tmp_path / "to", "BTC_USDT-1h.parquet", data)


def test_refused_files(tmp_path: Path) -> None:
    data, to = frame(), tmp_path / "to"

    def sentence(table: pd.DataFrame, name: str = "BTCUSDT.csv", *flags: str) -> str:
        path = tmp_path / name
        path.write_text(text(table))
        return refused(path, to, *flags)

    assert "could be Volume USD (column 6) or Volume EUR (column 7)" in sentence(
        data.rename(columns={"volume": "Volume USD"}).assign(**{"Volume EUR": 1.0})
    )
    assert "the close could be close (column 5) or Close (column 7)" in sentence(
        data.assign(Close=1.0)
    )
    assert "none of its columns is the close" in sentence(data.rename(columns={"close": "Schluss"}))
    assert "none of its columns is the opening time" in sentence(
        data.rename(columns={"date": "close time"})
    )
    assert "different times in row 0" in sentence(data.assign(timestamp=seconds(data) + 7 * DAY))
    swapped = data.rename(columns={"open": "high", "high": "open"})
    assert "the open or close lies outside of low … high in" in sentence(swapped)
    assert "off the grid" in sentence(frame(start=START + 1800))
    assert "such as --timeframe 1h-XNYS" in sentence(frame(start=START + 1800))
    assert "its bars are 1h apart, but its name (or --timeframe) says 1d" in sentence(
        data, "BTCUSDT_1d.csv"
    )
    assert "its bars are 7 days apart" in sentence(frame(step=7 * DAY))
    assert "its name does not say the ticker" in sentence(data, "2024.csv")
    assert "whose comma may separate thousands or decimals" in sentence(data.assign(volume="1,234"))
    assert "it must be a number" in sentence(data.assign(volume="many"))
    broken = data.astype({"date": str})
    broken.loc[3, "date"] = "yesterday"
    assert "row 3: the time is 'yesterday'" in sentence(broken)
    broken.loc[3, "date"] = "2024-02-30 00:00"
    assert "no date of the format %Y-%m-%d, as those before it" in sentence(broken)
    broken.loc[3, "date"] = "2024-02-20 25:00"
    assert "does not exist" in sentence(broken)
    assert "--columns 'price=x': write ROLE=COLUMN" in sentence(
        data, "BTCUSDT.csv", "--columns", "price=x"
    )
    assert "has no one such column" in sentence(data, "BTCUSDT.csv", "--columns", "close=x")
    (tmp_path / "BTCUSDT.csv").write_text("hello\n")
    assert "no row of a time and prices" in refused(tmp_path / "BTCUSDT.csv", to)
    (tmp_path / "BTCUSDT.zip").write_text("hello\n")
    assert "cannot be read" in refused(tmp_path / "BTCUSDT.zip", to)
    (tmp_path / "BTCUSDT.csv").write_text(text(data.iloc[:, [0, 1, 2, 3]], header=False))
    assert "no row of a time and prices" in refused(tmp_path / "BTCUSDT.csv", to)
    assert "no such file" in refused(tmp_path / "none", to)
    assert "lies in --from" in refused(tmp_path, to)


def test_named_columns(tmp_path: Path) -> None:
    data = frame()
    names = {"date": "Zeit", "open": "Eröffnung", "high": "Hoch", "low": "Tief", "close": "Schluss"}
    (tmp_path / "BTCUSDT.csv").write_text(text(data.rename(columns=names)), encoding="latin-1")
    assert "none of its columns is the open" in refused(tmp_path / "BTCUSDT.csv", tmp_path / "to")
    taken(
        tmp_path / "BTCUSDT.csv",
        tmp_path / "to",
        "--columns",
        "time=Zeit,open=Eröffnung,high=3,low=4,close=Schluss",
    )
    same(tmp_path / "to", "BTC_USDT-1h.parquet", data)


def test_all_files_are_imported_or_none(tmp_path: Path) -> None:
    folder = tmp_path / "from"
    folder.mkdir()
    (folder / "BTCUSDT.csv").write_text(text(frame()))
    (folder / "ETHUSDT.csv").write_text("hello\n")
    (folder / "LTCUSDT.csv").write_text("date,open\n")
    sentences = refused(folder, tmp_path / "to")
    assert "ETHUSDT.csv: no row" in sentences
    assert "LTCUSDT.csv: no row" in sentences


@pytest.mark.parametrize(
    ("stem", "ticker", "timeframe"),
    [
        ("BTCUSDT-1h-2024-01", "BTC/USDT", "1h"),
        ("BTCUSDT-1m-2024-01-31", "BTC/USDT", "1m"),
        ("XBTUSD_1440", "BTC/USD", "1d"),
        ("Bitstamp_BTCUSD_d", "BTC/USD", "1d"),
        ("Gemini_ETHUSD_2023_1min", "ETH/USD", "1m"),
        ("BTC_USDT-5m", "BTC/USDT", "5m"),
        ("BTC-USD", "BTC/USD", None),
        ("BRK-B", "BRKB/USD", None),
        ("^GSPC", "GSPC/USD", None),
        ("GBTC", "GBTC/USD", None),
        ("XXBTZEUR", "BTC/EUR", None),
        ("ETHBTC_1h", "ETH/BTC", "1h"),
        ("data_2024", None, None),
        ("DOTUSD_240", "DOT/USD", "4h"),
        ("BTCBUSD-1h-2023-02", "BTC/BUSD", "1h"),
        ("SHIBUSD_60", "SHIB/USD", "1h"),
    ],
)
def test_tickers_and_timeframes_of_names(
    stem: str, ticker: str | None, timeframe: str | None
) -> None:
    name, found = read_name(stem)
    assert (None if name is None else to_ticker(name, "USD"), found) == (ticker, timeframe)


def test_only_other_bars_of_freqtrade_are_left_alone() -> None:
    assert is_other_bars("BTC_USDT_USDT-1h-futures")
    assert not is_other_bars("BTC_USDT-1h")
    assert not is_other_bars("futures")


# ---- any layout ----

TIME_KINDS = ("s", "ms", "us", "ns", "iso", "offset", "day first", "month first", "clock")
FORMS = {"iso": "%Y-%m-%d %H:%M:%S", "day first": "%d/%m/%Y %H:%M", "month first": "%m/%d/%Y %H:%M"}


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(TIME_KINDS),
    separator=st.sampled_from([",", ";", "\t", "|"]),
    header=st.booleans(),
    index=st.booleans(),
    order=st.sampled_from(["oldest", "newest", "any"]),
    decimal=st.booleans(),
    step=st.sampled_from([60, 300, 3600, 14_400, DAY]),
    start=st.integers(0, 20_000),
    scale=st.sampled_from([1e-8, 1e-3, 1.0, 1e5]),
    trailing=st.booleans(),
)
def test_any_layout_comes_back_to_the_bit(
    tmp_path: Path,
    kind: str,
    separator: str,
    header: bool,
    index: bool,
    order: str,
    decimal: bool,
    step: int,
    start: int,
    scale: float,
    trailing: bool,
) -> None:
    """Write bars in one of some thousand layouts, import, and compare every bit."""
    span = 14 * DAY  # past the 12th of a month, so that day and month can be told
    data = frame(max(20, span // step if step > 300 else 60), step=step)
    data["date"] += pd.Timedelta(start * DAY // 8 // step * step, unit="s")
    data = data[data["date"] < "2026-01-01"]
    if kind in ("day first", "month first") and data["date"].dt.day.max() <= 12:
        kind = "iso"
    if len(data) < 20:
        return
    data[PRICES] *= scale
    table = data[list(COLUMNS[1:])].copy()
    dates = data["date"]
    if kind in ("s", "ms", "us", "ns"):
        table.insert(
            0, "timestamp", seconds(data) * {"s": 1, "ms": 10**3, "us": 10**6}.get(kind, 10**9)
        )
    elif kind == "offset":
        table.insert(0, "date", dates.dt.tz_convert("Asia/Tokyo").astype(str))
    elif kind == "clock":
        table.insert(0, "time", dates.dt.strftime("%H:%M"))
        table.insert(0, "date", dates.dt.strftime("%Y-%m-%d"))
    else:
        table.insert(0, "date", dates.dt.strftime(FORMS[kind]))
    if order == "newest":
        table = table.iloc[::-1]
    elif order == "any":
        table = table.sample(frac=1, random_state=0)
    if index:
        table = table.reset_index(drop=True)
    written = text(
        table,
        sep=separator,
        header=header,
        index=index,
        decimal="," if decimal and separator != "," else ".",
    )
    if trailing:
        written = written.replace("\n", f"{separator}\n")
    path, to = tmp_path / "BTCUSDT.csv", tmp_path / "to"
    path.write_text(written)
    for old in to.glob("*"):
        old.unlink()
    taken(path, to)
    name = {60: "1m", 300: "5m", 3600: "1h", 14_400: "4h", DAY: "1d"}[step]
    bars = read_bars(to / f"BTC_USDT-{name}.parquet")
    np.testing.assert_array_equal(bars.time, seconds(data))
    np.testing.assert_array_equal(bars.values, data[list(COLUMNS[1:])].to_numpy())


@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize("cause", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_import_that_ends_early_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: BaseException, earlier: bool
) -> None:
    source, to = two_tickers(tmp_path), tmp_path / "bars"
    if earlier:
        taken(source, to)
    before = {path: path.read_bytes() for path in to.rglob("*")} if earlier else None
    written = 0

    def write(*arguments: Any) -> None:
        nonlocal written
        written += 1
        if written == 2:
            raise cause
        write_file(*arguments)

    monkeypatch.setattr(folder, "write_file", write)
    result = run("--from", source, "--to", to)
    if isinstance(cause, KeyboardInterrupt):
        assert result.exit_code == 130
        assert result.output.endswith("interrupted; nothing was written\n")
    else:
        assert isinstance(result.exception, RunError)
    assert written == 2
    after = {path: path.read_bytes() for path in to.rglob("*")} if to.exists() else None
    assert after == before


def test_an_interrupt_at_any_line_of_the_writing_writes_all_files_or_none(tmp_path: Path) -> None:
    source, outcomes = two_tickers(tmp_path), []
    for line in range(100):
        to = tmp_path / f"bars-{line}"
        exit_code, lines = import_interrupted(source, to, line)
        if lines <= line:
            break
        outcomes.append((exit_code, len(list(to.glob("*"))) if to.exists() else 0))
    assert outcomes == sorted(outcomes, reverse=True)
    assert set(outcomes) == {(130, 0), (0, 2)}


def import_interrupted(source: Path, to: Path, line: int) -> tuple[int, int]:
    """Import with Ctrl-C before a line of the writing; return the exit code and number of lines."""
    lines = 0

    def traced(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != folder.__file__:
            return None
        if event == "line" and frame.f_code.co_name in ("_write", "_without_interrupts"):
            lines += 1
            if lines - 1 == line:
                signal.raise_signal(signal.SIGINT)
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        return run("--from", source, "--to", to).exit_code, lines
    finally:
        sys.settrace(before)


def two_tickers(tmp_path: Path) -> Path:
    """Return a folder with the files of two tickers."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("BTC_USDT", "ETH_USDT"):
        frame(50).to_csv(source / f"{name}-1h.csv", index=False)
    return source


# ---- small files that expand ----


def bomb(path: Path, rows: int) -> None:
    """Write equal rows in the format of the path's suffix."""
    line = b"2024-01-01 00:00,100,100,100,100,1\n"
    if path.suffix == ".gz":
        with gzip.open(path, "wb") as stream:
            stream.write(line * rows)
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for number in range(4):
                archive.writestr(f"BTC_USDT-1h-{number}.csv", line * (rows // 4))
    else:
        data = pd.DataFrame({name: np.ones(rows) for name in COLUMNS[1:]})
        data.insert(0, "date", pd.Timestamp("2024-01-01", tz="UTC"))
        (data.to_feather if path.suffix == ".feather" else data.to_parquet)(path)


@pytest.mark.parametrize(
    "name", ["BTC_USDT-1h.csv.gz", "BTC_USDT-1h.zip", "BTC_USDT-1h.feather", "BTC_USDT-1h.parquet"]
)
def test_a_file_that_expands_beyond_the_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(expanding, "MOST", 2**20)
    monkeypatch.setattr(expanding, "MOST_TIMES", 2)
    monkeypatch.setattr(expanding, "_CHUNK", 2**16)
    source = tmp_path / "from"
    source.mkdir()
    path = source / name
    bomb(path, 60_000)  # of zip, each member is below the limit, and all together are above
    assert path.stat().st_size < 2**20
    assert f"{path}: expands to more than 0.000977 GiB" in refused(source, tmp_path / "to")
    if path.suffix in (".feather", ".parquet"):
        with pytest.raises(InputError, match="expands to more than"):
            read_bars(path)


class Endless:
    """A stream of zeros, which counts what was read."""

    def __init__(self) -> None:
        self.given = 0

    def read(self, size: int, /) -> bytes:
        self.given += size
        return bytes(size)


def test_a_table_and_all_tables_of_an_archive_have_limits_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The limits as they are: 1 GiB, and 100 times the size of a large archive.
    path = tmp_path / "large.zip"
    path.write_bytes(b"")
    assert expanding.Budget(path).most == expanding.MOST == 2**30
    with path.open("r+b") as file:
        file.truncate(2**25)
    assert expanding.Budget(path).most == 100 * 2**25
    monkeypatch.setattr(expanding, "MOST", 2**20)
    budget = expanding.Budget(path)
    for _ in range(3):  # members at the limit
        budget.take(2**20, 2**20)
    assert budget.left == budget.most - 3 * 2**20
    with pytest.raises(InputError, match=r"more than 0\.000977 GiB, .* \(32 MiB\)"):
        budget.take(1, 2**20 + 1)
    budget.left = 10
    budget.take(10, 10)
    with pytest.raises(InputError, match=r"more than 3\.12 GiB"):
        budget.take(1, 1)
    stream = Endless()
    with pytest.raises(InputError, match="expands to more than"):
        expanding.read_stream(stream, expanding.Budget(path))
    assert stream.given <= 2**20 + 2**20  # one chunk beyond the limit
    # The batches of a table count together.
    table = tmp_path / "large.parquet"
    pd.DataFrame({"x": np.random.default_rng(0).random(2**18)}).to_parquet(table)
    assert table.stat().st_size > 2**20
    with pytest.raises(InputError, match=r"more than 0\.000977 GiB"):
        expanding.read_parquet(table)


def test_the_stated_size_of_an_archive_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expanding, "MOST", 2**20)
    monkeypatch.setattr(expanding, "_CHUNK", 2**16)
    path = tmp_path / "from" / "BTC_USDT-1h.csv.gz"
    path.parent.mkdir()
    bomb(path, 60_000)
    data = bytearray(path.read_bytes())
    data[-4:] = (100).to_bytes(4, "little")  # gzip states the size at its end
    path.write_bytes(data)
    assert "expands to more than" in refused(path, tmp_path / "to")


def test_a_file_that_does_not_fit_in_memory_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr(tables, "read_stream", fail)
    path = tmp_path / "from" / "BTC_USDT-1h.csv.gz"
    path.parent.mkdir()
    bomb(path, 10)
    assert "does not fit in the memory" in refused(path, tmp_path / "to")
