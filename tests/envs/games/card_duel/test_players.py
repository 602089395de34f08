"""The scripted players as tensors against their scalar counterparts."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from sweepd.envs.games.card_duel.layout import Board
from sweepd.envs.games.card_duel.masks import (
    Legal,
    first_mask,
    legal_actions,
    second_mask,
    type_mask,
)
from sweepd.envs.games.card_duel.observation import observe
from sweepd.envs.games.card_duel.players import PLAYERS
from tests.envs.games.card_duel.sample_games import Pair, choose
from tests.envs.games.card_duel.scalar_players import Greedy, random_choice
from tests.envs.games.card_duel.test_rules import some_decks, step


def choices(pair: Pair, name: str, uniforms: Tensor) -> list[list[int]]:
    """Return a player's choices in all games."""
    legal = legal_actions(Board(pair.cells))

    def options(chosen: Tensor) -> Tensor:
        return mask(legal, chosen)

    decisions = torch.tensor([game.decisions for game in pair.games], dtype=torch.int16)
    obs = observe(pair.cells, decisions, Board(pair.cells).mover.long())
    memory = torch.zeros(len(pair.games), 0, dtype=torch.float64)
    found: list[list[int]] = PLAYERS[name].act(obs, memory, uniforms, options)[0].tolist()
    return found


def mask(legal: Legal, chosen: Tensor) -> Tensor:
    if chosen.shape[1] == 0:
        return type_mask(legal)
    if chosen.shape[1] == 1:
        return first_mask(legal, chosen[:, 0])
    return second_mask(legal, chosen[:, 0], chosen[:, 1])


def check_players(seed: int, games: int, *, greedy_share: float) -> int:
    """Compare choices in games played greedily and at random; return how many."""
    pair, rng, compared = Pair(some_decks(games, seed), seed), random.Random(seed), 0
    while pair.games:
        uniforms = torch.rand(len(pair.games), 3, dtype=torch.float64, generator=pair.generator)
        greedy = choices(pair, "greedy", uniforms[:, :0])
        at_random = choices(pair, "random", uniforms)
        actions = []
        for index, game in enumerate(pair.games):
            assert tuple(greedy[index]) == Greedy(game).choice(), game.__dict__
            assert tuple(at_random[index]) == random_choice(game, uniforms[index].tolist())
            first, second, third = greedy[index]
            greedily = rng.random() < greedy_share
            actions.append((first, second, third) if greedily else choose(game, rng))
        compared += len(actions)
        step(pair, actions, looks=False)
        going = [index for index, game in enumerate(pair.games) if game.winner is None]
        pair.games, pair.cells = [pair.games[index] for index in going], pair.cells[:, going]
    return compared


def test_players_choose_as_their_scalar_counterparts() -> None:
    compared = check_players(1, 1, greedy_share=1.0)
    compared += check_players(2, 2, greedy_share=0.5)
    assert compared > 100
