"""Rows that rest once their episodes have been played are not stepped, and play on after a reset."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from sweepd.envs.external.sharded import Layout
from sweepd.envs.external.vec_env import ExternalVecEnv
from sweepd.envs.games.play import play_episodes
from tests.envs.external.samples import Counter, Tag


def ones(obs: Tensor) -> Tensor:
    return torch.ones(len(obs), dtype=torch.int64)


@pytest.mark.parametrize("layout", [None, Layout(1, (2, 1))], ids=str)
def test_environments_rest_when_their_episode_has_been_played(layout: Layout | None) -> None:
    env = ExternalVecEnv(Counter, [{"length": 5}, {"length": 50}], 2, layout=layout)
    for _ in range(2):  # the second time after a reset, with the same results
        env.reset([3, 4])
        played = play_episodes(env, ones)
        assert played.lengths.tolist() == [[5, 5], [50, 50]]
        assert played.returns.tolist() == [[15.0, 15.0], [1275.0, 1275.0]]
        # The short ones were last stepped at step 16, in their fourth episode.
        assert env.observe()[:, 0].tolist() == [1.0, 1.0, 14.0, 14.0]
    env.close()


def test_what_a_resting_row_shows() -> None:
    env = ExternalVecEnv(Counter, 1, 2, length=2)
    env.reset([3])
    action = torch.ones(2, dtype=torch.int64)
    env.step(action)
    assert env.step(action).terminated.all()
    env.rest(torch.tensor([True, False]))
    made = env.step(action)
    assert made.reward.tolist() == [0.0, 1.0]
    assert not made.terminated.any()
    env.reset_member(0)  # without a seed, too
    assert env.step(action).reward.tolist() == [1.0, 1.0]


def test_an_environment_of_several_rows_rests_as_a_whole() -> None:
    env = ExternalVecEnv(Tag, 1, 6)
    env.reset(0)
    action = torch.full((6, 1), 0.5)
    env.step(action)
    env.rest(torch.tensor([True, False, True, True, True, True]))
    before = env.observe()
    env.step(action)
    changed = (env.observe() != before).any(1).numpy()
    np.testing.assert_array_equal(changed[3:], False)
    assert changed[:3].any()
