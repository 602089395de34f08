"""A stand-in for freqtrade, for tests of exported strategies without it.

It has the names that a strategy imports, and a bot that asks the strategy as freqtrade's backtest
and its dry run do: pairs with positions first; buys, adjustments and exits at the open of the next
candle; the fee of a buy is taken from the wallet when its trade ends. `test_freqtrade` compares the
same strategies in freqtrade itself.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd

from sweepd.envs.crypto.data.bars import Bars


class OperationalException(Exception):
    """What freqtrade stops with."""


class Trade:
    """A position; `open_trades` are all."""

    open_trades: dict[str, Trade] = {}  # noqa: RUF012

    def __init__(self, pair: str, opened: datetime, fee: float) -> None:
        self.pair, self.open_date_utc, self.fee_open = pair, opened, fee
        self.amount = self.stake_amount = 0.0
        self.data: dict[str, Any] = {}

    @classmethod
    def get_trades_proxy(cls, *, is_open: bool) -> list[Trade]:
        assert is_open
        return list(cls.open_trades.values())

    def get_custom_data(self, key: str, default: Any = None) -> Any:
        return self.data.get(key, default)

    def set_custom_data(self, key: str, value: Any) -> None:
        self.data[key] = value


def load(path: Path) -> ModuleType:
    """Import a strategy's file with this stand-in as freqtrade."""
    base = type("IStrategy", (), {"__init__": lambda self, config: setattr(self, "config", config)})
    names = {
        "freqtrade": {},
        "freqtrade.exceptions": {"OperationalException": OperationalException},
        "freqtrade.persistence": {"Trade": Trade},
        "freqtrade.strategy": {"IStrategy": base},
    }
    modules = {}
    for name, content in names.items():
        modules[name] = ModuleType(name)
        vars(modules[name]).update(content)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with patch.dict(sys.modules, modules):
        spec.loader.exec_module(module)
    return module


def frames_of(bars: Bars) -> dict[str, pd.DataFrame]:
    """Return bars as freqtrade's candles, by pair."""
    date = pd.to_datetime(bars.time, unit="s", utc=True)
    names = ("open", "high", "low", "close", "volume")
    return {
        ticker: pd.DataFrame({"date": date} | {n: getattr(bars, n)[:, place] for n in names})
        for place, ticker in enumerate(bars.tickers)
    }


class Bot:
    """Runs a strategy over candles.

    Args:
        path: the strategy's file.
        config: the content of its configuration.
        dry_run: as the dry run, which gives the strategy the newest candles only and asks it again
            and again; else as a backtest, which gives it all at the start.
    """

    def __init__(self, path: Path, config: Mapping[str, Any], *, dry_run: bool = False) -> None:
        self.module, self.config = load(path), dict(config)
        self.now = datetime(2000, 1, 1, tzinfo=UTC)
        self.module.datetime = SimpleNamespace(now=lambda _zone: self.now)
        self.config["runmode"] = SimpleNamespace(value="dry_run" if dry_run else "backtest")
        self.dry_run, self.fee = dry_run, self.config["fee"]
        self.free = float(self.config["dry_run_wallet"])  # without the stakes of open trades
        Trade.open_trades = {}
        self.start()

    def start(self) -> None:
        """Start the strategy, or start it again as another process would."""
        self.strategy = getattr(self.module, self.config["strategy"])(self.config)
        self.strategy.wallets = SimpleNamespace(get_total=lambda _currency: self.free)
        self.strategy.bot_start()

    def analyze(self, frames: Mapping[str, pd.DataFrame]) -> None:
        for pair, frame in frames.items():
            made = self.strategy.populate_indicators(frame.copy(), {"pair": pair})
            made = self.strategy.populate_entry_trend(made, {"pair": pair})
            self.strategy.populate_exit_trend(made, {"pair": pair})
            assert (made["enter_long"] == 1).all()

    def run(
        self, frames: Mapping[str, pd.DataFrame], first: int, restarts: Collection[int] = ()
    ) -> Iterator[dict[str, Any]]:
        """Yield what is decided at the close of every candle from number `first` on.

        The bot trades at the opens from candle `first` + 1 to the last one. A decision has the
        strategy's actions, and the account before its orders.

        Args:
            frames: candles by pair.
            first: place of the first candle at whose close it decides.
            restarts: places of candles in which a dry run starts again, after its orders.
        """
        if not self.dry_run:
            self.analyze(frames)
        some = next(iter(frames.values()))
        for number in range(first + 1, len(some)):
            opened = some["date"][number].to_pydatetime()
            # In a dry run the exchange sends a limited number of candles, closed ones.
            newest = number - self.strategy.startup_candle_count
            sent = {pair: frame.iloc[newest:number] for pair, frame in frames.items()}
            fees = sum(trade.stake_amount * trade.fee_open for trade in Trade.open_trades.values())
            cash = self.free - fees
            units = {pair: trade.amount for pair, trade in Trade.open_trades.items()}
            prices = {pair: float(frame["open"][number]) for pair, frame in frames.items()}
            for second in (0, 5, 10) if self.dry_run else (0,):
                self.now = opened + timedelta(seconds=second)
                if second == 5 and number - 1 in restarts:
                    self.start()
                if self.dry_run:
                    self.analyze(sent)
                self.loop(prices, self.now)
                if second == 0:
                    actions = self.strategy.actions.copy()
            held = np.array([units.get(pair, 0.0) for pair in frames])
            yield {"actions": actions, "cash": cash, "units": held}

    def loop(self, prices: Mapping[str, float], now: datetime) -> None:
        """Ask for the orders of all pairs, and fill them."""
        strategy = self.strategy
        for pair in dict.fromkeys([*Trade.open_trades, *prices]):
            price, asked = prices[pair], {"current_time": now, "current_rate": prices[pair]}
            if pair not in Trade.open_trades:
                stake = strategy.custom_stake_amount(pair=pair, proposed_stake=1.0, **asked)
                if stake <= 0.0:
                    continue
                Trade.open_trades[pair] = Trade(pair, now, self.fee)
                self.buy(Trade.open_trades[pair], stake, price)
            trade = Trade.open_trades[pair]
            size = strategy.adjust_trade_position(trade=trade, max_stake=self.free, **asked)
            if size is not None and size > 0.0:
                self.buy(trade, size, price)
            elif size is not None:
                self.sell(trade, -size * trade.amount / trade.stake_amount, price)
            if strategy.custom_exit(pair=pair, trade=trade, **asked):
                self.sell(trade, trade.amount, price)
                del Trade.open_trades[pair]

    def buy(self, trade: Trade, stake: float, price: float) -> None:
        trade.amount += stake / price
        trade.stake_amount += stake
        self.free -= stake

    def sell(self, trade: Trade, amount: float, price: float) -> None:
        part = amount / trade.amount
        cost = part * trade.stake_amount
        profit = amount * price * (1.0 - self.fee) - cost * (1.0 + self.fee)
        self.free += cost + profit
        trade.amount -= amount
        trade.stake_amount -= cost
