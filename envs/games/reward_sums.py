"""Is one's gain the other's loss? What the rewards of a game of two add up to in random play."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch

from sweepd.envs.games.game import Game
from sweepd.envs.games.play import random_actions
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.formatting import counted

GAMES, STEPS = 8, 128  # that are played at once, and their steps
_SMALL = 1e-6  # of sums that count as equal, relative to the largest reward


@dataclass(frozen=True)
class RewardSums:
    """The rewards of random play.

    Attributes:
        steps: steps that were played.
        ended: games that ended.
        rewarded: whether there was a reward other than 0.
        zero_sum: whether the rewards of both players added up to 0 in every step, or to the same
            sum in every game.
        shared: whether both players always had the same reward, and not always 0.
        example: returns of both players in the first game whose sum differs from that of the first
            one that ended; of the first one, if both always had the same.
    """

    steps: int
    ended: int
    rewarded: bool
    zero_sum: bool
    shared: bool
    example: tuple[float, float] | None = None

    def __str__(self) -> str:
        """Return one sentence for a user."""
        played = f"in {counted(self.steps, 'step')} of random play ({self.ended} games ended)"
        if not self.rewarded:
            return f"no reward {played}: whether the game is zero-sum is not known"
        if self.zero_sum:
            return f"zero-sum {played}: one's gain is the other's loss"
        own = "" if self.example is None else ", such as {:g} and {:g}".format(*self.example)
        if self.shared:
            return f"both players had the same rewards {played}{own}: they do not compete"
        return f"not zero-sum {played}: both players' returns add up to different sums{own}"


def reward_sums(game: Game, params: Any) -> RewardSums:
    """Play a game of two at random, and look at what the rewards add up to.

    Args:
        game: a game for which `is_versus` holds.
        params: its parameters.

    Raises:
        RunError: the environment raises.
    """
    assert game.versus is not None
    with closing(game.versus([params], GAMES, together=1, device="cpu")) as env:
        env.reset(0)
        generator = torch.Generator().manual_seed(0)
        returns = torch.zeros(GAMES, 2, dtype=torch.float64)
        totals: list[tuple[float, float]] = []
        largest, largest_sum, shared = 0.0, 0.0, True
        for _ in range(STEPS):
            step = env.step(random_actions(env, generator))
            env.check()
            reward = step.reward.double().view(GAMES, 2)
            largest = max(largest, float(reward.abs().max()))
            largest_sum = max(largest_sum, float(reward.sum(1).abs().max()))
            shared = shared and bool((reward[:, 0] == reward[:, 1]).all())
            returns += reward
            done = (step.terminated | step.truncated).view(GAMES, -1)[:, 0]
            totals += [(first, second) for first, second in returns[done].tolist()]
            returns[done] = 0.0
    near = _SMALL * largest
    others = [own for own in totals if abs(sum(own) - sum(totals[0])) > near]
    constant = len(totals) > 1 and not others
    shared = shared and largest > 0.0
    zero_sum = (largest_sum <= near or constant) and not shared
    shown = others[0] if others else (totals[0] if totals else None)
    return RewardSums(GAMES * STEPS, len(totals), largest > 0.0, zero_sum, shared, shown)


def check_zero_sum(game: Game, params: Any, what: str) -> None:
    """Raise InputError if random play shows that an environment of others is not zero-sum.

    A game made of tensors says by its outcomes who won, and needs no such check.

    Args:
        game: a game for which `is_versus` holds.
        params: its parameters.
        what: what is for zero-sum games alone, such as a flag.
    """
    if not game.foreign:
        return
    found = reward_sums(game, params)
    if not found.zero_sum:
        raise InputError(f"{what} is for zero-sum games alone; {game.name}: {found}")
