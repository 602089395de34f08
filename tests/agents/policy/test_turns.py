"""Policies of several choices with masks as opponents, and pairs of games in turns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from sweepd.agents.algorithms.ppo import PPO, PPOParams
from sweepd.agents.networks.shape import Shape
from sweepd.agents.policy.duels import FrozenEntrant, play_duels
from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.members import actor_of
from sweepd.agents.policy.roster import Champion, Roster
from sweepd.envs.core.env_spec import EnvSpec
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.games.opponents import Scripted
from sweepd.envs.games.pairings import RandomEntrant, ScriptedEntrant, play_pairs
from sweepd.envs.games.tensor_game import NoParams
from sweepd.envs.support.errors import InputError, RunError
from tests.agents.helpers import assert_same
from tests.envs.games.toys import NIM, NIM_PLAYERS, Grabber, Nim, PlainNim

SPACES = EnvSpec(state_dim=6, action_dim=6, if_discrete=True, action_dims=(3, 3))
GAMES = 5


def program(members: int = 2, *, autoregressive: bool = True, **changes: Any) -> PPO:
    """Members that differ, with large weights, so that choices are not uniform."""
    env = Nim([NoParams()] * members, GAMES)
    fields = {"net_width": 16, "horizon": 12, "minibatch": 20, "epochs": 2}
    ppo = PPO(Shape.for_env(env, **{**fields, "autoregressive": autoregressive, **changes}))
    for slot in range(members):
        ppo.add_member(slot, PPOParams(), slot, 9, torch.ones(6), 1.5 * torch.ones(6))
    generator = torch.Generator().manual_seed(3)
    flat = ppo.population.flat
    flat.add_(0.3 * torch.randn(flat.shape, generator=generator))
    return ppo


def positions(count: int) -> Nim:
    env = Nim([NoParams()] * 2, count)
    env.reset([1, 2])
    return env


@pytest.mark.parametrize("autoregressive", [False, True])
@pytest.mark.parametrize("sampled", [False, True])
def test_opponents_choose_as_their_policies_alone(autoregressive: bool, sampled: bool) -> None:
    """Against `FrozenPolicy`, which computes in float64 from the exported weights."""
    ppo = program(autoregressive=autoregressive)
    other = program(members=3, autoregressive=autoregressive)
    champion = actor_of(other, 2)
    roster = Roster(
        2,
        40,
        SPACES,
        scripted=NIM_PLAYERS,
        learners=["self", "past"],
        champions={"champion": Champion(champion, sampled)},
        past_interval=1,
        past_size=3,
        sampled=sampled,
    )
    assert roster.uniforms == 2
    roster.begin_rollout(ppo)
    env = positions(40)
    chosen = torch.arange(80) % len(roster.names)
    uniforms = torch.rand(80, 2, dtype=torch.float64)
    seen = env.observe()
    memory = roster.begin(uniforms)
    made, _ = roster.act(seen, chosen, memory, uniforms, env.action_mask)
    grabs, _ = Grabber().act(seen, memory[:, :1], uniforms, env.action_mask)
    different = 0
    for member in range(2):
        rows = slice(40 * member, 40 * (member + 1))
        policies = {"champion": champion, "self": actor_of(ppo, member)}
        policies["past"] = policies["self"]

        def legal(given: Tensor, rows: slice = rows) -> Tensor:
            every = torch.zeros(80, given.shape[1], dtype=torch.int64)
            every[rows] = given
            return env.action_mask(every)[rows]

        for name, actor in policies.items():
            policy = FrozenPolicy([actor])
            if sampled:
                wanted = policy.sample_batch(seen[rows], uniforms[rows], legal)
            else:
                wanted = policy.act_batch(seen[rows], legal)
            own = chosen[rows] == roster.names.index(name)
            assert torch.equal(made[rows][own], wanted[own])
            different += len(wanted[own].unique(dim=0))
    assert different > 12
    assert torch.equal(made[chosen == 0], grabs[chosen == 0])


def test_opponents_that_do_not_fit_are_refused() -> None:
    ppo = program()
    actor = actor_of(ppo, 0)
    with pytest.raises(InputError, match=r"6 observations to choices of \[3, 3\], and this game"):
        Roster(2, GAMES, replace(SPACES, action_dims=()), champions={"c": Champion(actor)})
    single = PPO(Shape(state_dim=6, action_dim=6, if_discrete=True, slots=2, masked=True))
    single.add_member(0, PPOParams(), 0, 9, torch.ones(6), torch.ones(6))
    with pytest.raises(InputError, match="maps 6 observations to one of 6 actions, and this game"):
        Roster(2, GAMES, SPACES, champions={"c": Champion(actor_of(single, 0))})


def trained(members: int, seeds: dict[int, int], rollouts: int) -> tuple[Nim, PPO]:
    roster = Roster(
        members,
        GAMES,
        SPACES,
        scripted=NIM_PLAYERS,
        learners=["self", "past"],
        past_interval=1,
        past_size=2,
    )
    env = Nim([NoParams()] * members, GAMES, opponents=roster)
    fields = {"net_width": 16, "horizon": 12, "minibatch": 20, "epochs": 2}
    ppo = PPO(Shape.for_env(env, **fields, autoregressive=True))
    for slot, seed in seeds.items():
        ppo.add_member(slot, PPOParams(), seed, 9, torch.ones(6), 1.5 * torch.ones(6))
    env.reset([seeds.get(slot) for slot in range(members)])
    ppo.begin(env.observe())
    ppo.train(env, rollouts)
    return env, ppo


def test_members_are_the_same_with_opponents_that_are_policies() -> None:
    alone = trained(2, {0: 7}, 4)
    company = trained(3, {0: 5, 1: 6, 2: 7}, 4)
    assert float(alone[0].results().games[0].min()) > 0
    for one, other in zip(alone, company, strict=True):
        assert_same(one.get_member(0), other.get_member(2))
    halfway = trained(2, {0: 7}, 2)
    env, ppo = trained(3, {0: 8, 1: 9}, 1)
    ppo.set_member(2, halfway[1].get_member(0))
    env.set_member(2, halfway[0].get_member(0))
    ppo.train(env, 2)
    assert_same(alone[0].get_member(0), env.get_member(2))
    assert_same(alone[1].get_member(0), ppo.get_member(2))


def plain_grab(game: PlainNim, first: bool) -> list[int]:
    pile = next(k for k in range(3) if game.piles[k])
    return [pile, 0 if first else min(3, game.piles[pile]) - 1]


def test_pairs_equal_a_plain_loop() -> None:
    """Every deal in both seatings; a player's memory changes in its own decisions only."""

    class Slow(Grabber):
        """Takes one stone in its first two decisions."""

        def act(self, obs: Tensor, memory: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
            action, after = super().act(obs, memory - 1.0, *rest)
            action[:, 1] = torch.where(memory[:, 0] < 2, 0, action[:, 1])
            return action, after + 1.0

    deals, seed = 30, 4
    entrants = [ScriptedEntrant("grabber", Grabber()), ScriptedEntrant("slow", Slow())]
    found = play_pairs(NIM, NoParams(), entrants, [(0, 1)], deals, seed)
    generator = torch.Generator().manual_seed(derive_seed(seed, "deals"))
    starts = torch.rand(deals, 6, generator=generator, dtype=torch.float64).tolist()
    luck = [
        torch.rand(deals, 1, generator=generator, dtype=torch.float64)[:, 0].tolist()
        for _ in range(5)
    ]
    for deal in range(deals):
        for seating in range(2):  # the seat of the grabber
            game, made, returns = PlainNim(starts[deal]), [0, 0], [0.0, 0.0]
            for step in range(5):
                mover = game.mover
                patience = 1 if mover == seating else 2
                action = plain_grab(game, made[mover] < patience)
                made[mover] += 1
                rewards, over = game.move(action, luck[step][deal])
                returns = [a + b for a, b in zip(returns, rewards, strict=True)]
                if over or step == 4:
                    break
            ahead = returns[seating] - returns[1 - seating]
            assert found.points[0, deal, seating] == 0.5 + 0.5 * ((ahead > 0) - (ahead < 0))
            assert found.lengths[0, deal, seating] == step + 1
    assert 0.1 < found.points.mean() < 0.9


def test_leagues_of_policies_and_random_play() -> None:
    ppo = program()
    players = [
        FrozenEntrant("drawn", FrozenPolicy([actor_of(ppo, 0)]), sampled=True),
        FrozenEntrant("best", FrozenPolicy([actor_of(ppo, 1)])),
        RandomEntrant(),
    ]
    duels = play_duels(NIM, NoParams(), players, 20, seed=3)
    assert duels.names == ("drawn", "best", "random", "grabber", "drifter")
    assert (duels.points + duels.points.swapaxes(0, 1) == 1.0).all()
    # Random play and the drifter are both uniform over legal decisions.
    long = play_pairs(
        NIM,
        NoParams(),
        [*players[2:], ScriptedEntrant("d", NIM_PLAYERS["drifter"])],
        [(0, 1)],
        1500,
        5,
    )
    assert abs(long.points.mean() - 0.5) < 0.03


def test_illegal_actions_in_pairs_are_reported() -> None:
    class Cheat(Grabber):
        def act(self, *given: Any) -> tuple[Tensor, Tensor]:
            action, memory = super().act(*given)
            return torch.where(memory > 1, 2, action), memory

    entrants = [ScriptedEntrant("cheat", Cheat()), RandomEntrant()]
    with pytest.raises(RunError, match=r"illegal action in \d+ of 40 games, .* position: piles"):
        play_pairs(NIM, NoParams(), entrants, [(0, 1)], 20, 0)


def test_recurrent_policies_cannot_play_in_turns() -> None:
    env = Nim([NoParams()] * 2, GAMES, opponents=Scripted(NIM_PLAYERS, 2))
    fields = {"net_width": 16, "horizon": 16, "minibatch": 32}
    ppo = PPO(Shape.for_env(env, **fields, recurrent="gru"))
    ppo.add_member(0, PPOParams(), 0, 9, torch.ones(6), torch.ones(6))
    player = FrozenEntrant("gru", FrozenPolicy([actor_of(ppo, 0)]))
    with pytest.raises(
        InputError, match="gru is recurrent, and recurrent policies cannot play Nim"
    ):
        play_pairs(NIM, NoParams(), [player, RandomEntrant()], [(0, 1)], 2, 0)
