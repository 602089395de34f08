"""Reference implementation of the crypto market from the specification, in plain Python floats.

It has one environment and shares no code with `sweepd.envs.crypto` except the dataclass of
parameters. It is slow and simple on purpose.
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

    units: float = 0.0  # negative if short
    cost: float = 0.0  # average per unit, fees included; of a short position, proceeds after fees
    highest: float = 0.0  # highest close since opening; of a short position, the lowest
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
    charges: float = 0.0  # for borrowing, less a debt that the venue bears
    liquidated: bool = False
    bankrupt: bool = False


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
    bars_per_year: float = math.inf
    steps_before: int = 0  # of the episode, by an account that went bankrupt
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

    def sizes(self) -> list[float]:
        """Return the positions' values without their signs."""
        return [
            abs(p.units * c) for p, c in zip(self.positions, self.closes[self.bar], strict=True)
        ]

    def debt(self) -> float:
        """Return the value of the short positions."""
        pairs = zip(self.positions, self.closes[self.bar], strict=True)
        return math.fsum(max(0.0, -p.units * c) for p, c in pairs)

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
            math.copysign(1.0, p.units) * (c / p.cost - 1.0) if p.units != 0 else 0.0
            for p, c in zip(self.positions, closes, strict=True)
        ]
        clocks = [min(1.0, p.held / held_scale) for p in self.positions]
        return [self.cash / total, *weights, *gains, *clocks]

    # ---- orders ----

    def orders(
        self, action: Sequence[float]
    ) -> tuple[list[int], list[float], list[float], list[bool], int]:
        """Return the orders of one bar.

        Per asset: the side (1 or -1), units that reduce the position, what increases it (notional
        of a long side, units of a short one), and whether the clock restarts. Then the number of
        orders dropped.
        """
        p, closes, total = self.params, self.closes[self.bar], self.value()
        reduce, increase = [0.0] * self.assets, [0.0] * self.assets
        restarts = [False] * self.assets
        sides = [1] * self.assets
        dropped = 0
        for i, position in enumerate(self.positions):
            close, size = closes[i], abs(position.units)
            if position.units < 0 or (position.units == 0 and action[i] < 0 and p.allow_short):
                sides[i] = -1
            wanted = sides[i] * action[i] * p.action_scale * total
            minimum = max(p.minimum_order, self.minimums[i], SMALLEST)
            sell = 0.0
            # 1. forced exits override the action
            if p.trailing_stop > 0 and (
                (position.units > 0 and close < position.highest * (1 - p.trailing_stop))
                or (position.units < 0 and close > position.highest * (1 + p.trailing_stop))
            ):
                reduce[i] = size
                continue
            if size > 0 and p.max_holding_bars > 0 and position.held >= p.max_holding_bars:
                sell = p.max_holding_fraction * size
                restarts[i] = True
            # 2. orders that reduce a position
            elif wanted < 0 and size > 0:
                sell = min(size, -wanted / close)
            # 3. orders that increase one, first half
            elif wanted > 0:
                increase[i] = max(0.0, min(wanted, p.max_position * total - size * close))
            if sell > 0:
                rest = size - sell
                if rest <= 0 or rest * close < minimum:
                    reduce[i] = size
                elif sell * close < minimum:
                    dropped += sell * close > SMALLEST
                else:
                    reduce[i] = sell
        # 3. second half: factors for all, then the minimum
        available = max(0.0, self.cash - self.debt() - p.cash_reserve * total)
        long = [n if side > 0 else 0.0 for n, side in zip(increase, sides, strict=True)]
        wished = math.fsum(long)
        if wished > available:
            increase = [
                n * (available / wished) if side > 0 else n
                for n, side in zip(increase, sides, strict=True)
            ]
        if p.allow_short:
            room = max(0.0, p.max_leverage * total - math.fsum(self.sizes()))
            room = room if total > 0.01 else 0.0  # a bankrupt account trades no more
            wished = math.fsum(increase)
            if wished > room:
                increase = [n * (room / wished) for n in increase]
        for i, notional in enumerate(increase):
            if notional < max(p.minimum_order, self.minimums[i], SMALLEST):
                increase[i] = 0.0
                dropped += notional > SMALLEST
        # 4. rounding, for assets with an increment; a whole position is closed whole
        for i, increment in enumerate(self.increments):
            if sides[i] < 0:
                increase[i] /= closes[i]
            if increment > 0:
                if reduce[i] < abs(self.positions[i].units):
                    reduce[i] = math.floor(reduce[i] / increment + 1e-6) * increment
                step = 0.01 if sides[i] > 0 else increment
                increase[i] = (
                    math.floor(increase[i] * 100 + 1e-6) / 100
                    if sides[i] > 0
                    else math.floor(increase[i] / step + 1e-6) * step
                )
        return sides, reduce, increase, restarts, dropped

    # ---- one bar ----

    def step(self, action: Sequence[float]) -> float:
        """Decide at this close, fill at the next open, value at its close; return the reward."""
        p = self.params
        value_before, equal_before = self.value(), self.equal_weight()
        drawdown_before = 1 - value_before / self.peak
        sides, reduce, increase, restarts, dropped = self.orders(action)
        self.bill = Bill(dropped=dropped)
        self.bar += 1
        opens, closes, holes = self.opens[self.bar], self.closes[self.bar], self.holes[self.bar]
        for i, position in enumerate(self.positions):
            was_open = position.units != 0
            extreme = max if position.units > 0 else min
            if was_open:
                position.held += 1
            if holes[i]:
                self.bill.unfilled += (reduce[i] > 0) + (increase[i] > 0)
                if was_open:
                    position.highest = extreme(position.highest, closes[i])
                continue
            if restarts[i]:
                position.held = 0
            if reduce[i] > 0 and sides[i] > 0:
                self._sell(reduce[i], opens[i])
                position.units -= reduce[i]
            if reduce[i] > 0 and sides[i] < 0:
                self._buy_units(reduce[i], opens[i])
                position.units += reduce[i]
            if reduce[i] > 0 and position.units == 0:
                self.positions[i] = position = Position()
            if increase[i] > 0:
                if position.units == 0:
                    position.held, position.highest = 0, closes[i]
                paid = abs(position.units) * position.cost
                if sides[i] > 0:
                    price = opens[i] * (1 + p.slippage)
                    bought = increase[i] * (1 - p.fee) / price
                    self.cash -= increase[i]
                    self._charge(increase[i], increase[i] * p.fee, bought * opens[i] * p.slippage)
                    paid += increase[i]
                    position.units += bought
                else:
                    paid += self._sell(increase[i], opens[i])
                    position.units -= increase[i]
                position.cost = paid / abs(position.units)
            if position.units != 0:
                extreme = max if position.units > 0 else min
                position.highest = extreme(position.highest, closes[i])
        for i in range(self.assets):
            if self.equal_cash[i] > 0 and not holes[i]:
                self.equal_units[i] = (
                    self.equal_cash[i] * (1 - p.fee) / (opens[i] * (1 + p.slippage))
                )
                self.equal_cash[i] = 0.0
        if p.allow_short:
            self._margin()
        reward = self._reward(value_before, equal_before, drawdown_before)
        self.age += 1
        return reward

    def _sell(self, units: float, price: float) -> float:
        """Sell units at a bar's price; return what was received after the fee."""
        p = self.params
        got = units * price * (1 - p.slippage)
        self.cash += got * (1 - p.fee)
        self._charge(got, got * p.fee, units * price * p.slippage)
        return float(got * (1 - p.fee))

    def _buy_units(self, units: float, price: float) -> None:
        """Buy back that many units, after the fee, at a bar's price."""
        p = self.params
        notional = units * price * (1 + p.slippage) / (1 - p.fee)
        self.cash -= notional
        self._charge(notional, notional * p.fee, units * price * p.slippage)

    def _margin(self) -> None:
        """Charge what is borrowed, liquidate, and close a bankrupt account, at the close."""
        p, closes, holes = self.params, self.closes[self.bar], self.holes[self.bar]
        borrowed = self.debt() + max(0.0, -self.cash)
        self.bill.charges = borrowed * p.borrow_fee / self.bars_per_year
        self.cash -= self.bill.charges
        if self.value() < p.maintenance_margin * math.fsum(self.sizes()):
            self.bill.liquidated = True
            self._close_at([0.0 if hole else c for c, hole in zip(closes, holes, strict=True)])
        if self.value() < 0.01:
            self.bill.bankrupt = True
            self._close_at(closes)
            self.bill.charges -= 0.01 - self.value()
            self.cash = 0.01

    def _close_at(self, prices: Sequence[float]) -> None:
        """Close the positions at these prices; 0 where there is none."""
        for i, (position, price) in enumerate(zip(self.positions, prices, strict=True)):
            if position.units != 0 and price > 0:
                if position.units > 0:
                    self._sell(position.units, price)
                else:
                    self._buy_units(-position.units, price)
                self.positions[i] = Position()

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
            abs(q.units) * c / total
            for q, c in zip(self.positions, self.closes[self.bar], strict=True)
        )
        weight = max(p.time_decay_floor, 1 - self.age / self.episode_bars)
        return p.reward_scale * (
            weight * (p.alpha_weight * (x - b) + (1 - p.alpha_weight) * x)
            - p.drawdown_penalty * max(0.0, drawdown - drawdown_before)
            - p.volatility_penalty * x**2
            - p.concentration_penalty * max(0.0, heaviest - p.concentration_limit)
            - p.cash_penalty * max(0.0, p.cash_reserve - self.cash / total)
        )
