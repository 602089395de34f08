"""`sweepd profile`: times of the phases, and advice."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sweepd.envs.crypto.data.bars import Bars
from sweepd.optimize.objectives.market.experiment import CryptoExperiment
from sweepd.optimize.worker.profiling import Profile, profile
from tests.optimize.conftest import TRAIN, Sweepd
from tests.optimize.worker.test_batch import make_spec


def test_every_phase_of_a_batch_is_measured(bars: Bars) -> None:
    space = {
        "name": "x",
        "version": 1,
        "shape": {"net_width": {"value": 8}, "minibatch": {"value": 16}},
    }
    spec = make_spec(bars, budget=640, space={**space, "ppo": {}, "env": {}})
    found = profile(CryptoExperiment(spec, bars, torch.device("cpu")), seconds=0.1)
    assert set(found.seconds) == {"env", "policy", "update", "transfer", "evaluation", "host"}
    assert all(spent > 0 for spent in found.seconds.values())
    assert found.steps == 3 * 5 * spec.rollouts * spec.transitions  # trials x folds x steps
    text = "\n".join(found.lines())
    assert "trials/hour" in text
    assert "steps/s" in text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        ({"env": 5.0, "policy": 2.0, "update": 3.0}, ["env 50%: use more --n-envs"]),
        ({"evaluation": 3.0, "update": 7.0}, ["evaluation 30%: use fewer --rungs", "update 70%"]),
        ({"env": 3.0, "policy": 2.0, "update": 4.0, "evaluation": 1.0}, ["nothing to change"]),
    ],
)
def test_advice_follows_from_the_shares(seconds: dict[str, float], words: list[str]) -> None:
    advice = Profile(seconds, 1000, 4).advice()
    assert len(advice) == len(words)
    for sentence, word in zip(advice, words, strict=True):
        assert word in sentence


def test_the_command_takes_the_flags_of_train_and_creates_no_study(
    market: Path, sweepd: Sweepd
) -> None:
    out = sweepd("profile", *TRAIN).finish()
    assert "profiling 3 trials of 3 folds (net_width 16" in out
    assert "evaluation" in out
    assert not (market / "runs").exists()
    assert "--nonsense" in sweepd("profile", "--nonsense").finish(2)
