"""The running scale of observations: its numbers, its bits, and where they are used."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sweepd.agents.algorithms.ppo import PPO
from sweepd.agents.engine.program import Program
from sweepd.agents.engine.running_scale import RunningScale, _sum_of_rows
from sweepd.agents.networks.normaliser import CLIP
from sweepd.agents.networks.shape import Shape
from sweepd.agents.policy.bank import Bank
from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.members import actor_of
from sweepd.envs.support.errors import InputError
from tests.agents import helpers, off_policy_helpers
from tests.agents.toy_env import AbsentEnv, ChoiceEnv, ImageEnv, ToyEnv

SLOTS, ENVS = 4, 5


def started(env: ToyEnv, members: dict[int, int], algorithm: str) -> Any:
    if algorithm == "ppo":
        return helpers.start(env, members, running_scale=True), env
    return off_policy_helpers.started(env, members, running_scale=True)


def made(algorithm: str) -> ToyEnv:
    kind = {"ppo": ToyEnv, "sac": ToyEnv, "d3qn": ChoiceEnv}[algorithm]
    return kind(SLOTS, ENVS, privileged=algorithm == "ppo")


def trained(members: dict[int, int], algorithm: str, rollouts: int) -> tuple[Program, ToyEnv]:
    program, env = started(made(algorithm), members, algorithm)
    program.train(env, rollouts)
    return program, env


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("algorithm", ["ppo", "sac", "d3qn"])
def test_a_member_has_the_same_bits_in_any_company_and_after_resuming(
    algorithm: str, threads: int
) -> None:
    alone, _ = trained({1: 2}, algorithm, 4)
    torch.set_num_threads(threads)
    crowd, _ = trained({0: 1, 3: 2, 2: 5}, algorithm, 4)
    helpers.assert_same(alone.get_member(1), crowd.get_member(3))
    # Saved after two rollouts, and continued in another slot beside others.
    half, half_env = trained({1: 2}, algorithm, 2)
    program, env = started(made(algorithm), {0: 3, 3: 1}, algorithm)
    program.train(env, 1)
    program.set_member(2, half.get_member(1))
    env.set_member(2, half_env.get_member(1))
    program.train(env, 2)
    helpers.assert_same(alone.get_member(1), program.get_member(2))


def test_the_moments_are_those_of_all_observations_and_random_play() -> None:
    shape = Shape(state_dim=3, action_dim=2, slots=2, num_envs=5, horizon=7, minibatch=5)
    scale, generator = RunningScale(shape, torch.device("cpu")), torch.Generator().manual_seed(0)
    avg, std = torch.tensor([1.0, -2.0, 1e4]), torch.tensor([0.5, 1.0, 3.0])
    scale.start(0, avg, std)
    # Random play counts as much as a rollout: as 35 observations, half of them above the mean.
    count = shape.samples
    seen = [torch.cat((avg - std, avg + std)).view(2, 3).repeat(count, 1)[:count].double()]
    seen[0][-1] = avg  # an odd number: 17 pairs, and the rest in the mean
    squares = count * std.double().square()
    for _ in range(5):
        obs = torch.randn(2, 35, 3, generator=generator) * 4 + torch.tensor([9.0, 0.0, 1e4])
        valid = torch.rand(2, 35, generator=generator) < 0.7
        scale.observe(obs, valid)
        seen.append(obs[0][valid[0]].double())
    own = torch.cat(seen[1:]).numpy()
    total = count + len(own)
    mean = (count * avg.double().numpy() + own.sum(0)) / total
    spread = squares.numpy() + count * np.square(avg.double().numpy() - mean)
    spread += np.square(own - mean).sum(0)
    found_avg, found_std = torch.zeros(2, 1, 3), torch.ones(2, 1, 3)
    scale.write(found_avg, found_std)
    np.testing.assert_allclose(found_avg[0, 0].numpy(), mean, rtol=1e-6)
    np.testing.assert_allclose(found_std[0, 0].numpy(), np.sqrt(spread / total), rtol=1e-6)
    # An empty slot stays as it is.
    assert found_avg[1].abs().sum() == 0
    assert (found_std[1] == 1).all()


def test_constant_and_rare_columns_stay_within_bounds() -> None:
    """A column that never changed, then does; and the column that tells the seat."""
    shape = Shape(
        state_dim=3, action_dim=2, slots=2, num_envs=8, horizon=16, minibatch=8, seat_column=2
    )
    scale = RunningScale(shape, torch.device("cpu"))
    scale.start(0, torch.tensor([5.0, 0.0, 0.0]), torch.ones(3))
    obs = torch.zeros(2, 128, 3)
    obs[..., 0] = 5.0
    obs[..., 2] = 1.0
    for _ in range(99):
        scale.observe(obs)
    avg, std = torch.zeros(2, 1, 3), torch.ones(2, 1, 3)
    scale.write(avg, std)
    torch.testing.assert_close(avg[0, 0], torch.tensor([5.0, 0.0, 0.0]))
    torch.testing.assert_close(std[0, 0], torch.tensor([0.1, 0.1, 1.0]))  # 1/sqrt(99 + 1)


def test_columns_of_a_tiny_unit_are_scaled_like_others() -> None:
    shape = Shape(state_dim=2, action_dim=2, slots=1, num_envs=5, horizon=8, minibatch=5)
    scale = RunningScale(shape, torch.device("cpu"))
    unit = torch.tensor([1.0, 1e-9])
    scale.start(0, torch.zeros(2), unit)
    obs = torch.randn(1, 40, 1, generator=torch.Generator().manual_seed(0)) * unit
    scale.observe(obs)
    avg, std = torch.zeros(1, 1, 2), torch.zeros(1, 1, 2)
    scale.write(avg, std)
    for found in (avg, std):
        assert float(found[0, 0, 1]) == pytest.approx(1e-9 * float(found[0, 0, 0]), rel=1e-5)


def test_a_cleared_slot_is_empty_and_constant_columns_have_a_deviation() -> None:
    shape = Shape(state_dim=2, action_dim=1, slots=2, num_envs=2, horizon=4, minibatch=2)
    scale = RunningScale(shape, torch.device("cpu"))
    for slot in (0, 1):
        scale.start(slot, torch.tensor([3.0, 1.0]), torch.tensor([0.0, 2.0]))
    scale.clear(0)
    scale.observe(torch.tensor([3.0, 5.0]).expand(2, 8, 2))
    avg, std = torch.zeros(2, 1, 2), torch.zeros(2, 1, 2)
    scale.write(avg, std)
    assert not scale.moments[0].any()
    assert avg[0].tolist() == [[0.0, 0.0]]
    assert std[0].tolist() == [[1.0, 1.0]]
    assert avg[1, 0, 0] == 3.0
    assert std[1, 0, 0] > 0.0  # what is divided by


@pytest.mark.parametrize("rows", [1, 2, 3, 8, 21])
def test_rows_are_added_in_pairs_of_a_fixed_order(rows: int) -> None:
    values = (
        torch.rand(2, rows, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(rows))
        ** 9
    )

    def pairs(part: list[float]) -> float:
        while len(part) > 1:
            half = len(part) // 2
            sums = [part[i] + part[half + i] for i in range(half)]
            part = sums + part[2 * half :]
        return part[0]

    expected = [[pairs(values[g, :, c].tolist()) for c in range(3)] for g in range(2)]
    assert _sum_of_rows(values).tolist() == expected  # to the bit
    # The statistics are made of these sums: nothing else of them depends on the order of rows.
    shape = Shape(state_dim=3, action_dim=1, slots=2, num_envs=1, horizon=rows, minibatch=rows)
    scale = RunningScale(shape, torch.device("cpu"))
    for slot in (0, 1):
        scale.start(slot, torch.zeros(3), torch.ones(3))
    scale.observe(values.float())
    away = values.float().double()
    sums, squares = (
        [[pairs(part[g, :, c].tolist()) for c in range(3)] for g in range(2)]
        for part in (away, away.square())
    )
    means = torch.tensor(sums, dtype=torch.float64) / rows
    share = rows / (2.0 * rows)
    assert torch.equal(scale.moments[:, 1], means * share)
    own = torch.tensor(squares, dtype=torch.float64) - rows * means.square()
    assert torch.equal(
        scale.moments[:, 2], rows + own.clamp_min(0.0) + means.square() * rows * share
    )


def test_numbers_that_are_not_finite_leave_the_statistics_alone() -> None:
    shape = Shape(state_dim=2, action_dim=2, slots=2, num_envs=2, horizon=2, minibatch=2)
    scale = RunningScale(shape, torch.device("cpu"))
    for slot in range(2):
        scale.start(slot, torch.zeros(2), torch.ones(2))
    before = scale.moments.clone()
    obs = torch.ones(2, 4, 2)
    obs[1, 0, 0] = torch.nan
    scale.observe(obs)
    assert torch.equal(scale.moments[1], before[1])
    assert scale.moments[0, 0, 0] == 8


def test_observations_of_absent_agents_do_not_count() -> None:
    env = AbsentEnv(SLOTS, ENVS)
    ppo = helpers.start(env, {0: 1}, running_scale=True)
    assert ppo.scale is not None
    ppo.train(env, 2)
    seen, present = ppo.rollout.seen()
    assert present is not None
    assert 0 < int(present[0].sum()) < present.shape[1]
    others = ppo.scale.moments.clone()
    ppo.scale.observe(torch.where(present.unsqueeze(-1), seen, 1e6), present)
    after = ppo.scale.moments.clone()
    ppo.scale.moments.copy_(others)
    ppo.scale.observe(seen, present)
    assert torch.equal(after, ppo.scale.moments)


def test_acting_and_gradient_steps_of_a_rollout_see_one_scale() -> None:
    """So the probability ratios of the first gradient step are 1, also while the scale moves."""
    env = made("ppo")
    ppo = helpers.start(env, {0: 1, 2: 3}, running_scale=True, epochs=1, minibatch=ENVS * 12)
    assert ppo.shape.minibatch == ppo.shape.samples
    for _ in range(3):
        before = ppo.population.critic.normalisers["state_std"].clone()
        stats = ppo.train(env, 1)[-1]
        assert stats.approx_kl[[0, 2]].abs().max() < 1e-6
        assert stats.clip_fraction[[0, 2]].max() == 0
    assert not torch.equal(before, ppo.population.critic.normalisers["state_std"])


def far_rows(program: Program) -> Tensor:
    """Return observations of which many are beyond the bound."""
    size = SLOTS, 6, program.shape.obs_dim
    return torch.randn(size, generator=torch.Generator().manual_seed(5)) * 200


@pytest.mark.parametrize("algorithm", ["ppo", "sac", "d3qn"])
def test_exported_policies_act_as_the_members_do(algorithm: str) -> None:
    """Programs, frozen policies one row at a time and in batches, and banks: all of them clip."""
    program, _ = trained({0: 1, 1: 2, 2: 3, 3: 4}, algorithm, 2)
    if isinstance(program, PPO):  # opponents play with the present weights, not with their mean
        program.population.averaged.fill_(False)
    rows = far_rows(program)
    states = rows[..., : program.shape.state_dim]
    made = program.act_fn()(rows.flatten(0, 1)).view(SLOTS, 6, -1)
    weights = program.acting_weights()
    assert program.actor_spec.clip == CLIP
    bank = Bank(program.actor_spec, SLOTS, 1, torch.device("cpu"))
    bank.put(0, weights)
    place, noise = torch.zeros(SLOTS, 6, dtype=torch.int64), torch.zeros(SLOTS, 6, 9).double()
    played, _ = bank.act(states, place, noise, torch.zeros(SLOTS, 6, dtype=torch.bool), None)
    torch.testing.assert_close(played.view(made.shape), made)
    for slot in range(SLOTS):
        actor = actor_of(program, slot)
        unbound = actor._replace(spec=replace(actor.spec, clip=None))
        policy, free = (FrozenPolicy([own]) for own in (actor, unbound))
        batch = policy.act_batch(states[slot])
        torch.testing.assert_close(
            batch.view(6, -1).double(), made[slot].double(), rtol=0, atol=2e-6
        )
        for row, action in zip(states[slot], batch.view(6, -1), strict=True):
            alone = torch.from_numpy(policy.act(row.numpy()))
            torch.testing.assert_close(alone, action.double(), rtol=0, atol=1.1e-6)
        if algorithm != "d3qn":  # a clipped row may still choose the same option
            assert not torch.equal(free.act_batch(states[slot]), batch)


def test_a_policy_with_a_fixed_scale_can_be_trained_on() -> None:
    """Its scale is where the running one starts."""
    env = made("ppo")
    old = helpers.start(env, {0: 1})
    old.train(env, 1)
    actor, _ = old.export_member(0)
    assert old.actor_spec.clip is None
    ppo = helpers.start(made("ppo"), {0: 1}, running_scale=True)
    ppo.import_actor(0, actor)
    assert ppo.scale is not None
    avg, std = torch.zeros(SLOTS, 1, 3), torch.ones(SLOTS, 1, 3)
    ppo.scale.write(avg, std)
    columns = actor["state_avg"].numel()
    assert torch.equal(avg[0, 0, :columns], actor["state_avg"])
    torch.testing.assert_close(std[0, 0, :columns], actor["state_std"])


def test_bytes_and_algorithms_without_it_are_refused() -> None:
    with pytest.raises(InputError, match="running_scale must be false"):
        helpers.shape_for(ImageEnv(SLOTS, ENVS), running_scale=True)
    env = made("ppo")
    fixed = PPO(helpers.shape_for(env))
    state = helpers.start(env, {0: 1}, running_scale=True).get_member(0)
    with pytest.raises(InputError):
        fixed.set_member(0, state)
