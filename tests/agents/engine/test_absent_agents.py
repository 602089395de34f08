"""Absent agents: their observations have no effect; rewards belong to their last action."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sweepd.agents.algorithms.ppo import PPO, PPOParams
from tests.agents.helpers import assert_same, shape_for, start
from tests.agents.toy_env import AbsentChoicesEnv, AbsentEnv, ChoicesEnv, LatePayEnv, ToyEnv


def trained(
    kind: type[ToyEnv], *, garbage: float = 0.0, stay: bool = False
) -> tuple[PPO, dict[str, torch.Tensor]]:
    env = kind(3, 4, cliff=0.9)
    if isinstance(env, AbsentEnv):
        env.garbage, env.stay = garbage, stay
    ppo = start(env, {0: 0, 1: 1, 2: 2})  # with target-KL and without
    stats = ppo.train(env, 3)[-1]
    return ppo, stats._asdict()


@pytest.mark.parametrize("kind", [AbsentEnv, AbsentChoicesEnv])
@pytest.mark.parametrize("garbage", [1e6, torch.nan])
def test_observations_of_absent_agents_have_no_effect(
    kind: type[AbsentEnv], garbage: float
) -> None:
    clean, clean_stats = trained(kind)
    dirty, dirty_stats = trained(kind, garbage=garbage)
    seen = []
    for slot in range(3):
        one, other = clean.get_member(slot), dirty.get_member(slot)
        seen.append(torch.equal(one.pop("obs"), other.pop("obs")))
        assert_same(one, other)
    assert not all(seen)
    assert dirty.diverged == [False] * 3
    assert_same(clean_stats, dirty_stats)


@pytest.mark.parametrize(
    ("plain", "has_absent_agents"), [(ToyEnv, AbsentEnv), (ChoicesEnv, AbsentChoicesEnv)]
)
def test_agents_that_are_always_present_learn_as_without_absent_agents(
    plain: type[ToyEnv], has_absent_agents: type[AbsentEnv]
) -> None:
    one, one_stats = trained(plain)
    other, other_stats = trained(has_absent_agents, stay=True)
    torch.testing.assert_close(one_stats, other_stats, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(one.population.flat, other.population.flat, rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_advantages_run_over_an_agents_own_actions() -> None:
    """Against loops over one row's own actions, in plain numbers."""
    env = AbsentEnv(2, 4, cliff=0.9)
    ppo = start(env, {0: 0, 1: 3}, horizon=23, minibatch=11)
    rollout = ppo.rollout
    rollout.collect(env, ppo.streams)
    rollout.estimate(ppo.numbers["gamma"], ppo.numbers["gae_lambda"])
    ends_alone = paid_later = trailing = 0
    for member in range(2):
        gamma, lam = (float(ppo.numbers[name][member]) for name in ("gamma", "gae_lambda"))
        advantages, returns = torch.full((23, 4), torch.nan), torch.full((23, 4), torch.nan)
        for row in range(4):
            present = rollout._present[member, :, row].tolist()
            done = (rollout._terminated | rollout._truncated)[member, :, row].tolist()
            value, final = (
                rollout._values[member, :, row].tolist(),
                rollout._final_values[member, :, row].tolist(),
            )
            advantage = 0.0
            for step in reversed([step for step in range(23) if present[step]]):
                after = next((later for later in range(step + 1, 24) if present[later]), None)
                end = next((at for at in range(step, min(after or 23, 23)) if done[at]), None)
                if end is not None:
                    ends_alone += end > step
                    following, advantage = (
                        final[end],
                        0.0,
                    )  # the value of an end that it did not observe is 0
                    assert end == step or following == 0.0
                elif after is None:
                    trailing += 1
                    advantage = 0.0
                    continue
                else:
                    following = value[after]
                last = end if end is not None else after - 1
                reward = sum(rollout.rewards[member, step : last + 1, row].tolist())
                paid_later += last > step
                advantage = reward + gamma * following - value[step] + gamma * lam * advantage
                advantages[step, row], returns[step, row] = advantage, advantage + value[step]
        counts = advantages.isfinite()
        learned = rollout.transitions.flags[member, :-1, :, -1]
        assert torch.equal(counts, learned)
        side = rollout.transitions.side[member, :-1]
        torch.testing.assert_close(side[..., -1][counts], returns[counts])
        normal = (advantages[counts] - advantages[counts].mean()) / (
            advantages[counts].std() + 1e-4
        )
        torch.testing.assert_close(side[..., -2][counts], normal, rtol=1e-4, atol=1e-5)
        assert not side[..., -2:][~counts].any()
    assert ends_alone > 0
    assert paid_later > 0
    assert trailing > 0


@pytest.mark.parametrize("kind", [AbsentEnv, AbsentChoicesEnv])
@torch.no_grad()
def test_gradient_step_uses_present_agents_only(
    kind: type[AbsentEnv], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invalid transitions in a minibatch change neither its gradients nor its statistics."""
    env = kind(2, 4)
    ppo = start(env, {0: 0, 1: 2})
    ppo.rollout.collect(env, ppo.streams)
    ppo.rollout.estimate(ppo.numbers["gamma"], ppo.numbers["gae_lambda"])
    torch.manual_seed(1)
    ppo.population.flat += 0.1 * torch.randn_like(
        ppo.population.flat
    )  # so that ratios and errors differ
    counted = ppo.rollout.samples().valid
    assert counted is not None
    ppo.rollout.samples().side[..., -3].masked_fill_(~counted, -1000.0)  # whatever was done there
    some = [torch.nonzero(row)[:8, 0] + first for row, first in zip(counted, (0, 52), strict=True)]
    others = [
        torch.nonzero(~row)[:8, 0] + first for row, first in zip(counted, (0, 52), strict=True)
    ]
    monkeypatch.setattr(ppo.optimizer, "apply", lambda *_: None)  # it overwrites gradients
    found = []
    for rest in (others, some):
        rows = torch.cat([torch.cat(pair) for pair in zip(some, rest, strict=True)])
        step = ppo._minibatch(rows, torch.zeros(2, dtype=torch.bool), stop_early=True)
        found.append((ppo.optimizer.grad.clone(), ppo._step_stats(step)))
    torch.testing.assert_close(*found)
    assert float(found[0][1]["approx_kl"].min()) > 0.0


def test_a_minibatch_without_agents_changes_nothing() -> None:
    env = AbsentEnv(1, 4)
    ppo = start(env, {0: 0})
    ppo.train(env, 1)
    before = ppo.get_member(0)
    env.present = lambda: torch.zeros(4, dtype=torch.bool)  # type: ignore[method-assign]
    stats = ppo.train(env, 1)[0]
    for name in ("weights", "adam_m", "adam_step"):
        assert torch.equal(before[name], ppo.get_member(0)[name])
    assert [float(stats.updates), float(stats.entropy), float(stats.reward)] == [0.0, 0.0, 0.0]


def test_rewards_received_while_absent_belong_to_the_last_action() -> None:
    env = LatePayEnv(4, 8)
    shape = shape_for(env, num_envs=8, horizon=24, minibatch=48, epochs=4)
    ppo = PPO(shape)
    for slot in range(4):
        ppo.add_member(slot, PPOParams(learning_rate=3e-3), slot, 30, env.state_avg, env.state_std)
        env.streams.seed(slot, 50 + slot)
    stats = ppo.train(env, 30)
    assert float(stats[0].reward.max()) < 0.7
    assert float(stats[-1].reward.min()) > 0.9


@torch.no_grad()
def test_rewards_before_the_first_action_of_an_episode_are_dropped() -> None:
    env = LatePayEnv(1, 2)
    ppo = start(env, {0: 0}, num_envs=2, horizon=12, minibatch=12)
    ppo.rollout.collect(env, ppo.streams)
    rollout, first = ppo.rollout, torch.zeros(12, 2, dtype=torch.bool)
    first[6] = True  # the first step of the second episode; its agents act one step later
    rollout._present[0, 6] = False
    found = []
    for reward in (0.0, 100.0):
        rollout.rewards[0][first] = reward
        rollout.estimate(ppo.numbers["gamma"], ppo.numbers["gae_lambda"])
        found.append(rollout.transitions.side[0, :-1, :, -2:].clone())
    assert torch.equal(*found)


def test_only_empty_minibatches_are_skipped() -> None:
    """Few rows have an agent, so some minibatches of 4 have none; all others are learned from."""
    env = AbsentEnv(2, 4)
    ppo = start(env, {0: 0, 1: 3}, horizon=10, minibatch=4)
    env.present = lambda: (env._row == 1) & (env._age % 5 < 2)  # type: ignore[method-assign]
    orders: list[Tensor] = []
    index, batches = ppo.rollout.index, ppo.rollout.index.batches
    index.batches = lambda order: (orders.extend(batches(order)), batches(order))[1]  # type: ignore[method-assign, func-returns-value]
    updates = ppo.train(env, 1)[0].updates
    flags = ppo.rollout.transitions.valid
    assert flags is not None
    filled = torch.stack([flags.flatten()[rows].view(2, -1).any(-1) for rows in orders])
    assert not filled[:-1].all(0).any()  # both members skip one before their last
    assert torch.equal(updates, filled.sum(0).float())
    assert float(updates.min()) > 0
