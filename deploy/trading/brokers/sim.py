"""The simulated broker: the environment's fill rules at the next bar's open."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.trading.brokers.base import LIQUIDATED, AccountState, Broker, Fill, Order, Side
from sweepd.deploy.trading.flows import Flow
from sweepd.envs.crypto.data.timeframe import bar_number, bar_time, bars_per_year
from sweepd.envs.crypto.params import EnvParams, Instruments
from sweepd.envs.crypto.portfolio import Filled, Orders, Portfolio, charge, fill
from sweepd.envs.crypto.rules import Rules

Array = NDArray[np.float64]


class SimBroker(Broker):
    """An account of virtual money.

    `next_bar`, then `close_bar` must be called for every bar before the trader processes it.

    Args:
        tickers: order of the arrays given to `next_bar`.
        cash: initial cash, quote units.
        params: fee, slippage and other rules.
        instruments: minimum orders and increments.
        timeframe: of the bars; needed where shorts are allowed.
    """

    paper = "virtual money"
    shorts = True
    immediate = False

    def __init__(
        self,
        tickers: Sequence[str],
        cash: float,
        params: EnvParams,
        instruments: Instruments,
        *,
        timeframe: str = "",
    ) -> None:
        count = len(tickers)
        self._tickers = tuple(tickers)
        year = bars_per_year(timeframe) if params.allow_short else None
        self._rules = Rules.of(params, instruments, rows=count, bars_per_year=year)
        self._account_rules = Rules.of(params, instruments, bars_per_year=year)
        self._params, self._timeframe = params, timeframe
        self._charges = 0.0
        self._slippage = params.slippage
        self._cash = torch.tensor(cash, dtype=torch.float64)
        self._units = torch.zeros(count, dtype=torch.float64)
        self._pending: list[Order] = []
        self._settled: list[Fill] = []
        self._sent: set[str] = set()

    def state(self) -> dict[str, Any]:
        """Return what the account holds, for JSON; pending orders must be sent again."""
        account = self.account()
        return {"cash": account.cash, "units": account.units}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set the account to `state`."""
        self._cash = torch.tensor(state["cash"], dtype=torch.float64)
        self._units = torch.tensor(
            [state["units"][ticker] for ticker in self._tickers], dtype=torch.float64
        )

    def adjust(self, factors: Array) -> None:
        """Follow a change of units: earlier prices were multiplied by `factors`, (N,)."""
        self._units = self._units / torch.from_numpy(factors)
        self._pending = [
            order.adjusted(float(factors[self._tickers.index(order.ticker)]))
            for order in self._pending
        ]

    def transfer(self, flow: Flow) -> None:
        """Add a transfer to cash and units, which do not fall below 0."""
        if flow.cash:
            self._cash = (self._cash + flow.cash).clamp_min(0.0)
        for ticker, amount in flow.units.items():
            asset = self._tickers.index(ticker)
            self._units[asset] = (self._units[asset] + amount).clamp_min(0.0)

    def adopt(self, orders: Sequence[Order], *, final: bool = False) -> list[Order]:
        """Return all orders: a new process's account has none of an earlier process."""
        del final
        return list(orders)

    def account(self) -> AccountState:
        """Return what the account holds now."""
        state = AccountState.of(float(self._cash), self._tickers, self._units.numpy())
        return dataclasses.replace(state, charges=self._charges)

    def submit(self, orders: Sequence[Order]) -> None:
        """Accept orders for the next bar.

        Raises:
            ValueError: a client id was sent before, a ticker is unknown, or has two orders.
        """
        known = {order.ticker for order in self._pending}
        for order in orders:
            if order.client_id in self._sent:
                raise ValueError(f"order {order.client_id} was sent before")
            if order.ticker not in self._tickers or order.ticker in known:
                raise ValueError(
                    f"order {order.client_id}: {order.ticker} is unknown or has an order already"
                )
            known.add(order.ticker)
            self._sent.add(order.client_id)
            self._pending.append(order)

    def fills(self) -> list[Fill]:
        """Return the results since the last call."""
        settled, self._settled = self._settled, []
        return settled

    def next_bar(self, time: int, open_: Array, hole: NDArray[np.bool_]) -> None:
        """Fill the pending orders at a bar's open.

        Args:
            time: open of the bar, seconds since the epoch.
            open_: (N,) opening prices.
            hole: (N,) whether an asset has no bar.
        """
        self._charges = 0.0
        if not self._pending:
            return
        count = len(self._tickers)
        # Row j has the order for asset j alone, which separates the orders' results; together the
        # rows are the account.
        orders = Orders.none(count, count)
        for order in self._pending:
            asset = self._tickers.index(order.ticker)
            amounts = orders.sell_units if order.side == "sell" else orders.cover_units
            amounts[asset, asset] = order.units
            orders.buy_notional[asset, asset] = order.notional
        # Fills do not depend on cost basis, highest closes and holding times.
        cash, units = self._cash.expand(count, 1).clone(), self._units.expand(count, -1).clone()
        before = Portfolio(cash, units, *torch.zeros(3, count, count, dtype=torch.float64))
        opens = torch.from_numpy(open_).expand(count, -1)
        holes = torch.from_numpy(hole).expand(count, -1)
        after, filled = fill(before, orders, opens, holes, self._rules)
        # Rounding of the rows' sum may exceed the cash, which is limited before sells are credited.
        moved = after.cash - before.cash
        spent, received = moved.clamp_max(0.0).sum(), moved.clamp_min(0.0).sum()
        least = -torch.inf if self._rules.shorts else 0.0
        self._cash = (self._cash + spent).clamp_min(least) + received
        bought = after.units.diagonal() - self._units
        self._units = after.units.diagonal().clone()
        notionals, fees = filled.notional(self._rules), filled.fees(self._rules)
        for order in self._pending:
            asset = self._tickers.index(order.ticker)
            if hole[asset]:
                self._settled.append(Fill(order, "unfilled", time))
                continue
            notional, fee = float(notionals[asset]), float(fees[asset])
            slipped = 1.0 + self._slippage if order.side == "buy" else 1.0 - self._slippage
            amount, price = abs(float(bought[asset])), float(open_[asset]) * slipped
            self._settled.append(Fill(order, "filled", time, amount, notional, fee, price))
        self._pending = []

    def close_bar(self, time: int, close: Array, hole: NDArray[np.bool_]) -> None:
        """Charge for borrowing and check the margin at a bar's close, after `next_bar`.

        Liquidations are results of orders of the venue's own. Without shorts, nothing happens.

        Args:
            time: open of the bar, seconds since the epoch.
            close: (N,) closing prices.
            hole: (N,) whether an asset has no bar.
        """
        if not self._rules.shorts:
            return
        nothing = torch.zeros(3, 1, len(self._tickers), dtype=torch.float64)
        before = Portfolio(self._cash.view(1, 1), self._units.unsqueeze(0), *nothing)
        closes, holes = (torch.from_numpy(values).unsqueeze(0) for values in (close, hole))
        none = Filled(*torch.zeros(4, 1, 1, dtype=torch.float64))
        after, _, _ = charge(before, none, closes, holes, self._account_rules)
        closed = (before.units[0] != 0) & (after.units[0] == 0)
        fills = [
            self._liquidation(time, asset, float(close[asset]))
            for asset in closed.nonzero().flatten().tolist()
        ]
        self._settled += fills
        # What no fill explains: the borrow fee, and the debt of a bankrupt account.
        moved = sum(
            fill.notional - fill.fee if fill.order.side == "sell" else -fill.notional
            for fill in fills
        )
        self._charges = float(self._cash) + moved - float(after.cash)
        self._cash, self._units = after.cash[0, 0].clone(), after.units[0].clone()

    def _liquidation(self, time: int, asset: int, close: float) -> Fill:
        """Return the result of closing a whole position at a close."""
        params, units = self._params, float(self._units[asset])
        side: Side = "sell" if units > 0.0 else "buy"
        # The last close: orders that fill in this bar were decided then.
        decided = bar_time(self._timeframe, bar_number(self._timeframe, time) - 1)
        ticker = self._tickers[asset]
        order = Order(
            f"{decided}-{ticker}-liquidation", ticker, side, decided, units=abs(units), whole=True
        )
        price = close * (1.0 - params.slippage if side == "sell" else 1.0 + params.slippage)
        # A buy pays the fee out of what it brings, a sell out of what it receives.
        notional = abs(units) * price / (1.0 if side == "sell" else 1.0 - params.fee)
        fee = notional * params.fee
        return Fill(order, "filled", time, abs(units), notional, fee, price, LIQUIDATED)


def sim_broker(bundle: Bundle, cash: float | None = None) -> SimBroker:
    """Return an account of virtual money for a bundle; `cash` is by default its initial cash."""
    initial = bundle.account.initial_cash if cash is None else cash
    manifest = bundle.manifest
    return SimBroker(
        manifest.tickers, initial, bundle.account, bundle.instruments, timeframe=manifest.timeframe
    )
