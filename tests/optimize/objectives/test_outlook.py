"""What the winner will have to show, said in advance, is what the gate asks for afterwards."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import pytest

from sweepd.deploy.market.backtests import Backtest, SearchStatistics
from sweepd.envs.crypto.scoring import luck
from sweepd.envs.crypto.scoring.figures import MEDIAN_RATIO
from sweepd.envs.crypto.scoring.selection import TrialReturns
from sweepd.envs.crypto.splits import CrossValidation
from sweepd.optimize.objectives.outlook import outlook, sentence
from sweepd.optimize.study.record.data_spec import DataSpec
from sweepd.optimize.study.record.specs import CryptoSpec

HOURS = 8766.0


def spec(bars: int, cv: CrossValidation | None = None, **changes: object) -> CryptoSpec:
    """Return the spec of a study on that many hourly bars."""
    data = DataSpec(
        "", ("A/USDT",), "1h", "", "2020-01-01T00:00:00Z", "2021-01-01T00:00:00Z", bars, True
    )
    fields = {
        "environment": "crypto",
        "algorithm": "ppo",
        "data": data,
        "recipe": {"name": "default", "version": 1, "memory": 512},
        "cv": dataclasses.asdict(cv or CrossValidation()),
        "holdout": 0.15,
        "first_bar": 511,
        "max_lookback": 1,
        "env": {},
        "budget": 1000,
        "rungs": 1,
        "num_envs": 1,
        "horizon": 8,
        "slots": 1,
        "trials_per_batch": 1,
        "objective": "information-ratio",
        "sampler": "tpe",
        "pruner": "none",
        "seed": 0,
        "space": {},
        "threads": 1,
        "processor": "",
        "kernels": "torch 4",
    }
    return CryptoSpec(**(fields | changes))  # type: ignore[arg-type]


def excess(bars: int, edges: Sequence[float], *, alike: float = 0.0) -> TrialReturns:
    """Two paths per trial, whose excess returns have these annual information ratios.

    alike: share of the variance that all trials have in common.
    """
    rng, returns = np.random.default_rng(0), TrialReturns()
    shared = rng.standard_normal((2, bars))
    for number, edge in enumerate(edges):
        own = np.sqrt(1.0 - alike) * rng.standard_normal((2, bars)) + np.sqrt(alike) * shared
        own -= own.mean(axis=1, keepdims=True)
        own /= own.std(axis=1, keepdims=True, ddof=1)
        returns.add(number, 0.01 * (own + edge / math.sqrt(HOURS)), np.arange(bars))
    return returns


def test_the_planned_ratio_gives_a_deflated_sharpe_ratio_of_95_percent() -> None:
    found = outlook(spec(24_000), 40)
    assert found["bars"] == 24_000 - 3_600 - 512
    per_bar = found["needed_information_ratio"] / math.sqrt(HOURS)
    score = luck.without_autocorrelation(found["bars"], per_bar).score()
    assert NormalDist().cdf(score) ** 40 == pytest.approx(0.95, abs=1e-9)
    assert luck.best_by_luck((luck.Link(),) * 40).probability(score) == pytest.approx(
        0.95, abs=0.01
    )
    assert found["enough_years"] == pytest.approx(4.79, abs=0.01)
    assert (
        outlook(spec(24_000), 400)["needed_information_ratio"]
        > found["needed_information_ratio"]
        > outlook(spec(48_000), 40)["needed_information_ratio"]
    )
    assert outlook(spec(24_000, CrossValidation("single")), 40)["bars"] == pytest.approx(
        19_888 / 5, abs=1
    )


def test_the_measured_ratio_is_the_one_that_the_gate_requires() -> None:
    """Both use the correlation of the trials and the distribution of their returns."""
    plain = outlook(spec(24_000), 40)
    bars, independent = plain["bars"], 0.0
    for alike in (0.0, 0.6):
        returns = excess(bars, [3.0, -1.0, 2.0, 0.5], alike=alike)
        found = outlook(spec(24_000), 40, returns, best=0)
        search = SearchStatistics(40, {}, {}, returns, "1h")  # the gate's
        gate = search.deflate(Backtest((), returns.moments[0], np.zeros(bars), (0.01,)))
        assert found["needed_information_ratio"] == pytest.approx(
            search.annual * gate.needed, rel=1e-12
        )
        assert found[MEDIAN_RATIO] == pytest.approx(3.0)
        assert found["effective"] == gate.effective
        independent = independent or gate.effective
        assert (
            found["planned_information_ratio"]
            == plain["planned_information_ratio"]
            == plain["needed_information_ratio"]
        )
        assert (found["measured"], found["best"]) == (4, 0)
    assert found["effective"] < 0.8 * independent  # alike trials count as fewer
    few = outlook(spec(24_000), 40, excess(bars, [5.0]), best=0)
    assert (few["measured"], few["needed_information_ratio"]) == (
        0,
        plain["planned_information_ratio"],
    )


def test_the_sentence_says_whether_it_is_planned_or_measured() -> None:
    found = outlook(spec(24_000), 40)
    text = sentence(found, 2)
    assert text == (
        "the best of 40 trials on 2.3 years of bars needs an annual information ratio over equal "
        f"weight of {found['planned_information_ratio']:+.2f} to be distinguished from luck "
        "(planned, for independent "
        "trials without skill); hold-out evaluations used: 2"
    )
    assert "hold-out" not in sentence(found)
    measured = outlook(spec(24_000), 40, excess(found["bars"], [3.0, -1.0, 2.0]), best=0)
    text = sentence(measured)
    assert text.startswith(
        "trial 0, the best of 3 complete, has an annual information ratio over equal weight of "
        f"+3.00 on the median of its {measured['paths']} paths; {measured['needed_information_ratio']:+.2f} is "
        "needed to be distinguished from luck among 40 trials (equivalent to "
    )
    assert text.endswith(" independent ones)")  # the planned figure is no longer valid
    assert "too few bars" in sentence(found | {"needed_information_ratio": None})
    assert "panel" in sentence(None)
