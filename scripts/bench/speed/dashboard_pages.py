"""Milliseconds per page of the dashboard on a slot with a long record.

Makes a registry whose slot has --orders orders (with results) over --bars hourly bars of four
tickers, in an account, its shadow and two benchmarks, and requests every page in this process:
first when nothing is cached, then --repeat times. Times are processor time of the thread that
answers; kB is the size of the page.

    python -m scripts.bench run dashboard_pages --orders 5000 --bars 8760
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
from werkzeug.test import Client

from scripts.bench.harness import benchmark_parser, print_machine, save_results
from scripts.bench.speed.page_times import page_times
from sweepd.deploy.dashboard.source import PaperSource
from sweepd.deploy.dashboard.web import Dashboard
from sweepd.deploy.registry.flags import RegistryFlags
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.brokers.base import Fill, Order
from sweepd.deploy.trading.closed_bar import ClosedBar
from sweepd.deploy.trading.live.records import (
    SLOT_ACCOUNT,
    AccountBar,
    AccountRecord,
    Changes,
    OrderRecord,
)
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.envs.support.errors import InputError

SLOT, HOUR, CASH = "crypto-1h", 3600, 1e6
TICKERS = ("BTC/USDT", "ETH/USDT", "LTC/USDT", "SOL/USDT")
GOAL = 300.0  # milliseconds
PAGES = (
    "/",
    "/?days=7",
    "/alerts",
    "/chart",
    "/chart?days=90",
    "/chart?days=365",
    "/chart?days=all",
    "/trades",
    "/trades?sort=profit&page=9",
    "/days",
    "/parity",
    "/orders",
    "/orders?page=50",
    "/orders?side=sell&asset=ETH/USDT",
    "/events",
    "/events?text=bar+1&page=3",
    "/orders.csv",
    "/orders.json",
    "/trades.csv",
    "/events.csv",
)


class NoStudies:
    """A machine without studies."""

    def studies(self) -> list[str]:
        """Refuse."""
        raise InputError("there is no study")

    progress = parameters = show = folder = application = studies


def main(argv: list[str]) -> None:
    """Make the registry, request the pages, and print the table."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--orders", type=int, default=5_000)
    parser.add_argument("--bars", type=int, default=8_760)
    parser.add_argument("--repeat", type=int, default=20)
    flags = parser.parse_args(argv)
    machine = print_machine()
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        fill(Path(folder), flags.orders, flags.bars)
        print(f"{flags.orders} orders, {flags.bars} bars in {time.perf_counter() - start:.0f} s")
        source = PaperSource(RegistryFlags(Path(folder)))
        client = Client(Dashboard(source, NoStudies()))  # type: ignore[arg-type]
        rows = [page_times(client, page, page, flags.repeat) for page in PAGES]
    # An export is a file of all rows; the goal is for pages.
    slow = [row["page"] for row in rows if row["p95"] > GOAL and "." not in row["page"]]
    print(f"pages slower than {GOAL:.0f} ms (p95): {', '.join(slow) or 'none'}")
    sizes = {"goal": GOAL, "orders": flags.orders, "bars": flags.bars}
    save_results(flags.save, {"machine": machine, **sizes, "pages": rows})


def fill(folder: Path, orders: int, bars: int) -> None:
    """Write a slot's trader whose account buys and sells in turn, so that its record is exact."""
    rng = np.random.default_rng(0)
    time_ = int(time.time()) // HOUR * HOUR - HOUR * np.arange(bars)[::-1]
    moves = 0.006 * rng.standard_normal((bars, len(TICKERS)))
    close = np.array([60_000.0, 3_000.0, 80.0, 150.0]) * np.exp(np.cumsum(moves, axis=0))
    open_ = np.vstack([close[:1], close[:-1]])
    registry = Registry(folder)
    registry.refuse(SLOT, "no candidate passes")
    store = TraderStore(registry.database)
    token = store.take_over(SLOT, broker="sim", feed="binance", timeframe="1h")
    state = {"prices": dict(zip(TICKERS, close[-1].tolist(), strict=True))}
    changes = Changes(last_bar=int(time_[-1]), status="waits for the next bar", state=state)
    since = int(time_[0])
    kinds = {SLOT_ACCOUNT: "account", "shadow": "shadow", "equal weight": "benchmark"}
    changes.accounts = [
        AccountRecord(name, kind, None, since, None, {})  # type: ignore[arg-type]
        for name, kind in (kinds | {"cash": "benchmark"}).items()
    ]
    # One order in so many bars, from the second one on.
    due = np.unique(np.linspace(1, bars - 2, min(orders, bars - 2)).astype(int))
    counts = dict(
        zip(due.tolist(), np.diff(np.linspace(0, orders, len(due) + 1)).round(), strict=True)
    )
    cash, units, made = CASH, np.zeros(len(TICKERS)), 0
    fees = trades = 0.0
    pending: list[tuple[int, str, float]] = []
    for bar in range(bars):
        fees, trades = 0.0, len(pending)
        for asset, side, notional in pending:
            price, fee = float(open_[bar, asset]), 0.0025 * notional
            amount = units[asset] if side == "sell" else (notional - fee) / price
            if side == "sell":
                notional, fee = amount * price, 0.0025 * amount * price
            units[asset] += -amount if side == "sell" else amount
            cash += notional - fee if side == "sell" else -notional
            fees += fee
            name = f"{SLOT}-{int(time_[bar - 1])}-{TICKERS[asset]}"
            order = Order(
                name,
                TICKERS[asset],
                side,  # type: ignore[arg-type]
                int(time_[bar - 1]),
                units=float(amount) if side == "sell" else 0.0,
                notional=notional if side == "buy" else 0.0,
                whole=side == "sell",
            )
            changes.intents.append(OrderRecord.of(SLOT_ACCOUNT, order))
            changes.fills.append(
                Fill(order, "filled", int(time_[bar]), float(amount), float(notional), fee, price)
            )
        pending = []
        for _ in range(min(len(TICKERS), int(counts.get(bar, 0)))):
            asset = made % len(TICKERS)
            pending.append((asset, "sell" if units[asset] > 0.0 else "buy", 0.2 * cash))
            made += 1
        value = cash + float(units @ close[bar])
        held = dict(zip(TICKERS, units.tolist(), strict=True))
        equal = CASH * float((close[bar] / close[0]).mean())
        moment = int(time_[bar])
        changes.bars += [
            AccountBar(name, moment, None, value, cash, fees=fees, trades=int(trades), units=held)
            for name in (SLOT_ACCOUNT, "shadow")
        ]
        changes.bars.append(AccountBar("equal weight", moment, None, equal, 0.0))
        changes.bars.append(AccountBar("cash", moment, None, CASH, CASH))
        high, low = np.maximum(open_[bar], close[bar]), np.minimum(open_[bar], close[bar])
        none, volume = np.zeros(len(TICKERS), dtype=np.bool_), np.ones(len(TICKERS))
        own = ClosedBar(moment, open_[bar], high, low, close[bar], volume, none)
        changes.market.append((TICKERS, own))
        if bar % 24 == 23:
            changes.events.append(("day", f"{value:,.2f} after bar {bar}", moment))
        if bar % 2_000 == 1_999 or bar == bars - 1:
            store.commit(SLOT, token, changes)
            changes = Changes()
