"""The algorithms that a study may train with, by name: one entry each, and nothing elsewhere knows them apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from agents.algorithms.d3qn import D3QN, D3QNParams, D3QNStats
from agents.algorithms.elegantrl_agents import (
    KINDS,
    PREFIX,
    ElegantAgents,
    ElegantStats,
    Kind,
    kind_of,
)
from agents.algorithms.heuristic import HeuristicParams, Heuristics, HeuristicStats
from agents.algorithms.ppo import PPO
from agents.algorithms.ppo_params import PPOParams
from agents.algorithms.sac import SAC, SACParams, SACStats
from agents.engine.learner import Learner
from agents.engine.program import Program
from agents.networks.mlp import Shape
from envs.support.errors import InputError


@dataclass(frozen=True)
class Algorithm:
    """learner: makes a program of a shape on a device. params: the dataclass of its hyperparameters that are numbers
    (its defaults are those of the algorithm). shape: the fields of `Shape` that a search may vary, with their defaults.
    curves: the figures of a rollout worth keeping, by name. discrete, continuous: which actions it takes. horizon,
    num_envs: steps and environments per rollout where nobody chose them; None: as many as are fastest. trains: whether
    members learn; where they don't, a trial costs its evaluation alone. frozen: whether members act as `agents.policy.frozen`
    has it; deployed: whether they can be promoted. games: the only ones that it plays, by name; (): any. extras: fields
    of `Shape` that a game's space may name beside those of `shape`, with what they are where it does not.
    """

    name: str
    learner: Callable[[Shape, torch.device], Learner]
    shape: Mapping[str, int]
    params: Callable[..., Any]
    curves: tuple[str, ...]
    discrete: bool
    continuous: bool
    horizon: int = 64
    num_envs: int | None = None
    trains: bool = True
    frozen: bool = True
    deployed: bool = True
    games: tuple[str, ...] = ()
    extras: Mapping[str, Any] = field(default_factory=dict)

    @property
    def plain(self) -> bool:
        """Whether it takes plain environments alone (`agents.engine.program.check_plain`)."""
        return isinstance(self.learner, type) and issubclass(self.learner, Program)

    @property
    def table(self) -> str:
        """What its hyperparameters are called in a file."""
        return self.name.partition(":")[0]


def _curves(stats: type[Any]) -> tuple[str, ...]:
    """All figures but the number of gradient steps, which is known."""
    return tuple(name for name in stats._fields if name != "updates")


def _elegant(name: str, kind: Kind) -> Algorithm:
    discrete, continuous = kind.discrete is not None, kind.continuous is not None
    if kind.replays:
        shape, horizon, num_envs = OFF_POLICY_SHAPE, 16, 4
    else:
        shape, horizon, num_envs = ON_POLICY_SHAPE, 64, None
    return Algorithm(
        name,
        ElegantAgents,
        shape,
        kind.params,
        _curves(ElegantStats),
        discrete=discrete,
        continuous=continuous,
        horizon=horizon,
        num_envs=num_envs,
        frozen=not kind.own_network,
        deployed=not kind.own_network,
    )


PPO_CURVES = (
    "reward",
    "value_loss",
    "approx_kl",
    "clip_fraction",
    "explained_variance",
    "entropy",
    "std",
)
ON_POLICY_SHAPE = {"net_width": 64, "net_depth": 2, "minibatch": 512, "epochs": 8}
OFF_POLICY_SHAPE = {
    "net_width": 64,
    "net_depth": 2,
    "minibatch": 128,
    "updates": 32,
    "buffer": 65_536,
}
ALGORITHMS = {
    "ppo": Algorithm(
        "ppo",
        PPO,
        ON_POLICY_SHAPE,
        PPOParams,
        PPO_CURVES,
        discrete=True,
        continuous=True,
        extras={"recurrent": "", "bptt": 16},
    ),
    "sac": Algorithm(
        "sac",
        SAC,
        OFF_POLICY_SHAPE,
        SACParams,
        _curves(SACStats),
        discrete=False,
        continuous=True,
        horizon=16,
        num_envs=4,
    ),
    "d3qn": Algorithm(
        "d3qn",
        D3QN,
        OFF_POLICY_SHAPE,
        D3QNParams,
        _curves(D3QNStats),
        discrete=True,
        continuous=False,
        horizon=16,
        num_envs=8,
    ),
    "heuristic": Algorithm(
        "heuristic",
        Heuristics,
        {},
        HeuristicParams,
        _curves(HeuristicStats),
        discrete=True,
        continuous=False,
        horizon=1,
        num_envs=1,
        trains=False,
        frozen=False,
        games=("bucket-brigade",),
    ),
} | {PREFIX + name: _elegant(PREFIX + name, kind) for name, kind in KINDS.items()}


def get_algorithm(name: str) -> Algorithm:
    """Raises InputError for a name that is not known."""
    if name.startswith(PREFIX):
        kind = kind_of(name)
        if name not in ALGORITHMS:  # an agent of one's own
            return _elegant(name, kind)
    if name not in ALGORITHMS:
        raise InputError(f"--algo {name!r} is not known; choose one of {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]
