"""Whole episodes of a policy in a game: its scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sweepd.envs.core.game_env import GameEnv
from sweepd.envs.core.vec_env import VecEnv
from sweepd.envs.native.threads import torch_on_one

Floats = NDArray[np.float64]
# Steps between two checks whether all episodes have ended, each of which synchronizes.
_CHECK_INTERVAL = 16
LONGEST = 100_000  # steps after which play stops, even if episodes have not ended


@dataclass(frozen=True)
class EpisodeResults:
    """Results of the first episode of every game in an environment.

    Attributes:
        returns: (members, episodes) sums of the game's unscaled rewards, over all seats.
        lengths: (members, episodes) numbers of steps.
    """

    returns: Floats
    lengths: NDArray[np.int64]


def play_episodes(
    env: GameEnv,
    act: Callable[[Tensor], Tensor],
    seats: int = 1,
    ask: Callable[[], None] = lambda: None,
    ended: Callable[[Tensor], None] = lambda _: None,
    episodes: Sequence[int] | None = None,
    counts: Tensor | None = None,
) -> EpisodeResults:
    """Play one episode in every game, from its present state to its end.

    Args:
        env: The environment, just reset. Reset it before it is used again, since rows rest (see
            `GameEnv.rest`) once their episodes have ended.
        act: Maps observations to actions, for all rows.
        seats: Rows per game, which are adjacent.
        ask: Called before every step; it may raise to stop.
        ended: Called after every step with (num_envs,) bool, the rows whose episodes it ended.
        episodes: Number of games to play of each of the first members; None: all games of all. The
            results have as many columns as the largest number, and zeros where fewer were played.
        counts: (num_envs,) bool, the rows whose rewards count; None: all.

    Raises:
        RunError: An action was illegal.
    """
    rows = env.num_envs
    total = torch.zeros(rows, dtype=torch.float64, device=env.device)
    length = torch.zeros(rows, dtype=torch.int64, device=env.device)
    row = torch.arange(rows, device=env.device)
    here = env.envs_per_member
    wanted = [here // seats] * env.num_members if episodes is None else list(episodes)
    games = torch.tensor(wanted + [0] * (env.num_members - len(wanted)), device=env.device)
    alive = row % here < (games * seats).repeat_interleave(here)
    unit = env.reward_unit
    obs, step = env.observe(), 0
    with torch_on_one(env.native):
        while step < LONGEST:
            if step % _CHECK_INTERVAL == 0:
                if not bool(alive.any()):
                    break
                env.rest(~alive)
            ask()
            made = env.step(act(obs))
            obs, step = made.obs, step + 1
            # Until they rest, rows that have ended their episode play the next, which does not count.
            paid = alive if counts is None else alive & counts
            total += torch.where(paid, made.reward.double() * unit, 0.0)
            length += alive
            done = made.terminated | made.truncated
            alive &= ~done
            ended(done)
    env.check()
    # A game's return is the sum over its seats; its length is that of its longest seat.
    returns = total.view(env.num_members, -1, seats).sum(-1)[: len(wanted), : max(wanted)]
    lengths = length.view(env.num_members, -1, seats).amax(-1)[: len(wanted), : max(wanted)]
    return EpisodeResults(returns.cpu().numpy(), lengths.cpu().numpy())


def random_actions(env: VecEnv, generator: torch.Generator) -> Tensor:
    """Draw uniform actions for all rows, among the legal ones if the environment has masks."""
    if not env.if_discrete:
        return torch.rand(env.num_envs, env.action_dim, generator=generator) * 2.0 - 1.0
    if env.spec.masked:
        return _random_legal(env, generator)
    if not env.spec.action_dims:
        return torch.randint(0, env.action_dim, (env.num_envs,), generator=generator)
    return torch.stack(
        [torch.randint(0, n, (env.num_envs,), generator=generator) for n in env.spec.action_dims], 1
    )


def _random_legal(env: VecEnv, generator: torch.Generator) -> Tensor:
    chosen = torch.zeros(env.num_envs, 0, dtype=torch.int64)
    for size in env.spec.choices:
        # The largest of independent uniform numbers is equally likely to be any of the legal ones.
        uniform = torch.rand(env.num_envs, size, generator=generator)
        option = uniform.masked_fill_(~env.action_mask(chosen.to(env.device)).cpu(), -1.0).argmax(
            1, keepdim=True
        )
        chosen = torch.cat((chosen, option), 1)
    return chosen if env.spec.action_dims else chosen[:, 0]
