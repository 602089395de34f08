"""The scale of a game's observations, from random play: what members that are trained on it divide by."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from envs.games.play import random_actions
from envs.games.registry import GameEnv
from envs.support.errors import InputError

STEPS = 256  # of random play, in every environment
SECONDS = 5.0  # of random play, unless a number of steps is given
LEAST = 2  # steps, however long they take
_ANNOUNCE = 1.0  # seconds after which random play says what it does, and then every so often
FARTHEST = 5.0  # deviations: the farthest that a number seen in random play may come to lie from its column's mean
_NOISE = (
    1e-6  # of a column's mean: a column that varies less is constant to the precision of float32
)


@dataclass(frozen=True)
class ObservationScale:
    """What random play showed. avg, std: (state_dim,) float32. steps: of each environment; rows: observations that were
    used, 0 where none are needed; episodes: that ended.
    """

    avg: Tensor
    std: Tensor
    steps: int
    rows: int = 0
    episodes: int = 0

    def __str__(self) -> str:
        if not self.rows:
            return "observations are scaled as their environment says"
        return (
            f"observations are scaled by {self.rows:,} of random play ({self.steps:,} steps of each environment, in "
            f"which {self.episodes:,} episodes ended)"
        )


def random_play_scale(
    env: GameEnv, seed: int, *, centred: bool = True, steps: int = STEPS
) -> tuple[Tensor, Tensor]:
    """`ObservationScale.avg` and `ObservationScale.std` of `random_play`."""
    look = random_play(env, seed, centred=centred, steps=steps)
    return look.avg, look.std


def random_play(
    env: GameEnv,
    seed: int,
    *,
    centred: bool = True,
    steps: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> ObservationScale:
    """state_avg and state_std from random play; 0 and 255 for images, 0 and 1 for environments that are `prescaled`.

    Every column is centred and divided by its standard deviation, or by a fifth of the largest distance from its mean
    where that is more (a column that is nearly always the same must not become huge when it changes). Columns that
    never change are centred and not scaled.

    centred: False is the rule of studies made before it was recorded: columns with a deviation of at most 1 are left as
    they are. steps: of each environment; None: `STEPS`, or as many as `SECONDS` allow, at least `LEAST`. The result
    depends on this number only, so `ObservationScale.steps` reproduces it. say: called with progress messages.
    Raises InputError where an observation is not finite.
    """
    env.reset(seed)
    if env.image_shape is not None:  # bytes, to numbers from 0 to 1
        return ObservationScale(
            torch.zeros(env.state_dim), torch.full((env.state_dim,), 255.0), steps or STEPS
        )
    if env.prescaled:
        return ObservationScale(
            torch.zeros(env.state_dim), torch.ones(env.state_dim), steps or STEPS
        )
    generator = torch.Generator().manual_seed(seed)
    began = told = time.monotonic()
    seen: list[Tensor] = []
    episodes = 0
    while len(seen) < (steps or STEPS):
        now = time.monotonic()
        if steps is None and len(seen) >= LEAST and now - began > SECONDS:
            break
        if now - told > _ANNOUNCE:
            told, rate = now, len(seen) * env.num_envs / (now - began)
            limit = "" if steps else f", for at most about {SECONDS:g} s"
            say(
                f"random play, by which observations are scaled: {len(seen)} of {steps or STEPS} steps of "
                f"{env.num_envs} environments, {rate:,.0f} steps/s{limit}"
            )
        made = env.step(random_actions(env, generator))
        episodes += int((made.terminated | made.truncated).sum())
        seen.append(made.obs[env.present()] if env.has_absent_agents else made.obs.clone())
    rows = torch.cat(seen).double().cpu()
    if not bool(rows.isfinite().all()):
        column = int(rows.isfinite().all(0).long().argmin())
        raise InputError(
            f"--env: {env.env_name} shows numbers that are not finite (column {column} of its observations, in random "
            "play), and nothing can be learned from those; clip or replace them"
        )
    avg, std = _scale(rows, centred=centred)
    look = ObservationScale(avg, std, len(seen), len(rows), episodes)
    if told > began:
        say(str(look))
    return look


def _scale(rows: Tensor, *, centred: bool) -> tuple[Tensor, Tensor]:
    """rows: (n, state_dim) float64."""
    mean, deviation = rows.mean(0), rows.std(0)
    if not centred:
        return torch.where(deviation > 1.0, mean, 0.0).float(), deviation.clamp(min=1.0).float()
    farthest = (rows - mean).abs().amax(0)
    scale = torch.maximum(deviation, farthest / FARTHEST)
    constant = farthest <= (_NOISE * mean.abs()).clamp(min=1e-30)
    return mean.float(), torch.where(constant, 1.0, scale).float()
