"""Downloads from a local server: pages, resuming, failures, and no open bars."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweepd.envs.crypto.data import download as downloads
from sweepd.envs.crypto.data.alpaca import AlpacaSource, aggregate
from sweepd.envs.crypto.data.bar_files import read_bars
from sweepd.envs.crypto.data.bars import load_bars
from sweepd.envs.crypto.data.download import SETTLE_SECONDS, Downloaded, download
from sweepd.envs.crypto.data.retrying import ATTEMPTS
from sweepd.envs.crypto.data.sources import CcxtSource, Source, least_skew
from sweepd.envs.support.errors import InputError, RunError
from tests.envs.bar_samples import START, frame, put, sample_bars
from tests.envs.loopback import Market, serving

STEP = 300
COUNT = 2000
NOW = START + COUNT * STEP - 100  # within the server's last bar, which is open


@pytest.fixture
def market() -> Iterator[Market]:
    """Serve two thousand 5-minute bars from 2024-01-01, the last of them open at NOW."""
    bars = sample_bars(COUNT, ("X/USD",), "5m")
    columns = (bars.open, bars.high, bars.low, bars.close, bars.volume)
    rows = np.column_stack([bars.time.astype(float), *(column[:, 0] for column in columns)])
    with serving(Market(rows, STEP)) as served:
        yield served


def alpaca(market: Market, **keywords: Any) -> AlpacaSource:
    keywords.setdefault("sleep", lambda _seconds: None)
    return AlpacaSource(market.url, **keywords)


def binance(market: Market, **keywords: Any) -> CcxtSource:
    """Return ccxt's own Binance client with all its addresses replaced by the local server."""
    ccxt = pytest.importorskip("ccxt", reason="the extra [ccxt] is not installed")
    options = {"fetchMarkets": {"types": ["spot"]}, "fetchCurrencies": False}
    exchange = ccxt.binance({"enableRateLimit": False, "options": options})
    exchange.urls["api"] = dict.fromkeys(exchange.urls["api"], f"{market.url}/api/v3")
    market.symbols = ("BTC/USDT", "ETH/USDT")
    return CcxtSource("binance", exchange, **{"sleep": lambda _seconds: None, **keywords})


Make = Callable[..., AlpacaSource | CcxtSource]
BOTH = pytest.mark.parametrize("make", [alpaca, binance])


def fetch(
    source: Source, folder: Path, tickers: list[str] | None = None, **keywords: Any
) -> list[Downloaded]:
    now = keywords.pop("now", NOW)
    timeframe = keywords.pop("timeframe", "5m")
    start = keywords.pop("start", START)
    return download(
        source, folder, timeframe, tickers or ["BTC"], start, now=lambda: now, **keywords
    )


def stored(folder: Path, source: Source, timeframe: str = "5m") -> np.ndarray:
    """Return the (n, 6) rows of BTC's file."""
    bars = read_bars(folder / f"BTC_{source.quote}-{timeframe}.parquet")
    return np.column_stack([bars.time.astype(float), bars.values])


# ---- complete downloads ----


@BOTH
def test_all_pages_arrive_and_the_open_bar_does_not(
    tmp_path: Path, market: Market, make: Make
) -> None:
    market.page = 300
    source = make(market)
    (result,) = fetch(source, tmp_path)
    np.testing.assert_array_equal(stored(tmp_path, source), market.rows[:-1])
    assert (result.new, result.total, result.left_out) == (COUNT - 1, COUNT - 1, 0)
    assert sum("bars" in ask["path"] or "klines" in ask["path"] for ask in market.asked) == 7
    bars = load_bars(tmp_path, "5m", now=NOW)
    assert bars.tickers == (f"BTC/{source.quote}",)
    assert len(bars) == COUNT - 1
    assert not bars.hole.any()
    assert [path.name for path in tmp_path.iterdir()] == [f"BTC_{source.quote}-5m.parquet"]


@BOTH
@pytest.mark.parametrize(
    ("late", "there"), [(-1, 9), (SETTLE_SECONDS - 1, 9), (SETTLE_SECONDS, 10)]
)
def test_a_bar_counts_as_closed_a_little_after_its_end(
    tmp_path: Path, market: Market, make: Make, late: int, there: int
) -> None:
    source = make(market)
    fetch(source, tmp_path, now=START + 10 * STEP + late)
    np.testing.assert_array_equal(stored(tmp_path, source), market.rows[:there])


@BOTH
def test_start_and_end_are_kept_and_put_on_the_grid(
    tmp_path: Path, market: Market, make: Make
) -> None:
    source = make(market)
    fetch(source, tmp_path, start=START + 10 * STEP - 100, end=START + 20 * STEP + 100)
    np.testing.assert_array_equal(stored(tmp_path, source), market.rows[10:20])


@BOTH
def test_resuming_asks_only_for_what_is_missing(tmp_path: Path, market: Market, make: Make) -> None:
    source = make(market)
    fetch(source, tmp_path, end=START + 700 * STEP)
    market.asked.clear()
    (result,) = fetch(source, tmp_path)
    np.testing.assert_array_equal(stored(tmp_path, source), market.rows[:-1])
    assert result.new == COUNT - 1 - 700
    starts = [
        ask.get("start") or ask.get("startTime")
        for ask in market.asked
        if "exchangeInfo" not in ask["path"]
    ]
    assert starts[0] in ("2024-01-03T10:20:00Z", str((START + 700 * STEP) * 1000))
    before = next(tmp_path.iterdir()).stat().st_mtime_ns
    (result,) = fetch(source, tmp_path)  # nothing new: the file is not written
    assert result.new == 0
    assert next(tmp_path.iterdir()).stat().st_mtime_ns == before


@BOTH
def test_an_earlier_start_fetches_the_head_once(tmp_path: Path, market: Market, make: Make) -> None:
    source = make(market)
    early = START - 50 * STEP  # before the listing: the source has no such bars
    fetch(source, tmp_path, start=START + 900 * STEP, end=START + 1000 * STEP)
    fetch(source, tmp_path, start=early)
    np.testing.assert_array_equal(stored(tmp_path, source), market.rows[:-1])
    market.asked.clear()
    fetch(source, tmp_path, start=START)
    fetch(source, tmp_path, start=early)
    assert [ask for ask in market.asked if "exchangeInfo" not in ask["path"]] == []
    fetch(
        source, tmp_path, start=early - STEP
    )  # no bars there; the file stores that they were asked for
    market.asked.clear()
    fetch(source, tmp_path, start=early - STEP)
    assert [ask for ask in market.asked if "exchangeInfo" not in ask["path"]] == []


def test_missing_bars_are_not_filled(tmp_path: Path, market: Market) -> None:
    market.rows = np.delete(market.rows, [100, 101, 500], axis=0)
    source = alpaca(market)
    fetch(source, tmp_path)
    np.testing.assert_array_equal(stored(tmp_path, source), market.rows[:-1])
    assert load_bars(tmp_path, "5m", now=NOW).hole.sum() == 3


@BOTH
def test_invalid_bars_are_left_out_and_counted(tmp_path: Path, market: Market, make: Make) -> None:
    market.rows[5, 4] = 0.0
    market.rows[7, 2], market.rows[7, 3] = market.rows[7, 3], market.rows[7, 2]
    market.rows[9, 5] = -1.0
    source = make(market)
    (result,) = fetch(source, tmp_path)
    assert result.left_out == 3
    np.testing.assert_array_equal(
        stored(tmp_path, source), np.delete(market.rows[:-1], [5, 7, 9], axis=0)
    )


def test_ccxt_continues_after_empty_pages(tmp_path: Path) -> None:
    """An exchange that answers by window, not by count: empty before the listing and in outages."""
    bars = sample_bars(600, ("X/USDT",), "5m")
    rows = np.column_stack(
        [bars.time * 1000, bars.open, bars.high, bars.low, bars.close, bars.volume]
    )
    rows = np.delete(rows, np.arange(250, 480), axis=0)

    class Windowed(FakeExchange):
        def fetch_ohlcv(
            self, symbol: str, timeframe: str, since: int, limit: int
        ) -> list[list[float | None]]:
            assert (symbol, timeframe, limit) == ("BTC/USDT", "5m", 50)
            inside = (rows[:, 0] >= since) & (rows[:, 0] < since + limit * STEP * 1000)
            return [
                [*row[:5], None if row[0] == rows[3, 0] else row[5]]
                for row in rows[inside].tolist()
            ]

    source = CcxtSource("okx", Windowed())
    (result,) = fetch(source, tmp_path, start=START - 380 * STEP, now=START + 10**6)
    assert result.left_out == 1  # its volume is missing
    expected = np.delete(rows, 3, axis=0)
    np.testing.assert_array_equal(stored(tmp_path, source)[:, 1:], expected[:, 1:])
    np.testing.assert_array_equal(stored(tmp_path, source)[:, 0] * 1000, expected[:, 0])


class FakeExchange:
    """The parts of a ccxt exchange that `CcxtSource` uses."""

    id = "okx"
    has = MappingProxyType({"fetchOHLCV": True})
    timeframes = MappingProxyType({"1s": "1s", "5m": "5m", "1h": "1H"})

    def load_markets(self) -> dict[str, dict[str, str]]:
        return {"BTC/USDT": {}, "ETH/USDT": {}}

    def parse_timeframe(self, timeframe: str) -> int:
        return {"s": 1, "m": 60, "h": 3600}[timeframe[-1]] * int(timeframe[:-1])

    def featureValue(self, symbol: str, method: str, name: str) -> int:
        assert (symbol, method, name) == ("BTC/USDT", "fetchOHLCV", "limit")
        return 50


# ---- the source's clock ----


def test_alpacas_answers_tell_its_clock(market: Market) -> None:
    fast = alpaca(market, now=lambda: time.time() + 1800.0)
    assert fast.clock_skew() is None, "nothing was asked"
    list(fast.pages("BTC/USD", "5m", START, START + STEP))
    assert fast.clock_skew() == pytest.approx(-1800.0, abs=3.0)
    market.failures.append((200, {"Age": "600"}))  # the date is that of a stored answer
    list(fast.pages("BTC/USD", "5m", START, START + STEP))
    assert fast.clock_skew() is None


def test_a_slow_answer_proves_no_difference_of_clocks() -> None:
    for first, last, asked, answered, least in (
        (100.0, 101.0, 90.0, 120.0, 0.0),  # somewhere within half a minute
        (100.0, 101.0, 80.0, 92.0, 8.0),
        (100.0, 101.0, 111.0, 130.0, -10.0),
        (100.0, 100.0, 100.0, 100.0, 0.0),
    ):
        assert least_skew(first, last, asked, answered) == least


def test_an_exchange_is_asked_for_its_clock() -> None:
    ccxt = pytest.importorskip("ccxt", reason="the extra [ccxt] is not installed")

    class Timed(FakeExchange):
        has = MappingProxyType({"fetchOHLCV": True, "fetchTime": True})
        answer: Any = None

        def fetch_time(self) -> Any:
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

    exchange = Timed()
    source = CcxtSource("okx", exchange)
    exchange.answer = (time.time() - 1800.0) * 1000
    assert source.clock_skew() == pytest.approx(-1800.0, abs=1.0)
    for answer in (None, ccxt.RequestTimeout("no answer"), "soon"):
        exchange.answer = answer
        assert source.clock_skew() is None
    assert CcxtSource("okx", FakeExchange()).clock_skew() is None, "ccxt does not know how"


# ---- longer bars from hours ----


def test_alpaca_days_are_aggregated_on_the_utc_grid(tmp_path: Path, market: Market) -> None:
    market.page = 17  # a day spans several pages
    source = alpaca(market)
    fetch(source, tmp_path, timeframe="1d")
    assert {ask["timeframe"] for ask in market.asked} == {"1Hour"}
    days = market.bars(86400)[:-1]  # the seventh day is open
    assert len(days) == 6
    np.testing.assert_array_equal(stored(tmp_path, source, "1d")[:, :5], days[:, :5])
    np.testing.assert_allclose(stored(tmp_path, source, "1d")[:, 5], days[:, 5], rtol=1e-12)
    fetch(source, tmp_path, timeframe="4h")
    hours = market.bars(4 * 3600)
    assert len(stored(tmp_path, source, "4h")) == len(hours) - 1


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=40), st.lists(st.integers(0, 12), max_size=8))
def test_merging_does_not_depend_on_pages(present: list[bool], sizes: list[int]) -> None:
    bars = sample_bars(len(present), ("X/USD",), "1h")
    columns = (bars.open, bars.high, bars.low, bars.close, bars.volume)
    rows = np.column_stack([bars.time.astype(float), *(column[:, 0] for column in columns)])[
        np.array(present)
    ]
    expected = Market(rows, 3600).bars(4 * 3600)
    edges = np.cumsum(sizes) if sizes else np.array([], dtype=int)
    pages = np.split(rows, edges[edges < len(rows)])
    merged = list(aggregate(iter(pages), "4h", 3600, math.inf))
    if not len(rows):
        assert merged == []
        return
    np.testing.assert_allclose(np.concatenate(merged), expected, rtol=1e-12)


# ---- when the source fails ----


@pytest.mark.parametrize("failure", [429, 500, 502, 503, 504, "cut", "text", "hang up"])
def test_alpaca_requests_are_retried_with_exponential_backoff(
    tmp_path: Path, market: Market, failure: int | str
) -> None:
    waits: list[float] = []
    notices: list[str] = []
    market.page = 1500
    market.failures = [failure] * 3
    source = alpaca(market, sleep=waits.append, notice=notices.append)
    fetch(source, tmp_path)
    np.testing.assert_array_equal(stored(tmp_path, source), market.rows[:-1])
    assert waits == [1.0, 2.0, 4.0]
    assert all("trying again in" in text for text in notices)


def test_retry_after_is_respected_up_to_a_limit(tmp_path: Path, market: Market) -> None:
    waits: list[float] = []
    market.failures = [
        (429, {"Retry-After": "7"}),
        (503, {"Retry-After": "9999"}),
        (429, {"Retry-After": "soon"}),
    ]
    fetch(alpaca(market, sleep=waits.append), tmp_path)
    assert waits == [7.0, 60.0, 4.0]


@pytest.mark.parametrize("markets_known", [True, False])
@pytest.mark.parametrize("failure", [429, 418, 500, 503, "cut", "text", "hang up"])
def test_ccxt_requests_are_retried_with_exponential_backoff(
    tmp_path: Path, market: Market, failure: int | str, markets_known: bool
) -> None:
    waits: list[float] = []
    market.page = 1500
    source = binance(market, sleep=waits.append)
    if markets_known:
        source.check(["BTC/USDT"], "5m")
    market.failures = [failure] * 2
    fetch(source, tmp_path)
    np.testing.assert_array_equal(stored(tmp_path, source), market.rows[:-1])
    assert waits == [1.0, 2.0]


def test_ccxt_confirms_an_empty_answer_with_a_second_request(tmp_path: Path) -> None:
    bars = sample_bars(200, ("X/USDT",), "5m")
    rows = np.column_stack(
        [bars.time * 1000, bars.open, bars.high, bars.low, bars.close, bars.volume]
    )

    class Forgetful(FakeExchange):
        calls = 0

        def fetch_ohlcv(
            self, _symbol: str, _timeframe: str, since: int, limit: int
        ) -> list[list[float]]:
            self.calls += 1
            if self.calls % 2:
                return []
            return rows[(rows[:, 0] >= since) & (rows[:, 0] < since + limit * STEP * 1000)].tolist()

    source = CcxtSource("okx", Forgetful())
    fetch(source, tmp_path, end=START + 200 * STEP)
    assert len(stored(tmp_path, source)) == 200


@BOTH
def test_an_unreachable_source_ends_with_a_message_and_keeps_the_pages(
    tmp_path: Path, market: Market, make: Make
) -> None:
    market.page = 300
    source = make(market)
    source.check(["BTC/" + source.quote], "5m")
    fails = market.failures

    class AfterThree(list[int]):
        def __bool__(self) -> bool:
            return sum("exchangeInfo" not in ask["path"] for ask in market.asked) > 3

        def pop(self, _: int = 0) -> int:  # type: ignore[override]
            return 503

    market.failures = AfterThree()  # type: ignore[assignment]
    with pytest.raises(RunError, match=f"{ATTEMPTS} times; bars fetched so far are stored"):
        fetch(source, tmp_path)
    np.testing.assert_array_equal(stored(tmp_path, source), market.rows[:900])
    market.failures = fails
    (result,) = fetch(source, tmp_path)
    assert result.new == COUNT - 1 - 900
    np.testing.assert_array_equal(stored(tmp_path, source), market.rows[:-1])


def test_an_interrupted_download_keeps_the_pages(tmp_path: Path, market: Market) -> None:
    market.page = 400
    shares: list[float] = []

    def interrupt(_: str, share: float) -> None:
        shares.append(share)
        if share > 0.5:
            raise KeyboardInterrupt

    source = alpaca(market)
    with pytest.raises(KeyboardInterrupt):
        fetch(source, tmp_path, on_progress=interrupt)
    assert len(stored(tmp_path, source)) == 1200
    assert shares == sorted(shares)
    fetch(source, tmp_path)
    np.testing.assert_array_equal(stored(tmp_path, source), market.rows[:-1])


def test_long_downloads_are_saved_in_between(
    tmp_path: Path, market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "SAVE_EVERY", 500)
    market.page = 300
    source = alpaca(market)
    sizes: list[int] = []

    def look(_: str, __: float) -> None:
        path = tmp_path / "BTC_USD-5m.parquet"
        sizes.append(len(read_bars(path).time) if path.exists() else 0)

    fetch(source, tmp_path, on_progress=look)
    assert 600 in sizes
    assert 1200 in sizes


def test_an_incomplete_earlier_range_changes_nothing(tmp_path: Path, market: Market) -> None:
    market.page = 300
    source = alpaca(market)
    fetch(source, tmp_path, start=START + 900 * STEP, end=START + 1000 * STEP)
    path = tmp_path / "BTC_USD-5m.parquet"
    before = path.read_bytes()

    def interrupt(_: str, share: float) -> None:
        if share > 0.3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(source, tmp_path, on_progress=interrupt)
    assert path.read_bytes() == before
    fetch(source, tmp_path)
    np.testing.assert_array_equal(stored(tmp_path, source), market.rows[:-1])


def test_an_unreachable_server(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    source = AlpacaSource(f"http://127.0.0.1:{port}", sleep=lambda _: None)
    with pytest.raises(RunError, match=r"no answer \(ConnectionError\)"):
        fetch(source, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", [401, 403, 451])
def test_answers_that_are_not_retried(tmp_path: Path, market: Market, code: int) -> None:
    market.failures = [code]
    with pytest.raises(RunError, match=f"HTTP {code} told to fail for BTC/USD"):
        fetch(alpaca(market), tmp_path)
    assert len(market.asked) == 1


# ---- invalid arguments ----


def refused(source: Source, folder: Path, tickers: list[str] | None = None, **keywords: Any) -> str:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(InputError) as caught:
        fetch(source, folder, tickers, **keywords)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_unknown_names(tmp_path: Path, market: Market) -> None:
    assert "HTTP 400 invalid symbol: NOPE/USD" in refused(alpaca(market), tmp_path, ["NOPE"])
    for text in ("BTC/USD/X", "../up", "BT C", ""):
        assert "not a ticker; write it like BTC/USD" in refused(alpaca(market), tmp_path, [text])
    assert "named twice" in refused(alpaca(market), tmp_path, ["BTC", "btc_usd"])
    with pytest.raises(InputError, match="--tickers is empty"):
        download(alpaca(market), tmp_path, "5m", [], START)
    source = binance(market)
    assert "binance has no such market; did you mean" in refused(source, tmp_path, ["BTC/USDX"])
    assert "'7m' is not known" in refused(source, tmp_path, timeframe="7m")
    assert "okx has only 5m, 1h" in refused(
        CcxtSource("okx", FakeExchange()), tmp_path, timeframe="4h"
    )
    with pytest.raises(InputError, match="did you mean binance"):
        CcxtSource("binnance")
    with pytest.raises(InputError, match="must begin with https://"):
        AlpacaSource("data.alpaca.markets")


def test_time_ranges_without_a_bar(tmp_path: Path, market: Market) -> None:
    assert "no 5m bar closes between it and" in refused(alpaca(market), tmp_path, start=NOW)
    assert "no 5m bar closes" in refused(alpaca(market), tmp_path, start=START, end=START)
    market.rows = market.rows[1500:]
    sentence = refused(alpaca(market), tmp_path, end=START + 1000 * STEP)
    assert sentence.startswith("--tickers BTC/USD: alpaca:http")
    assert "has no 5m bars of it between 2024-01-01 00:00 and 2024-01-04 11:20 UTC" in sentence


def test_files_of_other_sources_are_not_continued(tmp_path: Path, market: Market) -> None:
    path = put(tmp_path, "BTC_USD-5m.parquet", frame(20, step=STEP))
    assert f"{path}: comes from another program, not from alpaca:" in refused(
        alpaca(market), tmp_path
    )
    path.rename(tmp_path / "BTC_USDT-5m.parquet")
    assert "not from ccxt:binance" in refused(binance(market), tmp_path)
    (tmp_path / "BTC_USDT-5m.parquet").unlink()
    path = put(tmp_path, "BTC_USDT-5m.feather", frame(20, step=STEP))
    assert f"{path}: BTC/USDT is already there in another format" in refused(
        binance(market), tmp_path
    )
    path.unlink()
    (tmp_path / "BTC_USDT-5m.parquet").write_bytes(b"PAR1 broken")
    assert "cannot be read as parquet" in refused(binance(market), tmp_path)


def test_an_answer_in_an_unknown_format(
    tmp_path: Path, market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    for answer in (
        {"data": []},
        {"bars": {"BTC/USD": [{"t": "x"}]}},
        {"bars": {"BTC/USD": [{"t": "now"}]}},
        [],
    ):
        monkeypatch.setattr(market, "alpaca", lambda _query, answer=answer: (200, answer))
        with pytest.raises(RunError):
            fetch(alpaca(market), tmp_path)


def test_a_repeated_page_ends_the_download(
    tmp_path: Path, market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        market, "alpaca", lambda _query: (200, {"bars": {}, "next_page_token": "p7"})
    )
    with pytest.raises(RunError, match="the same page was offered twice"):
        fetch(alpaca(market), tmp_path)


def test_an_unwritable_folder(tmp_path: Path, market: Market) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises((InputError, RunError), match="file"):
        fetch(alpaca(market), tmp_path / "file")
