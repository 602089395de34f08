"""Leagues: the players of a multi-player game meet in all pairs, in one batch of games.

In each game, one seat belongs to the row player and all others to the column player; the row
player's seat changes from game to game. On the diagonal, a player plays against itself. All pairs
use the same random numbers of the game.

In the restricted game, a player's payoff against a table of player j is its own mean return there.
A mixture stands for a whole table: all other seats draw the same player.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sweepd.agents.policy.equilibrium import Mixture, equilibrium
from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.members import Member
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.games.game import Game
from sweepd.envs.games.play import play_episodes
from sweepd.envs.support.errors import InputError, RunError

Floats = NDArray[np.float64]
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Players:
    """Players that act in one call.

    Attributes:
        names: of the players.
        act: from observations to actions; rows are grouped by player in this order, equally many
            each.
    """

    names: tuple[str, ...]
    act: Callable[[Tensor], Tensor]


def frozen_players(
    names: Sequence[str], members: Sequence[Member], seed: int | None = None
) -> Players:
    """Return trained members as separate players.

    Args:
        names: of the players.
        members: likewise.
        seed: of the random numbers with which they draw their actions, the same for all of them;
            None: they act deterministically.

    Raises:
        InputError: a member is not an actor, or cannot be sampled.
    """
    policies = [FrozenPolicy([member]) for member in members]
    generator = None if seed is None else torch.Generator().manual_seed(seed)

    def act(obs: Tensor) -> Tensor:
        parts = obs.chunk(len(policies))
        if generator is not None:
            shape = len(parts[0]), policies[0].uniforms
            drawn = torch.rand(shape, generator=generator, dtype=torch.float64)
            pairs = zip(policies, parts, strict=True)
            return torch.cat([policy.sample_batch(part, drawn) for policy, part in pairs])
        return torch.cat(
            [policy.act_batch(part) for policy, part in zip(policies, parts, strict=True)]
        )

    return Players(tuple(names), act)


@dataclass(frozen=True)
class Matches:
    """The scores of all pairs.

    Attributes:
        names: of P players.
        seats: of the game.
        own: (P, P, games) float64, returns of the row player at its seat.
        others: (P, P, games) float64, returns of the column player, mean over its seats.
    """

    names: tuple[str, ...]
    seats: int
    own: Floats
    others: Floats

    @property
    def team(self) -> Floats:
        """(P, P, games), the sum over all seats."""
        return self.own + (self.seats - 1) * self.others

    @property
    def payoffs(self) -> Floats:
        """(P, P), the restricted game."""
        return np.asarray(self.own.mean(-1))


def play_matches(
    game: Game, params: Any, players: Sequence[Players], games: int, seed: int
) -> Matches:
    """Play `games` games of every row player against every column player.

    The game's baseline players are appended to `players`.

    Args:
        game: the game.
        params: its parameters.
        players: groups of players.
        games: per pair, a multiple of the number of seats.
        seed: of all random numbers.

    Raises:
        InputError: the game has one seat, or `games` is not such a multiple.
    """
    seats = game.seats(params)
    if seats < 2 or games < 1 or games % seats:
        raise InputError(
            f"{game.name} has {seats} seats: a league needs several, and games in multiples of them"
        )
    groups = [*players]
    # Baseline players depend only on the layout of observations, which is the same for all params.
    baselines = game.players(params, derive_seed(seed, "players"))
    groups += [Players((name,), act) for name, act in baselines.items()]
    names = tuple(name for group in groups for name in group.names)
    count = len(names)
    # One member of the environment per pair (row player, column player).
    env = game.make([params] * count**2, games, together=1, device="cpu")
    env.reset([derive_seed(seed, "games")] * count**2)

    # Rows in the order of players, so that each group acts in one call; `order[k]` is the row at
    # place k, and writing to `actions[order]` undoes the permutation.
    order = torch.from_numpy(np.argsort(_seating(count, games, seats), kind="stable"))
    sizes = [len(group.names) * games * seats * count for group in groups]

    def act(obs: Tensor) -> Tensor:
        parts = torch.split(obs[order], sizes)
        made = torch.cat([group.act(part) for group, part in zip(groups, parts, strict=True)])
        actions = torch.empty_like(made)
        actions[order] = made
        return actions

    returns = play_episodes(env, act).returns.reshape(count, count, games, seats)
    # The row player's seat in each game.
    focal = (np.arange(games) % seats).reshape(1, 1, -1, 1)
    own = np.take_along_axis(returns, np.broadcast_to(focal, (count, count, games, 1)), -1)[..., 0]
    return Matches(names, seats, own, (returns.sum(-1) - own) / (seats - 1))


def _seating(players: int, games: int, seats: int) -> NDArray[np.int64]:
    """Return (players * players * games * seats,), the player at each row's seat."""
    row, column, game, seat = np.ogrid[:players, :players, :games, :seats]
    return np.where(seat == game % seats, row, column).reshape(-1)


def interval(scores: Floats) -> tuple[Floats, Floats]:
    """Return the mean over the last axis and the half-width of its confidence interval (normal)."""
    reach = (
        NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
        * scores.std(-1, ddof=1)
        / np.sqrt(scores.shape[-1])
    )
    return scores.mean(-1), reach


@dataclass(frozen=True)
class Exploitation:
    """The best response to a mixture.

    Attributes:
        by: index of the player.
        gain: of its own return over the mixture's.
        low: lower bound of the confidence interval of the gain.
        high: its upper bound.
    """

    by: int
    gain: float
    low: float
    high: float


def exploitation(own: Floats, mixture: Floats) -> Exploitation:
    """Return the best response, among its players, to a mixture.

    The gain is at most 0 if the mixture is an equilibrium. Since all pairs share random numbers,
    the interval is that of the differences per game. It does not account for the choice of the best
    of P.

    Args:
        own: (P, P, games), as in `Matches`.
        mixture: (P,).
    """
    # Per game: (P, games), each player's return against the mixture; then minus the mixture's own.
    against_mixture = np.einsum("ijg,j->ig", own, mixture)
    gains = against_mixture - mixture @ against_mixture
    # The best response is a pure strategy: a mixture's gain is a mean of its players' gains.
    by = int(gains.mean(-1).argmax())
    gain, reach = interval(gains[by])
    return Exploitation(by, float(gain), float(gain - reach), float(gain + reach))


def restricted(matches: Matches, among: int) -> Mixture:
    """Return the equilibrium among the first `among` players, with weight 0 for the others."""
    found = equilibrium(matches.payoffs[:among, :among])
    weights = np.concatenate([found.weights, np.zeros(len(matches.names) - among)])
    return dataclasses.replace(found, weights=weights)


def report(matches: Matches, members: int) -> dict[str, Any]:
    """Return all results as JSON.

    An equilibrium that was not found in time is {"unsolved": reason}.

    Args:
        matches: the scores.
        members: how many of the first players belong to the population.
    """
    described: dict[str, Any] = {
        "players": list(matches.names),
        "members": members,
        "seats": matches.seats,
        "games": matches.own.shape[-1],
        "confidence": CONFIDENCE,
    }
    for name, scores in (("own", matches.own), ("team", matches.team)):
        mean, reach = interval(scores)
        # Equal games say nothing about the games that were not played: no bounds.
        equal = (scores == scores[..., :1]).all(-1)
        described[name] = {
            "mean": mean.tolist(),
            # `tolist` gives None for what is masked.
            "low": np.ma.masked_array(mean - reach, equal).tolist(),
            "high": np.ma.masked_array(mean + reach, equal).tolist(),
        }
    among = {"all": len(matches.names)}
    if 0 < members < len(matches.names):
        among = {"members": members, **among}
    described["equilibrium"] = {who: _described(matches, count) for who, count in among.items()}
    return described


def _described(matches: Matches, among: int) -> dict[str, Any]:
    try:
        found = restricted(matches, among)
    except RunError as error:
        return {"unsolved": str(error)}
    return {
        "weights": {
            name: round(float(w), 6)
            for name, w in zip(matches.names, found.weights, strict=True)
            if w
        },
        "payoff": found.payoff,
        "payoff_bound": found.bound,
        "exploitability": _told(exploitation(matches.own, found.weights), matches.names),
    }


def _told(found: Exploitation, names: Sequence[str]) -> dict[str, Any]:
    return {"gain": found.gain, "low": found.low, "high": found.high, "by": names[found.by]}
