"""Records of live traders and their tables: traders, accounts, bars, orders, events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import (
    Column,
    ForeignKeyConstraint,
    Index,
    PrimaryKeyConstraint,
    Text,
    UniqueConstraint,
)

from sweepd.deploy.registry.records import BUNDLES, row_id
from sweepd.deploy.registry.tables import Long, RecordTable
from sweepd.deploy.trading.brokers.base import Fill, Order, Side, Status
from sweepd.deploy.trading.closed_bar import ClosedBar
from sweepd.deploy.trading.risk_limits import HALTED

AccountKind = Literal["account", "shadow", "challenger", "benchmark"]
SLOT_ACCOUNT: Final = "account"  # name and kind of a slot's own account, which uses the broker
SHADOW: Final = "shadow"
CHALLENGER: Final = "challenger"
BENCHMARK: Final = "benchmark"
STOPPED: Final = "stopped"  # the status of a trader whose process ended by itself
EQUAL_WEIGHT, CASH = "equal weight", "cash"  # names of benchmarks
STRAYS = "strays from the simulator"  # text of an alert
UNDECIDED_BARS = 3  # bars in a row that come too late to be decided are an alert
DIFFERS = 1e-6  # actions are rounded to it; returns of a bar are held to it, too
INTENDED: Final = "intended"  # the status of an order that is committed, without a result yet
OrderStatus = Literal[Status, "intended"]
Event = tuple[str, str, int | None]  # kind, text, and open of the bar


@dataclass(frozen=True)
class Trader:
    """The trader of a slot.

    token: identifies the process that may write; each new process replaces it.
    venue_account: the venue's name of the account, None for virtual money.
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
    venue_account: str | None
    last_bar: Long | None
    halt: str | None
    halt_sells: bool
    state: dict[str, Any]

    @property
    def restrictions(self) -> list[str]:
        """Why risk rules restrict trading now. A halt is none of them: it does not end by itself."""
        found = self.state.get("risk")
        reasons = map(str, found) if isinstance(found, list | tuple) else ()
        return [one for one in reasons if not one.startswith(HALTED)]


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
    since: Long
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
    time: Long
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
class OrderRecord:
    """An order of an account and its result; the fields are those of `Order` and `Fill`.

    status: `intended` until the result is known; `at` is None until then.
    """

    client_id: str
    account: str
    decided: Long
    ticker: str
    side: Side
    units: float
    notional: float
    status: OrderStatus
    at: Long | None
    filled_units: float
    filled_notional: float
    fee: float
    price: float
    whole: bool
    restart_clock: bool
    reason: str

    @classmethod
    def of(cls, account: str, order: Order, fill: Fill | None = None) -> OrderRecord:
        """Return the record of an order and its result, None if that is unknown."""
        result = cls.result_of(fill or Fill(order, "unfilled", 0))
        if fill is None:
            result |= {"status": INTENDED, "at": None}
        return cls(account=account, **vars(order), **result)

    @staticmethod
    def result_of(fill: Fill) -> dict[str, Any]:
        """Return the fields that a result sets, by name."""
        return {
            "status": fill.status,
            "at": fill.at,
            "filled_units": fill.units,
            "filled_notional": fill.notional,
            "fee": fill.fee,
            "price": fill.price,
            "reason": fill.reason,
        }

    @property
    def order(self) -> Order:
        """The order as the broker receives it."""
        return Order(**{name: getattr(self, name) for name in Order.__dataclass_fields__})

    @property
    def fill(self) -> Fill | None:
        """The result, None while it is unknown."""
        if self.status == INTENDED:
            return None
        assert self.at is not None
        return Fill(
            self.order,
            self.status,
            self.at,
            self.filled_units,
            self.filled_notional,
            self.fee,
            self.price,
            self.reason,
        )

    @property
    def asked(self) -> float:
        """Quote units to spend of a buy (of a cover, 0 until its price is known), units of a sell."""
        return self.units if self.side == "sell" else self.notional or self.units * self.price


@dataclass(frozen=True)
class TraderEvent:
    """An event of a trader at `at` (UTC text); `bar` is the open of the bar it is about."""

    id: int
    slot: str
    at: str
    bar: Long | None
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
    time: Long
    price: float
    volume: float


@dataclass(frozen=True)
class MarketBar:
    """A ticker's bar as a slot's trader received it, also of its history before the first start.

    time: its open. hole: the ticker had no bar; prices are the last close. The units are those of
    that time (see `Adjustment`).
    """

    ticker: str
    time: Long
    open: float
    high: float
    low: float
    close: float
    volume: float
    hole: bool


@dataclass(frozen=True)
class ParityDay:
    """A day of an account against its recomputation.

    day: its start, seconds since the epoch. bars, decisions: their numbers.
    action: largest difference of an action, -1 to 1.
    growth, simulated: returns of the day, of the account and of the simulator.
    bar: largest difference of a bar's return.
    unexplained: largest difference of a bar's return that the recorded fills do not explain.
    """

    day: Long
    bars: int = 0
    decisions: int = 0
    action: float = 0.0
    growth: float = 0.0
    simulated: float = 0.0
    bar: float = 0.0
    unexplained: float = 0.0

    @property
    def differs(self) -> bool:
        """Whether a decision or an unexplained return is beyond the tolerance."""
        return self.action > DIFFERS or self.unexplained > DIFFERS

    @property
    def gap(self) -> float:
        """Return of the account minus that of the simulator."""
        return self.growth - self.simulated


@dataclass(frozen=True)
class TraderInput:
    """An event that changed a slot's trader, as it was seen.

    number: place in the slot's record, from 1.
    bar: open of the last processed bar at that time.
    kind, content: the event without its bars (`sweepd.deploy.trading.live.events`).
    snapshot: the machine's before it, at the first bar of each UTC day; None otherwise.
    """

    number: int
    bar: Long
    kind: str
    content: dict[str, Any]
    snapshot: dict[str, Any] | None = None


@dataclass(frozen=True)
class Certificate:
    """A stored certificate of a day; see `sweepd.deploy.trading.certificates.certificate`.

    day: its start, seconds since the epoch. hash: of the content. previous: hash of the one before.
    signature: a bundle of sigstore's format; None: it is not signed.
    at: when it was made, UTC text.
    """

    slot: str
    number: int
    day: Long
    hash: str
    previous: str
    content: dict[str, Any]
    verdict: str
    signature: dict[str, Any] | None
    at: str


@dataclass
class Changes:
    """What one transaction writes; None leaves a value as it is.

    accounts, state: replace what is stored.
    intents: orders that will be sent after the transaction, without results.
    fills: results of these or earlier orders.
    market: closed bars with their tickers.
    adjustments: changes of units, which `accounts` and `state` have followed.
    halt: reason of a halt, and whether everything is sold.
    input: the event that all of this follows from.
    """

    last_bar: int | None = None
    status: str | None = None
    state: dict[str, Any] | None = None
    accounts: list[AccountRecord] = field(default_factory=list)
    bars: list[AccountBar] = field(default_factory=list)
    intents: list[OrderRecord] = field(default_factory=list)
    fills: list[Fill] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    market: list[tuple[Sequence[str], ClosedBar]] = field(default_factory=list)
    adjustments: Sequence[Adjustment] = ()
    halt: tuple[str, bool] | None = None
    input: TraderInput | None = None


def slot_column() -> Column[str]:
    """The column of the slot under which records are stored that do not name it."""
    return Column("slot", Text, nullable=False)


TRADERS: Final = RecordTable("traders", Trader, PrimaryKeyConstraint("slot"))
ACCOUNTS: Final = RecordTable(
    "accounts",
    AccountRecord,
    slot_column(),
    PrimaryKeyConstraint("slot", "name"),
    ForeignKeyConstraint(["slot"], [TRADERS.c.slot]),
    ForeignKeyConstraint(["bundle"], [BUNDLES.c.hash]),
)
ACCOUNT_BARS: Final = RecordTable(
    "account_bars", AccountBar, slot_column(), PrimaryKeyConstraint("slot", "account", "time")
)
ORDERS: Final = RecordTable(
    "orders",
    OrderRecord,
    slot_column(),
    PrimaryKeyConstraint("client_id"),
    Index(None, "slot"),
    Index("ix_orders_newest", "slot", "account", "decided", "client_id"),
)
TRADER_EVENTS: Final = RecordTable(
    "trader_events", TraderEvent, PrimaryKeyConstraint("id"), Index(None, "slot")
)
TRADER_BARS: Final = RecordTable(
    "trader_bars",
    MarketBar,
    slot_column(),
    PrimaryKeyConstraint("slot", "ticker", "time"),
    Index("ix_trader_bars_time", "slot", "time"),
)
ADJUSTMENTS: Final = RecordTable(
    "trader_adjustments",
    Adjustment,
    row_id(),
    slot_column(),
    Column("at", Text, nullable=False),
    Index(None, "slot"),
)
TRADER_INPUTS: Final = RecordTable(
    "trader_inputs",
    TraderInput,
    slot_column(),
    Column("at", Text, nullable=False),
    PrimaryKeyConstraint("slot", "number"),
)
# at: when the day was computed. A new computation replaces the slot's rows.
PARITY_DAYS: Final = RecordTable(
    "parity_days",
    ParityDay,
    slot_column(),
    Column("at", Text, nullable=False),
    PrimaryKeyConstraint("slot", "day"),
)
CERTIFICATES: Final = RecordTable(
    "certificates", Certificate, PrimaryKeyConstraint("slot", "number"), UniqueConstraint("hash")
)
