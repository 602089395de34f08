"""Training on the crypto market: alone, with other members, in another slot, after a checkpoint."""

from __future__ import annotations

import pytest
import torch

from sweepd.agents.algorithms.ppo import PPO, Shape
from sweepd.envs.crypto.data.demo_market import make_planted_market
from sweepd.envs.crypto.env import CryptoEnv
from sweepd.envs.crypto.market import Market, make_market, observation_normaliser
from sweepd.envs.crypto.params import EnvParams
from tests.agents.helpers import assert_same, member_params

SLOTS, ENVS, LOOKBACK = 3, 4, 2


@pytest.fixture(scope="module")
def market() -> Market:
    return make_market(make_planted_market(3, assets=3, bars=1_500))


def env_params(member: int) -> EnvParams:
    return EnvParams(
        action_scale=0.1 + 0.1 * member,
        lookback=1 + member % 2,
        episode_bars=11 + 5 * member,
        trailing_stop=0.02 * (member % 2),
        time_decay_floor=(1.0, 0.4)[member % 2],
        alpha_weight=0.2 * member,
        drawdown_penalty=0.1 * member,
    )


def windows(market: Market, member: int) -> list[tuple[int, int]]:
    first = market.first_bar(LOOKBACK)
    return [(first + 50 * member, first + 300 + 50 * member), (first + 600, first + 900)]


def begin(market: Market, members: dict[int, int]) -> tuple[PPO, CryptoEnv]:
    who = [
        members.get(slot, 0) for slot in range(SLOTS)
    ]  # an empty slot steps along with anyone's settings
    params, ground = (
        [env_params(member) for member in who],
        [windows(market, member) for member in who],
    )
    env = CryptoEnv(market, params, ground, ENVS, max_lookback=LOOKBACK, privileged_age=True)
    shape = Shape(
        state_dim=env.state_dim,
        action_dim=env.action_dim,
        privileged_dim=1,
        slots=SLOTS,
        net_width=16,
        num_envs=ENVS,
        horizon=16,
        minibatch=32,
        epochs=2,
    )
    ppo = PPO(shape)
    for slot, member in members.items():
        normaliser = observation_normaliser(
            market, windows(market, member), env_params(member).lookback, LOOKBACK
        )
        ppo.add_member(slot, member_params(member), member, 6, *normaliser)
    ppo.begin(
        env.reset([100 + members[slot] if slot in members else None for slot in range(SLOTS)])
    )
    return ppo, env


def assert_same_rows(one: CryptoEnv, member: int, other: CryptoEnv, slot: int) -> None:
    """Compare the member's money, positions and stream.

    Fields that are only read with stops, or that depend on how far ahead starts are drawn, are left
    out: the batch decides whether they exist.
    """
    states = (one.get_member(member), other.get_member(slot))
    names = ("cash", "holdings", "stream", "steps_left")
    assert_same(*({name: state[name] for name in names} for state in states))


@pytest.mark.parametrize("member", [1, 2])
def test_the_same_bits_in_any_slot_with_any_other_members(market: Market, member: int) -> None:
    alone, alone_env = begin(market, {0: member})
    alone.train(alone_env, 4)
    for members in ({2: member, 0: 3, 1: 4}, {1: member, 2: 3}):
        slot = next(slot for slot, who in members.items() if who == member)
        ppo, env = begin(market, members)
        ppo.train(env, 4)
        assert_same(alone.get_member(0), ppo.get_member(slot))
        assert_same_rows(alone_env, 0, env, slot)


def test_a_checkpoint_resumes_exactly_in_another_slot(market: Market) -> None:
    straight, straight_env = begin(market, {0: 1, 1: 2})
    straight.train(straight_env, 5)
    half, half_env = begin(market, {0: 1, 1: 2})
    half.train(half_env, 2)
    ppo, env = begin(market, {0: 4, 1: 3})
    ppo.train(env, 1)
    env.configure_member(2, env_params(1), windows(market, 1))
    env.set_member(2, half_env.get_member(0))
    ppo.set_member(2, half.get_member(0))
    ppo.train(env, 3)
    assert_same(straight.get_member(0), ppo.get_member(2))
    assert_same_rows(straight_env, 0, env, 2)


def test_actions_of_diverged_members_never_reach_the_market(market: Market) -> None:
    calm, calm_env = begin(market, {0: 1, 1: 2})
    calm.train(calm_env, 3)
    ppo, env = begin(market, {0: 1, 1: 2, 2: 3})
    actor = ppo.population.actor
    actor.weights[f"{next(iter(actor.spec.heads))}.weight"].data[2] = torch.inf
    ppo.train(env, 3)
    assert ppo.diverged == [False, False, True]
    assert not bool(env.faults().any())
    assert_same(calm.get_member(0), ppo.get_member(0))
