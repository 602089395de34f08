"""One quantity has one name and one value on all screens: text, JSON, pages, trackers, bundle."""

from __future__ import annotations

import html
import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from optuna.trial import TrialState
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from typer.testing import CliRunner
from werkzeug.test import Client

from sweepd.commands import build_app
from sweepd.deploy.dashboard.source import PaperSource
from sweepd.deploy.dashboard.web import Dashboard
from sweepd.deploy.registry.flags import RegistryFlags
from sweepd.envs.crypto.data.bars import write_bars
from sweepd.envs.crypto.data.demo_market import make_demo_market
from sweepd.envs.crypto.scoring.figures import MEDIAN_RATIO, figures
from sweepd.envs.support.formatting import duration, hourly
from sweepd.optimize.cli.progress import StudyWatch, study_progress
from sweepd.optimize.cli.status import show, study_status
from sweepd.optimize.cli.watch import study_screen
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.frame import comparison_frame, trials_frame
from sweepd.optimize.study.insight.parameters import frontier
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.record.trials import TrialRecord
from sweepd.optimize.study.recovery.heartbeat import Heartbeat
from sweepd.optimize.study.recovery.registration import register_worker
from sweepd.optimize.study.study import StudyHandle
from sweepd.optimize.worker.summary import print_summary, search_lines
from sweepd.optimize.worker.telemetry import Telemetry
from sweepd.optimize.worker.timing import Phases
from sweepd.optimize.worker.tracked import trial_picture
from tests.deploy.dashboard.studies import filled_study

SMALL = (
    *("--n-trials", "4", "--budget", "2048", "--rungs", "2", "--n-envs", "8", "--horizon", "64"),
    *("--threads", "1", "--gpu", "cpu", "--no-auto-deploy", "--study-name", "s"),
)
MARKET = ("--data-dir", "bars", "--recipe", "short", "--groups", "4", "--test-groups", "2")
# Every rule is met, so that there is a bundle; the dashboard shows its slot.
ANY = ("deflated-sharpe=0", "pbo=1", "constant-policy=2", "holdout-excess=9", "max-drawdown=1")
ANY_GAME = ("beats-baselines=-1e9", "ahead-of-baselines=-1", "solved=-1e9")


@dataclass
class Screens:
    """Output of the commands about a study, and its pages."""

    summary: str
    run: Callable[..., str]
    page: Callable[[str], str]
    handle: StudyHandle

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json"))


def screens(folder: Path, *words: str) -> Iterator[Screens]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("COLUMNS", "400")
        app = build_app()

        def run(*words: str) -> str:
            result = CliRunner().invoke(app, list(words), catch_exceptions=False)
            assert result.exit_code == 0, result.output
            return result.stdout

        summary = run("train", *SMALL, *words)
        source = PaperSource(RegistryFlags(folder / "deployments"))
        client = Client(Dashboard(source, StudyWatch(None, None, None)))
        handle = StudyHandle(open_storage(storage_url(None, Path("runs"))), "s")
        yield Screens(summary, run, lambda path: client.get(f"{path}?study=s").text, handle)


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Screens]:
    write_bars(make_demo_market(3, assets=2, bars=1500), tmp_path / "bars")
    yield from screens(tmp_path, *MARKET)


@pytest.fixture
def game(tmp_path: Path) -> Iterator[Screens]:
    words = ("--env", "cartpole", "--episodes", "10", "--fresh-seeds", "3")
    yield from screens(tmp_path, *words)


def rows(text: str) -> set[tuple[str, ...]]:
    """Return the rows of all tables in a terminal's text, without empty cells at the end."""
    found = set()
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split("[│┃]", line)]
        inner = cells[1:-1] if len(cells) > 1 and not cells[0] and not cells[-1] else cells
        found.add(trimmed(inner))
    return found


def html_rows(text: str) -> set[tuple[str, ...]]:
    """Return the rows of all tables in a page."""
    found = set()
    for row in re.findall(r"<tr.*?</tr>", text, re.DOTALL):
        cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)
        plain = [html.unescape(re.sub("<[^>]*>", "", cell)).strip() for cell in cells]
        found.add(trimmed(plain))
    return found


def trimmed(cells: list[str]) -> tuple[str, ...]:
    while len(cells) > 1 and not cells[-1]:
        cells = cells[:-1]
    return tuple(cells)


def promote(shown: Screens, limits: tuple[str, ...], *words: str) -> str:
    flags = [word for limit in limits for word in ("--limit", limit)]
    return shown.run("promote", "--study-name", "s", *flags, *words)


@pytest.mark.slow
def test_a_market_has_one_value_per_figure(market: Screens) -> None:
    [status] = market.json("status", "--study-name", "s")
    best, metrics = status["best"], status["best"]["metrics"]
    trial = market.handle.trials()[best["trial"]]
    shown = [trimmed(list(one.cells)) for one in figures(metrics)]
    assert len(shown) > 10
    objective = f"{best['value']:+.4f}"

    # The metrics: terminal, pages, and the same numbers in all that is not for people.
    # Of a champion, the hold-out is not evaluated again.
    gate = json.loads(promote(market, ANY, "--dry-run", "--json"))
    text = promote(market, ANY)
    shown_bundle = market.run("registry", "show", stored_bundle()["hash"][:12])
    page = next(market.handle.run_dir.glob("gate/gate.html")).read_text()
    number = str(best["trial"])
    for found in (
        rows(market.summary),
        rows(text),
        rows(shown_bundle),
        html_rows(page),
        html_rows(market.page("/training")),
        html_rows(market.page("/training/trials")),
    ):
        assert set(shown) <= found
    candidate = next(one for one in gate["candidates"] if one["trial"] == best["trial"])
    assert candidate["metrics"] == metrics
    bundle = stored_bundle()
    assert bundle["metrics"]["over_paths"] == metrics
    picture = trial_picture(market.handle, trial, "k")
    last = max(picture.points)
    scalars = tensorboard(market.handle, best["trial"])
    frame = exported(market).loc[best["trial"]]
    for name, value in metrics.items():
        assert trial.user_attrs[name] == picture.points[last][name] == value
        assert frame[f"metrics_{name}"] == pytest.approx(value, rel=1e-14)
        assert scalars[f"test/{name}"] == pytest.approx(value, rel=1e-6)  # float32
    # The information ratio, and the one that is needed.
    ratio, needed = status["gate"][MEDIAN_RATIO], status["gate"]["needed_information_ratio"]
    assert ratio == pytest.approx(metrics[MEDIAN_RATIO], rel=1e-9)
    assert gate["selection"][MEDIAN_RATIO] == pytest.approx(ratio, rel=1e-12)
    assert gate["selection"]["needed_information_ratio"] == pytest.approx(needed, rel=1e-12)
    said = f"an annual information ratio over equal weight of {ratio:+.2f} on the median of its 3"
    also = f"{needed:+.2f} is needed to be distinguished from luck among 4 trials"
    every = [market.summary, market.run("status"), text, page, market.page("/training")]
    for own in every:
        words = " ".join(re.sub("[│┃\n]", " ", html.unescape(own)).split())
        assert said in words
        assert also in words
    # The hold-out.
    holdout = {name: bundle["gate"]["holdout"][name] for name in candidate["holdout"]}
    assert holdout == candidate["holdout"]
    kept = {trimmed(list(one.cells)) for one in figures(holdout)}
    for found in (rows(text), html_rows(page), rows(shown_bundle)):
        assert kept <= found
    # The objective.
    assert trial.value == best["value"] == candidate["objective"] == picture.final["objective"]
    assert scalars["test/objective"] == pytest.approx(trial.value, rel=1e-6)
    assert scalars["test/rung_value"] == pytest.approx(picture.points[last]["rung_value"], rel=1e-6)
    assert frame["value"] == pytest.approx(trial.value, rel=1e-14)
    assert (number, objective) in {row[:2] for row in rows(text)}
    assert any(objective in cell for row in rows(market.run("studies", "list")) for cell in row)
    for where in every[:2]:
        assert objective in where
    # Its name is not that of the information ratio, which is another figure.
    named = "information-ratio, mean over paths - 0.1 deviations"
    assert f"objective ({named}) {objective}" in market.summary
    assert f"The best objective ({named}) of " in market.page("/training")
    for path in ("/training/parameters", "/training/trials"):
        assert f"objective {named}." in market.page(path)
        heads = {cell for row in html_rows(market.page(path)) for cell in row}
        assert "information-ratio" not in heads
    assert objective in market.page("/training/parameters")
    cells = [row for row in html_rows(market.page("/training/trials")) if row[0] == number]
    assert any(objective in row for row in cells)
    assert f"information-ratio {objective}" in shown_bundle


@pytest.mark.slow
def test_a_game_has_one_value_per_figure(game: Screens) -> None:
    [status] = game.json("status", "--study-name", "s")
    best = status["best"]
    trial = game.handle.trials()[best["trial"]]
    low, high = (best["interval"][name] for name in ("low", "high"))
    value, interval = f"{best['value']:+.4f}", f"95% over episodes {low:+.4f} … {high:+.4f}"
    fresh = f"{best['fresh']['value']:+.4f} ({best['fresh']['between']})"
    few = ("--games", "20")
    gate = json.loads(promote(game, ANY_GAME, *few, "--dry-run", "--json"))
    text = promote(game, ANY_GAME, *few)
    bundle = game.run("registry", "show", stored_bundle()["hash"][:12])
    candidate = next(one for one in gate["candidates"] if one["trial"] == best["trial"])
    assert candidate["objective"] == best["value"]
    for own in (game.summary, game.run("status", "--study-name", "s"), text, bundle):
        words = " ".join(re.sub("[│┃\n]", " ", own).split())
        assert value in words
        assert interval in words
        assert fresh in words
    # The closing summary's table has the same numbers.
    assert ("return, mean over seeds", value) in rows(game.summary)
    [bounds] = [row[1] for row in rows(game.summary) if row[0].startswith("95% over episodes")]
    assert bounds == f"{low:+.4f} … {high:+.4f}"
    listed = {row["study"]: row for row in game.json("studies", "list")}
    assert listed["s"]["best_value"] == pytest.approx(best["value"], rel=1e-14)
    assert listed["s-run" + str(best["trial"])]["best_value"] == pytest.approx(
        best["fresh"]["value"], rel=1e-14
    )
    compared = game.json("studies", "compare", "s", f"s-run{best['trial']}")
    assert compared["s"]["best"] == pytest.approx(best["value"], rel=1e-14)
    picture = trial_picture(game.handle, trial, "k")
    assert picture.final["objective"] == trial.value == best["value"]
    for name, number in best["metrics"].items():
        assert picture.points[max(picture.points)][name] == number == trial.user_attrs[name]
    pages = game.page("/training"), game.page("/training/parameters")
    for page in pages:
        assert value in page
    assert f"{best['fresh']['value']:+.4f}" in pages[0]
    assert interval in html.unescape(pages[1])
    assert value in game.page("/training/trials")


def pages_of(folder: Path) -> Callable[[str], str]:
    watch = StudyWatch(None, str(folder / "sweepd.db"), folder)
    found = Client(Dashboard(PaperSource(RegistryFlags(folder / "deployments")), watch))
    return lambda path: html.unescape(found.get(f"{path}?study=s").text)


def plain(*shown: Any) -> str:
    """Return what a terminal shows, in one line."""
    console = Console(file=io.StringIO(), width=600)
    for one in shown:
        console.print(one)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return " ".join(re.sub("[│┃\n]", " ", text).split())


def test_trials_per_hour_have_one_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = filled_study(tmp_path, 3, states=(TrialState.PRUNED,))
    # Rounded to two decimals first, it would be 3.4; summed after rounding, 6.6 instead of 6.7.
    monkeypatch.setattr(Telemetry, "trials_per_hour", 3.3481)
    console = Console(file=io.StringIO(), width=300)
    telemetry = Telemetry(console, "s", torch.device("cpu"))
    telemetry.total = 9
    telemetry.steps(1000)
    for _ in range(2):
        worker = register_worker(handle.storage, handle.study_id, alongside=True, say=console.print)
        beats = Heartbeat(handle.storage, worker, 99.0)
        beats.info = {**telemetry.figures(), "trials": [3], "rung": 1, "device": "cpu"}
        with beats:
            pass
    status = study_status(handle)
    assert [one["trials_per_hour"] for one in status["workers"]] == [3.3481, 3.3481]
    assert status["trials_per_hour"] == 2 * 3.3481
    text = plain(show(status))
    assert text.count("3.3 trials/hour") == 2
    assert text.count("6.7 trials/hour") == 1
    assert "3.3 trials/hour" in telemetry.line()
    print_summary(handle, console, telemetry, [1], Phases())
    assert "3.3 trials/hour" in console.file.getvalue()  # type: ignore[attr-defined]
    page = pages_of(tmp_path)("/training")
    rates = {row[5] for row in html_rows(page) if len(row) == 9}
    assert rates == {"trials/hour", "3.3"}
    tiles = dict(re.findall("<dt>(.*?)</dt><dd>(.*?)<", page))
    assert tiles["trials/hour"] == "6.7"
    assert tiles["ETA"] == duration(status["eta_seconds"])
    assert f"ETA {tiles['ETA']}" in text
    # Over time, they are the finished trials of equal parts.
    found = study_progress(handle)
    most = max(part["per_hour"] for part in found["history"]["rates"])
    assert f"up to {hourly(most)}, in parts of" in plain(study_screen(found))
    assert f"to {hourly(most)} trials/hour, most recently" in page


def test_the_training_time_of_a_trial_has_one_value(tmp_path: Path) -> None:
    handle = filled_study(tmp_path, 5)
    filled_study(tmp_path, 5, "other", seed=1)
    seconds = {
        number: TrialRecord.from_attributes(trial.user_attrs).seconds
        for number, trial in enumerate(handle.trials())
    }
    frame = trials_frame(handle)
    assert dict(frame["seconds"]) == seconds
    page = pages_of(tmp_path)
    best = frontier(handle.rows.read())["front"][-1]
    assert best["seconds"] == seconds[best["trial"]]
    time = duration(best["seconds"])
    objective = f"{best['value']:+.4f}"
    summary = plain(*search_lines(handle))
    assert f"{objective} after {time} (trial {best['trial']})" in summary
    assert (str(best["trial"]), time, objective) in html_rows(page("/training/parameters"))
    listed = [
        row for row in html_rows(page("/training/trials")) if row[1:2] in (("show",), ("hide",))
    ]
    assert {int(row[0]): row[7] for row in listed} == {
        number: duration(one) for number, one in seconds.items()
    }
    # Of all trials together.
    both = [StudyHandle(handle.storage, name) for name in ("s", "other")]
    total = comparison_frame(both).loc["seconds"]
    assert total["s"] == pytest.approx(sum(seconds.values()))
    row = ("training time of all trials", *map(duration, total))
    assert row in html_rows(page("/training/compare"))
    words = ("studies", "compare", "s", "other", "--runs-dir", str(tmp_path))
    result = CliRunner().invoke(build_app(), list(words), catch_exceptions=False)
    assert row in rows(result.stdout)


def stored_bundle() -> dict[str, Any]:
    """Return the description of the only bundle in the registry."""
    [path] = Path("deployments").rglob("bundle.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def tensorboard(handle: StudyHandle, trial: int) -> dict[str, float]:
    """Return the last value of each scalar of a trial."""
    found = EventAccumulator(str(handle.run_dir / "tensorboard" / f"trial-{trial:05d}")).Reload()
    return {name: found.Scalars(name)[-1].value for name in found.Tags()["scalars"]}


def exported(shown: Screens) -> pd.DataFrame:
    shown.run("studies", "export", "s", "--out", "trials.csv")
    return pd.read_csv("trials.csv", index_col=0)
