"""Replays of `sweepd trade --replay` as accounts: their files in tables that the pages read.

A replay's folder holds its ledger, orders and bars as Parquet. They are copied into the tables of a
live trader in memory, so that every page, figure and export of an account shows a replay, too.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweepd.deploy.dashboard.health import Health
from sweepd.deploy.dashboard.hints import RECORDED
from sweepd.deploy.promotion.sections import SYNTHETIC, short
from sweepd.deploy.registry.database import MemoryDatabase, utc_text
from sweepd.deploy.trading.closed_bar import COLUMNS
from sweepd.deploy.trading.live.records import (
    ACCOUNT_BARS,
    ACCOUNTS,
    BENCHMARK,
    EQUAL_WEIGHT,
    ORDERS,
    SLOT_ACCOUNT,
    STOPPED,
    TRADER_BARS,
    TRADERS,
    AccountBar,
    AccountRecord,
    MarketBar,
    OrderRecord,
    Trader,
)
from sweepd.deploy.trading.replay_files import BARS, LEDGER, REPLAYS, SUMMARY
from sweepd.deploy.trading.replay_files import ORDERS as ORDERS_FILE
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.formatting import minute

if TYPE_CHECKING:
    import pandas as pd

REPLAY = "replay"  # the state of a slot that only a replay traded


@dataclass(frozen=True)
class Replay:
    """A replay in a deployments folder.

    name: that of its folder. first, last: bars of its result, UTC text. bundle: hash.
    unseen: whether training and selection used none of these bars.
    risk: effects of the risk rules that were on. written: seconds since the epoch.
    """

    folder: Path
    slot: str
    bundle: str
    timeframe: str
    synthetic: bool
    unseen: bool
    risk: tuple[str, ...]
    first: str
    last: str
    written: float

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def label(self) -> str:
        """What a link to it says."""
        return f"{short(self.bundle)[:8]}, {self.first[:10]} to {self.last[:10]}"

    @property
    def health(self) -> Health:
        """Its state as that of a slot: it is no trader."""
        seen = (
            "Training and selection used none of these bars (hold-out)."
            if self.unseen
            else "Training used some of these bars: the result on them is no evidence."
        )
        sentences = [
            *([SYNTHETIC] if self.synthetic else []),
            f"Replay over recorded bars, {minute(self.first)} to {minute(self.last)} UTC: bundle "
            f"{short(self.bundle)} traded virtual money, and no process trades. {seen}",
            *(f"With a risk rule, unlike in the evaluation: {rule}." for rule in self.risk),
        ]
        return Health(REPLAY, "none", sentences, synthetic=self.synthetic)


class Replays:
    """The replays of a deployments folder, whose summaries are read once. Thread-safe."""

    def __init__(self, deployments: Path) -> None:
        self._folder = deployments / REPLAYS
        self._known: dict[Path, tuple[float, Replay | None]] = {}
        self._lock = threading.Lock()

    def of(self, slot: str) -> dict[str, Replay]:
        """Return a slot's replays by name, the newest first."""
        found = [one for one in self._every() if one.slot == slot]
        return {one.name: one for one in sorted(found, key=lambda one: -one.written)}

    def _every(self) -> Iterator[Replay]:
        for path in self._folder.glob(f"*/{SUMMARY}"):
            try:
                written = path.stat().st_mtime
            except OSError:  # removed meanwhile
                continue
            with self._lock:
                known = self._known.get(path)
                if known is None or known[0] != written:
                    known = self._known[path] = (written, _read(path, written))
            if known[1] is not None:
                yield known[1]


def _read(path: Path, written: float) -> Replay | None:
    """Return the replay of a summary; None for one of another program or an older version."""
    try:
        given = json.loads(path.read_bytes())
        return Replay(
            folder=path.parent,
            slot=str(given["slot"]),
            bundle=str(given["bundle"]),
            timeframe=str(given["timeframe"]),
            synthetic=bool(given["synthetic"]),
            unseen=bool(given["unseen"]),
            risk=tuple(map(str, given["risk"])),
            first=str(given["first"]),
            last=str(given["last"]),
            written=written,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def tables_of(replay: Replay) -> MemoryDatabase:
    """Return the tables of a trader with the replay's account, orders and bars.

    Raises:
        InputError: its files cannot be read.
    """
    try:
        return _load(replay)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"the replay {replay.folder} cannot be read: {error}") from error


def _load(replay: Replay) -> MemoryDatabase:
    import pandas as pd  # takes half a second to import

    ledger, orders, bars = (
        pd.read_parquet(replay.folder / name) for name in (LEDGER, ORDERS_FILE, BARS)
    )
    lines = list(_lines(replay, ledger))
    closes = bars.groupby("ticker").tail(1)
    accounts = [
        AccountRecord(SLOT_ACCOUNT, SLOT_ACCOUNT, replay.bundle, lines[0].time, None, {}),
        AccountRecord(EQUAL_WEIGHT, BENCHMARK, None, lines[0].time, None, {}),
    ]
    state = {"prices": dict(zip(closes["ticker"], closes["close"].tolist(), strict=True))}
    written = utc_text(replay.written)
    trader = Trader(
        slot=replay.slot,
        token="",
        pid=0,
        host="",
        broker="sim",
        feed=RECORDED,
        timeframe=replay.timeframe,
        started=written,
        beat=written,
        status=STOPPED,
        venue_account=None,
        last_bar=lines[-1].time,
        halt=None,
        halt_sells=False,
        state=state,
    )
    database = MemoryDatabase()
    with database.writing() as connection:
        TRADERS.add(connection, [trader])
        ACCOUNTS.add(connection, accounts, slot=replay.slot)
        ACCOUNT_BARS.add(connection, lines, slot=replay.slot)
        ORDERS.add(connection, _orders(orders), slot=replay.slot)
        TRADER_BARS.add(connection, _bars(bars), slot=replay.slot)
    return database


def _lines(replay: Replay, ledger: pd.DataFrame) -> Iterator[AccountBar]:
    """Yield the lines of the account and of equal weight, by time."""
    names = [str(name) for name in ledger]
    tickers = [name.removeprefix("units ") for name in names if name.startswith("units ")]
    for time, row in zip(_seconds(ledger["date"]), ledger.to_dict("records"), strict=True):
        decided = {ticker: row[f"action {ticker}"] for ticker in tickers}
        amounts = {name: row[name] for name in ("value", "cash", "fees", "notional", "crossed")}
        counts: dict[str, Any] = {name: row[name] for name in ("trades", "unfilled", "dropped")}
        yield AccountBar(
            SLOT_ACCOUNT,
            time,
            replay.bundle,
            **amounts,
            **counts,
            units={ticker: row[f"units {ticker}"] for ticker in tickers},
            action=None if any(map(math.isnan, decided.values())) else decided,
        )
        yield AccountBar(EQUAL_WEIGHT, time, None, row["equal_weight"], 0.0)


def _orders(orders: pd.DataFrame) -> list[OrderRecord]:
    return [
        OrderRecord(
            client_id=row["client_id"],
            account=SLOT_ACCOUNT,
            decided=decided,
            ticker=row["ticker"],
            side=row["side"],
            units=row["asked_units"],
            notional=row["asked_notional"],
            status=row["status"],
            at=settled,
            filled_units=row["units"],
            filled_notional=row["notional"],
            fee=row["fee"],
            price=row["price"],
            whole=row["whole"],
            restart_clock=False,
            reason=row["reason"],
        )
        for row, decided, settled in zip(
            orders.to_dict("records"),
            _seconds(orders["decided"]),
            _seconds(orders["settled"]),
            strict=True,
        )
    ]


def _bars(bars: pd.DataFrame) -> Iterator[MarketBar]:
    columns = [bars[name].tolist() for name in ("ticker", *COLUMNS)]
    for time, ticker, *values in zip(_seconds(bars["date"]), *columns, strict=True):
        yield MarketBar(ticker, time, *values)


def _seconds(dates: pd.Series[Any]) -> list[int]:
    """Return UTC times as seconds since the epoch."""
    found: list[int] = dates.astype("datetime64[s, UTC]").astype("int64").tolist()
    return found
