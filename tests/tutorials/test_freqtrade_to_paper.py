"""The tutorial from freqtrade's candles to a paper trader, on a synthetic folder of freqtrade."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from sweepd.envs.crypto.data.demo_market import make_demo_market
from tests.tutorials.pages import ROOT, run_page

PAGE = ROOT / "docs" / "tutorials" / "freqtrade_to_paper.md"
PAIRS = ("BTC", "ETH", "SOL", "LINK")
# A study of seconds, whose best trial does not pass; and a champion all the same, to be traded on
# the last two days.
SMALL = "--n-trials 2 --budget 2_048 --rungs 1 --n-envs 16 --horizon 64 --threads 1"
SMALL += " --recipe short --cv kfold --groups 2"
LOOSE = ("deflated-sharpe=0", "pbo=1", "constant-policy=2", "holdout-excess=1", "max-drawdown=1")
PROMOTE = f"sweepd promote {' '.join(f'--limit {limit}' for limit in LOOSE)} --limit path-trades=0"


def write_candles(folder: Path) -> None:
    """Write what `freqtrade download-data` leaves, in two of its formats."""
    folder.mkdir(parents=True)
    market = make_demo_market(assets=len(PAIRS), bars=5_000)
    for i, pair in enumerate(PAIRS):
        names = ("open", "high", "low", "close", "volume")
        table = pd.DataFrame({name: getattr(market, name)[:, i] for name in names})
        table.insert(0, "date", pd.to_datetime(market.time, unit="s", utc=True))
        if pair == "LINK":
            values = table[[*names]].to_numpy().tolist()
            rows = [
                [1_000 * time, *row] for time, row in zip(market.time.tolist(), values, strict=True)
            ]
            (folder / f"{pair}_USDT-1h.json").write_text(json.dumps(rows))
        else:
            table.to_feather(folder / f"{pair}_USDT-1h.feather")
    futures = folder / "futures"
    futures.mkdir()
    table.to_feather(futures / "BTC_USDT_USDT-1h-futures.feather")


@pytest.mark.extra  # seven commands, a minute of one core
@pytest.mark.timeout(1_200)
def test_the_tutorial(tmp_path: Path) -> None:
    write_candles(tmp_path / "user_data" / "data" / "binance")
    trade = "sweepd trade crypto-1h --feed recorded"
    smaller = {
        "--n-trials 8 --budget 50_000": SMALL,
        "cp -r deployments rehearsal": f"{PROMOTE}\ncp -r deployments rehearsal",
        trade: f"{trade} --from 2020-07-27",
    }
    run_page(PAGE, tmp_path, smaller)
    assert not (tmp_path / "deployments" / "traders").exists(), "the rehearsal is in a copy"
