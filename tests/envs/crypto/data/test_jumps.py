"""Bars that no market traded are found; crashes, fat tails and coarse prices are not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from envs.crypto.data.bar_files import PRICES, TickerBars, read_bars
from envs.crypto.data.bars import load_bars
from envs.crypto.data.check import check_dir
from envs.crypto.data.commands import data_commands
from envs.crypto.data.demo_market import make_demo_market
from envs.crypto.data.download import Downloaded, download
from envs.crypto.data.jumps import find_jumps, jump_problems, unusual_moves
from envs.crypto.data.sources import Source
from envs.crypto.data.timeframe import SECONDS
from envs.support.errors import InputError
from optimize.experiments.kinds import kind_of
from optimize.experiments.request import Request

RECORDED = sorted(
    (Path(__file__).parents[4] / "../shared/data").resolve().glob("binance_*/*.feather")
)
TICKS = 12  # trades per bar
START = 1_577_836_800  # 2020-01-01


def bars_of(values: np.ndarray, timeframe: str = "1h") -> TickerBars:
    """Return bars of (n, 5) values, without a file."""
    time = START + SECONDS[timeframe] * np.arange(len(values))
    none = np.empty(0, dtype=np.int64)
    return TickerBars(Path("X_USDT-1h.csv"), "X/USDT", timeframe, time, values, none)


def from_trades(prices: np.ndarray, timeframe: str = "1h", per_bar: int = TICKS) -> TickerBars:
    """Return the bars of trades, `per_bar` in each."""
    bars = prices[: len(prices) // per_bar * per_bar].reshape(-1, per_bar)
    volume = np.random.default_rng(0).lognormal(3, 1, len(bars))
    columns = [bars[:, 0], bars.max(axis=1), bars.min(axis=1), bars[:, -1], volume]
    return bars_of(np.stack(columns, axis=1), timeframe)


def garch(n: int, seed: int, deviation: float = 0.004) -> np.ndarray:
    """Return prices of n trades: GARCH(1, 1) volatility, Student t with 3 degrees of freedom."""
    rng = np.random.default_rng(seed)
    shocks = rng.standard_t(3, n) / np.sqrt(3)
    variance, returns = deviation**2, np.empty(n)
    for i in range(n):
        returns[i] = np.sqrt(variance) * shocks[i]
        variance = 0.05 * deviation**2 + 0.10 * returns[i] ** 2 + 0.85 * variance
        variance = min(variance, (10 * deviation) ** 2)
    return 100 * np.exp(np.cumsum(returns))


MARKET = make_demo_market(3, assets=1, bars=1500)
REALISTIC = bars_of(np.stack([getattr(MARKET, name)[:, 0] for name in (*PRICES, "volume")], axis=1))


def changed(rows: slice, columns: list[int], factor: float) -> TickerBars:
    values = REALISTIC.values.copy()
    values[rows, columns] *= factor
    return dataclasses.replace(REALISTIC, values=values)


# ---- what is found ----


@settings(max_examples=150, deadline=None)
@given(
    row=st.integers(0, len(REALISTIC.values) - 1),
    columns=st.sampled_from([[0], [1], [2], [3], [0, 1], [1, 3], [0, 2], [2, 3], [0, 1, 2, 3]]),
    factor=st.sampled_from([1000.0, 1 / 1000, 100.0, 0.01]),
)
def test_a_scaled_bar_is_refused(row: int, columns: list[int], factor: float) -> None:
    bars = changed(slice(row, row + 1), columns, factor)
    if bars.values[row, 1] < bars.values[row, 2]:
        return  # refused as high below low
    if len(columns) == 2 and row in (0, len(bars.values) - 1):
        return  # nothing outside the bar says that it is not a move within it
    found = find_jumps(bars)
    assert found, (row, columns, factor)
    assert {jump.row for jump in found} <= {row, row + 1}


def test_the_sentence_names_file_row_value_and_the_way_out() -> None:
    (sentence,) = jump_problems(changed(slice(700, 701), [0, 1, 2, 3], 1000.0))
    value = float(REALISTIC.values[700, 1]) * 1000
    assert sentence.startswith(f"X_USDT-1h.csv: row 700 (2020-01-30 04:00 UTC): high {value!r} ")
    assert sentence.endswith("correct or remove the row, or take it as it is with --accept-jumps")


@pytest.mark.parametrize("factor", [2.0, 0.5, 10.0])
def test_two_wrong_bars_are_one_spike(factor: float) -> None:
    (jump,) = find_jumps(changed(slice(700, 702), [0, 1, 2, 3], factor))
    assert (jump.row, jump.kind) == (700, "spike")


@settings(max_examples=100, deadline=None)
@given(
    row=st.integers(3, len(REALISTIC.values) - 4),
    split=st.sampled_from([2, 3, 4, 5, 7, 10, 20]),
    inverse=st.booleans(),
    chained=st.booleans(),
)
def test_a_split_names_its_factor_and_its_command(
    row: int, split: int, inverse: bool, chained: bool
) -> None:
    factor = float(split) if inverse else 1 / split
    values = changed(slice(row, None), [0, 1, 2, 3], factor).values
    if chained:  # a vendor that writes the last close as the open
        # The bar's own move is part of what is seen of the split.
        assume(abs(np.log(REALISTIC.values[row, 3] / REALISTIC.values[row - 1, 3])) < 0.04)
        values[1:, 0] = values[:-1, 3]
        values[:, 1] = values[:, :4].max(axis=1)
        values[:, 2] = values[:, :4].min(axis=1)
    bars = dataclasses.replace(REALISTIC, values=values)
    (jump,) = find_jumps(bars)
    assert (jump.row, jump.kind) == (row, "split")
    assert jump.factor == pytest.approx(1 / factor)
    (sentence,) = jump_problems(bars)
    assert f":{1 / factor:.6g}`" in sentence
    assert "--split X/USDT=" in sentence


@pytest.mark.parametrize("factor", [100.0, 1 / 1000, 40_000.0])
def test_a_new_unit_of_volume_is_found(factor: float) -> None:
    bars = changed(slice(801, None), [4], factor)
    (jump,) = find_jumps(bars)
    assert jump.kind == "volume"
    assert abs(jump.row - 801) <= 2
    assert jump.factor == pytest.approx(factor, rel=0.5)


def test_accepted_jumps_are_not_reported_again_but_new_ones_are() -> None:
    bars = changed(slice(700, 701), [0, 1, 2, 3], 1000.0)
    accepted = {"accepted_jumps": str(int(bars.time[700]))}
    bars = dataclasses.replace(bars, metadata=accepted)
    assert list(jump_problems(bars)) == []
    bars.values[900, :4] *= 1000
    assert "row 900" in next(jump_problems(bars))


# ---- import, check, download, training ----


def write(folder: Path, factor: float, rows: slice, name: str = "BTC_USDT-1h.csv") -> Path:
    """Write realistic bars of which some are scaled."""
    bars = changed(rows, [0, 1, 2, 3], factor)
    folder.mkdir(parents=True, exist_ok=True)
    dates = pd.to_datetime(bars.time, unit="s", utc=True)
    data = pd.DataFrame(bars.values, columns=[*PRICES, "volume"])
    data.insert(0, "date", dates)
    data.to_csv(folder / name, index=False)
    return folder


def data_command(*arguments: str | Path) -> Result:
    return CliRunner().invoke(data_commands(), [str(argument) for argument in arguments])


def test_import_refuses_a_spike_and_records_that_it_was_accepted(tmp_path: Path) -> None:
    source, to = write(tmp_path / "from", 1000, slice(700, 701)), tmp_path / "to"
    result = data_command("import", "--from", source, "--to", to)
    assert result.exit_code == 2
    assert f"{source / 'BTC_USDT-1h.csv'}: row 700 (2020-01-30 04:00 UTC): high" in result.output
    assert not to.exists()
    result = data_command("import", "--from", source, "--to", to, "--accept-jumps")
    assert result.exit_code == 0
    assert "accepted jumps: 1" in result.output
    # The record is in the file, so whatever reads it later takes the bars, also a later import.
    assert len(load_bars(to, "1h")) == len(REALISTIC.time)
    assert data_command("import", "--from", source, "--to", to).exit_code == 0
    (report,) = check_dir(to)
    assert report.all_problems == ()
    assert report.tickers[0].jumps == 1


def test_import_adjusts_a_split_once(tmp_path: Path) -> None:
    source, to = write(tmp_path / "from", 0.25, slice(700, None)), tmp_path / "to"
    result = data_command("import", "--from", source, "--to", to)
    assert result.exit_code == 2
    flag = "BTC/USDT=2020-01-30T04:00:4"
    assert f"--split {flag}`" in result.output
    for again in (["--split", flag], [], ["--split", flag]):  # recorded, and never done twice
        assert data_command("import", "--from", source, "--to", to, *again).exit_code == 0
        bars = read_bars(to / "BTC_USDT-1h.parquet")
        np.testing.assert_allclose(bars.values[:, :4], REALISTIC.values[:, :4] / 4)
        np.testing.assert_allclose(bars.values[:700, 4], REALISTIC.values[:700, 4] * 4)
        np.testing.assert_array_equal(bars.values[700:, 4], REALISTIC.values[700:, 4])


def test_import_adjusts_the_unit_of_volumes(tmp_path: Path) -> None:
    source, to = write(tmp_path / "from", 1, slice(0)), tmp_path / "to"
    flag = "BTC/USDT=2020-01-30T04:00:1000"
    assert (
        data_command("import", "--from", source, "--to", to, "--volume-unit", flag).exit_code == 2
    )
    assert not to.exists()  # the adjustment itself makes the jump
    flag = "BTC/USDT=2020-01-30T04:00:2"
    assert (
        data_command("import", "--from", source, "--to", to, "--volume-unit", flag).exit_code == 0
    )
    bars = read_bars(to / "BTC_USDT-1h.parquet")
    np.testing.assert_array_equal(bars.values[:700, 4], REALISTIC.values[:700, 4] * 2)
    np.testing.assert_array_equal(bars.values[:, :4], REALISTIC.values[:, :4])


@pytest.mark.parametrize(
    "text", ["", "4", "2020-01-01", "BTC=2020-01-01:0", "BTC=soon:4", "=2020-01-01:x"]
)
def test_a_wrong_split_is_refused(tmp_path: Path, text: str) -> None:
    source = write(tmp_path / "from", 1, slice(0))
    result = data_command("import", "--from", source, "--to", tmp_path / "to", "--split", text)
    assert isinstance(result.exception, InputError)
    assert "write TICKER=TIME:FACTOR" in str(result.exception)


def test_a_split_of_another_ticker_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "from", 1, slice(0))
    flags = ["--split", "ETH/USDT=2020-01-10:4"]
    result = data_command("import", "--from", source, "--to", tmp_path / "to", *flags)
    assert isinstance(result.exception, InputError)
    assert "--split ETH/USDT: not among the imported tickers, BTC/USDT" in str(result.exception)
    assert not (tmp_path / "to").exists()


def test_check_and_training_refuse_a_folder_with_a_spike(tmp_path: Path) -> None:
    folder = write(tmp_path, 1000, slice(700, 701))
    (report,) = check_dir(folder)
    assert "row 700" in report.all_problems[0]
    (report,) = check_dir(folder, accept_jumps=True)
    assert report.all_problems == ()
    request = Request(data_dir=folder)
    with pytest.raises(InputError, match=r"row 700 .* --accept-jumps"):
        kind_of("crypto").load_bars(request)
    taken = kind_of("crypto").load_bars(dataclasses.replace(request, accept_jumps=True))
    assert len(taken) == len(REALISTIC.time)


class Recorded(Source):
    """A source of which one bar is wrong."""

    quote, name = "USDT", "recorded"

    def __init__(self) -> None:
        self.rows = np.column_stack([REALISTIC.time, REALISTIC.values])
        self.rows[700, 1:5] *= 1000

    def check(self, tickers: tuple[str, ...], timeframe: str) -> None:
        """Accept everything."""

    def pages(self, _ticker: str, _timeframe: str, start: int, stop: int) -> Iterator[np.ndarray]:
        yield self.rows[(self.rows[:, 0] >= start) & (self.rows[:, 0] < stop)]


def test_a_download_reports_a_spike_keeps_the_file_and_records_acceptance(tmp_path: Path) -> None:
    first, half, end = (int(REALISTIC.time[i]) for i in (0, 1000, -1))

    def fetch(stop: int, accept: bool = False) -> Downloaded:
        (result,) = download(Recorded(), tmp_path, "1h", ["BTC"], first, stop, accept_jumps=accept)
        return result

    (sentence,) = fetch(half).problems
    assert "row 700" in sentence
    assert fetch(end).new > 0  # a file with a jump is continued
    assert fetch(end, accept=True).problems == ()
    assert fetch(end).problems == ()
    assert len(load_bars(tmp_path, "1h")) == len(REALISTIC.time) - 1


# ---- what passes ----


@pytest.mark.skipif(not RECORDED, reason="no recorded bars in ../shared/data")
def test_recorded_bars_pass() -> None:
    assert [s for path in RECORDED for s in jump_problems(read_bars(path))] == []


def crash(name: str) -> np.ndarray:
    """Return prices of trades, 10 s apart over three days, with a crash in their middle."""
    rng = np.random.default_rng(5)
    n = 3 * 8640
    log = np.cumsum(rng.standard_t(3, n) * 0.0004)
    middle = n // 2
    if name == "march 2020":  # BTC, 12 and 13 March: -50% within a day, half of it back in an hour
        hours = [7900, 7850, 7700, 7300, 6150, 5900, 6100, 5950, 5700, 4800, 4300, 3800, 5400, 5600]
        path = np.interp(np.arange(360 * 13), 360 * np.arange(14), np.log(hours))
        log[middle : middle + len(path)] += path - path[0]
        log[middle + len(path) :] += path[-1] - path[0]
        log[middle : middle + len(path)] += 0.004 * rng.standard_t(3, len(path)).clip(-8, 8)
    elif name == "luna":  # 9 to 13 May 2022: 60 to 0.0001
        fall = np.cumsum(np.full(n - middle, -13.0 / (n - middle)))
        log[middle:] += fall + np.cumsum(0.005 * rng.standard_t(3, n - middle).clip(-8, 8))
    elif name == "may 2021":  # -45% within two hours, 40% back in one
        path = np.interp(np.arange(1440), [0, 720, 1080, 1440], [0.0, -0.60, -0.26, -0.30])
        log[middle : middle + 1440] += path + 0.002 * rng.standard_t(3, 1440)
        log[middle + 1440 :] += path[-1]
    elif name == "flash crash":  # -70% for two minutes, and back
        log[middle : middle + 12] += np.array(
            [0, -0.3, -0.8, -1.2, *[-1.2] * 4, -0.9, -0.5, -0.2, 0]
        )
    elif name == "wick":  # one trade at 13% of the price
        log[middle + 3] += np.log(0.13)
    return 100 * np.exp(log)


@pytest.mark.parametrize("timeframe", ["1m", "5m", "1h"])
@pytest.mark.parametrize("name", ["march 2020", "may 2021", "luna", "flash crash", "wick"])
def test_crashes_pass(name: str, timeframe: str) -> None:
    bars = from_trades(crash(name), timeframe, SECONDS[timeframe] // 10)
    assert list(jump_problems(bars)) == []


def test_a_large_move_is_unusual_but_taken() -> None:
    values = REALISTIC.values.copy()
    values[800:, :4] *= 0.4
    values[800, 0], values[800, 1] = values[799, 3], values[799, 3]
    bars = dataclasses.replace(REALISTIC, values=values)
    assert list(jump_problems(bars)) == []
    ((row, factor),) = unusual_moves(bars)
    assert row == 800
    assert factor == pytest.approx(0.4, rel=0.05)


@pytest.mark.parametrize("seed", range(8))
def test_fat_tails_pass(seed: int) -> None:
    trades = garch(20_000, seed)
    assert list(jump_problems(from_trades(trades, "1h"))) == []
    assert list(jump_problems(from_trades(trades, "1m", 4))) == []
    # Shares: gaps over night, of Student t as well.
    rng = np.random.default_rng(seed)
    nights = np.repeat(np.cumsum(0.006 * rng.standard_t(3, 5000 // TICKS + 1)), TICKS)
    assert list(jump_problems(from_trades(trades[:5000] * np.exp(nights[:5000]), "1d"))) == []


def test_dividends_empty_bars_and_coarse_prices_pass() -> None:
    rng = np.random.default_rng(1)
    share = garch(30_000, 11, 0.003)
    days = np.arange(len(share)) // TICKS
    share = share * 0.98 ** (days // 63)  # 2% each quarter
    assert list(jump_problems(from_trades(share, "1d"))) == []
    # One-minute bars of which most have no trade.
    values = np.repeat(from_trades(garch(6000, 12), "1m").values, 10, axis=0)
    values[np.arange(len(values)) % 10 > 0, :3] = values[np.arange(len(values)) % 10 > 0, 3:4]
    values[np.arange(len(values)) % 10 > 0, 4] = 0.0
    assert list(jump_problems(bars_of(values, "1m"))) == []
    # A price of one to three ticks of 1e-8.
    ticks = 1e-8 * np.clip(2 + np.cumsum(rng.choice([-1, 0, 0, 0, 1], 12_000)) % 3, 1, 3)
    assert list(jump_problems(from_trades(ticks, "1m", 4))) == []
    tiny = from_trades(np.round(garch(12_000, 13) * 1e-8, 8), "1m", 4)
    assert list(jump_problems(tiny)) == []


def test_a_pump_is_no_unit_of_volume() -> None:
    values = REALISTIC.values.copy()
    values[800:872, 4] *= 300  # three days
    values[:, 4] *= np.exp(np.linspace(0, 5, len(values)))  # and a coin that becomes known
    assert list(jump_problems(dataclasses.replace(REALISTIC, values=values))) == []


def test_short_files_pass() -> None:
    for n in range(1, 8):
        assert find_jumps(bars_of(REALISTIC.values[:n])) == []
