"""PPO learns what cards are worth from their ids alone."""

from __future__ import annotations

import pytest
import torch

from agents.algorithms.ppo import PPO, PPOParams
from agents.networks.shape import Shape
from envs.games.scaling import random_play
from envs.games.tensor_game import NoParams
from envs.support.errors import InputError
from tests.agents.card_game import BestCard

SEEDS = (0, 1)


def test_ppo_learns_the_worth_of_cards() -> None:
    env = BestCard([NoParams()] * len(SEEDS), 128)
    scale = random_play(env, 0)
    shape = Shape.for_env(env, net_width=32, horizon=8, minibatch=128, epochs=4)
    ppo = PPO(shape)
    for slot, seed in enumerate(SEEDS):
        params = PPOParams(learning_rate=3e-3, entropy_coef=0.003)
        ppo.add_member(slot, params, seed, 30, scale.avg, scale.std)
    ppo.begin(env.reset(7))
    history = torch.stack([stats.reward for stats in ppo.train(env, 30)])
    assert history[0].max() < 0.5
    assert history[-3:].mean(0).min() > 0.9


def test_a_game_whose_items_do_not_fit_its_observations_is_refused() -> None:
    class Wide(BestCard):
        state_dim = BestCard.items.columns + 1

    with pytest.raises(InputError, match=r"Wide\.items has 7 columns, which needs obs_dtype"):
        Wide([NoParams()], 4)
