"""The number of evaluation episodes of a new study."""

from __future__ import annotations

import math

import pytest
import torch

from sweepd.envs.support.intervals import Components
from sweepd.optimize.objectives.games.pilot import choose_episodes, measure_episodes
from tests.optimize.objectives.test_game_study import make_spec
from tests.optimize.objectives.test_null_game import NAME


def test_episodes_add_a_third_to_the_error_of_seeds_within_limits() -> None:
    spec = make_spec(budget=10**6)
    found = Components(1.0, 16.0, 16.0)
    episodes = choose_episodes(spec, found, 10.0, 4.0)
    alone = math.sqrt(1.0 / 5)
    total = math.sqrt(1.0 / 5 + 16.0 / episodes + 16.0 / (5 * episodes))
    assert total <= 4 / 3 * alone < total * 1.01
    # Seeds that do not differ, and episodes that do not.
    assert choose_episodes(spec, Components(0.0, 1.0, 0.0), 10.0, 4.0) == 1_000
    assert choose_episodes(spec, Components(1.0, 0.0, 0.0), 10.0, 4.0) == 10
    # Just inside of the limits.
    assert choose_episodes(spec, Components(1.0, 1.6, 0.0), 10.0, 4.0) == 11
    assert choose_episodes(spec, Components(1.0, 155.3, 0.0), 10.0, 4.0) == 999
    # At most a quarter of the training steps: 250,000 over 4 evaluations of episodes of 1,000.
    assert choose_episodes(spec, Components(0.0, 1.0, 0.0), 1000.0, 4.0) == 62
    assert choose_episodes(make_spec(budget=512), found, 1000.0, 4.0) == 10


@pytest.mark.parametrize(("env", "episodes"), [(NAME, 1_000), ("cartpole", 10)])
def test_noise_needs_many_episodes_and_cartpole_few(env: str, episodes: int) -> None:
    spec = make_spec(env, budget=81_920, rungs=10, seeds=1, slots=8, num_envs=16, horizon=64)
    said: list[str] = []
    found, line = measure_episodes(spec, torch.device("cpu"), said.append)
    again, _ = measure_episodes(spec, torch.device("cpu"), said.append)
    assert found == again
    assert said == [line, line]
    assert episodes / 2 <= found.episodes <= 2 * episodes
    assert f"episodes: {found.episodes:,} per evaluation" in line
