"""Tracking of a slot's champion in live trading through Alpaca's API against the simulator.

    python -m tests.deploy.trading.live.tracking crypto-1h --deployments deployments [--bars 2000]
        [--save scripts/bench/results/trader_tracking.json]

The live trader (`LiveSession`) trades the newest bars of the champion's data with a clock that
jumps from bar to bar, through the Alpaca broker and a local server that fills at the next bar's
open, half of the spread away, which is the champion's slippage. The simulator trades the same bars.
Printed are the tracking error between the two, whether the ledger agrees with the server, and the
difference from the canonical score of the same bars. The registry is copied, so the original does
not change.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path

import numpy as np

from scripts.bench.harness import benchmark_parser, machine, print_machine, save_results
from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.market.scoring import in_order, score_bundle
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.live.monitor_statistics import track
from sweepd.deploy.trading.live.records import SHADOW, SLOT_ACCOUNT
from sweepd.deploy.trading.live.returns import paired_returns
from sweepd.envs.crypto.data.bars import load_bars
from sweepd.envs.crypto.data.timeframe import format_time
from tests.deploy.alpaca_server import Exchange, serving
from tests.deploy.trading.live.world import World


def main() -> int:
    """Print and save the figures. Returns 1 if the ledger differs from the server."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("slot")
    parser.add_argument("--deployments", type=Path, default=Path("deployments"))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--bars", type=int, default=2000)
    parser.add_argument("--note", default="")
    options = parser.parse_args()
    print_machine()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "deployments"
        shutil.copytree(
            options.deployments, folder, ignore=shutil.ignore_patterns("replays", "*.lock")
        )
        registry = Registry(folder)
        champion = registry.require(options.slot).champion
        assert champion is not None
        bundle = registry.bundle(champion, Bundle)
        data_dir = options.data_dir or registry.data_dir(champion)
        assert data_dir is not None, "--data-dir is needed"
        bars = in_order(
            load_bars(data_dir, bundle.manifest.timeframe, bundle.manifest.tickers), bundle
        )
        first = len(bars) - options.bars
        symbols = [ticker.split("/")[0] + "/USD" for ticker in bundle.manifest.tickers]
        cash = Decimal(repr(bundle.account.initial_cash))
        market = Exchange(
            dict.fromkeys(symbols, Decimal(1)),
            cash=cash,
            fee=Decimal(repr(bundle.account.fee)),
            spread=Decimal(repr(2 * bundle.account.slippage)),
        )
        with serving(market):
            world = World(folder, bundle, bars, first, market, slot=options.slot)
            began = time.time()
            world.run()
            seconds = time.time() - began
        since = int(bars.time[first])
        records = paired_returns(world.store, options.slot, (SLOT_ACCOUNT, SHADOW), since)
        tracking = track(records[SLOT_ACCOUNT], records[SHADOW], bundle.manifest.timeframe)
        score = score_bundle(bundle, bars, (first, len(bars) - 1))
        last = world.lines()[-1]
        open_orders = world.store.orders(options.slot, account=SLOT_ACCOUNT, decided=last.time)
        simulated = float(
            np.max(np.abs(np.cumprod(1 + records[SHADOW]) / np.cumprod(1 + score.returns) - 1))
        )
        figures = {
            "bundle": bundle.name,
            "slot": options.slot,
            "note": options.note,
            "first": format_time(since),
            "last": format_time(last.time),
            "bars": len(world.lines()),
            "orders": len(market.orders),
            "seconds": round(seconds, 1),
            "account_return": float(np.prod(1 + records[SLOT_ACCOUNT]) - 1),
            "simulator_return": float(np.prod(1 + records[SHADOW]) - 1),
            "tracking": asdict(tracking),
            "simulator_against_canonical_score": simulated,
            "cash_difference": None if open_orders else abs(last.cash - float(market.cash)),
        }
    print(json.dumps(figures, indent=1))
    save_results(options.save, {"machine": machine(), "figures": figures})
    return 1 if (figures["cash_difference"] or 0.0) > 0.01 else 0


if __name__ == "__main__":
    sys.exit(main())
