"""The reward of a step, batched over rows with different weights. Metrics do not use it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sweepd.envs.crypto.params import EnvParams
from sweepd.envs.native.memory import per_row


class Reward:
    """Reward of R rows.

    With x and b the log growth of the portfolio and of equal weight over the bar:

        r = reward_scale · (g · [alpha_weight · (x - b) + (1 - alpha_weight) · x] - penalties)
        g = max(time_decay_floor, 1 - age / episode_bars)

    Penalties, all of the portfolio at the bar's close:

        drawdown_penalty · max(0, increase of the drawdown from the episode's peak)
        volatility_penalty · x²
        concentration_penalty · max(0, largest weight's size - concentration_limit)
        cash_penalty · max(0, cash_reserve - cash / V)

    The bracket equals x - alpha_weight · b, which is how it is computed. Terms whose coefficient is
    0 in all rows are skipped; they would only add zeros.
    """

    def __init__(self, rows: int, device: torch.device) -> None:
        def zeros(*shape: int) -> Tensor:
            return per_row(*shape, rows=rows, device=device)

        self.peak = zeros()
        self.drawdown = zeros()
        self._growth = zeros(2)  # coefficients of b and of x
        self._parts = zeros(2)
        self._of_equal_weight, self._of_portfolio = self._parts
        self._floor = zeros()
        self._inverse_length = zeros()
        self._drawdown_penalty = zeros()
        self._volatility_penalty = zeros()
        self._concentration_penalty = zeros()
        self._concentration_limit = zeros()
        self._cash_penalty = zeros()
        self._cash_reserve = zeros()
        self._members: dict[int, EnvParams] = {}
        self._decays = self._penalises_drawdown = self._penalises_state = False

    def set_rows(self, first: int, stop: int, params: EnvParams, episode_bars: int) -> None:
        """Set the parameters of rows first … stop-1."""
        at = slice(first, stop)
        # All coefficients include reward_scale, which saves a multiplication per step.
        # alpha_weight · (x - b) + (1 - alpha_weight) · x = x - alpha_weight · b
        self._growth[0, at] = -params.reward_scale * params.alpha_weight
        self._growth[1, at] = params.reward_scale
        self._floor[at] = params.time_decay_floor
        self._inverse_length[at] = 1.0 / episode_bars
        for name in ("drawdown", "volatility", "concentration", "cash"):
            getattr(self, f"_{name}_penalty")[at] = params.reward_scale * getattr(
                params, f"{name}_penalty"
            )
        self._concentration_limit[at] = params.concentration_limit
        self._cash_reserve[at] = params.cash_reserve
        # A term is computed if any member uses it.
        self._members[first] = params
        members = self._members.values()
        self._decays = any(p.time_decay_floor < 1 for p in members)
        self._penalises_drawdown = any(p.drawdown_penalty > 0 for p in members)
        self._penalises_state = any(
            p.volatility_penalty > 0 or p.concentration_penalty > 0 or p.cash_penalty > 0
            for p in members
        )

    def start(self, total: Tensor, rows: Tensor) -> None:
        """Start an episode with value `total` (R,) in `rows`, a mask (R,)."""
        # A new episode starts at its peak, with no drawdown.
        torch.where(rows, total, self.peak, out=self.peak)
        self.drawdown.masked_fill_(rows, 0.0)

    def native_state(self) -> tuple[dict[str, int], dict[str, Tensor | None]]:
        """Return the flags and tensors of `sweepd.envs.crypto.native`."""
        flags = {
            "decays": int(self._decays),
            "penalises_drawdown": int(self._penalises_drawdown),
            "penalises_state": int(self._penalises_state),
        }
        return flags, {
            "growth_weights": self._growth,
            "floor": self._floor,
            "inverse_length": self._inverse_length,
            "drawdown_penalty": self._drawdown_penalty,
            "volatility_penalty": self._volatility_penalty,
            "concentration_penalty": self._concentration_penalty,
            "concentration_limit": self._concentration_limit,
            "cash_penalty": self._cash_penalty,
            "cash_reserve": self._cash_reserve,
            "peak": self.peak,
            "drawdown": self.drawdown,
        }

    def of(
        self, growth: Tensor, total: Tensor, worth: Tensor, cash: Tensor, age: Callable[[], Tensor]
    ) -> Tensor:
        """Return the reward of a step: (R,) float64, overwritten by the next call.

        Args:
            growth: (2, R), b and x.
            total: (R,), V at the bar's close.
            worth: (N, R), value of the positions at the bar's close.
            cash: (R,), at the bar's close.
            age: returns (R,), the steps before this one. Called only if a row's weight decays.
        """
        torch.mul(growth, self._growth, out=self._parts)
        reward: Tensor = self._of_portfolio.add_(self._of_equal_weight)
        if self._decays:
            reward *= torch.maximum(self._floor, 1.0 - age() * self._inverse_length)
        if self._penalises_drawdown:
            # Only an increase within this step counts, so a lasting drawdown is penalised once.
            torch.maximum(self.peak, total, out=self.peak)
            drawdown = 1.0 - total / self.peak
            reward -= self._drawdown_penalty * (drawdown - self.drawdown).clamp_min_(0.0)
            self.drawdown.copy_(drawdown)
        if self._penalises_state:
            reward -= self._volatility_penalty * growth[1].square()
            # Concentration is measured on the largest single weight, not on the sum of squares,
            # so that `concentration_limit` is a weight.
            heaviest = worth.abs().amax(0) / total
            reward -= self._concentration_penalty * (
                heaviest - self._concentration_limit
            ).clamp_min_(0.0)
            reward -= self._cash_penalty * (self._cash_reserve - cash / total).clamp_min_(0.0)
        return reward
