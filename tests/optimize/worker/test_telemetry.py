"""The figures of the progress display."""

from __future__ import annotations

import math

import pytest
import torch
from rich.console import Console

from sweepd.optimize.worker import telemetry as telemetry_module
from sweepd.optimize.worker.telemetry import Telemetry


def test_the_eta_includes_progress_within_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(telemetry_module.time, "monotonic", lambda: now)
    telemetry = Telemetry(Console(quiet=True), "study", torch.device("cpu"))
    telemetry.total, telemetry.steps_per_trial = 8, 100
    assert math.isnan(telemetry.eta)

    now += 20.0
    telemetry.steps(200)  # half of the steps of four trials
    assert telemetry.eta == pytest.approx(60.0)

    now += 10.0
    telemetry.steps(100)  # two were pruned halfway
    telemetry.finished(4)
    telemetry.counts = {"COMPLETE": 2, "PRUNED": 2}
    assert telemetry.eta == pytest.approx(30.0)

    now += 25.0
    telemetry.steps(250)
    assert telemetry.eta == pytest.approx(5.0)
    telemetry.steps(100)  # more than the average trial so far
    assert telemetry.eta == 0.0
