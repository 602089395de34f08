"""Recurrent networks: through rollouts, and in a memory task."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sweepd.agents.algorithms.ppo import PPO, PPOParams
from sweepd.agents.engine.acting import Actors
from sweepd.agents.networks.recurrence import GATES
from sweepd.agents.networks.shape import Shape
from sweepd.envs.support.errors import InputError
from tests.agents.helpers import shape_for, start
from tests.agents.toy_env import AbsentEnv, RecallEnv, Rematching, ToyEnv

KINDS = pytest.mark.parametrize("kind", list(GATES))


def score(env: RecallEnv, act: Actors) -> Tensor:
    """(members,) share of rewards that could be had in 60 steps."""
    obs, total = env.reset(77), torch.zeros(env.num_envs)
    for _ in range(60):
        step = env.step(act(obs))
        act.done(step.terminated | step.truncated)
        obs, total = step.obs, total + step.reward
    return total.view(env.num_members, -1).mean(1) / 48


@pytest.mark.parametrize(
    ("recurrent", "least", "most"), [("gru", 0.95, 1.0), ("lstm", 0.95, 1.0), ("", 0.3, 0.7)]
)
def test_only_recurrent_networks_solve_a_memory_task(
    recurrent: str, least: float, most: float
) -> None:
    env = RecallEnv(1, 32)
    sizes = {
        "net_width": 16,
        "net_depth": 1,
        "horizon": 10,
        "minibatch": 160,
        "epochs": 4,
        "bptt": 5,
    }
    ppo = PPO(Shape.for_env(env, recurrent=recurrent, **sizes))
    ppo.add_member(
        0, PPOParams(learning_rate=2e-2, entropy_coef=0.005), 0, 10, env.state_avg, env.state_std
    )
    ppo.begin(env.reset([1]))
    ppo.train(env, 10)
    assert least <= float(score(env, ppo.act_fn())) <= most


@KINDS
@pytest.mark.parametrize("env_kind", [ToyEnv, AbsentEnv])
def test_rollout_equals_a_second_forward_pass(kind: str, env_kind: type[ToyEnv]) -> None:
    """A rollout's values and log-probabilities equal those of whole sequences and stored states."""
    env = env_kind(2, 4, cliff=0.9)
    ppo = start(env, {0: 0, 1: 1}, recurrent=kind, bptt=4, minibatch=48)
    ppo.train(env, 1)
    rollout = ppo.rollout
    carried = rollout.states.memory.clone()
    with torch.no_grad():
        rollout.collect(env, ppo.streams)
        rollout.estimate(ppo.numbers["gamma"], ppo.numbers["gae_lambda"])
    order = torch.arange(rollout.index.items).expand(2, 1, -1)
    rows = rollout.index.batches(order)
    assert sorted(rows[0].tolist()) == [*range(48), *range(52, 100)]
    with torch.no_grad():
        step = ppo._minibatch(rows[0], torch.zeros(2, dtype=torch.bool), stop_early=False)
    log_ratio, error = step.log_ratio, step.error
    learned = (
        ppo._batch.valid
        if env.spec.has_absent_agents
        else torch.ones_like(log_ratio, dtype=torch.bool)
    )
    assert learned is not None  # an agent's last action before it leaves is not learned from
    torch.testing.assert_close(
        log_ratio[learned], torch.zeros_like(log_ratio[learned]), rtol=0.0, atol=2e-5
    )
    values = step.error + ppo._batch.returns  # in their own unit
    flat = rollout._values.view(2, -1)[:, :48].reshape(-1)
    again = torch.empty(96)
    again[(rows[0] - (rows[0] >= 52) * 4)] = values.flatten()
    counts = torch.ones(96, dtype=torch.bool)
    if env.spec.has_absent_agents:
        counts = rollout.samples().flags[..., 0].flatten()
    torch.testing.assert_close(again[counts], flat[counts], rtol=1e-4, atol=2e-5)
    assert torch.equal(rollout.transitions.memory[:, :, :4], carried)
    assert carried.any()
    assert not error.isnan().any()


def test_value_of_a_truncated_episode_uses_its_recurrent_state() -> None:
    env = ToyEnv(1, 3, max_step=5)
    ppo = start(env, {0: 0}, recurrent="lstm", bptt=4, horizon=8, minibatch=24)
    obs = [env._observe().clone()]
    plain = env.step

    def step(action: Tensor, out: Tensor | None = None) -> Any:
        made = plain(action, out)
        obs.append(made.obs.clone())
        return made

    env.step = step  # type: ignore[method-assign]
    with torch.no_grad():
        ppo.rollout.collect(env, ppo.streams)
    critic = ppo.export_member(0)[1]
    cell = nn.LSTMCell(16, 16)
    cell.load_state_dict(
        {name[4:]: part for name, part in critic.items() if name.startswith("rnn.")}
    )

    def value(seen: list[Tensor]) -> Tensor:
        state = (torch.zeros(3, 16), torch.zeros(3, 16))
        for x in seen:
            hidden = (x - critic["state_avg"]) / critic["state_std"]
            for layer in (0, 2):
                hidden = torch.relu(
                    hidden @ critic[f"net.{layer}.weight"].mT + critic[f"net.{layer}.bias"]
                )
            state = cell(hidden, state)
        return (state[0] @ critic["net.4.weight"].mT + critic["net.4.bias"])[:, 0].detach()

    torch.testing.assert_close(
        ppo.rollout._final_values[0, 4], value([*obs[:5], env.final_obs()]), atol=1e-5, rtol=1e-4
    )
    torch.testing.assert_close(
        ppo.rollout._values[0, 5], value(obs[5:6]), atol=1e-5, rtol=1e-4
    )  # and the state is zeroed
    torch.testing.assert_close(ppo.rollout._values[0, 8], value(obs[5:]), atol=1e-5, rtol=1e-4)


def test_actors_keep_a_recurrent_state_per_row() -> None:
    env = ToyEnv(2, 4)
    ppo = start(env, {0: 0, 1: 1}, recurrent="gru", bptt=4)
    act, fresh = ppo.act_fn(), ppo.act_fn()
    one, two = torch.randn(2, 6, env.state_dim)
    first = act(one)
    assert torch.equal(first, fresh(one))
    act.done(torch.tensor([False, True, False, False, False, True]))
    second = act(two)
    fresh.done(torch.ones(len(one), dtype=torch.bool))
    restarted = fresh(two)
    changed = (second != restarted).any(1).tolist()
    assert changed == [True, False, True, True, True, False]
    assert torch.equal(ppo.act_fn()(one), first)  # recurrent states are independent


def test_rows_that_change_members_are_observed_again_without_recurrent_state() -> None:
    env = Rematching(2, 4)
    ppo = start(env, {0: 0, 1: 1}, recurrent="gru", bptt=4)
    ppo.train(env, 1)
    assert ppo.rollout.states.memory.any()
    before = ppo.rollout.obs.view(2, 4, -1).clone()
    with torch.no_grad():
        ppo.rollout.collect(env, ppo.streams)
    assert not ppo.rollout.transitions.memory[:, :, :4].any()
    scale = ppo.population.critic.normalisers
    seen = ppo.rollout.transitions.obs[:, 0] * scale["state_std"] + scale["state_avg"]
    torch.testing.assert_close(seen, before.roll(1, 1))


def test_bptt_must_divide_horizon_and_minibatch() -> None:
    with pytest.raises(InputError, match="bptt 5 must divide horizon 12"):
        shape_for(ToyEnv(1, 4), recurrent="gru", bptt=5)
    with pytest.raises(InputError, match="recurrent must be one of gru, lstm or '', not 'rnn'"):
        shape_for(ToyEnv(1, 4), recurrent="rnn")
