"""Replays: the paper trader over recorded bars with the simulated broker, bar by bar."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.market.scoring import Score, in_order
from sweepd.deploy.registry.bundle_files import finite
from sweepd.deploy.trading.closed_bar import COLUMNS
from sweepd.deploy.trading.live.recorded_run import trade_bars
from sweepd.deploy.trading.paper_trader import Entry, bars_needed
from sweepd.deploy.trading.replay_files import BARS, LEDGER, ORDERS, SUMMARY
from sweepd.deploy.trading.risk import RiskRules
from sweepd.deploy.trading.risk_limits import RiskLimits
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.data.timeframe import format_time
from sweepd.envs.crypto.splits import Window
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.files import write_atomic

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ReplayResult:
    """The result of a replay.

    slot: prefix of the orders' client ids.
    bars: those that the trader received: its history, and the traded ones.
    limits: risk rules that were on.
    entries: one per bar; the first is that of the first decision.
    score: of the bars after the first, comparable with the bundle's canonical score.
    """

    bundle: Bundle
    slot: str
    bars: Bars
    limits: RiskLimits
    entries: tuple[Entry, ...]
    score: Score

    @property
    def span(self) -> tuple[str, str]:
        """First and last bar of the score, UTC text."""
        return format_time(int(self.score.time[0])), format_time(int(self.score.time[-1]))

    @property
    def unseen(self) -> bool:
        """Whether training and selection used none of the score's bars."""
        return int(self.score.time[0]) > self.bundle.last_seen


def replay(
    bundle: Bundle,
    bars: Bars,
    window: Window,
    *,
    slot: str = "replay",
    cash: float | None = None,
    any_account: bool = False,
    act: Callable[[NDArray[np.float32]], Array] | None = None,
    limits: RiskLimits | None = None,
    progress: Callable[[int], None] = lambda _bar: None,
) -> ReplayResult:
    """Trade `window` of `bars` on paper, starting with cash only.

    Args:
        bundle: the bundle to trade.
        bars: recorded bars.
        window: places of the first and the last bar.
        slot: prefix of the orders' client ids.
        cash: of the account; default: the bundle's initial cash.
        any_account: accept any amount of cash.
        act: replaces the bundle's policy.
        limits: risk rules; none by default.
        progress: called with the number of bars done.

    Raises:
        InputError: the bars don't fit the bundle, or too few lie before the window.
    """
    first, last = window
    bars = in_order(bars, bundle)
    needed = bars_needed(bundle)
    if first < needed:
        earliest = int(bars.time[min(needed, len(bars.time) - 1)])
        raise InputError(
            f"bundle {bundle.name} can decide at {format_time(earliest)} at the earliest, after "
            f"{needed} bars; --from names bar {first}"
        )
    entries = []
    for entry in trade_bars(
        bundle,
        bars,
        first,
        last,
        slot=slot,
        cash=cash,
        any_account=any_account,
        limits=limits,
        act=act,
    ):
        entries.append(entry)
        progress(len(entries) - 1)
    score = _score(entries, bundle.manifest.timeframe)
    seen = bars.slice(first - needed, last + 1)
    return ReplayResult(bundle, slot, seen, limits or RiskLimits(), tuple(entries), score)


def _score(entries: list[Entry], timeframe: str) -> Score:
    value = np.array([entry.value for entry in entries])
    equal = np.array([entry.equal_weight for entry in entries])
    # The first entry is the first decision; returns start with the bar after it.
    after = entries[1:]
    columns = {
        "returns": value[1:] / value[:-1] - 1.0,
        "equal_weight": equal[1:] / equal[:-1] - 1.0,
        "trades": np.array([entry.trades for entry in after], dtype=np.float64),
        "fees": np.array([entry.fees for entry in after]) / value[:-1],
        "notional": np.array([entry.notional for entry in after]) / value[:-1],
        "exposure": np.array([entry.exposure for entry in after]),
    }
    # Trials exchange at the close at which they decide, one bar before their orders are filled.
    crossed = np.array([entry.crossed for entry in entries[:-1]]) / value[:-1]
    time = np.array([entry.time for entry in after], dtype=np.int64)
    return Score.of(time, timeframe, crossed, columns)


def ledger_table(result: ReplayResult) -> pd.DataFrame:
    """Return one row per bar: date (UTC, bar open), value, cash, ..., units, action by ticker."""
    entries = result.entries
    columns: dict[str, Any] = {"date": _utc([entry.time for entry in entries])}
    counted = ("fees", "notional", "trades", "unfilled", "dropped", "crossed")
    for name in ("value", "equal_weight", "cash", *counted, "exposure"):
        columns[name] = [getattr(entry, name) for entry in entries]
    nothing = np.full(len(result.bundle.manifest.tickers), np.nan)
    for asset, ticker in enumerate(result.bundle.manifest.tickers):
        columns[f"units {ticker}"] = [entry.units[asset] for entry in entries]
        columns[f"action {ticker}"] = [
            (nothing if entry.action is None else entry.action)[asset] for entry in entries
        ]
    return pd.DataFrame(columns)


def orders_table(result: ReplayResult) -> pd.DataFrame:
    """Return one row per order with a result."""
    fills = [fill for entry in result.entries for fill in entry.fills]
    columns: dict[str, Any] = {
        "client_id": [fill.order.client_id for fill in fills],
        "decided": _utc([fill.order.decided for fill in fills]),
        "settled": _utc([fill.at for fill in fills]),
        "ticker": [fill.order.ticker for fill in fills],
        "side": [fill.order.side for fill in fills],
        "asked_units": [fill.order.units for fill in fills],
        "asked_notional": [fill.order.notional for fill in fills],
        "whole": [fill.order.whole for fill in fills],
    }
    for name in ("status", "units", "notional", "fee", "price", "reason"):
        columns[name] = [getattr(fill, name) for fill in fills]
    return pd.DataFrame(columns)


def bars_table(bars: Bars) -> pd.DataFrame:
    """Return one row per bar and ticker: date (UTC, bar open), ticker, prices, volume, hole."""
    columns: dict[str, Any] = {
        "date": _utc(np.repeat(bars.time, len(bars.tickers)).tolist()),
        "ticker": list(bars.tickers) * len(bars),
    }
    return pd.DataFrame(columns | {name: getattr(bars, name).ravel() for name in COLUMNS})


def _utc(seconds: list[int]) -> pd.DatetimeIndex:
    return pd.to_datetime(seconds, unit="s", utc=True)


def write_replay(result: ReplayResult, folder: Path) -> list[Path]:
    """Write ledger, orders, bars, summary and `equity.png` into `folder`.

    Each file appears whole or not at all; the summary is the last of those that others read.

    Returns:
        Their paths.
    """
    # matplotlib takes a second to import, which live traders would wait for.
    from sweepd.deploy.trading.replay_picture import draw_replay

    first, last = result.span
    manifest = result.bundle.manifest
    summary = {
        "bundle": result.bundle.hash,
        "slot": result.slot,
        "timeframe": manifest.timeframe,
        "synthetic": manifest.data.synthetic,
        "unseen": result.unseen,
        "risk": list(RiskRules(result.limits).words),
        "first": first,
        "last": last,
        "metrics": finite(result.score.metrics.to_dict()),
    }
    tables = {
        LEDGER: ledger_table(result),
        ORDERS: orders_table(result),
        BARS: bars_table(result.bars),
    }
    paths = [folder / name for name in (*tables, SUMMARY, "equity.png")]
    for path, table in zip(paths, tables.values(), strict=False):
        write_atomic(path, functools.partial(table.to_parquet, index=False))
    write_atomic(paths[-2], json.dumps(summary, indent=1))
    draw_replay(paths[-1], result.score, result.bundle)
    return paths
