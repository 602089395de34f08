"""Alpaca's history of shares against a local server: bars of sessions, made of half hours."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import exchange_calendars
import numpy as np
import pandas as pd
import pytest

from sweepd.envs.crypto.data.alpaca import LATE_SECONDS, AlpacaShares, AlpacaSource, alpaca_source
from sweepd.envs.crypto.data.bars import load_bars
from sweepd.envs.crypto.data.check import check_dir
from sweepd.envs.crypto.data.download import download
from sweepd.envs.crypto.data.timeframe import bar_ends, opening_times
from sweepd.envs.support.errors import InputError, RunError
from tests.envs.loopback import Market, serving

HALF_HOUR = 1800


def seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


START, END = seconds("2024-10-28"), seconds("2024-12-05")  # the clock, Thanksgiving, a short day


def half_hours(first: int, last: int) -> np.ndarray:
    """Bars of half hours from 4:00 to 20:00 in New York, before and after the session, too."""
    time = np.arange(first, last, HALF_HOUR)
    local = pd.DatetimeIndex(pd.to_datetime(time, unit="s", utc=True)).tz_convert(
        "America/New_York"
    )
    time = time[(local.hour >= 4) & (local.hour < 20) & (local.weekday < 5)]
    rng = np.random.default_rng(0)
    close = 100.0 * np.exp(np.cumsum(rng.normal(0.0, 0.003, len(time))))
    open_ = np.concatenate([[100.0], close[:-1]])
    high, low = np.maximum(open_, close) * 1.001, np.minimum(open_, close) * 0.999
    return np.stack([time, open_, high, low, close, rng.integers(1, 99, len(time))], axis=1)


def reference(rows: np.ndarray, hours: float | None) -> dict[int, list[float]]:
    """Bars of New York's sessions by plain loops over the library's schedule."""
    schedule = exchange_calendars.get_calendar("XNYS").schedule.loc["2024-10-28":"2024-12-04"]
    made: dict[int, list[float]] = {}
    for day, opens, closes in zip(schedule.index, schedule["open"], schedule["close"], strict=True):
        for at, o, h, low, c, v in rows.tolist():
            if not opens.timestamp() <= at < closes.timestamp():
                continue
            name = int(day.timestamp())
            if hours is not None:
                name = int(
                    opens.timestamp() + (at - opens.timestamp()) // (3600 * hours) * 3600 * hours
                )
            bar = made.setdefault(name, [o, h, low, c, 0.0])
            made[name] = [bar[0], max(bar[1], h), min(bar[2], low), c, bar[4] + v]
    return made


@pytest.fixture
def market(monkeypatch: pytest.MonkeyPatch) -> Iterator[Market]:
    monkeypatch.setenv("APCA_API_KEY_ID", "key")
    monkeypatch.setenv("APCA_API_SECRET_KEY", "secret")
    with serving(Market(half_hours(START, END), HALF_HOUR, ("AAPL", "KO"))) as made:
        yield made


def shares(market: Market, **options: Any) -> AlpacaShares:
    return AlpacaShares(market.url, sleep=lambda _: None, **options)


@pytest.mark.parametrize(
    ("timeframe", "hours"), [("1d-XNYS", None), ("1h-XNYS", 1), ("4h-XNYS", 4), ("30m-XNYS", 0.5)]
)
@pytest.mark.parametrize("page", [7, 1000])
def test_bars_are_those_of_the_sessions(
    market: Market, timeframe: str, hours: float | None, page: int
) -> None:
    market.page = page
    pages = list(shares(market).pages("AAPL/USD", timeframe, START, END))
    rows = np.concatenate(pages)
    expected = reference(market.rows, hours)
    assert rows[:, 0].astype(int).tolist() == list(expected)
    np.testing.assert_allclose(rows[:, 1:], list(expected.values()), rtol=1e-12)
    assert rows[:, 0].astype(int).tolist() == opening_times(timeframe, START, END - 1).tolist()
    assert {asked["symbols"] for asked in market.asked} == {"AAPL"}


def test_downloads_continue_and_hold_closed_bars_only(market: Market, tmp_path: Path) -> None:
    frame = "1h-XNYS"
    for now, new in (
        ("2024-11-01T15:00", 4 * 7 + 1),
        ("2024-11-01T20:00", 5),
        ("2024-11-29T18:01", 1 + 18 * 7 + 4),
        ("2024-12-04T23:00", 3 * 7),
    ):
        market.now = lambda now=now: float(seconds(now))  # type: ignore[misc]
        source = shares(market, now=market.now)
        made = download(source, tmp_path, frame, ["AAPL", "KO"], START, now=market.now)
        assert [result.new for result in made] == [new, new]
        bars = load_bars(tmp_path, frame, now=market.now())
        assert bars.tickers == ("AAPL/USD", "KO/USD")
        ends = bar_ends(frame, bars.time)
        assert ends[-1] <= market.now() - 30
        assert not bars.hole.any()
    assert (tmp_path / "AAPL_USD-1h.parquet").exists()
    expected = reference(market.rows, 1)
    np.testing.assert_allclose(bars.close[:, 0], [bar[3] for bar in expected.values()])
    (report,) = check_dir(tmp_path, frame, now=market.now())
    assert report.all_problems == ()
    assert report.outages == ()


def test_files_of_shares_and_of_crypto_are_not_joined(market: Market, tmp_path: Path) -> None:
    download(shares(market), tmp_path, "1d-XNYS", ["AAPL"], START)
    with pytest.raises(InputError, match=r"comes from alpaca:http://.*:iex, not from alpaca:http"):
        download(AlpacaSource(market.url), tmp_path, "1d", ["AAPL"], START)


def test_a_file_from_before_a_split_is_not_continued(market: Market, tmp_path: Path) -> None:
    frame = "1h-XNYS"
    market.now = lambda: float(seconds("2024-11-27T22:00"))
    download(shares(market, now=market.now), tmp_path, frame, ["AAPL"], START, now=market.now)
    content = (tmp_path / "AAPL_USD-1h.parquet").read_bytes()
    market.now = lambda: float(seconds("2024-12-03T22:00"))
    source = shares(market, now=market.now)
    market.rows[:, 1:5] *= 2 / 3
    with pytest.raises(InputError, match="as after a split: download into another folder"):
        download(source, tmp_path, frame, ["AAPL"], START, now=market.now)
    assert (tmp_path / "AAPL_USD-1h.parquet").read_bytes() == content
    market.rows[:, 1:5] *= 1.51  # a correction
    [result] = download(source, tmp_path, frame, ["AAPL"], START, now=market.now)
    assert result.new == 4 + 7 + 7


def test_a_bar_whose_last_part_is_missing_is_waited_for(market: Market) -> None:
    frame, last = "1d-XNYS", seconds("2024-11-29T17:30")
    market.rows = market.rows[market.rows[:, 0] != last]
    close = seconds("2024-11-29T18:00")
    for late, there in ((LATE_SECONDS - 1.0, False), (LATE_SECONDS, True)):
        market.now = lambda late=late: close + late  # type: ignore[misc]
        rows = np.concatenate(list(shares(market, now=market.now).pages("KO", frame, START, END)))
        assert bool(rows[-1, 0] == seconds("2024-11-29")) is there


def test_keys_are_needed_and_go_to_alpaca_only(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"keys are sent only to https://data\.alpaca\.markets"):
        AlpacaShares("https://example.com")
    source = shares(market)
    market.failures = [(302, {"Location": f"{market.url}/elsewhere"})]
    with pytest.raises(RunError, match=r"HTTP 302"):
        list(source.pages("AAPL", "1d-XNYS", START, END))
    assert [asked["path"] for asked in market.asked] == ["/v2/stocks/bars"]
    monkeypatch.setenv("APCA_API_SECRET_KEY", "wrong")
    with pytest.raises(InputError, match=r"refuses the keys .*APCA_API_KEY_ID") as refused:
        list(shares(market).pages("AAPL", "1d-XNYS", START, END))
    assert "wrong" not in str(refused.value)
    monkeypatch.delenv("APCA_API_SECRET_KEY")
    with pytest.raises(InputError, match="history of shares needs the keys of a paper account"):
        shares(market)


def test_each_source_says_what_it_has(market: Market, tmp_path: Path) -> None:
    assert isinstance(alpaca_source("1h-XNYS"), AlpacaShares)
    assert not isinstance(alpaca_source("1h"), AlpacaShares)
    source = shares(market)
    for frame, sentence in (
        ("1d-XLON", "shares of New York's exchanges only"),
        ("1h", "shares of New York's exchanges only"),
        ("8h-XNYS", "a session of XNYS is not longer than a bar of 8h"),
    ):
        with pytest.raises(InputError, match=sentence):
            download(source, tmp_path, frame, ["AAPL"], START)
    with pytest.raises(InputError, match="write AAPL"):
        download(source, tmp_path, "1d-XNYS", ["TSLA"], START)
