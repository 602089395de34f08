"""The registry's tables (SQLAlchemy 2). Moments are UTC text, bar times seconds since the epoch.

Triggers refuse to change or delete rows of the `APPEND_ONLY` tables. The other tables hold present
state: `slots`, `challengers`, `parity_days`, and of traders `traders`, `accounts` and `orders`. The migrations of
`sweepd.deploy.registry.migrations` make the tables.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import JSON, BigInteger, Double, ForeignKey, Index, MetaData, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

# The table of the revision. It has not Alembic's default name, because the database may also be
# that of an Optuna study, which Optuna migrates.
VERSION_TABLE = "sweepd_registry_version"
APPEND_ONLY = (
    "bundles",
    "versions",
    "events",
    "evaluations",
    "account_bars",
    "trader_events",
    "trader_bars",
    "trader_adjustments",
)
SLOT_ACCOUNT: Final = "account"  # name and kind of a slot's own account, which uses the broker
STOPPED: Final = "stopped"  # the status of a trader whose process ended by itself


class Base(DeclarativeBase):
    """Base of all tables, with the constraint names that the migrations use."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_label)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class BundleRow(Base):
    """A bundle that is or was a champion or a challenger.

    kind: `market` or `game`. timeframe, tickers, last_seen: of markets, NULL for games.
    """

    __tablename__ = "bundles"
    hash: Mapped[str] = mapped_column(Text, primary_key=True)
    members_sha256: Mapped[str] = mapped_column(Text, index=True)
    kind: Mapped[str] = mapped_column(Text, server_default="market")
    environment: Mapped[str] = mapped_column(Text)
    timeframe: Mapped[str | None] = mapped_column(Text)
    tickers: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    study: Mapped[str] = mapped_column(Text)
    study_uid: Mapped[str] = mapped_column(Text)
    trial: Mapped[int]
    last_seen: Mapped[int | None] = mapped_column(BigInteger)
    data_dir: Mapped[str] = mapped_column(Text)
    at: Mapped[str] = mapped_column(Text)


class SlotRow(Base):
    """A deployment slot. revision: how many times its champion has changed."""

    __tablename__ = "slots"
    name: Mapped[str] = mapped_column(Text, primary_key=True)
    champion: Mapped[str | None] = mapped_column(ForeignKey("bundles.hash"))
    previous: Mapped[str | None] = mapped_column(ForeignKey("bundles.hash"))
    revision: Mapped[int]


class ChallengerRow(Base):
    """A bundle that cannot be compared with the slot's champion yet."""

    __tablename__ = "challengers"
    slot: Mapped[str] = mapped_column(Text, primary_key=True)
    bundle: Mapped[str] = mapped_column(ForeignKey("bundles.hash"), primary_key=True)
    at: Mapped[str] = mapped_column(Text)


class VersionRow(Base):
    """The bundles of a slot, numbered from 1 in the order of their arrival."""

    __tablename__ = "versions"
    __table_args__ = (UniqueConstraint("slot", "bundle"),)
    slot: Mapped[str] = mapped_column(Text, primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    bundle: Mapped[str] = mapped_column(ForeignKey("bundles.hash"))
    at: Mapped[str] = mapped_column(Text)


class EventRow(Base):
    """An entry of a slot's history. report: of the gate, if there was one."""

    __tablename__ = "events"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    slot: Mapped[str] = mapped_column(Text, index=True)
    kind: Mapped[str] = mapped_column(Text)
    at: Mapped[str] = mapped_column(Text)
    bundle: Mapped[str | None] = mapped_column(ForeignKey("bundles.hash"))
    previous: Mapped[str | None] = mapped_column(ForeignKey("bundles.hash"))
    reason: Mapped[str] = mapped_column(Text)
    report: Mapped[dict[str, Any] | None] = mapped_column(JSON)


class EvaluationRow(Base):
    """An evaluation of a candidate's weights on hold-out bars or on a game's panel.

    kind: `market` or `game`. subject: a market's tickers, sorted and joined by spaces, or the key
    of a game. timeframe, first, last: of markets, the hold-out's bars from open to open. games: of
    games, the size of the panel. number: counts the evaluations on the same hold-out or panel.
    """

    __tablename__ = "evaluations"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    kind: Mapped[str] = mapped_column(Text)
    subject: Mapped[str] = mapped_column(Text, index=True)
    timeframe: Mapped[str | None] = mapped_column(Text)
    first: Mapped[int | None] = mapped_column(BigInteger)
    last: Mapped[int | None] = mapped_column(BigInteger)
    games: Mapped[int | None]
    number: Mapped[int]
    members_sha256: Mapped[str] = mapped_column(Text)
    study: Mapped[str] = mapped_column(Text)
    study_uid: Mapped[str] = mapped_column(Text)
    trial: Mapped[int]
    at: Mapped[str] = mapped_column(Text)


class TraderRow(Base):
    """The live trader of a slot and its present state.

    token: identifies the process that may write; each new process replaces it. venue_account: the
    venue's name of the account, NULL for virtual money. last_bar: open of the last processed bar.
    halt: why trading is halted, NULL if it is not. halt_sells: whether a halt sells everything
    first. state: further state of the trader (a JSON object).
    """

    __tablename__ = "traders"
    slot: Mapped[str] = mapped_column(Text, primary_key=True)
    token: Mapped[str] = mapped_column(Text)
    pid: Mapped[int]
    host: Mapped[str] = mapped_column(Text)
    broker: Mapped[str] = mapped_column(Text)
    venue_account: Mapped[str | None] = mapped_column(Text)
    feed: Mapped[str] = mapped_column(Text)
    timeframe: Mapped[str] = mapped_column(Text)
    started: Mapped[str] = mapped_column(Text)
    beat: Mapped[str] = mapped_column(Text)
    status: Mapped[str] = mapped_column(Text)
    last_bar: Mapped[int | None] = mapped_column(BigInteger)
    halt: Mapped[str | None] = mapped_column(Text)
    halt_sells: Mapped[bool]
    state: Mapped[dict[str, Any]] = mapped_column(JSON)


class AccountRow(Base):
    """An account of a slot: see `sweepd.deploy.trading.live.records.AccountRecord`."""

    __tablename__ = "accounts"
    slot: Mapped[str] = mapped_column(ForeignKey("traders.slot"), primary_key=True)
    name: Mapped[str] = mapped_column(Text, primary_key=True)
    kind: Mapped[str] = mapped_column(Text)
    bundle: Mapped[str | None] = mapped_column(ForeignKey("bundles.hash"))
    since: Mapped[int] = mapped_column(BigInteger)
    retired: Mapped[str | None] = mapped_column(Text)
    state: Mapped[dict[str, Any]] = mapped_column(JSON)


class AccountBarRow(Base):
    """An account's ledger line for one bar: see `sweepd.deploy.trading.live.records.AccountBar`."""

    __tablename__ = "account_bars"
    slot: Mapped[str] = mapped_column(Text, primary_key=True)
    account: Mapped[str] = mapped_column(Text, primary_key=True)
    time: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    bundle: Mapped[str | None] = mapped_column(Text)
    value: Mapped[float] = mapped_column(Double)
    cash: Mapped[float] = mapped_column(Double)
    flow: Mapped[float] = mapped_column(Double, server_default="0")
    fees: Mapped[float] = mapped_column(Double)
    notional: Mapped[float] = mapped_column(Double)
    trades: Mapped[int]
    unfilled: Mapped[int]
    dropped: Mapped[int]
    crossed: Mapped[float] = mapped_column(Double)
    units: Mapped[dict[str, float]] = mapped_column(JSON)
    action: Mapped[dict[str, float] | None] = mapped_column(JSON)


class OrderRow(Base):
    """An order and its result: see `sweepd.deploy.trading.live.records.OrderLine`."""

    __tablename__ = "orders"
    __table_args__ = (Index("ix_orders_newest", "slot", "account", "decided", "client_id"),)
    client_id: Mapped[str] = mapped_column(Text, primary_key=True)
    slot: Mapped[str] = mapped_column(Text, index=True)
    account: Mapped[str] = mapped_column(Text)
    decided: Mapped[int] = mapped_column(BigInteger)
    ticker: Mapped[str] = mapped_column(Text)
    side: Mapped[str] = mapped_column(Text)
    units: Mapped[float] = mapped_column(Double)
    notional: Mapped[float] = mapped_column(Double)
    whole: Mapped[bool]
    restart_clock: Mapped[bool]
    status: Mapped[str] = mapped_column(Text)
    at: Mapped[int | None] = mapped_column(BigInteger)
    filled_units: Mapped[float] = mapped_column(Double)
    filled_notional: Mapped[float] = mapped_column(Double)
    fee: Mapped[float] = mapped_column(Double)
    price: Mapped[float] = mapped_column(Double)
    reason: Mapped[str] = mapped_column(Text)


class TraderEventRow(Base):
    """An event of a live trader: see `sweepd.deploy.trading.live.records.TraderEvent`."""

    __tablename__ = "trader_events"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    slot: Mapped[str] = mapped_column(Text, index=True)
    at: Mapped[str] = mapped_column(Text)
    bar: Mapped[int | None] = mapped_column(BigInteger)
    kind: Mapped[str] = mapped_column(Text)
    text: Mapped[str] = mapped_column(Text)


class MarketBarRow(Base):
    """A ticker's bar as a slot's trader received it, also of its history before the first start.

    time: its open. hole: the ticker had no bar; prices are the last close. The units are those of
    that time (see `AdjustmentRow`).
    """

    __tablename__ = "trader_bars"
    __table_args__ = (Index("ix_trader_bars_time", "slot", "time"),)
    slot: Mapped[str] = mapped_column(Text, primary_key=True)
    ticker: Mapped[str] = mapped_column(Text, primary_key=True)
    time: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    open: Mapped[float] = mapped_column(Double)
    high: Mapped[float] = mapped_column(Double)
    low: Mapped[float] = mapped_column(Double)
    close: Mapped[float] = mapped_column(Double)
    volume: Mapped[float] = mapped_column(Double)
    hole: Mapped[bool]


class AdjustmentRow(Base):
    """A change of a ticker's units: see `sweepd.deploy.trading.live.records.Adjustment`."""

    __tablename__ = "trader_adjustments"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    slot: Mapped[str] = mapped_column(Text, index=True)
    at: Mapped[str] = mapped_column(Text)
    ticker: Mapped[str] = mapped_column(Text)
    time: Mapped[int] = mapped_column(BigInteger)
    price: Mapped[float] = mapped_column(Double)
    volume: Mapped[float] = mapped_column(Double)


class ParityRow(Base):
    """A day of a slot's account against its recomputation: see `sweepd.deploy.trading.live.parity`.

    at: when it was computed. A new computation replaces the slot's rows.
    """

    __tablename__ = "parity_days"
    slot: Mapped[str] = mapped_column(Text, primary_key=True)
    day: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    bars: Mapped[int]
    decisions: Mapped[int]
    action: Mapped[float] = mapped_column(Double)
    growth: Mapped[float] = mapped_column(Double)
    simulated: Mapped[float] = mapped_column(Double)
    bar: Mapped[float] = mapped_column(Double)
    unexplained: Mapped[float] = mapped_column(Double, server_default="0")
    at: Mapped[str] = mapped_column(Text)
