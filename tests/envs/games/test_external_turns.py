"""PettingZoo's AEC games of two in turns, as games of two seats."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sweepd.envs.external.sources import FactorySource
from sweepd.envs.games.external_turns import ExternalTurns, turns_game
from sweepd.envs.games.opponents import Scripted
from sweepd.envs.games.pairings import RandomEntrant, ScriptedEntrant, is_versus, play_pairs
from sweepd.envs.games.play import random_actions
from sweepd.envs.games.registry import get_game
from sweepd.envs.support.errors import InputError, RunError
from sweepd.testing.vec_env import VecEnvTestCase
from tests.envs.external.stones_module import Stones

NAME = "pettingzoo:tests.envs.external.stones_module"


class TestStones(VecEnvTestCase):
    env = NAME


def made(games: int = 6, seed: int = 0, **arguments: Any) -> ExternalTurns:
    game = get_game(NAME)
    env = game.make([game.params(**arguments)], games, together=1, device="cpu")
    assert isinstance(env, ExternalTurns)
    env.reset(seed)
    return env


class Perfect:
    """Leaves a multiple of four stones where it can."""

    uniforms, memory = 0, 0

    def start(self, uniforms: torch.Tensor) -> torch.Tensor:
        return uniforms

    def act(
        self, obs: torch.Tensor, memory: torch.Tensor, uniforms: torch.Tensor, *_: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        del uniforms
        rest = obs.argmax(1) % 4
        return (rest - 1).clamp(min=0), memory


def test_every_step_is_that_of_the_environment() -> None:
    """Step by step, and game by game, against the environment itself."""
    env, games = made(5, seed=3), [Stones() for _ in range(5)]
    seeds = [int(row[0]) for row in env.state["history"]]
    for game, seed in zip(games, seeds, strict=True):
        game.reset(seed)
    generator = torch.Generator().manual_seed(1)
    ended = 0
    for _ in range(40):
        seen, mover, mask = env.observe(), env.to_move(), env.action_mask(torch.zeros(5, 0).long())
        for row, game in enumerate(games):
            own = game.observe(game.agent_selection)
            assert seen[row].tolist() == own["observation"].tolist()
            assert mask[row].tolist() == own["action_mask"].astype(bool).tolist()
            assert game.possible_agents[mover[row]] == game.agent_selection
        action = random_actions(env, generator)
        step = env.step(action)
        env.check()
        for row, game in enumerate(games):
            game.step(int(action[row]))
            assert step.reward[row].tolist() == [
                game.rewards[name] for name in game.possible_agents
            ]
            over = all(game.terminations.values())
            assert bool(step.terminated[row]) == over
            if over:
                ended += 1
                game.reset(int(env.state["history"][row, 0]))
    assert ended > 10


def test_perfect_play_beats_random_play() -> None:
    game = get_game(NAME)
    params = game.params(most=15)
    assert is_versus(game, params)
    entrants = [ScriptedEntrant("perfect", Perfect()), RandomEntrant()]
    found = play_pairs(game, params, entrants, [(0, 1)], 40, seed=0)
    assert found.points.mean() > 0.95
    again = play_pairs(game, params, entrants, [(0, 1)], 40, seed=0)
    assert (found.points == again.points).all()


def test_a_member_plays_against_opponents() -> None:
    game = get_game(NAME)
    opponents = Scripted({"perfect": Perfect()}, 1)
    assert game.versus is not None
    env = game.versus([game.params()], 8, together=1, device="cpu", opponents=opponents)
    env.reset(0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        env.step(random_actions(env, generator))
        env.check()
    games, points, _ = env.results()
    assert games.sum() > 20
    assert points.sum() < 0.25 * games.sum()


def test_positions_are_restored_by_their_decisions() -> None:
    env, generator = made(4), torch.Generator().manual_seed(2)
    for _ in range(7):
        env.step(random_actions(env, generator))
    state = env.get_member(0)
    actions = [random_actions(env, generator)]
    steps = [env.step(actions[0])]
    other = made(4, seed=9)
    other.set_member(0, state)
    again = other.step(actions[0])
    for one, two in zip(steps[0], again, strict=True):
        assert torch.equal(one, two)
    assert torch.equal(env.observe(), other.observe())


def test_masks_in_infos_and_a_limit_of_decisions() -> None:
    env = made(4, masks="info", max_episode_steps=2)
    assert (env.state_dim, env.max_step) == (10, 2)
    generator = torch.Generator().manual_seed(2)
    assert not env.step(random_actions(env, generator)).terminated.any()
    assert env.step(random_actions(env, generator)).terminated.all()
    env.check()


def test_observations_are_wrapped() -> None:
    wide = made(2)
    flat = made(2, wrappers=["flatten"])
    assert flat.state_dim == wide.state_dim
    assert torch.equal(flat.observe(), wide.observe())


def test_an_environment_that_raises_ends_the_run_with_its_traceback() -> None:
    env, generator = made(4, fails=1), torch.Generator().manual_seed(0)

    def play() -> None:
        for _ in range(30):
            env.step(random_actions(env, generator))

    with pytest.raises(RunError, match="RuntimeError: a stone is lost"):
        play()


def test_an_illegal_action_is_named_with_the_decisions() -> None:
    env = made(1, most=4)
    env.step(torch.tensor([1]))
    env.step(torch.tensor([2]))
    with pytest.raises(RunError, match=r"seed \d+, decisions: 1"):
        env.check()


def test_other_aec_environments_are_no_games_in_turns() -> None:
    def three() -> Stones:
        return Stones(agents=3)

    def parallel() -> Stones:
        found = Stones()
        found.metadata = {"is_parallelizable": True}
        return found

    for factory in (three, parallel):
        assert turns_game("name", FactorySource(factory), dict) is None


def test_arguments_that_the_environment_does_not_take_are_refused() -> None:
    with pytest.raises(InputError, match="cannot be made: TypeError"):
        made(2, heaps=3)
