"""Bucket Brigade's baseline players: those that published results are measured with, many at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from envs.games.bucket_brigade.observation import ObservationEncoder
from envs.games.bucket_brigade.rules import BURNING, REST, WORK
from envs.support.errors import InputError


class Sight(NamedTuple):
    """What a player goes by. burning: (rows, H) bool; agent: (rows,) int64, who each one is; agents: N."""

    burning: Tensor
    agent: Tensor
    agents: int

    @property
    def own_house(self) -> Tensor:
        """(rows,): the lowest house that is an agent's own; where it owns none, one to rest at."""
        return self.agent % self.burning.shape[1]


class Theta(NamedTuple):
    """How a heuristic player decides. (The original has ten such numbers; the others have no effect.)

    work, rest: it works with the probability work * (1 - rest). own_first: how often it looks after its own house
    where that burns, before any other. honesty: how often its signal is what it does.
    """

    honesty: float
    work: float
    own_first: float
    rest: float


# uniform: (rows, 4) numbers in [0, 1), all that a player needs of chance. Returns (rows, 3) int64.
Player = Callable[[Sight, Tensor], Tensor]

ARCHETYPES = {
    "firefighter": Theta(1.0, 0.9, 0.8, 0.0),
    "free_rider": Theta(0.7, 0.2, 0.9, 0.9),
    "hero": Theta(1.0, 1.0, 0.5, 0.0),
    "coordinator": Theta(0.9, 0.6, 0.6, 0.2),
    "liar": Theta(0.1, 0.7, 0.9, 0.4),
}


def random_player(sight: Sight, uniform: Tensor) -> Tensor:
    """Any house, mode and signal."""
    options = torch.tensor([sight.burning.shape[1], 2, 2], device=uniform.device)
    return (uniform[:, :3] * options).to(torch.int64)


def resting_player(sight: Sight, uniform: Tensor) -> Tensor:  # noqa: ARG001
    """Rests, and says so."""
    return _action(
        sight.own_house, torch.full_like(sight.agent, REST), torch.full_like(sight.agent, REST)
    )


def specialist(sight: Sight, uniform: Tensor) -> Tensor:  # noqa: ARG001
    """Works at the lowest of its own houses that burns, otherwise rests; says so."""
    houses = sight.burning.shape[1]
    number = torch.arange(houses, device=sight.burning.device)
    own = sight.burning & (number % sight.agents == sight.agent.unsqueeze(1))
    lowest = torch.where(own, number, houses).amin(1)
    works = lowest < houses
    mode = torch.where(works, WORK, REST)
    return _action(torch.where(works, lowest, sight.own_house), mode, mode)


def heuristic(theta: Theta) -> Player:
    """A player with those probabilities."""

    def play(sight: Sight, uniform: Tensor) -> Tensor:
        own = sight.own_house
        works = uniform[:, 0] < theta.work * (1.0 - theta.rest)
        own_burns = sight.burning.gather(1, own.unsqueeze(1)).squeeze(1)
        stays = (own_burns & (uniform[:, 1] < theta.own_first)) | ~works
        house = torch.where(stays, own, _any_burning(sight.burning, uniform[:, 2], own))
        mode = torch.where(works, WORK, REST)
        return _action(house, mode, torch.where(uniform[:, 3] < theta.honesty, mode, 1 - mode))

    return play


PLAYERS: dict[str, Player] = {
    "random": random_player,
    "rest": resting_player,
    "specialist": specialist,
    **{name: heuristic(theta) for name, theta in ARCHETYPES.items()},
}


class ScriptedPolicy:
    """A player at every seat, acting on observations; its chance comes from a stream of its own."""

    def __init__(self, player: str | Player, seen: ObservationEncoder, seed: int) -> None:
        """player: one, or a name in `PLAYERS`. seen: the environment's. Raises InputError for an unknown name."""
        if isinstance(player, str):
            if player not in PLAYERS:
                raise InputError(
                    f"the player {player!r} is not known; choose one of {', '.join(PLAYERS)}"
                )
            player = PLAYERS[player]
        self._player, self._seen = player, seen
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, obs: Tensor) -> Tensor:
        """(rows, 3) int64 actions on (rows, size) observations."""
        burning = self._seen.houses_in(obs) == BURNING
        uniform = torch.rand(len(obs), 4, generator=self._generator).to(obs.device)
        return self._player(
            Sight(burning, self._seen.agent_in(obs), self._seen.num_agents), uniform
        )


def _any_burning(burning: Tensor, uniform: Tensor, otherwise: Tensor) -> Tensor:
    """(rows,): one of the burning houses, all as likely; `otherwise` where none burns."""
    count = burning.sum(1)
    chosen = (uniform * count).to(torch.int64).clamp_max(count - 1)
    house = ((burning.cumsum(1) - 1 == chosen.unsqueeze(1)) & burning).to(torch.uint8).argmax(1)
    return torch.where(count > 0, house, otherwise)


def _action(house: Tensor, mode: Tensor, signal: Tensor) -> Tensor:
    return torch.stack([house, mode, signal], dim=1)
