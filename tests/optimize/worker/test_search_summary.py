"""Importances, cost and training received in the closing summary."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from optuna.trial import TrialState
from rich.console import Console

from envs.crypto.scoring.metrics import PathTrades
from optimize.worker import summary
from optimize.worker.search_summary import search_lines
from optimize.worker.telemetry import Telemetry
from optimize.worker.timing import Phases
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


def test_a_market_shows_fees_and_the_ratio_of_the_path_that_the_gate_judges() -> None:
    """Fees that are added back give the returns of the same trades on a market without fees."""
    rng = np.random.default_rng(0)
    gross, fees = 0.01 * rng.standard_normal((3, 500)) + 1e-3, np.full((3, 500), 2e-3)
    common = {name: np.full((3, 500), 0.5) for name in ("trades", "notional", "exposure")}
    equal = 0.01 * rng.standard_normal((3, 500))
    paths = PathTrades(returns=gross - fees, equal_weight=equal, fees=fees, **common)
    free = PathTrades(returns=gross, equal_weight=equal, fees=0.0 * fees, **common)
    before = paths.before_fees().summarise("1h")
    for one, other in zip(before, free.summarise("1h"), strict=True):
        assert one.to_dict() == pytest.approx(other.to_dict())
    after = paths.summarise("1h")
    names = [name for name, value in after[0].to_dict().items() if not isinstance(value, str)]
    means = {name: float(np.mean([getattr(one, name) for one in after])) for name in names}

    def rows(found: dict[str, Any]) -> dict[str, list[str]]:
        console = Console(file=io.StringIO(), width=200)
        console.print(summary._market_table(means, before, found))
        lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
        cells = [[cell.strip() for cell in line.replace("┃", "│").split("│")] for line in lines]
        return {row[0]: row[1:] for row in cells if len(row) == 4}

    shown = rows({"path": 1, "sharpe": after[1].information_ratio})
    assert shown[""] == ["after fees", "before fees", "equal weight"]
    ratio = [f"{one[1].information_ratio:+.2f}" for one in (after, before)]
    assert shown["information ratio, median path"] == [*ratio, ""]
    total = [np.mean([m.total_return for m in one]) for one in (after, before)]
    total.append(means["equal_weight_return"])
    assert shown["return, whole length"] == [f"{value:+.1%}" for value in total]
    assert shown["fees paid"][1] == ""
    # Not measured yet: the mean over paths, as the title says.
    mean = rows({"path": None})["information ratio over equal weight"]
    assert mean[0] == f"{means['information_ratio']:+.2f}"
