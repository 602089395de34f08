"""The bars of a study: what is recorded of them, said when it is joined, and refused as a leak."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import sweepd
from sweepd.envs.crypto.data.bars import Bars, write_bars
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.record.data_spec import AcceptedJump
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.record.specs import CryptoSpec, StudySpec
from sweepd.optimize.study.study import StudyHandle
from tests.optimize.conftest import TRAIN, search_app

Run = Callable[..., str]


@pytest.fixture
def run(market: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in the folder of the tiny market; returns its output."""
    monkeypatch.chdir(market)

    def say(*words: str) -> str:
        return CliRunner().invoke(search_app(), list(words), catch_exceptions=False).output

    return say


def handle(name: str) -> StudyHandle:
    return StudyHandle(open_storage(storage_url(None, Path("runs"))), name)


def train(run: Run, name: str, *words: str) -> str:
    return run("train", *TRAIN, "--n-trials", "1", "--study-name", name, *words)


def renamed(bars: Bars, *names: str) -> Bars:
    return dataclasses.replace(bars.select(bars.tickers[: len(names)]), tickers=names)


def test_joining_says_which_other_tickers_the_folder_has(run: Run, bars: Bars) -> None:
    one, two = bars.tickers
    train(run, "s")
    train(run, "part", "--tickers", one)
    others = f"bars also has {two}; this study is on {one} alone; for a study of all tickers: "
    assert f"{others}--study-name part-2\n" in train(run, "part")  # TRAIN names the folder
    assert "also has" not in train(run, "part", "--tickers", one)
    assert "also has" not in run("train", "--study-name", "part")  # as it was created
    assert "also has" not in train(run, "s")
    write_bars(renamed(bars, "NEW/USDT"), Path("bars"))
    said = f"has NEW/USDT; this study is on {one}, {two} alone; for a study of all tickers: "
    assert f"{said}--study-name s-2\n" in run("train", "--study-name", "s")


def test_joining_with_other_bars_is_refused_and_says_how_they_differ(run: Run, bars: Bars) -> None:
    train(run, "s")
    first, last = (f"{bars.time_of(bar):%Y-%m-%dT%H:%M:%SZ}" for bar in (0, -1))
    own = f"are not those of the study (700 bars from {first} to {last}): "
    close = bars.close.copy()
    close[600, 0] = np.nextafter(close[600, 0], 0.0)
    changed = dataclasses.replace(bars, close=close)
    early = f"{bars.time_of(599):%Y-%m-%dT%H:%M:%SZ}"
    for folder, other, said in (
        ("changed", changed, f"{own}their prices, volumes or holes have other values; name the"),
        ("short", bars.slice(0, 600), f"{own}there are 600, from {first} to {early}; name the"),
        (
            "wrong",
            renamed(bars, "X/USDT", "Y/USDT"),
            f"has no 1h bars of {', '.join(bars.tickers)}, on which the study is",
        ),
    ):
        write_bars(other, Path(folder))
        with pytest.raises(InputError) as refused:
            run("train", "--study-name", "s", "--data-dir", folder)
        assert said in str(refused.value)
        assert "with --data-dir" in str(refused.value)


def test_accepted_jumps_are_recorded_with_the_data(run: Run, bars: Bars) -> None:
    values = {name: getattr(bars, name).copy() for name in ("open", "high", "low", "close")}
    for prices in values.values():
        prices[300, 0] *= 1000
    write_bars(dataclasses.replace(bars, **values), Path("bars"))
    with pytest.raises(InputError, match=r"row 300 .* --accept-jumps"):
        train(run, "s")
    said = train(run, "s", "--accept-jumps")
    spec = handle("s").spec
    assert isinstance(spec, CryptoSpec)
    [jump] = spec.data.accepted_jumps
    file = f"{bars.tickers[0].replace('/', '_')}-1h.parquet"
    assert (jump.file, jump.row, jump.time) == (file, 300, f"{bars.time_of(300):%Y-%m-%d %H:%M}")
    column = next(
        name for name in values if f"{name} {float(values[name][300, 0])!r}" in jump.found
    )
    assert f"accepted: {file}: row 300 ({jump.time} UTC): {column} " in said
    # Read back as it was written, and not a difference when the study is joined.
    assert StudySpec.from_json(spec.to_json()) == spec
    assert isinstance(jump, AcceptedJump)
    assert "joining study s" in train(run, "s")
    # The policy is evaluated on bars that the study took.
    window = (str(bars.time_of(400)), str(bars.time_of(500)))
    [found] = sweepd.evaluate(sweepd.load_policy(sweepd.load_study("s")), [window]).itertuples()
    assert found.total_return_before_fees >= found.total_return
    train(run, "rest", "--tickers", bars.tickers[1])
    rest = handle("rest").spec
    assert isinstance(rest, CryptoSpec)
    assert rest.data.accepted_jumps == ()


@pytest.mark.parametrize(("holdout", "leaks"), [("0.1", False), ("0.2", True)])
def test_a_space_around_a_trial_must_not_know_the_hold_out(
    run: Run, bars: Bars, holdout: str, leaks: bool
) -> None:
    """The earlier study used bars until a tenth before the end, with one of the tickers."""
    train(run, "before", "--tickers", bars.tickers[0])
    words = ("--holdout", holdout)
    narrow = ("--search-space", "narrow:before", *words)
    if not leaks:
        train(run, "after", *narrow)
        assert handle("after").chosen_from == 1
        run("enqueue", "after", "--from-study", "before", "--best", "1")
        return
    with pytest.raises(InputError) as refused:
        train(run, "after", *narrow)
    seen = f"{bars.time_of(630):%Y-%m-%d %H:%M}"
    assert str(refused.value).startswith(f"--search-space narrow:before used bars until {seen} UTC")
    assert str(refused.value).endswith("use --holdout 0.1 or less")
    with pytest.raises(InputError, match="'after'"):
        handle("after")
    train(run, "after", *words)
    with pytest.raises(InputError, match=r"--from-study before used bars until .*; leave it out"):
        run("enqueue", "after", "--from-study", "before", "--best", "1")
