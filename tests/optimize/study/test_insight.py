"""Rows, importances and views of a study's trials."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.splits import CrossValidation
from sweepd.optimize.study.insight import importance
from sweepd.optimize.study.insight.axes import Axis, study_axes
from sweepd.optimize.study.insight.comparison import best_so_far, common_parameters, summary
from sweepd.optimize.study.insight.curves import best_first, curve, heat
from sweepd.optimize.study.insight.importance import LEAST, LatestImportances, importances
from sweepd.optimize.study.insight.parameters import (
    BEST_LINES,
    MOST_LINES,
    frontier,
    parallel,
    racing,
)
from sweepd.optimize.study.insight.watch import StudyInsight
from sweepd.optimize.study.record.configurations import Configuration
from sweepd.optimize.study.record.database import open_to_read
from sweepd.optimize.study.record.keys import rung_key
from sweepd.optimize.study.record.reader import StudyReader, count_states
from sweepd.optimize.study.record.rows import TrialRow, TrialRows, frozen
from sweepd.optimize.study.record.trials import RecordedFile, TrialRecord
from sweepd.optimize.study.space.parsing import load_space
from sweepd.optimize.study.space.subject import Subject
from sweepd.optimize.study.study import StudyHandle
from tests.optimize.objectives.test_game_study import make_spec
from tests.optimize.study_files import finish, make_handle

AXES = [
    Axis("rate", 1e-4, 1e-2, log=True),
    Axis("width", choices=(32, 64, 128)),
    Axis("kl", 0.0, 1.0, off=0.0),
]


@pytest.fixture
def handle(tmp_path: Path) -> StudyHandle:
    space = load_space("game", Subject("cartpole")).to_dict()
    return make_handle(tmp_path, make_spec(space=space))


def add(
    handle: StudyHandle,
    state: TrialState = TrialState.COMPLETE,
    value: float = 0.0,
    seed: int = 0,
    scores: tuple[float, ...] = (1.0, 2.0),
    attributes: Mapping[str, Any] | None = None,
    members: RecordedFile | None = None,
) -> None:
    """Add a trial with random parameters, as a worker records it."""
    drawing = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed)).ask()
    handle.space.suggest(drawing)
    record = TrialRecord(
        seed=1, scores=scores, seconds=2.5, reason="r", metrics={"iqm": 1.0}, members=members
    )
    own = record.to_attributes(handle.spec) | {rung_key(1): list(scores)}
    handle.study.add_trial(
        optuna.trial.create_trial(
            state=state,
            value=value if state == TrialState.COMPLETE else None,
            params=drawing.params,
            distributions=drawing.distributions,
            intermediate_values={1: value},
            user_attrs=own if attributes is None else dict(attributes),
        )
    )


def row(number: int, value: float | None = None, state: str = "COMPLETE", **more: Any) -> TrialRow:
    params = {"rate": 1e-3, "width": 64, "kl_on": True, "kl": 0.5}
    fields = {"params": params, "seconds": 1.0, "scores": (1.0, 2.0), "rungs": {1: 0.0}}
    return TrialRow(number, number, state, value, **(fields | more))


def test_rows_are_what_optuna_reads(handle: StudyHandle) -> None:
    members = RecordedFile("elsewhere/members.safetensors", "")
    add(handle, value=1.5, members=members)
    add(handle, TrialState.PRUNED, 0.5, seed=1)
    add(handle, TrialState.FAIL, math.nan, seed=2)
    add(handle, value=math.inf, seed=3, attributes={"other": 1})
    handle.study.enqueue_trial({})
    rows = TrialRows(handle.storage, handle.study_id).read()
    assert [one.number for one in rows] == list(range(5))
    for mine, trial in zip(rows, handle.trials(), strict=True):
        assert (mine.id, mine.state) == (trial._trial_id, trial.state.name)
        assert mine.value == (trial.value if trial.state == TrialState.COMPLETE else None)
        assert dict(mine.params) == trial.params
        assert dict(mine.distributions) == trial.distributions
        assert str(dict(mine.rungs)) == str(trial.intermediate_values)  # NaN is not itself
        for moment, seconds in (
            (trial.datetime_start, mine.started),
            (trial.datetime_complete, mine.ended),
        ):
            assert seconds == (None if moment is None else moment.timestamp())
    best, found = StudyReader.best(handle), handle.best()
    assert best is not None
    assert found is not None
    assert (best.best_trial.number, best.value) == (found.best_trial.number, found.value)
    assert count_states(row.state for row in rows) == handle.counts()
    assert (rows[0].folder, rows[1].folder) == ("elsewhere", "trial-00001")
    assert (rows[0].seconds, rows[0].scores, rows[1].reason) == (2.5, (1.0, 2.0), "r")
    assert [one.ours for one in rows] == [True, True, True, False, True]
    assert [one.judged for one in rows] == [True, False, False, False, False]


def test_rows_follow_the_study_and_finished_trials_are_read_once(
    handle: StudyHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sweepd.optimize.study.record.rows as module

    add(handle, value=1.0)
    handle.study.enqueue_trial({})
    # Another connection, as the dashboard's.
    rows = TrialRows(open_to_read(handle.storage.url), handle.study_id)
    asked: list[list[int]] = []
    read = module.params_of
    monkeypatch.setattr(module, "params_of", lambda s, ids: asked.append(list(ids)) or read(s, ids))
    first = rows.read()
    assert asked == [[1, 2]]
    assert rows.read() is first, "nothing has changed"
    add(handle, value=2.0, seed=1)
    assert asked[1:] == [[2]]
    [plan] = handle.ask_batch(1, "w", 9)
    running = rows.read()
    assert asked[2:] == [[2, 3]]
    assert [one.state for one in running] == ["COMPLETE", "RUNNING", "COMPLETE"]
    handle.report(plan, 1, 0.25)
    assert rows.read()[1].rungs == {1: 0.25}
    finish(handle, plan.trial_id, 3.0)
    done = rows.read()
    assert [one.value for one in done] == [1.0, 3.0, 2.0]
    assert done is not running
    asked.clear()
    assert rows.read() is done
    assert asked == []


def test_scores_by_rung_are_read_for_chosen_trials(handle: StudyHandle) -> None:
    add(handle, scores=(1.0, 3.0))
    add(handle, scores=(5.0, 7.0), seed=1)
    add(handle, seed=2, attributes={})
    rows = TrialRows(handle.storage, handle.study_id)
    assert rows.curves([1, 2, 7]) == {1: {1: [5.0, 7.0]}, 2: {}}


@pytest.mark.parametrize(
    ("axis", "params", "expected"),
    [
        (AXES[0], {"rate": 1e-3}, 0.5),
        (AXES[0], {"rate": 1e-4}, 0.0),
        (AXES[0], {"rate": 1.0}, None),
        (AXES[0], {}, None),
        (AXES[1], {"width": 64}, 0.5),
        (AXES[1], {"width": 65}, None),
        (AXES[2], {"kl_on": True, "kl": 0.25}, 0.25),
        (AXES[2], {"kl_on": False}, None),
        (Axis("one", choices=("a",)), {"one": "a"}, 0.0),
        (Axis("same", 2.0, 2.0), {"same": 2}, 0.5),
    ],
)
def test_places_on_axes(axis: Axis, params: dict[str, Any], expected: float | None) -> None:
    assert axis.place(params) == (None if expected is None else pytest.approx(expected))
    assert axis.is_off(params) == (params.get("kl_on") is False)


def test_axes_are_the_sampled_parameters(handle: StudyHandle) -> None:
    axes = {axis.name: axis for axis in study_axes(handle.space)}
    assert "net_depth" not in axes, "a constant"
    assert axes["learning_rate"].log
    assert axes["epochs"].choices == (4, 8)


def test_importances_find_the_parameter_that_decides(
    handle: StudyHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    axes = study_axes(handle.space)
    for seed in range(60):
        add(handle, seed=seed, state=TrialState.PRUNED)
    rows = TrialRows(handle.storage, handle.study_id).read()
    decided = [
        TrialRow(
            one.id,
            one.number,
            "COMPLETE",
            -abs(math.log(one.params["learning_rate"] / 1e-3)),
            params=one.params,
            distributions=one.distributions,
        )
        for one in rows
    ]
    found = importances(decided, axes)
    assert found is not None
    assert next(iter(found)) == "learning_rate"
    assert found["learning_rate"] > 0.3
    assert sum(found.values()) == pytest.approx(1.0)
    assert set(found) == {axis.name for axis in axes}
    assert importances(decided[: LEAST - 1], axes) is None
    # A request does not wait for a long computation.
    begin = threading.Event()
    monkeypatch.setattr(importance, "importances", lambda *_: begin.wait(30.0) and found)
    latest = LatestImportances()
    for _ in range(2):
        first = latest.get(decided, axes)
        assert (first["shares"], first["computing"]) == (None, True)
    begin.set()
    latest.wait()
    assert latest.get(decided, axes) == {
        "shares": found,
        "trials": 60,
        "computing": False,
        "least": LEAST,
    }


def test_a_switch_counts_for_its_range() -> None:
    kinds = {
        "kl_on": optuna.distributions.CategoricalDistribution((False, True)),
        "kl": optuna.distributions.FloatDistribution(0.0, 1.0),
        "other": optuna.distributions.FloatDistribution(0.0, 1.0),
    }
    rows = []
    for number in range(100):
        on = number % 3 == 0
        params: dict[str, Any] = {"kl_on": on, "other": number * 37 % 100 / 100}
        params |= {"kl": number / 100} if on else {}
        own = {name: kinds[name] for name in params}
        rows.append(row(number, float(on), params=params, distributions=own))
    found = importances(rows, [Axis("other"), Axis("kl", off=0.0)])
    assert found is not None
    assert found["kl"] > 0.9


def test_parallel_coordinates_draw_every_state() -> None:
    off = {"rate": 1e-4, "width": 32, "kl_on": False}
    rows = [
        row(0, 1.0),
        row(1, 3.0, params=off),
        row(2, state="PRUNED"),
        row(3, state="FAIL"),
        row(4, state="RUNNING"),
        row(5, 99.0, ours=False),
    ]
    found = parallel(rows, AXES)
    assert (found["of"], found["every"]) == (5, 1)
    assert found["objective"] == {"low": 1.0, "high": 3.0, "cut": False}
    lines = {line["trial"]: line for line in found["lines"]}
    assert set(lines) == {0, 1, 2, 3, 5}
    assert (lines[1]["band"], lines[1]["at"], lines[0]["at"]) == (0, 1.0, 0.0)
    assert lines[1]["places"] == [0.0, 0.0, None]
    assert lines[1]["off"] == [False, False, True]
    assert lines[2]["band"] is lines[2]["at"] is None
    assert lines[5]["value"] is None, "another program's objective"
    assert found["lines"][-1]["trial"] == 1, "the best is drawn last"


def test_of_many_trials_the_best_and_every_kth_are_drawn() -> None:
    rows = [row(number, float(number)) for number in range(3000)]
    found = parallel(rows, AXES, 777)
    drawn = {line["trial"] for line in found["lines"]}
    assert 777 in drawn, "the selected trial"
    assert set(range(3000 - BEST_LINES, 3000)) <= drawn
    others = [number for number in range(3000 - BEST_LINES) if number != 777]
    assert set(others[:: found["every"]]) <= drawn
    assert len(drawn) == len(found["lines"]) <= MOST_LINES
    bands = {line["trial"]: line["band"] for line in found["lines"]}
    assert {bands[number] for number in drawn if number >= 2850} == {0}
    assert {bands[number] for number in drawn if number < 1500} == {3}


def test_far_values_do_not_squeeze_the_objective() -> None:
    rows = [row(number, float(number)) for number in range(100)] + [row(100, -1e9)]
    found = parallel(rows, AXES)
    assert found["objective"]["cut"]
    assert found["objective"]["low"] == pytest.approx(4.0)
    assert found["lines"][0]["at"] == 0.0


def test_the_frontier_has_no_trial_that_a_cheaper_one_reaches() -> None:
    spent = [(3.0, 1.0), (1.0, 0.5), (2.0, 0.4), (4.0, 1.0), (5.0, 2.0), (1.0, 0.1)]
    rows = [row(number, value, seconds=s) for number, (s, value) in enumerate(spent)]
    rows += [row(7, 9.0, seconds=None), row(8, state="PRUNED", seconds=0.5)]
    found = frontier(rows)
    assert [one["trial"] for one in found["front"]] == [1, 0, 4]
    assert found["of"] == len(found["points"]) == 6


def test_members_of_a_configuration_add_up() -> None:
    other = {"rate": 2e-3}
    rows = [row(0, 1.0), row(1, 4.0), row(2, state="PRUNED", params=other), row(3, state="RUNNING")]
    spec = make_spec()
    found = racing(rows, spec)
    assert [(one["rungs"], one["members"], one["configurations"]) for one in found] == [
        (1, 4, 1),
        (1, 2, 1),
    ]
    assert (found[0]["complete"], found[0]["best"], found[0]["trial"]) == (2, 4.0, 1)
    assert (found[1]["pruned"], found[1]["best"]) == (1, None)
    assert found[0]["steps"] == spec.rung_end(1) * spec.transitions


def test_views_are_computed_again_only_when_a_trial_has_changed(handle: StudyHandle) -> None:
    add(handle, value=1.0)
    insight = StudyInsight(handle)
    first = insight.parameters()
    assert first["best"]["trial"] == 0
    assert first["head"]["trials"]["COMPLETE"] == 1
    assert insight.parameters()["parallel"] is first["parallel"]
    add(handle, value=2.0, seed=1)
    second = insight.parameters()
    assert second["parallel"]["of"] == 2
    assert second["best"]["trial"] == 1


def test_trials_are_ordered_by_what_they_reached() -> None:
    rows = [
        row(0, state="FAIL"),
        row(1, state="PRUNED", rungs={1: 9.0}),
        row(2, state="PRUNED", rungs={1: 0.0, 2: 1.0}),
        row(3, state="PRUNED", rungs={1: 0.0, 2: math.nan}),
        row(4, 1.0),
        row(5, 2.0),
        row(6, 99.0, ours=False),
        row(7, state="RUNNING"),
    ]
    assert [one.number for one in best_first(rows)] == [5, 4, 6, 7, 2, 3, 1, 0]


def test_a_learning_curve_has_the_members_of_each_rung() -> None:
    spec = make_spec()
    found = curve(row(3, 2.0, rungs={1: 1.0, 2: math.nan}), {1: [0.0, 4.0, math.inf]}, spec)
    assert (found["trial"], found["value"]) == (3, 2.0)
    first, second = found["points"]
    assert first["steps"] == spec.rung_end(1) * spec.transitions
    assert (first["low"], first["high"], first["mean"]) == (0.0, 4.0, 2.0)
    assert first["deviation"] == pytest.approx(8**0.5)
    assert second["value"] is None
    assert "low" not in second


def test_scores_by_member_are_of_the_best_and_the_chosen() -> None:
    rows = [row(number, float(number), scores=(float(number), 0.0)) for number in range(30)]
    rows.append(row(30, state="PRUNED", scores=(-10.0,)))
    rows.append(row(31, 50.0, scores=()))
    found = heat(rows, [2, 30, 29], make_spec())
    assert [one["trial"] for one in found["rows"]] == [*range(29, 9, -1), 2, 30]
    assert found["members"] == ["seed 0", "seed 1"]
    assert (found["low"], found["high"]) == (-10.0, 29.0)
    assert found["rows"][0]["shades"] == [1.0, pytest.approx(10 / 39)]
    assert found["rows"][-1]["value"] is None


def test_folds_are_named_by_their_test_groups(bars: Bars) -> None:
    from tests.optimize.worker.test_batch import make_spec as make_market_spec

    spec = make_market_spec(bars, cv=dataclasses.asdict(CrossValidation(groups=4, test_groups=2)))
    assert spec.member_names(2) == ["fold 0 (test 0+1)", "fold 1 (test 0+2)"]
    assert spec.rung_text == f"{spec.objective}, mean over folds"


def test_the_best_so_far_counts_trials_and_hours() -> None:
    times = [(0.0, 100.0), (0.0, 50.0), (10.0, 200.0), (20.0, 150.0), (30.0, None)]
    values = [1.0, 3.0, 4.0, 2.0, None]
    rows = [
        row(number, value, "COMPLETE" if end else "RUNNING", started=begin, ended=end)
        for number, (value, (begin, end)) in enumerate(zip(values, times, strict=True))
    ]
    rows.append(row(5, state="PRUNED", started=0.0, ended=7200.0))
    found = best_so_far(rows)
    assert [(one["trial"], one["value"], one["finished"]) for one in found] == [
        (1, 3.0, 1),
        (2, 4.0, 4),
        (2, 4.0, 5),
    ]
    assert found[-1]["hours"] == 2.0
    # In a race, a single seed may have been better than the configuration that is selected.
    selected = Configuration((frozen(rows[1]), frozen(rows[3])), (3.0, 2.0), 0.5)
    sums = summary(rows, found, selected)
    assert (sums["best"], sums["best_trial"]) == (selected.value, 1)
    assert (sums["median"], sums["worst"]) == (2.5, 1.0)
    assert (sums["seconds"], sums["wall_seconds"]) == pytest.approx((6.0, 7200.0))


def test_parameters_of_both_studies_come_first() -> None:
    first, second = [Axis("a"), Axis("b")], [Axis("b", log=True, low=0.1), Axis("c")]
    found = common_parameters([first, second], [{"params": {"b": 0.5}}, None])
    assert [one["name"] for one in found] == ["b", "a", "c"]
    assert found[0]["best"] == [0.5, None]
    assert [axis["log"] for axis in found[0]["ranges"]] == [False, True]
    assert found[2]["ranges"][0] is None
