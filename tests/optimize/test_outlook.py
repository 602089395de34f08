"""What the winner will have to show, said in advance, is what the gate asks for afterwards."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState

from envs.crypto import luck
from envs.crypto.splits import CrossValidation
from optimize.outlook import outlook, sentence
from optimize.spec import CryptoSpec, DataSpec

HOURS = 8766.0


def spec(bars: int, cv: CrossValidation | None = None, **changes: object) -> CryptoSpec:
    """Of a study on that many hourly bars."""
    data = DataSpec("", ("A/USDT",), "1h", "", "2020-01-01T00:00:00Z", "2021-01-01T00:00:00Z", bars, True)
    fields = {
        "environment": "crypto", "algorithm": "ppo", "data": data,
        "recipe": {"name": "default", "version": 1, "memory": 512}, "cv": dataclasses.asdict(cv or CrossValidation()),
        "holdout": 0.15, "first_bar": 511, "max_lookback": 1, "env": {}, "budget": 1000, "rungs": 1, "num_envs": 1,
        "horizon": 8, "slots": 1, "trials_per_batch": 1, "objective": "excess-sharpe", "sampler": "tpe",
        "pruner": "none", "seed": 0, "space": {}, "threads": 1,
    }  # fmt: skip
    return CryptoSpec(**(fields | changes))  # type: ignore[arg-type]


def complete(ratio: float) -> FrozenTrial:
    return optuna.trial.create_trial(
        state=TrialState.COMPLETE, value=0.0, user_attrs={"sweepd:metrics": {"information_ratio": ratio}}
    )


def test_it_is_what_a_deflated_sharpe_ratio_of_95_percent_takes() -> None:
    found = outlook(spec(24_000), 40)
    assert found["bars"] == 24_000 - 3_600 - 512
    per_bar = found["needed_sharpe"] / math.sqrt(HOURS)
    moments = luck.Moments(found["bars"], per_bar)
    assert luck.deflated_sharpe(moments, 1.0 / (found["bars"] - 1), 40) == pytest.approx(0.95, abs=1e-9)
    assert found["enough_years"] == pytest.approx(4.79, abs=0.01)
    assert (
        outlook(spec(24_000), 400)["needed_sharpe"]
        > found["needed_sharpe"]
        > outlook(spec(48_000), 40)["needed_sharpe"]
    )
    assert outlook(spec(24_000, CrossValidation("single")), 40)["bars"] == pytest.approx(19_888 / 5, abs=1)


def test_trials_that_differ_more_than_noise_raise_it() -> None:
    quiet = outlook(spec(24_000), 40)["needed_sharpe"]
    assert outlook(spec(24_000), 40, [complete(0.1), complete(0.11)])["needed_sharpe"] == quiet
    ratios = [3.0, -1.0, 2.0]
    loud = outlook(spec(24_000), 40, [complete(ratio) for ratio in ratios])
    assert loud["needed_sharpe"] == pytest.approx(
        math.sqrt(HOURS) * luck.needed_sharpe(loud["bars"], 40, float(np.var(ratios, ddof=1)) / HOURS)
    )
    assert loud["needed_sharpe"] > quiet
    assert outlook(spec(24_000), 40, [complete(5.0)])["needed_sharpe"] == quiet


def test_the_sentence_names_trials_years_and_looks() -> None:
    text = sentence(outlook(spec(24_000), 40), 2)
    assert text.startswith(
        "the best of 40 trials on 2.3 years of bars needs an annual Sharpe ratio over equal weight of "
    )
    assert text.endswith("looks at the hold-out so far: 2")
    assert "looks" not in sentence(outlook(spec(24_000), 40))
