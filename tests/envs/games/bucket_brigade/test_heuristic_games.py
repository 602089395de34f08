"""Heuristic players of ten numbers: against games and players in plain Python, one by one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.games.bucket_brigade import heuristic_games
from sweepd.envs.games.bucket_brigade.game import BucketBrigade
from sweepd.envs.games.bucket_brigade.heuristic_games import (
    run_heuristic_episode,
    run_heuristic_episode_focal,
)
from sweepd.envs.games.bucket_brigade.players import ARCHETYPES, Theta
from sweepd.envs.games.bucket_brigade.scenarios import BucketParams, scenario
from sweepd.envs.support.errors import InputError
from tests.envs.games.bucket_brigade.samples import ScalarGame
from tests.envs.games.recordings import reference_file

SEED, EPISODES = 7, 6
FIERY = scenario("positional_default", prob_house_catches_fire=0.2, min_nights=6, max_nights=20)


def numbers(theta: Theta) -> list[float]:
    """The ten numbers of the original; those without effect are arbitrary."""
    found = [0.3] * 10
    for place, value in zip((0, 1, 3, 8), theta, strict=True):
        found[place] = float(value)
    return found


def some_players(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((count, 10))


def scalar_action(theta: Any, burning: list[int], agent: int, uniform: Any) -> tuple[int, int, int]:
    """The player in plain Python. burning: numbers of the burning houses; uniform: (4,)."""
    works = uniform[0] < theta[1] * (1.0 - theta[8])
    house = agent  # there are more houses than agents
    stays = agent in burning and uniform[1] < theta[3]
    if works and not stays and burning:
        house = burning[int(uniform[2] * len(burning))]
    return house, int(works), int(works) if uniform[3] < theta[0] else 1 - int(works)


def scalar_returns(
    seated: np.ndarray,
    params: BucketParams,
    chances: tuple[Tensor, Tensor],
    games: Sequence[int] = range(EPISODES),
) -> np.ndarray:
    """Play games one by one in plain Python.

    Args:
        seated: (episodes, N, 10) the players.
        params: of the game.
        chances: uniform numbers of the games: (H, episodes) of their beginnings, and (nights, H,
            episodes).
        games: their places among all `EPISODES` games.

    Returns:
        (episodes, N) returns.
    """
    starts, nights = chances
    episodes, agents = seated.shape[:2]
    total = np.zeros((episodes, agents))
    generator = torch.Generator().manual_seed(derive_seed(SEED, "players"))
    drawn = [
        torch.rand(EPISODES * agents, 4, generator=generator, dtype=torch.float64) for _ in nights
    ]
    uniforms = torch.stack(drawn).view(len(nights), EPISODES, agents, 4)[:, list(games)]
    # One number decides both: below the chance the house ignites, and where it lies in its part
    # decides whether workers put out the fire.
    chance = params.prob_house_catches_fire
    rest = torch.where(nights < chance, nights / chance, (nights - chance) / (1.0 - chance))
    for episode in range(episodes):
        game = ScalarGame(params)
        game.reset(starts[:, episode])
        for night in range(len(nights)):
            burning = [house for house, state in enumerate(game.houses) if state == 1]
            actions = [
                scalar_action(
                    seated[episode, agent], burning, agent, uniforms[night, episode, agent].tolist()
                )
                for agent in range(agents)
            ]
            ignites = nights[night, :, episode]
            made, over, cut = game.step(actions, rest[night, :, episode], None, ignites)
            total[episode] += made
            if over or cut:
                break
    return total


@pytest.fixture
def chances(monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, Tensor]:
    """The uniform numbers of the first member's games: of their beginnings, and of their nights."""
    drawn: list[Tensor] = []
    make = BucketBrigade._uniform_of

    def recorded(env: BucketBrigade, member: int, games: int) -> Any:
        uniform = make(env, member, games)

        def draw(nights: int) -> Tensor:
            found = uniform(nights)
            if member == 0:
                drawn.append(found.clone())
            return found

        return draw

    monkeypatch.setattr(BucketBrigade, "_uniform_of", recorded)
    run_heuristic_episode(some_players(1), FIERY, EPISODES, SEED)
    # What is drawn at once for many nights comes after the houses that burn at first.
    at = next(index for index, one in enumerate(drawn) if len(one) >= FIERY.max_nights)
    assert drawn[at - 1].shape == (1, FIERY.num_houses, EPISODES)
    return drawn[at - 1][0], drawn[at]


def test_teams_are_those_of_plain_python(chances: tuple[Tensor, Tensor]) -> None:
    players = np.concatenate([some_players(5), [numbers(own) for own in ARCHETYPES.values()]])
    found = run_heuristic_episode(players, FIERY, EPISODES, SEED)
    assert found.shape == (10, EPISODES)
    for player, own in zip(players, found, strict=True):
        seated = np.broadcast_to(player, (EPISODES, FIERY.num_agents, 10))
        returns = scalar_returns(seated, FIERY, chances)
        assert own.tolist() == pytest.approx(returns.sum(1).tolist(), abs=1e-3)


def test_a_focal_player_has_the_first_seat_among_the_population(
    chances: tuple[Tensor, Tensor],
) -> None:
    players, population = some_players(4), some_players(3, seed=1)
    found = run_heuristic_episode_focal(players, population, FIERY, EPISODES, SEED)
    generator = torch.Generator().manual_seed(derive_seed(SEED, "background"))
    drawn = torch.randint(3, (EPISODES, FIERY.num_agents), generator=generator).numpy()
    for player, own in zip(players, found, strict=True):
        seated = population[drawn]
        seated[:, 0] = player
        returns = scalar_returns(seated, FIERY, chances)
        assert own.tolist() == pytest.approx(returns[:, 0].tolist(), abs=1e-3)


def test_other_seats_are_drawn_with_equal_chances(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []

    def note(seated: Tensor, *_: Any) -> np.ndarray:
        seen.append(seated)
        return np.zeros(seated.shape[:3])

    monkeypatch.setattr(heuristic_games, "_play", note)
    population = np.linspace(0.0, 0.4, 5)[:, None].repeat(10, 1)
    run_heuristic_episode_focal([[1.0] * 10], population, "default", 20_000, 0)
    others = (seen[0][0, :, 1:, 0] / 0.1).round().long().flatten()
    shares = torch.bincount(others, minlength=5) / len(others)
    assert shares.tolist() == pytest.approx([0.2] * 5, abs=0.01)
    assert (seen[0][0, :, 0] == 1.0).all()


def test_returns_do_not_depend_on_other_players(monkeypatch: pytest.MonkeyPatch) -> None:
    players = some_players(5)
    together = run_heuristic_episode(players, "default_continuous", EPISODES, SEED)
    for player, own in zip(players, together, strict=True):
        alone = run_heuristic_episode(player[None], "default_continuous", EPISODES, SEED)[0]
        assert alone.tolist() == own.tolist()
    monkeypatch.setattr(heuristic_games, "MOST_GAMES", 2 * EPISODES)  # two players at once
    in_parts = run_heuristic_episode(players, "default_continuous", EPISODES, SEED)
    assert in_parts.tolist() == together.tolist()


def test_means_are_the_recorded_ones() -> None:
    recorded = {
        own["policy"]: own
        for own in json.loads(reference_file("bucket_brigade_baselines.json").read_text())
        if own["scenario"] == "hard" and own["policy"] in ARCHETYPES
    }
    players = [numbers(ARCHETYPES[name]) for name in recorded]
    found = run_heuristic_episode(players, "hard", 2000, 3)
    for own, known in zip(found, recorded.values(), strict=True):
        error = np.hypot(own.std(ddof=1) / np.sqrt(own.size), known["se"])
        assert own.mean() == pytest.approx(known["team_return"], abs=4.0 * error)


@pytest.mark.parametrize(
    ("thetas", "changes", "sentence"),
    [
        ([[0.5] * 9], {}, r"thetas must have the shape \(players, 10\), not \(1, 9\)"),
        ([0.5] * 10, {}, r"not \(10,\)"),
        (np.zeros((0, 10)), {}, r"not \(0, 10\)"),
        ([[0.5] * 9 + [1.1]], {}, "must be numbers from 0 to 1"),
        ([[0.5] * 9 + [float("nan")]], {}, "must be numbers from 0 to 1"),
        ([[0.5] * 10], {"episodes": 0}, "episodes is 0; it must be at least 1"),
        ([[0.5] * 10], {"scenario": "nope"}, "the scenario 'nope' is not known"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    thetas: Any, changes: dict[str, Any], sentence: str
) -> None:
    given = {"scenario": "default", "episodes": 2, "seed": 0} | changes
    with pytest.raises(InputError, match=sentence):
        run_heuristic_episode(thetas, **given)
    with pytest.raises(InputError, match=sentence):
        run_heuristic_episode_focal(thetas, [[0.5] * 10], **given)


def test_a_wrong_population_is_named() -> None:
    with pytest.raises(InputError, match="background must have the shape"):
        run_heuristic_episode_focal([[0.5] * 10], [[0.5]], "default", 2, 0)
