"""Profit and loss of a stored account, computed again only when its record has changed."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from sweepd.deploy.trading.brokers.base import LIQUIDATED
from sweepd.deploy.trading.live.queries import OrderFilter, Records
from sweepd.deploy.trading.live.records import SLOT_ACCOUNT, Adjustment, OrderRecord, Trader
from sweepd.deploy.trading.live.revisions import units_moment, units_since
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.deploy.trading.round_trips import Checkpoint, Deal, Profits, profits
from sweepd.envs.crypto.data.timeframe import bar_end, has_hours

Version = tuple[int, int, int, int]


class ProfitBook:
    """Profits of accounts, with the newest one of each kept. Thread-safe.

    Units are the present ones, so that a position is one round trip through a split.
    """

    def __init__(self, records: Records, store: TraderStore) -> None:
        self._records, self._store = records, store
        self._kept: dict[tuple[str, str], tuple[Version, Profits | None]] = {}
        self._lock = threading.Lock()

    def read(self, trader: Trader, account: str) -> Profits | None:
        """Return an account's profit and loss up to its last bar; None without bars."""
        key = (trader.slot, account)
        adjustments = self._store.adjustments(trader.slot)
        version = (*self._records.settled(*key), trader.last_bar or 0, len(adjustments))
        with self._lock:
            kept = self._kept.get(key)
            if kept is None or kept[0] != version:
                points = self._points(trader, account, adjustments)
                deals, covers = self._deals(trader, account, adjustments)
                # Short positions were bought back, or are still there.
                last = points[-1].units if points else {}
                shorts = covers or any(units < 0.0 for units in last.values())
                kept = version, profits(deals, points, shorts=shorts)
                self._kept[key] = kept
        return kept[1]

    def _deals(
        self, trader: Trader, account: str, adjustments: Sequence[Adjustment]
    ) -> tuple[list[Deal], bool]:
        """Return the filled orders by time, and whether any of them covers a short position."""
        immediate = fills_at_once(trader, account)

        def units(one: OrderRecord) -> float:
            moment = units_moment(one.decided, immediate=immediate)
            return one.filled_units / units_since(adjustments, one.ticker, moment)[0]

        orders = [
            one
            for one in self._records.orders(OrderFilter(trader.slot, account, status="filled"))
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
                units=units(one),
                # A buy's notional contains the fee, a sell's does not.
                money=one.filled_notional - (one.fee if one.side == "sell" else 0.0),
                fee=one.fee,
                whole=one.whole,
            )
            for one in orders
        ]
        return deals, any(one.side == "buy" and one.notional == 0.0 for one in orders)

    def _points(
        self, trader: Trader, account: str, adjustments: Sequence[Adjustment]
    ) -> list[Checkpoint]:
        points = []
        for time, value, flow, units in self._records.holdings(trader.slot, account):
            seen = self._records.closes(trader.slot, time)
            factors = {name: units_since(adjustments, name, time)[0] for name in {*units, *seen}}
            units = {name: amount / factors[name] for name, amount in units.items()}
            closes = {name: close * factors[name] for name, close in seen.items()}
            end = bar_end(trader.timeframe, time)
            points.append(Checkpoint(time, end, value, flow, units, closes))
        return points


def fills_at_once(trader: Trader, account: str) -> bool:
    """Return whether an account's orders are filled when they are sent, not at the next open.

    With hours, a change of units comes between two sessions, and orders of a session's last bar are
    filled at the next opening: so they count in the units of the next bar.
    """
    own = trader.state.get("plugins", {}).get("broker", {})
    at_once = own.get("immediate", trader.broker != "sim") and not has_hours(trader.timeframe)
    return account == SLOT_ACCOUNT and bool(at_once)
