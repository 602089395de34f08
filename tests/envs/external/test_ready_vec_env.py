"""`ReadyVecEnv`: a step of all is that of `ExternalVecEnv`, and one by one the same happens."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest
import torch

from sweepd.envs.external.ready_vec_env import STEPS, ReadyVecEnv
from sweepd.envs.external.sharded import Layout
from sweepd.envs.external.vec_env import ExternalVecEnv
from sweepd.envs.support.errors import InputError, RunError
from tests.envs.external.samples import Buffered, Counter, Everything, Masked, Table, Tag, counters
from tests.envs.external.test_external_env import actions_for
from tests.envs.external.test_processes import gone


@pytest.mark.parametrize(
    ("source", "rows"), [("CartPole-v1", 3), ("Pendulum-v1", 3), (Everything, 3), (Tag, 3)], ids=str
)
def test_steps_and_resume_are_those_of_environments_that_are_stepped_together(
    source: Any, rows: int
) -> None:
    alone = ExternalVecEnv(source, 2, rows, layout=Layout(2 if source is Tag else 6))
    ready = ReadyVecEnv(source, 2, rows, workers=2)
    assert torch.equal(alone.reset(4), ready.reset(4))
    generator = torch.Generator().manual_seed(0)
    for step in range(30):
        action = actions_for(alone, generator)
        for one, other in zip(alone.step(action), ready.step(action), strict=True):
            assert torch.equal(one, other)
        assert torch.equal(alone.final_obs(), ready.final_obs())
        if step == 20:
            for env in (alone, ready):
                env.set_member(1, env.get_member(0))
                assert env.restarted(1) == (source is Tag)
            assert torch.equal(alone.observe(), ready.observe())
    ready.close()


@pytest.mark.parametrize("source", ["CartPole-v1", Table, Masked], ids=str)
def test_rows_follow_from_their_own_actions(source: Any) -> None:
    """Two environments that are stepped in another order, one after the other at last."""
    rows = 6 if source is Table else 2
    together, ready = ReadyVecEnv(source, 1, rows), ReadyVecEnv(source, 1, rows)
    together.reset(3), ready.reset(3)
    each = ready.rows_each
    own = [slice(env * each, (env + 1) * each) for env in range(2)]

    def choose(env: ReadyVecEnv) -> torch.Tensor:
        if source == "CartPole-v1":
            return (env.observe()[:, 2] > 0).long()
        # The first legal option of each row.
        return env.action_mask(torch.zeros(rows, 0, dtype=torch.int64)).int().argmax(1)

    for _ in range(12):
        together.step(choose(together))
        for env in (1, 0):
            ready.send(np.array([env]), choose(ready))
            assert ready.receive().tolist() == [env]
            assert torch.equal(ready.observe()[own[env]], together.observe()[own[env]])
    together.close(), ready.close()


def test_a_member_is_restored_after_steps_of_single_environments() -> None:
    env = ReadyVecEnv("CartPole-v1", 2, 2, workers=1)
    env.reset(0)
    for ready in ([0], [0], [1, 0]):
        env.send(np.array(ready), torch.zeros(4, dtype=torch.int64))
        while ready:
            ready = ready[len(env.receive()) :]
    env.note_steps(np.array([[3, 1], [0, 0]], np.int32))
    state = env.get_member(0)
    assert state["ages"].tolist() == [3, 1]
    assert state[STEPS].tolist() == [[3, 1]]
    env.set_member(1, state)
    assert not env.restarted(1)
    assert torch.equal(env.observe()[2:], env.observe()[:2])
    assert env.get_member(1)[STEPS].tolist() == [[3, 1]]
    env.reset_member(1, 5)
    assert STEPS not in env.get_member(1)
    env.close()


def go_on(env: ReadyVecEnv) -> None:
    """Have all environments step for ever."""
    env.reset(0)
    ready = np.arange(env.num_envs)
    while True:
        env.send(ready, torch.zeros(env.num_envs, dtype=torch.int64))
        ready = env.receive()


def test_failures_end_all_workers() -> None:
    env = ReadyVecEnv(Counter, [{}, {"trouble": "raise"}], 1, workers=2)
    with pytest.raises(RunError, match=r"environment 1 raised:[^§]*the cart has left the rails"):
        go_on(env)
    gone(env.pids)
    env = ReadyVecEnv(Counter, 2, 1, workers=2)
    os.kill(env.pids[0], signal.SIGKILL)
    with pytest.raises(RunError, match=r"worker \d+ \(environments 0\) was ended by SIGKILL"):
        go_on(env)


def test_rewards_that_are_not_finite_are_remembered() -> None:
    env = ReadyVecEnv(Infinite, 1, 2, workers=1)
    env.reset(0)
    env.step(torch.zeros(2, dtype=torch.int64))
    assert "returned the reward inf" in env.reward_fault(0)
    env.close()


class Infinite(Counter):
    """`Counter` whose rewards are infinite."""

    def step(self, action: int) -> Any:
        seen, _, *rest = super().step(action)
        return seen, np.inf, *rest


@pytest.mark.parametrize("source", [counters, Buffered])
def test_environments_that_are_stepped_together_are_refused(source: Any) -> None:
    with pytest.raises(InputError, match="steps several environments together, so none of them"):
        ReadyVecEnv(source, 1, 6)
