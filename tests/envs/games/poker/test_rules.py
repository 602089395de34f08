"""Kuhn and Leduc poker: the batch against plain Python and against OpenSpiel's games."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from sweepd.envs.games.poker.cards import deal, every_deal
from sweepd.envs.games.registry import get_game
from sweepd.envs.games.tensor_game import State, TensorGame
from tests.envs.games.poker.reference import KuhnGame, LeducGame

REFERENCES: dict[str, Callable[..., Any]] = {"kuhn": KuhnGame, "leduc": LeducGame}
REPEATS = {"kuhn": 20, "leduc": 40}


def rules_of(name: str, games: int) -> TensorGame:
    game = get_game(name)
    assert game.versus is not None
    env = game.versus([game.params()], games, together=1, device="cpu")
    assert isinstance(env, TensorGame)
    return env


def random_options(mask: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.multinomial(mask.double(), 1, generator=generator)[:, 0]


@pytest.mark.parametrize("name", REFERENCES)
def test_every_deal_is_equal_to_the_reference_in_random_play(name: str) -> None:
    once = rules_of(name, 1).deals()
    assert once is not None
    deals = once.repeat(REPEATS[name], 1)
    env, generator = rules_of(name, len(deals)), torch.Generator().manual_seed(3)
    state = env.start(deals)
    games = [REFERENCES[name](tuple(cards)) for cards in state["cards"].tolist()]
    alive = torch.ones(len(games), dtype=torch.bool)
    for _ in range(env.max_step):
        mover, mask = env.mover(state), env.mask(state, torch.zeros(len(games), 0).long())
        seen = [env.see(state, torch.full_like(mover, seat)).tolist() for seat in (0, 1)]
        for index in alive.nonzero()[:, 0].tolist():
            game = games[index]
            assert mover[index] == game.mover
            assert mask[index].tolist() == game.legal
            assert [own[index] for own in seen] == [game.seen(0), game.seen(1)]
        option = random_options(mask, generator)
        before = {key: tensor.clone() for key, tensor in state.items()}
        moved, reward, over = env.move(state, option, deals[:, :0])
        assert all(torch.equal(before[key], tensor) for key, tensor in state.items())
        for index in alive.nonzero()[:, 0].tolist():
            game = games[index]
            game.play(int(option[index]))
            assert bool(over[index]) == game.over
            wanted = game.returns if game.over else (0.0, 0.0)
            assert tuple(reward[index].tolist()) == wanted
        # What follows the end of a game is not defined.
        state = {key: keep(alive & ~over, moved[key], state[key]) for key in state}
        alive = alive & ~over
    assert not alive.any()


def keep(rows: torch.Tensor, new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    return torch.where(rows.view(-1, *[1] * (new.dim() - 1)), new, old)


@pytest.mark.parametrize("name", REFERENCES)
def test_random_games_are_those_of_open_spiel(name: str) -> None:
    """Movers, legal options, observations (its information state tensors) and returns."""
    pyspiel = pytest.importorskip("pyspiel", reason="OpenSpiel is not installed")
    theirs, env = pyspiel.load_game(f"{name}_poker"), rules_of(name, 1)
    once, chosen = env.deals(), torch.zeros(1, 0).long()
    assert once is not None
    rng = random.Random(5)
    for uniforms in once.split(1):
        for _ in range(3):
            ours: State = env.start(uniforms)
            cards = iter(ours["cards"][0].tolist())
            other, returns = theirs.new_initial_state(), [0.0, 0.0]
            while not other.is_terminal():
                if other.is_chance_node():
                    other.apply_action(next(cards))
                    continue
                seat = env.mover(ours)
                assert seat.item() == other.current_player()
                assert env.see(ours, seat)[0].tolist() == other.information_state_tensor()
                mask = env.mask(ours, chosen)[0]
                assert mask.nonzero()[:, 0].tolist() == other.legal_actions()
                option = rng.choice(other.legal_actions())
                ours, reward, over = env.move(ours, torch.tensor([option]), uniforms[:, :0])
                returns = [
                    own + more for own, more in zip(returns, reward[0].tolist(), strict=True)
                ]
                other.apply_action(option)
                assert bool(over) == other.is_terminal()
            assert returns == other.returns()


@pytest.mark.parametrize("name", REFERENCES)
def test_hidden_cards_change_no_observation(name: str) -> None:
    env = rules_of(name, 1)
    deals = env.deals()
    assert deals is not None
    env = rules_of(name, len(deals))
    state = env.start(deals)
    for seat in (0, 1):
        seen = env.see(state, torch.full((len(deals),), seat))
        own = state["cards"][:, seat]
        for card in own.unique():
            assert len(seen[own == card].unique(dim=0)) == 1
        assert len(seen.unique(dim=0)) == len(own.unique())


def test_deals_are_distinct_cards_and_equally_likely() -> None:
    every = deal(every_deal(3, 6), 6).tolist()
    assert sorted(every) == [list(cards) for cards in itertools.permutations(range(6), 3)]
    generator = torch.Generator().manual_seed(0)
    uniforms = torch.rand(60_000, 2, dtype=torch.float64, generator=generator)
    cards = deal(uniforms, 3)
    counts = torch.bincount(3 * cards[:, 0] + cards[:, 1], minlength=9).view(3, 3)
    assert counts.diagonal().tolist() == [0, 0, 0]
    assert (counts[~torch.eye(3, dtype=torch.bool)] / 10_000 - 1.0).abs().max() < 0.04


@pytest.mark.parametrize(("name", "most"), [("kuhn", 2.0), ("leduc", 13.0)])
def test_outcomes_are_the_share_of_the_chips(name: str, most: float) -> None:
    env = rules_of(name, 3)
    deals = env.deals()
    assert deals is not None
    returns = torch.tensor([[most, -most], [0.0, 0.0], [-most / 2, most / 2]]).double()
    found = env.outcome(env.start(deals[:3]), returns)
    assert found.tolist() == [[1.0, 0.0], [0.5, 0.5], [0.25, 0.75]]


def test_positions_are_described_in_words() -> None:
    env = rules_of("kuhn", 6)
    deals = env.deals()
    assert deals is not None
    state, _, _ = env.move(env.start(deals), torch.ones(6).long(), deals[:, :0])
    assert env.describe(state, 5) == "cards K and Q, decisions: bet"
    env = rules_of("leduc", 120)
    deals = env.deals()
    assert deals is not None
    state, _, _ = env.move(env.start(deals), torch.full((120,), 2), deals[:, :0])
    assert env.describe(state, 0) == (
        "cards J1 and J2, public card Q1, stakes [3.0, 1.0], decisions of round 1: raise; of round "
        "2: none"
    )
