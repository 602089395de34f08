"""Return scaling for PPO: the critic learns normalised returns, whatever the unit of the rewards.

PopArt (van Hasselt et al., "Learning values across many orders of magnitude", 2016): each member keeps a running mean
and standard deviation of its returns in `value_avg` and `value_std`, ElegantRL's normaliser of critic outputs. When
they change, the critic's last layer is rescaled so that its values stay the same. They are part of a member's state
and of its exported critic.
"""

from __future__ import annotations

import torch
from torch import Tensor

from agents.engine.population import Population


def scale_values(
    population: Population, mean: Tensor, variance: Tensor, rate: Tensor, enabled: Tensor
) -> None:
    """Move `value_avg` and `value_std` towards the mean and variance of a rollout's returns, (G, 1) each.

    rate: (G, 1), the weight of this rollout. enabled: (G, 1) bool; the other members keep every bit, and so do members
    whose numbers are not finite. A `value_std` of 0 means that no returns are known yet: the first rollout whose
    returns vary then sets both.
    """
    weights = population.weights
    avg, std = population.value_avg[:, 0], population.value_std[:, 0]
    known = std > 0
    rate = torch.where(known, rate, 1.0)
    shift = mean - avg
    new_avg = avg + rate * shift
    new_std = ((1.0 - rate) * (std.square() + rate * shift.square()) + rate * variance).sqrt()
    changed = enabled & new_avg.isfinite() & new_std.isfinite() & (new_std > 0)
    ratio, move = std / new_std, (avg - new_avg) / new_std
    for leaf, scaled in (
        (weights.critic_out, weights.critic_out * ratio.unsqueeze(-1)),
        (
            weights.critic_out_bias,
            torch.addcmul(move.unsqueeze(-1), weights.critic_out_bias, ratio.unsqueeze(-1)),
        ),
    ):
        leaf.copy_(torch.where((changed & known).unsqueeze(-1), scaled, leaf))
    avg.copy_(torch.where(changed, new_avg, avg))
    std.copy_(torch.where(changed, new_std, std))
