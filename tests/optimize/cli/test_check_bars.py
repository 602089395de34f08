"""`sweepd data check`: it approves exactly what `train` takes."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from sweepd.envs.crypto.data.bars import load_bars, write_bars
from sweepd.envs.crypto.data.demo_market import make_demo_market
from sweepd.envs.crypto.data.limits import Span, describe_limits
from sweepd.envs.crypto.splits import SCHEMES, TooFewBars
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.invocation import program
from sweepd.optimize.cli.check_bars import CheckFlags, check, check_study
from sweepd.optimize.cli.study_request import make_request
from sweepd.optimize.objectives.table import objective_of
from sweepd.optimize.study.settings.study import StudySettings
from sweepd.optimize.study.space.parsing import load_space
from sweepd.optimize.worker.freeze import draft_spec
from tests.envs.bar_samples import START, frame, put, sample_bars
from tests.optimize.cli.test_commands import search_app

# Folds for which the few bars of a test are enough.
SMALL = ("--recipe", "short", "--cv", "single")
HOUR = 3600


def run(*arguments: str | Path) -> Any:
    """Run the command; `result.output` combines standard output and error."""
    app = typer.Typer()
    app.command()(check)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(*arguments: str | Path) -> str:
    """Return the InputError's message, which `sweepd` prints before exiting with 2."""
    result = run(*arguments)
    assert isinstance(result.exception, InputError)
    return str(result.exception)


def test_check_reports_each_ticker_and_the_set(tmp_path: Path) -> None:
    put(tmp_path, "BTC_USDT-1h.feather", frame(1000).drop([30, 31, 400]))
    data = frame(1000).drop([30, 31])
    data.loc[7, "volume"] = 0.0
    put(tmp_path, "ETH_USDT-1h.csv", data)
    result = run("--data-dir", tmp_path, *SMALL)
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
    assert (
        lines[-1]
        == f"next: {program()} train --data-dir {tmp_path} --timeframe 1h {' '.join(SMALL)}"
    )


def test_check_prints_every_problem_and_exits_with_2(tmp_path: Path) -> None:
    write_bars(sample_bars(500), tmp_path)
    data = frame()
    data.loc[4, "low"] = -1.0
    data.loc[6, "high"] = 0.5
    bad = put(tmp_path, "LTC_USDT-1h.feather", data)
    broken = tmp_path / "UNI_USDT-1h.parquet"
    broken.write_bytes(b"nothing")
    result = run("--data-dir", tmp_path, *SMALL)
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
    assert "next:" not in result.output
    assert run("--data-dir", tmp_path, "--tickers", "ETH,BTC", *SMALL).exit_code == 0


def test_check_has_the_limit_of_holes_of_train(tmp_path: Path) -> None:
    put(tmp_path, "BTC_USDT-1h.feather", frame(100).drop([30, 31, 40]))
    result = run("--data-dir", tmp_path, *SMALL)
    assert result.exit_code == 2
    assert "3 of 100 bars are missing (3.00%" in result.output
    with pytest.raises(InputError, match="3 of 100 bars are missing"):
        load_bars(tmp_path, "1h")


def test_check_covers_each_timeframe_by_default(tmp_path: Path) -> None:
    write_bars(sample_bars(500), tmp_path)
    write_bars(sample_bars(500, timeframe="5m"), tmp_path)
    both = run("--data-dir", tmp_path, *SMALL).output
    assert both.index("5m bars") < both.index("1h bars")
    one = run("--data-dir", tmp_path, "--timeframe", "1h").output
    assert "5m bars" not in one


def test_check_reports_bad_arguments(tmp_path: Path) -> None:
    assert "no such folder" in refused("--data-dir", tmp_path / "none")
    assert "no bar files here" in refused("--data-dir", tmp_path)
    write_bars(sample_bars(500), tmp_path)
    assert "has no such bars, only 1h" in refused("--data-dir", tmp_path, "--timeframe", "4h")
    assert "there are BTC/USDT, ETH/USDT" in refused("--data-dir", tmp_path, "--tickers", "DOGE")
    assert "--tickers is empty" in refused("--data-dir", tmp_path, "--tickers", ",")


def test_check_of_the_real_bars(real_data: Path) -> None:
    result = run("--data-dir", real_data / "binance_2021_2023_1h")
    assert result.exit_code == 0
    assert (
        "together: 23,999 bars × 11 tickers from 2021-04-04 21:00 to 2023-12-30 19:00 UTC"
        in result.output
    )
    assert "outages of all tickers: 5, 12 bars in all" in result.output


def test_synthetic_bars_are_marked(tmp_path: Path) -> None:
    write_bars(make_demo_market(0, assets=1, bars=2000), tmp_path)
    result = run("--data-dir", tmp_path, *SMALL)
    assert result.exit_code == 0, result.output
    assert ", SYNTHETIC" in result.output


# ---- as train ----


@functools.cache
def long_market() -> Any:
    return make_demo_market(3, assets=1, bars=6000)


@settings(max_examples=40)
@given(
    bars=st.integers(1, 6000),
    scheme=st.sampled_from(SCHEMES),
    groups=st.integers(2, 7),
    test_groups=st.integers(1, 3),
    holdout=st.sampled_from([0.0, 0.15, 0.4]),
    embargo=st.sampled_from([0.0, 0.01, 0.1]),
    recipe=st.sampled_from([None, "default", "short"]),
)
def test_check_takes_what_train_takes(
    bars: int,
    scheme: str,
    groups: int,
    test_groups: int,
    holdout: float,
    embargo: float,
    recipe: str | None,
) -> None:
    market = long_market().slice(0, bars)
    folds: dict[str, Any] = {
        "cv": scheme,
        "groups": groups,
        "test_groups": test_groups,
        "holdout": holdout,
        "embargo": embargo,
        "recipe": recipe,
    }

    def train() -> None:
        """Create a study and its experiment, as train does."""
        request = make_request(StudySettings(**folds), frozenset())
        kind = objective_of(request.env)
        kind.check(request)
        space = load_space(request.search_space, request.subject, request.timeframe)
        spec = draft_spec(request, space, market, torch.device("cpu"))
        kind.make_experiment(spec, market, torch.device("cpu"), lambda _: None)

    def sentence(attempt: Any) -> str | None:
        try:
            attempt()
        except InputError as error:
            return str(error)
        return None

    spans = [Span("DEMO1/USDT", 0, bars)]
    assert sentence(lambda: check_study(market, spans, CheckFlags(**folds))) == sentence(train)


def test_check_and_train_name_the_tickers_that_limit(tmp_path: Path) -> None:
    """37 tickers of which 3 are too short: each is fine, but together they are not."""
    bars = tmp_path / "bars"
    bars.mkdir()
    data = frame(6000)
    for number in range(34):
        put(bars, f"A{number}_USDT-1h.parquet", data)
    put(bars, "NEW_USDT-1h.parquet", data.iloc[5900:])
    put(bars, "YOUNG_USDT-1h.parquet", data.iloc[5500:])
    put(bars, "DEAD_USDT-1h.parquet", data.iloc[:5947])
    result = run("--data-dir", bars)
    assert result.exit_code == 2
    assert "together: 47 bars × 37 tickers" in result.output
    sentence = (
        "47 bars of 1h are too few for cpcv with 5 groups, a purge of 523 bars, an embargo of "
        "1.0% and a hold-out of 15%: at least 4,6"
    )
    limits = (
        "the range common to the 37 tickers begins with NEW/USDT (2024-09-02 20:00 UTC) and ends "
        "with DEAD/USDT (2024-09-04 18:00 UTC); without NEW/USDT, YOUNG/USDT it has 5,947 bars "
        "(leave them out of --tickers)"
    )
    output = result.output.replace("\n", "")
    assert sentence in output
    assert limits in output
    words = ["train", "--data-dir", str(bars), "--runs-dir", str(tmp_path / "runs")]
    trained = CliRunner().invoke(search_app(), words)
    assert isinstance(trained.exception, InputError)
    assert str(trained.exception) in output
    rest = ",".join(["DEAD", *(f"A{number}" for number in range(34))])
    assert run("--data-dir", bars, "--tickers", rest).exit_code == 0


def test_limits_when_no_choice_is_enough() -> None:
    spans = [Span("A/USD", START, START + 9 * HOUR), Span("B/USD", START + HOUR, START + 9 * HOUR)]
    assert describe_limits(spans, "1h", 11).endswith("no choice of these tickers has enough")
    assert "without B/USD it has 10 bars" in describe_limits(spans, "1h", 10)
    assert describe_limits(spans[:1], "1h", 10) == ""


def test_daily_bars_of_five_years_are_enough(tmp_path: Path) -> None:
    """Their recipe is short: the default one would need ten years."""
    write_bars(sample_bars(1500, ("BTC/USDT",), "1d"), tmp_path)
    now_old = load_bars(tmp_path, "1d", now=START + 2000 * 86_400)
    check_study(now_old, [], CheckFlags())
    with pytest.raises(InputError, match=r"at least 3,[89]\d\d are needed"):
        check_study(now_old, [], CheckFlags(recipe="default"))
    assert make_request(StudySettings(timeframe="1d"), frozenset()).recipe == "short"
    assert make_request(StudySettings(timeframe="4h"), frozenset()).recipe == "default"
    assert issubclass(TooFewBars, InputError)
    assert np.isfinite(now_old.close).all()
