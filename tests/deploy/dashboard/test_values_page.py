"""The pages of a study with several values and constraints."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("plotly")

from sweepd.deploy.dashboard.study_figures import values_figure
from sweepd.optimize.study.insight.watch import StudyInsight
from sweepd.optimize.study.study import StudyHandle
from tests.deploy.dashboard.studies import filled_study
from tests.deploy.dashboard.test_research import client, traces
from tests.deploy.dashboard.test_web import Checked, figures, get
from tests.optimize.objectives.command.programs import command_study
from tests.optimize.study.test_values_study import BOTH
from tests.optimize.study_files import finish

RATES = (0.1, 0.9, 0.5, 0.7)


@pytest.fixture(scope="module")
def handle(tmp_path_factory: pytest.TempPathFactory) -> StudyHandle:
    """Four trials: the value is the rate, the cost its square, of which the last two are equal."""
    made = command_study(tmp_path_factory.mktemp("values"), "", constraints=("cost<=0.5",), **BOTH)
    for rate in RATES:
        made.study.enqueue_trial({"lr": rate})
        [plan] = made.ask_batch(1, "w", 4)
        cost = max(rate, 0.3) ** 2
        made.storage.set_trial_user_attrs(
            plan.trial_id, {"sweepd:seed": 1}, {"constraints:cost<=0.5": cost - 0.5}
        )
        made.report(plan, 1, rate)
        finish(made, plan.trial_id, rate, cost)
    return made


def folder(handle: StudyHandle) -> Path:
    return handle.run_dir.parent


def test_the_page_of_parameters_has_the_frontier(handle: StudyHandle) -> None:
    answer = get(client(folder(handle)), "/training/parameters")
    page = Checked(answer.text)
    assert "values" in page.ids
    part = answer.text[answer.text.index('id="values"') :]
    assert "3 of 4 complete trials meet cost&lt;=0.5" in part
    assert "3 of 4 complete trials are on the frontier" in part
    chosen = handle.best_trial()
    assert chosen is not None
    assert f"Selected is trial {chosen.number}, of the trials that meet the constraints" in part
    drawn = traces(figures(answer)["values"])
    assert drawn["breaks a constraint"]["text"] == ["1"]
    assert set(drawn["frontier"]["text"]) == {"0", "2", "3"}
    assert drawn["selected"]["text"] == [str(chosen.number)]
    assert "a trial" not in drawn


def test_the_other_pages_show_values_and_what_breaks_constraints(handle: StudyHandle) -> None:
    text = get(client(folder(handle)), "/training").text
    Checked(text)
    assert "selected trial" in text
    assert "constraints: 3 of 4 complete trials meet cost&lt;=0.5" in text
    text = get(client(folder(handle)), "/training/trials").text
    Checked(text)
    assert "does not meet cost&lt;=0.5 (by 0.31)" in text
    assert "<td>+0.9000</td><td>+0.8100</td>" in text
    assert "cost</th>" in text


def test_dominated_trials_are_drawn_as_others(tmp_path: Path) -> None:
    made = command_study(tmp_path, "", **BOTH)
    for rate, cost in ((0.5, 1.0), (0.4, 2.0)):
        [plan] = made.ask_batch(1, "w", 2)
        made.storage.set_trial_user_attr(plan.trial_id, "sweepd:seed", 1)
        finish(made, plan.trial_id, rate, cost)
    view = StudyInsight(made).parameters()["values"]
    drawn = traces(values_figure(view))
    assert (drawn["a trial"]["text"], drawn["frontier"]["text"]) == (["1"], ["0"])


def test_a_study_with_one_value_has_no_such_part(tmp_path: Path) -> None:
    filled_study(tmp_path, 4)
    for path in ("/training/parameters", "/training/trials", "/training"):
        text = get(client(tmp_path), path).text
        assert 'id="values"' not in text
        assert "does not meet" not in text
