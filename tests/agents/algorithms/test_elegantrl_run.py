"""ElegantRL's own agent runs on our environments, with one env and with many."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from scripts.bench.speed.elegantrl_run import ElegantEnv, make_agent, train_rollout
from sweepd.agents.algorithms.ppo import PPOParams
from sweepd.envs.support.errors import InputError
from tests.agents.helpers import shape_for
from tests.agents.toy_env import ChoiceEnv, ToyEnv


@pytest.mark.parametrize("envs", [1, 6])
def test_agent_makes_as_many_updates_as_sweepd(envs: int) -> None:
    env = ToyEnv(1, envs)
    env.streams.seed(0, 1)
    shape = shape_for(env, horizon=24, minibatch=8, epochs=2)
    torch.manual_seed(0)
    adapted = ElegantEnv(env)
    agent = make_agent(adapted, shape, PPOParams(learning_rate=1e-3), env.state_avg, env.state_std)
    before = {name: tensor.clone() for name, tensor in agent.act.state_dict().items()}
    train_rollout(agent, adapted, 24)
    after = agent.act.state_dict()
    assert all(
        not torch.equal(before[name], after[name]) for name in before if name.startswith("net.")
    )
    assert torch.equal(after["state_avg"], env.state_avg)
    assert int(next(iter(agent.act_optimizer.state.values()))["step"]) == shape.samples // 8 * 2


def test_reset_of_one_env_returns_the_state_after_autoreset() -> None:
    env = ToyEnv(1, 1, max_step=3)
    env.streams.seed(0, 1)
    adapted = ElegantEnv(env)
    state = adapted.reset()
    assert isinstance(state, np.ndarray)
    for step in range(1, 4):
        state, reward, done, _ = adapted.step(np.zeros(2, dtype=np.float32))
        assert isinstance(reward, float)
        assert done == (step == 3)
    assert state[-1] == 0.0  # the age of a new episode
    assert np.array_equal(adapted.reset(), state)


def test_privileged_columns_are_refused() -> None:
    with pytest.raises(InputError, match="time_decay_floor"):
        ElegantEnv(ToyEnv(1, 1, privileged=True))


@pytest.mark.parametrize("envs", [1, 6])
def test_discrete_agent_trains(envs: int) -> None:
    env = ChoiceEnv(1, envs)
    env.streams.seed(0, 1)
    shape = shape_for(env, horizon=24, minibatch=8, epochs=2)
    torch.manual_seed(0)
    adapted = ElegantEnv(env)
    agent = make_agent(adapted, shape, PPOParams(learning_rate=1e-3), env.state_avg, env.state_std)
    before = {name: tensor.clone() for name, tensor in agent.act.state_dict().items()}
    train_rollout(agent, adapted, 24)
    after = agent.act.state_dict()
    assert all(
        not torch.equal(before[name], after[name]) for name in before if name.startswith("net.")
    )
    assert not env.faults().any()
