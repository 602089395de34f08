"""freqtrade's own dry run over recorded candles, in the interpreter that has freqtrade.

Usage: python freqtrade_dry_run.py RECORD CONFIG FIRST COUNT, in the folder with the strategy and its
`candles`. The bot is asked three times in each of COUNT candles from number FIRST on, with orders filled
at their opens, and starts again in the middle of one. RECORD is that of `freqtrade_offline.py`.
"""

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import time_machine
from freqtrade.configuration import Configuration
from freqtrade.enums import RunMode
from freqtrade.freqtradebot import FreqtradeBot
from freqtrade_offline import decisions, offline

KNOWN = {"fetchL2OrderBook", "fetchOHLCV", "fetchTicker", "createMarketOrder"}
MOST = 1000  # candles that an exchange sends


class Recorded:
    """The exchange's answers, from recorded candles. row: the open candle's place."""

    def __init__(self, config: dict[str, Any]) -> None:
        names = {pair: pair.replace("/", "_") for pair in config["exchange"]["pair_whitelist"]}
        suffix = f"-{config['timeframe']}.feather"
        self.frames = {
            pair: pd.read_feather(f"candles/{name}{suffix}") for pair, name in names.items()
        }
        self.row = 0

    def methods(self) -> dict[str, Any]:
        """Return methods of freqtrade's exchange by name."""

        def candles(exchange: Any, pairs: list[Any], **_: Any) -> dict[Any, pd.DataFrame]:
            for place in pairs:
                closed = self.frames[place[0]].iloc[max(0, self.row - MOST) : self.row]
                exchange._klines[place] = closed.reset_index(drop=True)
            return exchange._klines

        def price(_: Any, pair: str, *__: Any, **___: Any) -> float:
            return float(self.frames[pair]["open"][self.row])

        def book(_: Any, pair: str, *__: Any) -> dict[str, Any]:
            side = [[price(None, pair), 1e12]]
            return {"asks": side, "bids": side}

        return {
            "refresh_latest_ohlcv": candles,
            "get_rate": price,
            "get_rates": lambda _, pair, *__: (price(None, pair),) * 2,
            "fetch_l2_order_book": book,
            "exchange_has": lambda _, name: name in KNOWN,
            "check_time_offset": lambda _: None,
            "validate_config": lambda *_: None,
        }


def started(config: Path) -> FreqtradeBot:
    words = {"config": [str(config)], "strategy_path": ".", "user_data_dir": "user"}
    words["db_url"] = "sqlite:///dry.sqlite"
    made = Configuration(words, RunMode.DRY_RUN).get_config() | {"initial_state": "running"}
    bot = FreqtradeBot(made)
    bot.startup()
    return bot


def run(config: Path, first: int, count: int) -> None:
    recorded = Recorded(json.loads(config.read_text()))
    dates = next(iter(recorded.frames.values()))["date"].dt.to_pydatetime()
    before = dates[first] - timedelta(minutes=1)
    with offline(**recorded.methods()), time_machine.travel(before) as clock:
        recorded.row = first
        bot = started(config)
        for recorded.row in range(first, first + count):
            for second in (3, 8, 500):
                clock.move_to(dates[recorded.row] + timedelta(seconds=second))
                if (recorded.row, second) == (first + count // 2, 8):
                    bot.cleanup()
                    bot = started(config)
                bot.process()
        bot.cleanup()


if __name__ == "__main__":
    run(Path(sys.argv[2]), *map(int, sys.argv[3:]))
    Path(sys.argv[1]).write_text(json.dumps(decisions))
