"""PettingZoo's AEC environments of any number of agents: each is a row, absent until its turn."""

from __future__ import annotations

import numpy as np
import torch

from sweepd.envs.external.vec_env import ExternalVecEnv
from sweepd.envs.games.play import random_actions
from tests.envs.external.ring_module import Ring

GAMES, AGENTS = 5, 3


def test_rows_are_those_of_the_environment_turn_by_turn() -> None:
    """Against the API's own loop (`agent_iter`, `last`): who observes what, rewards and ends."""
    env = ExternalVecEnv(Ring, 1, GAMES * AGENTS)
    env.reset(7)
    games = [Ring() for _ in range(GAMES)]
    for game, seed in zip(games, env.last_seeds(0), strict=True):
        game.reset(seed)
    generator = torch.Generator().manual_seed(0)
    got, wanted = np.zeros((GAMES, AGENTS)), np.zeros((GAMES, AGENTS))
    finished, truncated = 0, 0
    for _ in range(120):
        seen, present = env.observe().view(GAMES, AGENTS, -1), env.present().view(GAMES, AGENTS)
        mask = env.action_mask(torch.zeros(GAMES * AGENTS, 0).long()).view(GAMES, AGENTS, -1)
        for index, game in enumerate(games):
            mover = game.possible_agents.index(game.agent_selection)
            assert present[index].nonzero().flatten().tolist() == [mover]
            own = game.observe(game.agent_selection)
            assert seen[index, mover].tolist() == own["observation"].tolist()
            assert mask[index, mover].tolist() == own["action_mask"].astype(bool).tolist()
        action = random_actions(env, generator)
        step = env.step(action)
        env.check()
        reward = step.reward.view(GAMES, AGENTS).double().numpy()
        over = (step.terminated | step.truncated).view(GAMES, AGENTS)
        for index, game in enumerate(games):
            mover = game.possible_agents.index(game.agent_selection)
            live = {name for name in game.agents if not game.terminations[name]}
            got[index] += reward[index]
            # `last` gives an agent the rewards since its last action, also in its dead step.
            game.step(int(action.view(GAMES, AGENTS)[index, mover]))
            ended = {name for name, done in game.terminations.items() if done}
            late = {name for name, done in game.truncations.items() if done}
            for name in live:
                row = index * AGENTS + game.possible_agents.index(name)
                assert bool(step.terminated[row]) == (name in ended)
                assert bool(step.truncated[row]) == (name in late)
            truncated += len(late)
            while game.agents and any(game.last(observe=False)[2:4]):
                agent = game.agent_selection
                wanted[index, game.possible_agents.index(agent)] += game.last(observe=False)[1]
                game.step(None)
            if not game.agents:
                finished += 1
                assert over[index].sum() == len(live)
                # Of the last rewards, all have been told in dead steps.
                game.reset()
            elif game.agent_selection != game.possible_agents[mover]:
                agent = game.possible_agents.index(game.agent_selection)
                wanted[index, agent] += game.last(observe=False)[1]
                game._cumulative[game.agent_selection] = 0.0
    assert finished > 20
    assert truncated > 5
    for index, game in enumerate(games):  # what `last` has not told yet
        for name, rest in game._cumulative.items():
            wanted[index, game.possible_agents.index(name)] += rest
    assert np.allclose(got, wanted)
