"""The hyperparameters of PPO that are numbers: each member of a program has its own."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from envs.support.errors import InputError

SCHEDULES = ("constant", "linear", "cosine")


@dataclass(frozen=True, kw_only=True)
class PPOParams:
    """The numbers of one member. They may differ between the members of a program.

    learning_rate: Adam's, at the start; gamma: discount per step; gae_lambda: of the advantage estimate; clip: of the
    probability ratio; entropy_coef: per nat of entropy; initial_log_std: of the Gaussian before tanh, capped at 0
    throughout; value_coef: scales the critic's gradient (before its clip); max_grad_norm: of each network; target_kl:
    mean KL per minibatch above which a rollout's remaining updates are left out, 0 = off; adam_eps; lr_schedule:
    constant, linear or cosine over the member's rollouts; weight_decay: AdamW's; popart_beta: scales value targets by
    the running mean and standard deviation of the returns (`agents.algorithms.popart`), in which every rollout has this weight (an
    equal weight until that is smaller), 0 = off.
    """

    learning_rate: float = 1e-3
    gamma: float = 0.96
    gae_lambda: float = 0.95
    clip: float = 0.25
    entropy_coef: float = 0.03
    initial_log_std: float = -1.0
    value_coef: float = 0.5
    max_grad_norm: float = 3.0
    target_kl: float = 0.0
    adam_eps: float = 1e-5
    weight_decay: float = 0.0
    popart_beta: float = 0.0
    lr_schedule: str = "constant"

    def __post_init__(self) -> None:
        above_zero = ("learning_rate", "clip", "value_coef", "max_grad_norm", "adam_eps")
        shares = ("gamma", "gae_lambda", "popart_beta")
        for name in NUMBERS:
            value = getattr(self, name)
            if name in above_zero:
                right, bound = value > 0, "above 0"
            elif name in shares:
                right, bound = 0 <= value <= 1, "between 0 and 1"
            elif name == "initial_log_std":
                right, bound = True, "finite"
            else:
                right, bound = value >= 0, "at least 0"
            if not (right and math.isfinite(value)):
                raise InputError(f"{name} must be {bound}, not {value}.")
        if self.lr_schedule not in SCHEDULES:
            raise InputError(
                f"lr_schedule must be one of {', '.join(SCHEDULES)}, not {self.lr_schedule!r}."
            )

    def learning_rate_at(self, rollout: int, total: int) -> float:
        """The rate of rollout 0 … total - 1; beyond the last, the last one's."""
        progress = min(rollout, total - 1) / total
        if self.lr_schedule == "linear":
            return self.learning_rate * (1.0 - progress)
        if self.lr_schedule == "cosine":
            return self.learning_rate * 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.learning_rate


NUMBERS = tuple(field.name for field in fields(PPOParams) if field.name != "lr_schedule")
