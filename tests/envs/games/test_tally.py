"""Finished games and their returns, beside sums that are made game by game."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sweepd.envs.core.game_env import GameEnv
from sweepd.envs.external.vec_env import ExternalVecEnv
from sweepd.envs.games.bucket_brigade.game import BucketBrigade
from sweepd.envs.games.cartpole import CartPole, CartPoleParams
from sweepd.envs.games.play import random_actions
from sweepd.envs.games.registry import get_game
from sweepd.envs.games.tally import Tally
from tests.envs.external.samples import Counter, Tag


def cartpole() -> GameEnv:
    return CartPole([CartPoleParams(max_steps=15), CartPoleParams(length=1.0)], 6)


def brigade() -> GameEnv:
    params = get_game("bucket-brigade").params
    own = params(scenario="easy=0.5,hard=0.5", max_nights=14)
    return BucketBrigade([own] * 4, 2 * own.num_agents, together=2)


def external() -> GameEnv:
    return ExternalVecEnv(Counter, [{"length": 3}, {"length": 5}], 3)


def agents() -> GameEnv:
    return ExternalVecEnv(Tag, 2, 6)


def played(env: GameEnv, rollouts: int) -> tuple[Tally, list[int], list[float]]:
    """Play at random; return the tally, and what each member's games add up to."""
    env.reset([*range(env.num_members)])
    tally = Tally(env)
    seats = env.rows_per_game
    each = env.envs_per_member // seats
    games, returns = [0] * env.num_members, [0.0] * env.num_members
    running = [0.0] * (env.num_members * each)
    generator = torch.Generator().manual_seed(1)
    for _ in range(rollouts):
        env.draw(8)
        # Which game a row is in changes between rollouts only.
        seat_of = getattr(env, "_seat_of", torch.arange(env.num_envs)).tolist()
        for _ in range(8):
            step = env.step(random_actions(env, generator))
            tally.count(step)
            scores = (step.reward.double() * env.reward_unit).tolist()
            done = (step.terminated | step.truncated).tolist()
            for row, seat in enumerate(seat_of):
                running[seat // seats] += scores[row]
            for game in {seat // seats for row, seat in enumerate(seat_of) if done[row]}:
                games[game // each] += 1
                returns[game // each] += running[game]
                running[game] = 0.0
    return tally, games, returns


@pytest.mark.parametrize("make", [cartpole, brigade, external, agents])
def test_a_tally_has_the_finished_games_of_each_member_and_their_returns(make: Any) -> None:
    env = make()
    tally, games, returns = played(env, 12)
    assert min(games) > 0
    assert tally.totals()[0].tolist() == games
    # Rewards are float32, and returns are kept in units of 2^-20.
    assert tally.totals()[1].tolist() == pytest.approx(returns, abs=1e-3)


def test_a_members_part_is_saved_and_restored() -> None:
    env = cartpole()
    tally, games, _ = played(env, 5)
    kept = {name: own.clone() for name, own in tally.get_member(0).items()}
    tally.clear(0)
    assert tally.totals()[0].tolist() == [0, games[1]]
    tally.set_member(1, kept)
    assert tally.totals()[0].tolist() == [0, games[0]]
    assert torch.equal(tally.get_member(1)["tally_running"], kept["tally_running"])
