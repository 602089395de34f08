"""The hyperparameters of SAC and D3QN that are numbers: each member of a program has its own."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import ClassVar

from envs.support.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """A dataclass of numbers that checks their ranges: those named in `_above_zero`, `_shares` (of 0 … 1) and `_any`;
    all others are at least 0.
    """

    _above_zero: ClassVar[tuple[str, ...]] = (
        "learning_rate",
        "reward_scale",
        "max_grad_norm",
        "adam_eps",
    )
    _shares: ClassVar[tuple[str, ...]] = ("gamma", "soft_update_tau")
    _any: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in self._above_zero:
                right, bound = value > 0, "above 0"
            elif field.name in self._shares:
                right, bound = 0 <= value <= 1, "between 0 and 1"
            elif field.name in self._any:
                right, bound = True, "finite"
            else:
                right, bound = value >= 0, "at least 0"
            if not (right and math.isfinite(value)):
                raise InputError(f"{field.name} must be {bound}, not {value}.")
            if field.type == "int" and value != int(value):
                raise InputError(f"{field.name} must be a whole number, not {value}.")


@dataclass(frozen=True, kw_only=True)
class OffPolicyParams(Numbers):
    """What both have. The numbers of one member; they may differ between the members of a program.

    learning_rate: Adam's; gamma: discount per step; soft_update_tau: share by which the target network moves towards
    the learned one after every gradient step; reward_scale: rewards are multiplied by it; max_grad_norm: of each
    network; adam_eps, weight_decay: AdamW's (ElegantRL's own decay is 0.01); warmup: transitions with random actions
    before learning begins.
    """

    learning_rate: float = 1e-3
    gamma: float = 0.99
    soft_update_tau: float = 0.02
    reward_scale: float = 1.0
    max_grad_norm: float = 3.0
    adam_eps: float = 1e-8
    weight_decay: float = 0.0
    warmup: int = 1_000


@dataclass(frozen=True, kw_only=True)
class SACParams(OffPolicyParams):
    """target_entropy: in nats per number of an action, what the temperature alpha is tuned for (ElegantRL's
    `target_entropy` is its negative, summed over them; its entropy reads half a nat per number low, see `agents.algorithms.sac`);
    initial_alpha: the temperature at the start.
    """

    target_entropy: float = -1.0
    initial_alpha: float = math.exp(-1.0)

    _above_zero: ClassVar[tuple[str, ...]] = (*OffPolicyParams._above_zero, "initial_alpha")
    _any: ClassVar[tuple[str, ...]] = ("target_entropy",)


@dataclass(frozen=True, kw_only=True)
class D3QNParams(OffPolicyParams):
    """reward_scale: best such that returns are of the order of 10: the loss counts errors above 1 by their size alone,
    so that what is rare is lost on it where returns are large. explore_start, explore_end: how often a random action
    begins where none is held, which falls in a straight line over the first explore_share of a member's rollouts;
    explore_hold: steps for which a random action is held at most (1: plain epsilon-greedy; with 8, a rate of 0.05 makes
    one action in eight random).
    """

    reward_scale: float = 0.1
    explore_start: float = 1.0
    explore_end: float = 0.05
    explore_share: float = 0.3
    explore_hold: int = 8

    _above_zero: ClassVar[tuple[str, ...]] = (*OffPolicyParams._above_zero, "explore_hold")

    _shares: ClassVar[tuple[str, ...]] = (
        *OffPolicyParams._shares,
        "explore_start",
        "explore_end",
        "explore_share",
    )

    def explore_rate_at(self, rollout: int, total: int) -> float:
        """Of rollout 0 … total - 1."""
        begun = min(1.0, rollout / (self.explore_share * total)) if self.explore_share else 1.0
        return self.explore_start + (self.explore_end - self.explore_start) * begun
