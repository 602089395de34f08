"""The algorithms that a study may train with, by name.

All properties in which they differ for the rest of sweepd are fields of `Algorithm`. One of another
package is named by its `Algorithm` (`Algorithm.of`), or by its subclass of an ElegantRL agent.
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from sweepd.agents.algorithms.d3qn import D3QN
from sweepd.agents.algorithms.elegantrl_kinds import (
    KINDS,
    PREFIX,
    AgentKind,
    ElegantStats,
    base_of,
    kind_of,
    require_elegantrl,
    unknown_agent,
)
from sweepd.agents.algorithms.heuristic import Heuristics
from sweepd.agents.algorithms.ppo import PPO
from sweepd.agents.algorithms.sac import SAC
from sweepd.agents.engine.hyperparameters import Hyperparameters
from sweepd.agents.engine.program import Program, Supported
from sweepd.agents.networks.activation import RELU
from sweepd.agents.networks.shape import SHARED, Shape
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.plugins import construct, resolve


@dataclass(frozen=True)
class Algorithm:
    """An algorithm that a study may train with.

    Attributes:
        name: as in `--algo`.
        program: what its programs call it (`Shape.algorithm`).
        learner: the class of its programs, constructed from a shape and a device.
        shape: fields of `Shape` that a search may vary, with their defaults.
        params: the class of its hyperparameters, with their defaults.
        curves: statistics of a rollout to record, by name.
        play: whether its programs measure play (`Program.play_stats`).
        samples: whether evaluations can draw its members' actions (`Program.act_fn`).
        supports: masks, images, recurrent networks and so on that it can train with.
        discrete: whether it takes discrete actions.
        continuous: whether it takes continuous actions.
        horizon: default number of steps per rollout.
        num_envs: default number of environments; None: as many as are fastest.
        trains: whether members learn. If not, a trial consists of its evaluation.
        frozen: whether `FrozenPolicy` can run its members.
        deployed: whether its members can be promoted.
        markets: whether it can train on the crypto market.
        games: names of the only games that it plays; (): any.
        optional: fields of `Shape` that a search space may name besides those of `shape`, with
            their defaults.
        extras: likewise, of games only.
        space: its default search space, TOML text like the files in `optimize/spaces`; "": one of
            these files.
        kernels: which of `sweepd.agents.native`'s programs it derives from; "": none.
    """

    name: str
    program: str
    learner: Callable[[Shape, torch.device], Program]
    shape: Mapping[str, int]
    params: type[Hyperparameters]
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
    space: str = ""
    kernels: str = ""

    @classmethod
    def of(
        cls, program: type[Program], shape: Mapping[str, int], space: str = "", **fields: Any
    ) -> Algorithm:
        """Return the algorithm that a class of programs learns.

        Args:
            program: the class; its attributes give name, hyperparameters, statistics and what is
                supported.
            shape: fields of `Shape` that a search may vary, with their defaults.
            space: its default search space; needed if it is not one of sweepd's own.
            fields: other fields. At least one of `discrete` and `continuous` must be true.
                `frozen` and `deployed` are for programs with an `actor_spec`, whose exported actors
                are ElegantRL's.

        Raises:
            ValueError: no action is supported, a size does not exist, or the search space is not
                TOML.
        """
        if not (fields.get("discrete") or fields.get("continuous")):
            raise ValueError(f"{program.__name__} needs discrete=True, continuous=True or both")
        if unknown := shape.keys() - SIZES:
            raise ValueError(f"{min(unknown)!r} is not one of the sizes {', '.join(sorted(SIZES))}")
        tomllib.loads(space)
        optional: dict[str, Any] = {"activation": RELU} if program.supports.activations else {}
        if program.supports.entities:
            optional["entity_width"] = 0
        native = [base.algorithm for base in (PPO, SAC, D3QN) if issubclass(program, base)]
        defaults: dict[str, Any] = {
            "curves": _curves(program.stats_type),
            "optional": optional,
            "discrete": False,
            "continuous": False,
            "frozen": False,
            "deployed": False,
            "kernels": native[0] if native else "",
        }
        return cls(
            program.algorithm,
            program.algorithm,
            program,
            shape,
            program.params_type,
            supports=program.supports,
            space=space,
            **{**defaults, **fields},
        )

    @property
    def table(self) -> str:
        """What its hyperparameters are called in a file."""
        return self.program.partition(":")[0]

    def check_installed(self) -> None:
        """Raise InputError if its programs need a package that is not installed."""
        if self.program.startswith(PREFIX):
            require_elegantrl()


def _curves(stats: type[Any]) -> tuple[str, ...]:
    """Return all statistics but the number of gradient steps, which is known beforehand."""
    return tuple(name for name in stats._fields if name != "updates")


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
SIZES = ON_POLICY_SHAPE.keys() | OFF_POLICY_SHAPE.keys()
PPO_CURVES = (
    "reward",
    "value_loss",
    "approx_kl",
    "clip_fraction",
    "explained_variance",
    "entropy",
    "std",
)
_DEPLOYED: dict[str, Any] = {"frozen": True, "deployed": True}
_STACKED = (
    Algorithm.of(
        PPO,
        ON_POLICY_SHAPE,
        **_DEPLOYED,
        curves=PPO_CURVES,
        discrete=True,
        continuous=True,
        markets=True,
        play=True,
        samples=True,
        extras={"recurrent": "", "bptt": 16, "item_width": 16, "policies": SHARED},
    ),
    Algorithm.of(SAC, OFF_POLICY_SHAPE, **_DEPLOYED, continuous=True, horizon=16, num_envs=4),
    Algorithm.of(D3QN, OFF_POLICY_SHAPE, **_DEPLOYED, discrete=True, horizon=16, num_envs=8),
    Algorithm.of(
        Heuristics,
        {},
        deployed=True,
        discrete=True,
        horizon=1,
        num_envs=1,
        trains=False,
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
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    if name.startswith(PREFIX):
        raise unknown_agent(name)
    return _of_others(name)


def _of_others(name: str) -> Algorithm:
    """Return the algorithm that another package provides."""
    flag = f"--algo {name}"
    try:
        plugin = resolve("algorithm", name, ALGORITHMS)
    except InputError as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and f"{cause.name}.".startswith("elegantrl."):
            require_elegantrl()  # says how it is installed
        raise
    made = plugin.made
    if inspect.isfunction(made):
        made = construct("algorithm", plugin)
    elif plugin.arguments:
        raise InputError(
            f"{flag}: only a function takes arguments; the search space sets hyperparameters"
        )
    if isinstance(made, Algorithm):
        return replace(made, name=name)
    if base := base_of(made):
        program = f"{PREFIX}{base}:{plugin.place}"
        return replace(_elegant(program, kind_of(program)), name=name)
    if isinstance(made, type) and issubclass(made, Program):
        raise InputError(
            f"{flag} is a class of programs; name what Algorithm.of({made.__name__}, …) returns"
        )
    raise InputError(
        f"{flag}: {made!r} is neither an Algorithm (sweepd.agents.algorithms.table) nor a subclass "
        "of one of ElegantRL's agents"
    )
