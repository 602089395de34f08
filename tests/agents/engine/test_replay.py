"""The rings against a plain list of transitions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sweepd.agents.engine.replay import ReplayBuffers
from sweepd.envs.core.streams import Streams
from tests.agents.helpers import assert_same
from tests.agents.toy_env import ToyEnv


def filled(
    env: ToyEnv, capacity: int, horizon: int, rollouts: int
) -> tuple[ReplayBuffers, list[list[tuple[Tensor, ...]]]]:
    """A ring, and every transition of each row in order: (obs, action, reward, alive, next obs)."""
    members, envs = env.num_members, env.envs_per_member
    replay = ReplayBuffers(
        members, envs, capacity, horizon, env.state_dim, env.action_dim, env.device
    )
    scale = torch.arange(1.0, members + 1.0).view(-1, 1)
    seen: list[list[tuple[Tensor, ...]]] = [[] for _ in range(env.num_envs)]
    obs = env.reset(list(range(members)))
    for _ in range(rollouts):
        for _ in range(horizon):
            action = torch.rand(env.num_envs, env.action_dim) * 2.0 - 1.0
            step = env.step(action)
            final = env.final_obs().clone()
            for row in range(env.num_envs):
                over, cut = bool(step.terminated[row]), bool(step.truncated[row])
                following = final[row] if cut and not over else step.obs[row]
                reward = step.reward[row] * scale[row // envs, 0]
                alive = torch.tensor(float(not over))
                seen[row].append((obs[row].clone(), action[row], reward, alive, following.clone()))
            replay.note(
                obs.view(members, envs, -1), action.view(members, envs, -1), step, scale, env
            )
            obs = step.obs
        replay.store()
    return replay, seen


@pytest.mark.parametrize("rollouts", [1, 3, 5])
@pytest.mark.parametrize(("cliff", "interval"), [(10.0, 7), (10.0, 3), (0.4, 1)])
def test_ring_holds_the_latest_transitions(rollouts: int, cliff: float, interval: int) -> None:
    env = ToyEnv(2, 3, cliff=cliff)
    env.bootstrap_interval = interval
    capacity, horizon = 20, 9
    replay, seen = filled(env, capacity, horizon, rollouts)
    steps = horizon * rollouts
    held = min(steps, capacity)
    assert replay.held(0) == held * 3
    everything = replay.gather(torch.arange(2 * capacity * 3))
    for member in range(2):
        for lane in range(3):
            for step in range(steps - held, steps):
                at = (step % capacity) * 3 + lane
                wanted = seen[member * 3 + lane][step]
                for part, value in zip(everything, wanted, strict=True):
                    assert torch.equal(part[member, at], value)
    ends = sum(not torch.equal(row[i][4], row[i + 1][0]) for row in seen for i in range(steps - 1))
    assert ends > 0  # some step was followed by the last observation of a truncated episode
    assert any(float(entry[3]) == 0.0 for row in seen for entry in row) == (
        cliff < 10.0 and steps > 5
    )


def test_samples_are_uniform_and_independent_of_other_members() -> None:
    replay, _ = filled(ToyEnv(2, 3), 20, 9, 1)
    streams = Streams(2)
    streams.seed(1, 7)
    rows = replay.draw(streams, 300, 9)
    assert rows.shape == (300, 18)
    assert not rows[:, :9].any()  # an empty slot
    counts = torch.bincount(rows[:, 9:].flatten() - 60, minlength=60)
    assert not counts[27:].any()
    assert int(counts[:27].min()) > 60  # 100 each on average
    alone = Streams(2)
    alone.seed(0, 7)
    assert torch.equal(replay.draw(alone, 300, 9)[:, :9], rows[:, 9:] - 60)


def test_a_members_ring_can_be_moved_to_another_slot() -> None:
    for rollouts in (1, 4):
        replay, _ = filled(ToyEnv(2, 3), 20, 9, rollouts)
        other, _ = filled(ToyEnv(2, 3), 20, 9, 2)
        before = other.get_member(1)
        state = replay.get_member(1)
        assert state["obs"].shape[0] == min(9 * rollouts, 20)
        other.check_member(state)
        other.set_member(0, state)
        assert_same(state, other.get_member(0))
        assert_same(before, other.get_member(1))
        assert other.held(0) == replay.held(1)
