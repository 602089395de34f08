"""The pages of studies for researchers: content, figures, addresses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

pytest.importorskip("plotly")
from werkzeug.test import Client

from sweepd.deploy.dashboard.source import PaperSource
from sweepd.deploy.dashboard.study_figures import (
    GUTTER,
    curve_figure,
    frontier_figure,
    parallel_figure,
    race_figure,
)
from sweepd.deploy.dashboard.web import Dashboard
from sweepd.deploy.registry.flags import RegistryFlags
from sweepd.envs.support.errors import InputError
from sweepd.optimize.cli.progress import StudyWatch
from sweepd.optimize.study.insight.axes import Axis
from sweepd.optimize.study.insight.parameters import frontier, parallel
from sweepd.optimize.study.record.keys import CHANGES_KEY
from sweepd.optimize.study.record.optuna_tables import trial_attributes
from sweepd.optimize.study.sampling.evolution import Change
from sweepd.optimize.study.study import StudyHandle, create_study
from tests.deploy.dashboard.browser import AXE_VARIABLE, CHROMIUM, Browser, axe_file, served
from tests.deploy.dashboard.studies import filled_study, game_spec
from tests.deploy.dashboard.test_web import Checked, NoStudies, figures, get
from tests.optimize.study.test_insight import AXES, row
from tests.optimize.study.test_race_study import fill, spec
from tests.optimize.study_files import make_handle

PAGES = ("/training", "/training/parameters", "/training/trials", "/training/compare")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read-only: all tests share it."""
    made = tmp_path_factory.mktemp("studies")
    filled_study(made, 40, "s")
    filled_study(made, 0, "empty")
    other = game_spec(budget=1024, seeds=2, env={"gravity": 1.0})
    filled_study(made, 12, "other", spec=other, seed=1)
    filled_study(made, 2, "unlucky", states=(TrialState.FAIL, TrialState.PRUNED))
    return made


def client(folder: Path, search: Any = None) -> Client:
    found = search or StudyWatch(None, str(folder / "sweepd.db"), folder)
    return Client(Dashboard(PaperSource(RegistryFlags(folder / "deployments")), found))


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with served(client(folder).application) as found:
        yield found


def traces(figure: dict[str, Any]) -> dict[str, Any]:
    return {trace["name"]: trace for trace in figure["data"]}


def test_page_of_parameters(folder: Path) -> None:
    search = StudyWatch(None, str(folder / "sweepd.db"), folder)
    asked = client(folder, search)
    answer = get(asked, "/training/parameters?study=s")
    page = Checked(answer.text)
    assert {"head", "importances", "parallel-text", "front", "racing"} <= set(page.ids)
    for words in (
        "20 complete, 10 pruned, 10 failed",
        "objective return",
        "learning_rate",
        "0.0001 … 0.003, log",
        "All 40 finished trials are drawn.",
        "best: trial",
        'href="/training?study=s"',
    ):
        assert words in answer.text, words
    assert set(figures(answer)) == {"parallel", "frontier"}
    # Computed in the background, and shown by a later request.
    search._insight("s").importances.wait()
    later = get(asked, "/training/parameters?study=s").text
    assert "the best tenth of the 20 complete trials" in later
    assert later.count('class="bar"') == 10


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("study", ["empty", "unlucky"])
def test_pages_of_studies_without_a_complete_trial(folder: Path, path: str, study: str) -> None:
    answer = get(client(folder), f"{path}?study={study}")
    assert answer.status_code == 200
    assert Checked(answer.text)


def test_few_trials_have_no_importances(folder: Path) -> None:
    text = get(client(folder), "/training/parameters?study=unlucky").text
    assert "Importances need 20 complete trials; there are 0." in text


@pytest.mark.parametrize("path", PAGES)
def test_pages_name_what_is_missing(folder: Path, path: str) -> None:
    assert get(client(folder), f"{path}?study=none").status_code == 404
    assert get(client(folder), "/training/parameters?rows=7").status_code == 400
    assert "start one with sweepd train" in get(client(folder, NoStudies()), path).text
    problem = NoStudies(InputError("<script>alert(1)</script>"))
    assert "<script>alert" not in get(client(folder, problem), path).text


def test_the_page_of_the_training_shows_the_value_on_fresh_seeds(tmp_path: Path) -> None:
    handle = fill(make_handle(tmp_path, spec("race")))
    runs = tmp_path / "runs"
    assert "on fresh seeds" not in get(client(runs), "/training?study=s").text
    assert create_study(
        handle.storage,
        "s-run2",
        spec("random", own_episodes=True),
        runs,
        {},
        {"study": "s", "trial": 2},
    )
    fill(StudyHandle(handle.storage, "s-run2"), ((1e-3, 1.0),))
    text = get(client(runs), "/training?study=s").text
    assert "<dt>on fresh seeds</dt><dd>+1.0000" in text
    assert "mean of 1; 95% over episodes +0.5000 … +1.5000" in text


@pytest.mark.parametrize("path", PAGES)
def test_pages_of_studies_are_read_only(folder: Path, path: str) -> None:
    asked = client(folder)
    for method in ("POST", "PUT", "DELETE"):
        answer = asked.open(path, method=method, headers={"Host": "127.0.0.1:8080"})
        assert answer.status_code == 405


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("path", PAGES)
def test_pages_of_studies_fit_the_window_and_are_accessible(
    browser: Browser, address: str, path: str, width: int, dark: bool
) -> None:
    assert browser.open(f"{address}{path}?study=s", width=width, dark=dark) == []
    assert not browser.scrolls_sideways()
    drawn = "[...document.querySelectorAll('[data-figure]')].every((e) => e.querySelector('svg'))"
    assert browser.evaluate(drawn)
    axe = axe_file()
    if axe is None:
        pytest.skip(f"{AXE_VARIABLE} does not name axe-core's axe.min.js (npm pack axe-core)")
    assert browser.violations(axe) == []


def test_all_parameters_can_be_shown(folder: Path) -> None:
    wide = parallel([row(0, 1.0)], [Axis(f"p{index}") for index in range(20)])
    few, every = (parallel_figure(wide, count) for count in (12, 20))
    assert len(few["layout"]["shapes"]) == 13
    assert len(every["layout"]["shapes"]) == 21
    assert "rows=all" not in get(client(folder), "/training/parameters?study=s").text


def test_parallel_coordinates_show_states_scales_and_switches() -> None:
    off = {"rate": 1e-4, "width": 128, "kl_on": False}
    rows = [row(0, 1.0), row(1, 3.0, params=off), row(2, state="PRUNED"), row(3, state="FAIL")]
    figure = parallel_figure(parallel(rows, AXES, 1), 3)
    found = traces(figure)
    assert list(found) == ["pruned", "failed", "lower half", "best 5%", "trial 1"]
    best = found["trial 1"]
    assert best["x"] == [1.0, 0.0, 1.0, GUTTER, None]
    assert best["y"] == [0, -1, -2, -3, None]
    assert best["text"][:4] == ["+3.0000", "0.0001", "128", "off"]
    assert best["customdata"] == [1] * 5
    assert found["pruned"]["x"][0] == found["failed"]["x"][0] == GUTTER
    assert found["pruned"]["text"][0] == "pruned"
    assert found["pruned"]["line"]["dash"] != found["failed"]["line"]["dash"]
    texts = [note["text"] for note in figure["layout"]["annotations"]]
    assert texts == [
        "<b>objective</b>",
        "+1.0000",
        "+3.0000",
        "<b>rate</b> (log)",
        "0.0001",
        "0.01",
        "<b>width</b>",
        "32",
        "64",
        "128",
        "<b>kl</b>",
        "0",
        "1",
        "off",
    ]


def test_the_objective_against_cost_has_units_and_a_frontier() -> None:
    rows = [row(0, 1.0, seconds=2.0), row(1, 3.0, seconds=50.0), row(2, 2.0, seconds=60.0)]
    figure = frontier_figure(frontier(rows))
    assert figure["layout"]["xaxis"]["title"]["text"] == "training time of the trial, s"
    assert figure["layout"]["xaxis"]["type"] == "log"
    assert figure["layout"]["yaxis"]["title"]["text"] == "objective"
    assert traces(figure)["frontier"]["text"] == ["0", "1"]
    assert traces(figure)["a trial"]["y"] == [1.0, 3.0, 2.0]


def test_page_of_trials(folder: Path) -> None:
    asked = client(folder)
    answer = get(asked, "/training/trials?study=s")
    page = Checked(answer.text)
    assert {"curves-head", "curves-text", "rungs", "heat", "trials"} <= set(page.ids)
    lines = figures(answer)["curves"]["data"]
    assert len(lines) == 3, "the best three"
    assert "return, mean over seeds, at each rung" in answer.text
    assert "from the lowest to the highest seed" in answer.text
    assert answer.text.count('<td class="heat"') == 20 * 3, "the best 20, three seeds each"
    chosen = get(asked, "/training/trials?study=s&trials=2,3,0,2,999")
    assert [line["name"] for line in figures(chosen)["curves"]["data"]] == [
        "trial 2",
        "trial 3",
        "trial 0",
    ]
    assert "trials=3%2C0" in chosen.text, "a link that takes trial 2 away"
    assert "trials=2%2C3%2C0%2C1" in chosen.text, "a link that adds trial 1"
    assert "worse than its peers" in chosen.text
    assert 'class="badge bad">failed' in chosen.text


def test_no_trial_may_be_chosen(folder: Path) -> None:
    answer = get(client(folder), "/training/trials?study=s&trials=,")
    assert "No trial is chosen." in answer.text
    assert figures(answer) == {}


@pytest.mark.parametrize("wrong", ["x", "1;2", "-1", "1.5", "²", "9" * 12])
def test_wrong_numbers_of_trials_are_refused(folder: Path, wrong: str) -> None:
    answer = get(client(folder), f"/training/trials?study=s&trials={wrong}")
    assert answer.status_code == 400
    assert "give numbers separated by commas" in answer.text


def test_trials_are_filtered_and_paged(folder: Path, tmp_path: Path) -> None:
    answer = get(client(folder), "/training/trials?study=s&state=PRUNED")
    assert "1–10 of 10" in answer.text
    table = answer.text[answer.text.index('id="trials"') :]
    assert 'class="badge good"' not in table
    assert get(client(folder), "/training/trials?study=s&state=ALIVE").status_code == 400
    filled_study(tmp_path, 101, "many")
    second = get(client(tmp_path), "/training/trials?study=many&page=2&trials=7")
    assert "51–100 of 101" in second.text
    assert "trials=7&amp;page=3" in second.text, "pages keep the chosen trials"


def test_learning_curves_show_the_spread_and_units() -> None:
    point = {"rung": 1, "steps": 4096, "value": 2.0, "low": 1.5, "high": 4.0}
    curves = [
        {"trial": 7, "points": [point, point | {"steps": 8192, "value": None}], "beside": []},
        {
            "trial": 9,
            "points": [{"rung": 1, "steps": 4096, "value": 1.0}],
            "beside": [{"steps": 2048, "value": 0.5}],
        },
    ]
    figure = curve_figure(curves, "return, mean", "fold")
    first, second, beside = figure["data"]
    assert (beside["x"], beside["y"], beside["tone"]) == ([2048], [0.5], second["tone"])
    assert (first["x"], first["y"]) == ([4096], [2.0])
    assert first["error_y"]["array"] == [2.0]
    assert first["error_y"]["arrayminus"] == [0.5]
    assert not second["error_y"]["visible"], "members are not recorded"
    assert figure["layout"]["xaxis"]["title"]["text"] == "environment steps per fold"
    assert figure["layout"]["yaxis"]["title"]["text"] == "return, mean"
    assert first["tone"] != second["tone"]


def test_page_of_two_studies(folder: Path) -> None:
    answer = get(client(folder), "/training/compare?study=s&with=other")
    page = Checked(answer.text)
    assert {"summary", "settings", "parameters"} <= set(page.ids)
    for words in ("s and other", "gravity 1.0", "budget", "1024", "learning_rate", "wall-clock"):
        assert words in answer.text, words
    assert "torch_version" not in answer.text
    assert "objectives differ" not in answer.text
    drawn = figures(answer)
    assert set(drawn) == {"finished", "hours"}
    assert [line["name"] for line in drawn["finished"]["data"]] == ["s", "other"]
    for code, path in ((404, "study=s&with=none"), (404, "study=s&with=s"), (200, "study=s")):
        assert get(client(folder), f"/training/compare?{path}").status_code == code


def test_a_single_study_has_nothing_to_compare_with(tmp_path: Path) -> None:
    filled_study(tmp_path, 1)
    answer = get(client(tmp_path), "/training/compare")
    assert "There is no other study in this database" in answer.text
    assert 'href="/training/compare' not in answer.text


def test_values_of_two_objectives_have_their_own_axes() -> None:
    points = [{"trial": 0, "value": 1.0, "finished": 2, "hours": 0.01}]
    sides = [
        {"head": {"study": name, "objective": name}, "so_far": points}
        for name in ("return", "sharpe")
    ]
    figure = race_figure(sides, "hours")
    assert [line["yaxis"] for line in figure["data"]] == ["y", "y2"]
    assert figure["layout"]["yaxis2"]["title"]["text"] == "best objective so far (sharpe)"
    assert figure["layout"]["xaxis"]["title"]["text"] == "seconds since the first trial began"
    assert figure["data"][0]["x"] == [36.0]
    sides[1]["head"]["objective"] = "return"
    assert "yaxis2" not in race_figure(sides, "finished")["layout"]


def test_a_race_shows_who_got_how_many_seeds(folder: Path, tmp_path: Path) -> None:
    spec = game_spec(sampler="race", seeds=1)
    handle = filled_study(tmp_path, 3, spec=spec, states=(TrialState.COMPLETE,))
    handle.study.add_trial(handle.trials()[1])  # another run of the second configuration
    text = get(client(tmp_path), "/training/parameters").text
    part = text[text.index('id="race"') : text.index('id="racing"')]
    best = handle.configurations()
    assert sorted(len(one.trials) for one in best) == [1, 1, 2]
    assert "1, 3" in part
    assert f"{best[0].value:+.4f}" in part
    assert 'id="race"' not in get(client(folder), "/training/parameters?study=s").text


def test_a_population_shows_the_schedule_of_its_best_trial(folder: Path, tmp_path: Path) -> None:
    spec = game_spec(search="pbt", seeds=1)
    handle = filled_study(tmp_path, 4, spec=spec, states=(TrialState.COMPLETE,))
    best = handle.spec.selection.best(handle.trials())
    assert best is not None
    number = best.best_trial.number
    other = (number + 1) % 4
    changed = {**handle.trials()[other].params, "learning_rate": 0.0123}
    attributes = {CHANGES_KEY: [Change(1, other, changed).to_record()]}
    with handle.storage.transaction() as session:  # the trial is finished
        trial_attributes.put(session, {best.best_trial._trial_id: attributes})
    text = get(client(tmp_path), "/training/parameters").text
    part = text[text.index('id="schedule"') : text.index('id="racing"')]
    assert f"<td>{other}</td>" in part
    assert "0.0123" in part
    assert "1 to 1" in part
    assert 'id="schedule"' not in get(client(folder), "/training/parameters?study=s").text
