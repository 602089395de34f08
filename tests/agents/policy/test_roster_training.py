"""Training against opponents that are policies: a resumed member is the member, to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sweepd.agents.algorithms.d3qn import D3QN, D3QNParams
from sweepd.agents.algorithms.ppo import PPO, PPOParams
from sweepd.agents.algorithms.sac import SAC, SACParams
from sweepd.agents.engine.program import Program
from sweepd.agents.networks.shape import Shape
from sweepd.agents.policy.members import Member, actor_of
from sweepd.agents.policy.roster import Champion, Roster
from sweepd.testing.host_sync import NoHostSync
from tests.agents.duel import DUEL_PARAMS, Chaser, ChoiceDuel, Duel
from tests.agents.helpers import assert_same

GAMES = 6
SIZES: dict[str, dict[str, Any]] = {
    "ppo": {"minibatch": 24, "epochs": 2},
    "ppo choices": {"minibatch": 24, "epochs": 2},
    "gru": {"minibatch": 24, "epochs": 2, "recurrent": "gru", "bptt": 4},
    "sac": {"minibatch": 16, "updates": 4, "buffer": 600},
    "d3qn": {"minibatch": 16, "updates": 4, "buffer": 600},
}
ALGORITHMS: dict[str, Any] = {
    "ppo": (PPO, PPOParams, Duel),
    "ppo choices": (PPO, PPOParams, ChoiceDuel),
    "gru": (PPO, PPOParams, Duel),
    "sac": (SAC, SACParams, Duel),
    "d3qn": (D3QN, D3QNParams, ChoiceDuel),
}
MIXTURE = {"chaser": 0.2, "self": 0.2, "past": 0.4, "champion": 0.2}


def made(
    kind: str, members: dict[int, int], slots: int, **roster: Any
) -> tuple[Program, Duel, Roster]:
    """A program, its games and their opponents, with member `members[slot]` in each slot."""
    algorithm, params, game = ALGORITHMS[kind]
    spec = game([DUEL_PARAMS], 2).spec
    settings: dict[str, Any] = {
        "scripted": {"chaser": Chaser()},
        "learners": ["self", "past"],
        "champions": {"champion": Champion(_champion(kind), sampled=True)},
        "past_interval": 1,
        "past_size": 3,
        "recurrent_size": 16 if kind == "gru" else 0,
    }
    opponents = Roster(slots, GAMES, spec, **{**settings, **roster})
    env = game([DUEL_PARAMS] * slots, GAMES, opponents=opponents)
    program = algorithm(_shape(kind, env))
    for slot, member in members.items():
        # Fast learning, so that snapshots differ.
        own = params(learning_rate=0.02, **({} if algorithm is PPO else {"warmup": 0}))
        program.add_member(
            slot, own, 100 + member, 20, torch.zeros(3), torch.full((3,), 0.7 + 0.1 * member)
        )
        env.reset_member(slot, 200 + member)
        mixture = {name: share for name, share in MIXTURE.items() if name in opponents.names}
        mixture[opponents.names[-1]] += 1.0 - sum(mixture.values())
        opponents.configure_member(slot, mixture)
    # Again: the opponents of the first episodes are drawn from the mixture, too.
    for slot, member in members.items():
        env.reset_member(slot, 200 + member)
    program.begin(env.observe())
    return program, env, opponents


def _shape(kind: str, env: Duel) -> Shape:
    algorithm = ALGORITHMS[kind][0].algorithm
    sizes = {"net_width": 16, "horizon": 12, **SIZES[kind]}
    return Shape.for_env(env, algorithm=algorithm, **sizes)


def _champion(kind: str) -> Member:
    """An actor of the members' description."""
    algorithm, params, game = ALGORITHMS[kind]
    program = algorithm(_shape(kind, game([DUEL_PARAMS] * 2, 2 * GAMES)))
    program.add_member(0, params(), 7, 1, torch.zeros(3), torch.ones(3))
    return actor_of(program, 0)


def state_of(program: Program, env: Duel, slot: int) -> dict[str, Tensor]:
    return {**program.get_member(slot), **{f"env_{k}": v for k, v in env.get_member(slot).items()}}


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_a_resumed_member_is_the_member(kind: str) -> None:
    """In the middle of training, with past selves, in another slot and other company."""
    program, env, roster = made(kind, {0: 1, 1: 2, 2: 3}, 3)
    program.train(env, 5)
    saved = program.get_member(1), env.get_member(1)
    program.train(env, 4)
    assert roster.get_member(1)["past_counters"].tolist() == [8, 8]

    other, games, _ = made(kind, {0: 4, 1: 5, 2: 6}, 3)
    other.train(games, 2)
    other.set_member(2, saved[0])
    games.set_member(2, saved[1])
    other.train(games, 4)
    assert_same(state_of(other, games, 2), state_of(program, env, 1))
    # And in a program that has not trained yet.
    fresh, games, _ = made(kind, {1: 5}, 3)
    fresh.set_member(0, saved[0])
    games.set_member(0, saved[1])
    fresh.train(games, 4)
    assert_same(state_of(fresh, games, 0), state_of(program, env, 1))


def test_others_of_a_trial_resume_together() -> None:
    mixed = {"learners": ["self", "past", "others"], "together": 2}
    program, env, _ = made("ppo", {slot: slot for slot in range(4)}, 4, **mixed)
    program.train(env, 3)
    saved = [(program.get_member(slot), env.get_member(slot)) for slot in (2, 3)]
    program.train(env, 3)
    other, games, _ = made("ppo", {slot: 9 + slot for slot in range(4)}, 4, **mixed)
    for slot, (own, state) in enumerate(saved):
        other.set_member(slot, own)
        games.set_member(slot, state)
    other.train(games, 3)
    for slot in range(2):
        assert_same(state_of(other, games, slot), state_of(program, env, slot + 2))


def test_past_selves_matter() -> None:
    """Members with other rings train on other games."""
    found = []
    for interval in (1, 2):
        program, env, _ = made("ppo", {0: 1, 1: 2}, 2, past_interval=interval)
        program.train(env, 5)
        found.append(program.get_member(0)["weights"])
    assert not torch.equal(*found)


def test_a_step_reads_nothing_on_the_host() -> None:
    program, env, _ = made("ppo", {0: 1, 1: 2}, 2, learners=["self", "past", "others"], together=2)
    program.train(env, 3)
    env.draw(3)
    action = torch.zeros(env.num_envs, 1)
    with NoHostSync():
        for _ in range(3):
            env.step(action)
