"""The algorithms that a study may train with, by name: one entry each, and nothing elsewhere knows them apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from agents.learner import Learner
from agents.networks import Shape
from agents.ppo import PPO
from agents.ppo_params import PPOParams
from envs.errors import InputError


@dataclass(frozen=True)
class Algorithm:
    """learner: makes a program of a shape on a device. params: the dataclass of its hyperparameters that are numbers
    (its defaults are those of the algorithm). curves: the figures of a rollout worth keeping, by name. discrete,
    continuous: which actions it takes.
    """

    name: str
    learner: Callable[[Shape, torch.device], Learner]
    params: Callable[..., Any]
    curves: tuple[str, ...]
    discrete: bool
    continuous: bool


PPO_CURVES = ("reward", "value_loss", "approx_kl", "clip_fraction", "explained_variance", "entropy", "std")
ALGORITHMS = {
    "ppo": Algorithm("ppo", PPO, PPOParams, PPO_CURVES, discrete=True, continuous=True),
}


def get_algorithm(name: str) -> Algorithm:
    """Raises InputError for a name that is not known."""
    if name not in ALGORITHMS:
        raise InputError(f"--algo {name!r} is not known; choose one of {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]
