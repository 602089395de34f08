"""Environments of several rows: multi-agent, vector and PufferLib-style environments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from sweepd.envs.external.sources import GymSource
from sweepd.envs.external.vec_env import ExternalVecEnv
from sweepd.envs.support.errors import InputError
from tests.envs.external.samples import Buffered, Everything, Pixels, Tag, counters


def test_agents_that_are_absent_are_masked() -> None:
    env = ExternalVecEnv(Tag, 1, 6)
    env.reset(0)
    assert env.spec.has_absent_agents
    assert env.present().all()
    action = torch.tensor([0.1, 0.2, 0.3] * 2).unsqueeze(1)
    there, rewards, terminated, truncated = [], [], [], []
    for _ in range(4):
        made = env.step(action)
        rewards.append(made.reward[:3].tolist())
        terminated.append(made.terminated[:3].tolist())
        truncated.append(made.truncated[:3].tolist())
        there.append(env.present()[:3].tolist())
        assert torch.equal(made.obs[:3, 0] > 0, env.present()[:3] & (made.obs[:3, 0] > 0))
    assert there == [
        [True] * 3,
        [False, True, True],
        [False, False, True],
        [True] * 3,
    ]  # and a new episode
    assert terminated == [[False] * 3, [True, False, False], [False, True, False], [False] * 3]
    assert truncated == [[False] * 3, [False] * 3, [False] * 3, [False, False, True]]
    np.testing.assert_allclose(rewards[3], [0.0, 0.0, 0.6], rtol=1e-6)  # scaled to the bounds of 2
    assert env.final_obs()[:3, 0].tolist() == [2.0, 3.0, 4.0]
    assert made.obs[:3, 0].tolist() == [0.0] * 3
    assert not torch.equal(
        made.obs[0, 1], made.obs[3, 1]
    )  # environments have their own random numbers


class PaidLater(Tag):
    """An environment that also rewards an agent that has left."""

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        seen, rewards, *rest = super().step(actions)
        return seen, {agent: rewards.get(agent, 5.0) for agent in self.possible_agents}, *rest


def test_a_reward_reaches_an_agent_that_is_absent() -> None:
    env = ExternalVecEnv(PaidLater, 1, 3)
    env.reset(0)
    rewards = [env.step(torch.zeros(3, 1)).reward.tolist() for _ in range(4)]
    assert rewards == [[0.0] * 3, [0.0] * 3, [5.0, 0.0, 0.0], [5.0, 5.0, 0.0]]


class ToldAgain(Tag):
    """An environment that says again and again that an agent has ended."""

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        seen, rewards, terminated, truncated, infos = super().step(actions)
        over = {agent: terminated.get(agent, True) for agent in self.possible_agents}
        late = {agent: truncated.get(agent, False) for agent in self.possible_agents}
        return seen, rewards, over, late, infos


def test_an_agent_that_has_left_does_not_end_again() -> None:
    env, plain = ExternalVecEnv(ToldAgain, 1, 3), ExternalVecEnv(Tag, 1, 3)
    env.reset(0)
    plain.reset(0)
    for _ in range(12):
        for one, other in zip(
            env.step(torch.zeros(3, 1)), plain.step(torch.zeros(3, 1)), strict=True
        ):
            assert torch.equal(one, other)
        assert torch.equal(env.final_obs(), plain.final_obs())


def test_rows_must_be_whole_games() -> None:
    with pytest.raises(
        InputError, match=r"7 rows per member are not a multiple of the 3 .* 6 or 9 would be"
    ):
        ExternalVecEnv(Tag, 1, 7)
    with pytest.raises(
        InputError, match=r"2 rows per member are not a multiple of the 3 .* 3 would be"
    ):
        ExternalVecEnv(Tag, 1, 2)


def test_an_environment_writes_into_the_buffers_itself() -> None:
    env = ExternalVecEnv(Buffered, 2, 4)
    first = env.reset(0)
    assert len(set(first[:, 1].tolist())) == 8
    for step in range(1, 5):
        made = env.step(torch.tensor([0, 1, 2, 0] * 2))
        assert made.reward.tolist() == [0.0, 1.0, 2.0, 0.0] * 2
        assert made.obs[:, 0].tolist() == [step % 4] * 8
        assert made.truncated.tolist() == [step == 4] * 8
    assert env.final_obs()[:, 0].tolist() == [3.0] * 8  # the last one that was observed
    assert torch.equal(
        ExternalVecEnv(Buffered, 1, 4).reset([5]), ExternalVecEnv(Buffered, 2, 4).reset([4, 5])[4:]
    )


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_vector_environments_keep_their_sub_environments_together(mode: AutoresetMode) -> None:
    env = ExternalVecEnv(counters, 2, 3, mode=mode)
    env.reset(0)
    seen, there, ends = [], [], []
    for _ in range(6):
        made = env.step(torch.tensor([1, 2, 3] * 2))
        seen.append(made.obs[:3, 0].tolist())
        there.append(env.present()[:3].tolist() if env.spec.has_absent_agents else [True] * 3)
        ends.append(made.terminated[:3].tolist())
    assert env.spec.has_absent_agents == (mode is AutoresetMode.NEXT_STEP)
    if mode is AutoresetMode.SAME_STEP:
        assert [row[0] for row in seen] == [1.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    else:  # absent in the step in which the next episode begins
        assert [row[0] for row in seen] == [1.0, 2.0, 0.0, 1.0, 2.0, 0.0]
        assert [row[0] for row in there] == [True, False, True, True, False, True]
    assert ends[1] == [True, False, False]
    assert env.final_obs()[:3, 0].tolist() == [2.0, 3.0, 4.0]
    with pytest.raises(InputError, match="not a multiple of the 3"):
        ExternalVecEnv(counters, 1, 4, mode=mode)


def test_a_vector_environment_that_never_resets_is_refused() -> None:
    with pytest.raises(Exception, match="does not reset by itself"):
        ExternalVecEnv(counters, 1, 3, mode=AutoresetMode.DISABLED)


def test_gymnasiums_own_vector_environments_by_id() -> None:
    env = ExternalVecEnv(GymSource("CartPole-v1", batched=8), 2, 8)
    one = ExternalVecEnv("CartPole-v1", 1, 2)
    assert (env.state_dim, env.action_dim) == (one.state_dim, one.action_dim)
    first = env.reset(0)
    assert first.abs().max() <= 0.05
    assert len(set(first[:, 0].tolist())) == 16
    for _ in range(30):
        made = env.step(torch.ones(16, dtype=torch.int64))
    assert made.obs.abs().max() < 5


def test_nested_spaces_arrive_whole() -> None:
    env = ExternalVecEnv(Everything, 1, 3)
    assert env.spec.action_dims == (3, 2, 2, 4, 5)
    assert env.reset(0).shape == (3, 19)
    made = env.step(torch.tensor([[0, 0, 0, 0, 0], [1, 1, 0, 2, 3], [2, 1, 1, 3, 4]]))
    assert made.reward.tolist() == [-1000.0, 123.0, 1234.0]


def test_pictures_stay_bytes() -> None:
    env = ExternalVecEnv(Pixels, 1, 2)
    assert env.spec.image_shape == (3, 40, 48)
    obs = env.reset(0)
    assert obs.dtype == torch.uint8
    made = env.step(torch.tensor([[0.0, 0.0], [1.0, -1.0]]))
    assert made.reward.tolist() == [1.0 + 500.0, 3.0]
    picture = made.obs.view(2, 3, 40, 48)
    assert (picture[:, 0] == 1).all()
    assert picture[0, 2, 7].tolist() == list(range(48))
    assert not obs.view(2, 3, 40, 48)[:, 0].any()  # the caller's own


def test_pettingzoo_environments_are_stepped() -> None:
    pettingzoo = pytest.importorskip("pettingzoo")
    assert issubclass(type("Real", (Tag, pettingzoo.ParallelEnv), {}), pettingzoo.ParallelEnv)
    env = ExternalVecEnv(type("Real", (Tag, pettingzoo.ParallelEnv), {}), 1, 3)
    env.reset(0)
    assert env.step(torch.zeros(3, 1)).obs.shape == (3, 2)


def test_objects_that_are_no_environment_are_refused() -> None:
    with pytest.raises(InputError, match="Closable: it made a Closable, which must be a gymnasium"):
        ExternalVecEnv(Closable, 1, 1)


class Closable:
    def close(self) -> None:
        pass
