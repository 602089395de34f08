"""The algorithms that a study may train with, by name.

All properties in which they differ for the rest of sweepd are fields of `Algorithm`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from sweepd.agents.algorithms.d3qn import D3QN
from sweepd.agents.algorithms.elegantrl_kinds import (
    KINDS,
    PREFIX,
    AgentKind,
    ElegantStats,
    kind_of,
    require_elegantrl,
)
from sweepd.agents.algorithms.heuristic import Heuristics
from sweepd.agents.algorithms.ppo import PPO
from sweepd.agents.algorithms.sac import SAC
from sweepd.agents.engine.program import Program, Supported
from sweepd.agents.networks.activation import RELU
from sweepd.agents.networks.shape import SHARED, Shape
from sweepd.envs.support.errors import InputError


@dataclass(frozen=True)
class Algorithm:
    """An algorithm that a study may train with.

    Attributes:
        name: as in `--algo`.
        learner: the class of its programs, constructed from a shape and a device.
        shape: fields of `Shape` that a search may vary, with their defaults.
        params: dataclass of its hyperparameters, with their defaults.
        curves: statistics of a rollout to record, by name.
        play: whether its programs measure play (`Program.play_stats`).
        samples: whether evaluations can draw its members' actions (`Program.act_fn`).
        supports: masks, images, recurrent networks and so on that it can train with.
        discrete: whether it takes discrete actions.
        continuous: whether it takes continuous actions.
        horizon: default number of steps per rollout.
        num_envs: default number of environments; None: as many as are fastest.
        trains: whether members learn. If not, a trial consists of its evaluation.
        frozen: whether `sweepd.agents.policy.frozen` can run its members.
        deployed: whether its members can be promoted.
        markets: whether it can train on the crypto market.
        games: names of the only games that it plays; (): any.
        optional: fields of `Shape` that a search space may name besides those of `shape`, with
            their defaults.
        extras: likewise, of games only.
    """

    name: str
    learner: Callable[[Shape, torch.device], Program]
    shape: Mapping[str, int]
    params: Callable[..., Any]
    curves: tuple[str, ...]
    supports: Supported
    discrete: bool
    continuous: bool
    horizon: int = 64
    num_envs: int | None = None
    trains: bool = True
    frozen: bool = True
    deployed: bool = True
    markets: bool = False
    games: tuple[str, ...] = ()
    play: bool = False
    samples: bool = False
    optional: Mapping[str, Any] = field(default_factory=dict)
    extras: Mapping[str, Any] = field(default_factory=dict)

    @property
    def table(self) -> str:
        """What its hyperparameters are called in a file."""
        return self.name.partition(":")[0]

    def check_installed(self) -> None:
        """Raise InputError if its programs need a package that is not installed."""
        if self.name.startswith(PREFIX):
            require_elegantrl()


def _curves(stats: type[Any]) -> tuple[str, ...]:
    """Return all statistics but the number of gradient steps, which is known beforehand."""
    return tuple(name for name in stats._fields if name != "updates")


def _algorithm(program: type[Program], shape: Mapping[str, int], **fields: Any) -> Algorithm:
    """Return the entry of a program that learns one algorithm, with these other fields."""
    optional = {"activation": RELU} if program.supports.activations else {}
    fields = {"curves": _curves(program.stats_type), "optional": optional, **fields}
    return Algorithm(
        program.algorithm, program, shape, program.params_type, supports=program.supports, **fields
    )


def _elegant_agents(shape: Shape, device: torch.device) -> Program:
    require_elegantrl()
    # Imported here, since it imports ElegantRL.
    from sweepd.agents.algorithms.elegantrl_agents import ElegantAgents

    return ElegantAgents(shape, device)


def _elegant(name: str, kind: AgentKind) -> Algorithm:
    """Return the entry of one of ElegantRL's agents."""
    sizes: dict[str, Any] = {"shape": ON_POLICY_SHAPE}
    if kind.replays:
        sizes = {"shape": OFF_POLICY_SHAPE, "horizon": 16, "num_envs": 4}
    return Algorithm(
        name,
        _elegant_agents,
        params=kind.params,
        curves=_curves(ElegantStats),
        supports=Supported(),
        discrete=kind.discrete is not None,
        continuous=kind.continuous is not None,
        frozen=not kind.own_network,
        deployed=not kind.own_network,
        **sizes,
    )


ON_POLICY_SHAPE = {"net_width": 64, "net_depth": 2, "minibatch": 512, "epochs": 8}
OFF_POLICY_SHAPE = {
    "net_width": 64,
    "net_depth": 2,
    "minibatch": 128,
    "updates": 32,
    "buffer": 65_536,
}
PPO_CURVES = (
    "reward",
    "value_loss",
    "approx_kl",
    "clip_fraction",
    "explained_variance",
    "entropy",
    "std",
)
_STACKED = (
    _algorithm(
        PPO,
        ON_POLICY_SHAPE,
        curves=PPO_CURVES,
        discrete=True,
        continuous=True,
        markets=True,
        play=True,
        samples=True,
        extras={"recurrent": "", "bptt": 16, "item_width": 16, "policies": SHARED},
    ),
    _algorithm(SAC, OFF_POLICY_SHAPE, discrete=False, continuous=True, horizon=16, num_envs=4),
    _algorithm(D3QN, OFF_POLICY_SHAPE, discrete=True, continuous=False, horizon=16, num_envs=8),
    _algorithm(
        Heuristics,
        {},
        discrete=True,
        continuous=False,
        horizon=1,
        num_envs=1,
        trains=False,
        frozen=False,
        games=("bucket-brigade",),
    ),
)
ALGORITHMS = {entry.name: entry for entry in _STACKED} | {
    PREFIX + name: _elegant(PREFIX + name, kind) for name, kind in KINDS.items()
}


def get_algorithm(name: str) -> Algorithm:
    """Return an algorithm by its name in `--algo`.

    Raises:
        InputError: there is none of this name.
    """
    if name.startswith(PREFIX):
        kind = kind_of(name)  # also raises for agents that ElegantRL has, but not in working order
        if name not in ALGORITHMS:  # a user's own agent class
            return _elegant(name, kind)
    if name not in ALGORITHMS:
        raise InputError(f"--algo {name!r} is not known; choose one of {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]
