"""Trade an accelerated day of 5-minute bars on a local Alpaca with faults, killing the trader.

    python -m tests.chaos.trader --kills 100 [--seconds 600]
        [--save scripts/bench/results/trader_chaos.json]

A separate server process implements Alpaca's REST API, moves its prices with the bars and fails at
random: 5xx, 429, connections cut before or after an order was executed, invalid or late answers,
partial fills. The trader is the real one (`LiveSession`, `keep_trading`) with an accelerated clock.
It is killed with SIGKILL at random times and restarted while the market continues. Then it runs
undisturbed to the end of the day, and its books are compared with the server's:

    the server's orders and those in the database are the same, with bar and ticker as in the
    client id; none is duplicated or has an unknown outcome; fills agree
    cash and units agree to the cent and to the smallest step of a quantity
    every bar has one record, and the account's cash follows from its fills
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import replace
from decimal import Decimal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from scripts.bench.harness import benchmark_parser, machine, print_machine, save_results
from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.brokers.alpaca import AlpacaBroker
from sweepd.deploy.trading.feeds import RecordedFeed
from sweepd.deploy.trading.live.clock import FastClock
from sweepd.deploy.trading.live.events import TraderOptions
from sweepd.deploy.trading.live.records import SHADOW, SLOT_ACCOUNT
from sweepd.deploy.trading.live.runner import keep_trading
from sweepd.deploy.trading.live.session import LiveSession
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.data.demo_market import make_demo_market
from sweepd.envs.crypto.params import EnvParams
from sweepd.envs.support.supervisor import Supervisor
from tests.deploy.alpaca_server import Exchange, Fault, serving
from tests.deploy.builders import small_bundle

SLOT = "crypto-5m"
TICKERS = ("BTC/USDT", "ETH/USDT", "LINK/USDT", "SOL/USDT")
STEP, DAY_BARS, HISTORY = 300, 288, 640
FAULTS: tuple[int | str, ...] = (500, 503, 429, "lost", "refused", "text", "odd", "slow")
FEE, CENT = 0.0025, 0.01
SMALLEST = 2e-9  # twice the smallest step, below which the ledger does not resolve quantities


class FaultyExchange(Exchange):
    """Fails a fraction of all requests and fills some orders partially."""

    share = 0.0
    rng = random.Random(0)
    failed = 0

    def fault_of(self, method: str, path: str) -> Fault | None:
        """Return a random fault for a fraction of the requests."""
        self.fill_share = Decimal(1)
        if self.rng.random() < self.share:
            self.failed += 1
            return Fault(self.rng.choice(FAULTS), method, path, seconds=1.0)
        if method == "POST" and self.rng.random() < self.share:
            self.fill_share = Decimal("0.4")
        return None


def market_of(seed: int) -> Bars:
    """Make 5-minute bars: a history and the day."""
    bars = make_demo_market(seed, assets=len(TICKERS), bars=HISTORY + DAY_BARS + 1, timeframe="5m")
    return replace(bars, tickers=TICKERS)


def serve(
    bars: Bars, start: float, speed: float, faults: float, seed: int, line: Connection
) -> None:
    """Run the exchange: send its address and start time, and at the end its state."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    market = FaultyExchange(
        {ticker.replace("USDT", "USD"): Decimal(1) for ticker in TICKERS}, spread=Decimal("0.001")
    )
    market.share, market.rng = faults, random.Random(seed)
    began = time.time()
    over = threading.Event()

    def follow() -> None:
        while not over.is_set():
            now = start + (time.time() - began) * speed
            bar = min(int(np.searchsorted(bars.time, now, side="right")) - 1, len(bars) - 1)
            with market.lock:
                for ticker, price in zip(TICKERS, bars.open[bar], strict=True):
                    market.prices[ticker.replace("USDT", "USD")] = Decimal(repr(float(price)))
            over.wait(0.02)

    thread = threading.Thread(target=follow)
    thread.start()
    with serving(market):
        line.send((market.url, began))
        line.recv()
        over.set()
        thread.join()
        orders = {
            name: (
                order["symbol"],
                order["side"],
                order["status"],
                float(order["filled_qty"]),
                float(order["filled_avg_price"] or 0.0),
            )
            for name, order in market.orders.items()
        }
        units = {symbol: float(amount) for symbol, amount in market.units.items()}
        asked = [method for method, path in market.asked if path == "/v2/orders"]
        line.send((float(market.cash), units, orders, market.failed, asked.count("POST")))


def trade(folder: Path, bars: Bars, url: str, start: float, speed: float, began: float) -> None:
    """Run the trader."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    symbols = {ticker: ticker.replace("USDT", "USD") for ticker in TICKERS}

    def make_broker(_bundle: Bundle) -> AlpacaBroker:
        return AlpacaBroker(symbols, key="key", secret="secret", url=url, patience=3.0, timeout=0.5)

    def make_session() -> LiveSession:
        return LiveSession(
            SLOT,
            TraderOptions(broker="alpaca", feed="recorded", max_delay=float(STEP)),
            Registry(folder),
            make_broker=make_broker,
            make_feed=lambda _bundle: RecordedFeed(bars),
            clock=FastClock(start, speed, stop, began=began),
            tell=lambda *_: None,
            supervisor=Supervisor({}),
        )

    keep_trading(make_session, stop, lambda _: None)


def audit(folder: Path, bars: Bars, server: tuple[Any, ...]) -> tuple[dict[str, Any], list[str]]:
    """Return figures and a list of problems."""
    cash, units, orders, failed, posts = server
    store = TraderStore(Registry(folder).database)
    lines, written = (
        store.account_bars(SLOT, SLOT_ACCOUNT),
        store.orders(SLOT, account=SLOT_ACCOUNT),
    )
    problems = []
    times = [line.time for line in lines]
    if times != list(range(times[0], times[-1] + 1, STEP)) or times[-1] != int(bars.time[-1]):
        problems.append("a bar is missing, or there twice")
    balance, after = (
        lines[0].cash,
        0.0,
    )  # after: effect of the last bar's orders, which follow its record
    moved = dict.fromkeys(TICKERS, 0.0)
    known = {line.order.client_id: line for line in written}
    sent = {
        name
        for name, line in known.items()
        if line.fill is not None and line.fill.status == "filled"
    }
    filled = {name for name, order in orders.items() if order[3] > 0}
    problems += [
        f"{name} was filled, and the database does not know" for name in sorted(filled - sent)
    ]
    problems += [f"{name} is said to be filled, and was not" for name in sorted(sent - filled)]
    problems += [
        f"{name} reached the server, and was never intended"
        for name in sorted(orders.keys() - known.keys())
    ]
    for name, line in known.items():
        if line.fill is None:
            problems.append(f"what became of {name} is not known")
            continue
        if name in filled:
            symbol, side, _, quantity, price = orders[name]
            if abs(line.fill.notional - quantity * price) > CENT:
                problems.append(
                    f"{name}: {line.fill.notional} in the database, {quantity * price} at the "
                    "server"
                )
            flow = quantity * price * (1 - FEE) if side == "sell" else -quantity * price
            balance += flow
            if line.order.decided == times[-1]:
                after += flow
                moved[line.order.ticker] = -quantity if side == "sell" else quantity * (1 - FEE)
            if symbol != line.order.ticker.replace("USDT", "USD") or side != line.order.side:
                problems.append(f"{name} is another order at the server")
    last = lines[-1]
    off = max(abs(last.cash + after - cash), abs(balance - cash))
    if off > CENT:
        problems.append(
            f"cash is {last.cash + after}, its fills make {balance}, and the server has {cash}"
        )
    for ticker, before in last.units.items():
        held = before + moved[ticker]
        if abs(held - units.get(ticker.replace("USDT", "USD"), 0.0)) > SMALLEST:
            problems.append(
                f"{ticker}: {held} in the database, "
                f"{units.get(ticker.replace('USDT', 'USD'), 0.0)} there"
            )
    problems += [event.text for event in store.events(SLOT) if event.kind in ("transfer", "cost")]
    shadow = {line.time: line.value for line in store.account_bars(SLOT, SHADOW)}
    away = [abs(line.value / shadow[line.time] - 1.0) for line in lines if line.time in shadow]
    return {
        "bars": len(lines),
        "bars_decided_at": sum(line.action is not None for line in lines),
        "orders": len(known),
        "orders_filled": len(filled),
        "orders_filled_in_part": sum(
            order[2] == "canceled" and order[3] > 0 for order in orders.values()
        ),
        "orders_not_sent_in_time": sum(
            line.fill is not None and "not running when it was due" in line.fill.reason
            for line in known.values()
        ),
        "posts": posts,
        "faults": failed,
        "value": last.value,
        "cash_difference": off,
        "median_difference_to_the_simulator": statistics.median(away) if away else None,
    }, problems


def main() -> int:
    """Print and save the figures. Returns 1 if there are problems."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=600.0, help="duration of the day")
    parser.add_argument(
        "--faults",
        type=float,
        default=0.03,
        help="fraction of requests that fail and of orders filled partially",
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print_machine()
    rng = random.Random(options.seed)
    bars = market_of(options.seed)
    start = float(bars.time[HISTORY])
    speed = (DAY_BARS + 1) * STEP / options.seconds
    params = EnvParams(
        action_scale=0.3, trailing_stop=0.01, max_holding_bars=12, max_holding_fraction=0.5
    )
    bundle = small_bundle(1, tickers=TICKERS, timeframe="5m", gain=1.5, params=params)
    spawn, fork = multiprocessing.get_context("spawn"), multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Registry(folder).promote(SLOT, bundle, expected=None, reason="to be killed")
        line, other = spawn.Pipe()
        server = spawn.Process(
            target=serve, args=(bars, start, speed, options.faults, options.seed, other)
        )
        server.start()
        url, began = line.recv()
        kills = ended = 0
        while kills < options.kills and time.time() - began < options.seconds * 0.97:
            process = fork.Process(target=trade, args=(folder, bars, url, start, speed, began))
            process.start()
            process.join(rng.uniform(0.0, 1.6 * options.seconds / options.kills))
            if process.exitcode is None:
                assert process.pid is not None
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
            else:
                ended += 1
            process.join()
        process = fork.Process(target=trade, args=(folder, bars, url, start, speed, began))
        process.start()
        process.join(options.seconds + 120.0)
        problems = (
            [] if process.exitcode == 0 else [f"the last trader ended with {process.exitcode}"]
        )
        process.kill()
        line.send("over")
        figures, found = audit(folder, bars, line.recv())
        server.join()
    problems += found
    figures = {"kills": kills, "ended_by_itself": ended, "seconds": options.seconds} | figures
    for key, value in figures.items():
        print(f"  {key.replace('_', ' ')}: {value}")
    print("\n".join(problems) or "no order lost, none doubled, and the books are the server's")
    content = {"machine": machine(), "figures": figures, "problems": problems}
    save_results(options.save, content)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
