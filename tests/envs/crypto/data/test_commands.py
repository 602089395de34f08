"""`sweepd data`: output and exit codes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from envs.crypto.data.bars import load_bars, write_bars
from envs.crypto.data.commands import data_app, parse_time
from envs.support.errors import InputError
from tests.envs.bar_samples import START, frame, put, sample_bars
from tests.envs.loopback import Market, serving


def run(*arguments: str | Path) -> Any:
    """Run the command; `result.output` combines standard output and error."""
    return CliRunner().invoke(data_app, [str(argument) for argument in arguments])


def refused(*arguments: str | Path) -> str:
    """Return the InputError's message, which `sweepd` prints before exiting with 2."""
    result = run(*arguments)
    assert isinstance(result.exception, InputError)
    return str(result.exception)


@pytest.fixture
def market() -> Iterator[Market]:
    bars = sample_bars(300, ("X/USD",), "1h")
    columns = (bars.open, bars.high, bars.low, bars.close, bars.volume)
    rows = np.column_stack([bars.time.astype(float), *(column[:, 0] for column in columns)])
    with serving(Market(rows, 3600)) as served:
        yield served


def test_check_reports_each_ticker_and_the_set(tmp_path: Path) -> None:
    put(tmp_path, "BTC_USDT-1h.feather", frame(1000).drop([30, 31, 400]))
    data = frame(1000).drop([30, 31])
    data.loc[7, "volume"] = 0.0
    put(tmp_path, "ETH_USDT-1h.csv", data)
    result = run("check", "--data-dir", tmp_path)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    btc = next(line for line in lines if "BTC/USDT" in line)
    assert re.search(r"2024-01-01 00:00 +2024-02-11 15:00 +997 +3 +0\.300% +0 +[0-9a-f]{8}", btc), (
        btc
    )
    eth = next(line for line in lines if "ETH/USDT" in line)
    assert re.search(r"998 +2 +0\.200% +1 +[0-9a-f]{8}", eth), eth
    assert (
        "together: 1,000 bars × 2 tickers from 2024-01-01 00:00 to 2024-02-11 15:00 UTC"
        in result.output
    )
    assert "outages of all tickers: 1, 2 bars in all: 2024-01-02 06:00 (2)" in result.output
    assert f"fingerprint: {load_bars(tmp_path, '1h').fingerprint}" in result.output
    assert "SYNTHETIC" not in result.output


def test_check_prints_every_problem_and_exits_with_2(tmp_path: Path) -> None:
    write_bars(sample_bars(), tmp_path)
    data = frame()
    data.loc[4, "low"] = -1.0
    data.loc[6, "high"] = 0.5
    bad = put(tmp_path, "LTC_USDT-1h.feather", data)
    broken = tmp_path / "UNI_USDT-1h.parquet"
    broken.write_bytes(b"nothing")
    result = run("check", "--data-dir", tmp_path)
    assert result.exit_code == 2
    output = result.output.replace("\n", "")
    assert (
        f"{bad}: row 4 (2024-01-01 04:00 UTC): low is -1; prices must be finite and above zero"
        in output
    )
    assert f"{bad}: row 6 (2024-01-01 06:00 UTC): high 0.5 is below low" in output
    assert f"{broken}: cannot be read as parquet" in output
    assert "✗ LTC/USDT" in result.output
    assert "✓ BTC/USDT" in result.output
    assert "fingerprint:" not in result.output
    assert run("check", "--data-dir", tmp_path, "--tickers", "ETH,BTC").exit_code == 0


def test_check_applies_the_given_hole_limit(tmp_path: Path) -> None:
    put(tmp_path, "BTC_USDT-1h.feather", frame(100).drop([30, 31, 40]))
    result = run("check", "--data-dir", tmp_path)
    assert result.exit_code == 2
    assert "3 of 100 bars are missing (3.00%" in result.output
    assert run("check", "--data-dir", tmp_path, "--max-hole-share", "0.05").exit_code == 0
    assert run("check", "--data-dir", tmp_path, "--max-hole-share", "1.5").exit_code == 2


def test_check_covers_each_timeframe_by_default(tmp_path: Path) -> None:
    write_bars(sample_bars(), tmp_path)
    write_bars(sample_bars(timeframe="5m"), tmp_path)
    both = run("check", "--data-dir", tmp_path).output
    assert both.index("5m bars") < both.index("1h bars")
    one = run("check", "--data-dir", tmp_path, "--timeframe", "1h").output
    assert "5m bars" not in one


def test_check_reports_bad_arguments(tmp_path: Path) -> None:
    assert "no such folder" in refused("check", "--data-dir", tmp_path / "none")
    assert "no bar files here" in refused("check", "--data-dir", tmp_path)
    write_bars(sample_bars(), tmp_path)
    assert "has no such bars, only 1h" in refused(
        "check", "--data-dir", tmp_path, "--timeframe", "4h"
    )
    assert "there are BTC/USDT, ETH/USDT" in refused(
        "check", "--data-dir", tmp_path, "--tickers", "DOGE"
    )
    assert "--tickers is empty" in refused("check", "--data-dir", tmp_path, "--tickers", ",")


def test_check_of_the_real_bars(real_data: Path) -> None:
    result = run("check", "--data-dir", real_data / "binance_2021_2023_1h")
    assert result.exit_code == 0
    assert (
        "together: 23,999 bars × 11 tickers from 2021-04-04 21:00 to 2023-12-30 19:00 UTC"
        in result.output
    )
    assert "outages of all tickers: 5, 12 bars in all" in result.output


def test_download_then_check_then_resume(tmp_path: Path, market: Market) -> None:
    folder = tmp_path / "new" / "folder"
    names = ("--tickers", "BTC,ETH/USD", "--start", "2023-12-31")
    common = ("download", "--data-dir", folder, "--url", market.url, *names)
    result = run(*common, "--end", "2024-01-05")
    assert result.exit_code == 0, result.output
    assert (
        "BTC/USD: 96 new, 96 bars from 2024-01-01 00:00 to 2024-01-04 23:00 UTC in" in result.output
    )
    assert "ETH/USD: 100%" in result.output
    result = run(*common)
    assert "ETH/USD: 204 new, 300 bars" in result.output
    assert f"next: sweepd data check --data-dir {folder}" in result.output
    assert run("check", "--data-dir", folder).exit_code == 0
    bars = load_bars(folder, "1h")
    assert bars.tickers == ("BTC/USD", "ETH/USD")
    np.testing.assert_array_equal(bars.close[:, 1], market.rows[:, 4])


def test_download_refuses(tmp_path: Path, market: Market) -> None:
    common = ("download", "--data-dir", tmp_path, "--url", market.url)
    assert "'90m' is not known" in refused(*common, "--timeframe", "90m")
    assert "--start 'last week': not a date" in refused(*common, "--start", "last week")
    assert "--end '': not a date" in refused(*common, "--end", "")
    assert "--tickers is empty" in refused(*common, "--tickers", "")
    assert "only for --source alpaca" in refused(*common, "--source", "ccxt")
    assert "invalid symbol: AAVE/USD" in refused(*common)
    assert run(*common, "--source", "yahoo").exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_demo_market_is_written_and_described(tmp_path: Path) -> None:
    arguments = ("demo", "--data-dir", tmp_path, "--assets", "3", "--bars", "2000", "--seed", "7")
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert "SYNTHETIC demo market: 3 assets, 2,000 1h bars" in result.output
    bars = load_bars(tmp_path, "1h")
    assert bars.synthetic
    assert bars.close.shape == (2000, 3)
    assert f"fingerprint {bars.fingerprint}" in result.output
    assert ", SYNTHETIC" in run("check", "--data-dir", tmp_path).output
    assert run(*arguments).exit_code == 0  # repeated: the same bits in the same files
    assert load_bars(tmp_path, "1h").fingerprint == bars.fingerprint


def test_demo_market_is_not_written_into_a_folder_of_other_bars(tmp_path: Path) -> None:
    put(tmp_path, "BTC_USDT-1h.feather", frame())
    sentence = refused("demo", "--data-dir", tmp_path, "--assets", "2", "--bars", "2000")
    assert "BTC_USDT-1h.feather is not part of this demo market" in sentence
    assert len(list(tmp_path.iterdir())) == 1


def test_help_describes_the_commands() -> None:
    for name, text in {
        "check": "all problems of a folder",
        "download": "Repeating the command",
        "demo": "SYNTHETIC",
    }.items():
        result = run(name, "--help")
        assert result.exit_code == 0
        assert text in result.output


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2024-01-01", START),
        ("2024-01-01 05:00", START + 5 * 3600),
        ("2024-01-01T02:00+02:00", START),
    ],
)
def test_times_are_utc(text: str, seconds: int) -> None:
    assert parse_time("--start", text) == seconds
