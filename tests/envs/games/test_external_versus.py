"""PettingZoo's parallel environments of two agents, as games of two seats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sweepd.envs.games.external_versus import ExternalVersus
from sweepd.envs.games.opponents import Scripted
from sweepd.envs.games.pairings import RandomEntrant, is_versus, play_pairs
from sweepd.envs.games.play import random_actions
from sweepd.envs.games.registry import get_game
from sweepd.envs.games.reward_sums import check_zero_sum, reward_sums
from sweepd.envs.support.errors import InputError, RunError
from sweepd.testing.vec_env import VecEnvTestCase
from tests.envs.external.duel_module import Bids

NAME = "versus:tests.envs.external.duel_module"


class TestBids(VecEnvTestCase):
    env = NAME


def made(games: int = 4, seed: int = 0, **arguments: Any) -> ExternalVersus:
    game = get_game(NAME)
    env = game.make([game.params(**arguments)], games, together=1, device="cpu")
    assert isinstance(env, ExternalVersus)
    env.reset(seed)
    return env


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"masks": "info"},
        {"masks": "", "rounds": 7},
        {"numbers": True},
        {"rewards": "mixed"},
        {"leaves": 1},
    ],
)
def test_every_step_is_that_of_the_environment(arguments: dict[str, Any]) -> None:
    """Step by step: observations, masks, rewards of each agent, one that leaves, and ends."""
    env, games = made(3, seed=5, **arguments), [Bids(**arguments) for _ in range(3)]
    shown = [game.reset(int(row[0])) for game, row in zip(games, env.state["history"], strict=True)]
    generator, ended = torch.Generator().manual_seed(1), 0
    for _ in range(20):
        seen = env.observe().view(3, 2, -1)
        for index, (game, (observations, infos)) in enumerate(zip(games, shown, strict=True)):
            for seat, agent in enumerate(game.possible_agents):
                if agent not in game.agents:  # it has left
                    assert not seen[index, seat].any()
                    continue
                own, mask = observations[agent], infos[agent].get("action_mask")
                if isinstance(own, dict):
                    own, mask = own["observation"], own["action_mask"]
                assert seen[index, seat].tolist() == own.tolist()
                if env.spec.masked:
                    legal = env.action_mask(torch.zeros(6, 0).long()).view(3, 2, -1)
                    assert legal[index, seat].tolist() == mask.astype(bool).tolist()
        action = random_actions(env, generator)
        step = env.step(action)
        env.check()
        for index, game in enumerate(games):
            both = action.view(3, 2, -1)[index].double()
            given = 1.5 * (both + 1.0) if arguments.get("numbers") else both.long()
            acting = [game.possible_agents.index(agent) for agent in game.agents]
            observations, rewards, _, _, infos = game.step(
                {game.possible_agents[seat]: np.float32(given[seat].item()) for seat in acting}
            )
            wanted = [rewards.get(agent, 0.0) for agent in game.possible_agents]
            assert step.reward.view(3, 2)[index].tolist() == wanted
            over = not game.agents
            assert step.terminated.view(3, 2)[index].tolist() == [over, over]
            if over:
                ended += 1
                shown[index] = game.reset(int(env.state["history"][index, 0]))
            else:
                shown[index] = observations, infos
    assert ended >= 6
    assert not step.truncated.any()


class High:
    """Makes the highest bid that is left."""

    uniforms, memory = 0, 0

    def start(self, uniforms: torch.Tensor) -> torch.Tensor:
        return uniforms

    def act(
        self, obs: torch.Tensor, memory: torch.Tensor, uniforms: torch.Tensor, *_: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        del uniforms
        return 3 - obs[:, 2:].flip(1).argmax(1), memory


def test_a_member_plays_against_opponents() -> None:
    game = get_game(NAME)
    opponents = Scripted({"high": High()}, 1)
    assert game.versus is not None
    env = game.versus([game.params(rounds=1)], 32, together=1, device="cpu", opponents=opponents)
    env.reset(0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        env.step(random_actions(env, generator))
        env.check()
    games, points, _ = env.results()
    assert games.sum() > 500
    assert points.sum() < 0.25 * games.sum()  # against the highest bid, a quarter is a draw


def test_deals_are_played_in_both_seatings() -> None:
    game = get_game(NAME)
    params = game.params()
    assert is_versus(game, params)
    found = [
        play_pairs(game, params, [RandomEntrant("a"), RandomEntrant("b")], [(0, 1)], 30, seed=0)
        for _ in range(2)
    ]
    assert (found[0].points == found[1].points).all()
    assert 0.2 < found[0].points.mean() < 0.8
    assert (found[0].lengths == 3).all()


@pytest.mark.parametrize("arguments", [{}, {"numbers": True}])
def test_positions_are_restored_by_their_decisions(arguments: dict[str, Any]) -> None:
    env, generator = made(**arguments, rounds=4), torch.Generator().manual_seed(2)
    for _ in range(6):
        env.step(random_actions(env, generator))
    state, action = env.get_member(0), random_actions(env, generator)
    step, other = env.step(action), made(seed=9, **arguments, rounds=4)
    other.set_member(0, state)
    for one, two in zip(step, other.step(action), strict=True):
        assert torch.equal(one, two)
    assert torch.equal(env.observe(), other.observe())


def test_a_limit_ends_the_game() -> None:
    env = made(masks="", rounds=100, max_episode_steps=2)
    generator = torch.Generator().manual_seed(2)
    assert not env.step(random_actions(env, generator)).terminated.any()
    step = env.step(random_actions(env, generator))
    assert step.terminated.all()
    assert not step.truncated.any()


def test_an_illegal_action_is_named_with_the_decisions() -> None:
    env = made(1)
    env.step(torch.tensor([1, 2]))
    env.step(torch.tensor([1, 3]))
    with pytest.raises(RunError, match=r"seed \d+, decisions: 1, 2"):
        env.check()


@pytest.mark.parametrize(
    ("rewards", "zero_sum", "shared", "text"),
    [
        ("zero-sum", True, False, "one's gain is the other's loss"),
        ("mixed", False, False, "returns add up to different sums, such as"),
        ("shared", False, True, "they do not compete"),
    ],
)
def test_sums_of_rewards(rewards: str, zero_sum: bool, shared: bool, text: str) -> None:
    game = get_game(NAME)
    params = game.params(rewards=rewards)
    found = reward_sums(game, params)
    assert (found.zero_sum, found.shared, found.rewarded) == (zero_sum, shared, True)
    assert found.ended > 300
    assert text in str(found)
    if zero_sum:
        check_zero_sum(game, params, "a league")
        return
    with pytest.raises(InputError, match="a league is for zero-sum games alone"):
        check_zero_sum(game, params, "a league")


def test_games_without_a_reward_say_so() -> None:
    game = get_game("pettingzoo:tests.envs.external.stones_module")
    assert "zero-sum in" in str(reward_sums(game, game.params()))
    unknown = reward_sums(game, game.params(most=9, max_episode_steps=1))
    assert not unknown.rewarded
    assert "is not known" in str(unknown)


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        (
            NAME,
            {"agents": 3},
            "is for two agents, and it has 3; --env tests.*:parallel_env has a row",
        ),
        (
            "versus:tests.envs.external.stones_module",
            {},
            "act one after the other.*pettingzoo: plays two agents in turns",
        ),
        (
            "pettingzoo:tests.envs.external.stones_module",
            {"agents": 3},
            "with these arguments it has 3 agents.*--env tests.*:env has a row per agent",
        ),
        ("versus:tests.envs.external.samples:Counter", {}, "made a Counter, which has no possible"),
    ],
)
def test_other_environments_are_refused(name: str, arguments: dict[str, Any], reason: str) -> None:
    game = get_game(name)
    with pytest.raises(InputError, match=reason):
        game.make([game.params(**arguments)], 2, together=1, device="cpu")
