"""Games of heuristic players given by the original's ten numbers, for searches outside of sweepd.

The functions have the names of the original's (R. Walters, github.com/rjwalters/bucket-brigade).
All players of a call play the same games: their differences are not due to luck, and a player's
returns do not depend on the others.
"""

from __future__ import annotations

from contextlib import closing

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.games.bucket_brigade.game import BucketBrigade
from sweepd.envs.games.bucket_brigade.mixture import Params, read_scenario
from sweepd.envs.games.bucket_brigade.players import Theta, heuristic, sight
from sweepd.envs.games.pairings import block_uniforms
from sweepd.envs.games.play import play_episodes
from sweepd.envs.support.errors import InputError

Floats = NDArray[np.float64]
SIZE = 10  # numbers of the original's players
# Those that have an effect.
HONESTY, WORK, OWN_FIRST, REST = 0, 1, 3, 8
MOST_GAMES = 2**15  # played at once; with more, players follow one another


def run_heuristic_episode(
    thetas: ArrayLike, scenario: str | Params, episodes: int, seed: int
) -> Floats:
    """Play every player at all seats.

    Args:
        thetas: (P, 10) numbers from 0 to 1: 0 is honesty, 1 work, 3 own house first and 8 rest
            (see `sweepd.envs.games.bucket_brigade.players.Theta`); the others have no effect.
        scenario: a scenario or a mixture of some, as `read_scenario` takes it, or parameters.
        episodes: games of each player.
        seed: of all random numbers.

    Returns:
        (P, episodes) returns of the team, the sums over all seats.

    Raises:
        InputError: an argument is not of that form.
    """
    players, params = _checked("thetas", thetas), _params(scenario, episodes)
    seats = episodes, params.num_agents, SIZE
    returns = _play(players.view(-1, 1, 1, SIZE).expand(-1, *seats), params, seed)
    return np.asarray(returns.sum(-1))


def run_heuristic_episode_focal(
    thetas: ArrayLike, background: ArrayLike, scenario: str | Params, episodes: int, seed: int
) -> Floats:
    """Play every player at the first seat, among players of a population.

    Args:
        thetas: (P, 10) numbers of the players, see `run_heuristic_episode`.
        background: (B, 10) numbers of the population. In each game, every other seat gets one of
            its players, with equal chances; the same for all players.
        scenario: a scenario or a mixture of some, as `read_scenario` takes it, or parameters.
        episodes: games of each player.
        seed: of all random numbers.

    Returns:
        (P, episodes) returns of the player at the first seat.

    Raises:
        InputError: an argument is not of that form.
    """
    players, population = _checked("thetas", thetas), _checked("background", background)
    params = _params(scenario, episodes)
    generator = torch.Generator().manual_seed(derive_seed(seed, "background"))
    drawn = torch.randint(len(population), (episodes, params.num_agents), generator=generator)
    seated = population[drawn].expand(len(players), -1, -1, -1).clone()
    seated[:, :, 0] = players.unsqueeze(1)
    return _play(seated, params, seed)[..., 0]


def _play(seated: Tensor, params: Params, seed: int) -> Floats:
    """Play the games of players. seated: (P, episodes, N, 10); returns the same without the last."""
    players, episodes, seats = seated.shape[:3]
    at_once = max(1, MOST_GAMES // episodes)
    parts = [_play_at_once(part, params, seed) for part in torch.split(seated, at_once)]
    return np.concatenate(parts).reshape(players, episodes, seats)


def _play_at_once(seated: Tensor, params: Params, seed: int) -> Floats:
    players, episodes, seats = seated.shape[:3]
    honesty, work, own_first, rest = (
        seated[..., place].flatten() for place in (HONESTY, WORK, OWN_FIRST, REST)
    )
    player = heuristic(Theta(honesty, work, own_first, rest))
    draw = block_uniforms(episodes * seats, derive_seed(seed, "players"))
    with closing(BucketBrigade([params] * players, episodes * seats, scaled=False)) as env:
        env.reset([derive_seed(seed, "games")] * players)

        def act(obs: Tensor) -> Tensor:
            return player(sight(env.encoder, obs), draw(obs, 4))

        return play_episodes(env, act).returns


def _checked(name: str, thetas: ArrayLike) -> Tensor:
    numbers = np.asarray(thetas, dtype=np.float64)
    if numbers.ndim != 2 or numbers.shape[1] != SIZE or not len(numbers):
        raise InputError(f"{name} must have the shape (players, {SIZE}), not {numbers.shape}")
    if not ((numbers >= 0.0) & (numbers <= 1.0)).all():
        raise InputError(f"{name} must be numbers from 0 to 1")
    return torch.from_numpy(numbers)


def _params(scenario: str | Params, episodes: int) -> Params:
    if episodes < 1:
        raise InputError(f"episodes is {episodes}; it must be at least 1")
    return read_scenario(scenario) if isinstance(scenario, str) else scenario
