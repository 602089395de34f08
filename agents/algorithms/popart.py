"""Return scaling for PPO, so that learning does not depend on the scale of the rewards.

PopArt (van Hasselt et al., "Learning values across many orders of magnitude", 2016,
arXiv:1602.07714): each member keeps a running mean μ and standard deviation σ of its returns in
`value_avg` and `value_std`, ElegantRL's normaliser of critic outputs: V = σ v + μ. When they change
to μ' and σ', the critic's last layer (w, b) is rescaled so that V stays the same:

    w' = w σ / σ',    b' = (σ b + μ - μ') / σ'

Both are part of a member's state and of its exported critic.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sweepd.agents.engine.population import Population
from sweepd.agents.networks.portable import sqrt


def scale_values(
    population: Population, mean: Tensor, variance: Tensor, rate: Tensor, enabled: Tensor
) -> None:
    """Move `value_avg` and `value_std` towards the moments of a rollout's returns.

    With rate β, rollout mean m and variance s²:

        μ' = μ + β (m - μ),    σ'² = (1 - β) (σ² + β (m - μ)²) + β s²

    A `value_std` of 0 means that no returns are known yet; the first rollout whose returns vary
    then sets both. Members that are not enabled, or whose moments are not finite, keep every bit.

    Args:
        population: the members.
        mean: (G, 1), m.
        variance: (G, 1), s².
        rate: (G, 1), β.
        enabled: (G, 1) bool.
    """
    [top] = population.critic.spec.heads
    weight, bias = (population.critic.weights[f"{top}.{part}"] for part in ("weight", "bias"))
    avg, std = population.value_avg[:, 0], population.value_std[:, 0]
    # Without known returns, the rollout's own moments are adopted whole (β = 1).
    known = std > 0
    rate = torch.where(known, rate, 1.0)
    # σ'² is the variance of a mixture with weights 1 - β and β of two distributions with these
    # means and variances; (m - μ)² β (1 - β) is the variance between their means.
    shift = mean - avg
    new_avg = avg + rate * shift
    new_std = sqrt((1.0 - rate) * (std.square() + rate * shift.square()) + rate * variance)
    # NaN moments (fewer than two valid returns) change nothing, and neither do constant returns as
    # long as no others are known.
    changed = enabled & new_avg.isfinite() & new_std.isfinite() & (new_std > 0)
    # w' = ratio · w,  b' = ratio · b + move
    # A member's critics have one normaliser, also where it has one for each seat.
    ratio, move, moved = (
        part.repeat_interleave(population.shape.sets_per_member, 0).unsqueeze(-1)
        # The first moments only define the unit: there is no earlier scale to convert from.
        for part in (std / new_std, (avg - new_avg) / new_std, changed & known)
    )
    for leaf, scaled in ((weight, weight * ratio), (bias, torch.addcmul(move, bias, ratio))):
        leaf.copy_(torch.where(moved, scaled, leaf))
    avg.copy_(torch.where(changed, new_avg, avg))
    std.copy_(torch.where(changed, new_std, std))
