"""Loading, aligning, checking and writing bars; the real data, if present."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sweepd.envs.crypto.data.bar_files import read_bars
from sweepd.envs.crypto.data.bars import Bars, load_bars, write_bars
from sweepd.envs.crypto.data.check import check_dir
from sweepd.envs.crypto.data.problems import file_problems
from sweepd.envs.support.errors import InputError
from tests.envs.bar_samples import NOW, START, frame, put, sample_bars

HOUR = 3600


def refused(
    folder: Path, timeframe: str = "1h", tickers: list[str] | None = None, **keywords: float
) -> str:
    """Return the message with which `load_bars` refuses; `check_dir` must give the same."""
    with pytest.raises(InputError) as caught:
        load_bars(folder, timeframe, tickers, now=NOW, **keywords)
    sentence = str(caught.value)
    assert sentence.count("\n") == 0
    assert not sentence.endswith(".")
    try:
        sentences = [
            s
            for r in check_dir(folder, timeframe, tickers, now=NOW, **keywords)
            for s in r.all_problems
        ]
    except InputError as error:
        sentences = [str(error)]
    assert sentence in sentences
    return sentence


# ---- valid bars ----


def test_written_bars_come_back_bit_for_bit(tmp_path: Path) -> None:
    bars = sample_bars()
    paths = write_bars(bars, tmp_path)
    assert [path.name for path in paths] == ["BTC_USDT-1h.parquet", "ETH_USDT-1h.parquet"]
    again = load_bars(tmp_path, "1h", now=NOW)
    assert again.fingerprint == bars.fingerprint
    for name in ("time", "open", "high", "low", "close", "volume", "hole"):
        np.testing.assert_array_equal(getattr(again, name), getattr(bars, name))
    assert not again.synthetic
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("suffix", ["feather", "parquet", "csv"])
@pytest.mark.parametrize(
    "unit", ["s", "ms", "us", "ns", "naive", "berlin", "epoch s", "epoch ms", "epoch ns"]
)
def test_all_date_formats(tmp_path: Path, suffix: str, unit: str) -> None:
    data = frame(5)
    date = data["date"]
    if unit == "naive":
        data["date"] = date.dt.tz_localize(None)
    elif unit == "berlin":
        data["date"] = date.dt.tz_convert("Europe/Berlin")
    elif unit.startswith("epoch"):
        data["date"] = date.dt.as_unit(unit.split()[1]).astype("int64")
    else:
        data["date"] = date.dt.as_unit(unit)
    put(tmp_path, f"BTC_USDT-1h.{suffix}", data)
    bars = load_bars(tmp_path, "1h", now=NOW)
    np.testing.assert_array_equal(bars.time, START + HOUR * np.arange(5))
    np.testing.assert_array_equal(bars.close[:, 0], frame(5)["close"])
    assert bars.time_of(2) == pd.Timestamp("2024-01-01 02:00", tz="UTC")


def test_daily_csv_with_plain_days_and_whole_numbers(tmp_path: Path) -> None:
    (tmp_path / "BTC_USDT-1d.csv").write_text(
        "date,open,high,low,close,volume,count\n2024-01-01,1,3,1,2,0,7\n2024-01-02,2,3,2,3,5,8\n"
    )
    bars = load_bars(tmp_path, "1d", now=NOW)
    assert bars.time.tolist() == [START, START + 86400]
    assert bars.close[:, 0].tolist() == [2.0, 3.0]


def test_holes_are_filled_with_the_last_close_and_marked(tmp_path: Path) -> None:
    put(tmp_path, "A_USDT-1h.feather", frame(10).drop([3, 4]))
    put(tmp_path, "B_USDT-1h.feather", frame(10).drop([4, 8]))
    bars = load_bars(tmp_path, "1h", max_hole_share=0.5, now=NOW)
    assert np.flatnonzero(bars.hole[:, 0]).tolist() == [3, 4]
    assert np.flatnonzero(bars.hole[:, 1]).tolist() == [4, 8]
    for values in (bars.open, bars.high, bars.low, bars.close):
        assert values[3, 0] == values[4, 0] == bars.close[2, 0]
        assert values[8, 1] == bars.close[7, 1]
    assert bars.volume[3, 0] == bars.volume[4, 0] == bars.volume[8, 1] == 0.0
    assert bars.open[5, 0] == frame(10)["open"][5]
    (report,) = check_dir(tmp_path, max_hole_share=0.5, now=NOW)
    assert [row.holes for row in report.tickers] == [2, 2]
    assert report.outages == ((START + 4 * HOUR, 1),)  # only bar 4 is missing everywhere
    assert report.bars is not None
    assert report.bars.fingerprint == bars.fingerprint


def test_alignment_is_by_time_not_by_row(tmp_path: Path) -> None:
    a, b = frame(10), frame(10, start=START + 3 * HOUR)
    put(tmp_path, "A_USDT-1h.feather", a)
    put(tmp_path, "B_USDT-1h.feather", b)
    bars = load_bars(tmp_path, "1h", now=NOW)
    assert len(bars) == 7
    assert bars.time[0] == START + 3 * HOUR
    np.testing.assert_array_equal(bars.close[:, 0], a["close"][3:])
    np.testing.assert_array_equal(bars.close[:, 1], b["close"][:7])


def test_a_hole_on_the_first_common_bar_takes_the_close_before_it(tmp_path: Path) -> None:
    put(tmp_path, "A_USDT-1h.feather", frame(10).drop([3]))
    put(tmp_path, "B_USDT-1h.feather", frame(7, start=START + 3 * HOUR))
    bars = load_bars(tmp_path, "1h", max_hole_share=0.5, now=NOW)
    assert bars.hole[0].tolist() == [True, False]
    assert bars.open[0, 0] == frame(10)["close"][2]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.lists(st.integers(0, 3).map(bool), min_size=12, max_size=12), min_size=1, max_size=3
    )
)
def test_random_holes_equal_a_scalar_reference(
    tmp_path_factory: pytest.TempPathFactory, present: list[list[bool]]
) -> None:
    """Scalar reference: walk the grid and keep the last close."""
    assume(all(_shows_its_timeframe(np.flatnonzero(row)) for row in present))
    firsts, lasts = (
        [row.index(True) for row in present],
        [11 - row[::-1].index(True) for row in present],
    )
    start, stop = max(firsts), min(lasts)
    folder = tmp_path_factory.mktemp("holes")
    full = frame(12)
    for asset, row in enumerate(present):
        put(folder, f"T{asset}_USDT-1h.feather", full[np.array(row)].reset_index(drop=True))
    if start > stop:
        with pytest.raises(InputError, match="no overlap"):
            load_bars(folder, "1h", max_hole_share=1.0, now=NOW)
        return
    bars = load_bars(folder, "1h", max_hole_share=1.0, now=NOW)
    assert len(bars) == stop - start + 1
    for asset, row in enumerate(present):
        last = float("nan")
        for bar in range(12):
            if row[bar]:
                last = full["close"][bar]
            if start <= bar <= stop:
                assert bars.hole[bar - start, asset] == (not row[bar])
                assert bars.close[bar - start, asset] == last
                assert bars.open[bar - start, asset] == (full["open"][bar] if row[bar] else last)
                assert bars.volume[bar - start, asset] == (full["volume"][bar] if row[bar] else 0.0)
    real = [np.flatnonzero(~bars.hole[:, asset]) for asset in range(len(bars.tickers))]
    if all(map(_shows_its_timeframe, real)) and max(rows[0] for rows in real) <= min(
        rows[-1] for rows in real
    ):
        write_bars(bars, folder / "again")
        inner = load_bars(folder / "again", "1h", max_hole_share=1.0, now=NOW)
        offset = int(np.searchsorted(bars.time, inner.time[0]))
        assert inner.fingerprint == bars.slice(offset, offset + len(inner)).fingerprint


def _shows_its_timeframe(rows: np.ndarray) -> bool:
    """Whether any two bars are adjacent; otherwise the spacing is that of another timeframe."""
    return len(rows) == 1 or (len(rows) > 1 and int(np.diff(rows).min()) == 1)


def test_tickers_keep_the_given_order_and_accept_all_spellings(tmp_path: Path) -> None:
    write_bars(sample_bars(tickers=("BTC/USDT", "ETH/USDT", "LINK/USDT")), tmp_path)
    default = load_bars(tmp_path, "1h", now=NOW)
    assert default.tickers == ("BTC/USDT", "ETH/USDT", "LINK/USDT")
    asked = load_bars(tmp_path, "1h", ["link", "BTC_USDT", "eth-usdt"], now=NOW)
    assert asked.tickers == ("LINK/USDT", "BTC/USDT", "ETH/USDT")
    np.testing.assert_array_equal(asked.close, default.close[:, [2, 0, 1]])
    assert asked.fingerprint != default.fingerprint


def test_fingerprint_depends_on_all_content_and_nothing_else(tmp_path: Path) -> None:
    bars = sample_bars()
    write_bars(bars, tmp_path)
    assert (
        load_bars(tmp_path, "1h", now=NOW).fingerprint
        == bars.fingerprint
        == sample_bars().fingerprint
    )
    changed = {bars.slice(0, 49).fingerprint, bars.slice(1, 50).fingerprint, bars.fingerprint}
    for name in ("open", "high", "low", "close", "volume"):
        other = sample_bars()
        getattr(other, name)[17, 1] = np.nextafter(getattr(other, name)[17, 1], 1e9)
        changed.add(other.fingerprint)
    other = sample_bars()
    other.hole[17, 1] = True
    changed.add(other.fingerprint)
    changed.add(sample_bars(tickers=("BTC/USDT", "LTC/USDT")).fingerprint)
    changed.add(sample_bars(timeframe="5m").fingerprint)
    assert len(changed) == 11


def test_files_store_whether_bars_are_synthetic(tmp_path: Path) -> None:
    bars = sample_bars()
    write_bars(replace(bars, synthetic=True), tmp_path)
    assert load_bars(tmp_path, "1h", now=NOW).synthetic
    assert load_bars(tmp_path, "1h", now=NOW).slice(3, 9).synthetic
    write_bars(sample_bars(tickers=("LTC/USDT",)), tmp_path)
    sentence = refused(tmp_path)
    assert "BTC_USDT-1h.parquet is synthetic" in sentence
    assert "LTC_USDT-1h.parquet is not" in sentence


def test_slice_between_and_select() -> None:
    bars = sample_bars()
    assert bars.slice(5, 10).time_of(2) == bars.time_of(7)
    first, last = int(bars.time[5]), int(bars.time[9])
    assert bars.between(first, last).fingerprint == bars.slice(5, 10).fingerprint
    assert bars.between(first - 1, last + 1).fingerprint == bars.slice(5, 10).fingerprint
    assert len(bars.between(0, first - 1)) == 5
    turned = bars.select(bars.tickers[::-1])
    assert turned.tickers == bars.tickers[::-1]
    np.testing.assert_array_equal(turned.close, bars.close[:, ::-1])
    assert turned.select(bars.tickers).fingerprint == bars.fingerprint


def test_bars_refuse_wrong_shapes_and_grids() -> None:
    bars = sample_bars()
    rest = (bars.high, bars.low, bars.close, bars.volume, bars.hole)
    with pytest.raises(ValueError, match="shape"):
        Bars(bars.tickers, "1h", bars.time, bars.open[:, :1], *rest)
    with pytest.raises(ValueError, match="grid"):
        Bars(bars.tickers, "1h", bars.time + 60, bars.open, *rest)
    with pytest.raises(ValueError, match="grid"):
        Bars(bars.tickers, "5m", bars.time, bars.open, *rest)
    with pytest.raises(ValueError, match="each once"):
        Bars(("A/B", "A/B"), "1h", bars.time, bars.open, *rest)


# ---- invalid bars: one sentence each ----


def test_missing_empty_and_unreadable_folders(tmp_path: Path) -> None:
    assert f"{tmp_path / 'none'}: no such folder" in refused(tmp_path / "none")
    assert f"{tmp_path}: no bar files here" in refused(tmp_path)
    (tmp_path / "BTC_USDT_USDT-1h-futures.feather").write_bytes(
        b""
    )  # other files of other programs are ignored
    (tmp_path / "notes.csv").write_text("x")
    assert f"{tmp_path}: no bar files here" in refused(tmp_path)
    assert "this is a file" in refused(tmp_path / "notes.csv")


def test_missing_and_unknown_timeframes(tmp_path: Path) -> None:
    write_bars(sample_bars(), tmp_path)
    assert refused(tmp_path, "5m") == f"--timeframe 5m: {tmp_path} has no such bars, only 1h"
    assert "'90s' is not known" in refused(tmp_path, "90s")


def test_unknown_ambiguous_and_repeated_tickers(tmp_path: Path) -> None:
    write_bars(sample_bars(tickers=("BTC/USDT", "ETH/USDT")), tmp_path)
    write_bars(sample_bars(tickers=("BTC/USD",)), tmp_path)
    assert "'BTX/USDT': not in" in refused(tmp_path, "1h", ["BTX/USDT"])
    assert "did you mean BTC/USDT?" in refused(tmp_path, "1h", ["BTX/USDT"])
    assert "did you mean ETH/USDT?" in refused(tmp_path, "1h", ["ETHH"])
    assert "there are BTC/USD, BTC/USDT, ETH/USDT" in refused(tmp_path, "1h", ["DOGE"])
    assert "could be any of BTC/USD, BTC/USDT" in refused(tmp_path, "1h", ["BTC"])
    assert "named twice" in refused(tmp_path, "1h", ["ETH", "ETH/USDT"])
    assert "--tickers is empty" in refused(tmp_path, "1h", [])
    assert "priced in different currencies" in refused(tmp_path, "1h")


def test_the_same_ticker_in_two_formats(tmp_path: Path) -> None:
    put(tmp_path, "BTC_USDT-1h.feather", frame())
    put(tmp_path, "BTC_USDT-1h.csv", frame())
    assert "BTC_USDT-1h.csv and BTC_USDT-1h.feather both hold BTC/USDT" in refused(tmp_path)


@pytest.mark.parametrize("suffix", ["feather", "parquet", "csv"])
def test_corrupt_files(tmp_path: Path, suffix: str) -> None:
    path = put(tmp_path, f"BTC_USDT-1h.{suffix}", frame())
    whole = path.read_bytes()
    path.write_bytes(b"")
    assert f"{path}: cannot be read as {suffix}" in refused(tmp_path)
    if suffix != "csv":
        for content in (
            whole[: len(whole) // 2],
            whole[:100],
            b"not a table at all" * 50,
            whole[100:],
        ):
            path.write_bytes(content)
            assert f"{path}: cannot be read as {suffix}" in refused(tmp_path)
    else:
        path.write_bytes(whole[: len(whole) // 2])  # a row cut in the middle
        assert str(path) in refused(tmp_path)
        path.write_bytes(b"\xff\xfe\x00 nonsense\n\x00")
        assert str(path) in refused(tmp_path)


@pytest.mark.parametrize("suffix", ["feather", "parquet", "csv"])
def test_flipped_bytes_raise_only_input_errors(tmp_path: Path, suffix: str) -> None:
    path = put(tmp_path, f"BTC_USDT-1h.{suffix}", frame(200))
    whole = bytearray(path.read_bytes())
    rng = np.random.default_rng(0)
    sentences = []
    for _ in range(150):
        damaged = bytearray(whole)
        for at in rng.integers(0, len(whole), 8):
            damaged[at] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        try:
            load_bars(tmp_path, "1h", now=NOW, max_hole_share=1.0)
        except InputError as error:
            sentences.append(str(error))
    assert len(sentences) > 50
    assert all(str(path) in sentence and "\n" not in sentence for sentence in sentences)


def test_missing_columns_and_rows(tmp_path: Path) -> None:
    path = put(tmp_path, "BTC_USDT-1h.feather", frame().rename(columns={"close": "Close"}))
    assert f"{path}: needs the columns" in refused(tmp_path)
    assert "close missing" in refused(tmp_path)
    put(tmp_path, "BTC_USDT-1h.feather", frame(0))
    assert refused(tmp_path) == f"{path}: holds no bars; download it again or remove it"


def test_text_instead_of_numbers_or_dates(tmp_path: Path) -> None:
    path = put(tmp_path, "BTC_USDT-1h.csv", frame(5))
    lines = path.read_text().splitlines()
    fields = lines[3].split(",")
    path.write_text(
        "\n".join([*lines[:3], ",".join([*fields[:2], "n.a.", *fields[3:]]), *lines[4:]]) + "\n"
    )
    assert refused(tmp_path) == f"{path}: row 2: high is 'n.a.'; it must be a number"
    path.write_text(
        "\n".join([*lines[:3], ",".join(["yesterday", *fields[1:]]), *lines[4:]]) + "\n"
    )
    assert f"{path}: row 2: date is 'yesterday'" in refused(tmp_path)
    path.write_text("\n".join([*lines[:3], ",".join(["", *fields[1:]]), *lines[4:]]) + "\n")
    assert f"{path}: row 2: date is empty" in refused(tmp_path)
    put(tmp_path, "BTC_USDT-1h.csv", frame(5).assign(date=[0.5, 1.5, 2.5, 3.5, 4.5]))
    assert "must hold dates" in refused(tmp_path)


Damage = Callable[[pd.DataFrame], pd.DataFrame]


def _set(column: str, row: int, value: float) -> Damage:
    def damage(data: pd.DataFrame) -> pd.DataFrame:
        data.loc[row, column] = value
        return data

    return damage


def _move(row: int, to: str) -> Damage:
    def damage(data: pd.DataFrame) -> pd.DataFrame:
        data["date"] = data["date"].dt.as_unit("ns")
        data.loc[row, "date"] = pd.Timestamp(to, tz="UTC")
        return data

    return damage


BROKEN: dict[str, tuple[Damage, str]] = {
    "duplicate": (
        _move(8, "2024-01-01 07:00"),
        "row 8 (2024-01-01 07:00 UTC): the bar repeats the time of row 7",
    ),
    "falling": (
        _move(8, "2024-01-01 03:00"),
        "row 8 (2024-01-01 03:00 UTC): the bar is earlier than row 7",
    ),
    "unsorted": (
        lambda data: data[::-1],
        "row 1 (2024-01-03 00:00 UTC): the bar is earlier than row 0",
    ),
    "off the grid": (
        _move(8, "2024-01-01 08:10"),
        "row 8 (2024-01-01 08:10 UTC): the bar is off the grid; 1h bars",
    ),
    "a millisecond off": (
        _move(8, "2024-01-01 08:00:00.001"),
        "row 8 (2024-01-01 08:00 UTC): the bar is off the grid",
    ),
    "nan": (
        _set("close", 4, np.nan),
        "row 4 (2024-01-01 04:00 UTC): close is nan; prices must be finite",
    ),
    "infinite": (
        _set("high", 4, np.inf),
        "row 4 (2024-01-01 04:00 UTC): high is inf; prices must be finite",
    ),
    "zero": (
        _set("low", 0, 0.0),
        "row 0 (2024-01-01 00:00 UTC): low is 0; prices must be finite and above zero",
    ),
    "negative": (
        _set("open", 49, -3.5),
        "row 49 (2024-01-03 01:00 UTC): open is -3.5; prices must be finite",
    ),
    "high below low": (
        _set("high", 9, 1.0),
        "row 9 (2024-01-01 09:00 UTC): high 1.0 is below low 9",
    ),
    "volume": (
        _set("volume", 9, -1.0),
        "row 9 (2024-01-01 09:00 UTC): volume is -1; volumes must be finite",
    ),
    "nan volume": (_set("volume", 9, np.nan), "row 9 (2024-01-01 09:00 UTC): volume is nan"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_invalid_values(tmp_path: Path, name: str) -> None:
    damage, expected = BROKEN[name]
    put(tmp_path, "AAA_USDT-1h.feather", frame())
    path = put(tmp_path, "BTC_USDT-1h.feather", damage(frame()).reset_index(drop=True))
    assert f"{path}: {expected}" in refused(tmp_path)


def test_all_kinds_of_problems_are_reported_with_their_number_of_rows(tmp_path: Path) -> None:
    data = frame()
    data.loc[[3, 5, 6], "close"] = -1.0
    data.loc[10, "volume"] = np.inf
    path = put(tmp_path, "BTC_USDT-1h.feather", data)
    assert "(3 such rows)" in refused(tmp_path)
    assert len(list(file_problems(read_bars(path), NOW))) == 2
    (report,) = check_dir(tmp_path, now=NOW)
    assert report.bars is None
    assert len(report.all_problems) == 2


def test_mixed_timeframes(tmp_path: Path) -> None:
    put(tmp_path, "AAA_USDT-1h.feather", frame())
    path = put(tmp_path, "BTC_USDT-1h.feather", frame(600, step=300))
    assert refused(tmp_path) == (
        f"{path}: its bars are 5m apart, but its name says 1h; timeframes cannot be mixed: rename "
        "or replace it"
    )
    path.rename(tmp_path / "BTC_USDT-5m.feather")
    assert load_bars(tmp_path, "1h", now=NOW).tickers == ("AAA/USDT",)
    assert load_bars(tmp_path, "5m", now=NOW).tickers == ("BTC/USDT",)
    assert [report.timeframe for report in check_dir(tmp_path, now=NOW)] == ["5m", "1h"]
    put(tmp_path, "BTC_USDT-5m.feather", frame())
    assert "its bars are 1h apart, but its name says 5m" in refused(tmp_path, "5m")


def test_open_bars_are_refused_until_they_close(tmp_path: Path) -> None:
    path = put(tmp_path, "BTC_USDT-1h.feather", frame(5))
    closes = START + 5 * HOUR
    with pytest.raises(InputError) as caught:
        load_bars(tmp_path, "1h", now=closes - 1)
    assert str(caught.value).startswith(
        f"{path}: row 4 (2024-01-01 04:00 UTC): the bar is still open until 2024-01-01 05:00 UTC "
        "(now 2024-01-01 04:59)"
    )
    assert len(load_bars(tmp_path, "1h", now=closes)) == 5
    path.unlink()
    write_bars(replace(sample_bars(), synthetic=True), tmp_path)
    assert len(load_bars(tmp_path, "1h", now=closes)) == 50  # synthetic bars may lie in the future


def test_no_overlap_names_both(tmp_path: Path) -> None:
    put(tmp_path, "A_USDT-1h.feather", frame(10))
    path = put(tmp_path, "B_USDT-1h.feather", frame(10, start=START + 10 * HOUR))
    assert refused(tmp_path) == (
        f"{path}: row 0 is 2024-01-01 10:00 UTC, after A/USDT ends (2024-01-01 09:00 in "
        "A_USDT-1h.feather): "
        "no overlap; leave one of them out of --tickers"
    )
    put(tmp_path, "B_USDT-1h.feather", frame(10, start=START + 9 * HOUR))
    assert len(load_bars(tmp_path, "1h", now=NOW)) == 1


def test_hole_share_above_the_limit(tmp_path: Path) -> None:
    path = put(tmp_path, "B_USDT-1h.feather", frame(100).drop([40, 41, 70]))
    sentence = refused(tmp_path)
    assert (
        f"{path}: 3 of 100 bars are missing (3.00%; the first is 2024-01-02 16:00 UTC)" in sentence
    )
    assert "above the limit of 2.00%" in sentence
    assert load_bars(tmp_path, "1h", max_hole_share=0.03, now=NOW).hole.sum() == 3


def test_a_date_centuries_away_needs_no_memory(tmp_path: Path) -> None:
    path = put(tmp_path, "B_USDT-1m.csv", frame(100, step=60))
    lines = path.read_text().splitlines()
    path.write_text(
        "\n".join([lines[0], "1700-01-01 00:00:00+00:00" + lines[1][25:], *lines[2:]]) + "\n"
    )
    assert (
        "170,406,720 of 170,406,820 bars are missing (100.00%; the first is 1700-01-01 00:01 UTC)"
        in refused(tmp_path, "1m")
    )


def test_failed_writes_leave_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bars(sample_bars(), tmp_path)
    before = (tmp_path / "BTC_USDT-1h.parquet").read_bytes()

    def fails(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("pyarrow.parquet.write_table", fails)
    with pytest.raises(OSError, match="disk full"):
        write_bars(sample_bars(60), tmp_path)
    assert (tmp_path / "BTC_USDT-1h.parquet").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 2


# ---- real data ----

SETS = {
    "binance_2024_5m": ("5m", 71_769, 7, 0, 0),
    "binance_2024_1h": ("1h", 5_980, 7, 0, 0),
    "binance_2021_2023_1h": ("1h", 23_999, 11, 5, 12),
}


@pytest.mark.parametrize("name", SETS)
def test_real_sets_are_as_described(real_data: Path, name: str) -> None:
    timeframe, count, tickers, outages, missing = SETS[name]
    (report,) = check_dir(real_data / name)
    assert report.all_problems == ()
    assert report.bars is not None
    assert report.bars.close.shape == (count, tickers)
    assert len(report.outages) == outages
    assert sum(length for _, length in report.outages) == missing
    assert report.bars.hole.sum(axis=0).tolist() == [missing] * tickers  # the same for all tickers
    assert all(row.strays == 0 for row in report.tickers)
    assert report.timeframe == timeframe
    if name == "binance_2021_2023_1h":
        assert int((~report.bars.hole.any(axis=1)).sum()) == 23_987
        assert [row.zero_volume for row in report.tickers] == [1] * tickers


def test_real_hours_close_where_their_five_minutes_do(real_data: Path) -> None:
    hours, minutes = (
        load_bars(real_data / "binance_2024_1h", "1h"),
        load_bars(real_data / "binance_2024_5m", "5m"),
    )
    last = np.searchsorted(minutes.time, hours.time + 3300)
    np.testing.assert_array_equal(hours.close, minutes.close[last])


def test_real_equal_weight_anchor(real_data: Path) -> None:
    """Return of the published portfolio from 2022-05-01 to 2022-06-27 00:00, on closes."""
    tickers = ["AAVE", "AVAX", "BTC", "NEAR", "LINK", "ETH", "LTC", "MATIC", "UNI", "SOL"]
    bars = load_bars(real_data / "binance_2021_2023_1h", "1h", tickers)
    times = [int(pd.Timestamp(day, tz="UTC").timestamp()) for day in ("2022-05-01", "2022-06-27")]
    start, stop = np.searchsorted(bars.time, times)
    assert float(np.mean(bars.close[stop] / bars.close[start])) - 1 == pytest.approx(
        -0.474, abs=0.0005
    )


def test_reading_is_fast(real_data: Path) -> None:
    """72,000 × 7 bars load in well under a second on one core (0.2–0.3 s measured)."""
    folder = real_data / "binance_2024_5m"
    load_bars(folder, "5m")
    taken = []
    for _ in range(3):
        begin = time.process_time()
        load_bars(folder, "5m")
        taken.append(time.process_time() - begin)
    assert min(taken) < 1.0
