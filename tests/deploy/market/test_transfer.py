"""`sweepd league --over` on markets: every cell is the canonical score of a policy on its bars."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from sweepd.commands import build_app
from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.market.candidates import open_study, trial_bundle
from sweepd.deploy.market.scoring import first_decision, score_bundle
from sweepd.deploy.market.transfer import Policy, play_places, read_places
from sweepd.deploy.registry.kept_scores import KeptScores
from sweepd.envs.crypto.data.bars import Bars, write_bars
from sweepd.envs.crypto.data.timeframe import format_time
from sweepd.envs.crypto.scoring import luck
from sweepd.envs.support.errors import InputError
from tests.deploy.builders import FakeStudy, reverting_market


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> FakeStudy:
    """A study with a trial that trades against past returns, and one that never trades."""
    made = FakeStudy(tmp_path_factory.mktemp("study"))
    made.add(1.0, made.contrarian())
    made.add(0.5, made.idle())
    # A second market with the same assets, and the first one with bars of two hours.
    write_bars(reverting_market(7, assets=3, bars=1900), made.folder / "other")
    write_bars(doubled(made.bars), made.data_dir)
    return made


def doubled(bars: Bars) -> Bars:
    """Return bars of twice the length, merged one by one."""
    count = len(bars) // 2
    at = [slice(2 * k, 2 * k + 2) for k in range(count)]
    return Bars(
        bars.tickers,
        "2h",
        bars.time[: 2 * count : 2],
        np.array([bars.open[part][0] for part in at]),
        np.array([bars.high[part].max(0) for part in at]),
        np.array([bars.low[part].min(0) for part in at]),
        np.array([bars.close[part][-1] for part in at]),
        np.array([bars.volume[part].sum(0) for part in at]),
        np.array([bars.hole[part].all(0) for part in at]),
        synthetic=True,
    )


def bundle_of(fake: FakeStudy, number: int = 0) -> Bundle:
    return trial_bundle(open_study(fake.name, fake.storage), number)


def play(
    fake: FakeStudy, path: Path, *overs: str, numbers: tuple[int, ...] = (0,), folder: Any = ""
) -> dict[str, Any]:
    policies = [Policy(f"fake#{number}", bundle_of(fake, number)) for number in numbers]
    named = [text.split("=", 1) for text in overs]
    data_dir = None if folder is None else (folder or fake.data_dir)
    places = read_places(policies, [(name, values) for name, values in named], data_dir)
    return play_places(KeptScores(path), policies, places)


def test_a_bundle_of_a_trial_is_that_of_a_promotion(fake: FakeStudy) -> None:
    bundle = bundle_of(fake)
    assert bundle.last_seen == fake.bars.time[fake.splits.holdout[0] - 1]
    assert bundle.manifest.data.fingerprint == fake.bars.fingerprint
    with pytest.raises(InputError, match="trial 9 is not a COMPLETE trial of study 'fake'"):
        bundle_of(fake, 9)


def test_cells_are_canonical_scores_before_the_hold_out(fake: FakeStudy, tmp_path: Path) -> None:
    report = play(fake, tmp_path, f"market={fake.data_dir},{fake.folder / 'other'}", folder=None)
    bundle = bundle_of(fake)
    window = (first_decision(bundle), fake.splits.holdout[0] - 1)
    for row, bars in zip(
        report["rows"], (fake.bars, reverting_market(7, assets=3, bars=1900)), strict=True
    ):
        cell, score = row["players"]["fake#0"], score_bundle(bundle, bars, window)
        assert cell["mean"] == score.metrics.information_ratio
        assert cell["metrics"]["trades"] == score.metrics.trades
        assert cell["low"] < cell["mean"] < cell["high"]
        assert row["params"]["last"] == format_time(bundle.last_seen)
        assert row["params"]["bars"] == window[1] - window[0]
    assert [row["players"]["fake#0"]["trained"] for row in report["rows"]] == [True, False]


def test_other_timeframes_end_before_the_hold_out_too(fake: FakeStudy, tmp_path: Path) -> None:
    report = play(fake, tmp_path, "timeframe=1h,2h")
    bundle, bars = bundle_of(fake), doubled(fake.bars)
    end = bundle.last_seen + 3600
    last = int(np.flatnonzero(bars.time + 7200 <= end)[-1])
    [_, row] = report["rows"]
    assert row["value"] == "2h"
    assert row["params"]["bars"] == last - first_decision(bundle)
    assert not row["players"]["fake#0"]["trained"]
    # Annualised with the bars of its own timeframe.
    assert row["players"]["fake#0"]["mean"] != 0.0
    assert row["params"]["last"] == format_time(int(bars.time[last]))


def test_periods_are_parts_of_the_bars(fake: FakeStudy, tmp_path: Path) -> None:
    at = [format_time(int(fake.bars.time[bar]))[:-1] for bar in (700, 1000, 1300)]
    report = play(fake, tmp_path, f"period={at[0]}..{at[1]},{at[1]}..{at[2]}")
    assert [row["params"]["bars"] for row in report["rows"]] == [300, 300]
    bundle = bundle_of(fake)
    for row, (first, last) in zip(report["rows"], ((700, 1000), (1000, 1300)), strict=True):
        score = score_bundle(bundle, fake.bars, (first - 1, last - 1))
        assert row["players"]["fake#0"]["mean"] == score.metrics.information_ratio
    both = play(fake, tmp_path, f"period={at[0]}..{at[1]}", "timeframe=1h,2h")
    assert [row["value"] for row in both["rows"]] == [
        f"{frame} {at[0]}..{at[1]}" for frame in ("1h", "2h")
    ]


def test_a_policy_that_never_trades_has_the_score_of_cash(fake: FakeStudy, tmp_path: Path) -> None:
    report = play(fake, tmp_path, "timeframe=1h", numbers=(0, 1))
    cell = report["rows"][0]["players"]["fake#1"]
    assert cell["metrics"]["trades"] == 0
    assert cell["metrics"]["total_return"] == 0.0


def test_results_are_kept(fake: FakeStudy, tmp_path: Path) -> None:
    first = play(fake, tmp_path, "timeframe=1h,2h")
    files = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert len(files) == 2
    assert play(fake, tmp_path, "timeframe=1h,2h") == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == files
    more = play(fake, tmp_path, "timeframe=1h,2h", numbers=(1, 0))
    assert more["rows"][0]["players"]["fake#0"] == first["rows"][0]["players"]["fake#0"]
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize(
    ("overs", "sentence"),
    [
        (["scenario=all"], "compared over market, timeframe, period"),
        (["timeframe=1h", "timeframe=2h"], "--over timeframe is there twice"),
        (["timeframe=1h,1h"], "1h is there twice"),
        (["timeframe=7h"], "timeframe '7h' is not known"),
        (["period=2020"], "must be FROM..TO"),
        (["period=then..2020-01-02"], "--over period 'then' is not a time"),
        (["period=2020-01-01..2031-01-01"], r"reaches into the hold-out of fake#0, which begins"),
        (["period=2030-01-01.."], "ends before it begins"),
        (["timeframe=4h"], "fake#0 can trade nowhere here: .*4h"),
        (["market=a"], "--over market names the folders: leave --data-dir out"),
    ],
)
def test_wrong_places_are_one_sentence(
    fake: FakeStudy, tmp_path: Path, overs: list[str], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        play(fake, tmp_path, *overs)


def test_folders_are_needed(fake: FakeStudy, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--data-dir is needed"):
        play(fake, tmp_path, "timeframe=1h", folder=None)
    with pytest.raises(InputError, match="nowhere is no folder of bars"):
        play(fake, tmp_path, "market=nowhere", folder=None)


def test_the_command(fake: FakeStudy, tmp_path: Path) -> None:
    def league(*words: object) -> str:
        given = ["league", *map(str, words), "--deployments", str(tmp_path / "deployments")]
        variables = {"COLUMNS": "160", "SWEEPD_STORAGE": str(fake.folder / "studies.db")}
        result = CliRunner().invoke(build_app(), given, env=variables)
        if isinstance(result.exception, Exception):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.output

    where = ("--over", f"market={fake.data_dir},{fake.folder / 'other'}")
    printed = league("fake#0", "fake#1", *where)
    assert "information ratio per year: 0 is equal weight" in printed
    assert "* with bars of its own study" in printed
    folder = tmp_path / "deployments" / "leagues" / "markets"
    report = json.loads((folder / "over.json").read_text())
    assert (folder / "over.png").stat().st_size > 1000
    assert json.loads(league("fake#0", "fake#1", *where, "--json")) == report
    for words, sentence in (
        (("fake#0",), "do not play against each other"),
        (("fake#0", "fake#0@team", *where), "is of markets and no team"),
        (("fake#0", "hero", *where), "'hero' is no slot"),
        (("fake#0", *where, "--games", 3), "--games is for games, and fake#0 trades"),
        (("hero", "--env", "kuhn", "--data-dir", fake.data_dir), "--data-dir is for policies"),
    ):
        with pytest.raises(InputError, match=sentence):
            league(*words)


def test_intervals_of_a_ratio_cover_it() -> None:
    rng, covered, runs = np.random.default_rng(0), 0, 400
    for _ in range(runs):
        # Autocorrelated returns with a true Sharpe ratio of 0.05 per bar.
        noise, x = rng.normal(size=600), np.empty(600)
        x[0] = noise[0] / math.sqrt(1.0 - 0.3**2)
        for bar in range(1, 600):
            x[bar] = 0.3 * x[bar - 1] + noise[bar]
        moments = luck.moments(x * math.sqrt(1.0 - 0.3**2) + 0.05)
        covered += abs(moments.sharpe - 0.05) <= moments.reach(0.95)
    assert 0.92 <= covered / runs <= 0.98
