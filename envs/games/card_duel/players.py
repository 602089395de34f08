"""Scripted players of the duel: random legal play, and a greedy one."""

from __future__ import annotations

import torch
from torch import Tensor

from sweepd.envs.core.vec_env import Legal
from sweepd.envs.games.card_duel.greedy import NEVER, Scores, Sight
from sweepd.envs.games.opponents import ScriptedPlayer


def random_option(mask: Tensor, uniform: Tensor) -> Tensor:
    """Return (games,) int64: a legal option of (games, options) bool, all equally likely."""
    ranks = mask.cumsum(1, dtype=torch.int32)
    wanted = (uniform * ranks[:, -1]).int()
    # The first option whose rank is above the wanted one, as that of the last option is.
    return (ranks[:, :-1] <= wanted.unsqueeze(1)).sum(1)


class RandomPlayer:
    """Chooses among legal types with equal probabilities, then among numbers likewise.

    Attributes:
        uniforms: uniform random numbers that it needs per game and step.
        memory: columns of its memory.
    """

    uniforms, memory = 3, 0

    def start(self, uniforms: Tensor) -> Tensor:
        """See `ScriptedPlayer.start`."""
        return uniforms[:, :0]

    def act(
        self, obs: Tensor, memory: Tensor, uniforms: Tensor, legal: Legal
    ) -> tuple[Tensor, Tensor]:
        """See `ScriptedPlayer`."""
        chosen = torch.zeros(len(obs), 0, dtype=torch.int64, device=obs.device)
        for uniform in uniforms.unbind(1):
            option = random_option(legal(chosen), uniform)
            chosen = torch.cat((chosen, option.unsqueeze(1)), 1)
        return chosen, memory


class GreedyPlayer:
    """Spends the most mana, trades where it does not lose by it, and attacks the champion else.

    Among legal options it takes those of the highest score (`greedy.Scores`), type first; among
    equal ones the first.

    Attributes:
        uniforms: uniform random numbers that it needs per game and step.
        memory: columns of its memory.
    """

    uniforms, memory = 0, 0

    def start(self, uniforms: Tensor) -> Tensor:
        """See `ScriptedPlayer.start`."""
        return uniforms[:, :0]

    def act(
        self, obs: Tensor, memory: Tensor, uniforms: Tensor, legal: Legal
    ) -> tuple[Tensor, Tensor]:
        """See `ScriptedPlayer`."""
        del uniforms
        sight = Sight(obs)
        scores = Scores(sight)
        chosen = torch.zeros(len(obs), 0, dtype=torch.int64, device=obs.device)
        for score in (scores.types, scores.firsts, scores.seconds):
            allowed = legal(chosen)
            option = score(chosen).masked_fill(~allowed, NEVER).argmax(1)
            chosen = torch.cat((chosen, option.unsqueeze(1)), 1)
        return chosen, memory


PLAYERS: dict[str, ScriptedPlayer] = {"random": RandomPlayer(), "greedy": GreedyPlayer()}
