"""Policies of several choices with masks as opponents, and pairs of games in turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sweepd.agents.algorithms.ppo import PPO, PPOParams
from sweepd.agents.networks.recurrence import Memory
from sweepd.agents.networks.shape import Shape
from sweepd.agents.policy.duels import FrozenEntrant, play_duels
from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.members import actor_of
from sweepd.agents.policy.roster import Champion, Roster
from sweepd.envs.core.env_spec import EnvSpec
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.games.game_tree import game_tree
from sweepd.envs.games.pairings import (
    Entrant,
    PairResults,
    RandomEntrant,
    ScriptedEntrant,
    play_pairs,
)
from sweepd.envs.games.registry import get_game
from sweepd.envs.games.tensor_game import NoParams
from sweepd.envs.support.errors import InputError, RunError
from sweepd.optimize.objectives.games.duels import ActEntrant
from tests.agents.helpers import assert_same
from tests.agents.networks.plain import Plain
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


def trained(members: int, seeds: dict[int, int], rollouts: int, **changes: Any) -> tuple[Nim, PPO]:
    champion = actor_of(program(**changes), 1)
    roster = Roster(
        members,
        GAMES,
        SPACES,
        scripted=NIM_PLAYERS,
        learners=["self", "past"],
        champions={"champion": Champion(champion, sampled=True)},
        past_interval=1,
        past_size=2,
        recurrent_size=champion.spec.memory,
    )
    env = Nim([NoParams()] * members, GAMES, opponents=roster)
    fields = {"net_width": 16, "horizon": 12, "minibatch": 20, "epochs": 2}
    ppo = PPO(Shape.for_env(env, **fields, autoregressive=True, **changes))
    for slot, seed in seeds.items():
        ppo.add_member(slot, PPOParams(), seed, 9, torch.ones(6), 1.5 * torch.ones(6))
    env.reset([seeds.get(slot) for slot in range(members)])
    ppo.begin(env.observe())
    ppo.train(env, rollouts)
    return env, ppo


@pytest.mark.parametrize("kind", ["", "gru", "lstm"])
def test_members_are_the_same_with_opponents_that_are_policies(kind: str) -> None:
    changes = {"recurrent": kind, "bptt": 4}
    alone = trained(2, {0: 7}, 4, **changes)
    company = trained(3, {0: 5, 1: 6, 2: 7}, 4, **changes)
    assert float(alone[0].results().games[0].min()) > 0
    for one, other in zip(alone, company, strict=True):
        assert_same(one.get_member(0), other.get_member(2))
    halfway = trained(2, {0: 7}, 2, **changes)
    env, ppo = trained(3, {0: 8, 1: 9}, 1, **changes)
    ppo.set_member(2, halfway[1].get_member(0))
    env.set_member(2, halfway[0].get_member(0))
    ppo.train(env, 2)
    assert_same(alone[0].get_member(0), env.get_member(2))
    assert_same(alone[1].get_member(0), ppo.get_member(2))
    held = [company[0].get_member(slot)["opponent_memory"][:, 1:] for slot in range(3)]
    assert bool(torch.cat(held).any()) == bool(kind)  # besides that of a scripted player


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_opponents_remember_their_own_decisions(kind: str) -> None:
    """A champion's state in a game is that of the champion alone, at its own decisions."""
    champion = actor_of(recurrent(kind), 1)
    size = champion.spec.memory
    roster = Roster(2, GAMES, SPACES, champions={"champion": Champion(champion)})
    env = Nim([NoParams()] * 2, GAMES, opponents=roster)
    env.reset([1, 2])
    alone = Plain.of(champion.spec, champion.tensors)
    states, moved, rested = torch.zeros(2 * GAMES, size), 0, 0
    for step in range(12):
        theirs = ~env.present()
        view = env._look()
        with torch.no_grad():
            after = alone(alone.normalised(view.seen.float()), Memory(states))[1]
        assert after is not None
        states = torch.where(theirs.unsqueeze(1), after, states)
        action = torch.zeros(2 * GAMES, 0, dtype=torch.int64)
        for _ in range(2):
            option = env.action_mask(action).byte().argmax(1, keepdim=True)
            action = torch.cat((action, option), 1)
        over = env.step(action).terminated
        states[over] = 0.0
        held = env.get_member(0)["opponent_memory"], env.get_member(1)["opponent_memory"]
        torch.testing.assert_close(torch.cat(held).float(), states, atol=1e-5, rtol=1e-4)
        moved, rested = moved + int(theirs.sum()), rested + int((~theirs).sum())
        assert step < 11 or min(moved, rested) > 20


def plain_grab(game: PlainNim, first: bool) -> list[int]:
    pile = next(k for k in range(3) if game.piles[k])
    return [pile, 0 if first else min(3, game.piles[pile]) - 1]


# From a game in which a player is to move to its choices.
Decide = Callable[[PlainNim], list[int]]


def assert_plain_pairs(
    found: PairResults, deals: int, seed: int, begin: Callable[[int], Decide]
) -> None:
    """Check the results of two players against games that are played one decision at a time.

    begin: makes the players of a game, given the seat of the first player.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, "deals"))
    starts = torch.rand(deals, 6, generator=generator, dtype=torch.float64).tolist()
    luck = [
        torch.rand(deals, 1, generator=generator, dtype=torch.float64)[:, 0].tolist()
        for _ in range(5)
    ]
    for deal in range(deals):
        for seating in range(2):  # the seat of the first player
            game, returns, decide = PlainNim(starts[deal]), [0.0, 0.0], begin(seating)
            for step in range(5):
                rewards, over = game.move(decide(game), luck[step][deal])
                returns = [a + b for a, b in zip(returns, rewards, strict=True)]
                if over or step == 4:
                    break
            ahead = returns[seating] - returns[1 - seating]
            assert found.points[0, deal, seating] == 0.5 + 0.5 * ((ahead > 0) - (ahead < 0))
            assert found.lengths[0, deal, seating] == step + 1


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

    def begin(seating: int) -> Decide:
        made = [0, 0]

        def decide(game: PlainNim) -> list[int]:
            patience = 1 if game.mover == seating else 2
            made[game.mover] += 1
            return plain_grab(game, made[game.mover] <= patience)

        return decide

    assert_plain_pairs(found, deals, seed, begin)
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


def recurrent(kind: str) -> PPO:
    """Members whose states matter: with large weights."""
    return program(recurrent=kind, bptt=4)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("which", ["frozen", "members"])
def test_recurrent_policies_in_pairs_equal_a_plain_loop(kind: str, which: str) -> None:
    """One policy per game and seat, which gets its own decisions one at a time."""
    ppo, deals, seed = recurrent(kind), 15, 4
    actors = [actor_of(ppo, slot) for slot in range(2)]
    # Members of a program act with their present weights, those that are exported with their mean.
    entrants: list[Entrant] = [ActEntrant(ppo.act_fn(), 2, torch.device("cpu"))]
    if which == "frozen":
        entrants = [
            FrozenEntrant(str(slot), FrozenPolicy([own])) for slot, own in enumerate(actors)
        ]
    found = play_pairs(NIM, NoParams(), entrants, [(0, 1)], deals, seed)
    remembered = 0

    def begin(seating: int) -> Decide:
        players = [FrozenPolicy([actors[seat ^ seating]]) for seat in range(2)]

        def decide(game: PlainNim) -> list[int]:
            nonlocal remembered
            seen = np.array(game.see(game.mover), dtype=np.float32)

            def legal(chosen: Tensor) -> Tensor:
                return torch.tensor([game.mask(chosen[0].tolist())])

            action: list[int] = players[game.mover].act(seen, legal).astype(int).tolist()
            fresh = FrozenPolicy([actors[game.mover ^ seating]]).act(seen, legal)
            remembered += action != fresh.astype(int).tolist()
            return action

        return decide

    assert_plain_pairs(found, deals, seed, begin)
    assert remembered > 2  # decisions that depend on the states


def test_exact_values_of_a_recurrent_policy_are_those_of_its_play() -> None:
    """Against the policy's own probabilities, after all that its player passes on the way."""
    game = get_game("leduc")
    env = game.make([game.params()] * 2, 8, together=1, device="cpu")
    ppo = PPO(Shape.for_env(env, net_width=16, horizon=16, minibatch=32, recurrent="gru", bptt=4))
    columns = env.state_dim
    ppo.add_member(0, PPOParams(), 0, 9, torch.zeros(columns), torch.ones(columns))
    ppo.population.flat.mul_(3.0)
    policy = FrozenPolicy([actor_of(ppo, 0)])
    behaviours = FrozenEntrant("gru", policy).behaviours()
    assert list(behaviours) == ["deterministic", "sampled"]
    forgetful = 0
    for sets in game_tree(game, game.params()).players:
        found = behaviours["sampled"](sets)
        best = behaviours["deterministic"](sets)
        for index in range(0, len(sets.depth), 7):
            way = [index]
            while sets.before[way[0]]:
                way.insert(0, (int(sets.before[way[0]]) - 1) // sets.options)
            policy.reset()
            for passed in way:
                alone = sets.observations[[passed]], sets.legal[[passed]]
                own = policy.probabilities(*alone)
            torch.testing.assert_close(found[[index]], own, atol=1e-5, rtol=0.0)
            assert best[index].argmax() == own.argmax()
            policy.reset()
            forgetful += not torch.allclose(policy.probabilities(*alone), own, atol=1e-3)
    assert forgetful > 20
