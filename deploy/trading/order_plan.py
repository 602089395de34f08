"""Planning of a bar's orders: from actions of a bundle's trials to orders of the account."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.trading.brokers.base import Order
from sweepd.deploy.trading.risk_limits import RiskLimits, tightened
from sweepd.deploy.trading.sub_accounts import SubAccounts
from sweepd.envs.crypto.data.timeframe import bars_per_year
from sweepd.envs.crypto.netting import Netted, Venue, sub_account
from sweepd.envs.crypto.params import Instruments
from sweepd.envs.crypto.portfolio import Orders, Portfolio, plan, value
from sweepd.envs.crypto.rules import Rules

Array = NDArray[np.float64]
PLAN_COLUMNS = {
    "sell_units": torch.float64,
    "buy_notional": torch.float64,
    "cover_units": torch.float64,
    "whole": torch.bool,
    "restart_clock": torch.bool,
    "dropped": torch.float64,
}


@dataclass(frozen=True)
class PlannedOrders:
    """Planned orders before risk rules.

    portfolio, orders: one row per trial, after orders were crossed between them.
    netted: the venue's net orders of an ensemble, None for a single trial.
    """

    portfolio: Portfolio
    orders: Orders
    netted: Netted | None = None

    @property
    def dropped(self) -> int:
        """Number of orders that were too small."""
        too_small = int(self.orders.dropped.sum())
        return too_small if self.netted is None else too_small + int(self.netted.dropped.sum())

    @property
    def crossed(self) -> float:
        """Quote units that changed hands between trials."""
        return 0.0 if self.netted is None else float(self.netted.crossed.sum())


class OrderPlanner:
    """Plans the orders of a bundle by the environment's order rules.

    Args:
        bundle: the bundle.
        limits: risk rules; those about positions and cash tighten the bundle's parameters.
        slot: prefix of the orders' client ids.
    """

    def __init__(self, bundle: Bundle, limits: RiskLimits, slot: str) -> None:
        self._tickers, self._slot = bundle.manifest.tickers, slot
        self._venue: Venue | None = None
        trials = bundle.trials
        if len(trials) == 1:
            year = bars_per_year(bundle.manifest.timeframe)
            self._rules = Rules.of(
                tightened(bundle.account, limits), bundle.instruments, bars_per_year=year
            )
            return
        # Minimum orders and increments are the venue's, which sees only net orders.
        self._rules = Rules(len(trials), Instruments.unrestricted(len(self._tickers)))
        for row, trial in enumerate(trials):
            params = sub_account(tightened(trial.params, limits), trial.share)
            self._rules.set_rows(row, row + 1, params)
        self._venue = Venue(bundle.account, bundle.instruments)

    def plan(self, accounts: SubAccounts, actions: Array, close: Array) -> PlannedOrders:
        """Return the orders that the trials' actions ask for, before risk rules.

        Orders of opposite sides are crossed between the books of `accounts`.

        Args:
            accounts: the trials' books.
            actions: (R, N), one row per trial.
            close: (N,).
        """
        # The functions that the environment calls: trader and training cannot diverge.
        before, wish = accounts.portfolio(), torch.from_numpy(actions.astype(np.float64))
        closes = as_rows(close, len(actions))
        orders = plan(before, value(before, closes), wish, self._rules)
        if self._venue is None:
            return PlannedOrders(before, orders)
        # Orders of opposite sides cost nothing when trials exchange them among themselves.
        planned = PlannedOrders(*self._venue.net(before, orders, closes))
        if planned.crossed > 0.0:
            accounts.cross(planned.portfolio)
        return planned

    def net_orders(
        self, time: int, plan: Orders, netted: Netted | None, held: Array
    ) -> tuple[Order, ...]:
        """Return the account's orders: per asset, the sum over the trials.

        Args:
            time: open of the bar, seconds since the epoch.
            plan: the trials' orders that the risk rules allow, one row per trial.
            netted: the venue's net orders; None if `plan` alone decides.
            held: (N,) units of the account.
        """
        if netted is None:
            units, notional = plan.sell_units.sum(0), plan.buy_notional.sum(0)
            covers, whole = plan.cover_units.sum(0), plan.whole.any(0)
        else:  # the net orders' own amounts, where the risk rules allow them
            units = torch.where(plan.sell_units.sum(0) > 0, netted.sell_units, 0.0)
            notional = torch.where(plan.buy_notional.sum(0) > 0, netted.buy, 0.0)
            covers, whole = torch.zeros_like(units), netted.whole  # ensembles have no shorts
        if len(plan.sell_units) > 1:  # rounding: the books' sum may exceed what the account holds
            most = torch.from_numpy(held)
            units = torch.where(whole & (units > 0), most, torch.minimum(units, most))
        return tuple(
            Order(
                client_id=f"{self._slot}-{time}-{ticker}",
                ticker=ticker,
                side="sell" if units[asset] > 0.0 else "buy",
                decided=time,
                units=float(units[asset] + covers[asset]),
                notional=float(notional[asset]),
                whole=bool(whole[asset]),
                restart_clock=bool(plan.restart_clock[:, asset].any()),
            )
            for asset, ticker in enumerate(self._tickers)
            if units[asset] > 0.0 or notional[asset] > 0.0 or covers[asset] > 0.0
        )


def orders_state(plan: Orders) -> dict[str, Any]:
    """Return a plan for JSON."""
    return {name: getattr(plan, name).tolist() for name in PLAN_COLUMNS}


def restored_orders(state: Mapping[str, Any]) -> Orders:
    """Invert `orders_state`."""
    return Orders(
        **{name: torch.tensor(state[name], dtype=dtype) for name, dtype in PLAN_COLUMNS.items()}
    )


def shared_orders(plan: Orders, order: Sequence[int], shares: Sequence[float]) -> Orders:
    """Return a plan's orders as those of other trials, which share them by `shares`.

    Args:
        plan: of the earlier trials, one row each.
        order: (N,) the present places of the assets.
        shares: of the capital, one per trial.
    """
    parts = torch.tensor(shares, dtype=torch.float64)[:, None]

    def shared(amounts: Tensor) -> Tensor:
        return parts * amounts.sum(0)[order]

    def repeated(marks: Tensor) -> Tensor:
        return marks[order].expand(len(shares), -1).clone()

    return Orders(
        shared(plan.sell_units),
        shared(plan.buy_notional),
        shared(plan.cover_units),
        repeated(plan.whole.all(0)),
        repeated(plan.restart_clock.any(0)),
        torch.zeros(len(shares), dtype=torch.float64),
    )


def as_rows(values: Array, count: int) -> Tensor:
    """Return (N,) values as `count` equal rows, (count, N) float64."""
    return torch.from_numpy(np.tile(np.asarray(values, dtype=np.float64), (count, 1)))
