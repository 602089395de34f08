"""What live traders write to the database: traders, accounts, bars, orders, events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from sweepd.deploy.trading.brokers.base import Fill, Order
from sweepd.deploy.trading.closed_bar import ClosedBar

AccountKind = Literal["account", "shadow", "challenger", "benchmark"]
SHADOW: Final = "shadow"
CHALLENGER: Final = "challenger"
BENCHMARK: Final = "benchmark"
Event = tuple[str, str, int | None]  # kind, text, and open of the bar


@dataclass(frozen=True)
class Trader:
    """The trader of a slot.

    status: what it is doing, in a few words.
    last_bar: open of the last processed bar, seconds since the epoch.
    started, beat: UTC text; beat is the last heartbeat.
    halt: why it must not trade, None if it may; halt_sells: it sells everything first.
    state: what is stored for the slot as a whole, not for one account.
    """

    slot: str
    token: str
    pid: int
    host: str
    broker: str
    feed: str
    timeframe: str
    started: str
    beat: str
    status: str
    last_bar: int | None
    halt: str | None
    halt_sells: bool
    state: dict[str, Any]


@dataclass(frozen=True)
class AccountRecord:
    """An account of a slot as the database stores it.

    kind: `account` is the slot's own, which trades the champion with the broker; `shadow` does the
        same in the simulator; a `challenger`, named by its bundle, and a `benchmark` trade virtual
        money.
    since: open of its first bar, at whose close it started.
    retired: why it no longer trades, None while it does.
    state: what it needs to resume after a restart.
    """

    name: str
    kind: AccountKind
    bundle: str | None
    since: int
    retired: str | None
    state: dict[str, Any]


@dataclass(frozen=True)
class AccountBar:
    """An account's line for the closed bar that opened at `time`; money in quote units.

    value, cash: at the close.
    flow: net transfers in the bar; included in the value, but not a gain.
    fees, notional, trades, unfilled: of the orders due in the bar.
    dropped: number of orders of the close that were not sent.
    crossed: what changed hands between an ensemble's trials at the close.
    units, action: by ticker, at the close; action is None if nothing was decided.
    """

    account: str
    time: int
    bundle: str | None
    value: float
    cash: float
    flow: float = 0.0
    fees: float = 0.0
    notional: float = 0.0
    trades: int = 0
    unfilled: int = 0
    dropped: int = 0
    crossed: float = 0.0
    units: dict[str, float] = field(default_factory=dict)
    action: dict[str, float] | None = None


@dataclass(frozen=True, eq=False)
class AccountHistory:
    """Lines of an account as arrays of shape (n,), oldest first; fields as in `AccountBar`."""

    time: NDArray[np.int64]
    value: NDArray[np.float64]
    cash: NDArray[np.float64]
    flow: NDArray[np.float64]
    fees: NDArray[np.float64]
    notional: NDArray[np.float64]
    trades: NDArray[np.int64]
    bundle: NDArray[np.object_]


@dataclass(frozen=True)
class OrderLine:
    """An order of an account and its result, None while that is unknown."""

    account: str
    order: Order
    fill: Fill | None = None


@dataclass(frozen=True)
class TraderEvent:
    """An event of a trader at `at` (UTC text); `bar` is the open of the bar it is about."""

    id: int
    slot: str
    at: str
    bar: int | None
    kind: str
    text: str


@dataclass(frozen=True)
class Adjustment:
    """A change of the units in which a ticker is counted.

    time: open of the last bar in the earlier units.
    price, volume: factors of the earlier prices and volumes. Amounts held are divided by `price`,
        so that their value stays.
    """

    ticker: str
    time: int
    price: float
    volume: float


@dataclass
class Changes:
    """What one transaction writes; None leaves a value as it is.

    accounts, state: replace what is stored.
    intents: orders that will be sent after the transaction, without results.
    fills: results of these or earlier orders.
    market: closed bars with their tickers.
    adjustments: changes of units, which `accounts` and `state` have followed.
    """

    last_bar: int | None = None
    status: str | None = None
    state: dict[str, Any] | None = None
    accounts: list[AccountRecord] = field(default_factory=list)
    bars: list[AccountBar] = field(default_factory=list)
    intents: list[OrderLine] = field(default_factory=list)
    fills: list[Fill] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    market: list[tuple[Sequence[str], ClosedBar]] = field(default_factory=list)
    adjustments: Sequence[Adjustment] = ()
