"""Studies on a market with hours: the calendar is recorded, and years are those of the calendar."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from sweepd.envs.crypto.data.bars import load_bars, write_bars
from sweepd.envs.crypto.data.demo_market import make_demo_market
from sweepd.envs.crypto.data.timeframe import bars_per_year, later
from sweepd.envs.support.errors import InputError
from sweepd.optimize.cli.study_request import make_request
from sweepd.optimize.objectives.outlook import outlook
from sweepd.optimize.objectives.table import objective_of
from sweepd.optimize.study.record.bars import load_study_bars
from sweepd.optimize.study.record.spans import holdout_span, study_splits
from sweepd.optimize.study.record.specs import CryptoSpec, StudySpec
from sweepd.optimize.study.settings.study import StudySettings
from sweepd.optimize.study.space.parsing import load_space
from sweepd.optimize.worker.freeze import draft_spec, reproducing_flags, requested_spec

NY = "1d-XNYS"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_bars(make_demo_market(4, assets=2, bars=1400, timeframe=NY), tmp_path)
    return tmp_path


def spec_of(folder: Path, timeframe: str = NY) -> CryptoSpec:
    """Return the spec that `train --timeframe TIMEFRAME` creates."""
    request = make_request(StudySettings(data_dir=folder, timeframe=timeframe), frozenset())
    space = load_space(request.search_space, request.subject, request.timeframe)
    bars = objective_of(request.env).load_bars(request)
    spec = draft_spec(request, space, bars, torch.device("cpu"))
    assert isinstance(spec, CryptoSpec)
    return spec


def test_a_study_records_the_calendar(folder: Path) -> None:
    spec = spec_of(folder)
    assert spec.data.timeframe == NY
    assert spec.recipe["name"] == "short"
    assert StudySpec.from_json(spec.to_json()) == spec
    bars = load_study_bars(spec.data)
    assert bars.timeframe == NY
    assert bars.fingerprint == spec.data.fingerprint
    request = make_request(StudySettings(data_dir=folder, timeframe=NY), frozenset({"timeframe"}))
    assert f"--timeframe {NY}" in reproducing_flags(spec, request)
    kind = objective_of(spec.environment)
    assert kind.default_name(StudySettings(timeframe=NY)) == "crypto-1d-XNYS"
    # The same files as a market that never closes are other bars.
    other = dataclasses.replace(spec.data, timeframe="1d-XLON")
    with pytest.raises(InputError):
        load_study_bars(other)
    asked = make_request(StudySettings(data_dir=folder, timeframe="1d"), frozenset({"timeframe"}))
    assert requested_spec(None, spec, asked).timeframe == "1d"  # type: ignore[arg-type]


def test_the_hold_out_is_counted_in_sessions(folder: Path) -> None:
    spec = spec_of(folder)
    span = holdout_span(spec)
    assert span is not None
    bars = load_bars(folder, NY)
    a, b = study_splits(spec).holdout
    assert b - a == 210
    assert span == (bars.tickers, int(bars.time[a]), int(bars.time[-1]))
    assert later(NY, int(bars.time[a]), 209) == int(bars.time[-1])


def test_the_outlook_has_years_of_sessions(folder: Path) -> None:
    spec = spec_of(folder)
    daily = dataclasses.replace(spec, data=dataclasses.replace(spec.data, timeframe="1d"))
    made, other = outlook(spec, 40), outlook(daily, 40)
    ratio = bars_per_year(NY) / 365.25
    assert made["years"] / other["years"] == pytest.approx(1 / ratio)
    assert made["planned_information_ratio"] / other["planned_information_ratio"] == pytest.approx(
        math.sqrt(ratio)
    )


def test_a_study_on_hours_of_sessions(tmp_path: Path) -> None:
    frame = "1h-XNYS"
    write_bars(make_demo_market(4, assets=2, bars=4800, timeframe=frame), tmp_path)
    spec = spec_of(tmp_path, frame)
    assert (spec.data.timeframe, spec.recipe["name"]) == (frame, "default")
    assert StudySpec.from_json(spec.to_json()) == spec
    assert load_study_bars(spec.data).fingerprint == spec.data.fingerprint
    span = holdout_span(spec)
    assert span is not None
    assert later(frame, span[1], 719) == span[2]
    kept = study_splits(spec)
    assert outlook(spec, 40)["years"] == pytest.approx(len(kept.path_bars) / bars_per_year(frame))
    # Hours of a market that never closes open at other times.
    with pytest.raises(InputError, match="off the grid"):
        load_bars(tmp_path, "1h")
