"""The scale of observations as a running statistic of each member.

A scale measured in random play does not fit where random play never goes: on Acrobot, which hangs
in random play, a policy that swings it up sees numbers twenty deviations from their mean. Here each
member's mean and deviation follow the observations of its own rollouts. (With ReLU networks that
alone does not make Acrobot easier to learn; with tanh it does: docs/evidence/learning_vs_sb3.md.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from sweepd.agents.networks.portable import sqrt
from sweepd.agents.networks.shape import Shape


class RunningScale:
    """Means and deviations of the members' observations; the variances of all rollouts so far.

    With n observations so far, their mean m and sum of squared distances s, and those of a rollout
    n', m' and s' (Chan, Golub and LeVeque, 1983):

        n ← n + n',   m ← m + (m' - m) n'/n,   s ← s + s' + (m' - m)² (n - n') n'/n

    with the new n on the right. At the start, m and s are those of random play, which counts as
    much as a rollout: after k rollouts, no deviation is below 1/√(k + 1) of what it was at first,
    not even of columns that are constant.

    All sums are made of pairs in float64 with operations on whole tensors, so their bits depend on
    neither slot, threads nor processor.

    Attributes:
        moments: (G, 3, obs_dim) float64, n, m and s; zeros in empty slots.
    """

    def __init__(self, shape: Shape, device: torch.device) -> None:
        self._weight = float(shape.samples)
        self._kept = shape.seat_column  # is looked up as it is
        self.moments = torch.zeros(
            shape.slots, 3, shape.obs_dim, dtype=torch.float64, device=device
        )

    def start(self, slot: int, avg: Tensor, std: Tensor) -> None:
        """Set a member's statistics to mean and deviation of earlier play, (obs_dim,) each."""
        count = torch.full_like(avg, self._weight, dtype=torch.float64)
        self.moments[slot] = torch.stack((count, avg.double(), count * std.double().square()))

    def clear(self, slot: int) -> None:
        """Reset a slot."""
        self.moments[slot] = 0

    def observe(self, obs: Tensor, valid: Tensor | None = None) -> None:
        """Add a rollout's observations. `write` puts the result to use.

        Args:
            obs: (G, rows, obs_dim), as the environment gave them.
            valid: (G, rows) bool, those that count; None: all.
        """
        count, mean, squares = self.moments.unbind(1)
        # Distances from the mean so far: the sums of squares lose no digits to the mean.
        away = obs.double().sub_(mean.unsqueeze(1))
        if valid is None:
            new = torch.full_like(count, float(obs.shape[1]))
        else:
            away.masked_fill_(~valid.unsqueeze(-1), 0.0)
            new = valid.sum(1, keepdim=True).double().expand_as(count)
        shift = _sum_of_rows(away) / new.clamp_min(1.0)
        own = (_sum_of_rows(away.square_()) - new * shift.square()).clamp_min_(0.0)
        total = (count + new).clamp_min_(1.0)
        share = new / total
        found = torch.stack(
            (count + new, mean + shift * share, squares + own + shift.square() * count * share), 1
        )
        if self._kept is not None:
            found[..., self._kept] = self.moments[..., self._kept]
        # A diverged member's numbers may not be finite, nor may those of an empty slot matter.
        usable = found.isfinite().all(2).all(1) & (count[:, 0] > 0)
        self.moments.copy_(torch.where(usable.view(-1, 1, 1), found, self.moments))

    def write(self, avg: Tensor, std: Tensor) -> None:
        """Write mean and deviation, (G, 1, columns) each, for the first columns; 0, 1 where empty."""
        count, mean, squares = self.moments[..., : avg.shape[-1]].unsqueeze(2).unbind(1)
        avg.copy_(mean)
        deviation = sqrt((squares / count.clamp_min(1.0)).clamp_min_(1e-30))
        std.copy_(torch.where(count > 0, deviation, 1.0))


def _sum_of_rows(rows: Tensor) -> Tensor:
    """Return (G, columns), sums over the rows of (G, rows, columns), in pairs."""
    while rows.shape[1] > 1:
        half = rows.shape[1] // 2
        pairs = rows[:, :half] + rows[:, half : 2 * half]
        rows = torch.cat((pairs, rows[:, 2 * half :]), 1) if rows.shape[1] % 2 else pairs
    return rows[:, 0]
