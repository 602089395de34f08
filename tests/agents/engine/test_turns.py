"""Several players in turns in every row: advantages per player, bits, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sweepd.agents.algorithms.ppo import PPO
from sweepd.agents.algorithms.table import get_algorithm
from sweepd.agents.engine.advantages import Experience, estimate, estimate_in_turns
from sweepd.envs.games.opponents import Scripted
from sweepd.envs.games.tensor_game import NoParams
from sweepd.envs.support.errors import InputError, RunError
from tests.agents.helpers import assert_same, member_params, shape_for
from tests.envs.games.toys import NIM_PLAYERS, Nim

SCALE = torch.tensor([2.0, 2.0, 2.0, 1.5, 0.5, 1.0])
# The same without the column that tells the seat, which policies per seat read as it is.
AVG, STD = SCALE.clone(), SCALE.clone()
AVG[4], STD[4] = 0.0, 1.0


def nim(members: int, *, opponents: bool = False) -> Nim:
    others = Scripted(NIM_PLAYERS, members) if opponents else None
    return Nim([NoParams()] * members, 4, opponents=others)


def start(env: Nim, members: dict[int, int], **changes: Any) -> PPO:
    """Return a program with member `members[slot]` in each slot; it decides params and seeds."""
    ppo = PPO(shape_for(env, **changes))  # type: ignore[arg-type]
    for slot, member in members.items():
        ppo.add_member(slot, member_params(member), 100 + member, 20, AVG, STD)
    env.reset([200 + members[slot] if slot in members else None for slot in range(env.num_members)])
    ppo.begin(env.observe())
    return ppo


def plain_advantages(
    rewards: list[list[float]],
    values: list[float],
    done: list[bool],
    mover: list[int],
    gamma: float,
    lam: float,
) -> list[float | None]:
    """By the definition, for one row: None where the outcome is not in the rollout."""
    found: list[float | None] = [None] * len(done)
    for player in (0, 1):
        later: float | None = None  # the advantage of the player's next decision in the episode
        for step in reversed(range(len(done))):
            if mover[step] != player:
                continue
            reward, at = 0.0, step
            while True:
                reward += rewards[at][player]
                if done[at]:
                    found[step] = reward - values[step]
                    break
                at += 1
                if mover[at] == player:
                    error = reward + gamma * values[at] - values[step]
                    found[step] = error + gamma * lam * (later or 0.0)
                    break
                if at == len(done):
                    break
            later = found[step]
    return found


rows = st.integers(1, 12).flatmap(
    lambda steps: st.tuples(
        st.lists(st.tuples(*[st.integers(-3, 3)] * 2), min_size=steps, max_size=steps),
        st.lists(st.integers(-3, 3), min_size=steps + 1, max_size=steps + 1),
        st.lists(st.booleans(), min_size=steps, max_size=steps),
        st.lists(st.integers(0, 1), min_size=steps + 1, max_size=steps + 1),
    )
)


def estimated(
    rewards: Tensor, values: Tensor, done: Tensor, mover: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Advantages and valid transitions of rows, (T, rows) each."""
    present = mover.unsqueeze(-1) == torch.arange(2)
    exp = Experience(
        rewards[None], values[None], torch.zeros(done.shape)[None], done[None], present[None]
    )
    advantages, valid = torch.zeros_like(exp.values), torch.zeros_like(present[None, ..., 0])
    numbers = (torch.full((1, 1, 1), gamma), torch.full((1, 1, 1), lam))
    estimate_in_turns(exp, *numbers, advantages, valid)
    assert not bool(valid[0, -1].any() | advantages[0, -1].any())
    return advantages[0, :-1], valid[0, :-1]


@settings(deadline=None, max_examples=200)
@given(rows, st.sampled_from([1.0, 0.9]), st.sampled_from([1.0, 0.8, 0.0]))
def test_advantages_equal_the_definition(row: Any, gamma: float, lam: float) -> None:
    rewards, values, done, mover = row
    wanted = plain_advantages(rewards, values, done, mover, gamma, lam)
    # Beside a row of other numbers, which must not matter.
    other = torch.ones(len(done), 1, dtype=torch.bool)
    found, valid = estimated(
        torch.stack((torch.tensor(rewards).float(), torch.full((len(done), 2), 7.0)), 1),
        torch.stack((torch.tensor(values).float(), torch.full((len(values),), 5.0)), 1),
        torch.cat((torch.tensor(done).unsqueeze(1), other), 1),
        torch.stack((torch.tensor(mover), torch.zeros(len(mover), dtype=torch.int64)), 1),
        gamma,
        lam,
    )
    for step, advantage in enumerate(wanted):
        assert bool(valid[step, 0]) == (advantage is not None)
        assert float(found[step, 0]) == pytest.approx(advantage or 0.0, abs=1e-4)
    assert found[:, 1].tolist() == [2.0] * len(done)


@settings(deadline=None, max_examples=200)
@given(rows, st.sampled_from([1.0, 0.9]), st.sampled_from([0.8, 0.0]))
def test_each_seat_learns_as_alone_on_its_own_decisions(row: Any, gamma: float, lam: float) -> None:
    """Joined to a rollout of its own decisions alone, a seat gets GAE's usual advantages."""
    rewards, values, done, mover = row
    steps = len(done)
    found, valid = estimated(
        torch.tensor(rewards).float().unsqueeze(1),
        torch.tensor(values).float().unsqueeze(1),
        torch.tensor(done).unsqueeze(1),
        torch.tensor(mover).unsqueeze(1),
        gamma,
        lam,
    )
    for player in (0, 1):
        own = [step for step in range(steps) if mover[step] == player]
        if not own:
            continue
        bounds = [*own, steps]
        paid, ended = [], []
        for first, after in zip(own, bounds[1:], strict=True):
            end = next((at for at in range(first, after) if done[at]), None)
            last = after - 1 if end is None else end
            paid.append(float(sum(rewards[at][player] for at in range(first, last + 1))))
            ended.append(end is not None)
        # The last decision's outcome is unknown, if neither the end nor the next one is there.
        known = ended[-1] or mover[steps] == player
        count = len(own) - (not known)
        if not count:
            continue
        following = [*own, steps][count]
        exp = Experience(
            torch.tensor(paid[:count]).view(1, -1, 1),
            torch.tensor([float(values[at]) for at in (*own[:count], following)]).view(1, -1, 1),
            torch.zeros(1, count, 1),
            torch.tensor(ended[:count]).view(1, -1, 1),
            torch.ones(1, count + 1, 1, dtype=torch.bool),
        )
        alone = torch.zeros(1, count + 1, 1)
        if not known:
            # The unknown decision's own advantage is 0, as at the end of a rollout.
            assert not bool(valid[own[-1], 0])
        estimate(exp, torch.full((1, 1, 1), gamma), torch.full((1, 1, 1), lam), alone)
        assert bool(valid[own[:count], 0].all())
        assert torch.allclose(found[own[:count], 0], alone[0, :-1, 0], atol=1e-4)


@torch.no_grad()
def test_a_rollout_records_who_moves_and_what_both_get() -> None:
    env = nim(2)
    ppo = start(env, {0: 0, 1: 3}, horizon=20)
    assert (ppo.shape.players, ppo.shape.byte_obs) == (2, True)
    rollout = ppo.rollout
    rollout.collect(env, ppo.streams)
    env.check()
    assert rollout.transitions.obs.dtype == torch.uint8
    rollout.estimate(ppo.numbers["gamma"], ppo.numbers["gae_lambda"])
    mover = rollout._present.long().argmax(-1)
    # Column 4 of an observation is the seat that sees it.
    assert torch.equal(mover, rollout.transitions.obs[..., 4].long())
    assert bool((rollout._present.sum(-1) == 1).all())
    valid = rollout.transitions.valid
    assert valid is not None
    gamma, lam = float(ppo.numbers["gamma"][1]), float(ppo.numbers["gae_lambda"][1])
    own, returns = [], []
    for row in range(4):
        wanted = plain_advantages(
            rollout.rewards[1, :, row].tolist(),
            rollout._values[1, :, row].tolist(),
            rollout._terminated[1, :, row].tolist(),
            mover[1, :, row].tolist(),
            gamma,
            lam,
        )
        assert valid[1, :-1, row].tolist() == [number is not None for number in wanted]
        own += [number for number in wanted if number is not None]
        returns += [
            number + float(value)
            for number, value in zip(wanted, rollout._values[1, :-1, row], strict=True)
            if number is not None
        ]
    counts = valid[1, :-1].t()
    normal = (torch.tensor(own) - torch.tensor(own).mean()) / (torch.tensor(own).std() + 1e-4)
    side = rollout.transitions.side[1, :-1].transpose(0, 1)
    torch.testing.assert_close(side[..., -2][counts], normal, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(side[..., -1][counts], torch.tensor(returns), rtol=1e-3, atol=1e-4)
    assert 0 < int((~counts).sum()) <= 4


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"policies": "per-seat", "autoregressive": False},
        {"recurrent": "gru", "bptt": 4},
        {"recurrent": "lstm", "bptt": 6, "minibatch": 24},
    ],
    ids=["shared", "per seat", "gru", "lstm"],
)
@pytest.mark.parametrize("opponents", [False, True])
def test_a_member_is_the_same_alone_in_company_in_another_slot_and_resumed(
    opponents: bool, shape: dict[str, Any]
) -> None:

    def states(env: Nim, ppo: PPO, slot: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return ppo.get_member(slot), env.get_member(slot)

    # With another, as one slot alone rounds differently (`FEWEST_SLOTS`).
    env = nim(2, opponents=opponents)
    ppo = start(env, {0: 1}, **shape)
    ppo.train(env, 2)
    between = states(env, ppo, 0)
    ppo.train(env, 2)
    alone = states(env, ppo, 0)
    env = nim(3, opponents=opponents)
    ppo = start(env, {0: 3, 1: 2, 2: 1}, **shape)
    ppo.train(env, 4)
    for one, other in zip(alone, states(env, ppo, 2), strict=True):
        assert_same(one, other)
    env = nim(3, opponents=opponents)
    ppo = start(env, {0: 2, 2: 3}, **shape)
    ppo.train(env, 1)
    ppo.set_member(1, between[0])
    env.set_member(1, between[1])
    ppo.train(env, 2)
    for one, other in zip(alone, states(env, ppo, 1), strict=True):
        assert_same(one, other)


def test_it_learns_to_win() -> None:
    """Self-play beats the players that it has never met."""
    env = Nim([NoParams()] * 2, 64)
    ppo = PPO(shape_for(env, num_envs=64, horizon=32, minibatch=256, net_width=32, epochs=3))  # type: ignore[arg-type]
    for slot in range(2):
        params = member_params(
            0, learning_rate=2e-3, gamma=1.0, entropy_coef=0.01, weight_average=0.0
        )
        ppo.add_member(slot, params, slot, 40, SCALE, SCALE)
    env.reset([1, 2])
    ppo.begin(env.observe())
    act = ppo.act_fn()

    def points(act: Any) -> list[float]:
        versus = Nim([NoParams()] * 2, 400, opponents=Scripted(NIM_PLAYERS, 2))
        obs = versus.reset([5, 6])
        for _ in range(40):
            obs = versus.step(act(obs, legal=versus.action_mask)).obs
        results = versus.results()
        return (results.points.sum(1) / results.games.sum(1)).tolist()

    before = points(act)
    ppo.train(env, 40)
    after = points(ppo.act_fn())
    assert max(before) < 0.62
    assert min(after) > 0.65


def test_a_fault_stops_training_before_its_data_is_used() -> None:
    env = nim(2)
    ppo = start(env, {0: 0, 1: 1})
    ppo.train(env, 1)
    before = ppo.population.flat.clone()
    env.mask = lambda state, chosen: (  # type: ignore[method-assign]
        Nim.mask(env, state, chosen) & (state["piles"].sum(1, keepdim=True) != 3)
    )
    with pytest.raises(RunError, match=r"no option is legal\. The position before it: piles"):
        ppo.train(env, 3)
    assert torch.equal(before, ppo.population.flat)


def test_what_is_refused() -> None:
    env = nim(2)
    with pytest.raises(InputError, match=r"'shared' where .* networks are recurrent"):
        shape_for(env, policies="per-seat", autoregressive=False, recurrent="gru", bptt=4)  # type: ignore[arg-type]
    for name in ("d3qn", "elegantrl:ppo"):
        with pytest.raises(InputError, match=r"Nim has .*players that act in turns, .*: use ppo"):
            get_algorithm(name).supports.check_env(name, env)
    other = nim(2, opponents=True)
    ppo = start(other, {0: 0, 1: 1})
    with pytest.raises(ValueError, match="'players': 2"):
        ppo.train(env, 1)
