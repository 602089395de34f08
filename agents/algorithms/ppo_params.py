"""The hyperparameters of PPO."""

from __future__ import annotations

from sweepd.agents.engine.hyperparameters import AboveZero, AtLeastZero, Scheduled, Share


class PPOParams(Scheduled):
    """The hyperparameters of PPO, besides those of `Scheduled`.

    Symbols in parentheses are those of `docs/explanation/ppo.md`.

    Attributes:
        gae_lambda: decay of the advantage estimate (λ).
        clip: bound on the change of the probability ratio (ε).
        entropy_coef: weight of the entropy, per nat.
        initial_log_std: initial log standard deviation of the Gaussian before tanh. During training
            it stays at most max(0, initial_log_std).
        value_coef: factor on the critic's gradient, applied before its clipping.
        target_kl: mean KL divergence of a minibatch above which the remaining gradient steps of
            the rollout are skipped; 0 turns this off.
        popart_beta: least weight of a rollout in the running mean and deviation of the returns,
            by which value targets are normalised (`sweepd.agents.algorithms.popart`): rollout k
            (from 1) has the weight max(popart_beta, 1/k). 0 turns this off.
        weight_average: length of the running mean of the actor's weights, as a share of the
            rollouts so far: after rollout k (from 1), the weights of that rollout count
            1 / max(1, weight_average k). The mean acts in evaluations and is exported; rollouts use
            the present weights. 0 turns this off.
    """

    gamma: Share = 0.96
    gae_lambda: Share = 0.95
    clip: AboveZero = 0.25
    entropy_coef: AtLeastZero = 0.03
    initial_log_std: float = -1.0
    value_coef: AboveZero = 0.5
    target_kl: AtLeastZero = 0.0
    adam_eps: AboveZero = 1e-5
    popart_beta: Share = 0.0
    weight_average: Share = 0.0

    of_the_run = ("initial_log_std", "popart_beta", "weight_average")
