"""The decisions of population-based training, as functions of what trials have reported."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweepd.optimize.study.sampling.evolution import (
    RESAMPLED,
    Change,
    Stretch,
    changes_of,
    decide,
    params_after,
    perturbed,
    schedule,
)
from sweepd.optimize.study.space.parsing import parse_space
from sweepd.optimize.study.space.subject import Subject

SPACE = parse_space(
    {
        "name": "s",
        "version": 1,
        "shape": {"net_width": {"choices": [8, 16]}},
        "ppo": {
            "learning_rate": {"low": 1e-4, "high": 1e-2, "log": True},
            "clip": {"low": 0.1, "high": 0.3},
            "initial_log_std": {"low": -1.0, "high": 0.0},
            "target_kl": {"low": 0.005, "high": 0.05, "log": True, "off": 0.0},
            "lr_schedule": {"choices": ["constant", "linear", "cosine"]},
        },
        "env": {},
    },
    Subject("cartpole", "ppo"),
)
PARAMS: dict[str, Any] = {
    "net_width": 16,
    "learning_rate": 1e-3,
    "clip": 0.2,
    "initial_log_std": -0.5,
    "target_kl_on": True,
    "target_kl": 0.01,
    "lr_schedule": "linear",
}


def population(count: int) -> dict[int, dict[str, Any]]:
    return {n: {**PARAMS, "learning_rate": 1e-3 * (1 + n / 100)} for n in range(count)}


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.integers(0, 50), st.floats(-1e6, 1e6), min_size=1, max_size=20),
    st.integers(0, 2**31),
    st.integers(1, 9),
)
def test_the_worst_quarter_goes_on_from_the_best(
    values: dict[int, float], seed: int, rung: int
) -> None:
    params = population(51)
    found = decide(SPACE, seed, rung, values, params)
    shuffled = dict(sorted(values.items(), key=lambda item: item[1]))
    assert decide(SPACE, seed, rung, shuffled, params) == found
    quarter = len(values) // 4
    ranked = sorted(values, key=lambda n: (-values[n], n))
    assert set(found) <= set(ranked[len(ranked) - quarter :])
    for number, change in found.items():
        assert change.rung == rung
        assert change.source in ranked[:quarter]
        assert values[change.source] > values[number]
        assert change.source not in found
        SPACE.validate(change.params)
        assert set(change.params) == set(PARAMS)
        for name in ("net_width", "initial_log_std", "target_kl_on"):
            assert change.params[name] == params[change.source][name]
    if quarter and len(set(values.values())) == len(values):
        assert set(found) == set(ranked[len(ranked) - quarter :])


def test_decisions_depend_on_seed_and_rung_alone_and_survive_json() -> None:
    values = {n: float(n) for n in range(8)}
    found = decide(SPACE, 1, 2, values, population(8))
    assert set(found) == {0, 1}
    assert found == decide(SPACE, 1, 2, values, population(8))
    assert found != decide(SPACE, 2, 2, values, population(8))
    assert found != decide(SPACE, 1, 3, values, population(8))
    assert changes_of([change.to_record() for change in found.values()]) == list(found.values())
    # Recorded studies are resumed with these decisions: they must not change.
    assert found[0].source == 7
    assert found[0].params["learning_rate"] == pytest.approx(1.07e-3 * 1.2, rel=1e-12)


def test_equal_members_and_small_populations_stay_as_they_are() -> None:
    assert decide(SPACE, 0, 1, dict.fromkeys(range(8), 1.0), population(8)) == {}
    assert decide(SPACE, 0, 1, {0: 1.0, 1: 2.0, 2: 3.0}, population(3)) == {}
    assert len(decide(SPACE, 0, 1, {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0}, population(4))) == 1


def test_numbers_move_by_the_stated_amounts() -> None:
    random = np.random.default_rng(0)
    drawn = [perturbed(SPACE, PARAMS, random) for _ in range(2_000)]
    rates = np.array([one["learning_rate"] for one in drawn])
    near = {1e-3 * 0.8, 1e-3 * 1.2}
    moved = np.array([any(math.isclose(rate, one) for one in near) for rate in rates])
    assert np.mean(~moved) == pytest.approx(RESAMPLED, abs=0.04)
    assert np.mean(rates[moved] > 1e-3) == pytest.approx(0.5, abs=0.05)
    again = np.log(rates[~moved])
    assert np.mean(again) == pytest.approx(math.log(1e-3), abs=0.2)  # over the whole range
    clips = {round(one["clip"], 9) for one in drawn}
    assert {0.18, 0.22} <= clips
    kept = np.mean([one["lr_schedule"] == "linear" for one in drawn])
    assert kept == pytest.approx(1 - RESAMPLED * 2 / 3, abs=0.04)


def test_ends_grids_and_switches() -> None:
    space = parse_space(
        {
            "name": "s",
            "version": 1,
            "shape": {},
            "d3qn": {
                "explore_hold": {"low": 1, "high": 4},
                "learning_rate": {"low": 1e-4, "high": 1e-3, "log": True},
            },
            "env": {},
        },
        Subject("cartpole", "d3qn"),
    )
    random = np.random.default_rng(0)
    drawn = [
        perturbed(space, {"explore_hold": 2, "learning_rate": 1e-3}, random) for _ in range(300)
    ]
    assert {one["explore_hold"] for one in drawn} == {1, 2, 3, 4}
    assert max(one["learning_rate"] for one in drawn) == 1e-3
    assert {type(one["explore_hold"]) for one in drawn} == {int}
    assert any(math.isclose(one["learning_rate"], 8e-4) for one in drawn)
    off = {**{k: v for k, v in PARAMS.items() if k != "target_kl"}, "target_kl_on": False}
    assert set(perturbed(SPACE, off, random)) == set(off)


def test_the_schedule_follows_the_weights() -> None:
    params = {0: {"a": 0}, 1: {"a": 1}, 2: {"a": 2}}
    changes = {
        0: [Change(1, 1, {"a": 10}), Change(3, 2, {"a": 30})],
        1: [Change(4, 0, {"a": 40})],
        2: [Change(2, 0, {"a": 20})],
    }
    assert schedule(0, params, changes) == [
        Stretch(0, 1, {"a": 1}),
        Stretch(1, 0, {"a": 10}),
        Stretch(2, 2, {"a": 20}),
        Stretch(3, 0, {"a": 30}),
    ]
    assert [s.trial for s in schedule(1, params, changes)] == [1, 0, 2, 0, 1]
    assert schedule(1, params, {}) == [Stretch(0, 1, {"a": 1})]
    assert [params_after(rung, params[0], changes[0])["a"] for rung in range(5)] == [
        0,
        10,
        10,
        30,
        30,
    ]
