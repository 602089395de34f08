"""The scale of a game's observations, from random play: what members that are trained on it divide by."""

from __future__ import annotations

import torch
from torch import Tensor

from envs.errors import InputError
from envs.games.play import random_actions
from envs.games.registry import GameEnv

STEPS = 256  # of random play
FARTHEST = 5.0  # deviations: the farthest that a number seen in random play may come to lie from its column's mean
_NOISE = 1e-6  # of a column's mean: a column that varies less is constant to the precision of float32


def random_play_scale(env: GameEnv, seed: int, *, centred: bool = True) -> tuple[Tensor, Tensor]:
    """state_avg and state_std, (state_dim,) float32, from random play; 0 and 255 for images, 0 and 1 for environments
    that are `prescaled`.

    Every column is centred and divided by its standard deviation, or by a fifth of the largest distance from its mean
    where that is more (a column that is nearly always the same must not become huge when it changes). Columns that
    never change are centred and not scaled. centred: False is the rule of studies made before it was recorded: columns
    with a deviation of at most 1 are left as they are. Raises InputError where an observation is not finite.
    """
    env.reset(seed)
    if env.image_shape is not None:  # bytes, to numbers from 0 to 1
        return torch.zeros(env.state_dim), torch.full((env.state_dim,), 255.0)
    if env.prescaled:
        return torch.zeros(env.state_dim), torch.ones(env.state_dim)
    generator = torch.Generator().manual_seed(seed)
    seen = []
    for _ in range(STEPS):
        obs = env.step(random_actions(env, generator)).obs
        seen.append(obs[env.present()] if env.crewed else obs.clone())
    rows = torch.cat(seen).double().cpu()
    if not bool(rows.isfinite().all()):
        column = int(rows.isfinite().all(0).long().argmin())
        raise InputError(
            f"--env: {env.env_name} shows numbers that are not finite (column {column} of its observations, in random "
            "play), and nothing can be learned from those; clip or replace them"
        )
    mean, deviation = rows.mean(0), rows.std(0)
    if not centred:
        return torch.where(deviation > 1.0, mean, 0.0).float(), deviation.clamp(min=1.0).float()
    farthest = (rows - mean).abs().amax(0)
    scale = torch.maximum(deviation, farthest / FARTHEST)
    constant = farthest <= (_NOISE * mean.abs()).clamp(min=1e-30)
    return mean.float(), torch.where(constant, 1.0, scale).float()
