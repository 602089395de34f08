"""Opponents that are policies, without a game: what acts, and what is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from sweepd.agents.algorithms.d3qn import D3QN
from sweepd.agents.algorithms.heuristic import Heuristics
from sweepd.agents.algorithms.ppo import PPO
from sweepd.agents.algorithms.sac import SAC
from sweepd.agents.engine.program import Program
from sweepd.agents.networks.shape import Shape
from sweepd.agents.policy.bank import Bank
from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.members import Member, actor_of
from sweepd.agents.policy.roster import Champion, Roster
from sweepd.envs.core.env_spec import EnvSpec
from sweepd.envs.games.curriculum import LEARNERS
from sweepd.envs.support.errors import InputError

COLUMNS, ACTIONS, GAMES = 5, 3, 6
KINDS = {"ppo": (PPO, False), "ppo choices": (PPO, True), "sac": (SAC, False), "d3qn": (D3QN, True)}


def program_of(kind: str, members: int = 4, seed: int = 0, **changes: Any) -> Program:
    """A program whose members differ, also in their normalisers."""
    algorithm, discrete = KINDS[kind]
    fields: dict[str, Any] = {"net_width": 16, "num_envs": GAMES, "horizon": 8, "minibatch": 16}
    shape = Shape(
        state_dim=COLUMNS,
        action_dim=ACTIONS,
        if_discrete=discrete,
        slots=members,
        algorithm=algorithm.algorithm,
        **{**fields, **changes},
    )
    program: Program = algorithm(shape)
    for slot in range(members):
        average = torch.full((COLUMNS,), 0.1 * slot)
        program.add_member(
            slot, algorithm.params_type(), seed + slot, 9, average, torch.ones(COLUMNS) + slot
        )
    # Larger weights, so that actions differ between members.
    actors_of(program).mul_(1.5)
    return program


def actors_of(program: Program) -> Tensor:
    """(G, P), all weights of the actors."""
    if isinstance(program, PPO):
        return program.population.flat[0]
    assert isinstance(program, SAC | D3QN)
    networks = program.networks
    return networks["net" if "net" in networks else "actor"].flat[0]


def spec_of(kind: str) -> EnvSpec:
    return EnvSpec(state_dim=COLUMNS, action_dim=ACTIONS, if_discrete=KINDS[kind][1])


def advance(program: Program, roster: Roster, rollouts: int) -> list[dict[str, Tensor]]:
    """Change the members' weights `rollouts` times, as training does; return those of each."""
    seen = []
    for rollout in range(rollouts):
        roster.begin_rollout(program)
        weights = program.acting_weights()
        seen.append({name: tensor.clone() for name, tensor in weights.items()})
        actors = actors_of(program)
        actors.add_(0.05 * torch.sin(torch.arange(actors.numel()) + rollout).view_as(actors))
        for member in program.members:
            if member is not None:
                member.rollouts += 1
    return seen


def play(roster: Roster, chosen: Tensor, seed: int = 0) -> tuple[Tensor, Tensor]:
    """The first step of an episode in all games."""
    numbers = torch.Generator().manual_seed(seed)
    games = len(chosen)
    obs = torch.randn(games, COLUMNS, generator=numbers)
    uniforms = torch.rand(games, roster.uniforms, generator=numbers, dtype=torch.float64)
    return roster.act(obs, chosen, roster.begin(uniforms), uniforms)


def everyone(roster: Roster, members: int, games: int = GAMES) -> Tensor:
    """Opponents in turn."""
    return (torch.arange(members * games) % games) % len(roster.names)


@pytest.mark.parametrize("kind", KINDS)
def test_the_stacked_forward_is_each_policy_alone(kind: str) -> None:
    program = program_of(kind)
    weights = program.acting_weights()
    roster = Roster(4, GAMES, spec_of(kind), learners=["self"], sampled=False)
    roster.begin_rollout(program)
    numbers = torch.Generator().manual_seed(3)
    obs = torch.randn(4 * GAMES, COLUMNS, generator=numbers)
    nobody = torch.zeros(4 * GAMES, dtype=torch.int64)
    uniforms = torch.rand(4 * GAMES, roster.uniforms, dtype=torch.float64, generator=numbers)
    made, _ = roster.act(obs, nobody, roster.begin(uniforms), uniforms)
    # The program's own forward pass, to rounding: native kernels may compute it.
    torch.testing.assert_close(made, program.act_fn()(obs))
    # Five places per member, each with another member's actor, against one place in a bank.
    plan = program.actor_spec
    many = Bank(plan, 4, 5, torch.device("cpu"))
    for place in range(5):
        many.put(place, {name: part.roll(place, 0) for name, part in weights.items()})
    rows = obs.view(4, GAMES, -1)
    together, _ = many.outputs(rows, None)
    for place in range(5):
        alone = Bank(plan, 4, 1, torch.device("cpu"))
        alone.put(0, {name: part.roll(place, 0) for name, part in weights.items()})
        assert torch.equal(alone.outputs(rows, None)[0][:, 0], together[:, place])


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_recurrent_members_remember_as_they_do_themselves(cell: str) -> None:
    program = program_of("ppo", members=3, recurrent=cell, bptt=4)
    size = 16 if cell == "gru" else 32
    roster = Roster(3, GAMES, spec_of("ppo"), learners=["self"], recurrent_size=size, sampled=False)
    roster.begin_rollout(program)
    act, numbers = program.act_fn(), torch.Generator().manual_seed(1)
    nobody = torch.zeros(3 * GAMES, dtype=torch.int64)
    noise = torch.zeros(3 * GAMES, roster.uniforms, dtype=torch.float64)
    memory = roster.begin(noise)
    for _ in range(4):
        obs = torch.randn(3 * GAMES, COLUMNS, generator=numbers)
        made, memory = roster.act(obs, nobody, memory, noise)
        torch.testing.assert_close(made, act(obs))  # to rounding: native kernels may compute it
    assert memory.abs().sum() > 0
    small = Roster(3, GAMES, spec_of("ppo"), learners=["self"])
    with pytest.raises(InputError, match=f"a recurrent state of {size} numbers"):
        small.begin_rollout(program)


@pytest.mark.parametrize("kind", KINDS)
def test_champions_act_as_their_frozen_policies(kind: str) -> None:
    """Of any width and kind, in one bank with the members or in their own."""
    others = {"same": program_of(kind, seed=50), "wide": program_of(kind, seed=60, net_width=40)}
    actors = {name: actor_of(program, 1) for name, program in others.items()}
    actors["other"] = actor_of(
        program_of(
            {"ppo": "sac", "sac": "ppo", "d3qn": "ppo choices", "ppo choices": "d3qn"}[kind],
            seed=70,
        ),
        0,
    )
    champions = {name: Champion(actor) for name, actor in actors.items()}
    champions["wide"] = Champion(FrozenPolicy([actors["wide"]]))
    program = program_of(kind)
    for learners in ([], ["self", "past"]):
        roster = Roster(4, GAMES, spec_of(kind), learners=learners, champions=champions)
        roster.begin_rollout(program)
        assert roster.names == (*learners, "same", "wide", "other")
        obs = torch.randn(4 * GAMES, COLUMNS, generator=torch.Generator().manual_seed(2))
        noise = torch.rand(4 * GAMES, roster.uniforms, dtype=torch.float64)
        for name, actor in actors.items():
            chosen = torch.full((4 * GAMES,), roster.names.index(name))
            made, _ = roster.act(obs, chosen, roster.begin(noise), noise)
            expected = FrozenPolicy([actor]).act_batch(obs)
            torch.testing.assert_close(made.to(expected.dtype), expected, atol=1e-5, rtol=0)


def test_champions_that_do_not_fit_are_refused() -> None:
    actor = actor_of(program_of("ppo"), 0)
    with pytest.raises(InputError, match="opponent c maps 5 observations to 3 numbers, and this"):
        Roster(2, GAMES, replace(spec_of("ppo"), state_dim=7), champions={"c": Champion(actor)})
    with pytest.raises(InputError, match="one of 3 actions"):
        Roster(2, GAMES, spec_of("ppo choices"), champions={"c": Champion(actor)})
    with pytest.raises(InputError, match="opponent c has 2 members"):
        Roster(2, GAMES, spec_of("ppo"), champions={"c": Champion(FrozenPolicy([actor, actor]))})
    tensors = {name: part for name, part in actor.tensors.items() if name != "net.0.bias"}
    broken = Member(actor.spec, tensors)
    with pytest.raises(InputError, match="opponent c: member 0 is not as it is described"):
        Roster(2, GAMES, spec_of("ppo"), champions={"c": Champion(broken)})


def test_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="at least two members"):
        Roster(4, GAMES, spec_of("ppo"), learners=["others"])
    with pytest.raises(InputError, match="'me' is not one of self, past, others"):
        Roster(4, GAMES, spec_of("ppo"), learners=["me"])
    with pytest.raises(InputError, match="1 or more, and these are 0 and 8"):
        Roster(4, GAMES, spec_of("ppo"), learners=["past"], past_interval=0)
    roster = Roster(4, GAMES, spec_of("ppo"), learners=["self"])
    with pytest.raises(RuntimeError, match="after the first"):
        play(roster, torch.zeros(4, dtype=torch.int64))
    shape = Shape(state_dim=COLUMNS, action_dim=ACTIONS, algorithm="heuristic", slots=4)
    with pytest.raises(InputError, match="does not know what the actors of heuristic are"):
        roster.begin_rollout(Heuristics(shape))


def test_the_ring_holds_the_latest_snapshots() -> None:
    program = program_of("ppo", members=2)
    roster = Roster(2, GAMES, spec_of("ppo"), learners=["past"], past_interval=2, past_size=3)
    seen = advance(program, roster, 11)
    # Taken before the rollouts 2, 4, 6, 8 and 10; the two oldest are gone.
    plan = roster._lanes[0].bank.spec
    for member in range(2):
        kept = roster.get_member(member)
        assert kept["past_counters"].tolist() == [5, 10]
        for place, rollout in enumerate((8, 10, 6)):
            bank = Bank(plan, 2, 1, torch.device("cpu"))
            bank.put(0, seen[rollout])
            assert torch.equal(kept["past"][place], bank.flat[member, 0]), (place, rollout)
        assert not torch.equal(kept["past"][0], kept["past"][1])


def test_a_rollout_that_begins_twice_takes_one_snapshot() -> None:
    program = program_of("ppo", members=2)
    roster = Roster(2, GAMES, spec_of("ppo"), learners=["past"], past_interval=1, past_size=3)
    advance(program, roster, 2)
    roster.begin_rollout(program)
    roster.begin_rollout(program)
    assert roster.get_member(0)["past_counters"].tolist() == [2, 2]


def met(roster: Roster, opponent: str, games: int) -> list[list[float]]:
    """One number per member and game that identifies the actor: its action at one observation."""
    members = len(roster.shares)
    obs = torch.tensor([0.3, -0.2, 0.9, 0.1, -0.6]).expand(members * games, -1)
    chosen = torch.full((members * games,), roster.names.index(opponent))
    noise = torch.zeros(members * games, roster.uniforms, dtype=torch.float64)
    made, _ = roster.act(obs, chosen, roster.begin(noise), noise)
    return [[round(x, 5) for x in row] for row in made[:, 0].view(members, games).tolist()]


@pytest.mark.parametrize("games", [12, 13])
def test_past_is_self_until_there_is_a_snapshot_and_then_uniform(games: int) -> None:
    program = program_of("ppo", members=2)
    roster = Roster(
        2,
        games,
        spec_of("ppo"),
        learners=["self", "past"],
        past_interval=1,
        past_size=4,
        sampled=False,
    )
    snapshots: list[list[float]] = []
    for rollout in range(7):
        roster.begin_rollout(program)
        own, past = (met(roster, name, games) for name in ("self", "past"))
        snapshots.append([row[0] for row in own])
        for member in range(2):
            assert set(own[member]) == {snapshots[rollout][member]}
            # Those of the rollouts 1, 2, …, of which the latest four are held.
            held = [row[member] for row in (snapshots[1:][-4:] if rollout else snapshots)]
            counts = [past[member].count(number) for number in held]
            assert sum(counts) == games
            if len(held) in (1, 2, 4):
                assert max(counts) - min(counts) <= games % 4
            assert min(counts) >= games // 4
        advance(program, roster, 1)


def test_with_fewer_games_than_snapshots_each_is_met_in_its_turn() -> None:
    program = program_of("ppo", members=2)
    roster = Roster(
        2, 2, spec_of("ppo"), learners=["self", "past"], past_interval=1, past_size=5, sampled=False
    )
    ages: list[int] = []
    seen: list[float] = []
    for _ in range(35):
        roster.begin_rollout(program)
        seen.append(met(roster, "self", 2)[0][0])
        # 0 is the newest snapshot, that of the present weights.
        ages += [seen[::-1].index(number) for number in met(roster, "past", 2)[0]]
        advance(program, roster, 1)
    # Of the last 50 games, ten meet each age.
    assert [ages[-50:].count(age) for age in range(6)] == [10, 10, 10, 10, 10, 0]


def test_others_are_the_other_members_of_the_trial() -> None:
    program = program_of("ppo", members=6)
    roster = Roster(6, 9, spec_of("ppo"), learners=["self", "others"], together=3, sampled=False)
    roster.begin_rollout(program)
    own = [row[0] for row in met(roster, "self", 9)]
    assert len(set(own)) == 6
    for member, numbers in enumerate(met(roster, "others", 9)):
        trial = {0, 1, 2} if member < 3 else {3, 4, 5}
        counts = [numbers.count(own[other]) for other in trial - {member}]
        assert sorted(counts) == [4, 5]


@pytest.mark.parametrize("kind", ["ppo choices", "ppo", "sac"])
def test_samples_follow_the_policy(kind: str) -> None:
    program = program_of(kind, members=2)
    roster = Roster(2, 20_000, spec_of(kind), learners=["self"])
    roster.begin_rollout(program)
    obs = torch.randn(2, 1, COLUMNS).expand(2, 20_000, -1).reshape(-1, COLUMNS)
    uniforms = torch.rand(len(obs), roster.uniforms, dtype=torch.float64)
    nobody = torch.zeros(len(obs), dtype=torch.int64)
    made, _ = roster.act(obs, nobody, roster.begin(uniforms), uniforms)
    output = roster._lanes[0].bank.outputs(obs.view(2, 20_000, -1)[:, :1], None)[0][:, 0, 0]
    for member, own in enumerate(made.view(2, 20_000, -1)):
        if kind == "ppo choices":
            shares = own.flatten().bincount(minlength=ACTIONS) / 20_000
            torch.testing.assert_close(shares, output[member].softmax(-1), atol=0.015, rtol=0)
            continue
        x = own.double().clamp(-0.9999999, 0.9999999).atanh()
        mean, log_std = output[member], program.acting_weights().get("action_std_log")
        log_std = log_std[member, 0] if log_std is not None else mean[ACTIONS:].clamp(-16, 2)
        expected = torch.distributions.Normal(mean[:ACTIONS].double(), log_std.double().exp())
        # Kolmogorov–Smirnov: the distance of 20,000 samples exceeds 0.0138 once in a thousand.
        share = expected.cdf(x).sort(0).values
        ranks = (torch.arange(20_000, dtype=torch.float64) + 0.5).view(-1, 1) / 20_000
        assert (share - ranks).abs().max() < 0.0165


def test_a_value_network_plays_its_best_action_though_sampled() -> None:
    program = program_of("d3qn", members=2)
    roster = Roster(2, GAMES, spec_of("d3qn"), learners=["self"], sampled=True)
    roster.begin_rollout(program)
    obs = torch.randn(2 * GAMES, COLUMNS)
    noise = torch.rand(2 * GAMES, roster.uniforms, dtype=torch.float64)
    made, _ = roster.act(obs, torch.zeros(2 * GAMES, dtype=torch.int64), roster.begin(noise), noise)
    assert torch.equal(made, program.act_fn()(obs))


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2.0**-53])
@pytest.mark.parametrize("kind", ["ppo choices", "ppo"])
def test_extreme_uniform_numbers_give_legal_actions(kind: str, uniform: float) -> None:
    program = program_of(kind, members=4)
    roster = Roster(
        4, GAMES, spec_of(kind), learners=LEARNERS, together=2, past_interval=1, past_size=3
    )
    advance(program, roster, 4)
    chosen = everyone(roster, 4)
    noise = torch.full((len(chosen), roster.uniforms), uniform, dtype=torch.float64)
    memory = roster.begin(noise)
    made, _ = roster.act(torch.randn(len(chosen), COLUMNS), chosen, memory, noise)
    assert torch.isfinite(made).all()
    assert made.max() < ACTIONS if made.dtype == torch.int64 else made.abs().max() <= 1.0


def test_a_diverged_member_plays_finite_actions() -> None:
    program = program_of("ppo", members=2)
    actors_of(program)[0] = torch.nan
    roster = Roster(2, GAMES, spec_of("ppo"), learners=["self", "others"], together=2)
    roster.begin_rollout(program)
    made, _ = play(roster, everyone(roster, 2))
    assert torch.isfinite(made).all()
    assert made[1::2][: GAMES // 2].abs().min() > 0  # member 0's opponent `others` is sound
    assert made[GAMES::2].abs().min() > 0


def test_a_member_is_the_same_in_another_slot_and_company() -> None:
    """Also if it is restored before its weights are known."""
    rings = {"learners": ["self", "past"], "past_interval": 1, "past_size": 3}
    program = program_of("sac", members=4)
    roster = Roster(4, GAMES, spec_of("sac"), **rings)
    advance(program, roster, 3)
    kept, state = roster.get_member(1), program.get_member(1)
    chosen = everyone(roster, 4)
    other = program_of("sac", members=4, seed=30)
    for waiting in (True, False):
        moved = Roster(4, GAMES, spec_of("sac"), **rings)
        if not waiting:
            advance(other, moved, 2)
        moved.set_member(2, kept)
        assert all(torch.equal(part, kept[name]) for name, part in moved.get_member(2).items())
        other.set_member(2, state)
        moved.begin_rollout(other)
        roster.begin_rollout(program)
        numbers = torch.Generator().manual_seed(8)
        obs = torch.randn(GAMES, COLUMNS, generator=numbers)
        noise = torch.rand(GAMES, roster.uniforms, generator=numbers, dtype=torch.float64)

        def acts(one: Roster, slot: int, obs: Tensor = obs, noise: Tensor = noise) -> Tensor:
            every = torch.zeros(4, GAMES, COLUMNS)
            uniforms = torch.rand(4, GAMES, one.uniforms, dtype=torch.float64)
            every[slot], uniforms[slot] = obs, noise
            flat = uniforms.view(-1, one.uniforms)
            made, _ = one.act(every.view(-1, COLUMNS), chosen, one.begin(flat), flat)
            return made.view(4, GAMES, -1)[slot]

        past = acts(moved, 2)[1::2]
        assert torch.equal(past, acts(roster, 1)[1::2])


def test_a_new_member_does_not_meet_the_past_of_the_one_before_it() -> None:
    program = program_of("ppo", members=2)
    roster = Roster(2, GAMES, spec_of("ppo"), learners=["past"], past_interval=1, past_size=3)
    advance(program, roster, 3)
    roster.reset_member(0)
    assert roster.get_member(0)["past_counters"].tolist() == [0, 0]
    assert len(roster.get_member(0)["past"]) == 0
    roster.begin_rollout(program)
    assert roster.get_member(1)["past_counters"].tolist() == [3, 3]


def test_past_selves_of_other_networks_are_refused() -> None:
    program, wide = program_of("ppo", members=2), program_of("ppo", members=2, net_width=24)
    rosters = [
        Roster(2, GAMES, spec_of("ppo"), learners=["past"], past_interval=1, past_size=3)
        for _ in "ab"
    ]
    advance(program, rosters[0], 3)
    advance(wide, rosters[1], 3)
    rosters[1].set_member(0, rosters[0].get_member(0))
    with pytest.raises(InputError, match="they are other networks"):
        rosters[1].begin_rollout(wide)
    short = Roster(2, GAMES, spec_of("ppo"), learners=["past"], past_interval=1, past_size=1)
    with pytest.raises(InputError, match="does not fit the size 1"):
        short.set_member(0, rosters[0].get_member(0))
