"""PPO learns what cards are worth from their ids alone."""

from __future__ import annotations

import torch

from sweepd.agents.algorithms.ppo import PPO, PPOParams
from sweepd.agents.algorithms.table import get_algorithm
from sweepd.agents.networks.shape import Shape
from sweepd.agents.networks.spec import specs_of
from sweepd.envs.games.card_duel.cards import CARDS, CHAMPION
from sweepd.envs.games.card_duel.game import CardDuel, CardDuelParams
from sweepd.envs.games.card_duel.observation import GROUPS, ITEMS, seen
from sweepd.envs.games.scaling import random_play
from sweepd.envs.games.tensor_game import NoParams
from tests.agents.card_game import HAND, BestCard

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


def test_ppo_trains_on_the_card_duel() -> None:
    env = CardDuel([CardDuelParams()] * 2, 16)
    shape = Shape.for_env(
        env, net_width=16, horizon=16, minibatch=64, epochs=2, autoregressive=True
    )
    ppo, scale = PPO(shape), random_play(env, 0)
    for slot in range(2):
        ppo.add_member(slot, PPOParams(), slot, 3, scale.avg, scale.std)
    ppo.begin(env.reset(1))
    before = ppo.export_member(0)[0]["items.embedding"]
    ppo.train(env, 2)
    assert ppo.diverged == [False, False]
    after = ppo.export_member(0)[0]["items.embedding"]
    assert not after[0].any()
    # Cards that were seen have moved; so has the champion, which is always there.
    assert (after != before).any(1).sum() > len(CARDS) / 2
    assert (after[CHAMPION] != before[CHAMPION]).any()
    # The layout is that of the observation.
    obs = env.observe()
    groups = torch.cat([seen(obs, name)[..., 0] for name, _, _ in GROUPS], 1)
    assert torch.equal(obs[:, ITEMS.id_columns()], groups)
    assert int(groups.max()) == CHAMPION == ITEMS.vocabulary - 1


def test_a_search_space_may_name_the_width_of_items() -> None:
    extras = get_algorithm("ppo").extras
    assert extras["item_width"] == Shape(state_dim=1, action_dim=1).item_width
    narrow = Shape.for_env(BestCard([NoParams()], 8), item_width=3)
    for spec in specs_of(narrow):
        assert spec.inputs == 3 * (HAND + 1 + 2) + 1
