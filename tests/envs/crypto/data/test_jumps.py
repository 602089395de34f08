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

from sweepd.envs.crypto.data.bar_files import PRICES, TickerBars, read_bars
from sweepd.envs.crypto.data.bars import load_bars
from sweepd.envs.crypto.data.check import check_dir
from sweepd.envs.crypto.data.commands import data_commands
from sweepd.envs.crypto.data.demo_market import make_demo_market
from sweepd.envs.crypto.data.download import Downloaded, download
from sweepd.envs.crypto.data.importing.adjusting import (
    Adjustment,
    adjust,
    adjustments_of,
    parse_adjustments,
)
from sweepd.envs.crypto.data.jumps import (
    adjusting_flag,
    find_jumps,
    jump_problems,
    unusual_moves,
    with_accepted,
)
from sweepd.envs.crypto.data.sources import Source
from sweepd.envs.crypto.data.timeframe import SECONDS
from sweepd.envs.support.errors import InputError
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.objectives.table import objective_of

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
        objective_of("crypto").load_bars(request)
    taken = objective_of("crypto").load_bars(dataclasses.replace(request, accept_jumps=True))
    assert len(taken) == len(REALISTIC.time)


class Recorded(Source):
    """A source of which one bar is wrong."""

    quote, name, adjusts = "USDT", "recorded", False

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


# ---- limits, on bars whose changes are known ----


def zigzag(swing: float, bars: int = 400) -> np.ndarray:
    """Return (n, 5) bars whose closes alternate by a swing (of the logarithm); gaps are tiny.

    The robust deviation of their changes is 1.4826 swings.
    """
    closes = 100.0 * np.exp(swing * (np.arange(bars) % 2))
    opens = np.concatenate([[closes[1]], closes[:-1]]) * 1.0001
    volume = np.full(bars, 10.0)
    highest, lowest = np.maximum(opens, closes), np.minimum(opens, closes)
    return np.stack([opens, highest, lowest, closes, volume], axis=1)


def kinds(values: np.ndarray) -> list[tuple[int, str]]:
    return [(jump.row, jump.kind) for jump in find_jumps(bars_of(values))]


def scaled(values: np.ndarray, rows: slice, columns: list[int], factor: float) -> np.ndarray:
    values = values.copy()
    values[rows, columns] *= factor
    return values


BAR = [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("swing", "factor", "found"),
    [
        (0.01, 1.45, False),  # below the factor 1.5, however calm the market is
        (0.01, 1.6, True),
        (0.04, 2.9, False),  # 20 robust deviations are a factor of 3.3
        (0.04, 3.6, True),
        (0.2, 40.0, False),  # 20 deviations are a factor of 376; above 50 nothing is a move
        (0.2, 80.0, True),
    ],
)
def test_spikes_are_beyond_20_robust_deviations_and_a_factor(
    swing: float, factor: float, found: bool
) -> None:
    values = scaled(zigzag(swing), slice(200, 201), BAR, factor)
    assert kinds(values) == ([(200, "spike")] if found else [])


def test_spikes_do_not_count_in_their_own_deviation() -> None:
    # Three in every six bars of a hundred: near the first, most changes are spikes.
    values = zigzag(0.01)
    for row in range(190, 211, 4):
        values = scaled(values, slice(row, row + 1), BAR, 2.0)
    assert kinds(values) == [(row, "spike") for row in range(190, 211, 4)]


def test_bars_without_trades_do_not_make_a_market_calm() -> None:
    # Most bars repeat the last close; the others move by 8%, so 20 deviations are a factor of 10.
    values = np.repeat(zigzag(0.08, 200), 4, axis=0)
    still = np.arange(len(values)) % 4 > 0
    values[still, :3] = values[still, 3:4]
    assert kinds(scaled(values, slice(400, 401), BAR, 3.5)) == []
    assert kinds(scaled(values, slice(400, 401), BAR, 20.0)) == [(400, "spike")]


@pytest.mark.parametrize(("bars", "found"), [(15, [(8, "spike")]), (16, [])])
def test_ten_changes_say_how_much_prices_vary(bars: int, found: list[tuple[int, str]]) -> None:
    # 20 deviations are a factor of 10.7; five bars around the spike do not count.
    assert kinds(scaled(zigzag(0.08, bars), slice(8, 9), BAR, 3.5)) == found


def test_a_pump_that_keeps_a_part_is_no_spike() -> None:
    values = scaled(zigzag(0.01), slice(200, 201), [1, 3], 20.0)
    values = scaled(values, slice(201, None), BAR, 4.0)
    values[201, [0, 1]] = values[200, 3] * 1.0001  # no gap
    assert (200, "spike") not in kinds(values)


@pytest.mark.parametrize(("factor", "found"), [(9.0, []), (11.0, [(200, "wick")])])
def test_wicks_begin_at_a_tenth_and_ten_times(factor: float, found: list[tuple[int, str]]) -> None:
    values = zigzag(0.01)
    assert kinds(scaled(values, slice(200, 201), [1], factor)) == found
    assert kinds(scaled(values, slice(200, 201), [2], 1 / factor)) == found


@pytest.mark.parametrize(("factor", "found"), [(1.08, []), (1.13, [(200, "outside")])])
def test_prices_outside_low_and_high_are_found_from_ten_percent(
    factor: float, found: list[tuple[int, str]]
) -> None:
    values = zigzag(0.001)
    assert kinds(scaled(values, slice(200, 201), [0], factor)) == found
    assert kinds(scaled(values, slice(200, 201), [0], 1 / factor)) == found


def test_splits_are_beyond_8_robust_deviations() -> None:
    # 8 deviations are a factor of 2.14.
    wild = zigzag(0.064)
    assert kinds(scaled(wild, slice(200, None), BAR, 1 / 2)) == []
    assert kinds(scaled(wild, slice(200, None), BAR, 1 / 3)) == [(200, "split")]
    assert kinds(scaled(zigzag(0.03), slice(200, None), BAR, 1 / 2)) == [(200, "split")]


def test_the_factor_of_a_split_is_looser_where_prices_vary() -> None:
    # By three deviations, at least 5% and at most 10%; 2.145 is 7% above 2.
    for swing, found in ((0.001, []), (0.02, [(200, "split")])):
        assert kinds(scaled(zigzag(swing), slice(200, None), BAR, 1 / 2.145)) == found
    assert kinds(scaled(zigzag(0.04), slice(200, None), BAR, 1 / 2.23)) == []


def test_a_few_opens_of_their_own_leave_a_file_chained() -> None:
    values = scaled(zigzag(0.01), slice(200, None), BAR, 1 / 2)
    values[1:, 0] = values[:-1, 3]
    values[50, 0] *= 1.0001
    values[:, 1], values[:, 2] = values[:, :4].max(axis=1), values[:, :4].min(axis=1)
    assert kinds(values) == [(200, "split")]


@pytest.mark.parametrize(
    ("factor", "named"), [(2.04, 2.0), (2.3, None), (8.0, 8.0), (10.0, 10.0), (13.5, 13.5)]
)
def test_gaps_that_stay_are_splits_near_their_factors(factor: float, named: float | None) -> None:
    found = find_jumps(bars_of(scaled(zigzag(0.001), slice(200, None), BAR, 1 / factor)))
    assert [(jump.row, jump.kind) for jump in found] == ([] if named is None else [(200, "split")])
    assert [jump.factor for jump in found] == ([] if named is None else [pytest.approx(named)])


def test_a_gap_that_returns_is_no_split() -> None:
    # An open at twice the price: less than 20 deviations (a factor of 3.3), more than 8.
    values = scaled(zigzag(0.04), slice(200, 201), [0, 1], 2.0)
    assert kinds(values) == []


def test_volumes_must_stay_apart_for_a_week() -> None:
    values = zigzag(0.001, 24 * 30)
    days = np.arange(len(values)) // 24
    # The median of a day rises by the factor 100, but three days of every earlier week are above.
    values[:, 4] = np.where(days < 15, np.where(days % 7 < 4, 1.0, 500.0), 100.0)
    assert kinds(values) == []
    values[:, 4] = np.where(days < 15, 1.0, 100.0)
    assert kinds(values) == [(15 * 24, "volume")]
    # The largest earlier day and the smallest later one are apart by the factor 10.
    for largest, found in ((12.0, []), (9.0, [(15 * 24, "volume")])):
        values[:, 4] = np.where(days < 15, np.where(days % 7 < 6, 1.0, largest), 100.0)
        assert kinds(values) == found


def test_days_that_are_mostly_empty_say_nothing_of_volumes() -> None:
    values = zigzag(0.001, 24 * 30)
    hours = np.arange(len(values))
    values[:, 4] = np.where(hours // 24 < 15, 1.0, 100.0)
    values[hours % 24 > 3, 4] = 0.0
    assert kinds(values) == []


def test_the_row_is_the_first_with_the_new_unit() -> None:
    values = zigzag(0.001, 24 * 30)
    values[367:, 4] = 1000.0 * 10.0
    (jump,) = find_jumps(bars_of(values))
    assert (jump.row, jump.factor) == (367, 1000.0)


def test_accepting_keeps_what_was_accepted_before() -> None:
    first = bars_of(scaled(zigzag(0.01), slice(100, 101), BAR, 3.0))
    accepted = with_accepted(first)
    times = [int(first.time[row]) for row in (100, 300)]
    assert accepted.accepted == {times[0]}
    # Later the first bar was corrected, and another one is wrong.
    later = bars_of(scaled(zigzag(0.01), slice(300, 301), BAR, 3.0))
    both = with_accepted(dataclasses.replace(later, metadata=accepted.metadata))
    assert both.accepted == set(times)
    untouched = bars_of(zigzag(0.01))
    assert with_accepted(untouched) is untouched


def test_every_kind_of_jump_has_its_sentence() -> None:
    values = scaled(zigzag(0.01, 24 * 30), slice(100, 101), BAR, 3.0)
    values = scaled(values, slice(150, 151), [1], 20.0)
    values = scaled(values, slice(160, 161), BAR, 3.0)
    values = scaled(values, slice(400, None), BAR, 0.25)
    values[367:, 4] *= 1000.0
    bars = bars_of(values)
    spike, wick, split, volume = jump_problems(bars, "sweepd data import --from a --to b")
    assert "row 100 " in spike
    assert "(2 such rows)" in spike
    assert "row 150 " in wick
    assert "such rows" not in wick
    time = pd.Timestamp(START + 400 * 3600, unit="s").strftime("%Y-%m-%dT%H:%M")
    assert f"`sweepd data import --from a --to b --split X/USDT={time}:4`" in split
    assert " --volume-unit X/USDT=" in volume
    # A bar of a day is named by its date alone.
    days = bars_of(values, "1d")
    named = [adjusting_flag("X/USDT", jump) for jump in find_jumps(days) if jump.kind == "split"]
    assert named == ["--split X/USDT=2021-02-04:4"]


def test_jumps_are_not_called_unusual() -> None:
    values = scaled(zigzag(0.01), slice(100, 101), BAR, 3.0)
    values = scaled(values, slice(200, None), BAR, 0.25)
    assert unusual_moves(bars_of(values)) == []


# ---- adjusting ----


def test_adjustments_change_what_they_name_before_their_bar() -> None:
    seconds, values = np.array([10, 20, 30]), np.full((3, 5), 8.0)
    kept = values.copy()
    split = adjust(seconds, values, [Adjustment("split", None, 20, 4.0)])
    assert split.tolist() == [[2.0] * 4 + [32.0], [8.0] * 5, [8.0] * 5]
    unit = adjust(seconds, values, [Adjustment("volume-unit", None, 30, 0.25)])
    assert unit.tolist() == [[8.0] * 4 + [2.0]] * 2 + [[8.0] * 5]
    assert (values == kept).all()


def test_adjustments_survive_their_record() -> None:
    made = parse_adjustments(
        "split", ["X/USDT=2020-08-31T02:00+02:00:0.333333333333", "2021:7"], ""
    )
    assert [one.time for one in made] == [1_598_832_000, 1_609_459_200]
    record = " ".join(one.record for one in made)
    assert [(one.time, one.factor) for one in adjustments_of(record)] == [
        (one.time, one.factor) for one in made
    ]


@pytest.mark.parametrize("text", ["2020:0", "2020:-2", "2020:inf", "2020:nan", "=2020:2", "x:2"])
def test_a_wrong_adjustment_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="write TICKER=TIME:FACTOR"):
        parse_adjustments("split", [text], "USDT")
