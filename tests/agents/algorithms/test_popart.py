"""Return scaling (PopArt): its arithmetic, and that results do not depend on the rewards' scale."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from elegantrl.agents.net import CriticPPO
from torch import Tensor

from sweepd.agents.algorithms.popart import scale_values
from sweepd.agents.algorithms.ppo import PPO, PPOParams
from sweepd.envs.core.vec_env import Step
from tests.agents.helpers import assert_same, shape_for
from tests.agents.toy_env import AbsentEnv, ToyEnv


class Paying(ToyEnv):
    """The toy environment with rewards multiplied by a factor, plus a constant."""

    times, plus = 1.0, 0.0

    def step(self, action: Tensor, out: Tensor | None = None) -> Step:
        step = super().step(action, out)
        return step._replace(reward=step.reward * self.times + self.plus)


def program(env: ToyEnv, members: dict[int, int], **changes: Any) -> PPO:
    """With return scaling in every member but member 0."""
    ppo = PPO(shape_for(env))
    for slot, member in members.items():
        params = PPOParams(gamma=0.9, popart_beta=0.05 * member, **changes)
        ppo.add_member(slot, params, 100 + member, 8, env.state_avg, env.state_std)
        env.streams.seed(slot, 200 + member)
    ppo.begin(env.reset())
    return ppo


def values(ppo: PPO, slot: int) -> Tensor:
    critic = CriticPPO([16, 16], 3, 2)
    critic.load_state_dict(ppo.export_member(slot)[1])
    found: Tensor = critic(torch.linspace(-2.0, 8.0, 15).view(5, 3)).detach()
    return found


@torch.no_grad()
def test_moments_follow_the_returns_and_values_stay_the_same() -> None:
    """Moments equal those in plain float64; the exported critic's values stay the same."""
    ppo = program(ToyEnv(3, 4), {0: 1, 1: 2, 2: 0})
    population = ppo.population
    generator = torch.Generator().manual_seed(0)
    avg, square = [0.0] * 2, [0.0] * 2
    for rollout in range(30):
        returns = 50.0 + 7.0 * torch.randn(3, 48, generator=generator, dtype=torch.float64) * (
            1 + rollout
        )
        rate = torch.tensor([[max(0.05 * member, 1 / (rollout + 1))] for member in (1, 2, 0)])
        before = [values(ppo, slot) for slot in range(3)]
        mean, variance = returns.mean(1, keepdim=True), returns.var(1, keepdim=True)
        scale_values(population, mean.float(), variance.float(), rate, population.popart[..., 0])
        for slot in range(2):
            share = float(rate[slot])
            own = float(mean[slot])
            avg[slot] += share * (own - avg[slot])
            square[slot] += share * (float(variance[slot]) + own**2 - square[slot])
            assert float(population.value_avg[slot]) == pytest.approx(avg[slot], rel=1e-4)
            assert float(population.value_std[slot]) == pytest.approx(
                (square[slot] - avg[slot] ** 2) ** 0.5, rel=1e-4
            )
            if rollout:
                torch.testing.assert_close(values(ppo, slot), before[slot], rtol=1e-4, atol=1e-2)
        assert torch.equal(values(ppo, 2), before[2])
    assert float(population.value_std[2]) == 1.0


def test_a_rollout_without_valid_transitions_keeps_the_moments() -> None:
    env = AbsentEnv(1, 4)
    ppo = program(env, {0: 10})
    ppo.train(env, 1)
    before = ppo.get_member(0)
    env.present = lambda: torch.zeros(4, dtype=torch.bool)  # type: ignore[method-assign]
    ppo.train(env, 1)
    for name in ("weights", "critic.value_avg", "critic.value_std"):
        assert torch.equal(before[name], ppo.get_member(0)[name])


@pytest.mark.parametrize("kind", [ToyEnv, AbsentEnv])
def test_the_moments_are_those_of_the_rollout(kind: type[ToyEnv]) -> None:
    env = kind(1, 4)
    ppo = program(env, {0: 1})
    ppo.train(env, 1)
    side, learned = ppo.rollout.transitions.side[0, :-1], ppo.rollout.transitions.valid
    returns = side[..., -1] if learned is None else side[..., -1][learned[0, :-1]]
    assert float(ppo.population.value_avg) == pytest.approx(float(returns.mean()), rel=1e-5)
    assert float(ppo.population.value_std) == pytest.approx(float(returns.std()), rel=1e-5)


def trained(times: float, *, popart: bool, rollouts: int = 4) -> dict[str, Tensor]:
    env = Paying(1, 4)
    env.times = times
    ppo = program(env, {0: int(popart)})
    ppo.train(env, rollouts)
    return ppo.get_member(0)


def test_results_do_not_depend_on_the_unit_of_rewards() -> None:
    """Rewards times a power of two give the same bits with scaling, and others without."""
    one, large, small = (trained(times, popart=True) for times in (1.0, 1024.0, 1.0 / 64))
    assert torch.equal(large["critic.value_std"], one["critic.value_std"] * 1024.0)
    for other in (large, small):
        assert torch.equal(one["weights"], other["weights"])
    plain, plain_large = (trained(times, popart=False)["weights"] for times in (1.0, 1024.0))
    assert float((plain - plain_large).abs().max()) > 1e-3


@pytest.mark.parametrize(("times", "plus"), [(0.0, 0.0), (0.0, 3.0), (torch.nan, 0.0)])
def test_rewards_without_a_scale_have_no_effect_on_others(times: float, plus: float) -> None:
    env = Paying(2, 4)
    alone = program(env, {1: 1})
    alone.train(env, 3)
    other = Paying(2, 4)
    ppo = program(other, {0: 2, 1: 1})
    step = other.step

    def paid(action: Tensor, out: Tensor | None = None) -> Step:
        made = step(action, out)
        made.reward[:4] = made.reward[:4] * times + plus
        return made

    other.step = paid  # type: ignore[method-assign]
    ppo.train(other, 3)
    assert_same(alone.get_member(1), ppo.get_member(1))
    assert ppo.diverged == [times != times, False]
    assert bool(ppo.population.flat.isfinite().all())


def test_a_resumed_member_continues_exactly() -> None:
    env, again = ToyEnv(2, 4), ToyEnv(2, 4)
    ppo = program(env, {0: 1, 1: 0})
    ppo.train(env, 2)
    state, place = ppo.get_member(0), env.get_member(0)
    ppo.train(env, 2)
    other = PPO(shape_for(again))
    again.reset(1)
    other.set_member(1, state)
    again.set_member(1, place)
    other.train(again, 2)
    assert_same(ppo.get_member(0), other.get_member(1))
