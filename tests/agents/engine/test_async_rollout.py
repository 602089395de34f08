"""Rollouts of environments that are stepped as they are ready: order, advantages, repetition."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from sweepd.agents.algorithms.ppo import PPO
from sweepd.agents.algorithms.sac import SAC
from sweepd.agents.engine.async_rollout import AsyncRollout
from sweepd.agents.networks.shape import Shape
from sweepd.envs.core.env_spec import FLOAT
from sweepd.envs.external.ready_vec_env import STEPS, ReadyVecEnv
from sweepd.envs.external.sharded import Layout
from sweepd.envs.external.vec_env import ExternalVecEnv
from sweepd.envs.support.errors import InputError
from tests.agents.helpers import assert_same, member_params
from tests.envs.external.samples import Masked, Pixels, Table, Tag


class Walk(gymnasium.Env[Any, Any]):
    """A number that actions move; episodes end at ±3 or are truncated after `limit` steps.

    Args:
        limit: steps of an episode.
        waits: seconds of one step in four, at random.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, limit: int = 7, waits: float = 0.0) -> None:
        self._limit, self._waits = limit, waits

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._count, self._at = 0, float(self.np_random.normal())
        return self._observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._waits and np.random.default_rng().random() < 0.25:
            time.sleep(self._waits)
        self._count += 1
        self._at += float(action - 1) + 0.3 * float(self.np_random.normal())
        over = abs(self._at) > 3
        return self._observe(), -abs(self._at), over, self._count >= self._limit, {}

    def _observe(self) -> Any:
        return np.array([self._at, self._count, self._at**2], np.float32)


SIZES: dict[str, Any] = {"net_width": 16, "horizon": 12, "minibatch": 24, "epochs": 2, "bptt": 4}
START: dict[int, int] = {0: 0, 2: 1}  # member by slot; slot 1 is empty


def started(env: ExternalVecEnv, times: int, slots: dict[int, int], **changes: Any) -> PPO:
    """Return a program with these members on an environment; `times`: environments per row."""
    sizes = {"running_scale": env.spec.obs_dtype == FLOAT, **SIZES, **changes}
    sizes["autoregressive"] = len(env.spec.action_dims) > 1
    ppo = PPO(replace(Shape.for_env(env, **sizes), async_envs=times))
    for slot, member in slots.items():
        avg, std = torch.zeros(env.state_dim), torch.ones(env.state_dim)
        ppo.add_member(slot, member_params(member, target_kl=0.0), 100 + member, 8, avg, std)
        env.reset_member(slot, 200 + member)
    ppo.begin(env.observe())
    return ppo


def ready_walks(slots: int = 3, rows: int = 8, workers: int = 4, **params: Any) -> ReadyVecEnv:
    return ReadyVecEnv(Walk, slots, rows, workers=workers, **params)


@pytest.mark.parametrize(
    ("source", "rows", "changes"),
    [
        (Walk, 4, {}),
        (Walk, 4, {"recurrent": "gru"}),
        (Walk, 4, {"recurrent": "lstm", "activation": "tanh"}),
        ("Pendulum-v1", 4, {}),
        (Masked, 4, {}),
        (Tag, 6, {}),
        (Tag, 6, {"recurrent": "gru"}),
        (Table, 6, {}),
        (Pixels, 2, {"minibatch": 12}),
    ],
    ids=str,
)
def test_if_all_make_as_many_steps_the_result_is_that_of_environments_stepped_together(
    source: Any, rows: int, changes: dict[str, Any]
) -> None:
    per = 3 if source in (Tag, Table) else 1
    together = ExternalVecEnv(source, 3, rows, layout=Layout(3 * rows // per))
    ready = ReadyVecEnv(source, 3, rows, workers=3)
    one, other = started(together, 0, START, **changes), started(ready, 1, START, **changes)
    found = [(ppo.train(env, 3), env) for ppo, env in ((one, together), (other, ready))]
    for slot in START:
        mine, theirs = one.get_member(slot), other.get_member(slot)
        assert_same(
            mine | {"description": torch.zeros(0)}, theirs | {"description": torch.zeros(0)}
        )
        for plain, own in zip(*(stats for stats, _ in found), strict=True):
            assert_same(*({name: n[slot] for name, n in s._asdict().items()} for s in (plain, own)))
    assert_same(
        *({name: n[[0, 2]] for name, n in ppo.play_stats().items()} for ppo in (one, other))
    )
    ready.close()


def repeated(record: Any, seed_slots: dict[int, int], workers: int, **changes: Any) -> PPO:
    """Train members that repeat a record, by member."""
    env = ready_walks(workers=workers)
    ppo = started(env, 2, seed_slots, **changes)
    for slot, member in seed_slots.items():
        env.repeat_steps(slot, record[member])
    ppo.train(env, 3)
    for slot, member in seed_slots.items():
        assert (env.get_member(slot)[STEPS].numpy() == record[member]).all()
    env.close()
    return ppo


@pytest.mark.parametrize("changes", [{}, {"recurrent": "gru"}], ids=str)
def test_a_record_repeats_the_weights_to_the_byte(changes: dict[str, Any]) -> None:
    env = ready_walks(waits=0.004)
    ppo = started(env, 2, START, **changes)
    ppo.train(env, 3)
    record = {member: env.get_member(slot)[STEPS].numpy() for slot, member in START.items()}
    for counts in record.values():
        assert counts.shape == (3, 8)
        assert (counts.sum(1) == 4 * 12).all()
        assert len(np.unique(counts)) > 1  # otherwise this test would show nothing
    env.close()
    # In company, alone and in another slot, with another number of workers and other timing.
    for slots, workers in ((START, 1), ({1: 0}, 5), ({0: 1}, 2)):
        again = repeated(record, slots, workers, **changes)
        for slot, member in slots.items():
            where = next(own for own, found in START.items() if found == member)
            assert_same(again.get_member(slot), ppo.get_member(where))
    # One step more of one environment and less of another is another training.
    step = SIZES["bptt"] if changes else 1
    most, least = record[0][1].argmax(), record[0][1].argmin()
    record[0][1][most] -= step
    record[0][1][least] += step
    other = repeated(record, {0: 0}, 2, **changes)
    assert not torch.equal(other.get_member(0)["weights"], ppo.get_member(0)["weights"])


def test_a_resumed_member_goes_on_with_its_record() -> None:
    env = ready_walks(waits=0.002)
    ppo = started(env, 2, START)
    ppo.train(env, 2)
    learner, state = ppo.get_member(2), env.get_member(2)
    ppo.train(env, 2)
    record, weights = env.get_member(2)[STEPS].numpy(), ppo.get_member(2)
    env.close()
    # In a new process: another program, another environment, another slot.
    env = ready_walks()
    again = started(env, 2, {})
    again.set_member(1, learner)
    env.set_member(1, state)
    assert not env.restarted(1)
    env.repeat_steps(1, record)
    again.train(env, 2)
    assert_same(again.get_member(1), weights)
    env.close()


COUNTS = np.array([12, 9, 1, 0, 7, 11, 3, 5], np.int32)  # add up to 4 * 12


@torch.no_grad()
def test_advantages_of_every_environment_are_those_of_a_loop_over_its_own_steps() -> None:
    """Against GAE in plain numbers, on the trajectory of a copy of each environment."""
    env = ready_walks(slots=2)
    ppo = started(env, 2, {0: 0}, running_scale=False)
    env.repeat_steps(0, COUNTS[None])
    rollout = ppo.rollout
    assert isinstance(rollout, AsyncRollout)
    rollout.collect(env, ppo.streams)
    rollout.estimate(ppo.numbers["gamma"], ppo.numbers["gae_lambda"])
    gamma, lam = (float(ppo.numbers[name][0]) for name in ("gamma", "gae_lambda"))
    learned = rollout.samples()
    actions, returns = (part[0].tolist() for part in (learned.actions[..., 0], learned.returns))
    # The transitions in the order in which they are learned: by step, then by environment.
    order = [(step, row) for step in range(12) for row in range(8) if step < COUNTS[row]]
    action = {place: int(own) for place, own in zip(order, actions, strict=True)}
    expected: dict[tuple[int, int], float] = {}
    ends = {"terminated": 0, "truncated": 0}
    for row, seed in enumerate(env.last_seeds(0)):
        copy, steps = Walk(), []
        seen, _ = copy.reset(seed=seed)
        for step in range(COUNTS[row]):
            after, reward, terminated, truncated, _ = copy.step(action[step, row])
            steps.append((value_of(ppo, seen), reward, value_of(ppo, after), terminated, truncated))
            ends["terminated"] += terminated
            ends["truncated"] += truncated and not terminated
            seen = copy.reset()[0] if terminated or truncated else after
        advantage = 0.0
        for step in reversed(range(COUNTS[row])):
            value, reward, after, terminated, truncated = steps[step]
            over = terminated or truncated
            error = np.float32(reward) + gamma * (0.0 if terminated else after) - value
            advantage = error + gamma * lam * (0.0 if over else advantage)
            expected[step, row] = advantage + value
    assert min(ends.values()) > 0
    np.testing.assert_allclose(returns, [expected[place] for place in order], rtol=1e-4, atol=1e-4)
    advantages = np.array(returns) - [steps_value(ppo, rollout, at) for at in range(48)]
    centred = (advantages - advantages.mean()) / (advantages.std(ddof=1) + 1e-4)
    np.testing.assert_allclose(learned.advantages[0], centred, rtol=1e-3, atol=1e-3)
    env.close()


def value_of(ppo: PPO, seen: Any) -> float:
    """Return the critic's value of an observation of member 0, by the module that it exports to."""
    module = ppo.population.critic
    obs = torch.zeros(ppo.shape.slots, 1, 3)
    obs[0, 0] = torch.from_numpy(np.asarray(seen))
    output, _ = module.forward(module.normalised(obs))
    return float(module.value(output)[0, 0, 0])


def steps_value(ppo: PPO, rollout: AsyncRollout, at: int) -> float:
    """Return the critic's value of a transition, whose observation is stored as it is."""
    return value_of(ppo, rollout.samples().obs[0, at].numpy())


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@torch.no_grad()
def test_sequences_begin_with_the_state_of_their_own_environment(cell: str) -> None:
    """Recurrent networks, run over the sequences that are learned, give what acting gave."""
    env = ready_walks(slots=2)
    ppo = started(env, 2, {0: 0}, recurrent=cell)
    shape, rollout = ppo.shape, ppo.rollout
    assert isinstance(rollout, AsyncRollout)
    for counts in ([12, 8, 4, 0, 8, 4, 4, 8], [4, 8, 4, 8, 0, 12, 8, 4]):
        env.repeat_steps(0, np.array([counts] * 2, np.int32))
        rollout.collect(env, ppo.streams)
        acted = rollout.samples().log_probs[0].clone()
        values = rollout._gathered(rollout._values[:, :-1])[0]
        rollout.estimate(ppo.numbers["gamma"], ppo.numbers["gae_lambda"])
        order = torch.arange(rollout.index.items).expand(2, 1, -1)
        batches = rollout.index.batches(order)
        ppo_batch = ppo._batch
        found, found_values, where = [], [], []
        for rows in batches:
            rollout.index.gather(rollout.states.learned, rows, ppo_batch)
            x = ppo.population.critic.inputs(ppo_batch.obs)
            (output, value), _ = ppo.population.pair.forward(x, ppo_batch.memories())
            policy = ppo._distribution(shape, output, ppo.population.actor.weights, None)
            found.append(policy.log_prob(ppo_batch.actions)[0])
            found_values.append(ppo.population.critic.value(value)[0, :, 0])
            where.append(rows.view(2, -1)[0])
        places = torch.cat(where)
        assert places.unique().numel() == shape.samples
        torch.testing.assert_close(torch.cat(found), acted[places], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            torch.cat(found_values), values.flatten()[places], rtol=1e-4, atol=1e-5
        )
        assert rollout.states.learned.starts[0].any()
    env.close()


def test_only_ready_environments_and_ppo_are_accepted() -> None:
    env = ExternalVecEnv(Walk, 2, 4, layout=Layout(8))
    ppo = started(env, 2, {0: 0})
    with pytest.raises(ValueError, match="no environments that are stepped one by one"):
        ppo.train(env, 1)
    shape = Shape.for_env(ExternalVecEnv("Pendulum-v1", 2, 4), algorithm="sac", async_envs=2)
    with pytest.raises(InputError, match="async_envs must be 0 for sac, not 2"):
        SAC(shape)
    with pytest.raises(InputError, match="async_envs must be 0 or a divisor of num_envs 4, not 3"):
        Shape.for_env(env, async_envs=3)


def test_states_of_other_environments_are_refused() -> None:
    env = ready_walks(slots=2)
    state = started(env, 2, {0: 0}).get_member(0)
    other = started(env, 1, {})
    with pytest.raises(InputError, match="async_envs is 2, not 1"):
        other.set_member(0, state)
    env.close()
