"""Members with a policy for each seat: saved, frozen, as opponents, and exactly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sweepd.agents.algorithms.ppo import PPO, PPOParams
from sweepd.agents.networks.shape import Shape
from sweepd.agents.networks.spec import SECOND_SEAT, NetSpec
from sweepd.agents.policy.duels import FrozenEntrant
from sweepd.agents.policy.exact import nash_conv, plans
from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.members import Member, actor_of, load_members, save_members
from sweepd.agents.policy.roster import Champion, Roster
from sweepd.envs.core.env_spec import EnvSpec
from sweepd.envs.games.card_duel.game import CardDuel, CardDuelParams
from sweepd.envs.games.tensor_game import NoParams, TensorGame
from sweepd.envs.support.errors import InputError
from tests.agents.helpers import assert_same
from tests.agents.policy.test_exact import tree_of
from tests.agents.policy.test_exact_league import actor
from tests.envs.games.toys import NIM_PLAYERS, Nim

GAMES = 6


def program(env: TensorGame, **changes: Any) -> PPO:
    """Members that differ, with large weights, so that choices are not uniform."""
    sizes = {"net_width": 16, "horizon": 12, "minibatch": 24, "epochs": 2}
    ppo = PPO(Shape.for_env(env, **{**sizes, "policies": "per-seat", **changes}))
    std = (
        torch.ones(env.state_dim)
        if env.spec.items is None
        else torch.tensor(env.spec.items.scales())
    )
    for slot in range(env.num_members):
        ppo.add_member(slot, PPOParams(), slot, 9, torch.zeros(env.state_dim), std)
    ppo.population.actor.weights["net.4.weight"].detach().mul_(20.0)
    return ppo


def nim(members: int = 2, **changes: Any) -> Nim:
    return Nim([NoParams()] * members, GAMES, **changes)


@pytest.mark.parametrize("kind", ["nim", "card duel"])
def test_a_bundle_acts_as_in_training(tmp_path: Path, kind: str) -> None:
    """In every position of played games: the saved weights choose as the program does."""
    env: TensorGame = nim() if kind == "nim" else CardDuel([CardDuelParams()] * 2, GAMES)
    ppo = program(env)
    obs = env.reset([1, 2])
    ppo.begin(obs)
    ppo.train(env, 1)
    policies = []
    for slot in range(2):
        save_members(tmp_path / "one.safetensors", [actor_of(ppo, slot)])
        policies.append(FrozenPolicy(load_members(tmp_path / "one.safetensors")))
    act, seats, differing = ppo.act_fn(), set(), 0
    for _ in range(30):
        obs = env.observe()
        made = act(obs, legal=env.action_mask)
        for slot, policy in enumerate(policies):
            rows = slice(slot * GAMES, (slot + 1) * GAMES)

            def legal(given: Tensor, rows: slice = rows) -> Tensor:
                every = torch.zeros(2 * GAMES, given.shape[1], dtype=torch.int64)
                every[rows] = given
                return env.action_mask(every)[rows]

            assert torch.equal(policy.act_batch(obs[rows], legal), made[rows])
            swapped = obs.clone()
            swapped[:, env.spec.seat_column] ^= 1
            other = policy.act_batch(swapped[rows], legal)
            differing += int((other != made[rows]).any(-1).sum())
        seats |= set(obs[:, env.spec.seat_column].tolist())
        env.step(made)
    env.check()
    assert seats == {0, 1}
    assert differing > 20


@pytest.mark.parametrize("sampled", [False, True])
def test_opponents_choose_as_their_policies_alone(sampled: bool) -> None:
    """Those with a policy per seat next to others: two banks, `self`, `past` and champions."""
    env = Nim([NoParams()] * 2, 40)
    ppo = program(env, minibatch=20)
    others = program(nim(3)), program(nim(3), policies="shared")
    champions = {
        name: actor_of(other, 2) for name, other in zip(("per seat", "shared"), others, strict=True)
    }
    roster = Roster(
        2,
        40,
        EnvSpec(state_dim=6, action_dim=6, if_discrete=True, action_dims=(3, 3)),
        scripted=NIM_PLAYERS,
        learners=["self", "past"],
        champions={name: Champion(own, sampled) for name, own in champions.items()},
        past_interval=1,
        past_size=3,
        sampled=sampled,
    )
    roster.begin_rollout(ppo)
    seen = env.reset([1, 2])
    chosen, uniforms = torch.arange(80) % len(roster.names), torch.rand(80, 2, dtype=torch.float64)
    made, _ = roster.act(seen, chosen, roster.begin(uniforms), uniforms, env.action_mask)
    for member in range(2):
        own = actor_of(ppo, member)
        for name, policy in {"self": own, "past": own, **champions}.items():
            frozen = FrozenPolicy([policy])
            wanted = (
                frozen.sample_batch(seen, uniforms, env.action_mask)
                if sampled
                else frozen.act_batch(seen, env.action_mask)
            )
            rows = (chosen == roster.names.index(name)) & (torch.arange(80) // 40 == member)
            assert torch.equal(made[rows], wanted[rows]), name
    assert [own.spec.seat_column for own in champions.values()] == [4, None]


def trained(members: int, seeds: dict[int, int], rollouts: int) -> tuple[Nim, PPO]:
    roster = Roster(
        members,
        GAMES,
        EnvSpec(state_dim=6, action_dim=6, if_discrete=True, action_dims=(3, 3)),
        learners=["self", "past"],
        past_interval=1,
        past_size=2,
    )
    env = nim(members, opponents=roster)
    sizes = {"net_width": 16, "horizon": 12, "minibatch": 24, "epochs": 2}
    ppo = PPO(Shape.for_env(env, **sizes, policies="per-seat"))
    for slot, seed in seeds.items():
        ppo.add_member(slot, PPOParams(), seed, 9, torch.zeros(6), torch.ones(6))
    env.reset([seeds.get(slot) for slot in range(members)])
    ppo.begin(env.observe())
    ppo.train(env, rollouts)
    return env, ppo


def test_a_member_is_the_same_against_itself_in_any_slot_and_resumed() -> None:
    alone, company = trained(2, {0: 7}, 3), trained(3, {0: 5, 1: 6, 2: 7}, 3)
    for one, other in zip(alone, company, strict=True):
        assert_same(one.get_member(0), other.get_member(2))
    halfway, (env, ppo) = trained(2, {0: 7}, 2), trained(3, {0: 8, 1: 9}, 1)
    ppo.set_member(2, halfway[1].get_member(0))
    env.set_member(2, halfway[0].get_member(0))
    ppo.train(env, 1)
    assert_same(alone[0].get_member(0), env.get_member(2))
    assert_same(alone[1].get_member(0), ppo.get_member(2))


def joined(first: Member, second: Member, column: int = 1) -> Member:
    """One member that plays as `first` at the first seat and as `second` at the other."""
    weights = {name: part for name, part in second.tensors.items() if "state" not in name}
    own = {SECOND_SEAT + name: part for name, part in weights.items()}
    return Member(replace(first.spec, seat_column=column), {**first.tensors, **own})


def test_exact_values_are_those_of_the_policies_of_both_seats() -> None:
    tree = tree_of("kuhn")
    own = actor((0.3, -1.0, 2.0)), actor((-2.0, 0.5, 1.0))

    def plans_of(member: Member) -> Any:
        entrant = FrozenEntrant("it", FrozenPolicy([member]), sampled=True)
        return plans(tree, entrant.behaviours()["sampled"])

    found = plans_of(joined(*own))
    wanted = plans_of(own[0])[0], plans_of(own[1])[1]
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
    values = {nash_conv(tree, plans_of(member)) for member in (joined(*own), *own)}
    assert len(values) == 3
    assert nash_conv(tree, found) == nash_conv(tree, wanted)


def test_invalid_members_are_refused_with_a_sentence() -> None:
    spec, tensors = actor_of(program(nim()), 0)
    assert sum(name.startswith(SECOND_SEAT) for name in tensors) == 6
    moved = {"state_avg": torch.ones(6)}
    cases: list[tuple[NetSpec, dict[str, Any], str]] = [
        (spec, {"seat1.net.2.bias": None}, r"lack \['seat1\.net\.2\.bias'\]"),
        (replace(spec, seat_column=None), {}, r"and \['seat1\.net\.0\.bias'.* do not belong"),
        (spec, {"seat1.net.0.bias": torch.full((16,), torch.nan)}, "seat1.* not finite"),
        (spec, moved, "a normaliser that changes .* the column of the seat"),
        (replace(spec, cell="gru"), {}, "a policy for each seat, and is recurrent"),
    ]
    for wrong, changes, words in cases:
        given = {name: part for name, part in {**tensors, **changes}.items() if part is not None}
        with pytest.raises(InputError, match=words):
            FrozenPolicy([Member(wrong, given)])
