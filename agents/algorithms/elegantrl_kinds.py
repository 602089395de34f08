"""Which of ElegantRL's algorithms sweepd can run, with their classes and hyperparameters.

ElegantRL is imported only where its agents are: sweepd does not require it, since the requirements
that it declares do not build on current Pythons.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sweepd.agents.algorithms.off_policy_params import OffPolicyParams, SACParams
from sweepd.agents.engine.hyperparameters import (
    AboveZero,
    AtLeastZero,
    GradientParams,
    Hyperparameters,
    Share,
)
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.invocation import pip_install
from sweepd.envs.support.plugins import find

PREFIX = "elegantrl:"
REQUIREMENT = "elegantrl==0.3.6"  # installed with --no-deps: torch and NumPy are all it needs


class A2CParams(GradientParams):
    """The hyperparameters of A2C, besides those of `GradientParams`.

    Attributes:
        gae_lambda: decay of the advantage estimate.
        reward_scale: factor on the rewards.
    """

    gae_lambda: Share = 0.95
    reward_scale: AboveZero = 1.0
    weight_decay: AtLeastZero = 0.01  # ElegantRL's own


class ElegantPPOParams(A2CParams):
    """The hyperparameters of ElegantRL's PPO, besides those of A2C.

    Attributes:
        clip: bound on the change of the probability ratio.
        entropy_coef: weight of the entropy, per nat.
    """

    clip: AboveZero = 0.25
    entropy_coef: AtLeastZero = 0.01


class DQNParams(OffPolicyParams):
    """The hyperparameters of the DQN family, besides those of `OffPolicyParams`.

    Attributes:
        explore_rate: probability of an exploring action (in all rows at once, as in ElegantRL).
    """

    explore_rate: Share = 0.25


class DDPGParams(OffPolicyParams):
    """The hyperparameters of DDPG, besides those of `OffPolicyParams`.

    Attributes:
        explore_noise_std: standard deviation of the exploration noise.
    """

    explore_noise_std: AtLeastZero = 0.1


class TD3Params(DDPGParams):
    """The hyperparameters of TD3, besides those of DDPG.

    Attributes:
        policy_noise_std: standard deviation of the noise on the target policy's action.
    """

    policy_noise_std: AtLeastZero = 0.1


class ElegantStats(NamedTuple):
    """Statistics of one rollout per slot, (G,) float32.

    Attributes:
        reward: mean per step, as the environment gave it.
        critic_loss: mean over the gradient steps, as ElegantRL reports it.
        actor_objective: likewise.
        updates: gradient steps made.
    """

    reward: Tensor
    critic_loss: Tensor
    actor_objective: Tensor
    updates: Tensor


@dataclass(frozen=True)
class AgentKind:
    """One of ElegantRL's algorithms.

    Attributes:
        continuous: name of its class for continuous actions; None: there is none.
        discrete: name of its class for discrete actions; None: there is none.
        params: the hyperparameters that it uses.
        replays: whether it learns from a replay buffer.
        own: a user's class, which is used instead of the one that is named.
        own_network: whether the actor is of a class that sweepd does not know.
    """

    continuous: str | None
    discrete: str | None
    params: type[Hyperparameters]
    replays: bool = True
    own: type[Any] | None = None
    own_network: bool = False

    def agent_class(self, *, discrete: bool) -> type[Any] | None:
        """Return its class for such actions, or None.

        Raises:
            InputError: ElegantRL is not installed.
        """
        name = self.discrete if discrete else self.continuous
        return None if name is None else self.own or agent_classes()[name]


DISCRETE_A2C = "DiscreteA2C"
KINDS = {
    "ppo": AgentKind("AgentPPO", "AgentDiscretePPO", ElegantPPOParams, replays=False),
    "a2c": AgentKind("AgentA2C", DISCRETE_A2C, A2CParams, replays=False),
    "ddpg": AgentKind("AgentDDPG", None, DDPGParams),
    "td3": AgentKind("AgentTD3", None, TD3Params),
    "sac": AgentKind("AgentSAC", None, SACParams),
    "modsac": AgentKind("AgentModSAC", None, SACParams),
    "dqn": AgentKind(None, "AgentDQN", DQNParams),
    "duelingdqn": AgentKind(None, "AgentDuelingDQN", DQNParams),
    "doubledqn": AgentKind(None, "AgentDoubleDQN", DQNParams),
    "d3qn": AgentKind(None, "AgentD3QN", DQNParams),
}
BROKEN = {
    **dict.fromkeys(
        ("redq", "mappo", "qmix", "vdn"), "its module imports networks that the package lacks"
    ),
    "vmpo": "its module imports modules that the package lacks",
    **dict.fromkeys(("maddpg", "matd3"), "each of its agents must know the actions of the others"),
}


def require_elegantrl() -> None:
    """Raise InputError if ElegantRL is not installed."""
    if importlib.util.find_spec("elegantrl") is None:
        raise InputError(
            f"--algo {PREFIX}NAME needs ElegantRL, which is not installed: {install_elegantrl()}"
        )


def install_elegantrl() -> str:
    """Return the pip command that installs ElegantRL into this environment."""
    return pip_install("--no-deps", REQUIREMENT)


@functools.cache
def agent_classes() -> Mapping[str, type[Any]]:
    """Return ElegantRL's agents by name.

    Raises:
        InputError: ElegantRL is not installed.
    """
    require_elegantrl()
    from elegantrl import agents
    from elegantrl.agents.net import ActorDiscretePPO

    # (ElegantRL's own `AgentDiscreteA2C` is its PPO under that name.)
    discrete_a2c = type(DISCRETE_A2C, (agents.AgentA2C,), {"act_class": ActorDiscretePPO})
    return {**vars(agents), DISCRETE_A2C: discrete_a2c}


def base_of(agent: Any) -> str | None:
    """Return which of ElegantRL's algorithms a class derives from; None: of none."""
    if not isinstance(agent, type) or "elegantrl" not in sys.modules:
        return None
    named = {
        agent_classes()[own]: name
        for name, kind in KINDS.items()
        for own in (kind.discrete, kind.continuous)
        if own is not None
    }
    return next((named[parent] for parent in agent.__mro__ if parent in named), None)


def unknown_agent(name: str) -> InputError:
    """Return the error for an algorithm that is not one of `KINDS`."""
    agent, _, own = name.removeprefix(PREFIX).partition(":")
    if agent in BROKEN:
        return InputError(f"{name} does not work in ElegantRL 0.3.6: {BROKEN[agent]}; {_choose()}")
    if own:
        return InputError(f"--algo {name}: a class of your own is named alone: --algo {own}")
    return InputError(f"{name!r} is not one of ElegantRL's agents; {_choose()}")


@functools.cache  # called often, and finding a class's network constructs two agents
def kind_of(program: str) -> AgentKind:
    """Return the kind of the programs `elegantrl:NAME`, or `elegantrl:NAME:MODULE:CLASS`.

    The latter are of a user's agent, whose class must be a subclass of ElegantRL's.

    Raises:
        InputError: ElegantRL 0.3.6 does not have the algorithm, or not in working order; or the
            class is not a subclass.
    """
    name, _, own = program.removeprefix(PREFIX).partition(":")
    if name not in KINDS or not program.startswith(PREFIX):
        raise unknown_agent(program)
    if not own:
        return KINDS[name]
    require_elegantrl()
    return _with(KINDS[name], find(f"--algo {own}", own), own)


def _with(kind: AgentKind, own: Any, algorithm: str) -> AgentKind:
    names = [name for name in (kind.discrete, kind.continuous) if name is not None]
    # An agent with its own update but ElegantRL's network can still be frozen and deployed.
    for name in names:  # a discrete agent may be a subclass of the other
        theirs = agent_classes()[name]
        if isinstance(own, type) and issubclass(own, theirs):
            own_network = _actor_type(own) is not _actor_type(theirs)
            kind = replace(kind, own=own, own_network=own_network)
            if name == kind.discrete:
                return replace(kind, continuous=None)
            return replace(kind, discrete=None)
    raise InputError(
        f"--algo {algorithm}: the class must be a subclass of ElegantRL's {' or '.join(names)}"
    )


def _actor_type(agent_class: type[Any]) -> type[nn.Module]:
    # Only an instance knows its network class; constructing one draws random numbers.
    with torch.random.fork_rng(devices=[]):
        return type(agent_class([8], 2, 2, gpu_id=-1).act)


def _choose() -> str:
    return f"choose one of {', '.join(PREFIX + name for name in KINDS)}."
