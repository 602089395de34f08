"""Synthetic traders for the dashboard's tests and for demonstrations of the dashboard.

    python -m tests.deploy.dashboard.synthetic FOLDER

creates a registry of four slots in FOLDER and sends their traders' heartbeats until Ctrl-C.
Meanwhile, `sweepd dashboard --deployments FOLDER` shows them.
"""

from __future__ import annotations

import datetime as dt
import functools
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.brokers.base import Fill, Order
from sweepd.deploy.trading.closed_bar import ClosedBar
from sweepd.deploy.trading.live.records import (
    SLOT_ACCOUNT,
    TRADERS,
    AccountBar,
    AccountKind,
    AccountRecord,
    Changes,
    OrderRecord,
    ParityDay,
)
from sweepd.deploy.trading.live.store import TraderStore, store_parity
from sweepd.envs.crypto.data.timeframe import DAY
from tests.deploy.builders import small_bundle

HOUR = 3600
TICKERS = ("BTC/USDT", "ETH/USDT", "SOL/USDT")
CASH = 10_000.0
Array = NDArray[np.float64]


@dataclass(frozen=True)
class MadeSession:
    """A synthetic session.

    time: (T,) opens of hourly bars. prices: (T, N). equities: (T,) by account.
    """

    slot: str
    token: str
    time: NDArray[np.int64]
    prices: Array
    equities: dict[str, Array]


@functools.cache
def bundles() -> tuple[Bundle, ...]:
    """Five that differ."""
    return tuple(small_bundle(seed, tickers=TICKERS) for seed in range(5))


def write_session(
    store: TraderStore,
    slot: str,
    made: Sequence[Bundle],
    *,
    bars: int = 24 * 75,
    end: int | None = None,
    seed: int = 0,
    previous: str | None = None,
    state: dict[str, Any] | None = None,
    feed: str = "binance",
) -> MadeSession:
    """Write a trader with its accounts, bars, orders and events.

    made: champion, then challengers (the last one retired). end: open of the last bar; None: of the
    one that closed last. previous: hash of the champion of the first third.
    """
    rng = np.random.default_rng(seed)
    end = int(time.time()) // HOUR * HOUR - HOUR if end is None else end
    moments = end - HOUR * np.arange(bars)[::-1]
    drift, shape = np.array([2e-5, -1e-5, 4e-5]), (bars, len(TICKERS))
    moves = drift + 0.006 * (
        0.8 * rng.standard_normal((bars, 1)) + 0.6 * rng.standard_normal(shape)
    )
    moves[0] = 0.0
    prices = np.array([60_000.0, 3_000.0, 150.0]) * np.exp(np.cumsum(moves, axis=0))
    equal = CASH * (prices / prices[0]).mean(axis=1)
    market = np.diff(equal, prepend=equal[0]) / np.concatenate([equal[:1], equal[:-1]])

    def managed(beta: float, edge: float, noise: float) -> Array:
        returns = beta * market + edge + noise * rng.standard_normal(bars)
        returns[0] = 0.0
        return CASH * np.cumprod(1.0 + returns)

    own = managed(0.55, 4e-5, 1.2e-3)
    accounts: list[tuple[str, AccountKind, str | None, int, str | None, Array]] = [
        (SLOT_ACCOUNT, "account", made[0].hash, 0, None, own),
        (
            "shadow",
            "shadow",
            made[0].hash,
            0,
            None,
            own * (1.0 + 2e-4 * np.linspace(0.0, 1.0, bars) ** 2),
        ),
    ]
    for place, challenger in enumerate(made[1:]):
        begin, retired = bars * (1 + place) // 4, None
        if place == len(made) - 2 and place > 0:
            retired = "its return is below the champion's, p = 0.03 after 21 days"
        value = managed(0.6, 3e-5 - 5e-5 * place, 1.5e-3)
        value = CASH * value / value[begin]
        accounts.append((challenger.name, "challenger", challenger.hash, begin, retired, value))
    accounts.append(("equal weight", "benchmark", None, 0, None, equal))
    accounts += [
        (f"hold {ticker}", "benchmark", None, 0, None, CASH * prices[:, n] / prices[0, n])
        for n, ticker in enumerate(TICKERS)
    ]
    accounts.append(("cash", "benchmark", None, 0, None, np.full(bars, CASH)))

    token = store.take_over(slot, broker="sim", feed=feed, timeframe="1h")
    changes = Changes(
        last_bar=int(moments[-1]),
        status="waits for the next bar",
        state={"prices": dict(zip(TICKERS, prices[-1].tolist(), strict=True))} | (state or {}),
    )
    for name, kind, hash_, begin, retired, value in accounts:
        stop = bars if retired is None else min(bars, begin + 24 * 21)
        changes.accounts.append(AccountRecord(name, kind, hash_, int(moments[begin]), retired, {}))
        weights = np.clip(
            0.25 + 0.05 * rng.standard_normal((stop, len(TICKERS))).cumsum(axis=0) / 4, 0.0, 0.32
        )
        before = previous if kind in ("account", "shadow") else None
        for bar in range(begin, stop):
            virtual = kind == "benchmark"
            traded = not virtual and bar > begin and bar % 7 == 0
            units = {} if virtual else _units(weights[bar] * value[bar] / prices[bar])
            invested = (
                0.0
                if virtual
                else float(sum(units[t] * prices[bar, n] for n, t in enumerate(TICKERS)))
            )
            changes.bars.append(
                AccountBar(
                    name,
                    int(moments[bar]),
                    before if before and bar < bars // 3 else hash_,
                    float(value[bar]),
                    cash=float(value[bar])
                    if name == "cash"
                    else 0.0
                    if virtual
                    else float(value[bar]) - invested,
                    fees=0.4 if traded else 0.0,
                    notional=400.0 if traded else 0.0,
                    trades=int(traded),
                    units=units,
                    action=None
                    if virtual
                    else {t: float(weights[bar, n]) for n, t in enumerate(TICKERS)},
                )
            )
    changes.market = [(TICKERS, _bar(int(moments[bar]), prices, bar)) for bar in range(bars)[-300:]]
    orders, changes.events = _orders(slot, moments, prices), _events(moments, prices)
    changes.intents = [OrderRecord.of(SLOT_ACCOUNT, order) for order, _ in orders]
    changes.fills = [fill for _, fill in orders if fill is not None]
    store.commit(slot, token, changes)
    return MadeSession(slot, token, moments, prices, {name: value for name, *_, value in accounts})


def _bar(time: int, prices: Array, bar: int) -> ClosedBar:
    """A bar from the close before to its own, with shadows of 0.2%."""
    close, before = prices[bar], prices[max(0, bar - 1)]
    high, low = np.maximum(close, before) * 1.002, np.minimum(close, before) * 0.998
    hole = np.zeros(len(TICKERS), dtype=np.bool_)
    return ClosedBar(time, before, high, low, close, 100.0 + 0.1 * close % 7, hole)


def _units(held: Array) -> dict[str, float]:
    return dict(zip(TICKERS, np.round(held, 8).tolist(), strict=True))


def _orders(
    slot: str, moments: NDArray[np.int64], prices: Array
) -> list[tuple[Order, Fill | None]]:
    """Twelve recent orders: ten filled, one refused, one pending."""
    lines: list[tuple[Order, Fill | None]] = []
    for place in range(12):
        bar, asset = len(moments) - 1 - 4 * (11 - place), place % len(TICKERS)
        ticker, price = TICKERS[asset], float(prices[bar, asset])
        identity = f"{slot}-{int(moments[bar])}-{ticker}"
        if place % 2:
            order = Order(
                identity, ticker, "sell", int(moments[bar]), units=round(400.0 / price, 6)
            )
        else:
            order = Order(identity, ticker, "buy", int(moments[bar]), notional=400.0)
        fill: Fill | None = Fill(
            order,
            "filled",
            int(moments[bar]) + HOUR,
            round(400.0 / price, 6),
            400.0,
            0.4,
            price * 1.0003,
        )
        if place == 7:
            fill = Fill(
                order,
                "unfilled",
                int(moments[bar]) + HOUR,
                reason="below the venue's minimum of 10 USD",
            )
        lines.append((order, None if place == 11 else fill))
    return lines


def _events(moments: NDArray[np.int64], prices: Array) -> list[tuple[str, str, int | None]]:
    last = int(moments[-1])
    return [
        ("started", "with 10,000.00 of cash and no positions", int(moments[0])),
        (
            "caught up",
            "over 3 bars that closed while no trader ran",
            int(moments[len(moments) // 2]),
        ),
        ("order unfilled", "below the venue's minimum of 10 USD", last - 16 * HOUR),
        ("daily summary", f"3 orders, fees 1.20; BTC/USDT at {prices[-1, 0]:,.0f}", last),
    ]


MONITOR = {
    "verdict": "as scored",
    "text": "after 1,344 bars (look 4) the live returns are not worse than scored ones would be by "
    "chance",
    "bars": 1800,
    "first_look": 168,
    "next_look": 2688,
    "look": 4,
    "judged": 1344,
    "level": 0.00125,
    "tracking": {
        "error": 0.0021,
        "gap": -0.0002,
        "worst": -0.0004,
        "worst_bar": 1203,
        "bars": 1800,
    },
    "edge": {"live": 7.1e-5, "scored": 9.4e-5, "p": 0.41, "low": -4.0e-5, "high": 2.2e-4},
    "mean_return": {"live": 4.4e-5, "scored": 8.9e-5, "p": 0.36, "low": -1.2e-4, "high": 3.0e-4},
    "drawdown": {"live": 0.131, "scored": 0.118, "p": 0.33, "low": 0.061, "high": 0.204},
}
ALERT = {
    "verdict": "worse than scored",
    "text": "after 336 bars (look 2) a live return over equal weight as low as this has chance "
    "0.002",
    "bars": 480,
    "look": 2,
    "judged": 336,
    "edge": {"live": -8.1e-5, "scored": 9.4e-5, "p": 0.002, "low": -7.0e-5, "high": 2.5e-4},
}


def _parity(session: MadeSession) -> list[ParityDay]:
    """Forty days with small differences, one of them with another decision."""
    rng, last = np.random.default_rng(5), int(session.time[-1]) // DAY * DAY
    gaps, growth = 2e-4 * rng.standard_normal(40), 0.01 * rng.standard_normal(40)
    return [
        ParityDay(
            last - DAY * (39 - n),
            24,
            24,
            0.02 if n == 30 else 0.0,
            float(growth[n]),
            float(growth[n] - gaps[n]),
            float(abs(gaps[n])),
        )
        for n in range(40)
    ]


def fill(folder: Path, *, bars: int = 24 * 75) -> list[tuple[TraderStore, MadeSession]]:
    """Four slots: one trading, one halted, one whose trader died, one never traded."""
    registry = Registry(folder)
    store = TraderStore(registry.database)
    made = bundles()
    registry.promote("demo-1h", made[4], expected=None, reason="met every rule on the hold-out")
    registry.promote(
        "demo-1h",
        made[0],
        expected=made[4].hash,
        reason="beats the champion on the same bars, p = 0.012",
    )
    for challenger in made[1:4]:
        registry.challenger("demo-1h", challenger, reason="passed the first stage")
    registry.withdraw("demo-1h", made[3].hash, "retired from the arena")
    registry.refuse("demo-1h", "no candidate passes: deflated Sharpe ratio 0.61 < 0.95")
    full = write_session(
        store, "demo-1h", made[:4], bars=bars, previous=made[4].hash, state={"monitor": MONITOR}
    )
    alive = [(store, full)]
    store_parity(registry.database, "demo-1h", _parity(full))
    registry.promote("halted-1h", made[1], expected=None, reason="met every rule on the hold-out")
    noted = {"monitor": ALERT, "risk": ["daily loss of 5.1%, limit 5%"]}
    alive.append(
        (store, write_session(store, "halted-1h", made[1:2], bars=24 * 20, seed=1, state=noted))
    )
    store.halt("halted-1h", "portfolio drawdown of 20.3%, limit 20%", sells=True)
    registry.promote("never-1h", made[2], expected=None, reason="met every rule on the hold-out")
    registry.promote("silent-1h", made[3], expected=None, reason="met every rule on the hold-out")
    write_session(
        store,
        "silent-1h",
        made[3:4],
        bars=24 * 9,
        seed=2,
        end=int(time.time()) // HOUR * HOUR - 7 * HOUR,
    )
    died = dt.datetime.now(dt.UTC) - dt.timedelta(hours=7)
    with registry.database.writing() as connection:
        connection.execute(TRADERS.update(slot="silent-1h").values(beat=died.isoformat()))
    for one, made_session in alive:
        one.beat(made_session.slot, made_session.token, "waits for the next bar")
    return alive


def main() -> None:
    folder = Path(sys.argv[1])
    alive = fill(folder)
    print(
        f"sweepd dashboard --deployments {folder}   # shows them; Ctrl-C ends these traders",
        flush=True,
    )
    while True:
        for store, session in alive:
            store.beat(session.slot, session.token, "waits for the next bar")
        time.sleep(5)


if __name__ == "__main__":
    main()
