"""Matches between scripted hockey players, and their statistics."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sweepd.envs.games.hockey.game import Hockey, HockeyParams
from sweepd.envs.games.hockey.players import PLAYERS


@dataclass(frozen=True)
class Matches:
    """Results of games that were played once each, from player 1's side.

    Attributes:
        won: share of games.
        drawn: likewise.
        lost: likewise.
        lengths: (games,), steps.
        catches: of each player per game.
    """

    won: float
    drawn: float
    lost: float
    lengths: Tensor
    catches: tuple[float, float]


class _Side:
    """A player by name: a scripted one, `static` or `random`."""

    def __init__(self, name: str, games: int, generator: torch.Generator) -> None:
        self.name, self.games, self.generator = name, games, generator
        self.memory = self._uniform(1)
        if name in PLAYERS:
            self.memory = PLAYERS[name].start(self.memory)

    def _uniform(self, columns: int) -> Tensor:
        return torch.rand(self.games, columns, generator=self.generator)

    def act(self, obs: Tensor) -> Tensor:
        if self.name == "static":
            return torch.zeros(self.games, 4)
        if self.name == "random":
            return 2 * self._uniform(4) - 1
        action, self.memory = PLAYERS[self.name].act(obs, self.memory, self._uniform(1))
        return action


def play_matches(first: str, second: str, mode: str, games: int, seed: int = 0) -> Matches:
    """Play one game in each row."""
    env = Hockey([HockeyParams(mode=mode)], 2 * games)
    obs = env.reset(seed)
    generator = torch.Generator().manual_seed(seed)
    sides = [_Side(name, games, generator) for name in (first, second)]
    playing = torch.ones(games, dtype=torch.bool)
    winner = torch.zeros(games)
    lengths, catches = torch.zeros(games), torch.zeros(2)
    counters = obs.view(games, 2, -1)[..., 16]
    while bool(playing.any()):
        views = obs.view(games, 2, -1).unbind(1)
        actions = [side.act(own) for side, own in zip(sides, views, strict=True)]
        step = env.step(torch.stack(actions, 1).flatten(0, 1))
        obs = step.obs
        lengths += playing
        goal = playing & step.terminated.view(games, 2)[:, 0]
        winner += torch.where(goal, torch.sign(env.final_obs().view(games, 2, -1)[:, 0, 12]), 0.0)
        over = (step.terminated | step.truncated).view(games, 2)[:, 0]
        # The last step of a game may catch the puck, too.
        seen = torch.where(
            over.view(-1, 1, 1), env.final_obs().view(games, 2, -1), obs.view(games, 2, -1)
        )
        catches += (playing.unsqueeze(1) & (seen[..., 16] == 15) & (counters == 0)).sum(0)
        playing &= ~over
        counters = obs.view(games, 2, -1)[..., 16]
    shares = [float((winner == value).float().mean()) for value in (1, 0, -1)]
    return Matches(*shares, lengths, (float(catches[0]) / games, float(catches[1]) / games))
