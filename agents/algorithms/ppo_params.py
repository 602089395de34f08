"""The hyperparameters of PPO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from sweepd.agents.engine.hyperparameters import SCHEDULES, Hyperparameters, Scheduled


@dataclass(frozen=True, kw_only=True)
class PPOParams(Scheduled, Hyperparameters):
    """The hyperparameters of one member; symbols in parentheses are those of `docs/ppo.md`.

    Attributes:
        learning_rate: Adam's learning rate at the start of training.
        gamma: discount per step (γ).
        gae_lambda: decay of the advantage estimate (λ).
        clip: bound on the change of the probability ratio (ε).
        entropy_coef: weight of the entropy, per nat.
        initial_log_std: initial log standard deviation of the Gaussian before tanh. During training
            it stays at most max(0, initial_log_std).
        value_coef: factor on the critic's gradient, applied before its clipping.
        max_grad_norm: largest gradient norm of each network.
        target_kl: mean KL divergence of a minibatch above which the remaining gradient steps of
            the rollout are skipped; 0 turns this off.
        adam_eps: Adam's epsilon.
        weight_decay: AdamW's weight decay.
        popart_beta: least weight of a rollout in the running mean and deviation of the returns,
            by which value targets are normalised (`sweepd.agents.algorithms.popart`): rollout k
            (from 1) has the weight max(popart_beta, 1/k). 0 turns this off.
        lr_schedule: "constant", "linear" or "cosine" decay over the member's rollouts.
        weight_average: length of the running mean of the actor's weights, as a share of the
            rollouts so far: after rollout k (from 1), the weights of that rollout count
            1 / max(1, weight_average k). The mean acts in evaluations and is exported; rollouts use
            the present weights. 0 turns this off.
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
    weight_average: float = 0.0

    of_the_run = ("initial_log_std", "popart_beta", "weight_average")
    _above_zero: ClassVar[tuple[str, ...]] = (
        "learning_rate",
        "clip",
        "value_coef",
        "max_grad_norm",
        "adam_eps",
    )
    _zero_to_one: ClassVar[tuple[str, ...]] = (
        "gamma",
        "gae_lambda",
        "popart_beta",
        "weight_average",
    )
    _finite: ClassVar[tuple[str, ...]] = ("initial_log_std",)
    _options: ClassVar[Mapping[str, tuple[str, ...]]] = {"lr_schedule": SCHEDULES}
