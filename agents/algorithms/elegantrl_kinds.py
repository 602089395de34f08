"""Which of ElegantRL's algorithms sweepd can run, with their classes and hyperparameters."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from elegantrl.agents import (
    AgentA2C,
    AgentD3QN,
    AgentDDPG,
    AgentDiscretePPO,
    AgentDoubleDQN,
    AgentDQN,
    AgentDuelingDQN,
    AgentModSAC,
    AgentPPO,
    AgentSAC,
    AgentTD3,
)
from elegantrl.agents.net import ActorDiscretePPO
from torch import nn

from sweepd.agents.algorithms.off_policy_params import OffPolicyParams, SACParams
from sweepd.agents.engine.hyperparameters import Hyperparameters
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.plugins import find

PREFIX = "elegantrl:"


@dataclass(frozen=True, kw_only=True)
class A2CParams(Hyperparameters):
    """The hyperparameters of A2C.

    Attributes:
        learning_rate: AdamW's learning rate.
        gamma: discount per step.
        gae_lambda: decay of the advantage estimate.
        reward_scale: factor on the rewards.
        max_grad_norm: largest gradient norm of each network.
        adam_eps: AdamW's epsilon.
        weight_decay: AdamW's weight decay.
    """

    learning_rate: float = 1e-3
    gamma: float = 0.99
    gae_lambda: float = 0.95
    reward_scale: float = 1.0
    max_grad_norm: float = 3.0
    adam_eps: float = 1e-8
    weight_decay: float = 0.01

    _zero_to_one: ClassVar[tuple[str, ...]] = ("gamma", "gae_lambda")


@dataclass(frozen=True, kw_only=True)
class ElegantPPOParams(A2CParams):
    """The hyperparameters of ElegantRL's PPO, besides those of A2C.

    Attributes:
        clip: bound on the change of the probability ratio.
        entropy_coef: weight of the entropy, per nat.
    """

    clip: float = 0.25
    entropy_coef: float = 0.01

    _above_zero: ClassVar[tuple[str, ...]] = (*Hyperparameters._above_zero, "clip")


@dataclass(frozen=True, kw_only=True)
class DQNParams(OffPolicyParams):
    """The hyperparameters of the DQN family, besides those of `OffPolicyParams`.

    Attributes:
        explore_rate: probability of an exploring action (in all rows at once, as in ElegantRL).
    """

    explore_rate: float = 0.25

    _zero_to_one: ClassVar[tuple[str, ...]] = (*OffPolicyParams._zero_to_one, "explore_rate")


@dataclass(frozen=True, kw_only=True)
class DDPGParams(OffPolicyParams):
    """The hyperparameters of DDPG, besides those of `OffPolicyParams`.

    Attributes:
        explore_noise_std: standard deviation of the exploration noise.
    """

    explore_noise_std: float = 0.1


@dataclass(frozen=True, kw_only=True)
class TD3Params(DDPGParams):
    """The hyperparameters of TD3, besides those of DDPG.

    Attributes:
        policy_noise_std: standard deviation of the noise on the target policy's action.
    """

    policy_noise_std: float = 0.1


class DiscreteA2C(AgentA2C):  # type: ignore[misc]  # ElegantRL is untyped
    """A2C for discrete actions. (ElegantRL's own `AgentDiscreteA2C` is its PPO under that name.)"""

    act_class = ActorDiscretePPO


@dataclass(frozen=True)
class AgentKind:
    """One of ElegantRL's algorithms.

    Attributes:
        continuous: its class for continuous actions; None: there is none.
        discrete: its class for discrete actions; None: there is none.
        params: the hyperparameters that it uses.
        replays: whether it learns from a replay buffer.
        own_network: whether the actor is of a class that sweepd does not know.
    """

    continuous: type[Any] | None
    discrete: type[Any] | None
    params: type[Hyperparameters]
    replays: bool = True
    own_network: bool = False


KINDS = {
    "ppo": AgentKind(AgentPPO, AgentDiscretePPO, ElegantPPOParams, replays=False),
    "a2c": AgentKind(AgentA2C, DiscreteA2C, A2CParams, replays=False),
    "ddpg": AgentKind(AgentDDPG, None, DDPGParams),
    "td3": AgentKind(AgentTD3, None, TD3Params),
    "sac": AgentKind(AgentSAC, None, SACParams),
    "modsac": AgentKind(AgentModSAC, None, SACParams),
    "dqn": AgentKind(None, AgentDQN, DQNParams),
    "duelingdqn": AgentKind(None, AgentDuelingDQN, DQNParams),
    "doubledqn": AgentKind(None, AgentDoubleDQN, DQNParams),
    "d3qn": AgentKind(None, AgentD3QN, DQNParams),
}
BROKEN = {
    **dict.fromkeys(
        ("redq", "mappo", "qmix", "vdn"), "its module imports networks that the package lacks"
    ),
    "vmpo": "its module imports modules that the package lacks",
    **dict.fromkeys(("maddpg", "matd3"), "each of its agents must know the actions of the others"),
}


@functools.cache  # called often, and finding a class's network constructs two agents
def kind_of(algorithm: str) -> AgentKind:
    """Return the kind of `elegantrl:NAME`, or of `elegantrl:NAME:MODULE:CLASS`.

    The latter is a user's agent, whose class must be a subclass of ElegantRL's.

    Raises:
        InputError: ElegantRL 0.3.6 does not have the algorithm, or not in working order; or the
            class is not a subclass.
    """
    name, _, own = algorithm.removeprefix(PREFIX).partition(":")
    if name in BROKEN:
        raise InputError(
            f"{algorithm} does not work in ElegantRL 0.3.6: {BROKEN[name]}; {_choose()}"
        )
    if name not in KINDS or not algorithm.startswith(PREFIX):
        raise InputError(f"{algorithm!r} is not one of ElegantRL's agents; {_choose()}")
    return _with(KINDS[name], find(f"--algo {algorithm}", own), algorithm) if own else KINDS[name]


def _with(kind: AgentKind, own: Any, algorithm: str) -> AgentKind:
    theirs = [
        agent_class for agent_class in (kind.discrete, kind.continuous) if agent_class is not None
    ]
    # An agent with its own update but ElegantRL's network can still be frozen and deployed.
    for agent_class in theirs:  # a discrete agent may be a subclass of the other
        if isinstance(own, type) and issubclass(own, agent_class):
            continuous, discrete = (own, None) if agent_class is kind.continuous else (None, own)
            own_network = _actor_type(own) is not _actor_type(agent_class)
            return AgentKind(continuous, discrete, kind.params, kind.replays, own_network)
    names = " or ".join(agent_class.__name__ for agent_class in theirs)
    raise InputError(f"--algo {algorithm}: the class must be a subclass of ElegantRL's {names}")


def _actor_type(agent_class: type[Any]) -> type[nn.Module]:
    # Only an instance knows its network class; constructing one draws random numbers.
    with torch.random.fork_rng(devices=[]):
        return type(agent_class([8], 2, 2, gpu_id=-1).act)


def _choose() -> str:
    return f"choose one of {', '.join(PREFIX + name for name in KINDS)}."
