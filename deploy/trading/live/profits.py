"""Profit and loss of a stored account, computed again only when its record has changed."""

from __future__ import annotations

import threading

from deploy.trading.brokers.base import LIQUIDATED
from deploy.trading.live.queries import OrderFilter, Records
from deploy.trading.live.records import Trader
from deploy.trading.round_trips import Checkpoint, Deal, Profits, profits
from envs.crypto.data.timeframe import bar_end

Version = tuple[int, int, int]


class ProfitBook:
    """Profits of accounts, with the newest one of each kept. Thread-safe."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._kept: dict[tuple[str, str], tuple[Version, Profits | None]] = {}
        self._lock = threading.Lock()

    def read(self, trader: Trader, account: str) -> Profits | None:
        """Return an account's profit and loss up to its last bar; None without bars."""
        key = (trader.slot, account)
        version = (*self._records.settled(*key), trader.last_bar or 0)
        with self._lock:
            kept = self._kept.get(key)
            if kept is None or kept[0] != version:
                points = self._points(trader, account)
                deals, covers = self._deals(*key)
                # Short positions were bought back, or are still there.
                last = points[-1].units if points else {}
                shorts = covers or any(units < 0.0 for units in last.values())
                kept = version, profits(deals, points, shorts=shorts)
                self._kept[key] = kept
        return kept[1]

    def _deals(self, slot: str, account: str) -> tuple[list[Deal], bool]:
        """Return the filled orders by time, and whether any of them covers a short position."""
        orders = [
            one
            for one in self._records.orders(OrderFilter(slot, account, status="filled"))
            if one.filled_units > 0.0
        ]
        # In one bar, sells are filled before buys, and liquidations come last, at its close.
        orders.sort(
            key=lambda one: (
                one.decided,
                one.reason == LIQUIDATED,
                one.at or one.decided,
                one.side == "buy",
            )
        )
        deals = [
            Deal(
                ticker=one.ticker,
                side="buy" if one.side == "buy" else "sell",
                decided=one.decided,
                at=one.at or one.decided,
                units=one.filled_units,
                # A buy's notional contains the fee, a sell's does not.
                money=one.filled_notional - (one.fee if one.side == "sell" else 0.0),
                fee=one.fee,
                whole=one.whole,
            )
            for one in orders
        ]
        return deals, any(one.side == "buy" and one.notional == 0.0 for one in orders)

    def _points(self, trader: Trader, account: str) -> list[Checkpoint]:
        points = []
        for time, value, flow, units in self._records.holdings(trader.slot, account):
            closes = self._records.closes(trader.slot, time)
            # Registries of earlier versions have no bars, but the last prices.
            if not closes and time == trader.last_bar:
                closes = dict(trader.state.get("prices", {}))
            end = bar_end(trader.timeframe, time)
            points.append(Checkpoint(time, end, value, flow, units, closes))
        return points
