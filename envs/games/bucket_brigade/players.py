"""Baseline players of Bucket Brigade, those of published results, for many rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from sweepd.envs.games.bucket_brigade.observation import ObservationEncoder
from sweepd.envs.games.bucket_brigade.rules import BURNING, REST, WORK
from sweepd.envs.support.errors import InputError


class Sight(NamedTuple):
    """What a player decides by.

    Attributes:
        burning: (rows, H) bool.
        agent: (rows,) int64, each row's own agent.
        agents: The number of agents N.
    """

    burning: Tensor
    agent: Tensor
    agents: int

    @property
    def own_house(self) -> Tensor:
        """(rows,): the agent's own house with the lowest number; any house if it owns none."""
        return self.agent % self.burning.shape[1]


def sight(encoder: ObservationEncoder, obs: Tensor) -> Sight:
    """Return what players decide by, from observations (rows, size)."""
    return Sight(encoder.houses_in(obs) == BURNING, encoder.agent_in(obs), encoder.num_agents)


class Theta(NamedTuple):
    """Probabilities by which a heuristic player decides, or (rows,) tensors of those of many.

    The original has ten such numbers; the other six have no effect.

    Attributes:
        honesty: Probability that its signal is what it does.
        work: It works with probability work * (1 - rest).
        own_first: Probability that it stays at its own house if that burns.
        rest: See `work`.
    """

    honesty: float | Tensor
    work: float | Tensor
    own_first: float | Tensor
    rest: float | Tensor


# Maps what a player sees and (rows, 4) uniform numbers in [0, 1) to actions, (rows, 3) int64.
Player = Callable[[Sight, Tensor], Tensor]

ARCHETYPES = {
    "firefighter": Theta(1.0, 0.9, 0.8, 0.0),
    "free_rider": Theta(0.7, 0.2, 0.9, 0.9),
    "hero": Theta(1.0, 1.0, 0.5, 0.0),
    "coordinator": Theta(0.9, 0.6, 0.6, 0.2),
    "liar": Theta(0.1, 0.7, 0.9, 0.4),
}


def random_player(sight: Sight, uniform: Tensor) -> Tensor:
    """Choose house, mode and signal uniformly."""
    options = torch.tensor([sight.burning.shape[1], 2, 2], device=uniform.device)
    return (uniform[:, :3] * options).to(torch.int64)


def resting_player(sight: Sight, uniform: Tensor) -> Tensor:  # noqa: ARG001
    """Rest, and signal it."""
    return _action(
        sight.own_house, torch.full_like(sight.agent, REST), torch.full_like(sight.agent, REST)
    )


def specialist(sight: Sight, uniform: Tensor) -> Tensor:  # noqa: ARG001
    """Work at the lowest of its own burning houses, else rest; signal it."""
    houses = sight.burning.shape[1]
    number = torch.arange(houses, device=sight.burning.device)
    own = sight.burning & (number % sight.agents == sight.agent.unsqueeze(1))
    lowest = torch.where(own, number, houses).amin(1)
    works = lowest < houses
    mode = torch.where(works, WORK, REST)
    return _action(torch.where(works, lowest, sight.own_house), mode, mode)


def heuristic(theta: Theta) -> Player:
    """Return a player with those probabilities, or the players of the rows."""

    def play(sight: Sight, uniform: Tensor) -> Tensor:
        # The four numbers decide, in this order: work or rest, own house first, which other
        # burning house, and whether the signal is honest.
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
    """A player at every seat, acting on observations, with a random stream of its own."""

    def __init__(self, player: str | Player, encoder: ObservationEncoder, seed: int) -> None:
        """Make a policy.

        Args:
            player: A player, or a name in `PLAYERS`.
            encoder: The environment's.
            seed: Of its random stream.

        Raises:
            InputError: The name is unknown.
        """
        if isinstance(player, str):
            if player not in PLAYERS:
                raise InputError(
                    f"the player {player!r} is not known; choose one of {', '.join(PLAYERS)}"
                )
            player = PLAYERS[player]
        self._player, self._encoder = player, encoder
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, obs: Tensor) -> Tensor:
        """Return (rows, 3) int64 actions for (rows, size) observations."""
        uniform = torch.rand(len(obs), 4, generator=self._generator).to(obs.device)
        return self._player(sight(self._encoder, obs), uniform)


def _any_burning(burning: Tensor, uniform: Tensor, otherwise: Tensor) -> Tensor:
    """Return a uniformly chosen burning house per row; `otherwise` where none burns."""
    count = burning.sum(1)
    # The k-th burning house, counted from 0, where the running count is k + 1.
    chosen = (uniform * count).to(torch.int64).clamp_max(count - 1)
    house = ((burning.cumsum(1) - 1 == chosen.unsqueeze(1)) & burning).to(torch.uint8).argmax(1)
    return torch.where(count > 0, house, otherwise)


def _action(house: Tensor, mode: Tensor, signal: Tensor) -> Tensor:
    return torch.stack([house, mode, signal], dim=1)
