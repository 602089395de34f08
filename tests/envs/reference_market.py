"""Reference implementation of the crypto market from the specification, in plain Python floats.

It has one environment and shares no code with `envs.crypto` except the dataclass of parameters. It
is slow and simple on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

SMALLEST = 1e-8  # smaller orders are rounding residues


@dataclass
class Position:
    """A position in one asset."""

    units: float = 0.0
    cost: float = 0.0  # average per unit, fees included
    highest: float = 0.0  # highest close since opening
    held: int = 0  # bars since opening or since the clock restarted


@dataclass
class Bill:
    """Result of one bar's orders."""

    notional: float = 0.0
    fees: float = 0.0
    slippage: float = 0.0
    trades: int = 0
    dropped: int = 0
    unfilled: int = 0


@dataclass
class ReferenceMarket:
    """One portfolio that trades from decision bar `start` on.

    Args:
        opens: T rows of N prices.
        closes: T rows of N prices.
        holes: T rows of N bools.
        params: an `EnvParams`.
        minimums: the exchange's minimum order per asset.
        increments: the exchange's increment per asset.
        episode_bars: length of the episode.
    """

    opens: Sequence[Sequence[float]]
    closes: Sequence[Sequence[float]]
    holes: Sequence[Sequence[bool]]
    params: Any
    start: int
    episode_bars: int
    minimums: Sequence[float] = ()
    increments: Sequence[float] = ()
    bill: Bill = field(default_factory=Bill)

    def __post_init__(self) -> None:
        self.assets = len(self.opens[0])
        self.minimums = self.minimums or [0.0] * self.assets
        self.increments = self.increments or [0.0] * self.assets
        self.bar = self.start
        self.age = 0
        self.cash = float(self.params.initial_cash)
        self.positions = [Position() for _ in range(self.assets)]
        self.peak = self.cash
        # Equal weight buys V/N of each asset, like any order, at its first bar without a hole.
        self.equal_cash = [self.cash / self.assets] * self.assets
        self.equal_units = [0.0] * self.assets

    # ---- what things are worth ----

    def value(self) -> float:
        closes = self.closes[self.bar]
        return self.cash + math.fsum(
            p.units * c for p, c in zip(self.positions, closes, strict=True)
        )

    def equal_weight(self) -> float:
        closes = self.closes[self.bar]
        return math.fsum(self.equal_cash) + math.fsum(
            u * c for u, c in zip(self.equal_units, closes, strict=True)
        )

    def observation(self, held_scale: float) -> list[float]:
        """Return cash fraction, weights, unrealised returns and clocks."""
        closes, total = self.closes[self.bar], self.value()
        weights = [p.units * c / total for p, c in zip(self.positions, closes, strict=True)]
        gains = [
            c / p.cost - 1.0 if p.units > 0 else 0.0
            for p, c in zip(self.positions, closes, strict=True)
        ]
        clocks = [min(1.0, p.held / held_scale) for p in self.positions]
        return [self.cash / total, *weights, *gains, *clocks]

    # ---- orders ----

    def orders(self, action: Sequence[float]) -> tuple[list[float], list[float], list[bool], int]:
        """Return units to sell, notional to buy, which clocks restart, and orders dropped."""
        p, closes, total = self.params, self.closes[self.bar], self.value()
        sells, buys = [0.0] * self.assets, [0.0] * self.assets
        restarts = [False] * self.assets
        dropped = 0
        for i, position in enumerate(self.positions):
            wanted = action[i] * p.action_scale * total
            close = closes[i]
            minimum = max(p.minimum_order, self.minimums[i], SMALLEST)
            sell = 0.0
            # 1. forced exits override the action
            if (
                position.units > 0
                and p.trailing_stop > 0
                and close < position.highest * (1 - p.trailing_stop)
            ):
                sells[i] = position.units
                continue
            if (
                position.units > 0
                and p.max_holding_bars > 0
                and position.held >= p.max_holding_bars
            ):
                sell = p.max_holding_fraction * position.units
                restarts[i] = True
            # 2. sells
            elif wanted < 0 and position.units > 0:
                sell = min(position.units, -wanted / close)
            # 3. buys, first half
            elif wanted > 0:
                buys[i] = max(0.0, min(wanted, p.max_position * total - position.units * close))
            if sell > 0:
                rest = position.units - sell
                if rest <= 0 or rest * close < minimum:
                    sells[i] = position.units
                elif sell * close < minimum:
                    dropped += sell * close > SMALLEST
                else:
                    sells[i] = sell
        # 3. buys, second half: one factor for all, then the minimum
        available = max(0.0, self.cash - p.cash_reserve * total)
        wished = math.fsum(buys)
        if wished > available:
            buys = [n * (available / wished) for n in buys]
        for i, notional in enumerate(buys):
            if notional < max(p.minimum_order, self.minimums[i], SMALLEST):
                buys[i] = 0.0
                dropped += notional > SMALLEST
        # 4. rounding, for assets with an increment; a whole position is sold whole
        for i, increment in enumerate(self.increments):
            if increment > 0:
                if sells[i] < self.positions[i].units:
                    sells[i] = math.floor(sells[i] / increment + 1e-6) * increment
                buys[i] = math.floor(buys[i] * 100 + 1e-6) / 100
        return sells, buys, restarts, dropped

    # ---- one bar ----

    def step(self, action: Sequence[float]) -> float:
        """Decide at this close, fill at the next open, value at its close; return the reward."""
        p = self.params
        value_before, equal_before = self.value(), self.equal_weight()
        drawdown_before = 1 - value_before / self.peak
        sells, buys, restarts, dropped = self.orders(action)
        self.bill = Bill(dropped=dropped)
        self.bar += 1
        opens, closes, holes = self.opens[self.bar], self.closes[self.bar], self.holes[self.bar]
        for i, position in enumerate(self.positions):
            was_open = position.units > 0
            if was_open:
                position.held += 1
            if holes[i]:
                self.bill.unfilled += (sells[i] > 0) + (buys[i] > 0)
                if was_open:
                    position.highest = max(position.highest, closes[i])
                continue
            if restarts[i]:
                position.held = 0
            if sells[i] > 0:
                got = sells[i] * opens[i] * (1 - p.slippage)
                self.cash += got * (1 - p.fee)
                self._charge(got, got * p.fee, sells[i] * opens[i] * p.slippage)
                position.units -= sells[i]
                if position.units == 0:
                    self.positions[i] = Position()
            if buys[i] > 0:
                price = opens[i] * (1 + p.slippage)
                bought = buys[i] * (1 - p.fee) / price
                self.cash -= buys[i]
                self._charge(buys[i], buys[i] * p.fee, bought * opens[i] * p.slippage)
                paid = position.units * position.cost + buys[i]
                if position.units == 0:
                    position.held, position.highest = 0, closes[i]
                position.units += bought
                position.cost = paid / position.units
            if self.positions[i].units > 0:
                self.positions[i].highest = max(self.positions[i].highest, closes[i])
        for i in range(self.assets):
            if self.equal_cash[i] > 0 and not holes[i]:
                self.equal_units[i] = (
                    self.equal_cash[i] * (1 - p.fee) / (opens[i] * (1 + p.slippage))
                )
                self.equal_cash[i] = 0.0
        reward = self._reward(value_before, equal_before, drawdown_before)
        self.age += 1
        return reward

    def _charge(self, notional: float, fee: float, slippage: float) -> None:
        self.bill.notional += notional
        self.bill.fees += fee
        self.bill.slippage += slippage
        self.bill.trades += 1

    def _reward(self, value_before: float, equal_before: float, drawdown_before: float) -> float:
        p, total = self.params, self.value()
        x = math.log(total / value_before)
        b = math.log(self.equal_weight() / equal_before)
        self.peak = max(self.peak, total)
        drawdown = 1 - total / self.peak
        heaviest = max(
            q.units * c / total for q, c in zip(self.positions, self.closes[self.bar], strict=True)
        )
        weight = max(p.time_decay_floor, 1 - self.age / self.episode_bars)
        return p.reward_scale * (
            weight * (p.alpha_weight * (x - b) + (1 - p.alpha_weight) * x)
            - p.drawdown_penalty * max(0.0, drawdown - drawdown_before)
            - p.volatility_penalty * x**2
            - p.concentration_penalty * max(0.0, heaviest - p.concentration_limit)
            - p.cash_penalty * max(0.0, p.cash_reserve - self.cash / total)
        )
