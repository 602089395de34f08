"""Bucket Brigade as a vectorized environment: members, shared games, random events, players."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import Tensor

from sweepd.envs.games.bucket_brigade.game import BucketBrigade
from sweepd.envs.games.bucket_brigade.players import PLAYERS, ScriptedPolicy
from sweepd.envs.games.bucket_brigade.scenarios import BucketParams, scenario
from sweepd.envs.games.play import play_episodes
from sweepd.envs.support.errors import InputError, RunError
from tests.envs.games.recordings import reference_file

DEFAULT = BucketParams()
FIERY = scenario("default_continuous", prob_house_catches_fire=0.1, max_nights=17)
SHORT = scenario("hard", min_nights=3, max_nights=9, action_shaping_alpha=1.0)
WORLDS = [
    DEFAULT,
    FIERY,
    SHORT,
    scenario("positional_default"),
    scenario("easy", semantics="persistent"),
    FIERY,
]


def actions(seed: int, steps: int, rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(steps, rows, 3, generator=generator) * torch.tensor([10, 2, 2])).to(
        torch.int64
    )


def run(env: BucketBrigade, taken: Tensor, per_draw: int = 0) -> list[Tensor]:
    """Return everything that rows get per step, concatenated."""
    made = []
    for step, action in enumerate(taken):
        if per_draw and step % per_draw == 0:
            env.draw(per_draw)
        one = env.step(action)
        ends = torch.stack([one.reward, one.terminated, one.truncated], dim=1)
        made.append(torch.cat([one.obs, ends, env.final_obs()], dim=1))
    return made


def same(
    one: list[Tensor], two: list[Tensor], rows: slice = slice(None), others: slice = slice(None)
) -> bool:
    return all(torch.equal(a[rows], b[others]) for a, b in zip(one, two, strict=True))


# ---- members ----


# ---- games that members share ----


def test_every_draw_deals_new_seats() -> None:
    env = BucketBrigade([DEFAULT] * 6, 20, together=3)
    assert env.rematches
    assert not BucketBrigade(DEFAULT, 20).rematches
    env.reset(0)
    assert torch.equal(env._seat_of, torch.arange(120))
    deals = []
    for _ in range(300):
        env.draw(1)
        deals.append(env._seat_of.view(2, 60).clone())
        assert torch.equal(env._seat_of[env._row_of], torch.arange(120))
    dealt = torch.stack(deals)
    whole = torch.arange(60).expand(300, 60)
    assert torch.equal(dealt[:, 0].sort(1).values, whole)
    assert torch.equal(dealt[:, 1].sort(1).values, whole + 60)
    assert not torch.equal(dealt[:, 0], dealt[:, 1] - 60)
    # Every member gets every seat equally often, and sometimes all seats of a game.
    seats = dealt[:, 0].view(300, 3, 20)
    for seat in range(4):
        share = (seats % 4 == seat).double().mean((0, 2))
        np.testing.assert_allclose(share, 0.25, atol=0.03)
    members = torch.empty(300, 60, dtype=torch.int64).scatter_(
        1, dealt[:, 0], torch.arange(60).expand(300, 60) // 20
    )
    same_member = (
        (members.view(300, 15, 4) == members.view(300, 15, 4)[..., :1]).all(-1).double().mean()
    )
    assert 0.02 < float(same_member) < 0.05  # 19 * 18 * 17 / (59 * 58 * 57)


def test_a_rematch_changes_rows_and_nothing_else() -> None:
    env = BucketBrigade([DEFAULT, SHORT], 8, together=2)
    env.reset(0)
    env.draw(10)
    run(env, actions(0, 10, 16))
    seats, obs, final, unit = env._seat_of.clone(), env.observe(), env.final_obs(), env.reward_unit
    env.draw(10)
    assert not torch.equal(seats, env._seat_of)
    order, moved = seats.argsort(), env._seat_of.argsort()
    for before, after in ((obs, env.observe()), (final, env.final_obs()), (unit, env.reward_unit)):
        assert torch.equal(before[order], after[moved])


def test_a_group_depends_on_its_members_only() -> None:
    taken = {m: actions(m, 45, 8) for m in range(6)}

    def results(order: list[int]) -> list[Tensor]:
        env = BucketBrigade([WORLDS[m] for m in order], 8, together=2)
        env.reset(order)
        return run(env, torch.cat([taken[m] for m in order], dim=1), per_draw=15)

    together, turned, alone = (
        results([0, 1, 2, 3, 4, 5]),
        results([4, 5, 2, 3, 0, 1]),
        results([2, 3]),
    )
    assert same(together, alone, slice(16, 32))
    assert same(together, turned, slice(16), slice(32, None))
    assert not same(
        together, results([0, 1, 3, 2, 4, 5]), slice(16, 24), slice(24, 32)
    )  # company is part of a group


# ---- random events ----


def test_events_happen_as_often_as_they_should() -> None:
    params = [scenario("hard"), scenario("default_continuous", prob_house_catches_fire=0.1)]
    env = BucketBrigade(params, 2000)
    env.reset([0, 1])
    env.draw(40)
    drawn = env._numbers.buffers
    ignites, starts = drawn["ignites"].double(), drawn["starts"].double()
    for games, chance in ((slice(500), 0.05), (slice(500, None), 0.1)):
        np.testing.assert_allclose(ignites[..., games].mean((0, 2)), chance, atol=0.008)
        np.testing.assert_allclose(starts[..., games].mean(), chance, atol=0.01)
    needed = drawn["needed"][..., :500]
    for workers in range(1, 5):
        np.testing.assert_allclose(
            (needed <= workers).double().mean(), 1 - 0.7**workers, atol=0.005
        )
    spreads = drawn["spreads"][..., 500:]
    np.testing.assert_allclose(spreads.double().mean((0, 1, 3)), 0.25, atol=0.008)
    # Events decided by the same number are distributed as if decided by several.
    left, right = spreads.double().unbind(2)
    pairs = [
        (ignites[:, 0], ignites[:, 1]),
        (ignites[..., :500], (needed == 1).double()),
        (ignites[..., 500:], left),
        (ignites[..., 500:], right),
        (left, right),
    ]
    for one, two in pairs:
        assert abs(np.corrcoef(one.flatten(), two.flatten())[0, 1]) < 4.0 / one.numel() ** 0.5


@pytest.mark.parametrize("drawn", [True, False])
def test_no_start_serves_two_games(drawn: bool) -> None:
    """With many houses, starts can be told apart by their fires: a place never gets one twice."""
    params = BucketParams(num_houses=90, prob_house_catches_fire=0.5, min_nights=0, max_nights=3)
    env = BucketBrigade(params, 8)
    env.reset(0)
    seen = [tuple(column) for column in env.state["houses"].t().tolist()]
    for step in range(150):
        if drawn and step % 7 == 0:
            env.draw(7)
        ended = env.step(torch.zeros(8, 3, dtype=torch.int64))
        for game in range(2):
            if ended.terminated[4 * game] | ended.truncated[4 * game]:
                seen.append(tuple(env.state["houses"][:, game].tolist()))
    assert len(seen) > 90
    assert len(set(seen)) == len(seen)


# ---- the device ----


# ---- faults ----


@pytest.mark.parametrize(
    ("choice", "bad", "named", "most"),
    [(0, 10, "10", 9), (0, -1, "less than 0", 9), (1, 2, "2", 1), (2, 2**40, "254 or more", 1)],
)
@pytest.mark.parametrize("step", [0, 16, 20])
def test_the_first_illegal_action_is_named(
    choice: int, bad: int, named: str, most: int, step: int
) -> None:
    env = BucketBrigade([DEFAULT, DEFAULT], 4)
    env.reset(0)
    for at, action in enumerate(actions(0, 40, 8)):
        if at >= step:
            action[6, choice] = bad - (at > step)
        if at == step + 2:
            action[1, 1] = -7
        env.step(action)
    assert env.faults().tolist() == [False, True, *[False] * 4, True, False]
    wrong = (
        rf"row 6 \(member 1\) got an illegal action in step {step + 1} for choice {choice}: "
        rf"{named}; .* 0 to {most}$"
    )
    with pytest.raises(RunError, match=wrong):
        env.check()
    other = BucketBrigade(DEFAULT, 4)
    other.reset(0)
    other.set_member(0, env.get_member(1))
    assert other.faults().tolist() == [False, False, True, False]
    env.reset_member(1)
    with pytest.raises(RunError, match="row 1"):
        env.check()


def test_an_illegal_action_counts_as_the_last_legal_one() -> None:
    bad, last = (BucketBrigade(FIERY, 8) for _ in range(2))
    bad.reset(0)
    last.reset(0)
    wild, most = actions(0, 30, 8) * 3 - 2, torch.tensor([9, 1, 1])
    assert same(run(bad, wild), run(last, torch.where(wild < 0, most, torch.minimum(wild, most))))


def test_impossible_arguments_are_refused() -> None:
    with pytest.raises(InputError, match="got 0 members of 4 envs"):
        BucketBrigade([], 4)
    with pytest.raises(InputError, match="4 seats, and 6 envs are not a multiple of them"):
        BucketBrigade(DEFAULT, 6)
    with pytest.raises(InputError, match="3 members of Bucket Brigade cannot play in groups of 2"):
        BucketBrigade([DEFAULT] * 3, 4, together=2)
    with pytest.raises(InputError, match="same num_houses"):
        BucketBrigade([DEFAULT, scenario("v2_minimal")], 4)
    env = BucketBrigade(DEFAULT, 4, debug=True)
    with pytest.raises(InputError, match="same num_houses"):
        env.configure_member(0, scenario("v2_minimal"))
    with pytest.raises(RuntimeError, match="before reset"):
        env.step(torch.zeros(4, 3, dtype=torch.int64))
    env.reset(0)
    with pytest.raises(ValueError, match=r"shape \(4,\), not \(4, 3\)"):
        env.step(torch.zeros(4, dtype=torch.int64))
    with pytest.raises(RunError, match="row 2"):
        env.step(torch.tensor([[0, 0, 0], [0, 0, 0], [0, 2, 0], [0, 0, 0]]))
    with pytest.raises(InputError, match="'heroine' is not known"):
        ScriptedPolicy("heroine", env.encoder, 0)


# ---- the baseline players ----


def brigade_returns(params: BucketParams, player: str, games: int, seed: int = 1) -> np.ndarray:
    """Return the team's return in each game, (games,)."""
    env = BucketBrigade(params, games * params.num_agents)
    env.reset(seed)
    return play_episodes(
        env, ScriptedPolicy(player, env.encoder, seed + 1), seats=params.num_agents
    ).returns[0]


@pytest.mark.parametrize(
    "name", ["default", "minimal_specialization", "v2_minimal", "default_continuous"]
)
def test_baseline_players_reach_recorded_scores(name: str) -> None:
    recorded = json.loads(
        reference_file("bucket_brigade_baselines.json").read_text(encoding="utf-8")
    )
    wanted = [row for row in recorded if row["scenario"] == name]
    assert len(wanted) >= 2
    for row in wanted:
        returns = brigade_returns(scenario(name), row["policy"], games=400)
        error = np.hypot(row["se"], returns.std(ddof=1) / 20)
        assert abs(returns.mean() - row["team_return"]) < 3 * error, row["policy"]


def test_players_see_their_own_houses() -> None:
    """Specialists work at their lowest own burning house, and at no other agent's."""
    params = scenario("default", prob_house_catches_fire=0.5)
    env = BucketBrigade(params, 80)
    brigade = ScriptedPolicy("specialist", env.encoder, 0)
    obs = env.reset(0)
    for _ in range(10):
        taken = brigade(obs).view(20, 4, 3)
        for game, houses in enumerate(env.state["houses"].t().tolist()):
            for agent, (house, mode, signal) in enumerate(taken[game].tolist()):
                burning = [h for h in range(agent, 10, 4) if houses[h] == 1]
                assert (house, mode, signal) == ((burning[0], 1, 1) if burning else (agent, 0, 0))
        obs = env.step(taken.view(80, 3)).obs


@pytest.mark.parametrize("player", PLAYERS)
def test_players_act_legally_and_agents_without_a_house_rest(player: str) -> None:
    params = scenario("v2_minimal", num_agents=5, prob_house_catches_fire=0.3)
    env = BucketBrigade(params, 20, debug=True)
    brigade, obs = ScriptedPolicy(player, env.encoder, 0), env.reset(0)
    for _ in range(20):
        action = brigade(obs)
        if player in ("rest", "specialist"):
            assert not action.view(4, 5, 3)[:, 2:, 1].any()
        obs = env.step(action).obs


def test_it_has_the_attributes_that_elegantrl_reads() -> None:
    env = BucketBrigade([DEFAULT, SHORT], 8)
    assert (env.env_name, env.num_envs, env.max_step) == ("sweepd/BucketBrigade-v0", 16, 100)
    assert (env.state_dim, env.action_dim, env.if_discrete) == (94, 14, True)
    assert BucketBrigade(DEFAULT, 8, scaled=False).state_dim == 42
