"""Importances, cost and training received in the closing summary."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from optuna.trial import TrialState
from rich.console import Console

from sweepd.optimize.worker import summary
from sweepd.optimize.worker.summary import search_lines
from sweepd.optimize.worker.telemetry import Telemetry
from sweepd.optimize.worker.timing import Phases
from tests.deploy.dashboard.studies import filled_study, game_spec


def test_lines_of_a_search(tmp_path: Path) -> None:
    handle = filled_study(tmp_path, 48)
    importances, front, received, where = search_lines(handle)
    assert importances.startswith(
        "importances (PED-ANOVA, what the best tenth of the trials share)"
    )
    assert importances.count("%") == 5
    best = max(row.value for row in handle.rows.read() if row.value is not None)
    assert f"{best:+.4f} after 0:" in front.split(", ")[-1]
    assert received == (
        "training received: 24 configurations with 3 seeds, 3 of 3 rungs; "
        "24 configurations with 3 seeds, 1 of 3 rungs"
    )
    assert where.endswith("sweepd dashboard --study-name s")


def test_lines_without_a_figure_are_left_out(tmp_path: Path) -> None:
    assert search_lines(filled_study(tmp_path, 0)) == []
    pruned = filled_study(tmp_path, 2, "pruned", states=(TrialState.PRUNED,))
    assert [line.partition(":")[0] for line in search_lines(pruned)] == [
        "training received",
        "learning curves and parallel coordinates",
    ]


def test_the_closing_summary_has_these_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summary, "_game_table", lambda *_: "")  # these trials record no metrics
    handle = filled_study(tmp_path, 8, spec=game_spec())
    console = Console(file=io.StringIO(), width=200)
    summary.print_summary(
        handle, console, Telemetry(console, "s", torch.device("cpu")), [], Phases()
    )
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for line in search_lines(handle):
        assert line in text
