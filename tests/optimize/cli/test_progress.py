"""The history of a study, and its data for the dashboard."""

from __future__ import annotations

import io
import json
from datetime import datetime
from pathlib import Path

import optuna
import pytest
from rich.console import Console
from typer.testing import CliRunner

from sweepd.envs.support.errors import InputError
from sweepd.envs.support.formatting import sparkline
from sweepd.optimize.cli import train as train_command
from sweepd.optimize.cli.progress import StudyWatch
from sweepd.optimize.cli.watch import study_screen
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.insight.history import history
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.record.rows import TrialRow
from sweepd.optimize.study.study import StudyHandle
from tests.optimize.conftest import TRAIN, search_app

DAY = datetime(2026, 1, 1).timestamp()


def trial(number: int, second: float, value: float | None) -> TrialRow:
    """A trial of one minute that ended at that second of a day."""
    state, ended = "FAIL" if value is None else "COMPLETE", DAY + second
    return TrialRow(number, number, state, value, started=ended - 60.0, ended=ended)


def test_trials_per_hour_are_counted_in_equal_parts_of_the_time() -> None:
    """Seven trials in ten minutes, the first began a minute before its end."""
    trials = [trial(n, second, 1.0) for n, second in enumerate((0, 30, 200, 330, 331, 600))]
    trials += [trial(9, 590, None)]
    found = history(trials)["rates"]
    assert found[0]["at"] == DAY - 60.0
    assert [part["seconds"] for part in found] == pytest.approx([300.0, 360.0])
    assert [part["finished"] for part in found] == [3, 4]  # the last one includes its end
    assert found[-1]["per_hour"] == pytest.approx(40.0)
    # A study of half a minute has several parts, too.
    short = history([trial(n, 2.0 * n - 30.0, 1.0) for n in range(16)])["rates"]
    assert [part["seconds"] for part in short] == pytest.approx([20.0] * 4 + [10.0])
    assert sum(part["finished"] for part in short) == 16
    long = history([trial(n, 3600.0 * n, 1.0) for n in range(1000)])["rates"]
    assert len(long) <= 60
    assert long[3]["per_hour"] == pytest.approx(1.0)
    assert history([]) == {"rates": [], "values": [], "running": []}


def test_the_best_so_far_rises_in_the_order_in_which_trials_ended() -> None:
    values = history([trial(0, 50, 0.2), trial(1, 10, 0.5), trial(2, 60, 0.4), trial(3, 70, 0.7)])[
        "values"
    ]
    assert [(one["trial"], one["best"]) for one in values] == [
        (1, 0.5),
        (0, 0.5),
        (2, 0.5),
        (3, 0.7),
    ]


def test_sparkline_scales_to_minimum_and_maximum() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([0.5, 1.0], lowest=0.0) == "▅█"
    assert sparkline([3.0, 3.0]) == "▁▁"
    assert sparkline([]) == ""


def test_a_study_is_watched_with_its_artifacts_and_optunas_dashboard(
    market: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dashboard = pytest.importorskip("optuna_dashboard")
    monkeypatch.chdir(market)
    CliRunner().invoke(
        search_app(),
        ["train", *TRAIN, "--n-trials", "1", "--trials-per-batch", "1"],
        catch_exceptions=False,
    )
    watch = StudyWatch(None, None, Path("runs"), lambda _handle: 3)
    assert watch.studies() == ["s"]
    found = watch.progress("s")
    json.dumps(found)
    assert (found["study"], found["done"], found["total"], found["gate"]["looks"]) == ("s", 1, 1, 3)
    assert sum(part["finished"] for part in found["history"]["rates"]) == 1
    assert found["best"]["value"] == found["history"]["values"][-1]["best"]
    screen = Console(width=240, file=io.StringIO(), record=True)
    screen.print(study_screen(found))
    text = screen.export_text()
    for word in (
        "study s",
        "1 of 1 done",
        "trials/hour",
        "best so far",
        "hold-out evaluations used: 3",
    ):
        assert word in text, word

    seen = {}
    monkeypatch.setattr(
        dashboard, "wsgi", lambda _storage, artifact_store: seen.update(store=artifact_store)
    )
    watch.application()
    trial = StudyHandle(open_storage(storage_url(None, Path("runs"))), "s").trials()[0]
    attached = [json.loads(v) for k, v in trial.system_attrs.items() if k.startswith("artifacts:")]
    assert {a["filename"] for a in attached} == {"equity.png", "paths.parquet"}
    for artifact in attached:
        with seen["store"].open_reader(artifact["artifact_id"]) as content:
            assert len(content.read()) > 1000
    monkeypatch.setattr(train_command, "work", lambda *_: None)
    CliRunner().invoke(
        search_app(),
        ["train", *TRAIN, "--study-name", "n", "--n-trials", "1"],
        catch_exceptions=False,
    )
    assert watch.studies() == ["n", "s"], "the newest first"
    assert StudyWatch("s", None, Path("runs")).studies() == ["s", "n"]
    with pytest.raises(InputError, match="is not in"):
        StudyWatch("x", None, Path("runs")).studies()


def test_studies_made_in_the_same_second_are_listed_the_newest_first(tmp_path: Path) -> None:
    storage = open_storage(storage_url(None, tmp_path))
    for name in "bca":
        study = optuna.create_study(study_name=name, storage=storage)
        study.set_user_attr("sweepd:spec", "{}")
        study.set_user_attr("sweepd:created", "2026-11-22T02:38:05+00:00")
    assert StudyWatch(None, None, tmp_path).studies() == ["a", "c", "b"]
    run = optuna.create_study(study_name="b-run0", storage=storage)
    run.set_user_attr("sweepd:spec", "{}")
    run.set_user_attr("sweepd:created", "2026-11-23T00:00:00+00:00")
    run.set_user_attr("sweepd:origin", {"study": "b", "trial": 0})
    found = StudyWatch(None, None, tmp_path).studies()
    assert found == ["a", "c", "b", "b-run0"], "a training run is not the first one"


def test_missing_database_is_reported(tmp_path: Path) -> None:
    watch = StudyWatch(None, None, tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        watch.studies()
    with pytest.raises(InputError, match="does not exist"):
        watch.application()
