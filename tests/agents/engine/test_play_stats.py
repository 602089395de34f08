"""Figures of play against plain counting, for one and for two players per row, and resumed."""

from __future__ import annotations

from types import MappingProxyType

import pytest
import torch
from torch import Tensor

from sweepd.agents.algorithms.ppo import PPO
from sweepd.agents.engine.play_stats import play_names
from sweepd.envs.games.cartpole import CartPole, CartPoleParams
from sweepd.envs.games.opponents import Scripted
from sweepd.envs.games.tensor_game import NoParams
from tests.agents.helpers import member_params, shape_for
from tests.envs.games.toys import NIM_PLAYERS, Nim

SCALE = torch.tensor([2.0, 2.0, 2.0, 1.5, 0.5, 1.0])


class CountedNim(Nim):
    """Nim in which decisions on the first and the last pile are counted."""

    counted = MappingProxyType({"first": 0, "last": 2})


def game(members: int, *, opponents: bool) -> CountedNim:
    others = Scripted(NIM_PLAYERS, members) if opponents else None
    return CountedNim([NoParams()] * members, 4, opponents=others)


def start(env: Nim, members: dict[int, int]) -> PPO:
    ppo = PPO(shape_for(env, horizon=20))
    for slot, member in members.items():
        ppo.add_member(slot, member_params(member), 100 + member, 20, SCALE, SCALE)
    env.reset([200 + members[slot] if slot in members else None for slot in range(env.num_members)])
    ppo.begin(env.observe())
    return ppo


@pytest.mark.parametrize("opponents", [False, True])
def test_figures_equal_plain_counting(opponents: bool) -> None:
    env = game(2, opponents=opponents)
    ppo = start(env, {0: 0, 1: 3})
    rollout = ppo.rollout
    rollout.collect(env, ppo.streams)
    found = {name: float(figure[1]) for name, figure in ppo.play_stats().items()}
    first = rollout.transitions.actions[1, :-1, :, 0].flatten().tolist()
    masks = rollout.transitions.masks
    assert masks is not None
    decided = [opponents is False] * len(first)
    if opponents:
        decided = rollout._present[1, :-1].flatten().tolist()
    own = [option for option, counts in zip(first, decided, strict=True) if counts]
    ends = rollout._terminated[1].flatten().tolist()
    assert 0 < sum(ends) < len(own) < len(first) + 1
    wanted = {
        "illegal": 0.0,
        "share_first": own.count(0) / len(own),
        "share_last": own.count(2) / len(own),
        "decisions_per_game": len(own) / sum(ends),
    }
    if opponents:
        wanted["truncated"] = 0.0
    else:
        last = [
            (reward[0] > reward[1], reward[0] < reward[1])
            for reward, end in zip(rollout.rewards[1].flatten(0, 1).tolist(), ends, strict=True)
            if end
        ]
        wanted["won_first"] = sum(one for one, _ in last) / len(last)
        wanted["won_second"] = sum(other for _, other in last) / len(last)
    # Of the first choice, from the masked outputs; of the second, it may depend on the first.
    logits = rollout._outputs[1, :, :, :3].masked_fill(~masks[1, :-1, :, :3], -torch.inf)
    entropy = torch.distributions.Categorical(logits=logits).entropy().flatten()
    wanted["entropy_0"] = float(entropy[torch.tensor(decided)].mean())
    assert set(found) == {*wanted, "entropy_1"}
    for name, number in wanted.items():
        assert found[name] == pytest.approx(number, rel=1e-5), name
    assert 0 < found["entropy_1"] < 1.0987
    assert tuple(found) == play_names(env)
    # As a study names them before it has an environment with opponents.
    assert tuple(found) == play_names(game(1, opponents=False), opponents=opponents)


@pytest.mark.parametrize("opponents", [False, True])
def test_figures_are_the_same_in_company_and_after_a_resume(opponents: bool) -> None:
    def figures(ppo: PPO, slot: int) -> list[Tensor]:
        return [figure[slot] for figure in ppo.play_stats().values()]

    env = game(2, opponents=opponents)
    ppo = start(env, {0: 1})
    ppo.train(env, 2)
    between = ppo.get_member(0), env.get_member(0)
    ppo.train(env, 1)
    alone = figures(ppo, 0)
    env = game(3, opponents=opponents)
    ppo = start(env, {0: 2, 2: 3})
    ppo.set_member(1, between[0])
    env.set_member(1, between[1])
    ppo.train(env, 1)
    assert all(torch.equal(*both) for both in zip(alone, figures(ppo, 1), strict=True))
    assert not all(torch.equal(*both) for both in zip(alone, figures(ppo, 0), strict=True))


def test_illegal_actions_are_counted_from_the_latch() -> None:
    env = game(2, opponents=False)
    ppo = start(env, {0: 0, 1: 1})
    env.draw(1)
    # A fourth stone: only the second row of member 1 is illegal for certain.
    legal = torch.stack([row.byte().argmax() for row in env.action_mask(torch.zeros(8, 0).long())])
    action = torch.stack((legal, torch.zeros_like(legal)), 1)
    action[5] = torch.tensor([0, 7])
    env.step(action)
    ppo.rollout.collect(env, ppo.streams)
    assert ppo.play_stats()["illegal"].tolist() == [0.0, 0.25]


def test_other_environments_have_no_figures() -> None:
    assert play_names(CartPole([CartPoleParams()], 4)) == ()
