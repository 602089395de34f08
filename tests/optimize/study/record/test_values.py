"""Values and constraints: their texts, the frontier, and the rules that choose one of it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import FrozenTrial, TrialState, create_trial

from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.record.configurations import Selection, feasible, violations
from sweepd.optimize.study.record.values import (
    BALANCED,
    CONSTRAINT_PREFIX,
    FIRST,
    Constraint,
    Value,
    broken_words,
    distances,
    non_dominated,
)

# Few different numbers, so that points are equal in some values or in all.
NUMBERS = st.integers(-2, 2).map(float)


def points(values: int) -> Any:
    return st.lists(st.tuples(*[NUMBERS] * values), min_size=1, max_size=12)


def made(values: Sequence[float], broken: float | None = None, number: int = 0) -> FrozenTrial:
    system = {} if broken is None else {f"{CONSTRAINT_PREFIX}x<=1.0": broken}
    trial = create_trial(
        state=TrialState.COMPLETE, values=list(values), system_attrs=system, params={}
    )
    trial.number = number
    return trial


@pytest.mark.parametrize(
    ("text", "name", "maximize"),
    [("minimize:max_drawdown", "max_drawdown", False), (" maximize : a:b ", "a:b", True)],
)
def test_a_value_has_a_direction_and_a_name(text: str, name: str, maximize: bool) -> None:
    assert Value.parse(text) == Value(name, maximize)
    assert Value.parse(Value.parse(text).text) == Value.parse(text)


@pytest.mark.parametrize("text", ["", "max_drawdown", "minimise:x", "minimize:", ":x", "min:x"])
def test_another_text_is_no_value(text: str) -> None:
    with pytest.raises(InputError, match=r"--also .* is not valid: give maximize:NAME or minim"):
        Value.parse(text)


@given(st.floats(allow_nan=False, allow_infinity=False), st.booleans())
def test_a_constraint_is_read_as_it_is_written(limit: float, upper: bool) -> None:
    own = Constraint("max_drawdown", upper, limit)
    assert Constraint.parse(own.text) == own
    assert Constraint.parse(own.text.replace("=", "= ")) == own


@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(allow_nan=False, allow_infinity=False),
)
def test_the_limit_itself_is_allowed_and_nothing_beyond(number: float, limit: float) -> None:
    assert (Constraint("x", True, limit).violation(number) <= 0.0) == (number <= limit)
    assert (Constraint("x", False, limit).violation(number) <= 0.0) == (number >= limit)


@pytest.mark.parametrize(
    "text",
    ["", "x", "x<0.3", "x==0.3", "x=0.3", "<=0.3", "x<=", "x<=nan", "x<=inf", "x<=a", "x y<=1"],
)
def test_another_text_is_no_constraint(text: str) -> None:
    with pytest.raises(InputError, match=r"--constraint .* is not valid: give NAME<=NUMBER"):
        Constraint.parse(text)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_frontier_is_that_of_optuna(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 3))
    signs = tuple(data.draw(st.sampled_from([1.0, -1.0])) for _ in range(count))
    values = data.draw(points(count))
    limited = data.draw(st.booleans())
    broken = [data.draw(NUMBERS) if limited else None for _ in values]
    trials = [
        made(own, by, number) for number, (own, by) in enumerate(zip(values, broken, strict=True))
    ]
    study = optuna.create_study(
        directions=["maximize" if sign > 0.0 else "minimize" for sign in signs]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study.add_trials(trials)
        best = (
            {trial.number for trial in study.best_trials} if any(map(feasible, trials)) else set()
        )
    selection = Selection(signs=signs, choose=BALANCED)
    found = selection.configurations(trials)
    assert {one.best_trial.number for one in selection.frontier(found)} == best
    assert {one.best_trial.number for one in found} == {t.number for t in trials if feasible(t)}


@given(points(2))
def test_the_nearest_point_is_on_the_frontier(values: list[tuple[float, ...]]) -> None:
    found = np.array(values)
    front = non_dominated(found)
    far = distances(found, front)
    assert front[far <= far.min() + 1e-12].any()
    for i, own in enumerate(found):
        for j, other in enumerate(found):
            if (own >= other).all():
                assert far[i] <= far[j] + 1e-12


@pytest.mark.parametrize("rule", [BALANCED, FIRST])
@given(values=points(2))
def test_the_selected_trial_is_on_the_frontier(rule: str, values: list[tuple[float, ...]]) -> None:
    selection = Selection(signs=(1.0, -1.0), choose=rule)
    trials = [made(own, number=number) for number, own in enumerate(values)]
    found = selection.configurations(trials)
    assert found[0] in selection.frontier(found)
    if rule == FIRST:
        assert found[0].value == max(own[0] for own in values)


def test_the_rules_choose_different_trials() -> None:
    # Return and drawdown: the highest return, the smallest drawdown, and one between them.
    values = [(10.0, 0.9), (0.0, 0.0), (8.0, 0.1), (7.0, 0.5)]
    trials = [made(own, number=number) for number, own in enumerate(values)]
    chosen = {
        rule: [
            one.best_trial.number
            for one in Selection(signs=(1.0, -1.0), choose=rule).configurations(trials)
        ]
        for rule in (BALANCED, FIRST)
    }
    assert chosen == {BALANCED: [2, 3, 0, 1], FIRST: [0, 2, 3, 1]}


def test_of_equal_trials_the_earliest_is_selected() -> None:
    trials = [made((1.0, 1.0), number=number) for number in (0, 1, 2)]
    for rule in (BALANCED, FIRST):
        selection = Selection(signs=(1.0, 1.0), choose=rule)
        assert [one.best_trial.number for one in selection.configurations(trials)] == [0, 1, 2]
        assert len(selection.frontier(selection.configurations(trials))) == 3


def test_a_trial_that_breaks_a_constraint_is_never_selected() -> None:
    trials = [made([9.0], 0.1, 0), made([1.0], 0.0, 1), made([5.0], 1e-12, 2)]
    found = Selection().configurations(trials)
    assert [one.best_trial.number for one in found] == [1]
    assert Selection().best(trials[::2]) is None
    assert Selection().frontier([]) == []
    assert Selection().observed(trials[0]) is None
    assert Selection().observed(trials[1]) == 1.0
    assert violations(trials[0]) == {"x<=1.0": 0.1}
    assert trials[0].constraints == violations(trials[0])  # as Optuna's samplers read them
    assert broken_words(violations(trials[0])) == "x<=1.0 (by 0.1)"
    assert broken_words(violations(trials[1])) == ""


def test_all_seeds_of_a_configuration_must_meet_the_constraints() -> None:
    # All trials here have the same parameters, and so are one configuration of a race.
    trials = [made([9.0], -1.0, 0), made([1.0], 0.5, 1)]
    assert Selection(racing=True).configurations(trials) == []
    assert len(Selection(racing=True).configurations(trials[:1])) == 1
