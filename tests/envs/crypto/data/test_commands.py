"""`sweepd data`: output and exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from sweepd.envs.crypto.data.bars import load_bars
from sweepd.envs.crypto.data.commands import data_commands, parse_time
from sweepd.envs.support.errors import InputError
from tests.envs.bar_samples import START, frame, put, sample_bars
from tests.envs.loopback import Market, serving


def run(*arguments: str | Path) -> Any:
    """Run the command; `result.output` combines standard output and error."""
    return CliRunner().invoke(data_commands(), [str(argument) for argument in arguments])


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


def test_download_then_resume(tmp_path: Path, market: Market) -> None:
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
    assert run(*arguments).exit_code == 0  # repeated: the same bits in the same files
    assert load_bars(tmp_path, "1h").fingerprint == bars.fingerprint


def test_demo_market_is_not_written_into_a_folder_of_other_bars(tmp_path: Path) -> None:
    put(tmp_path, "BTC_USDT-1h.feather", frame())
    sentence = refused("demo", "--data-dir", tmp_path, "--assets", "2", "--bars", "2000")
    assert "BTC_USDT-1h.feather is not part of this demo market" in sentence
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_name_with_escape_characters_reaches_no_terminal(tmp_path: Path) -> None:
    """A terminal would obey them: colours, title, cursor, clipboard."""
    name = "\x1b]0;title\x07\x1b[31mX_USDT-1h.csv"
    (tmp_path / "good").mkdir()
    (tmp_path / "bad").mkdir()
    put(tmp_path / "good", name, frame(300))
    put(tmp_path / "bad", name, frame(300).assign(close=-1.0))
    outputs = [
        run("import", "--from", tmp_path / folder / name, "--to", tmp_path / "to", *words).output
        for folder in ("good", "bad")
        for words in ((), ("--ticker", "X\x1b[31m/USDT"))
    ]
    assert any("31mX_USDT" in output for output in outputs), outputs
    for output in outputs:
        assert output
        assert not set(output) & {"\x1b", "\x07"}, repr(output)


def test_help_describes_the_commands() -> None:
    for name, text in {
        "import": "Known are the files of",
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
