"""The search of `search_vs_sb3.py`: equal spaces, and what a search reached."""

from __future__ import annotations

import argparse
import tomllib
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution

from tests.bench.conftest import Importer


class _MadeError(Exception):
    pass


def test_both_sides_draw_from_the_same_ranges(
    bench: Importer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("stable_baselines3")
    script = bench("optuna_sb3")

    def made(*_: Any, **arguments: Any) -> None:
        assert arguments["policy_kwargs"]["net_arch"] == [trial.params["net_width"]] * 2
        raise _MadeError

    monkeypatch.setattr(script, "PPO", made)
    trial = optuna.create_study().ask()
    with pytest.raises(_MadeError):
        script.train(trial, argparse.Namespace(env="CartPole-v1", envs=1, episodes=1, horizon=8))
    space = tomllib.loads(bench("search_vs_sb3").SPACE)
    given = {
        name: CategoricalDistribution(entry["choices"])
        if "choices" in entry
        else FloatDistribution(entry["low"], entry["high"], log=entry.get("log", False))
        for table in ("shape", "ppo")
        for name, entry in space[table].items()
        if "value" not in entry
    }
    assert trial.distributions == given


def test_what_a_search_reached(bench: Importer) -> None:
    outcomes = bench("search_vs_sb3").outcomes
    rows = ((0, "COMPLETE", 190.0, 10.0), (1, "PRUNED", None, 12.0), (2, "COMPLETE", 205.0, 20.0))
    trials = [
        dict(zip(("number", "state", "value", "seconds"), row, strict=True))
        for row in (*rows, (3, "COMPLETE", 201.0, 30.0))
    ]
    scored = {0: 150.0, 2: 180.0, 3: 210.0}
    assert outcomes(trials, 200.0, scored.__getitem__) == {
        "seconds": 30.0,
        "pruned": 1,
        "seconds_to_level": 30.0,
        "selected": 180.0,
    }
    assert outcomes(trials, 250.0, scored.__getitem__)["seconds_to_level"] is None
    assert outcomes(trials[1:2], 200.0, scored.__getitem__)["selected"] is None


def test_the_ratio_is_to_the_fastest_peer(bench: Importer) -> None:
    seconds = {"sb3": (90.0, 110.0), "sb3 x2": (60.0, 60.0), "sweepd": (20.0, 40.0)}
    searches = [
        {"search": name, "seconds": one} for name, values in seconds.items() for one in values
    ]
    assert bench("search_vs_sb3").ratios(searches) == {"sweepd": 2.0}
    assert bench("search_vs_sb3").ratios(searches[:2]) == {}
