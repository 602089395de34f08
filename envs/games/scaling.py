"""The scale of a game's observations, measured in random play, by which training divides them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sweepd.envs.core.game_env import GameEnv
from sweepd.envs.games.play import random_actions
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.formatting import counted

STEPS = 256  # steps of random play in every environment, at most
SECONDS = 5.0  # seconds of random play, at most, unless a number of steps is given
LEAST = 2  # steps, however long they take
FEW = 512  # observations that give a rough scale only
_ANNOUNCE = 1.0  # seconds between progress messages
FARTHEST = 5.0  # largest scaled distance from its column's mean of a number in random play
# Relative to a column's mean: one that varies less is constant to the precision of float32.
_NOISE = 1e-6


@dataclass(frozen=True)
class ObservationScale:
    """The scale of observations and what it was measured from.

    Attributes:
        avg: (state_dim,) float32, subtracted from observations.
        std: (state_dim,) float32, by which they are divided then.
        steps: Steps of each environment.
        rows: Number of observations; 0 if no random play was needed.
        episodes: Number of episodes that ended.
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
            f"scale of observations: from {self.rows:,} steps of random play ({self.steps:,} per "
            f"environment; {counted(self.episodes, 'episode')} ended)"
        )


def random_play(
    env: GameEnv,
    seed: int,
    *,
    steps: int | None = None,
    say: Callable[[str], None] = lambda _: None,
    rows: Tensor | None = None,
) -> ObservationScale:
    """Measure the scale of observations.

    It is fixed for images (0, 255), `prescaled` ones (0, 1) and items (0, `Items.scales`).

    Every column is centred and divided by the larger of its standard deviation and a fifth of the
    largest distance from its mean: a column that is nearly constant must not become huge when it
    changes. Constant columns are centred and not scaled. The column that tells the seat
    (`EnvSpec.seat_column`) stays as it is.

    Args:
        env: The environment; it is reset.
        seed: Seed of the environment and of the random actions.
        steps: Steps of each environment; None: `STEPS`, or at least `LEAST` if `SECONDS` do not
            suffice. The result depends on this number only, so `ObservationScale.steps` reproduces
            it.
        say: Called with progress messages.
        rows: (num_envs,) bool, the rows whose observations count; None: all.

    Raises:
        InputError: An observation is not finite.
    """
    env.reset(seed)
    spec = env.spec
    if spec.items is not None:
        std = torch.tensor(spec.items.scales())
        return ObservationScale(torch.zeros(env.state_dim), std, steps or STEPS)
    # Bytes become numbers from 0 to 1; prescaled observations stay as they are.
    fixed = 255.0 if spec.image_shape is not None else 1.0 if env.prescaled else None
    if fixed is not None:
        std = torch.full((env.state_dim,), fixed)
        return ObservationScale(torch.zeros(env.state_dim), std, steps or STEPS)
    began = time.monotonic()
    seen, episodes = _observe(env, seed, steps, say, rows)
    found = torch.cat(seen).double().cpu()
    if not bool(found.isfinite().all()):
        column = int(found.isfinite().all(0).long().argmin())
        raise InputError(
            f"--env: {env.env_name} returns observations that are not finite (column {column}, in "
            "random play), which cannot be learned from; clip or replace them"
        )
    avg, std = _scale(found)
    if spec.seat_column is not None:
        avg[spec.seat_column], std[spec.seat_column] = 0.0, 1.0
    scale = ObservationScale(avg, std, len(seen), len(found), episodes)
    if steps is None and len(found) < FEW:
        say(
            f"warning: the scale of observations is from {len(found):,} steps only, because the "
            f"environment is slow; --look-steps {STEPS} takes about "
            f"{(time.monotonic() - began) * STEPS / len(seen):,.0f} s for a better one"
        )
    if time.monotonic() - began > _ANNOUNCE:
        say(str(scale))
    return scale


def _observe(
    env: GameEnv, seed: int, steps: int | None, say: Callable[[str], None], rows: Tensor | None
) -> tuple[list[Tensor], int]:
    """Play at random; return every step's observations, and the number of ended episodes."""
    every = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
    counting = every if rows is None else rows
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
                f"random play, by which observations are scaled: {len(seen)} of {steps or STEPS} "
                f"steps of {env.num_envs} environments, {rate:,.0f} steps/s{limit}"
            )
        made = env.step(random_actions(env, generator))
        episodes += int((made.terminated | made.truncated).sum())
        # Observations of absent agents are zeros, which are not part of the distribution.
        present = env.present() if env.spec.has_absent_agents else every
        seen.append(made.obs[present & counting])
    return seen, episodes


def _scale(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and scale of the columns of (n, state_dim) float64 observations."""
    mean, deviation = rows.mean(0), rows.std(0)
    # A column that is zero in most rows has a small deviation: without the second bound, its rare
    # values would be many deviations away.
    farthest = (rows - mean).abs().amax(0)
    scale = torch.maximum(deviation, farthest / FARTHEST)
    # The deviation of a constant column is not exactly 0, because its mean is rounded.
    constant = farthest <= (_NOISE * mean.abs()).clamp(min=1e-30)
    return mean.float(), torch.where(constant, 1.0, scale).float()
