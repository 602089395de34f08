"""The hyperparameters of SAC and D3QN."""

from __future__ import annotations

import math
from typing import ClassVar

from sweepd.agents.engine.hyperparameters import AboveZero, Count, PositiveCount, Scheduled, Share


class OffPolicyParams(Scheduled):
    """The hyperparameters that SAC and D3QN share, besides those of `Scheduled`.

    Attributes:
        soft_update_tau: weight of the trained network in the exponential moving average that the
            target network is, updated after every gradient step.
        reward_scale: factor on the rewards.
        warmup: transitions collected with random actions before the first gradient step.
    """

    soft_update_tau: Share = 0.02
    reward_scale: AboveZero = 1.0
    warmup: Count = 1_000

    of_the_run: ClassVar[tuple[str, ...]] = ("reward_scale", "warmup")


class SACParams(OffPolicyParams):
    """The hyperparameters of SAC, besides those of `OffPolicyParams`.

    Attributes:
        target_entropy: entropy that the temperature alpha is tuned for, in nats per dimension of
            an action. (ElegantRL's `target_entropy` is its negative, summed over the dimensions;
            its estimate of the entropy is half a nat per dimension low, see
            `sweepd.agents.algorithms.sac`.)
        initial_alpha: temperature at the start.
    """

    target_entropy: float = -1.0
    initial_alpha: AboveZero = math.exp(-1.0)

    of_the_run = (*OffPolicyParams.of_the_run, "initial_alpha")


class D3QNParams(OffPolicyParams):
    """The hyperparameters of D3QN, besides those of `OffPolicyParams`.

    Attributes:
        reward_scale: choose it such that returns are of the order of 10. The loss is linear in
            errors above 1, so with larger returns it gives rare outcomes too little weight.
        explore_start: probability of starting a random action at the start of training.
        explore_end: the same probability at the end of the decay.
        explore_share: fraction of the member's rollouts over which the probability decays
            linearly from `explore_start` to `explore_end`.
        explore_hold: most steps for which a random action is repeated; 1 is plain
            epsilon-greedy. (With 8, a probability of 0.05 makes one action in eight random.)
    """

    reward_scale: AboveZero = 0.1
    explore_start: Share = 1.0
    explore_end: Share = 0.05
    explore_share: Share = 0.3
    explore_hold: PositiveCount = 8

    def explore_rate_at(self, rollout: int, total: int) -> float:
        """Return the probability of starting a random action in a rollout (from 0) of `total`."""
        progress = min(1.0, rollout / (self.explore_share * total)) if self.explore_share else 1.0
        return self.explore_start + (self.explore_end - self.explore_start) * progress
