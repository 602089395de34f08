"""Timeframes of markets with hours, and the same functions for markets that never close."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import exchange_calendars
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweepd.envs.crypto.data.alpaca import AlpacaSource
from sweepd.envs.crypto.data.bar_files import file_name, read_bars
from sweepd.envs.crypto.data.bars import Bars, load_bars, write_bars
from sweepd.envs.crypto.data.check import check_dir
from sweepd.envs.crypto.data.demo_market import make_demo_market
from sweepd.envs.crypto.data.download import download
from sweepd.envs.crypto.data.timeframe import (
    DAY,
    SECONDS,
    bar_end,
    bar_ends,
    bar_number,
    bar_seconds,
    bar_time,
    bars_at,
    bars_between,
    bars_per_day,
    bars_per_week,
    bars_per_year,
    closed_since,
    closing_clock,
    first_open_bar,
    grid_from,
    later,
    on_grid,
    opening_times,
)
from sweepd.envs.crypto.env import CryptoEnv
from sweepd.envs.crypto.features import compute_features, get_recipe
from sweepd.envs.crypto.market import make_market
from sweepd.envs.crypto.params import EnvParams
from sweepd.envs.crypto.scoring.metrics import sharpe
from sweepd.envs.crypto.splits import CrossValidation, make_splits
from sweepd.envs.support.errors import InputError
from tests.envs.bar_samples import frame, put

NY = "1d-XNYS"


def day(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


YEAR = opening_times(NY, day("2024-01-01"), day("2024-12-31"))


# ---- the grid ----


@given(
    timeframe=st.sampled_from(list(SECONDS)),
    time=st.integers(0, 4 * 10**9),
    bars=st.integers(-50, 50),
    count=st.integers(1, 50),
)
def test_markets_that_never_close_have_a_plain_grid(
    timeframe: str, time: int, bars: int, count: int
) -> None:
    """All functions are the arithmetic that they were before there were calendars."""
    step = bar_seconds(timeframe)
    opened = time // step * step
    assert bars_per_year(timeframe) == 365.25 * DAY / step
    assert bars_per_day(timeframe) == max(1, DAY // step)
    assert bars_per_week(timeframe) == max(1, 7 * DAY // step)
    assert bar_number(timeframe, opened) == opened // step
    assert bar_time(timeframe, opened // step) == opened
    assert later(timeframe, opened, bars) == opened + bars * step
    assert bars_between(timeframe, opened, opened + bars * step) == bars
    assert bar_end(timeframe, opened) == opened + step
    assert first_open_bar(timeframe, time + 0.5) == int((time + 0.5) // step) * step
    grid = opened + step * np.arange(count, dtype=np.int64)
    np.testing.assert_array_equal(opening_times(timeframe, opened, int(grid[-1])), grid)
    np.testing.assert_array_equal(grid_from(timeframe, opened, count), grid)
    np.testing.assert_array_equal(bar_ends(timeframe, grid), grid + step)
    np.testing.assert_array_equal(
        on_grid(timeframe, np.array([time, opened])), [time % step == 0, True]
    )


def test_new_york_in_2024() -> None:
    """Weekends and holidays have no bar; the third of July closes at 13:00 in New York."""
    assert len(YEAR) == 252
    closed = ("2024-01-01", "2024-07-04", "2024-11-28", "2024-12-25", "2024-06-15", "2024-06-16")
    assert not on_grid(NY, np.array([day(text) for text in closed])).any()
    assert on_grid(NY, YEAR).all()
    assert not on_grid(NY, YEAR + 3600).any()
    assert bar_end(NY, day("2024-07-02")) == day("2024-07-02T20:00")
    assert bar_end(NY, day("2024-07-03")) == day("2024-07-03T17:00")
    assert bar_end(NY, day("2024-12-02")) == day("2024-12-02T21:00")
    assert later(NY, day("2024-07-03")) == day("2024-07-05")
    assert later(NY, day("2024-07-05")) == day("2024-07-08")
    assert later(NY, day("2024-07-08"), -3) == day("2024-07-02")
    assert bars_between(NY, day("2024-06-28"), day("2024-07-08")) == 5
    assert 251.0 < bars_per_year(NY) < 252.0
    assert (bars_per_week(NY), bars_per_day(NY), bar_seconds(NY)) == (5, 1, DAY)


@given(
    calendar=st.sampled_from(["XNYS", "XLON", "XTKS", "XHKG"]),
    place=st.integers(200, 5000),
    bars=st.integers(-100, 100),
    seconds=st.integers(0, 10 * DAY),
)
def test_sessions_are_counted_consistently(
    calendar: str, place: int, bars: int, seconds: int
) -> None:
    timeframe = f"1d-{calendar}"
    time = bar_time(timeframe, place)
    assert bar_number(timeframe, time) == place
    assert later(timeframe, time, bars) == bar_time(timeframe, place + bars)
    assert bars_between(timeframe, time, later(timeframe, time, bars)) == bars
    days = grid_from(timeframe, time, 30)
    np.testing.assert_array_equal(opening_times(timeframe, time, int(days[-1])), days)
    ends = bar_ends(timeframe, days)
    assert (np.diff(days) >= DAY).all()
    assert (ends > days).all()
    assert (ends[:-1] <= days[1:]).all()
    assert [bar_end(timeframe, int(one)) for one in days] == ends.tolist()
    # The first open bar is the first one whose session has not closed.
    now = time + seconds
    assert first_open_bar(timeframe, now) == int(days[ends > now][0])


LENGTHS = ("1m", "5m", "15m", "30m", "1h", "2h", "4h")
CALENDARS = ("XNYS", "XLON", "XTKS", "XHKG")


@pytest.mark.parametrize("calendar", CALENDARS)
@pytest.mark.parametrize("length", LENGTHS)
def test_bars_of_a_session_are_those_of_the_library(calendar: str, length: str) -> None:
    """Over a year with two changes of the clock, short days, and breaks in Tokyo and Hong Kong."""
    first, last = "2024-01-02", "2024-12-31"
    expected = exchange_calendars.get_calendar(calendar).trading_index(
        first,
        last,
        pd.Timedelta(seconds=SECONDS[length]),
        intervals=True,
        closed="left",
        force=True,
    )
    timeframe = f"{length}-{calendar}"
    made = opening_times(timeframe, day(first), day(last) + DAY - 1)
    np.testing.assert_array_equal(made, expected.left.as_unit("s").asi8)
    np.testing.assert_array_equal(bar_ends(timeframe, made), expected.right.as_unit("s").asi8)


@given(
    calendar=st.sampled_from(CALENDARS),
    length=st.sampled_from(LENGTHS),
    place=st.integers(2000, 9000),
    bars=st.integers(-1000, 1000),
    share=st.floats(0.0, 1.0),
)
def test_bars_within_sessions_are_counted_consistently(
    calendar: str, length: str, place: int, bars: int, share: float
) -> None:
    timeframe = f"{length}-{calendar}"
    time = bar_time(timeframe, place)
    assert bar_number(timeframe, time) == place
    assert bar_number(timeframe, time - 1) == place
    assert later(timeframe, time, bars) == bar_time(timeframe, place + bars)
    assert bars_between(timeframe, time, later(timeframe, time, bars)) == bars
    grid = grid_from(timeframe, time, 50)
    np.testing.assert_array_equal(opening_times(timeframe, time, int(grid[-1])), grid)
    ends = bar_ends(timeframe, grid)
    assert [bar_end(timeframe, int(one)) for one in grid] == ends.tolist()
    lengths = ends - grid
    assert (lengths > 0).all()
    assert (lengths <= bar_seconds(timeframe)).all()
    assert (ends[:-1] <= grid[1:]).all()
    # A bar is cut short only where the market closes.
    assert (grid[1:] > ends[:-1])[lengths[:-1] < bar_seconds(timeframe)].all()
    # A moment is in a bar, or between two of them.
    moment = int(grid[0] + share * (grid[-1] - grid[0]))
    [found] = bars_at(timeframe, np.array([moment])).tolist()
    inside = grid[(grid <= moment) & (moment < ends)].tolist()
    assert inside == ([] if found == -1 else [found])
    # The first open bar is the first one that has not closed.
    assert first_open_bar(timeframe, moment) == int(grid[ends > moment][0])
    assert closed_since(timeframe, int(grid[0]), moment) == max(0, int((ends[1:] <= moment).sum()))


def test_new_york_by_the_hour() -> None:
    """Summer time ends on 3 November; the market closes at 13:00 on 29 November."""
    frame = "1h-XNYS"
    days = {
        "2024-11-01": ("13:30", "20:00", 7),
        "2024-11-04": ("14:30", "21:00", 7),
        "2024-11-29": ("14:30", "18:00", 4),
    }
    for date, (opens, closes, count) in days.items():
        bars = opening_times(frame, day(date), day(date) + DAY - 1)
        assert len(bars) == count
        assert (int(bars[0]), bar_end(frame, int(bars[-1]))) == (
            day(f"{date}T{opens}"),
            day(f"{date}T{closes}"),
        )
    assert later(frame, day("2024-11-29T17:30")) == day("2024-12-02T14:30")
    assert (bars_per_day(frame), bars_per_week(frame), bar_seconds(frame)) == (7, 35, 3600)
    assert bars_per_year(frame) == pytest.approx(1754.56)
    assert bars_per_week("1d-XNYS") == 5
    # The clock of features is New York's, in summer and in winter.
    summer, winter = (np.array([day(text)]) for text in ("2024-11-01T13:30", "2024-11-04T14:30"))
    assert closing_clock(frame, summer) % DAY == closing_clock(frame, winter) % DAY == 10.5 * 3600
    assert closing_clock("1h", summer) == summer + 3600
    assert closing_clock(NY, YEAR[:1]) == YEAR[0] + DAY


def test_closed_bars_are_counted_in_sessions() -> None:
    friday, monday = day("2024-07-05"), day("2024-07-08T20:00")
    assert closed_since(NY, friday, monday - 1.0) == 0
    assert closed_since(NY, friday, monday + 1.0) == 1
    assert closed_since("1d", friday, friday + 4.5 * DAY) == 3
    assert closed_since("1d", friday, friday) == 0


@pytest.mark.parametrize(
    ("timeframe", "sentence"),
    [
        ("1h-XNYS", "bars of 1h-XNYS open with a session of XNYS and every 1h after it"),
        ("8h-XNYS", "a session of XNYS is not longer than a bar of 8h: use 1d-XNYS"),
        ("1d-ABCD", "has no calendar 'ABCD'"),
        ("1d-24/7", "has no calendar '24/7'"),
        ("1d-", "has no calendar ''"),
        ("2d-XNYS", "is not known"),
    ],
)
def test_unknown_timeframes_are_refused(timeframe: str, sentence: str, tmp_path: Path) -> None:
    put(tmp_path, "A_USD-1d.parquet", frame(5, step=DAY))
    for length in ("1h", "8h"):
        put(tmp_path, f"A_USD-{length}.parquet", frame(5, step=SECONDS[length]))
    with pytest.raises(InputError, match=sentence):
        load_bars(tmp_path, timeframe)


def test_a_calendar_ends(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the calendar XNYS reaches from 1970-01-02 to"):
        grid_from(NY, day("2024-01-02"), 5000)
    with pytest.raises(InputError, match="reaches from"):
        later(NY, day("1970-01-02"), -1)
    with pytest.raises(InputError, match="bars have no calendar"):
        download(AlpacaSource("http://127.0.0.1:1"), tmp_path, NY, ["AAPL"], day("2024-01-02"))


# ---- bars ----


def share(count: int = 252, name: str = "AAPL") -> pd.DataFrame:
    """Bars of the first sessions of 2024 and later."""
    del name
    dates = pd.to_datetime(grid_from(NY, day("2024-01-01"), count), unit="s", utc=True)
    return frame(count).assign(date=dates)


def test_nights_weekends_and_holidays_are_no_holes(tmp_path: Path) -> None:
    path = put(tmp_path, file_name("AAPL/USD", NY), share())
    assert path.name == "AAPL_USD-1d.parquet"
    bars = load_bars(tmp_path, NY)
    assert (bars.timeframe, len(bars), int(bars.hole.sum())) == (NY, 252, 0)
    np.testing.assert_array_equal(bars.time, YEAR)
    np.testing.assert_array_equal(bars.close[:, 0], share()["close"])
    # A session without a bar is one, and is filled with the last close.
    put(tmp_path, "AAPL_USD-1d.parquet", share().drop([30, 31, 100]))
    bars = load_bars(tmp_path, NY)
    assert np.flatnonzero(bars.hole[:, 0]).tolist() == [30, 31, 100]
    assert bars.close[31, 0] == bars.close[29, 0]
    (report,) = check_dir(tmp_path, NY)
    assert report.tickers[0].holes == 3
    assert report.outages == ((int(YEAR[30]), 2), (int(YEAR[100]), 1))
    put(tmp_path, "AAPL_USD-1d.parquet", share().drop(range(100, 110)))
    with pytest.raises(InputError, match=r"10 of 252 bars are missing .*first is 2024-05-24"):
        load_bars(tmp_path, NY)


def test_bars_without_a_session_are_refused(tmp_path: Path) -> None:
    table = share()
    table.loc[3, "date"] = pd.Timestamp("2024-01-06", tz="UTC")  # a Saturday
    put(tmp_path, "AAPL_USD-1d.parquet", table)
    with pytest.raises(InputError, match=r"row 3 .*with a session of XNYS"):
        load_bars(tmp_path, NY)


def test_without_a_calendar_it_is_suggested(tmp_path: Path) -> None:
    put(tmp_path, "AAPL_USD-1d.parquet", share())
    with pytest.raises(InputError, match=r"name its calendar, such as --timeframe 1d-XNYS"):
        load_bars(tmp_path, "1d")


def test_a_bar_is_closed_when_its_session_is(tmp_path: Path) -> None:
    put(tmp_path, "AAPL_USD-1d.parquet", share(127))  # until 2024-07-03, 17:00 UTC
    assert read_bars(tmp_path / "AAPL_USD-1d.parquet").time[-1] == day("2024-07-03")
    with pytest.raises(InputError, match=r"still open until 2024-07-03 17:00 UTC"):
        load_bars(tmp_path, NY, now=day("2024-07-03T16:59"))
    assert len(load_bars(tmp_path, NY, now=day("2024-07-03T17:00"))) == 127


def test_bars_keep_their_calendar(tmp_path: Path) -> None:
    bars = make_demo_market(0, assets=2, bars=300, timeframe=NY)
    assert on_grid(NY, bars.time).all()
    write_bars(bars, tmp_path)
    again = load_bars(tmp_path, NY)
    assert again.fingerprint == bars.fingerprint
    assert bars.slice(10, 60).timeframe == NY
    assert len(bars.between(int(bars.time[5]), int(bars.time[9]))) == 5
    # A calendar that was corrected between the first and the last bar gives other bars.
    corrected, time = replace(bars), bars.time.copy()
    time[100] += DAY
    object.__setattr__(corrected, "time", time)
    assert corrected.fingerprint != bars.fingerprint
    with pytest.raises(ValueError, match="must rise from bar to bar of the 1d grid"):
        replace(bars, timeframe="1d")
    gap = {name: np.delete(getattr(bars, name), 7, axis=0) for name in COLUMNS}
    with pytest.raises(ValueError, match="without gaps"):
        replace(bars, time=np.delete(bars.time, 7), **gap)


COLUMNS = ("open", "high", "low", "close", "volume", "hole")


# ---- what depends on the number of bars ----


@pytest.mark.parametrize("timeframe", [NY, "1h-XNYS", "30m-XTKS"])
def test_features_of_sessions_live_equal_training_to_the_bit(timeframe: str) -> None:
    """Recursions restart at anchors that are counted in bars, wherever the bars begin."""
    recipe = get_recipe("short")
    bars = make_demo_market(1, assets=2, bars=700, timeframe=timeframe)
    whole = compute_features(bars, recipe)
    for t in range(recipe.memory - 1, 700, 3):
        live = compute_features(bars.slice(t - recipe.memory + 1, t + 1), recipe)
        assert np.array_equal(live[-1], whole[t]), t


def test_features_do_not_know_summer_from_winter() -> None:
    """A session's bars have the same time of day and week before and after the clock changes."""
    recipe, frame = get_recipe("default"), "1h-XNYS"
    start = bar_number(frame, day("2024-10-31")) - recipe.memory
    made = make_demo_market(1, assets=1, bars=recipe.memory + 60, timeframe=frame)
    bars = replace(made, time=grid_from(frame, bar_time(frame, start), len(made)))
    clock = compute_features(bars, recipe)[:, -4:]
    before, after = (
        np.searchsorted(bars.time, day(text)) for text in ("2024-11-01T13:30", "2024-11-08T14:30")
    )
    assert bars.time[before] % DAY != bars.time[after] % DAY
    # Friday before and Friday after.
    np.testing.assert_array_equal(clock[before : before + 7], clock[after : after + 7])
    # The session ends at 16:00, half an hour after its last bar began.
    sine, cosine = clock[after + 6, :2]
    assert (math.atan2(sine, cosine) / (2 * math.pi) * 24) % 24 == pytest.approx(16.0, abs=1e-5)


def test_years_and_weeks_are_those_of_the_calendar() -> None:
    returns = np.random.default_rng(0).normal(1e-3, 0.01, 500)
    ratio = sharpe(returns, bars_per_year(NY)) / sharpe(returns, bars_per_year("1d"))
    assert ratio == pytest.approx(math.sqrt(251.54 / 365.25), rel=1e-4)
    market = make_market(make_demo_market(2, assets=2, bars=300, timeframe=NY), "short")
    env = CryptoEnv.for_windows(market, EnvParams(), [[(140, 299)]], max_lookback=1)
    assert env.row_lengths.tolist() == [159]
    crypto = make_market(make_demo_market(2, assets=2, bars=300, timeframe="1d"), "short")
    hourly = make_market(make_demo_market(2, assets=2, bars=300, timeframe="1h-XNYS"), "short")
    for one, week in ((market, 5), (crypto, 7), (hourly, 35)):
        drawn = CryptoEnv(one, [EnvParams()], [[(140, 299)]], 1, max_lookback=1)
        assert drawn.row_lengths.tolist() == [week]


def test_four_and_a_half_years_of_sessions_are_enough() -> None:
    memory = get_recipe("short").memory
    splits = make_splits(
        1130, NY, CrossValidation(), first_bar=memory + 8, holdout=0.15, lookback=10, memory=memory
    )
    assert len(splits.folds) == 10
    assert 1130 / bars_per_year(NY) < 4.5


def test_the_embargo_is_a_session_at_least() -> None:
    given = {"first_bar": 513, "holdout": 0.15, "lookback": 1, "memory": 512}
    one, other = (
        make_splits(4700, timeframe, CrossValidation(embargo_share=0.0), **given)
        for timeframe in ("1h-XNYS", "12h")
    )
    assert len(one.folds) == 10
    assert 4700 / bars_per_year("1h-XNYS") < 2.7
    # Seven bars in New York, where a market that never closes has two.
    trained, more = (sum(b - a for a, b in splits.folds[0].train) for splits in (one, other))
    assert more > trained


def test_bars_of_one_name_are_not_mixed_up() -> None:
    assert isinstance(make_demo_market(0, assets=1, bars=10, timeframe="1d-XLON"), Bars)
    assert bars_per_year("1d-XTKS") < bars_per_year("1d-XNYS") < bars_per_year("1d-XLON")
