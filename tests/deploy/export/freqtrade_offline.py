"""freqtrade's own command line without a network, in the interpreter that has freqtrade.

Usage: python freqtrade_offline.py RECORD WORD…, where the words are those of `freqtrade`. The exchange
has every pair of the configuration, with amounts and prices of any size. RECORD gets what the strategy
decided, as JSON: `time`, `actions`, and the account that it saw (`cash`, `units`, `value`).
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ccxt import TICK_SIZE
from freqtrade.exchange import Exchange
from freqtrade.main import main
from freqtrade.resolvers import StrategyResolver

decisions: list[dict[str, Any]] = []
load_strategy = StrategyResolver.load_strategy


def market(pair: str) -> dict[str, Any]:
    base, quote = pair.split("/")
    names = {"id": base + quote, "symbol": pair, "base": base, "quote": quote}
    limits = {"amount": {"min": None, "max": None}, "cost": {"min": None, "max": None}}
    return names | {
        "active": True,
        "spot": True,
        "type": "spot",
        "precision": {"amount": 1e-14, "price": 2e-11},  # the finest that it accepts
        "limits": limits,
        "taker": 0.001,
        "maker": 0.001,
        "info": {},
    }


def set_markets(exchange: Exchange, *_: object, **__: object) -> None:
    pairs = exchange._config["exchange"]["pair_whitelist"]
    exchange._markets = {pair: market(pair) for pair in pairs}
    for api in (exchange._api, exchange._api_async):
        api.set_markets(list(exchange._markets.values()))


def recording(config: dict[str, Any]) -> Any:
    """Load the strategy, and record what it decides."""
    strategy = load_strategy(config)
    account = strategy.account

    def recorded(closed: int, close: Any) -> Any:
        found = account(closed, close)
        seen = {"cash": found.cash, "units": found.units.tolist(), "value": found.value}
        decisions.append({"time": closed, **seen})
        return found

    decide = strategy.decide

    def decided(now: Any) -> None:
        before = len(decisions)
        decide(now)
        if len(decisions) > before:
            decisions[-1]["actions"] = strategy.actions.tolist()

    strategy.account, strategy.decide = recorded, decided
    return strategy


@contextmanager
def offline(**methods: Any) -> Iterator[None]:
    """Run without a network, and record decisions. methods: others of the exchange, by name."""
    changes = {"reload_markets": set_markets, "precisionMode": TICK_SIZE} | methods
    with (
        patch.multiple(Exchange, precision_mode_price=TICK_SIZE, **changes),
        patch.object(StrategyResolver, "load_strategy", staticmethod(recording)),
    ):
        yield


if __name__ == "__main__":
    try:
        with offline():
            main(sys.argv[2:])
    finally:
        Path(sys.argv[1]).write_text(json.dumps(decisions))
