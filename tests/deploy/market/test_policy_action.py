"""`Policy.action` of a market: targets of the tickers, from -1 to 1."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from sweepd.deploy.api.policy import Policy
from tests.deploy.games.test_outside import MAKERS, player
from tests.optimize.objectives.test_outlook import spec


def test_actions_of_a_market_are_those_of_act_between_minus_one_and_one() -> None:
    _, frozen, _ = player(MAKERS["Box"], net_depth=1)  # of three numbers and two actions
    policy = Policy("s", 0, (frozen,), frozen, spec(5000), {})
    rows = np.random.default_rng(0).normal(0.0, 9.0, (64, 3)).astype(np.float32)
    batch, space = policy.action(rows), spaces.Box(-1.0, 1.0, (2,), np.float32)
    for row, together in zip(rows, batch, strict=True):
        alone = policy.action(row)
        assert space.contains(alone)
        assert alone == pytest.approx(policy.act(row), abs=1e-6)
        assert together == pytest.approx(alone, abs=1e-6)
    assert (batch.min(), batch.max()) == pytest.approx((-1.0, 1.0), abs=0.01)
    # No bound of the observations is known.
    assert space.contains(policy.action(np.full(3, 1e30, np.float32)))
