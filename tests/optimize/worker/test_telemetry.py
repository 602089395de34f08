"""The figures of the progress display, and what a notebook shows."""

from __future__ import annotations

import io
import json
import math
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from sweepd.envs.support.logs import LogConsole
from sweepd.optimize.study.insight import time_left
from sweepd.optimize.study.insight.charts import StudyCharts
from sweepd.optimize.worker import telemetry as telemetry_module
from sweepd.optimize.worker.telemetry import Telemetry


def made(console: Console | None = None) -> Telemetry:
    return Telemetry(console or Console(quiet=True), "study", torch.device("cpu"))


def test_the_eta_counts_what_was_trained_since_the_last_rung(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    for module in (telemetry_module, time_left):
        monkeypatch.setattr(module.time, "monotonic", lambda: now)
    telemetry = made()
    telemetry.left(800.0)
    assert math.isnan(telemetry.eta)
    now += 500.0  # measuring and compiling
    telemetry.begin(2.0)  # half of the program's slots are empty
    telemetry.steps(25)
    now += 10.0
    telemetry.steps(25)
    assert math.isnan(telemetry.eta), "no rung was evaluated yet"
    assert telemetry.trials_per_hour is None, "no trial has finished"
    telemetry.left(700.0)
    assert telemetry.eta == pytest.approx(140.0, rel=0.01)
    now += 10.0
    telemetry.steps(25)
    assert telemetry.eta == pytest.approx(130.0, rel=0.01)
    telemetry.others = 5.0
    assert telemetry.eta == pytest.approx(65.0, rel=0.01), "with another worker, as fast"
    telemetry.rest()
    assert telemetry.eta == pytest.approx(130.0), "the other one goes on alone"
    telemetry.left(0.0)
    assert telemetry.eta == 0.0


class Outputs:
    """Stands for IPython in a kernel. contents: what the output showed, one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.contents: list[dict[str, str]] = []
        self.made = 0
        shown = types.ModuleType("IPython.display")
        shown.display = self._display  # type: ignore[attr-defined]
        kernel = types.SimpleNamespace(kernel=object())
        ipython = types.ModuleType("IPython")
        ipython.get_ipython = lambda: kernel  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        monkeypatch.setitem(sys.modules, "IPython.display", shown)

    def _display(self, content: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert raw
        assert display_id
        self.made += 1
        self.contents.append(content)
        return types.SimpleNamespace(update=lambda own, **_: self.contents.append(own))


def test_a_notebook_has_one_output_that_is_updated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = Outputs(monkeypatch)
    monkeypatch.setattr("sweepd.optimize.worker.notebook.EVERY", 0.0)
    monkeypatch.setattr(telemetry_module, "LOG_EVERY", 0.0)
    log = tmp_path / "log"
    telemetry = made(LogConsole(log))
    with telemetry:
        assert telemetry.drawn
        values = [{"value": 0.5, "best": 0.5}, {"value": 0.1, "best": 0.5}]
        running = [{"trial": 7, "rungs": [[1, 0.25]]}]
        telemetry.charts = StudyCharts({"values": values, "running": running})
        for number in range(40):
            telemetry.steps(100)
            telemetry.say(f"trial {number} complete", "trial.complete", trial=number)
        telemetry.say("warning: <b>the score</b> is out of range", "trial.warning")
    assert outputs.made == 1
    assert len(outputs.contents) > 40
    last = outputs.contents[-1]
    for text in ("best so far", "trial 7 +0.25", "trial 39 complete"):
        assert text in last["text/plain"]
    assert "trial 34 complete" not in last["text/plain"]
    assert last["text/html"].startswith("<pre")
    printed = capsys.readouterr().out
    assert "out of range" in printed, "warnings stay"
    assert len(printed.splitlines()) <= 2
    kept = log.read_text()
    assert kept.count("complete") == 40, "the log file has all lines"


def test_json_lines_stay_json_lines_in_a_notebook(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = Outputs(monkeypatch)
    with made(LogConsole(None, "json")) as telemetry:
        telemetry.say("trial 1 complete", "trial.complete", trial=1)
    assert not outputs.contents
    assert json.loads(capsys.readouterr().out)["event"] == "trial.complete"


def test_a_terminal_shows_the_curves_below_the_panel() -> None:
    screen = io.StringIO()
    telemetry = made(Console(file=screen, force_terminal=True, width=120, color_system=None))
    with telemetry:
        values = [{"value": 0.5, "best": 0.5}]
        running = [{"trial": 7, "rungs": [[1, 0.25], [2, 0.75]]}]
        telemetry.charts = StudyCharts({"values": values, "running": running})
        assert telemetry.drawn
        telemetry._live.refresh()  # type: ignore[union-attr]
    text = re.sub("\x1b[^a-zA-Z]*[a-zA-Z]", "", screen.getvalue())
    assert "objective: • each trial" in text
    assert "running: trial 7 +0.75" in text
