"""The gate of programs, as a test: how often it replaces a champion."""

from __future__ import annotations

import numpy as np
import pytest

from sweepd.deploy.programs.rules import (
    FRESH,
    ChampionValues,
    FreshScore,
    ProgramEvidence,
    lower,
    rules,
)
from sweepd.deploy.promotion.bootstrap import gate_level
from sweepd.deploy.promotion.rules import judge
from sweepd.envs.support.intervals import FEW, over_seeds, paired

STUDIES = 1_000


def promoted(look: int, seeds: int, ahead: float) -> float:
    """The share of candidates that replace a champion. ahead: in deviations of one seed."""
    rng, level = np.random.default_rng(look), 1.0 - gate_level(look)
    found = 0
    for _ in range(STUDIES):
        ours, theirs = rng.standard_normal((2, seeds))
        ours += ahead
        found += lower(paired(ours[:, None], theirs[:, None], level=level)) > 0.0
    return found / STUDIES


def test_equal_parameters_replace_a_champion_as_rarely_as_is_said() -> None:
    # 2.5 and 1.25% one-sided; 1,000 studies have a standard error of 0.5 and 0.35%.
    assert promoted(1, FEW, 0.0) <= 0.04
    assert promoted(2, FEW, 0.0) <= 0.0225


def test_better_parameters_are_found() -> None:
    assert promoted(1, FEW, 3.0) >= 0.9
    assert promoted(1, 20, 1.0) >= 0.8


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        ((1.0, 1.0, 1.0), (0.5, 0.5, 0.5), "pass"),  # no seed matters
        ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "fail"),
        ((1.0, 1.1, 0.9), (0.5, 0.5, 0.5), "pass"),
        ((1.0,), (0.5, 0.4, 0.6), "fail"),  # one seed has no variance
    ],
)
def test_values_that_are_equal_or_few(
    ours: tuple[float, ...], theirs: tuple[float, ...], verdict: str
) -> None:
    own, other = (np.array(values)[:, None] for values in (ours, theirs))
    champion = ChampionValues("p@1", theirs, paired(own, other), ())
    score = FreshScore(1, ours, over_seeds(ours), champion)
    evidence = ProgramEvidence("", (), (), ours, score=score)
    found = {finding.name: finding for finding in judge(rules(None), evidence, FRESH)}
    assert found["beats-champion"].verdict == verdict
    assert "value" not in found
