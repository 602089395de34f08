"""The simulated broker: the environment's fill rules on the next bar's open."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from deploy.brokers.base import AccountState, Broker, Fill, Order
from envs.crypto.params import EnvParams, Instruments
from envs.crypto.portfolio import Orders, Portfolio, Rules, fill_orders

Array = NDArray[np.float64]


class SimBroker(Broker):
    """An account of virtual money. Whoever feeds bars calls `next_bar` for each, before the trader acts on it.

    tickers: in the order of the arrays given to `next_bar`. cash: what the account starts with, in quote units.
    """

    def __init__(self, tickers: Sequence[str], cash: float, params: EnvParams, instruments: Instruments) -> None:
        count = len(tickers)
        self._tickers = tuple(tickers)
        self._rules = Rules.of(params, instruments)
        self._each = Rules.of(params, instruments, rows=count)
        self._cash = torch.tensor([cash], dtype=torch.float64)
        self._units = torch.zeros(1, count, dtype=torch.float64)
        self._pending: list[Order] = []
        self._settled: list[Fill] = []
        self._sent: set[str] = set()

    def account(self) -> AccountState:
        """What the account holds now."""
        return AccountState(float(self._cash[0]), dict(zip(self._tickers, self._units[0].tolist(), strict=True)))

    def submit(self, orders: Sequence[Order]) -> None:
        """Take orders for the next bar. Raises ValueError for a client id sent before, an unknown ticker, or two orders for one."""
        known = {order.ticker for order in self._pending}
        for order in orders:
            if order.client_id in self._sent:
                raise ValueError(f"order {order.client_id} was sent before")
            if order.ticker not in self._tickers or order.ticker in known:
                raise ValueError(f"order {order.client_id}: {order.ticker} is not traded here, or has an order already")
            known.add(order.ticker)
            self._sent.add(order.client_id)
            self._pending.append(order)

    def fills(self) -> list[Fill]:
        """What became of the orders since the last call."""
        settled, self._settled = self._settled, []
        return settled

    def next_bar(self, time: int, open_: Array, hole: NDArray[np.bool_]) -> None:
        """Fill the pending orders at the bar's open. open_, hole: (N,); time: its open, seconds since the epoch."""
        count = len(self._tickers)
        sells, buys = torch.zeros(1, count, dtype=torch.float64), torch.zeros(1, count, dtype=torch.float64)
        for order in self._pending:
            asset = self._tickers.index(order.ticker)
            sells[0, asset], buys[0, asset] = order.units, order.notional
        opens, holes = torch.from_numpy(open_).unsqueeze(0), torch.from_numpy(hole).unsqueeze(0)
        before = self._units.clone()
        # Row j of the second call holds the order for asset j alone: what that one came to.
        apart, each = fill_orders(
            self._portfolio(count), _orders(torch.diag(sells[0]), torch.diag(buys[0])), opens.expand(count, -1), holes.expand(count, -1), self._each
        )
        after, _ = fill_orders(self._portfolio(1), _orders(sells, buys), opens, holes, self._rules)
        self._cash, self._units = after.cash, after.units
        for order in self._pending:
            asset = self._tickers.index(order.ticker)
            if hole[asset]:
                self._settled.append(Fill(order, "unfilled", time))
                continue
            units = abs(float(apart.units[asset, asset] - before[0, asset]))
            notional, fee = float(each.notional[asset]), float(each.fees[asset])
            slipped = 1.0 + self._slippage(order)
            self._settled.append(Fill(order, "filled", time, units, notional, fee, float(open_[asset]) * slipped))
        self._pending = []

    def _slippage(self, order: Order) -> float:
        """Relative to the open: above it for a buy, below for a sell."""
        paid = 1.0 - float(self._rules.sell_notional[0])
        return paid if order.side == "buy" else -paid

    def _portfolio(self, rows: int) -> Portfolio:
        nothing = torch.zeros(rows, len(self._tickers), dtype=torch.float64)
        return Portfolio(self._cash.expand(rows).clone(), self._units.expand(rows, -1).clone(), nothing, nothing, nothing)


def _orders(sells: torch.Tensor, buys: torch.Tensor) -> Orders:
    no = torch.zeros_like(sells, dtype=torch.bool)
    return Orders(sell_units=sells, buy_notional=buys, whole=no, restart_clock=no, dropped=torch.zeros(len(sells), dtype=torch.float64))
